"""NKI element types as NumPy arrays: which dtype holds one, how float32 results are rounded to it, how packed types unpack."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from trnprof.nki.dtypes import DType, as_dtype

NUMPY: dict[str, np.dtype[Any]] = {
    name: np.dtype(kind)
    for name, kind in {
        "bool": np.uint8,
        "int8": np.int8,
        "uint8": np.uint8,
        "int16": np.int16,
        "uint16": np.uint16,
        "int32": np.int32,
        "uint32": np.uint32,
        "int64": np.int64,
        "uint64": np.uint64,
        "float16": np.float16,
        "bfloat16": ml_dtypes.bfloat16,
        "float32": np.float32,
        "tfloat32": np.float32,
        "float64": np.float64,
        "float8_e3m4": ml_dtypes.float8_e3m4,
        "float8_e4m3": ml_dtypes.float8_e4m3,
        "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
        "float8_e5m2": ml_dtypes.float8_e5m2,
        "float8_e8m0fnu": ml_dtypes.float8_e8m0fnu,
        # Four elements in one: held as the bits, unpacked where the tensor engine multiplies them.
        "float8_e4m3fn_x4": np.uint32,
        "float8_e5m2_x4": np.uint32,
        "float4_e2m1fn_x4": np.uint16,
    }.items()
}
"""The dtype of the array that holds a type's elements."""

INTEGERS = frozenset({"bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"})
PACKED = {
    "float8_e4m3fn_x4": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2_x4": np.dtype(ml_dtypes.float8_e5m2),
    "float4_e2m1fn_x4": np.dtype(ml_dtypes.float4_e2m1fn),
}
"""A packed type's element."""

UNWRITTEN_INTEGER = 0x55
"""Every byte of integer memory that nothing has written: as an index it is far out of any bounds."""
_TF32_DROPPED = 13
"""float32 has 23 mantissa bits, tfloat32 keeps 10."""


def is_integer(dtype: str) -> bool:
    """Integers and truth values; packed types are neither integers nor floats to compute with."""
    return dtype in INTEGERS


def is_real_float(dtype: str) -> bool:
    """A floating-point type whose elements an engine computes with."""
    return dtype not in INTEGERS and dtype not in PACKED


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Float values as an engine writes them to `dtype`: round to nearest even; to integers saturating, NaN as 0.

    values: float32 or float64, any shape. The result has NUMPY[dtype] (tfloat32: a float32 of 10 mantissa bits).
    """
    kind = NUMPY[dtype]
    if dtype in INTEGERS:
        limits = np.iinfo(kind)
        whole = np.rint(values.astype(np.float64, copy=False))
        whole = np.clip(whole, float(limits.min), float(limits.max))
        # float64 has no 2**64 - 1: what rounds up to 2**64 would wrap.
        whole = np.where(np.isnan(whole), 0.0, whole)
        if kind.itemsize == 8:
            inside = whole < float(limits.max)
            return np.where(inside, np.where(inside, whole, 0.0).astype(kind), limits.max)
        return whole.astype(kind)
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype == "tfloat32":
            return _tfloat32(values.astype(np.float32, copy=False))
        return values.astype(kind, copy=False)


def _tfloat32(values: np.ndarray) -> np.ndarray:
    """Ties to even on bit 13 of a float32; infinities and NaN as they are."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    half = np.uint32((1 << (_TF32_DROPPED - 1)) - 1)
    even = (bits >> np.uint32(_TF32_DROPPED)) & np.uint32(1)
    kept = (bits + half + even) & np.uint32(~((1 << _TF32_DROPPED) - 1) & 0xFFFFFFFF)
    return np.where(np.isfinite(values), kept.view(np.float32), values)


def unpacked(bits: np.ndarray, dtype: str) -> np.ndarray:
    """The elements of a packed type as float32: shape [..., n] gives [..., n, 4], the lowest bits first."""
    element = PACKED[dtype]
    bits = np.ascontiguousarray(bits)
    if dtype == "float4_e2m1fn_x4":
        nibbles = (bits[..., None] >> np.array([0, 4, 8, 12], np.uint16)) & np.uint16(15)
        return nibbles.astype(np.uint8).view(element).astype(np.float32)
    return bits.view(np.uint8).reshape(*bits.shape, 4).view(element).astype(np.float32)


def packed(elements: np.ndarray, dtype: str) -> np.ndarray:
    """Elements [..., n, 4] (float) rounded and packed: [..., n]. The inverse of unpacked()."""
    element = PACKED[dtype]
    with np.errstate(over="ignore", invalid="ignore"):
        small = np.ascontiguousarray(elements).astype(element)
    raw = small.view(np.uint8)
    if dtype == "float4_e2m1fn_x4":
        shifted = raw.astype(np.uint16) << np.array([0, 4, 8, 12], np.uint16)
        return np.bitwise_or.reduce(shifted, axis=-1).astype(np.uint16)
    return raw.reshape(*raw.shape[:-1], 4).view(np.uint32)[..., 0]


def numpy_dtype(value: Any) -> np.dtype[Any]:
    """The NumPy dtype that holds whatever as_dtype() understands."""
    return NUMPY[as_dtype(value)]


def dtype_of(array: np.ndarray) -> DType:
    """The NKI type of a user's array; packed types are records of one field that is called like the type.

    Raises TypeError for a dtype that no NKI type matches.
    """
    if array.dtype.names:
        return as_dtype(array.dtype.names[0])
    return as_dtype("bool" if array.dtype == np.bool_ else array.dtype)

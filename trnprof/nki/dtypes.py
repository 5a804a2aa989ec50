"""NKI element types: names, bytes, and which of the many spellings means which.

A DType is its name (a str): kernels compare it with strings, with numpy types and with each other, and use it as a key.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

_ITEMSIZE = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "tfloat32": 4,
    "float64": 8,
    "float8_e3m4": 1,
    "float8_e4m3": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e8m0fnu": 1,
    # Four elements in one: the unit that the tensor engine multiplies and a DMA moves.
    "float8_e4m3fn_x4": 4,
    "float8_e5m2_x4": 4,
    "float4_e2m1fn_x4": 2,
}

_ALIAS = {
    "bool_": "bool",
    "fp32": "float32",
    "float": "float32",
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "double": "float64",
    "int": "int32",
    "fp32r": "float32",
    "f32": "float32",
    "f16": "float16",
    "long": "int64",
    "fp8": "float8_e4m3",
    "float8e3": "float8_e3m4",
    "float8e4": "float8_e4m3",
    "float8e5": "float8_e5m2",
    "float8_e4m3b11fnuz": "float8_e4m3",
}


class DType(str):
    """The name of an element type, which knows its bytes."""

    __slots__ = ("itemsize",)
    itemsize: int
    """Bytes of one element (of one group of four for the _x4 types)."""

    def __new__(cls, name: str) -> DType:
        """`name` is canonical: a key of the table above."""
        self = super().__new__(cls, name)
        self.itemsize = _ITEMSIZE[name]
        return self

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return str.__eq__(self, other) or _ALIAS.get(str(other)) == str(self)
        if other is None:
            return False
        try:
            return str.__eq__(self, as_dtype(other))
        except TypeError:
            return False

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return str.__hash__(self)

    def __repr__(self) -> str:
        return str(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return (DType, (str(self),))

    @property
    def name(self) -> str:
        """The name, as numpy's dtypes spell it."""
        return str(self)

    @property
    def is_float(self) -> bool:
        """Floating point, packed types included."""
        return "float" in self


DTYPES: dict[str, DType] = {name: DType(name) for name in _ITEMSIZE}
"""Every type by its canonical name."""


def as_dtype(value: Any) -> DType:
    """The DType that `value` means: a DType, a name, a numpy, ml_dtypes, torch or jax type, or Python's float/int/bool.

    Raises TypeError for anything else.
    """
    if type(value) is DType:
        return value
    try:
        return _from_spelling(value)
    except TypeError:
        raise
    except Exception as error:
        raise TypeError(f"{value!r} is not an element type") from error


@lru_cache(maxsize=1024)
def _from_spelling(value: Any) -> DType:
    """as_dtype() for hashable values."""
    if isinstance(value, str):
        text = str(value)
    elif isinstance(value, type):
        text = value.__name__
    else:
        text = getattr(value, "name", None) or str(value)
        if not isinstance(text, str):
            text = str(value)
    text = text.rsplit(".", 1)[-1].strip("'>< ")
    name = _ALIAS.get(text, text)
    if name not in DTYPES:
        raise TypeError(f"{text!r} is not an NKI element type ({', '.join(DTYPES)})")
    return DTYPES[name]

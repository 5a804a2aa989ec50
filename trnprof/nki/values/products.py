"""nki.isa on the tensor engine: products, transposes, microscaled products and what quantises for them.

Operands are multiplied exactly (bfloat16, float16 and float8 products fit float32) and added in float32; the order of the
additions is the CPU's, not the array's. float32 operands are multiplied in float32: the engine does that in several passes
over parts of the mantissa, and how many bits they keep is not documented.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import ml_dtypes
import numpy as np

from trnprof.nki.dtypes import DType
from trnprof.nki.operations.table import INSTRUCTION, Bound, Operation, engine_name
from trnprof.nki.recording import Memory
from trnprof.nki.tensor import Tensor
from trnprof.nki.values import kinds
from trnprof.nki.values.limits import HardwareLimitError
from trnprof.nki.values.machine import Machine
from trnprof.nki.values.registry import evaluation, instruction

_BIAS = 127
"""float8_e8m0fnu holds 2^(byte - 127)."""
GROUP_PARTITIONS = 8
QUADRANT = 32
MAX_EXPONENT = {"float8_e4m3fn_x4": 8, "float8_e5m2_x4": 15}
VECTOR_TRANSPOSE = 32


@instruction("isa", "nc_matmul")
def nc_matmul(machine: Machine, operation: Operation, bound: Bound, dst: Tensor) -> None:
    """dst (+)= stationary.T @ moving, contracted over partitions (double_row: over the first free dimension too)."""
    stationary, moving = bound["stationary"], bound["moving"]
    limits = machine.limits
    limits.check_matmul_types("nc_matmul", stationary, moving)
    mode = bound.get("perf_mode")
    name = mode.value if isinstance(mode, Enum) else str(mode or "none")
    rows = stationary.shape[0] * (2 if name.startswith("double_row") else 1)
    limits.check_matmul("nc_matmul", dst, stationary, moving, rows)
    if rows != stationary.shape[0] and (stationary.shape[1:2] != (2,) or moving.shape[1:2] != (2,)):
        raise HardwareLimitError(
            f"nc_matmul {name}: stationary {stationary.shape} and moving {moving.shape} need 2 as their first free dimension"
        )
    left, right = machine.bits(stationary), machine.bits(moving)
    if bound.get("is_transpose"):
        turned = _transposed_by_identity(left.reshape(rows, -1), right.reshape(rows, -1))
        if turned is not None:
            _put_turned(machine, dst, turned, stationary.dtype)
            return
    product = machine.widened(left, stationary.dtype).reshape(rows, -1).T @ machine.widened(
        right, moving.dtype
    ).reshape(rows, -1)
    machine.deliver(dst, product, _accumulates(bound), bound.get("mask"))


def _accumulates(bound: Bound) -> bool | None:
    given = bound.get("accumulate", bound.get("psumAccumulateFlag"))
    return None if given is None else bool(given)


def _transposed_by_identity(left: np.ndarray, right: np.ndarray) -> np.ndarray | None:
    """left.T bit by bit where `right` is an identity matrix, else None."""
    count = right.shape[0]
    if right.shape != (count, count) or left.shape[0] != count:
        return None
    plain = right.astype(np.float32)
    return left.T if bool((plain == np.eye(count, dtype=np.float32)).all()) else None


def _put_turned(machine: Machine, dst: Tensor, turned: np.ndarray, dtype: DType) -> None:
    values = np.ascontiguousarray(turned)
    if dst.dtype == dtype:
        machine.put(dst, machine.fitted(values, dst.shape))
    else:
        machine.write(dst, machine.fitted(machine.widened(values, dtype), dst.shape))


@evaluation("isa", "nc_transpose")
def nc_transpose(machine: Machine, operation: Operation, bound: Bound) -> Any:
    """Partitions and free dimensions exchanged, bit by bit. (The vector engine's 32 x 32 blocks stay where they are.)"""
    dst, made = machine.destination(operation, bound)
    data = bound["data"]
    for name, tensor in (("data", data), ("dst", dst)):
        machine.limits.check_operand("nc_transpose", name, tensor)
    engine = engine_name(bound.get("engine"))
    values = machine.bits(data)
    flat = values.reshape(values.shape[0], -1)
    if engine == "vector" and max(flat.shape) > VECTOR_TRANSPOSE:
        raise HardwareLimitError(
            f"nc_transpose of {flat.shape} on the vector engine, which transposes up to {VECTOR_TRANSPOSE} x "
            f"{VECTOR_TRANSPOSE}; use the tensor engine"
        )
    if engine == "tensor" and dst.storage.memory is not Memory.PSUM:
        raise HardwareLimitError(
            f"nc_transpose on the tensor engine writes PSUM, and {dst.name!r} is in {dst.storage.memory}"
        )
    if max(flat.shape) > 128:
        raise HardwareLimitError(f"nc_transpose of {flat.shape}: at most 128 x 128 at a time")
    turned = flat.T
    mask = bound.get("mask")
    if mask is not None and machine.where(mask, data.shape) is not None:
        mask = machine.where(mask, data.shape).reshape(flat.shape).T  # type: ignore[union-attr]
        mask = machine.fitted(mask, dst.shape)
    if dst.dtype == data.dtype:
        machine.put(dst, machine.fitted(np.ascontiguousarray(turned), dst.shape), mask)
    else:
        machine.write(dst, machine.fitted(machine.widened(turned, data.dtype), dst.shape), mask)
    return INSTRUCTION if made is None else made


# Microscaled products


@instruction("isa", "nc_matmul_mx")
def nc_matmul_mx(machine: Machine, operation: Operation, bound: Bound, dst: Tensor) -> None:
    """dst (+)= stationary.T @ moving of packed elements times their scales, over partitions and the four elements of one."""
    stationary, moving = bound["stationary"], bound["moving"]
    for name, tensor in (("stationary", stationary), ("moving", moving)):
        if tensor.dtype not in kinds.PACKED:
            raise HardwareLimitError(
                f"nc_matmul_mx {name}: {tensor.name!r} is {tensor.dtype}; it takes {', '.join(kinds.PACKED)}"
            )
    machine.limits.check_matmul("nc_matmul_mx", dst, stationary, moving, stationary.shape[0])
    left = dequantised(machine, stationary, bound["stationary_scale"])
    right = dequantised(machine, moving, bound["moving_scale"])
    product = np.einsum("pmk,pnk->mn", left, right, optimize=True) if left.size < 4096 else _contracted(left, right)
    machine.deliver(dst, product.astype(machine.work, copy=False), _accumulates(bound))


def _contracted(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Sum over partitions and the packed four."""
    rows = left.transpose(1, 0, 2).reshape(left.shape[1], -1)
    columns = right.transpose(0, 2, 1).reshape(-1, right.shape[1])
    return rows @ columns


def dequantised(machine: Machine, tensor: Tensor, scale: Tensor) -> np.ndarray:
    """[partitions, free, 4] as numbers: each group of 8 partitions x 4 times its scale."""
    bits = machine.bits(tensor)
    flat = bits.reshape(bits.shape[0], -1)
    numbers = kinds.unpacked(flat, tensor.dtype).astype(machine.work)
    factors = _scales(machine, scale, flat.shape)
    return numbers * np.repeat(factors, GROUP_PARTITIONS, axis=0)[: flat.shape[0], :, None]


def _scales(machine: Machine, scale: Tensor, shape: tuple[int, ...]) -> np.ndarray:
    """[groups, free]: the scale of each group of 8 partitions, which lies in the quadrant that the group lies in."""
    raw = machine.bits(scale)
    bytes_ = raw.view(np.uint8) if raw.dtype.itemsize == 1 else None
    flat = raw.reshape(raw.shape[0], -1)[:, : shape[1]]
    rows = scale_rows(shape[0])
    if max(rows, default=0) >= flat.shape[0]:
        raise HardwareLimitError(
            f"{scale.name!r} has {flat.shape[0]} partitions of scales, and the groups of {shape[0]} partitions lie in up to "
            f"{max(rows) + 1}"
        )
    if bytes_ is not None:
        exponents = bytes_.reshape(raw.shape[0], -1)[rows, : shape[1]].astype(np.int32) - _BIAS
        return np.ldexp(np.ones(1, machine.work), exponents).astype(machine.work)
    return flat[rows].astype(machine.work)


def scale_rows(partitions: int) -> list[int]:
    """The partition that holds the scale of each group of 8: four a quadrant, from the quadrant's start."""
    per_quadrant = QUADRANT // GROUP_PARTITIONS
    return [
        group // per_quadrant * QUADRANT + group % per_quadrant for group in range(-(-partitions // GROUP_PARTITIONS))
    ]


@instruction("isa", "quantize_mx")
def quantize_mx(machine: Machine, operation: Operation, bound: Bound, dst: Tensor) -> None:
    """Groups of 8 partitions x 4 elements divided by a power of two and rounded to float8; the exponent to dst_scale."""
    src, scale = bound["src"], bound["dst_scale"]
    if dst.dtype not in MAX_EXPONENT:
        raise HardwareLimitError(f"quantize_mx dst: {dst.dtype}; it makes {', '.join(MAX_EXPONENT)}")
    if src.shape[0] % QUADRANT:
        raise HardwareLimitError(f"quantize_mx src has {src.shape[0]} partitions; it takes multiples of {QUADRANT}")
    values = machine.number(src)
    flat = values.reshape(values.shape[0], -1)
    grouped = flat.reshape(flat.shape[0] // GROUP_PARTITIONS, GROUP_PARTITIONS, flat.shape[1] // 4, 4)
    largest = np.abs(grouped).max(axis=(1, 3)).astype(np.float32)
    exponent = (largest.view(np.uint32) >> np.uint32(23)).astype(np.int32) & 0xFF
    # The block's scale is 2^(floor(log2(largest)) - the element type's largest exponent), as in the OCP specification and in
    # the vendor's golden implementations; its API page says one less exponent. What then exceeds the type saturates.
    biased = np.clip(exponent - MAX_EXPONENT[dst.dtype], 0, 254)
    factor = np.ldexp(np.ones(1, machine.work), -(biased - _BIAS)).astype(machine.work)
    most = float(ml_dtypes.finfo(kinds.PACKED[dst.dtype]).max)
    small = np.clip(grouped * factor[:, None, :, None], -most, most)
    packed = kinds.packed(small.reshape(flat.shape[0], flat.shape[1] // 4, 4), dst.dtype)
    machine.put(dst, machine.fitted(packed, dst.shape))
    _put_scales(machine, scale, biased.astype(np.uint8), flat.shape[0])


def _put_scales(machine: Machine, scale: Tensor, biased: np.ndarray, partitions: int) -> None:
    rows = scale_rows(partitions)
    if max(rows) >= scale.shape[0]:
        raise HardwareLimitError(
            f"quantize_mx dst_scale {scale.shape}: the scales of {partitions} partitions lie in up to {max(rows) + 1}"
        )
    width = biased.shape[1]
    for row, line in zip(rows, biased, strict=True):
        target = scale[row : row + 1, 0:width] if scale.ndim == 2 else scale[row : row + 1]
        values = line.reshape(1, -1)
        if target.dtype == "float8_e8m0fnu":
            held = values.view(kinds.NUMPY["float8_e8m0fnu"])
            machine.put(target, machine.fitted(held if machine.precise else held.astype(np.float64), target.shape))
        else:
            machine.put(target, machine.fitted(values.astype(kinds.NUMPY[target.dtype]), target.shape))

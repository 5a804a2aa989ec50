"""Data movement by the DMA engines: between HBM and SBUF by patterns, indices and registers, with casts through float32."""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np

from trnprof.nki.indexing import masked
from trnprof.nki.operations.table import INSTRUCTION, Bound, Operation, op_name, tensors_in
from trnprof.nki.recording import Indirection, Memory
from trnprof.nki.tensor import Indirect, Tensor
from trnprof.nki.values import alu
from trnprof.nki.values.cells import OutOfBoundsError
from trnprof.nki.values.limits import HardwareLimitError
from trnprof.nki.values.machine import Machine, ShapeMismatchError
from trnprof.nki.values.registry import evaluation

_AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}
"""What dma_transpose does without axes."""
MAX_SOURCES = 16


def move(machine: Machine, operation: Operation, bound: Bound, dst: Tensor, src: Tensor) -> None:
    """dst = src in element order; where an index is out of bounds, an error or (oob_mode.skip) nothing."""
    for tensor in (dst, src):
        check_memory(machine, operation.name, tensor)
    try:
        values, valid = machine.gathered(src)
    except OutOfBoundsError:
        if _skips(bound) and src.indirection is not None:
            return
        raise
    if valid is not None and not _skips(bound):
        raise OutOfBoundsError(machine._outside(src))
    if valid is not None:
        valid = _shaped(operation.name, valid, dst)
    try:
        if src.dtype == dst.dtype:
            machine.put(dst, _shaped(operation.name, values, dst), None, valid)
        else:
            wide = _shaped(operation.name, machine.widened(values, src.dtype), dst)
            if valid is not None:
                kept = machine.gathered(dst)[0]
                wide = np.where(valid, wide, machine.widened(kept, dst.dtype))
            machine.write(dst, wide)
    except OutOfBoundsError:
        if _skips(bound) and dst.indirection is not None:
            return
        raise
    _check_scatter(machine, bound, dst)


def _check_scatter(machine: Machine, bound: Bound, dst: Tensor) -> None:
    """A scatter with indices out of bounds is an error unless it skips them."""
    if dst.indirection is None or _skips(bound):
        return
    shift, gathers = machine.dynamic_offset(dst)
    if gathers and machine.addresses(dst, machine.cells(dst.storage), shift, gathers)[1] is not None:
        raise OutOfBoundsError(machine._outside(dst))


def check_memory(machine: Machine, name: str, tensor: Tensor) -> None:
    """DMAs reach HBM and SBUF; on trn2 and later not PSUM."""
    if tensor.storage.memory is Memory.PSUM and machine.recorder.target != "trn1" and name.startswith("dma_"):
        raise HardwareLimitError(f"{name}: {tensor.name!r} is in PSUM, which DMAs do not reach; copy it to SBUF first")
    if tensor.on_chip:
        machine.limits.check_inside_partition(name, "operand", tensor)


def _skips(bound: Bound) -> bool:
    mode = bound.get("oob_mode")
    return mode is not None and (mode.name if isinstance(mode, Enum) else str(mode)) in ("skip", "1")


def _shaped(name: str, values: np.ndarray, dst: Tensor) -> np.ndarray:
    """In the destination's shape, elements in order; smaller sources broadcast as NumPy does."""
    if values.shape == dst.shape:
        return values
    if values.size == dst.size:
        return values.reshape(dst.shape)
    try:
        return np.broadcast_to(values, dst.shape)
    except ValueError:
        advice = "they must be as many" if values.size else "a slice starts behind its tensor's end"
        raise ShapeMismatchError(
            f"{name} moves {values.shape} to {dst.shape}: {values.size} elements to {dst.size}; {advice}"
        ) from None


@evaluation("isa", "dma_copy")
def dma_copy(machine: Machine, operation: Operation, bound: Bound) -> Any:
    dst, src = tensors_in(bound["dst"])[0], tensors_in(bound["src"])[0]
    mask = bound.get("mask")
    if mask is not None:
        dst, src = masked(dst, mask), masked(src, mask)
    combine = bound.get("dst_rmw_op")
    if combine is None:
        move(machine, operation, bound, dst, src)
    else:
        reduce_into(machine, operation, bound, dst, [src], op_name(combine), read_back=True)
    return INSTRUCTION


@evaluation("isa", "dma_copy_indirect")
def dma_copy_indirect(machine: Machine, operation: Operation, bound: Bound) -> Any:
    """Older spelling: the index vectors are arguments of their own."""

    def placed(view: Tensor, index: Any) -> Tensor:
        if not isinstance(index, Tensor):
            return view
        step = view.strides[0]
        gather = Indirect(Indirection.GATHER, index, axis=0, step=step, replaced_step=step)
        return view._view((index.size, *view.shape[1:]), view.strides, indirect=gather)

    dst = placed(bound["dst"], bound.get("dst_idx"))
    src = placed(bound["src"], bound.get("src_idx", bound.get("idx")))
    move(machine, operation, bound, dst, src)
    return INSTRUCTION


@evaluation("isa", "dma_transpose")
def dma_transpose(machine: Machine, operation: Operation, bound: Bound) -> Any:
    src = tensors_in(bound["src"])[0]
    given = bound.get("axes")
    axes = tuple(int(axis) for axis in given) if given else _AXES.get(src.ndim, tuple(reversed(range(src.ndim))))
    dst, made = machine.destination(operation, bound) if bound.get("dst") is not None else (None, None)
    if dst is None:
        from trnprof.nki.operations.table import new_tensor

        dst = made = new_tensor(
            machine.recorder, [src.shape[axis] for axis in axes], src.dtype, name="dma_transpose", kind="result"
        )
    for tensor in (dst, src):
        check_memory(machine, operation.name, tensor)
    values, valid = machine.gathered(src)
    if valid is not None:
        if not _skips(bound):
            raise OutOfBoundsError(machine._outside(src))
        valid = _shaped(operation.name, np.transpose(valid, axes), dst)
    if values.ndim != len(axes):
        raise ShapeMismatchError(f"dma_transpose axes {axes} of a source of shape {src.shape}")
    turned = np.transpose(values, axes)
    if src.dtype == dst.dtype:
        machine.put(dst, _shaped(operation.name, turned, dst), None, valid)
    else:
        machine.write(dst, _shaped(operation.name, machine.widened(turned, src.dtype), dst), valid)
    return INSTRUCTION if made is None else made


@evaluation("isa", "dma_compute")
def dma_compute(machine: Machine, operation: Operation, bound: Bound) -> Any:
    """dst = reduce_op of the scaled sources, in float32."""
    dst, sources = tensors_in(bound["dst"])[0], tensors_in(bound["srcs"])
    op, scales = bound.get("reduce_op"), bound.get("scales")
    if isinstance(op, list | tuple):  # older spelling: scales before the operator
        op, scales = scales, op
    if len(sources) > MAX_SOURCES:
        raise HardwareLimitError(f"dma_compute takes at most {MAX_SOURCES} sources, got {len(sources)}")
    reduce_into(machine, operation, bound, dst, sources, "add" if op is None else op_name(op), scales=scales)
    return INSTRUCTION


def reduce_into(
    machine: Machine,
    operation: Operation,
    bound: Bound,
    dst: Tensor,
    sources: list[Tensor],
    name: str,
    *,
    scales: Any = None,
    read_back: bool = False,
) -> None:
    """dst = sources combined (with dst itself when read_back); indices out of bounds skip where the call says so."""
    for tensor in (dst, *sources):
        check_memory(machine, operation.name, tensor)
    valid: np.ndarray | None = None
    total: Any = None
    for at, source in enumerate([dst, *sources] if read_back else sources):
        bits, inside = machine.gathered(source)
        if inside is not None:
            if not _skips(bound):
                raise OutOfBoundsError(machine._outside(source))
            inside = _shaped(operation.name, inside, dst)
            valid = inside if valid is None else valid & inside
        part = _shaped(operation.name, machine.widened(bits, source.dtype), dst)
        at -= read_back
        if scales is not None and at >= 0 and scales[at] != 1:
            part = part * machine.number(scales[at])
        total = part if total is None else alu.apply(name, total, part)
    _note_duplicates(machine, dst)
    if valid is not None:
        total = np.where(valid, total, machine.widened(machine.gathered(dst)[0], dst.dtype))
    machine.write(dst, total)
    _check_scatter(machine, bound, dst)


def _note_duplicates(machine: Machine, dst: Tensor) -> None:
    """A scatter that accumulates reads each row once: equal indices lose all but one addition."""
    indirect = dst.indirection
    if indirect is None or indirect.kind is not Indirection.GATHER or not isinstance(indirect.index, Tensor):
        return
    index = machine.bits(indirect.index).reshape(-1)
    if len(np.unique(index)) != len(index):
        machine.note(
            "duplicate-indices",
            f"{indirect.index.name!r} holds equal indices: a scatter that accumulates needs unique ones, and keeps one addition",
        )


@evaluation("language", "load", "load_transpose2d")
def load(machine: Machine, operation: Operation, bound: Bound) -> Any:
    """A new tile in SBUF with the source's elements."""
    from trnprof.nki.dtypes import as_dtype
    from trnprof.nki.operations.table import new_tensor

    source = bound["src"]
    if not isinstance(source, Tensor):
        raise TypeError(f"{operation.name}() needs a tensor, got {type(source).__name__}")
    turned = operation.name == "load_transpose2d"
    shape = source.shape[::-1] if turned else source.shape
    if len(shape) == 1:
        shape = (*shape, 1)
    dtype = source.dtype if bound.get("dtype") is None else as_dtype(bound["dtype"])
    tile = new_tensor(machine.recorder, shape, dtype, name=operation.name, kind="result")
    target = tile if len(source.shape) != 1 else tile.reshape(source.shape[0])
    mask = bound.get("mask")
    if turned:
        bits, valid = machine.gathered(source)
        if valid is not None:
            raise OutOfBoundsError(machine._outside(source))
        if source.dtype == dtype:
            machine.put(target, bits.T, mask)
        else:
            machine.write(target, machine.widened(bits.T, source.dtype), mask)
        return tile
    move(
        machine,
        operation,
        bound,
        *((masked(target, mask), masked(source, mask)) if mask is not None else (target, source)),
    )
    return tile


@evaluation("language", "store")
def store(machine: Machine, operation: Operation, bound: Bound) -> Any:
    dst, value, mask = bound["dst"], bound["value"], bound.get("mask")
    if not isinstance(value, Tensor):
        from trnprof.nki.values.elementwise import fill

        fill(machine, masked(dst, mask) if mask is not None else dst, value)
        return None
    if value.size != dst.size and value.dtype == dst.dtype and mask is None:
        value = value.broadcast_to(dst.shape)
    if mask is not None:
        dst, value = masked(dst, mask), masked(value, mask)
    move(machine, operation, bound, dst, value)
    return None


@evaluation("language", "atomic_rmw")
def atomic_rmw(machine: Machine, operation: Operation, bound: Bound) -> Any:
    """dst = dst <op> value, one element after the other where indices are equal."""
    dst, value, mask = bound["dst"], bound["value"], bound.get("mask")
    if mask is not None:
        dst, value = masked(dst, mask), masked(value, mask)
    name = op_name(bound["op"])
    shift, gathers = machine.dynamic_offset(dst)
    cells = machine.cells(dst.storage)
    if gathers and alu.canonical(name) == "add":
        addresses, inside = machine.addresses(dst, cells, shift, gathers)
        if inside is not None:
            raise OutOfBoundsError(machine._outside(dst))
        unique, where = np.unique(addresses, return_inverse=True)
        total = machine.widened(cells.load_at(dst.dtype, unique), dst.dtype).copy()
        np.add.at(total, where.reshape(-1), machine.fitted(machine.number(value), dst.shape).reshape(-1))
        cells.store_at(dst.dtype, unique, total)
        return None
    reduce_into(machine, operation, bound, dst, [value], name, read_back=True)
    return None

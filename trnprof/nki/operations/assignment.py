"""t[...] = value: a result that nothing has read yet goes straight to its place; anything else is a copy."""

from __future__ import annotations

from typing import Any

from trnprof.nki.operations.table import TABLE, call, compute
from trnprof.nki.recorder import current_recorder
from trnprof.nki.recording import Memory
from trnprof.nki.tensor import Tensor


def assign(target: Tensor, value: Any) -> None:
    """Write `value` (a tile or a number) to the view `target`.

    The first generation's instructions return tiles: `tile[...] = nisa.activation(...)` is one instruction that writes
    tile. A load into a tile of another dtype is a load and a cast, since the assignment is not the DMA's.
    """
    if not isinstance(value, Tensor):
        call("isa", "memset", target, value)
        return
    same = value.storage is target.storage and value.shape == target.shape and value.strides == target.strides
    if same and _equal(value.offset, target.offset):
        return
    if redirect(value, target):
        return
    if target.on_chip or value.on_chip:
        if target.storage.memory is Memory.HBM or value.storage.memory is Memory.HBM:
            call("isa", "dma_copy", target, value)
        else:
            call("isa", "tensor_copy", target, _fitting(value, target))
        return
    call("isa", "dma_copy", target, value)


def redirect(value: Tensor, target: Tensor, **changes: Any) -> bool:
    """Make the record that produced `value` write to `target` instead, where nothing has read `value` yet."""
    recorder = current_recorder()
    if recorder is None or value.storage.producer is None:
        return False
    fields, nest = value.storage.producer
    if nest is not recorder.nest or value.shape != value.storage.shape or value.size != target.size:
        return False
    if "write" in fields:
        if target.dtype != value.dtype or target.storage.memory is not Memory.SBUF:
            return False
        fields["write"] = recorder.access(_shaped(target, fields["write"].shape), write=True)
    else:
        if target.storage.memory is Memory.HBM:
            return False
        fields["writes"] = (recorder.access(target, write=True), *fields["writes"][1:])
        fields["attributes"] = (*fields["attributes"], *changes.items())
    target.storage.writer = value.storage.writer
    value.storage.producer = None
    value.storage.uses.clear()
    value.storage.skipped_uses.clear()
    return True


def accumulate(target: Tensor, value: Any) -> Tensor:
    """target += value: a matrix product into PSUM accumulates there; anything else is an addition in place."""
    recorder = current_recorder()
    if recorder is not None and recorder.machine is not None:
        recorder.machine.add_to(target, value)
        return target
    if isinstance(value, Tensor) and target.storage.memory is Memory.PSUM and recorder is not None:
        producer = value.storage.producer
        product = producer is not None and producer[0].get("op") in ("nc_matmul", "nc_matmul_mx")
        if product and redirect(value, target, accumulate=True):
            return target
    assert recorder is not None
    compute(recorder, TABLE["isa", "tensor_tensor"], {"dst": target, "data1": target, "data2": value, "op": "add"})
    return target


def _shaped(target: Tensor, shape: tuple[int, ...]) -> Tensor:
    """`target` cut to a masked load's part, where the shapes differ."""
    if target.shape == shape or len(target.shape) != len(shape):
        return target
    return target[tuple(slice(0, size) for size in shape)]


def _fitting(value: Tensor, target: Tensor) -> Tensor:
    """`value` broadcast to the target where it is smaller."""
    if value.size == target.size:
        return value
    try:
        return value.broadcast_to(target.shape)
    except ValueError:
        return value


def _equal(left: Any, right: Any) -> bool:
    difference = left - right
    return isinstance(difference, int) and type(difference) is int and difference == 0

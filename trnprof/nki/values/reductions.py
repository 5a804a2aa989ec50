"""nki.isa reductions and scans along the free dimensions, and across partitions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trnprof.nki.operations.table import Bound, Operation, op_name
from trnprof.nki.tensor import Tensor
from trnprof.nki.values import alu
from trnprof.nki.values.elementwise import put_integers
from trnprof.nki.values.limits import HardwareLimitError
from trnprof.nki.values.machine import Machine
from trnprof.nki.values.registry import evaluation, instruction

BN_STATS_ELEMENTS = 512


@instruction("isa", "tensor_reduce")
def tensor_reduce(machine: Machine, operation: Operation, bound: Bound, dst: Tensor) -> None:
    data = bound["data"]
    axes = free_axes("tensor_reduce", bound["axis"], data)
    machine.limits.same_partitions("tensor_reduce", dst, data=data)
    reduced(machine, dst, op_name(bound["op"]), data, axes, mask=bound.get("mask"), negate=bool(bound.get("negate")))


def free_axes(instruction_name: str, axis: Any, data: Tensor) -> tuple[int, ...]:
    """The axes as non-negative integers; axis 0 runs over partitions and cannot be reduced."""
    given = axis if isinstance(axis, list | tuple) else [axis]
    axes = tuple(sorted({int(one) % max(data.ndim, 1) for one in given}))
    if 0 in axes:
        raise HardwareLimitError(
            f"{instruction_name} axis {axis} of {data!r}: axis 0 runs over partitions, which the vector engine does not "
            "reduce; transpose, multiply by ones, or use tensor_partition_reduce"
        )
    return axes


def reduced(
    machine: Machine,
    dst: Tensor,
    name: str,
    data: Tensor,
    axes: tuple[int, ...],
    *,
    mask: Any = None,
    negate: bool = False,
) -> None:
    """dst = data reduced over `axes`; elements outside the mask do not take part."""
    if alu.is_bitwise(name):
        machine.limits.integers_for_bits("tensor_reduce", (name,), dst, data)
        result = alu.reduce(name, machine.bits(data), axes)
        put_integers(machine, dst, machine.fitted(result, dst.shape))
        return
    values = machine.number(data)
    kept = None
    if mask is not None:
        where = machine.where(mask, data.shape)
        if where is not None:
            values = np.where(where, values, machine.work.type(alu.IDENTITY.get(alu.canonical(name), 0.0)))
            kept = machine.fitted(np.asarray(where.any(axis=axes, keepdims=True)), dst.shape)
    result = alu.reduce(name, values, axes)
    machine.write(dst, machine.fitted(-result if negate else result, dst.shape), kept)


@instruction("isa", "tensor_partition_reduce")
def tensor_partition_reduce(machine: Machine, operation: Operation, bound: Bound, dst: Tensor) -> None:
    data, name = bound["data"], op_name(bound["op"])
    if alu.is_bitwise(name):
        put_integers(machine, dst, machine.fitted(alu.reduce(name, machine.bits(data), (0,)), dst.shape))
    else:
        machine.write(dst, machine.fitted(alu.reduce(name, machine.number(data), (0,)), dst.shape))


@instruction("isa", "bn_stats")
def bn_stats(machine: Machine, operation: Operation, bound: Bound, dst: Tensor) -> None:
    """Per partition (count, mean, count * variance) of the even elements, then of the odd ones."""
    values = machine.number(bound["data"])
    flat = values.reshape(values.shape[0], -1)
    if flat.shape[1] > BN_STATS_ELEMENTS:
        raise HardwareLimitError(
            f"bn_stats of {flat.shape[1]} elements a partition; it takes {BN_STATS_ELEMENTS} at a time, and bn_aggr joins them"
        )
    mask = machine.where(bound.get("mask"), values.shape)
    inside = np.ones(flat.shape, bool) if mask is None else mask.reshape(flat.shape)
    columns = []
    for first in (0, 1):
        part, here = flat[:, first::2], inside[:, first::2]
        count = here.sum(axis=1).astype(flat.dtype)
        total = np.where(here, part, 0).sum(axis=1, dtype=flat.dtype)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.where(count > 0, total / count, 0).astype(flat.dtype)
        spread = (np.where(here, part - mean[:, None], 0) ** 2).sum(axis=1, dtype=flat.dtype)
        columns += [count, mean, spread]
    machine.write(dst, machine.fitted(np.stack(columns, axis=1), dst.shape))


@instruction("isa", "bn_aggr")
def bn_aggr(machine: Machine, operation: Operation, bound: Bound, dst: Tensor) -> None:
    """Mean and variance of everything that bn_stats counted."""
    values = machine.number(bound["data"])
    flat = values.reshape(values.shape[0], -1)
    if flat.shape[1] % 3:
        raise HardwareLimitError(f"bn_aggr of {flat.shape[1]} elements a partition; they come in threes from bn_stats")
    groups = flat.reshape(flat.shape[0], -1, 3).astype(np.float64)
    count = groups[:, :, 0].sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = (groups[:, :, 0] * groups[:, :, 1]).sum(axis=1) / count
        spread = groups[:, :, 2].sum(axis=1)
        spread += (groups[:, :, 0] * (groups[:, :, 1] - mean[:, None]) ** 2).sum(axis=1)
        variance = spread / count
    machine.write(dst, machine.fitted(np.stack([mean, variance], axis=1).astype(machine.work), dst.shape))


@instruction("isa", "tensor_tensor_scan")
def tensor_tensor_scan(machine: Machine, operation: Operation, bound: Bound, dst: Tensor) -> None:
    """result[i] = (data0[i] <op0> result[i-1]) <op1> data1[i], from `initial`."""
    first, second = bound["data0"], bound["data1"]
    machine.limits.same_partitions("tensor_tensor_scan", dst, data0=first, data1=second)
    machine.limits.not_both_in_psum("tensor_tensor_scan", first, second)
    left, right = machine.number(first), machine.number(second)
    flat = left.reshape(left.shape[0], -1)
    other = machine.fitted(right, left.shape).reshape(flat.shape)
    name0, name1 = op_name(bound["op0"]), op_name(bound["op1"])
    reverse0, reverse1 = bool(bound.get("reverse0")), bool(bound.get("reverse1"))
    start = np.broadcast_to(machine.operand(bound["initial"], flat), (flat.shape[0], 1))
    state = np.array(start[:, 0], machine.work)
    result = np.empty((flat.shape[1], flat.shape[0]), machine.work)
    columns, others = np.ascontiguousarray(flat.T), np.ascontiguousarray(other.T)
    for at in range(flat.shape[1]):
        inner = alu.apply(name0, state, columns[at]) if reverse0 else alu.apply(name0, columns[at], state)
        state = alu.apply(name1, others[at], inner) if reverse1 else alu.apply(name1, inner, others[at])
        result[at] = state
    machine.write(dst, machine.fitted(result.T.reshape(left.shape), dst.shape), bound.get("mask"))


@dataclass
class LoopReduction:
    """What one nl.loop_reduce of a kernel has reduced so far.

    Loops run one by one, so that each call returns the reduction over the iterations until now, the whole one in the last. In
    one iteration of the named loops the call runs as often as the loops inside them say, each time for another tile: tiles are
    told by the order of their calls, and a new reduction begins where the named loops are at their first iteration again.
    """

    first: tuple[int, ...]
    """The named loops' indices in their first iteration."""
    now: tuple[int, ...]
    tile: int = 0
    """How many calls this iteration has made."""
    totals: list[np.ndarray] = field(default_factory=list)

    def add(self, indices: tuple[int, ...], name: str, values: np.ndarray, where: np.ndarray | None) -> np.ndarray:
        """The reduction of a tile with the iteration's `values`; where `where` is false they do not count."""
        if indices != self.now:
            self.now, self.tile = indices, 0
            if indices == self.first:
                self.totals.clear()
        if self.tile == len(self.totals):
            self.totals.append(values)
        else:
            before = self.totals[self.tile]
            total = alu.apply(name, before, values)
            self.totals[self.tile] = total if where is None else np.where(where, total, before)
        self.tile += 1
        return self.totals[self.tile - 1]


@evaluation("language", "loop_reduce")
def loop_reduce(machine: Machine, operation: Operation, bound: Bound) -> Any:
    """x reduced over the iterations of the loops whose indices `loop_indices` holds."""
    dst, made = machine.destination(operation, bound)
    given = bound.get("loop_indices")
    if given is None:
        raise TypeError("nl.loop_reduce needs loop_indices: the indices of the loops to reduce over")
    indices = tuple(machine.integer(one) for one in (given if isinstance(given, list | tuple) else [given]))
    values = np.array(machine.number(bound["x"]))
    known = machine.loop_reductions.setdefault(machine.recorder.site(), LoopReduction(indices, indices))
    total = known.add(indices, op_name(bound["op"]), values, machine.where(bound.get("mask"), values.shape))
    machine.write(dst, total)
    return made

"""nki.isa on the largest elements and where they are: max8, nc_find_index8, nc_match_replace8, topk, nonzero_with_count."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnprof.nki.operations.table import INSTRUCTION, Bound, Operation
from trnprof.nki.tensor import Tensor
from trnprof.nki.values import kinds
from trnprof.nki.values.limits import HardwareLimitError
from trnprof.nki.values.machine import Machine
from trnprof.nki.values.registry import evaluation, instruction

_LEAST, _MOST = 8, 16384
CORE_PARTITIONS = 16
"""Partitions that one of the eight gpsimd cores reaches."""


def _rows(machine: Machine, name: str, tensor: Tensor, mask: Any = None) -> np.ndarray:
    """[partitions, elements], within the instruction's limits; elements outside the mask never match."""
    values = machine.number(tensor)
    where = machine.where(mask, values.shape)
    if where is not None:
        values = np.where(where, values, np.nan)
    flat = values.reshape(values.shape[0], -1)
    if not _LEAST <= flat.shape[1] <= _MOST:
        raise HardwareLimitError(f"{name} of {flat.shape[1]} elements a partition; it takes {_LEAST} to {_MOST:,}")
    return flat


@instruction("isa", "max8")
def max8(machine: Machine, operation: Operation, bound: Bound, dst: Tensor) -> None:
    """The eight largest of each partition, largest first."""
    flat = _rows(machine, "max8", bound["src"], bound.get("mask"))
    flat = np.where(np.isnan(flat), -np.inf, flat) if bound.get("mask") is not None else flat
    top = np.partition(flat, flat.shape[1] - _LEAST, axis=1)[:, -_LEAST:]
    machine.write(dst, machine.fitted(np.sort(top, axis=1)[:, ::-1], dst.shape))


@instruction("isa", "nc_find_index8")
def nc_find_index8(machine: Machine, operation: Operation, bound: Bound, dst: Tensor) -> None:
    """Where each of eight values stands first; of equal values each takes the next place. All ones: nowhere."""
    flat = _rows(machine, "nc_find_index8", bound["data"], bound.get("mask"))
    wanted = _eight(machine, bound["vals"], flat.shape[0])
    found = match(flat, wanted, range(_LEAST))
    _put_places(machine, dst, found)


def _eight(machine: Machine, vals: Tensor, partitions: int) -> np.ndarray:
    values = machine.number(vals)
    if values.size != partitions * _LEAST:
        raise HardwareLimitError(f"{vals.name!r} of shape {vals.shape} must hold {_LEAST} values a partition")
    return values.reshape(partitions, _LEAST)


def match(flat: np.ndarray, wanted: np.ndarray, order: Any) -> np.ndarray:
    """[partitions, 8]: the first place of each wanted value that no earlier one (in `order`) has taken; -1: none."""
    taken = np.zeros(flat.shape, bool)
    found = np.full(wanted.shape, -1, np.int64)
    rows = np.arange(flat.shape[0])
    for column in order:
        hits = (flat == wanted[:, column : column + 1]) & ~taken
        first = hits.argmax(axis=1)
        there = hits[rows, first]
        found[there, column] = first[there]
        taken[rows[there], first[there]] = True
    return found


def _put_places(machine: Machine, dst: Tensor, found: np.ndarray) -> None:
    if not kinds.is_integer(dst.dtype):
        machine.write(dst, machine.fitted(found.astype(machine.work), dst.shape))
        return
    machine.put(dst, machine.fitted(found.astype(kinds.NUMPY[dst.dtype]), dst.shape))  # -1 becomes all ones


@instruction("isa", "nc_match_replace8")
def nc_match_replace8(machine: Machine, operation: Operation, bound: Bound, dst: Tensor) -> None:
    """The first occurrence of each of eight values becomes `imm`; equal values are matched from the last slot on."""
    data = bound["data"]
    flat = _rows(machine, "nc_match_replace8", data, bound.get("mask"))
    wanted = _eight(machine, bound["vals"], flat.shape[0])
    found = match(flat, wanted, reversed(range(_LEAST)))
    values = machine.number(data)
    result = np.array(values.reshape(flat.shape), machine.work)
    rows = np.broadcast_to(np.arange(flat.shape[0])[:, None], found.shape)
    there = found >= 0
    result[rows[there], found[there]] = machine.number(bound["imm"])
    machine.write(dst, machine.fitted(result.reshape(values.shape), dst.shape))
    places = bound.get("dst_idx")
    if places is not None:
        _put_places(machine, places, found)


@evaluation("isa", "topk")
def topk(machine: Machine, operation: Operation, bound: Bound) -> Any:
    """The K largest of the first n elements of each 16-partition snake, smallest first, with their places in it.

    Every partition of a group of 16 gets its group's result.
    """
    values, places, src, n = bound["val_dst"], bound["idx_dst"], bound["src"], machine.integer(bound["n"])
    k = values.size // max(values.shape[0], 1)
    numbers = machine.number(src)
    flat = numbers.reshape(numbers.shape[0], -1)
    if flat.shape[0] % CORE_PARTITIONS or n > flat.shape[1] * CORE_PARTITIONS or k > n:
        raise HardwareLimitError(
            f"topk of {src.shape}, n={n}, k={k}: partitions in sixteens, n at most 16 x the free size, k at most n"
        )
    best = np.empty((flat.shape[0], k), machine.work)
    where = np.empty((flat.shape[0], k), np.int64)
    for first in range(0, flat.shape[0], CORE_PARTITIONS):
        snake = flat[first : first + CORE_PARTITIONS].T.reshape(-1)[:n]
        order = np.argsort(snake, kind="stable")[n - k :]
        best[first : first + CORE_PARTITIONS] = snake[order]
        where[first : first + CORE_PARTITIONS] = order
    machine.write(values, machine.fitted(best, values.shape))
    machine.put(places, machine.fitted(where.astype(kinds.NUMPY[places.dtype]), places.shape))
    return INSTRUCTION


@instruction("isa", "nonzero_with_count")
def nonzero_with_count(machine: Machine, operation: Operation, bound: Bound, dst: Tensor) -> None:
    """On partitions 0, 16, ..., 112: places of the nonzero elements, padding, and their count last."""
    src = bound["src"]
    numbers = machine.bits(src)
    flat = numbers.reshape(numbers.shape[0], -1)
    width = dst.size // max(dst.shape[0], 1)
    if width != flat.shape[1] + 1:
        raise HardwareLimitError(
            f"nonzero_with_count dst has {width} elements a partition; it needs one more than src's {flat.shape[1]}"
        )
    offset = machine.integer(bound.get("index_offset") or 0)
    padding = bound.get("padding_val")
    padding = -1 if padding is None else machine.integer(padding)
    result = np.zeros((dst.shape[0], width), np.int64)
    written = np.zeros(result.shape, bool)
    for partition in range(0, flat.shape[0], CORE_PARTITIONS):
        places = np.flatnonzero(flat[partition])
        result[partition] = padding
        result[partition, : len(places)] = places + offset
        result[partition, -1] = len(places)
        written[partition] = True
    kind = kinds.NUMPY[dst.dtype]
    machine.put(dst, machine.fitted(result.astype(kind), dst.shape), machine.fitted(written, dst.shape))

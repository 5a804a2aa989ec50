"""HBM traffic per tensor: bytes moved, distinct bytes, how often each is loaded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd

import numpy as np

from trnprof.nki.recording import Access, Indirection, Memory, ProgramTrace

_BITMAP_LIMIT = 1 << 28
"""Most units of a tensor that are marked one by one (256 MiB)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorTraffic:
    """One HBM tensor of one program over the whole trace."""

    storage: int
    name: str
    read_bytes: int
    write_bytes: int
    distinct_read_bytes: int | None
    """Bytes of the storage that are read at least once; None: addresses are not known before the run."""
    distinct_write_bytes: int | None

    @property
    def reload_factor(self) -> float | None:
        """How often each byte that is read is read."""
        return self.read_bytes / self.distinct_read_bytes if self.distinct_read_bytes else None


def tensor_traffic(program: ProgramTrace) -> tuple[TensorTraffic, ...]:
    """HBM traffic per tensor, in the order of allocation; implicit loads are tensors of their own."""
    reads: dict[int, list[tuple[Access, int, tuple[int | None, ...]]]] = {}
    writes: dict[int, list[tuple[Access, int, tuple[int | None, ...]]]] = {}
    for record in program.dma:
        times = record.execution_count
        counts = tuple(span.count for span in record.loops)
        for access in record.reads:
            if access.memory is Memory.HBM:
                reads.setdefault(access.storage, []).append((access, times, counts))
        if record.write.memory is Memory.HBM:
            writes.setdefault(record.write.storage, []).append((record.write, times, counts))
    result = []
    for allocation in program.allocations:
        number = allocation.storage
        if allocation.memory is not Memory.HBM or (number not in reads and number not in writes):
            continue
        read, written = reads.get(number, []), writes.get(number, [])
        result.append(
            TensorTraffic(
                storage=number,
                name=allocation.name,
                read_bytes=sum(access.byte_count * times for access, times, _ in read),
                write_bytes=sum(access.byte_count * times for access, times, _ in written),
                distinct_read_bytes=distinct_bytes([(access, counts) for access, _, counts in read]),
                distinct_write_bytes=distinct_bytes([(access, counts) for access, _, counts in written]),
            )
        )
    return tuple(result)


def distinct_bytes(accesses: Iterable[tuple[Access, tuple[int | None, ...]]]) -> int | None:
    """Bytes of one storage that the accesses touch at least once, each with the counts of the loops around it.

    None: some addresses come from the device (registers, index vectors, loops of unknown length that move them), or the
    storage is too large and its regions too fine to mark.
    """
    regions: set[tuple[int, tuple[tuple[int, int], ...]]] = set()
    enumerated = []
    for access, counts in accesses:
        if access.indirection is not Indirection.NONE:
            return None
        size = access.itemsize
        dims = [(step * size, count) for step, count in access.pattern if step and count > 1]
        for step, count in zip(access.loop_steps, counts, strict=True):
            if count is None and step:
                return None
            if step and count is not None and count > 1:
                dims.append((step * size, count))
        start = access.offset * size
        for step, count in dims:
            if step < 0:
                start += step * (count - 1)
        spans = _merged(sorted((abs(step), count) for step, count in dims), size)
        if access.offsets is not None:
            moved = np.asarray(access.offsets) * size
            for step, count in zip(access.loop_steps, counts, strict=True):
                if step and count is not None and count > 1:
                    moved = (moved[:, None] + np.arange(count) * step * size).reshape(-1)
            enumerated.append((moved, size))
        elif access.element_count:
            regions.add((start, spans))
    if not regions and not enumerated:
        return 0
    return _union(regions, enumerated)


def _merged(dims: list[tuple[int, int]], size: int) -> tuple[tuple[int, int], ...]:
    """((bytes of a run, 1 run), then (step, count)...) with dimensions that continue a run joined to it."""
    run = size
    rest: list[tuple[int, int]] = []
    for step, count in dims:
        if step == run and not rest:
            run *= count
        elif step < run and not rest and run % step == 0:
            run += step * (count - 1)  # overlapping shifts of one run
        else:
            rest.append((step, count))
    return ((run, 1), *rest)


def _union(
    regions: set[tuple[int, tuple[tuple[int, int], ...]]], enumerated: list[tuple[np.ndarray, int]]
) -> int | None:
    """Bytes in the union, marked in a bitmap whose unit divides every run, step and start."""
    if len(regions) == 1 and not enumerated:
        (_, spans), *_ = regions
        reach = spans[0][0]
        total = spans[0][0]
        for step, count in spans[1:]:
            if step < reach:
                break
            reach = step * (count - 1) + reach
            total *= count
        else:
            return total
    unit = 0
    end = 0
    for start, spans in regions:
        unit = gcd(unit, start, spans[0][0], *(step for step, _ in spans[1:]))
        end = max(end, start + spans[0][0] + sum(step * (count - 1) for step, count in spans[1:]))
    for addresses, size in enumerated:
        unit = gcd(unit, size)
        end = max(end, int(addresses.max(initial=0)) + size)
    if unit == 0 or end // unit > _BITMAP_LIMIT:
        return None
    marked = np.zeros(end // unit, np.uint8)
    for start, spans in regions:
        shape = (*tuple(count for _, count in reversed(spans[1:])), spans[0][0] // unit)
        strides = (*tuple(step // unit for step, _ in reversed(spans[1:])), 1)
        np.lib.stride_tricks.as_strided(marked[start // unit :], shape, strides)[...] = 1
    for addresses, size in enumerated:
        for part in range(size // unit):
            marked[addresses // unit + part] = 1
    return int(np.count_nonzero(marked)) * unit

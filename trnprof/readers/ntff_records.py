"""Trace records of an NTFF: 16 bytes each, decoded and paired, on one clock in picoseconds.

    u16 key, u8 op, u8 header (bits 0-4 type, 5 software overflow, 6 hardware overflow, 7 phase), u32 payload, u64 stamp

A record only marks an instant. Instructions and DMA packets are pairs of records, matched first in, first out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trnprof.readers.ntff_container import Clock

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]
Keys = npt.NDArray[np.unsignedinteger]
Records = npt.NDArray[np.void]

RECORD = np.dtype(
    [("key", "<u2"), ("op", "u1"), ("header", "u1"), ("payload", "<u4"), ("stamp", "<u8")],
)
RECORD_BYTES = RECORD.itemsize

_NO_ROWS = np.zeros(0, np.int32)

FIRST_ENGINE_TYPE = 4
"""Engine e (PE, ACT, POOL, DVE, SP) writes types 4 + 4e: start, + 1: end, + 2: explicit, + 3: semaphore or event."""
HOST_TYPE = 27
"""Semaphore updates that arrive over the AXI bus: from DMA engines, the other core, the host."""
THROTTLE_TYPE = 30

SEMAPHORE_BANK = 1
"""High byte of an event record's key that makes it a semaphore's update; 0 is an event's."""

SOFTWARE_OVERFLOW, HARDWARE_OVERFLOW = 0x20, 0x40

DMA_START, DMA_DATA_DONE = 1, 5
"""Phases of a DMA packet; 6, the response, is in the capture too and not used for durations."""


def view_records(section: memoryview) -> Records:
    """The records of a section, shape [n], without copying."""
    return np.frombuffer(section, RECORD)


def record_types(records: Records) -> npt.NDArray[np.uint8]:
    """Type of each record, contiguous."""
    types: npt.NDArray[np.uint8] = records["header"] & np.uint8(0x1F)
    return types


def overflow_rows(records: Records) -> Rows:
    """Records whose header says that others were lost before them."""
    return _rows(records["header"] & np.uint8(SOFTWARE_OVERFLOW | HARDWARE_OVERFLOW) != 0)


@dataclass(frozen=True, eq=False)
class Pairs:
    """Matched records; `start[i]` and `end[i]` are rows of the section."""

    start: Rows
    end: Rows
    orphan_start: Rows
    """Starts that never ended."""
    orphan_end: Rows
    """Ends of something whose start is not in the capture."""


def pair_fifo(start: Rows, end: Rows, start_key: Keys, end_key: Keys) -> Pairs:
    """Match each end with the oldest open start of the same key; pairs in the order of their starts.

    start, end: rows in file order; start_key, end_key: their keys, of the narrowest type that holds them (numpy sorts
    16-bit keys by radix). An end that finds no open start is dropped, and so is a start that finds no end.
    O(n) for 16-bit keys.
    """
    start_order = np.argsort(start_key, kind="stable")
    end_order = np.argsort(end_key, kind="stable")
    # With as many starts as ends of each key, the k-th end is the k-th start's unless one comes before its start.
    if len(start) == len(end) and np.array_equal(start_key[start_order], end_key[end_order]):
        end_of_start = np.empty_like(end)
        end_of_start[start_order] = end[end_order]
        if bool(np.all(start < end_of_start)):
            return Pairs(start, end_of_start, _NO_ROWS, _NO_ROWS)
    return _pair_with_orphans(start, end, start_key, end_key)


def _pair_with_orphans(start: Rows, end: Rows, start_key: Keys, end_key: Keys) -> Pairs:
    rows = np.concatenate((start, end))
    keys = np.concatenate((start_key, end_key))
    is_start = np.arange(len(rows)) < len(start)
    order = np.lexsort((rows, keys))
    rows, keys, is_start = rows[order], keys[order], is_start[order]
    if not len(rows):
        return Pairs(_NO_ROWS, _NO_ROWS, _NO_ROWS, _NO_ROWS)
    # Open starts of the key, if every end took one: an end that brings it to a new low below zero found none.
    begins = np.concatenate((np.array([True]), keys[1:] != keys[:-1]))
    group = np.cumsum(begins) - 1
    step = np.where(is_start, 1, -1)
    depth = np.cumsum(step)
    depth -= (depth - step)[begins][group]
    apart = group * (2 * len(rows) + 2)
    lowest = np.minimum.accumulate(np.minimum(depth, 0) - apart) + apart
    before = np.where(begins, 0, np.concatenate((np.zeros(1, np.int64), lowest[:-1])))
    is_orphan_end = ~is_start & (lowest < before)
    kept_start, kept_end = np.flatnonzero(is_start), np.flatnonzero(~is_start & ~is_orphan_end)
    end_count = np.bincount(group[kept_end], minlength=int(group[-1]) + 1)
    is_matched = _ranks(group[kept_start]) < end_count[group[kept_start]]
    paired_start, paired_end = rows[kept_start[is_matched]], rows[kept_end]
    by_start = np.argsort(paired_start)
    return Pairs(
        paired_start[by_start], paired_end[by_start], np.sort(rows[kept_start[~is_matched]]), rows[is_orphan_end]
    )


def _ranks(group: Ints) -> Ints:
    """0, 1, 2, ... within each run of equal values."""
    if not len(group):
        return group
    begins = np.flatnonzero(np.concatenate((np.array([True]), group[1:] != group[:-1])))
    lengths = np.diff(np.concatenate((begins, np.array([len(group)]))))
    return np.arange(len(group)) - np.repeat(begins, lengths)


def engine_rows(types: npt.NDArray[np.uint8], engine: int) -> tuple[Rows, Rows]:
    """Rows of an engine's instruction starts and ends."""
    first = FIRST_ENGINE_TYPE + 4 * engine
    return _rows(types == first), _rows(types == first + 1)


def stream_index(records: Records, rows: Rows, device_address: int) -> npt.NDArray[np.uint32]:
    """Which instruction of the stream each record is of: records carry bits 6-25 of its address."""
    word = records["key"][rows].astype(np.uint32) | ((records["op"][rows] & 0x0F).astype(np.uint32) << np.uint32(16))
    return (word - np.uint32(device_address >> 6 & 0xFFFFF)) & np.uint32(0xFFFFF)


def dma_rows(records: Records) -> tuple[Rows, Rows]:
    """Rows where DMA packets start and where their data has arrived."""
    phase = records["payload"].astype(np.uint8) & 0x0F
    return _rows(phase == DMA_START), _rows(phase == DMA_DATA_DONE)


def dma_keys(records: Records, rows: Rows) -> npt.NDArray[np.uint16]:
    """(engine within the pair of cores) * 16 + ring of each record."""
    ring = (records["payload"][rows].astype(np.uint8) >> 4).astype(np.uint16)
    return (records["header"][rows].astype(np.uint16) & np.uint16(0x1F)) << np.uint16(4) | ring


def times_ps(records: Records, rows: Rows, clocks: Clock | tuple[Clock, ...], origin_ps: int) -> Ints:
    """Time of each record after `origin_ps`, in ps; modulo 2**64 for stamps beyond any clock.

    clocks: the records' clock, or that of each DMA engine by the low 4 bits of the record's type.
    """
    if isinstance(clocks, Clock):
        clocks = (clocks,)
    stamps = records["stamp"][rows]
    if len(clocks) == 1:
        clock = clocks[0]
        base, step, actual = np.uint64(clock.base), np.int64(clock.step), np.int64(clock.actual)
    else:
        which = (records["header"][rows] & np.uint8(0x0F)) % len(clocks)
        base = np.array([clock.base for clock in clocks], np.uint64)[which]
        step = np.array([clock.step for clock in clocks], np.int64)[which]
        actual = np.array([clock.actual for clock in clocks], np.int64)[which]
    elapsed = (stamps - base).view(np.int64)
    if len(clocks) > 1 or step != actual:
        # elapsed * actual / step rounded down, with no product beyond 64 bits: step and actual are below 2**31.
        whole, rest = np.divmod(elapsed, step)
        whole = np.clip(whole, -(1 << 31), 1 << 31)
        elapsed = whole * actual + rest * actual // step
    return elapsed - np.int64(origin_ps)


def _rows(mask: npt.NDArray[np.bool_]) -> Rows:
    return np.flatnonzero(mask).astype(np.int32)

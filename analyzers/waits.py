"""Who ended each wait: the producer of the semaphore update that an engine was blocked on."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trnprof.intervals import Int64Array, Intervals
from trnprof.profile import WAIT_OPCODES, codes_of, int64_of

UNRECORDED = "not recorded"
"""The capture does not say which semaphore the engine waited for, or who updated it."""

KERNEL_OPEN = "kernel open, no engine blocked"
"""A kernel span covers the time, but no engine is seen to wait."""

BARRIER = "barrier of this core's engines"
"""Several engines update the semaphore: none of them alone ended the wait."""

OUTSIDE = "over the bus (a DMA, the other core or the host)"
"""The update came over the bus, and no DMA instruction of this core is known to signal that semaphore."""

_ENGINE_LABELS = {
    "tensor": "engine tensor",
    "vector": "engine vector",
    "scalar": "engine scalar",
    "gpsimd": "engine gpsimd",
    "sync": "engine sync",
}

_NEVER = np.iinfo(np.int64).max

LabelIndex = Callable[[str], int]


@dataclass(frozen=True)
class WaitProducer:
    """One producer and the in-kernel wait that its updates ended."""

    producer: str
    """"dma <queue>", "engine <name>", BARRIER, OUTSIDE, KERNEL_OPEN or UNRECORDED; may hold untrusted strings."""
    wait_ns: int
    wait_count: int
    """Blocked instructions (or pieces of an open kernel) that this producer released."""


def attribute_waits(
    wait: Intervals, instructions: pa.Table | None, semaphores: pa.Table | None
) -> tuple[WaitProducer, ...]:
    """Split a core's in-kernel wait by the producer that ended it; the lengths sum to the wait's.

    Where several engines are blocked at one instant, the one whose wait ends first is charged: it is the one that let
    work go on.

    wait: the core's in-kernel wait, ns.
    instructions: the core's rows (start_ts, end_ts, engine, opcode, wait_semaphore_idx, update_semaphore_idx).
    semaphores: the core's rows (timestamp, semaphore_idx, id, update_source), or None where not captured.
    """
    if not len(wait):
        return ()
    if instructions is None:
        return (WaitProducer(UNRECORDED, wait.length(), len(wait)),)
    blocked = _wait_rows(instructions)
    start, end, released_by = _cut(wait, blocked)
    labels, label_of_row = _producers(blocked, instructions, semaphores)
    labels.append(KERNEL_OPEN)
    # Where no engine is blocked released_by is -1, which is the last entry.
    label = np.append(label_of_row, len(labels) - 1)[released_by]

    wait_ns = np.bincount(label, weights=(end - start), minlength=len(labels)).astype(np.int64)
    # An instruction's wait may be cut into pieces by other engines' edges: count rows, not pieces.
    rows = np.unique(np.stack((label, np.where(released_by < 0, -1 - np.arange(len(label)), released_by))), axis=1)
    counts = np.bincount(rows[0], minlength=len(labels))
    found = [WaitProducer(labels[i], int(wait_ns[i]), int(counts[i])) for i in np.flatnonzero(wait_ns)]
    return tuple(sorted(found, key=lambda entry: (-entry.wait_ns, entry.producer)))


def releasing_instructions(time: Intervals, instructions: pa.Table) -> tuple[Int64Array, Int64Array, Int64Array]:
    """`time` in pieces (start, end), and for each the row in `instructions` of the wait that let work go on.

    That is the wait, among those that an engine is in all through the piece, that ends first; -1 where no engine is
    blocked. The pieces' lengths sum to the length of `time`.
    """
    blocked = _wait_rows(instructions)
    start, end, released_by = _cut(time, blocked)
    return start, end, np.append(blocked.row, -1)[released_by]


@dataclass(frozen=True)
class _WaitRows:
    """When each engine was blocked, and for which semaphore: sorted by start."""

    row: Int64Array
    """In the table of instructions."""
    start: Int64Array
    end: Int64Array
    engine: npt.NDArray[np.int32]
    semaphore: Int64Array
    """-1 where not recorded."""


def _wait_rows(instructions: pa.Table) -> _WaitRows:
    """Wait opcodes with their own interval, and other instructions with the wait that their own condition cost them.

    The latter's evt_wait_time can reach back before the engine's last instruction had ended, while the engine was
    running: it is cut there.
    """
    opcode, names = codes_of(instructions["opcode"])
    only_waits = np.isin(opcode, [code for code, name in enumerate(names) if name in WAIT_OPCODES])
    engine = codes_of(instructions["engine"])[0]
    start, end = int64_of(instructions["start_ts"]), int64_of(instructions["end_ts"])
    semaphore = np.full(len(start), -1, np.int64)
    blocked_start, blocked_end = start, end
    if "wait_semaphore_idx" in instructions.column_names:
        semaphore = int64_of(instructions["wait_semaphore_idx"], null=-1)
        if "evt_wait_time_ns" in instructions.column_names:
            free = _engine_free_ts(start, end, engine)
            waited_from = np.maximum(start - int64_of(instructions["evt_wait_time_ns"]), free)
            blocked_start = np.where(only_waits, start, waited_from)
            blocked_end = np.where(only_waits, end, start)
    rows = np.flatnonzero(only_waits | ((semaphore >= 0) & (blocked_start < blocked_end)))
    rows = rows[np.argsort(blocked_start[rows], kind="stable")]
    return _WaitRows(rows, blocked_start[rows], blocked_end[rows], engine[rows], semaphore[rows])


def _engine_free_ts(start: Int64Array, end: Int64Array, engine: npt.NDArray[np.int32]) -> Int64Array:
    """For each instruction the time at which everything that its engine began before it had ended."""
    free = np.empty(len(start), np.int64)
    for code in np.unique(engine):
        rows = np.flatnonzero(engine == code)
        rows = rows[np.argsort(start[rows], kind="stable")]
        reach = np.maximum.accumulate(end[rows])
        free[rows] = np.concatenate((start[rows[:1]], reach[:-1]))
    return free


def _cut(time: Intervals, blocked: _WaitRows) -> tuple[Int64Array, Int64Array, Int64Array]:
    """(start, end, index in `blocked`) of the pieces in which the same waits are on; -1 where none is."""
    cuts = np.unique(np.concatenate((blocked.start, blocked.end, time.start, time.end)))
    start, end = cuts[:-1], cuts[1:]
    inside = time.overlap_lengths(start, end) > 0
    start, end = start[inside], end[inside]
    return start, end, _releasing_rows(blocked, start, end)


def _releasing_rows(blocked: _WaitRows, start: Int64Array, end: Int64Array) -> Int64Array:
    """For each piece the row, among those blocked all through it, that ends first; -1 where none is blocked."""
    best_end = np.full(len(start), _NEVER)
    best_row = np.full(len(start), -1, np.int64)
    for engine in np.unique(blocked.engine):
        # One engine's waits follow each other, so the last that began by the piece's start is the only candidate.
        rows = np.flatnonzero(blocked.engine == engine)
        candidate = np.searchsorted(blocked.start[rows], start, side="right") - 1
        row = rows[np.maximum(candidate, 0)]
        covers = (candidate >= 0) & (blocked.end[row] >= end)
        better = covers & (blocked.end[row] < best_end)
        best_end = np.where(better, blocked.end[row], best_end)
        best_row = np.where(better, row, best_row)
    return best_row


def _producers(
    blocked: _WaitRows, instructions: pa.Table, semaphores: pa.Table | None
) -> tuple[list[str], npt.NDArray[np.int64]]:
    """(labels, label index of each wait row)."""
    labels = [UNRECORDED, OUTSIDE]
    index_of = {label: index for index, label in enumerate(labels)}

    def label_index(label: str) -> int:
        if label not in index_of:
            index_of[label] = len(labels)
            labels.append(label)
        return index_of[label]

    # Who updates each semaphore, as the instruction stream says: the fallback for updates that come over the bus.
    by_stream = np.full(_SEMAPHORE_COUNT, -1, np.int64)
    for index, label in _stream_updaters(instructions).items():
        if 0 <= index < _SEMAPHORE_COUNT:
            by_stream[index] = label_index(label)

    known = (blocked.semaphore >= 0) & (blocked.semaphore < _SEMAPHORE_COUNT)
    semaphore = np.where(known, blocked.semaphore, 0)
    result = np.where(known, by_stream[semaphore], index_of[UNRECORDED])
    if semaphores is not None and len(semaphores) and "semaphore_idx" in semaphores.column_names:
        row_label = _update_labels(semaphores, by_stream, label_index)
        update = int64_of(semaphores["semaphore_idx"], null=-1)
        time = int64_of(semaphores["timestamp"])
        order = np.lexsort((time, update))
        update, time, row_label = update[order], time[order], row_label[order]
        # The last update of that semaphore before the wait ended is the one that ended it.
        base = int(min(time.min(), blocked.end.min(initial=0)))
        key = update * _KEY_STEP + np.minimum(time - base, _KEY_STEP - 1)
        position = np.searchsorted(key, semaphore * _KEY_STEP + (blocked.end - base), side="right") - 1
        at = np.maximum(position, 0)
        hit = known & (position >= 0) & (update[at] == semaphore) & (row_label[at] >= 0)
        result = np.where(hit, row_label[at], result)
    return labels, np.where(result < 0, index_of[UNRECORDED], result)


_SEMAPHORE_COUNT = 1024
"""More than any NeuronCore has (the fields are 8 bits wide); bounds a hostile index."""

_KEY_STEP = 1 << 52
"""Larger than any time in a capture (52 days in ns), so that (semaphore, time) sorts as one integer."""


def _stream_updaters(instructions: pa.Table) -> dict[int, str]:
    """Semaphore -> the one producer that updates it, or BARRIER."""
    if "update_semaphore_idx" not in instructions.column_names:
        return {}
    semaphore = int64_of(instructions["update_semaphore_idx"], null=-1)
    engine, engines = codes_of(instructions["engine"])
    opcode, opcodes = codes_of(instructions["opcode"])
    is_dma = np.isin(opcode, [code for code, name in enumerate(opcodes) if "DMA" in name])
    triples = np.unique(
        np.stack((semaphore, engine.astype(np.int64), is_dma.astype(np.int64)))[:, semaphore >= 0], axis=1
    )
    updaters: dict[int, set[str]] = {}
    for index, engine_code, dma in triples.T.tolist():
        name = engines[engine_code]
        updaters.setdefault(index, set()).add(f"dma issued by {name}" if dma else _ENGINE_LABELS.get(name, name))
    return {index: next(iter(names)) if len(names) == 1 else BARRIER for index, names in updaters.items()}


def _update_labels(semaphores: pa.Table, by_stream: Int64Array, label_index: LabelIndex) -> Int64Array:
    """The label of each update row; -1 where it cannot be told."""
    ids, id_names = codes_of(semaphores["id"])
    by_id = np.array([_label_of_id(name, label_index) for name in id_names] or [-1], np.int64)[ids]
    index = int64_of(semaphores["semaphore_idx"], null=-1)
    in_range = (index >= 0) & (index < _SEMAPHORE_COUNT)
    from_stream = np.where(in_range, by_stream[np.where(in_range, index, 0)], -1)
    result = np.where(by_id >= 0, by_id, from_stream)
    if "update_source" in semaphores.column_names:
        codes, names = codes_of(semaphores["update_source"])
        by_source = np.array([_label_of_source(name, label_index) for name in names] or [-1], np.int64)[codes]
        by_source = np.where(codes < 0, -1, by_source)
        result = np.where((by_source >= 0) & (from_stream != label_index(BARRIER)), by_source, result)
        over_bus = np.isin(codes, [code for code, name in enumerate(names) if name.lower() in ("axi", "dma")])
        result = np.where(over_bus & (result < 0), label_index(OUTSIDE), result)
    return result


def _label_of_id(text: str, label_index: LabelIndex) -> int:
    """The vendor prints a semaphore with what owns it: `S[8] (qSyncDynamicHW)`, `S[5] (Tensor)`."""
    match = re.search(r"\(([^()]{1,80})\)\s*$", text)
    if match is None:
        return -1
    owner = match.group(1)
    if owner.lower() in _ENGINE_LABELS:
        return label_index(_ENGINE_LABELS[owner.lower()])
    return label_index(f"dma {owner}") if owner.startswith("q") else -1


def _label_of_source(name: str, label_index: LabelIndex) -> int:
    return label_index(_ENGINE_LABELS[name.lower()]) if name.lower() in _ENGINE_LABELS else -1

"""Who ended each wait: the producer of the semaphore update that an engine was blocked on."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa

from trnprof.analyzers.wait_labels import KERNEL_OPEN, NO_UPDATE, UNRECORDED, UNRESOLVED, UNTRACED, WaitLabels
from trnprof.events import OTHER_ENGINE, Events, NameList, events_of
from trnprof.intervals import EMPTY, Int64Array, Intervals, distinct, union

MAX_PENDING = 1 << 21
"""Blocked instructions and pieces of wait that a sweep in batches keeps for instructions still to come (100 MB)."""

_NEVER = int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class WaitProducer:
    """One producer and the in-kernel wait that its updates ended."""

    producer: str
    """"dma <queue>", "engine <name>", or a constant of trnprof.analyzers.wait_labels; may hold untrusted strings."""
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
    names = NameList()
    fold = WaitFold(names)
    rows = None if instructions is None else events_of("instructions", instructions, names).in_order()
    updates = None if semaphores is None else events_of("semaphores", semaphores, names).in_order()
    fold.add(wait, rows, updates, _NEVER, final=True)
    return fold.producers()


def releasing_instructions(time: Intervals, instructions: pa.Table) -> tuple[Int64Array, Int64Array, Int64Array]:
    """`time` in pieces (start, end), and for each the row in `instructions` of the wait that let work go on.

    That is the wait, among those that an engine is in all through the piece, that ends first; -1 where no engine is
    blocked. The pieces' lengths sum to the length of `time`.
    """
    events = events_of("instructions", instructions, NameList())
    order = np.argsort(events.start, kind="stable")
    blocked = _blocked_rows(events.rows(order), _EngineReach())
    start, end = _pieces(time, blocked)
    return start, end, np.append(order[blocked.row], -1)[_releasing_rows(blocked, start, end)]


class WaitFold:
    """A core's waits by their producers, over batches in order of time."""

    def __init__(self, names: NameList, *, reach_back_ns: int | None = None) -> None:
        """reach_back_ns: no instruction waited longer than this before it began; None: not known."""
        self._names = names
        self._reach_back_ns = reach_back_ns
        self._engines = _EngineReach()
        self._blocked = _NO_ROWS
        self._waiting = EMPTY
        """Wait that is not cut into pieces yet, since an instruction to come may have been blocked in it."""
        self._labels = WaitLabels(names)
        self._kernel_open = np.zeros(2, np.int64)
        self._untraced = np.zeros(2, np.int64)
        self._no_instructions = False
        self._gave_up = False

    def add(
        self, wait: Intervals, instructions: Events | None, updates: Events | None, until: int, *, final: bool
    ) -> None:
        """One batch: the time up to `until`.

        wait: the in-kernel wait in it. instructions, updates: the rows that begin in it, in order; None: not captured.
        """
        self._waiting = union(
            np.concatenate((self._waiting.start, wait.start)), np.concatenate((self._waiting.end, wait.end))
        )
        if instructions is None or self._gave_up:
            self._no_instructions = instructions is None
            self._count_runs(until, final=final)
            return
        horizon = until
        new = _blocked_rows(instructions, self._engines)
        if "evt_wait_ns" in instructions and not final:
            horizon = self._engines.earliest_start(until, self._reach_back_ns)
        self._blocked = _merged(self._blocked, new)
        self._labels.see_instructions(instructions)
        self._resolve(updates, until, final=final)
        start, end = _pieces(self._waiting, self._blocked)
        # A piece is final when no row to come can cut or cover it, and its own end is known.
        known = len(start) if final else int(np.searchsorted(end, min(horizon + 1, until), side="left"))
        self._charge(start[:known], end[:known])
        rest = int(start[known]) if known < len(start) else until
        self._waiting = EMPTY if final else self._waiting.clip(rest, _NEVER)
        self._drop_before(rest, final=final)
        if not final and len(self._blocked) + len(self._waiting) > MAX_PENDING:
            self._gave_up = True
            self._blocked.update[self._blocked.update == UNRESOLVED] = NO_UPDATE
            self._flush(np.ones(len(self._blocked), bool))
            self._blocked = _NO_ROWS

    def producers(self) -> tuple[WaitProducer, ...]:
        """Everyone who ended a wait, longest first; after the final batch."""
        found = [WaitProducer(label, ns, count) for label, (ns, count) in self._labels.sums().items()]
        for label, (ns, count) in (
            (KERNEL_OPEN, self._kernel_open),
            (UNRECORDED if self._no_instructions else UNTRACED, self._untraced),
        ):
            found.append(WaitProducer(label, int(ns), int(count)))
        merged: dict[str, WaitProducer] = {}
        for entry in found:
            if entry.wait_ns:
                held = merged.get(entry.producer, WaitProducer(entry.producer, 0, 0))
                merged[entry.producer] = WaitProducer(
                    entry.producer, held.wait_ns + entry.wait_ns, held.wait_count + entry.wait_count
                )
        return tuple(sorted(merged.values(), key=lambda entry: (-entry.wait_ns, entry.producer)))

    def _count_runs(self, until: int, *, final: bool) -> None:
        """Nobody to charge: whole runs, the last one only when its end is known."""
        waiting = self._waiting
        known = len(waiting) - bool(not final and len(waiting) and waiting.end[-1] >= until)
        self._untraced += (int((waiting.end - waiting.start)[:known].sum()), known)
        self._waiting = Intervals(waiting.start[known:], waiting.end[known:])

    def _resolve(self, updates: Events | None, until: int, *, final: bool) -> None:
        """Every wait that has ended by now was ended by an update that is known by now."""
        blocked = self._blocked
        rows = np.flatnonzero((blocked.update == UNRESOLVED) & (final | (blocked.end < until)))
        blocked.update[rows] = self._labels.resolve(blocked.semaphore[rows], blocked.end[rows], updates)

    def _charge(self, start: Int64Array, end: Int64Array) -> None:
        released_by = _releasing_rows(self._blocked, start, end)
        length = end - start
        nobody = released_by < 0
        self._kernel_open += (int(length[nobody].sum()), int(nobody.sum()))
        np.add.at(self._blocked.charged_ns, released_by[~nobody], length[~nobody])

    def _drop_before(self, time: int, *, final: bool) -> None:
        """Let go of what can neither be charged nor cut a piece any more; each engine's last before `time` still can."""
        blocked = self._blocked
        needed = (blocked.start > time) | (blocked.end > time) | (blocked.update == UNRESOLVED)
        for engine in range(OTHER_ENGINE + 1):
            rows = np.flatnonzero((blocked.engine == engine) & (blocked.start <= time))
            needed[rows[-1:]] = True
        if final:
            needed[:] = False
        self._flush(~needed)
        self._blocked = blocked.rows(needed)

    def _flush(self, chosen: np.ndarray) -> None:
        rows = np.flatnonzero(chosen & (self._blocked.charged_ns > 0))
        if len(rows):
            blocked = self._blocked
            self._labels.add(blocked.semaphore[rows], blocked.update[rows], blocked.charged_ns[rows])


@dataclass(frozen=True)
class _BlockedRows:
    """When each engine was blocked, and for which semaphore: sorted by start. All columns have the shape [n]."""

    row: Int64Array
    """In the events that they were found in."""
    start: Int64Array
    end: Int64Array
    engine: np.ndarray
    """uint8."""
    semaphore: np.ndarray
    """int16; -1 where not recorded."""
    update: Int64Array
    """What ended it, as WaitLabels packs it, NO_UPDATE or UNRESOLVED."""
    charged_ns: Int64Array

    def __len__(self) -> int:
        return len(self.start)

    def rows(self, chosen: np.ndarray) -> _BlockedRows:
        return _BlockedRows(*(getattr(self, field.name)[chosen] for field in fields(self)))


_NO_INTS = np.zeros(0, np.int64)
_NO_ROWS = _BlockedRows(
    _NO_INTS, _NO_INTS, _NO_INTS, np.zeros(0, np.uint8), np.zeros(0, np.int16), _NO_INTS.copy(), _NO_INTS.copy()
)


class _EngineReach:
    """Up to when everything that each engine has begun will have ended."""

    def __init__(self) -> None:
        self._reach: dict[int, int] = {}

    def free_ts(self, events: Events) -> Int64Array:
        """For each row the time at which everything that its engine began before it had ended; its own start if nothing.

        events: all rows in order, from where the last call ended.
        """
        free = np.empty(len(events), np.int64)
        for engine in range(OTHER_ENGINE + 1):
            rows = np.flatnonzero(events["engine"] == engine)
            if not len(rows):
                continue
            start = events.start[rows]
            held = self._reach.get(engine)
            reach = np.maximum.accumulate(events.end[rows])
            if held is not None:
                reach = np.maximum(reach, held)
            before = np.concatenate(([start[0] if held is None else held], reach[:-1]))
            # Rows that begin at one instant began after the same others.
            first = np.maximum.accumulate(np.where(np.diff(start, prepend=start[0] - 1) != 0, np.arange(len(rows)), 0))
            free[rows] = before[first]
            self._reach[engine] = int(reach[-1])
        return free

    def earliest_start(self, until: int, reach_back_ns: int | None) -> int:
        """No wait of an instruction that begins at `until` or later began before this."""
        floor = -_NEVER if reach_back_ns is None else until - reach_back_ns
        return min([until, *(max(reach, floor) for reach in self._reach.values())])


def _blocked_rows(events: Events, engines: _EngineReach) -> _BlockedRows:
    """Wait opcodes with their own interval, and other instructions with the wait that their own condition cost them.

    The latter's evt_wait_time can reach back before the engine's last instruction had ended, while the engine was
    running: it is cut there.
    """
    only_waits = events["waits"]
    semaphore = events["semaphore"] if "semaphore" in events else np.full(len(events), -1, np.int16)
    start, end = events.start, events.end
    if "evt_wait_ns" in events:
        waited_from = np.maximum(start - events["evt_wait_ns"], engines.free_ts(events))
        rows = np.flatnonzero(only_waits | ((semaphore >= 0) & (waited_from < start)))
        end = np.where(only_waits, end, start)[rows]
        start = np.where(only_waits, start, waited_from)[rows]
    else:
        rows = np.flatnonzero(only_waits)
        start, end = start[rows], end[rows]
    found = _BlockedRows(
        rows,
        start,
        end,
        events["engine"][rows],
        semaphore[rows],
        np.full(len(rows), UNRESOLVED, np.int64),
        np.zeros(len(rows), np.int64),
    )
    return _in_order(found)


def _merged(held: _BlockedRows, new: _BlockedRows) -> _BlockedRows:
    if not len(held):
        return new
    return _in_order(
        _BlockedRows(
            *(np.concatenate((getattr(held, field.name), getattr(new, field.name))) for field in fields(_BlockedRows))
        )
    )


def _in_order(rows: _BlockedRows) -> _BlockedRows:
    """By start; where several begin at once, by what they are, so that the order of a capture's rows never shows."""
    order = np.argsort(rows.start, kind="stable")
    start = rows.start[order]
    tied = np.zeros(len(order), bool)
    tied[1:] = start[1:] == start[:-1]
    tied[:-1] |= tied[1:]
    places = np.flatnonzero(tied)
    if len(places):
        # Rows that begin at once stand next to each other: sorting all of them by start first leaves each group in place.
        own = order[places]
        order[places] = own[np.lexsort((rows.semaphore[own], rows.end[own], rows.start[own]))]
    return rows.rows(order)


def _pieces(time: Intervals, blocked: _BlockedRows) -> tuple[Int64Array, Int64Array]:
    """(start, end) of the pieces of `time` in which the same waits are on."""
    if not len(time):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    edges = np.concatenate((blocked.start, blocked.end))
    edges = edges[(edges > time.start[0]) & (edges < time.end[-1])]
    cuts = distinct(np.concatenate((edges, time.start, time.end)))
    start, end = cuts[:-1], cuts[1:]
    # A piece lies wholly in the set or wholly outside it: its start tells which.
    within = np.searchsorted(time.start, start, side="right") - 1
    inside = (within >= 0) & (start < time.end[within])
    return start[inside], end[inside]


def _releasing_rows(blocked: _BlockedRows, start: Int64Array, end: Int64Array) -> Int64Array:
    """For each piece the row, among those blocked all through it, that ends first; -1 where none is blocked."""
    best_end = np.full(len(start), _NEVER)
    best_row = np.full(len(start), -1, np.int64)
    for engine in range(OTHER_ENGINE + 1):
        # One engine's waits follow each other, so the last that began by the piece's start is the only candidate.
        rows = np.flatnonzero(blocked.engine == engine)
        if not len(rows):
            continue
        candidate = np.searchsorted(blocked.start[rows], start, side="right") - 1
        row = rows[np.maximum(candidate, 0)]
        better = (candidate >= 0) & (blocked.end[row] >= end) & (blocked.end[row] < best_end)
        best_end = np.where(better, blocked.end[row], best_end)
        best_row = np.where(better, row, best_row)
    return best_row

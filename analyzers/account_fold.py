"""One core's account as a fold over batches of its events in order of time: a whole capture is one batch.

What is measured is the same however the events are cut into batches; a batch holds the rows that begin before an instant
and were not in an earlier one, so that up to that instant everything is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trnprof.analyzers.collective_calls import CallList, CollectiveCalls
from trnprof.analyzers.gaps import Gap, GapFold
from trnprof.analyzers.row_sums import RowSums
from trnprof.analyzers.state_sweep import (
    BLOCKED,
    BODY,
    BUSY,
    COLLECTIVE,
    DATA,
    DMA,
    EXPOSED,
    KERNEL,
    OUTSIDE,
    STATE_COUNT,
    THROTTLED,
    WAIT,
    Bounds,
    StateSweep,
)
from trnprof.analyzers.waits import WaitFold, WaitProducer
from trnprof.events import OTHER_ENGINE, Events, NameList
from trnprof.intervals import Int64Array, Intervals

Tables = Mapping[str, Events | None]
"""Rows of one core by name in TABLES; None: not captured."""

TABLES = ("instructions", "packets", "collectives", "kernels", "semaphores", "throttle")
"""What an account reads; packets are the transfers where packets were not captured."""

_NO_SPANS = Events({"start": np.zeros(0, np.int64), "end": np.zeros(0, np.int64)})


@dataclass(frozen=True, eq=False)
class CoreTotals:
    """What a fold over one core's events gives: time by state, and sums of its rows."""

    window: tuple[int, int]
    body: tuple[int, int]
    state: np.ndarray
    """States that occur (trnprof.analyzers.state_sweep), ascending; shape [n]."""
    time_ns: Int64Array
    """Time in each."""
    captured: frozenset[str]
    """Which of TABLES were captured."""
    rows: RowSums
    calls: CollectiveCalls | None
    """None: there were too many to keep."""
    gap_count: int
    longest_gaps: tuple[Gap, ...]
    wait_producers: tuple[WaitProducer, ...]

    def time_where(self, chosen: np.ndarray) -> int:
        """Time in the chosen states; bool [STATE_COUNT]."""
        return int(self.time_ns[chosen[self.state]].sum())


def body_of(instructions: Events | None, window: tuple[int, int]) -> tuple[int, int]:
    """First start to last end of what the compiler emitted, in the window; an empty one at its start without any."""
    if instructions is None:
        return window[0], window[0]
    start, end = instructions.start, instructions.end
    if "emitted" in instructions:
        start, end = start[instructions["emitted"]], end[instructions["emitted"]]
    if not len(start):
        return window[0], window[0]
    return int(np.clip(start.min(), *window)), int(np.clip(end.max(), *window))


class CoreFold:
    """One core's account, over one window."""

    def __init__(
        self,
        window: tuple[int, int],
        body: tuple[int, int],
        names: NameList,
        *,
        is_step: bool = False,
        reach_back_ns: int | None = None,
    ) -> None:
        """body: as `body_of` finds it in all of the core's instructions.

        is_step: the window is one of several in the capture: it has the rows that overlap it, and what a row counts
                 (but not its time) belongs to the window in which it begins.
        reach_back_ns: no instruction waited longer than this before it began; None: not known.
        """
        self.window, self.body = window, body
        self._is_step = is_step
        self._sweep = StateSweep(window[0])
        self._body_is_given = False
        self._time_ns = np.zeros(STATE_COUNT, np.int64)
        self._gaps = GapFold(window[0], names.names)
        self._waits = WaitFold(names, reach_back_ns=reach_back_ns)
        self._rows = RowSums(window, body)
        self._calls = CallList(names)
        self._captured: frozenset[str] = frozenset()

    def add(self, tables: Tables, until: int, *, final: bool = False) -> Intervals:
        """One batch: all rows that begin before `until` and were not in an earlier batch; returns the work in it.

        tables: every name in TABLES; each batch has the same ones, with the same columns. Rows in order of start.
        final: nothing follows; the time up to the window's end is measured.
        """
        self._captured = frozenset(name for name in TABLES if tables[name] is not None)
        present = {name: rows for name in TABLES if (rows := tables[name]) is not None}
        inside = {name: self._overlapping(rows) for name, rows in present.items()}
        if self._is_step:
            present = inside
        self._rows.see(present)
        counted = (
            {name: rows.rows(self._begins_here(rows)) for name, rows in present.items()} if self._is_step else present
        )
        self._rows.add(counted)
        if "collectives" in counted:
            self._calls.add(counted["collectives"])
        clipped = {name: self._clip(rows) for name, rows in inside.items() if "end" in rows}
        instructions, packets = clipped.get("instructions"), clipped.get("packets", _NO_SPANS)
        working = _NO_SPANS
        if instructions is not None:
            working = instructions.rows(~instructions["waits"], ("start", "end", "engine", "opcode"))
        if len(packets):
            packets = packets.rows(packets["moves_data"], ("start", "end"))
        until = self.window[1] if final else min(max(until, self.window[0]), self.window[1])
        segments = self._sweep.advance(until, self._sets(clipped, until))
        np.add.at(self._time_ns, segments.state, segments.length)
        part = segments.part()
        waiting = segments.where(part == WAIT)
        self._gaps.add(segments.where(part >= WAIT), waiting, working, packets, until, final=final)
        self._waits.add(waiting, present.get("instructions"), present.get("semaphores"), until, final=final)
        return segments.where((part > OUTSIDE) & (part < EXPOSED))

    def totals(self) -> CoreTotals:
        """The account, after the final batch."""
        states = np.flatnonzero(self._time_ns)
        return CoreTotals(
            window=self.window,
            body=self.body,
            state=states,
            time_ns=self._time_ns[states],
            captured=self._captured,
            rows=self._rows,
            calls=self._calls.calls(),
            gap_count=self._gaps.count,
            longest_gaps=self._gaps.longest,
            wait_producers=self._waits.producers(),
        )

    def _overlapping(self, rows: Events) -> Events:
        """The rows of which any instant, or the instant at which they happen, is in the window."""
        if not len(rows) or (rows.start[0] >= self.window[0] and rows.start[-1] < self.window[1]):
            return rows
        begun = self._begins_here(rows)
        if "end" in rows:
            begun |= (rows.start < self.window[1]) & (rows.end > self.window[0])
        return rows if begun.all() else rows.rows(begun)

    def _begins_here(self, rows: Events) -> np.ndarray:
        return (rows.start >= self.window[0]) & (rows.start < self.window[1])

    def _clip(self, rows: Events) -> Events:
        start, end = rows.start, rows.end
        if not len(rows) or (start.min() >= self.window[0] and end.max() <= self.window[1]):
            return rows
        return Events(rows.columns | {"start": np.clip(start, *self.window), "end": np.clip(end, *self.window)})

    def _sets(self, rows: Mapping[str, Events], until: int) -> dict[int, list[Bounds]]:
        """The intervals of each set that begin in the batch."""
        sets: dict[int, list[Bounds]] = {}
        if not self._body_is_given and until > self.body[0]:
            self._body_is_given = True
            sets[BODY] = [(np.array([self.body[0]], np.int64), np.array([self.body[1]], np.int64))]
        instructions = rows.get("instructions")
        if instructions is not None:
            kind = instructions["engine"] + (OTHER_ENGINE + 1) * instructions["waits"].view(np.uint8)
            for number, wanted in zip((*BUSY, *BLOCKED), (*BUSY, *(n + 1 for n in BLOCKED)), strict=True):
                chosen = np.flatnonzero(kind == wanted)
                sets[number] = [(instructions.start[chosen], instructions.end[chosen])]
        for name, number in (("packets", DMA), ("collectives", COLLECTIVE), ("kernels", KERNEL)):
            if name in rows:
                sets[number] = [(rows[name].start, rows[name].end)]
        if "packets" in rows:
            data = np.flatnonzero(rows["packets"]["moves_data"])
            sets[DATA] = [(rows["packets"].start[data], rows["packets"].end[data])]
        if "throttle" in rows:
            slow = rows["throttle"]["k"] < rows["throttle"]["n"]
            sets[THROTTLED] = [(rows["throttle"].start[slow], rows["throttle"].end[slow])]
        return sets

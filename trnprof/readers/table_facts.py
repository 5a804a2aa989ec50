"""What a first look at a table's times and cores tells: what is in which chunk, and so how the table is best read."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from trnprof.ordering import END_OF_TIME
from trnprof.profile import int64_of
from trnprof.readers.assembly import Window

EVERY_CORE = -1
"""The core of rows that name none."""


@dataclass(frozen=True)
class ChunkFacts:
    """One chunk: a part of a row group that is read at once."""

    group: int
    """Its row group in the table."""
    spans: dict[int, tuple[int, int, int]]
    """Core -> (rows, first start, last start)."""


@dataclass
class TableFacts:
    """Gathered chunk by chunk, in the table's order; times as the capture has them."""

    chunks: list[ChunkFacts] = field(default_factory=list)
    row_count: int = 0
    """Rows in the files."""
    kept_count: int = 0
    """Rows that make sense."""
    zero_count: int = 0
    """Of these, the ones with time 0 and no length, which may be no times at all."""
    hull: Window | None = None
    """From first to last of the other rows."""
    longest_wait_ns: int = 0
    emitted: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Core -> first start and last end of the compiler's instructions, rows with time 0 left out."""
    emitted_at_zero: set[int] = field(default_factory=set)
    """Cores with a compiler's instruction among those."""

    @property
    def cores(self) -> set[int]:
        """Every core that a kept row names."""
        return {core for chunk in self.chunks for core in chunk.spans if core != EVERY_CORE}

    def add(self, group: int, row_count: int, table: pa.Table) -> None:
        """One chunk: its rows in the file, and those that were kept."""
        begins = "timestamp" if "timestamp" in table.column_names else "start_ts"
        start = int64_of(table[begins])
        end = int64_of(table["end_ts"]) if "end_ts" in table.column_names else start
        if "duration" in table.column_names:
            end = start + int64_of(table["duration"])
        core = np.full(len(table), EVERY_CORE, np.int64)
        if "pcore_idx" in table.column_names:
            core = int64_of(table["pcore_idx"], null=EVERY_CORE)
        self.row_count += row_count
        self.kept_count += len(table)
        spans = {}
        cores = _distinct(core)
        for number in cores:
            own = start[core == number] if len(cores) > 1 else start
            spans[number] = (len(own), int(own.min()), int(own.max()))
        self.chunks.append(ChunkFacts(group, spans))
        if not len(start):
            return
        zero = (start == 0) & (end == 0)
        if begins == "timestamp" and "duration" not in table.column_names:
            zero = start == 0
        zeros = int(zero.sum())
        self.zero_count += zeros
        rest = ~zero if zeros else slice(None)
        if zeros < len(start):
            found = Window(int(start[rest].min()), int(end[rest].max()))
            held = self.hull or found
            self.hull = Window(min(held.start, found.start), max(held.end, found.end))
        if "engine" in table.column_names:
            self._add_instructions(table, start, end, core, cores, zero)

    def _add_instructions(
        self,
        table: pa.Table,
        start: np.ndarray,
        end: np.ndarray,
        core: np.ndarray,
        cores: list[int],
        zero: np.ndarray,
    ) -> None:
        if "evt_wait_time_ns" in table.column_names:
            self.longest_wait_ns = max(self.longest_wait_ns, int(int64_of(table["evt_wait_time_ns"]).max()))
        emitted = np.ones(len(start), bool)
        if "compiler_pc" in table.column_names:
            emitted = table["compiler_pc"].is_valid().to_numpy()
        for number in cores:
            own = emitted & (core == number)
            if bool((own & zero).any()):
                self.emitted_at_zero.add(number)
            widen(self.emitted, number, start, end, own & ~zero)


def _distinct(core: np.ndarray) -> list[int]:
    if not len(core):
        return []
    low, high = int(core.min()), int(core.max())
    return [low] if low == high else (np.flatnonzero(np.bincount(core - low)) + low).tolist()


def widen(hulls: dict[int, tuple[int, int]], key: int, start: np.ndarray, end: np.ndarray, chosen: np.ndarray) -> None:
    """Let hulls[key] reach over the chosen rows too."""
    if chosen.any():
        low, high = int(start[chosen].min()), int(end[chosen].max())
        held = hulls.get(key, (low, high))
        hulls[key] = (min(held[0], low), max(held[1], high))


@dataclass(frozen=True)
class Cursor:
    """Chunks to be read one after the other."""

    core: int | None
    """The core whose rows are wanted; None: all."""
    chunks: tuple[int, ...]
    """Places in TableFacts.chunks, ascending."""
    later_ts: tuple[int, ...]
    """For each, how early a row of a later one begins."""
    owned: frozenset[int]
    """The chunks that this cursor notes and counts: each is of exactly one of a table's cursors."""


def in_turn(facts: TableFacts) -> Cursor:
    """Every chunk in the table's order, whatever the order of its rows."""
    places = tuple(range(len(facts.chunks)))
    return Cursor(None, places, (END_OF_TIME,) * len(places), frozenset(places))


def plan(facts: TableFacts, *, held_rows: int) -> tuple[Cursor, ...] | None:
    """How to read a table in order of time while holding no more than `held_rows` rows that are not due yet.

    One cursor for all cores, or where the table goes core by core one for each; None: it must be sorted on disk.
    """
    everything = [
        (
            place,
            sum(rows for rows, _, _ in chunk.spans.values()),
            min((first for _, first, _ in chunk.spans.values()), default=END_OF_TIME),
            max((last for _, _, last in chunk.spans.values()), default=-END_OF_TIME),
        )
        for place, chunk in enumerate(facts.chunks)
    ]
    cursor, held = _cursor(None, everything, frozenset(range(len(everything))))
    if held <= held_rows:
        return (cursor,)
    cursors = []
    cores = sorted({core for chunk in facts.chunks for core in chunk.spans})
    # Chunks without a row that makes sense are read all the same, by one cursor: what is wrong with them is noted.
    owners = [min(chunk.spans, default=cores[0]) for chunk in facts.chunks]
    for core in cores:
        own = [
            (place, *chunk.spans.get(core, (0, END_OF_TIME, -END_OF_TIME)))
            for place, chunk in enumerate(facts.chunks)
            if core in chunk.spans or owners[place] == core
        ]
        cursor, held = _cursor(core, own, frozenset(place for place, owner in enumerate(owners) if owner == core))
        if held > held_rows:
            return None
        cursors.append(cursor)
    return tuple(cursors)


def _cursor(core: int | None, chunks: list[tuple[int, int, int, int]], owned: frozenset[int]) -> tuple[Cursor, int]:
    """(the cursor, the most rows that it ever holds). chunks: (place, rows, first start, last start)."""
    later = END_OF_TIME
    later_ts = []
    for _, _, first, _ in reversed(chunks):
        later_ts.append(later)
        # A chunk without rows that make sense is read all the same: what is wrong with them is noted.
        later = min(later, first, END_OF_TIME - 1)
    later_ts.reverse()
    waiting: list[tuple[int, int]] = []
    held = most = 0
    for (_, rows, _, last), due in zip(chunks, later_ts, strict=True):
        most = max(most, held + rows)
        heapq.heappush(waiting, (last, rows))
        held += rows
        while waiting and waiting[0][0] < due:
            held -= heapq.heappop(waiting)[1]
    return Cursor(core, tuple(chunk[0] for chunk in chunks), tuple(later_ts), owned), most

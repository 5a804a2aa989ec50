"""Events of several sources, each nearly in order, as batches in order of time; sources far from it are sorted on disk.

A source gives chunks of rows and with each says how early a later chunk's rows may begin. The watermark is the least of
what the sources say: every row that begins before it is there. Memory is what lies beyond the watermark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trnprof.events import Events

END_OF_TIME = 2**63 - 1
"""Nothing begins then or later."""

RUN_ROWS = 1 << 20
"""Rows that are sorted in memory at once when a table is sorted on disk."""


@dataclass(frozen=True)
class Chunk:
    """Rows of one table by core, in any order."""

    rows: Mapping[int, Events]
    later_ts: int
    """No later chunk of the source has a row that begins before this; END_OF_TIME: there is none."""


@dataclass
class _Source:
    """A source while it is read."""

    table: str
    chunks: Iterator[Chunk]
    later_ts: int = -END_OF_TIME
    held: dict[int, list[Events]] = field(default_factory=dict)
    """By core, rows that are not given out yet; each part in order of start."""


Batch = tuple[int, dict[str, dict[int, Events]]]
"""(until, {table: {core: rows}}): every row that begins before `until` and was in no earlier batch; no empty entries."""


def in_order(sources: Iterable[tuple[str, Iterable[Chunk]]], *, batch_rows: int) -> Iterator[Batch]:
    """Batches of all sources' rows in order of start; rows of one table that begin at once stay in the sources' order.

    sources: (table, its chunks). The last batch's `until` is END_OF_TIME; there always is one.
    batch_rows: batches are made of about this many rows.
    """
    opened = [_Source(table, iter(chunks)) for table, chunks in sources]
    done = -END_OF_TIME
    held_rows = 0
    while True:
        behind = min(opened, key=lambda source: source.later_ts, default=None)
        if behind is None or behind.later_ts == END_OF_TIME:
            yield END_OF_TIME, _taken(opened, END_OF_TIME)
            return
        chunk = next(behind.chunks, None)
        if chunk is None:
            behind.later_ts = END_OF_TIME
        else:
            for core, rows in chunk.rows.items():
                if len(rows):
                    behind.held.setdefault(core, []).append(rows.in_order())
                    held_rows += len(rows)
            behind.later_ts = max(behind.later_ts, chunk.later_ts)
        watermark = min(source.later_ts for source in opened)
        if held_rows >= batch_rows and done < watermark < END_OF_TIME:
            taken = _taken(opened, watermark)
            held_rows -= sum(len(rows) for cores in taken.values() for rows in cores.values())
            done = watermark
            yield watermark, taken


def _taken(sources: list[_Source], until: int) -> dict[str, dict[int, Events]]:
    """Take out every row that begins before `until`."""
    parts: dict[tuple[str, int], list[Events]] = {}
    for source in sources:
        for core, held in source.held.items():
            left = []
            for rows in held:
                count = len(rows) if until == END_OF_TIME else int(np.searchsorted(rows.start, until, side="left"))
                if count:
                    parts.setdefault((source.table, core), []).append(rows.rows(slice(0, count)))
                if count < len(rows):
                    left.append(rows.rows(slice(count, None)))
            source.held[core] = left
    taken: dict[str, dict[int, Events]] = {}
    for (table, core), found in parts.items():
        taken.setdefault(table, {})[core] = Events.joined(found).in_order()
    return taken


class DiskSort:
    """One table's rows sorted on disk: sorted runs are written first, then read side by side."""

    def __init__(self, folder: Path, name: str) -> None:
        """folder: an empty one of the caller's, who removes it."""
        self._folder, self._name = folder, name
        self._held: list[tuple[int, Events]] = []
        self._held_rows = 0
        self._runs: list[list[_StoredRun]] = []

    def add(self, rows: Mapping[int, Events]) -> None:
        """Rows by core, in the table's order."""
        for core, events in rows.items():
            if len(events):
                self._held.append((core, events))
                self._held_rows += len(events)
        if self._held_rows >= RUN_ROWS:
            self._write()

    def sources(self, *, chunk_rows: int) -> list[Iterator[Chunk]]:
        """The runs, in the table's order, to be read side by side: chunks of about chunk_rows rows in all."""
        self._write()
        count = max(1, sum(len(run) for run in self._runs))
        return [part.chunks(max(1024, chunk_rows // count)) for run in self._runs for part in run]

    def _write(self) -> None:
        if not self._held:
            return
        by_core: dict[int, list[Events]] = {}
        for core, events in self._held:
            by_core.setdefault(core, []).append(events)
        self._held, self._held_rows = [], 0
        run = []
        for core, parts in sorted(by_core.items()):
            path = self._folder / f"{self._name}-{len(self._runs)}-{core}"
            run.append(_StoredRun.write(path, core, Events.joined(parts).in_order()))
        self._runs.append(run)


@dataclass(frozen=True)
class _StoredRun:
    """Rows of one core in order of start: a file with one column after the other."""

    path: Path
    core: int
    row_count: int
    kinds: dict[str, np.dtype]

    @staticmethod
    def write(path: Path, core: int, rows: Events) -> _StoredRun:
        with path.open("wb") as file:
            for values in rows.columns.values():
                np.ascontiguousarray(values).tofile(file)
        return _StoredRun(path, core, len(rows), {name: values.dtype for name, values in rows.columns.items()})

    def chunks(self, chunk_rows: int) -> Iterator[Chunk]:
        for first in range(0, self.row_count, chunk_rows):
            count = min(chunk_rows, self.row_count - first)
            rows = self._read(first, count)
            last = first + count == self.row_count
            yield Chunk({self.core: rows}, END_OF_TIME if last else int(rows.start[-1]))

    def _read(self, first: int, count: int) -> Events:
        columns, at = {}, 0
        # Opened for each chunk: a large table has more runs than a process may have open files.
        with self.path.open("rb") as file:
            for name, kind in self.kinds.items():
                file.seek(at + first * kind.itemsize)
                columns[name] = np.fromfile(file, kind, count)
                at += self.row_count * kind.itemsize
        return Events(columns)

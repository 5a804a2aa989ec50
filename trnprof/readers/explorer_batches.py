"""Neuron Explorer's Parquet tables in batches, in order of time and within bounded memory: what an account reads.

Two passes. The first reads times and cores only and finds what must be known before anything can be counted: the window,
where each core's body begins and ends, and how far each table is from being in order. The second reads the columns that
an account needs and gives them out up to a watermark. Rows are converted, rejected and placed on the clock as when the
directory is read whole; columns that an account does not need are not looked at, and neither is what is odd in them.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from trnprof.errors import InputDataError, InputMissingError
from trnprof.events import Events, NameList, events_of
from trnprof.ordering import END_OF_TIME, Chunk, DiskSort, in_order
from trnprof.profile import UNKNOWN_OPCODE, CaptureIssue, Metadata, codes_of, int64_of
from trnprof.readers.assembly import (
    ZERO_OUTLIER,
    Conversion,
    Window,
    choose_window,
    is_far_from_zero,
    shifted,
    typed_table,
    zero_rows,
)
from trnprof.readers.explorer_source import FORMAT, open_source
from trnprof.readers.issue_log import IssueLog
from trnprof.readers.parquet_directory import BATCH_ROWS
from trnprof.readers.summary_checks import TableTotals, check_against_summary, is_known_empty, totals_of
from trnprof.readers.table_facts import EVERY_CORE, Cursor, TableFacts, in_turn, plan, widen
from trnprof.readers.vendor_metadata import build_metadata
from trnprof.readers.vendor_tables import VENDOR_TABLES

READ_TABLES = ("instructions", "dma_packets", "dma_transfers", "collectives", "kernels", "semaphores", "throttle")
"""Every table but sources, which no account reads."""

_NEEDED = {
    "instructions": (
        *("start_ts", "end_ts", "pcore_idx", "engine", "opcode", "compiler_pc", "hbm_read_bytes", "hbm_write_bytes"),
        *("evt_wait_time_ns", "operands", "wait_semaphore_idx", "update_semaphore_idx", "raw_flops"),
        *("tensor_instruction_type", "spill_save_bytes", "spill_reload_bytes"),
    ),
    "dma_packets": ("start_ts", "end_ts", "pcore_idx", "transfer_bytes", "queue_type", "is_cc_dma"),
    "dma_transfers": ("start_ts", "end_ts", "pcore_idx", "transfer_bytes", "queue_type"),
    "collectives": ("start_ts", "end_ts", "pcore_idx", "operation", "replica_group"),
    "kernels": ("start_ts", "end_ts", "pcore_idx", "name"),
    "semaphores": ("timestamp", "pcore_idx", "id", "value", "semaphore_idx", "update_source"),
    "throttle": ("timestamp", "duration", "k", "n", "pcore_idx"),
}
"""Columns that an account and its findings are made from."""

_PLACED = {
    "instructions": ("start_ts", "end_ts", "pcore_idx", "engine", "compiler_pc", "evt_wait_time_ns"),
    "dma_packets": ("start_ts", "end_ts", "pcore_idx"),
    "dma_transfers": ("start_ts", "end_ts", "pcore_idx"),
    "collectives": ("start_ts", "end_ts", "pcore_idx"),
    "kernels": ("start_ts", "end_ts", "pcore_idx", "name"),
    "semaphores": ("timestamp", "pcore_idx", "id", "value"),
    "throttle": ("timestamp", "duration", "k", "n", "pcore_idx"),
}
"""Columns that say when and where a row is, and whether it is kept."""

_HELD_BATCHES = 4
"""How many batches' rows of a table may be held back for others to catch up; a table that needs more is sorted on disk."""

_LOOKING_THREADS = 2
"""Tables that the first pass goes through side by side: decoding takes most of it, and needs no interpreter lock."""

_HULL_TABLES = tuple(name for name in READ_TABLES if name != "throttle")
"""Throttling is a state of the chip, not an event of the execution."""


@dataclass(frozen=True)
class StreamBatch:
    """Rows of every core that begin before `until_ts` and were in no earlier batch, in order of start."""

    until_ts: int
    """END_OF_TIME for the last batch."""
    rows: dict[int, dict[str, Events | None]]
    """Core -> {table as trnprof.analyzers.account_fold names it: rows; None: not captured}."""


class ExplorerBatches:
    """One Explorer directory, to be read in batches."""

    metadata: Metadata
    captured: frozenset[str]
    """Profile's tables that were captured, sources left out."""
    row_count: int
    """Rows in all files."""
    longest_wait_ns: int
    """No instruction waited longer than this before it began."""
    names: NameList
    """What the codes in the batches' columns stand for."""

    def __init__(
        self, path: Path, *, batch_rows: int = BATCH_ROWS, progress: Callable[[int], None] | None = None
    ) -> None:
        """Open it and make the first pass.

        batch_rows: rows of a table that are read at once; fewer where there are many cores.
        progress: called with the number of rows that were read since it was last called; 2 x row_count in all.

        Raises: what read_explorer_parquet raises.
        """
        log = IssueLog()
        self._opened_with = log
        self._source = open_source(path, log)
        self._progress = _one_at_a_time(progress or (lambda rows: None))
        self.names = NameList()
        self._steps = self._source.steps()
        self._groups = {
            name: self._source.files.row_groups(VENDOR_TABLES[name].explorer)
            for name in READ_TABLES
            if self._source.holds(name)
        }
        self._empty = {name: self._empty_table(name) for name in self._groups}
        core_count = max(4, len(self._source.facts.declared_cores()))
        self._batch_rows = max(1, 4 * batch_rows // core_count)
        with ThreadPoolExecutor(_LOOKING_THREADS) as threads:
            self._facts = dict(zip(self._groups, threads.map(self._look_at, self._groups), strict=True))
        self.row_count = sum(facts.row_count for facts in self._facts.values())
        instructions = self._facts.get("instructions", TableFacts())
        self.longest_wait_ns = instructions.longest_wait_ns
        self._set_clock()
        self._logs: dict[str, IssueLog] = {}
        self._totals: dict[str, TableTotals] = {}

    def body(self, core: int) -> tuple[int, int] | None:
        """What the compiler emitted on a core: first start to last end, on the metadata's clock; None: nothing."""
        facts = self._facts.get("instructions", TableFacts())
        times = list(facts.emitted.get(core, ()))
        if core in facts.emitted_at_zero and not self._drop_zero:
            times.append(0)
        return (min(times) - self._zero, max(times) - self._zero) if times else None

    def step_bodies(self, windows: Sequence[tuple[int, int]]) -> list[dict[int, tuple[int, int]]]:
        """The same of the instructions that overlap each of the windows, by core: one more look at the instructions."""
        found: list[dict[int, tuple[int, int]]] = [{} for _ in windows]
        if "instructions" not in self._groups:
            return found
        for table in self._instructions():
            start, end = int64_of(table["start_ts"]), int64_of(table["end_ts"])
            if not len(start):
                continue
            emitted = np.ones(len(start), bool)
            if "compiler_pc" in table.column_names:
                emitted = table["compiler_pc"].is_valid().to_numpy()
            core = int64_of(table["pcore_idx"])
            low, high = int(start.min()), int(end.max())
            for hulls, (first, last) in zip(found, windows, strict=True):
                if first <= high and low < last:
                    inside = emitted & (start < last) & ((end > first) | (start >= first))
                    for number in np.unique(core[inside]).tolist():
                        widen(hulls, number, start, end, inside & (core == number))
        return found

    def batches(self) -> Iterator[StreamBatch]:
        """The second pass.

        Raises: InputDataError for damage that is only seen now; InputMissingError if there is no room to sort on disk.
        """
        self._logs = {name: IssueLog() for name in self._groups}
        self._totals = {name: TableTotals(0) for name in self._groups}
        self._unknown: dict[str, int] = {}
        cores = [core.core for core in self.metadata.cores]
        packets = "dma_packets" if "dma_packets" in self.captured else "dma_transfers"
        sources = {
            "instructions": "instructions",
            "packets": packets,
            **{name: name for name in ("collectives", "kernels", "semaphores", "throttle")},
        }
        empty = {
            name: events_of(table, self._empty.get(table, _no_rows(table)), self.names)
            if table in self.captured
            else None
            for name, table in sources.items()
        }
        given = set(sources.values())
        for name in self._groups:
            if name not in given and self._source.marker is None:
                for _ in self._chunks(name, in_turn(self._facts[name])):
                    pass
        with tempfile.TemporaryDirectory(prefix="trnprof-sort-") as folder:
            try:
                found = [
                    (name, chunks)
                    for name in self._groups
                    if name in given
                    for chunks in self._sources(name, Path(folder))
                ]
                for until, taken in in_order(found, batch_rows=self._batch_rows):
                    yield StreamBatch(
                        until,
                        {
                            core: {name: taken.get(table, {}).get(core, empty[name]) for name, table in sources.items()}
                            for core in cores
                        },
                    )
            except OSError as error:
                raise InputMissingError(
                    f"a table is not in order of time and cannot be sorted in {folder} ({error.strerror or error}); "
                    "set TMPDIR to a folder with room",
                    path=self._source.files.directory,
                ) from None

    def sorted_tables(self) -> tuple[str, ...]:
        """The tables that are so far from being in order of time that they are sorted on disk."""
        return tuple(name for name in self._groups if self._plan(name) is None)

    def issues(self) -> tuple[CaptureIssue, ...]:
        """What is wrong with the capture, after the second pass; as Profile.issues, but for columns that were not read."""
        log = IssueLog()
        log.include(self._opened_with)
        source = self._source
        for name in READ_TABLES:
            if name in self._logs:
                log.include(self._logs[name])
            elif source.marker is None:
                is_known_empty(name, source.facts, log)
        if source.marker is None:
            totals = {name: self._totals.get(name, TableTotals(0)) for name in self.captured}
            check_against_summary(totals, source.facts, log)
        log.include(self._clock_log)
        return log.issues()

    def unknown_opcodes(self) -> dict[str, int]:
        """Opcode -> instructions, of opcodes that no document or capture names; after the second pass."""
        return dict(self._unknown)

    def row_counts(self) -> dict[str, int]:
        """Rows that make sense, by captured table."""
        rows = dict.fromkeys(self.captured, 0)
        for name, facts in self._facts.items():
            rows[name] = facts.kept_count - (facts.zero_count if self._drop_zero else 0)
        return rows

    def _empty_table(self, name: str) -> pa.Table:
        """No rows, with every column that a file of the table has: files of one table may differ."""
        wanted = self._source.wanted(name, _NEEDED[name])
        parts = [
            self._source.typed(name, file, 0, columns, IssueLog(), only=_NEEDED[name])
            for file, columns in self._source.files.empty_columns(VENDOR_TABLES[name].explorer, wanted)
        ]
        return pa.concat_tables(parts, promote_options="default")

    def _look_at(self, name: str) -> TableFacts:
        """The first pass over one table."""
        facts = TableFacts()
        for number, count, table in self._times(name):
            facts.add(number, count, table)
            self._progress(count)
        return facts

    def _times(self, name: str) -> Iterator[tuple[int, int, pa.Table]]:
        """(row group, rows in the file, rows that make sense) of each chunk, with the columns of _PLACED."""
        wanted = self._source.wanted(name, _PLACED[name])
        empty = self._empty[name].select([c for c in self._empty[name].column_names if c in _PLACED[name]])
        for number, group in enumerate(self._groups[name]):
            for file, count, columns in self._source.files.group_batches(group, wanted, rows=self._batch_rows):
                table = self._source.typed(name, file, count, columns, IssueLog(), only=_PLACED[name])
                yield number, count, self._filled(table, empty)

    def _instructions(self) -> Iterator[pa.Table]:
        """The same of instructions, on the metadata's clock."""
        for _, _, table in self._times("instructions"):
            yield self._on_clock(table)

    def _set_clock(self) -> None:
        """The window, the clock's zero, the cores: as readers.assembly.place_on_clock finds them in whole tables."""
        source, facts = self._source, self._facts
        known_empty = {
            name
            for name in READ_TABLES
            if name not in facts and source.marker is None and is_known_empty(name, source.facts, IssueLog())
        }
        self.captured = frozenset(facts) | known_empty
        if source.marker is None and not any(table.kept_count for table in facts.values()):
            raise InputDataError(
                f"no device events in it (tables: {source.files.preview()}); "
                "name the directory of a device profile, or convert the capture again",
                path=source.files.directory,
            )
        log = self._clock_log = IssueLog()
        declared = source.declared_window(log)
        self._zero, self._drop_zero = 0, False
        if source.marker is not None:
            self.metadata = source.marker.metadata
            return
        hull = _joined(facts[name].hull for name in _HULL_TABLES if name in facts)
        zeros = {name: table.zero_count for name, table in facts.items() if table.zero_count}
        if zeros:
            self._drop_zero = is_far_from_zero(hull, declared)
            if self._drop_zero:
                for name, count in zeros.items():
                    log.add("DQ011", count, f"{name}: {ZERO_OUTLIER}")
            elif any(name in _HULL_TABLES for name in zeros):
                hull = _joined((hull, Window(0, 0)))
        window = choose_window(hull, declared, source.facts.total_ns(), log)
        self._zero = window.start
        instructions = self._empty.get("instructions")
        self.metadata = build_metadata(
            source.facts,
            format=FORMAT,
            format_version=source.version,
            window=window,
            cores=set().union(*(table.cores for table in facts.values()), source.cores_of_sources()),
            totals_by_core=instructions is not None and "hbm_read_bytes" in instructions.column_names,
            steps=self._steps,
        )

    def _plan(self, name: str) -> tuple[Cursor, ...] | None:
        return plan(self._facts[name], held_rows=_HELD_BATCHES * self._batch_rows)

    def _sources(self, name: str, folder: Path) -> list[Iterator[Chunk]]:
        cursors = self._plan(name)
        if cursors is not None:
            return [self._chunks(name, cursor) for cursor in cursors]
        runs = DiskSort(folder, name)
        for chunk in self._chunks(name, in_turn(self._facts[name])):
            runs.add(chunk.rows)
        return runs.sources(chunk_rows=self._batch_rows)

    def _chunks(self, name: str, cursor: Cursor) -> Iterator[Chunk]:
        """A cursor's chunks. Each chunk of the table is noted and counted once, by the first cursor that reads it."""
        facts, log = self._facts[name], self._logs[name]
        wanted = self._source.wanted(name, _NEEDED[name])
        later_of = dict(zip(cursor.chunks, cursor.later_ts, strict=True))
        first_of_group: dict[int, int] = {}
        for place, chunk in enumerate(facts.chunks):
            first_of_group.setdefault(chunk.group, place)
        for number in sorted({facts.chunks[place].group for place in cursor.chunks}):
            slices = self._source.files.group_batches(self._groups[name][number], wanted, rows=self._batch_rows)
            for place, (file, count, columns) in enumerate(slices, first_of_group[number]):
                if place not in later_of:
                    continue
                owner = place in cursor.owned
                table = self._source.typed(name, file, count, columns, log if owner else IssueLog(), only=_NEEDED[name])
                totals = totals_of(table) if owner else None
                table = self._placed(name, table)
                if totals is not None:
                    self._totals[name] += totals
                    self._note_opcodes(table)
                    self._progress(count)
                later = later_of[place]
                if later < END_OF_TIME:
                    later = min(later - self._zero, END_OF_TIME - 1)
                yield Chunk(self._by_core(name, table, cursor.core), later)

    @staticmethod
    def _filled(table: pa.Table, empty: pa.Table) -> pa.Table:
        """With nulls in the columns that only other files of the table have."""
        if table.column_names == empty.column_names:
            return table
        return pa.concat_tables([empty, table], promote_options="default")

    def _placed(self, name: str, table: pa.Table) -> pa.Table:
        """The table with all columns that any of its files has, on the metadata's clock."""
        return self._on_clock(self._filled(table, self._empty[name]))

    def _on_clock(self, table: pa.Table) -> pa.Table:
        if self._drop_zero:
            table = table.filter(pa.array(~zero_rows(table)))
        return shifted(table, self._zero)

    def _by_core(self, name: str, table: pa.Table, wanted_core: int | None) -> dict[int, Events]:
        events = events_of(name, table, self.names)
        cores = [core.core for core in self.metadata.cores]
        if "pcore_idx" not in table.column_names:
            return dict.fromkeys(cores, events)
        core_of = int64_of(table["pcore_idx"], null=EVERY_CORE)
        low, high = (int(core_of.min()), int(core_of.max())) if len(core_of) else (0, 0)
        if low == high and low != EVERY_CORE:
            return {low: events} if low in cores and wanted_core in (None, low) else {}
        found = {}
        for core in cores:
            mine = core_of == core
            if name == "collectives":
                # A collective of no core is the whole logical core's, on each of its physical cores.
                mine |= core_of == EVERY_CORE
            if wanted_core not in (None, EVERY_CORE):
                mine &= core_of == wanted_core
            elif wanted_core == EVERY_CORE:
                mine &= core_of == EVERY_CORE
            found[core] = events.rows(mine)
        return found

    def _note_opcodes(self, table: pa.Table) -> None:
        if "opcode" not in table.column_names:
            return
        codes, names = codes_of(table["opcode"])
        counts = np.bincount(codes[codes >= 0], minlength=len(names)).tolist()
        for name, count in zip(names, counts, strict=True):
            if count and name.startswith(UNKNOWN_OPCODE):
                self._unknown[name] = self._unknown.get(name, 0) + count


def _one_at_a_time(progress: Callable[[int], None]) -> Callable[[int], None]:
    """For calls from several threads."""
    lock = threading.Lock()

    def call(rows: int) -> None:
        with lock:
            progress(rows)

    return call


def _no_rows(name: str) -> pa.Table:
    """A table that the summary says is empty."""
    return typed_table(name, {}, 0, Conversion(), IssueLog())


def _joined(windows: Iterable[Window | None]) -> Window | None:
    found = [window for window in windows if window is not None]
    return Window(min(w.start for w in found), max(w.end for w in found)) if found else None

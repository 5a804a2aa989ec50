"""From a capture's raw columns to Profile tables: typed, odd rows rejected with a count, on one clock, in order.

Two steps, because what is an outlier and where the clock's zero lies can only be said of all tables together:
`typed_table` converts one table; `place_on_clock` then treats all of a capture's tables alike.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trnprof.profile import ENGINES, TABLE_SPECS, TableSpec, codes_of, int64_of
from trnprof.readers import cells
from trnprof.readers.cells import Oddities, RawColumn
from trnprof.readers.issue_log import IssueLog
from trnprof.readers.operands import semaphore_numbers, wait_columns
from trnprof.readers.vendor_tables import TIMES

MAX_TIME_NS = 2**62
"""No time or duration reaches this (146 years from 1970), so that differences fit 64 bits."""

ENGINE_ALIASES = {
    **{name: name for name in ENGINES},
    "tensormatrix": "tensor",
    "pe": "tensor",
    "dve": "vector",
    "act": "scalar",
    "activation": "scalar",
    "pool": "gpsimd",
    "sp": "sync",
}
"""Lower-case names under which the vendor's tools print a compute engine."""

_SPELLED_AS_TEXT = frozenset({"engine_idx", "queue_idx"})
"""Numbers that the legacy JSON always writes as text."""

_UNKNOWN_TEXT = {"opcode": "UNKNOWN", "operation": "unknown"}
"""What a row without these names counts as: it took its engine's time all the same."""

_DYNAMIC = ("software_dynamic", "hardware_dynamic")

_ORDER: dict[str, tuple[str, ...]] = {
    "instructions": ("pcore_idx", "start_ts", "engine", "end_ts", "pc", "id"),
    "dma_packets": ("pcore_idx", "start_ts", "engine_idx", "queue_idx", "end_ts", "packet_idx", "id"),
    "dma_transfers": ("pcore_idx", "start_ts", "queue_idx", "end_ts", "id"),
    "semaphores": ("pcore_idx", "timestamp"),
    "collectives": ("pcore_idx", "start_ts", "stream_id", "end_ts", "op_id", "operation"),
    "throttle": ("pcore_idx", "timestamp", "duration", "k"),
    "kernels": ("pcore_idx", "start_ts", "end_ts", "name"),
    "sources": (),
}
"""Sort keys; rows that agree in all of them are sorted by their other columns, so that the capture's order never shows."""


@dataclass(frozen=True)
class Conversion:
    """How one capture's raw tables are to be read."""

    default_core: int | None = None
    """The core of rows that name none; None: such rows are rejected, since several cores are there."""
    own: bool = False
    """Written by trnprof: columns are taken as they are, nothing is derived from them, ties keep their order."""


class MissingColumnError(LookupError):
    """A table has rows but lacks a column that it must have; the reader knows which file."""

    def __init__(self, table: str, column: str) -> None:
        super().__init__(f"{table} lacks {column}")
        self.table = table
        self.column = column


class _Rows:
    """Which rows of one table are kept, and why the others are not."""

    def __init__(self, name: str, count: int, log: IssueLog) -> None:
        self.name = name
        self.keep = np.ones(count, bool)
        self._log = log

    def reject(self, bad: npt.NDArray[np.bool_], why: str) -> None:
        self._log.add("DQ011", int((self.keep & bad).sum()), f"{self.name}: {why}")
        self.keep[bad] = False

    def reject_nulls(self, values: pa.Array, why: str) -> None:
        if values.null_count:
            self.reject(_nulls(values), why)

    def note(self, column: str, found: Oddities) -> None:
        count, what = found.describe()
        self._log.add("DQ020", count, f"{self.name}.{column}: {what}")


def typed_table(
    name: str,
    raw: Mapping[str, RawColumn],
    row_count: int,
    how: Conversion,
    log: IssueLog,
    scales: Mapping[str, tuple[int, int]] | None = None,
    *,
    only: Collection[str] | None = None,
) -> pa.Table:
    """The table `name` with the columns that `raw` has, on the capture's own clock, rejected rows left out.

    raw: by Profile's column names, plus `duration_ns`, from which a missing end is computed.
    scales: (numerator, denominator) of columns that are in another unit than Profile's.
    only: the columns to look at, where not all are wanted; required ones that are not among them may be missing.

    Raises: MissingColumnError.
    """
    spec = TABLE_SPECS[name]
    if only is not None:
        spec = TableSpec(
            *({c: kind for c, kind in part.items() if c in only} for part in (spec.required, spec.optional))
        )
    scales = scales or {}
    rows = _Rows(name, row_count, log)
    columns: dict[str, pa.Array] = {}
    for column, wanted in spec.columns.items():
        values = raw.get(column)
        if column == "pcore_idx" or (values is None and column == "end_ts"):
            continue
        if values is None:
            if column not in spec.required:
                continue
            if row_count:
                raise MissingColumnError(name, column)
            columns[column] = pa.nulls(0, wanted)
        elif column == "engine":
            columns[column] = _engines(cells.names(values))
            rows.reject_nulls(columns[column], "not on a compute engine")
        elif pa.types.is_dictionary(wanted):
            columns[column] = _named(name, column, values, how, log)
        elif pa.types.is_boolean(wanted):
            columns[column] = cells.booleans(values)
        elif pa.types.is_floating(wanted):
            columns[column] = cells.floats(values)
        else:
            columns[column] = _numeric(column, wanted, values, scales, rows, required=column in spec.required)
    if "end_ts" in spec.required:
        columns["end_ts"] = _ends(columns, raw, scales, rows)
    if "pcore_idx" in spec.columns:
        numbers = _core_numbers(raw.get("pcore_idx"), how, rows)
        if numbers is not None:
            columns["pcore_idx"] = numbers
        elif "pcore_idx" in spec.required:
            raise MissingColumnError(name, "pcore_idx")
    for column in spec.required:
        if column != "transfer_bytes":  # a transfer of unknown size is still a transfer
            rows.reject_nulls(columns[column], f"without {column}")
    if "end_ts" in spec.required:
        rows.reject(_numbers(columns["end_ts"]) < _numbers(columns["start_ts"]), "the end is before the start")
    if "duration" in spec.required:
        rows.reject(_numbers(columns["duration"]) < 0, "a negative duration")
    if not how.own:
        _derive(name, columns)
    if name == "dma_packets":
        _note_odd_packets(columns, rows.keep, log)
    kinds = {column: kind for column, kind in spec.columns.items() if column in columns}
    table = pa.table([columns[column] for column in kinds], schema=pa.schema(list(kinds.items())))
    return table if rows.keep.all() else table.filter(pa.array(rows.keep))


@dataclass(frozen=True)
class Window:
    """The execution's window on the capture's own clock, ns."""

    start: int
    end: int


def place_on_clock(
    tables: dict[str, pa.Table],
    declared: Window | None,
    total_ns: int | None,
    how: Conversion,
    log: IssueLog,
) -> tuple[dict[str, pa.Table], Window]:
    """(the tables on a clock whose zero is the window's start, sorted; the window on the capture's own clock).

    declared: the window that the capture states. Where it states none, or one in which nothing happened, the window
    runs over `total_ns` or, without that either, from the first to the last event.
    """
    window = declared
    if not how.own or window is None:
        tables = _without_zero_outliers(tables, declared, log)
        window = choose_window(_hull(tables), declared, total_ns, log)
    placed = {}
    for name, table in tables.items():
        if not how.own:
            table = shifted(table, window.start)
        for position, column in enumerate(table.schema):
            if pa.types.is_dictionary(column.type):
                table = table.set_column(position, column, cells.canonical_names(table[column.name]))
        keys = _ORDER[name]
        # Two updates of one semaphore in one nanosecond stay in the capture's order, which is the device's.
        ties = name != "semaphores" and not how.own
        placed[name] = _in_order(table, keys[:2] if how.own else keys, break_ties=ties)
    return placed, window


def cores_of(tables: Mapping[str, pa.Table]) -> set[int]:
    """Every physical core that a row names."""
    found: set[int] = set()
    for table in tables.values():
        if "pcore_idx" in table.column_names:
            found.update(core for core in pc.unique(table["pcore_idx"]).to_pylist() if core is not None)
    return found


def _named(name: str, column: str, values: RawColumn, how: Conversion, log: IssueLog) -> pa.DictionaryArray:
    required = column in TABLE_SPECS[name].required
    names = cells.names(values, empty_is_null=not how.own and not required)
    fallback = _UNKNOWN_TEXT.get(column)
    if fallback is None or not names.null_count:
        return names
    log.add("DQ006" if column == "opcode" else "DQ020", names.null_count, f"{name}: rows without {column}")
    return names.cast(pa.string()).fill_null(fallback).dictionary_encode()


def _numeric(
    column: str,
    wanted: pa.DataType,
    values: RawColumn,
    scales: Mapping[str, tuple[int, int]],
    rows: _Rows,
    *,
    required: bool,
) -> pa.Array:
    numbers, found = cells.integers(values, wanted, scales.get(column, cells.UNITY))
    if column in TIMES:
        # Differences of two times must fit 64 bits too.
        extremes = pc.min_max(numbers)
        if not -MAX_TIME_NS < (extremes["min"].as_py() or 0) <= (extremes["max"].as_py() or 0) < MAX_TIME_NS:
            numbers = pc.if_else(_is_sane(numbers), numbers, pa.scalar(None, pa.int64()))
        if required:
            if numbers.null_count:
                rows.reject(_nulls(numbers) & _had_value(values), "a time that is no finite number")
            found.empty = found.inexact = found.unreadable = 0
    if column in _SPELLED_AS_TEXT:
        found.text = 0
    if isinstance(values, list) and not (required and column in TIMES):
        found.unreadable += found.non_finite  # in an arrow column NaN is how some writers spell null
    rows.note(column, found)
    return numbers


def _ends(
    columns: dict[str, pa.Array], raw: Mapping[str, RawColumn], scales: Mapping[str, tuple[int, int]], rows: _Rows
) -> pa.Array:
    """The end of each row: its own, or start + duration, each rounded down to a nanosecond as the vendor does."""
    ends = columns.get("end_ts")
    durations = raw.get("duration_ns")
    if ends is not None and (durations is None or not ends.null_count):
        return ends
    if durations is None:
        if len(rows.keep):
            raise MissingColumnError(rows.name, "end_ts")
        return pa.nulls(0, pa.int64())
    lengths = _numeric("duration_ns", pa.int64(), durations, scales, rows, required=False)
    if ends is None:
        rows.reject(_nulls(lengths) & _had_value(durations), "a duration that is no finite number")
    sane = _is_sane(lengths)
    computed = pc.add(columns["start_ts"], pc.if_else(sane, lengths, 0))
    fits = pc.and_(sane, _is_sane(computed)).to_numpy(zero_copy_only=False)
    rows.reject(~fits, "an end more than a century away")
    computed = pc.if_else(pa.array(fits), computed, columns["start_ts"])
    return computed if ends is None else pc.coalesce(ends, computed)


def _is_sane(numbers: pa.Array) -> pa.Array:
    """Which numbers lie within MAX_TIME_NS of zero (nulls count as 0)."""
    known = pc.fill_null(numbers, 0)
    return pc.and_(pc.less(known, MAX_TIME_NS), pc.greater(known, -MAX_TIME_NS))


def _core_numbers(raw: RawColumn | None, how: Conversion, rows: _Rows) -> pa.Array | None:
    """The core of each row; None where the table has no such column and none is needed."""
    if raw is None:
        if not len(rows.keep) and "pcore_idx" in TABLE_SPECS[rows.name].required:
            return pa.nulls(0, pa.int16())
        if how.own or how.default_core is None:
            return None
        return pa.array(np.full(len(rows.keep), how.default_core, np.int16))
    numbers, found = cells.cores(raw)
    rows.note("pcore_idx", found)
    if how.default_core is not None and not how.own and not found.unreadable:
        numbers = numbers.fill_null(pa.scalar(how.default_core, pa.int16()))
    return numbers


def _derive(name: str, columns: dict[str, pa.Array]) -> None:
    """Columns that are only another reading of captured ones."""
    if name == "instructions":
        if "operands" in columns:
            columns.update(wait_columns(columns["operands"]))
        if "tensor_elements" in columns and "raw_flops" not in columns:
            # Schema 7.4.0: elements are multiply-accumulates, and raw FLOPs are two of each.
            columns["raw_flops"] = pc.multiply(columns["tensor_elements"], 2)
        moved = ("hbm_read_bytes", "hbm_write_bytes")
        for column in moved:
            # The vendor leaves a field out of its rows where it is zero: a kernel that only reads has no write field.
            if column not in columns and any(other in columns for other in moved):
                columns[column] = pa.nulls(len(columns["start_ts"]), pa.int64())
    elif name == "semaphores":
        columns["semaphore_idx"] = semaphore_numbers(columns["id"])


def _note_odd_packets(columns: dict[str, pa.Array], keep: npt.NDArray[np.bool_], log: IssueLog) -> None:
    instant = _numbers(columns["start_ts"]) == _numbers(columns["end_ts"])
    log.add("DQ017", int((keep & instant).sum()), "dma_packets: start and end are the same")
    if "queue_type" in columns:
        codes, kinds = codes_of(pa.chunked_array([columns["queue_type"]]))
        dynamic = np.array([*(kind in _DYNAMIC for kind in kinds), False])[codes]
        sized = _numbers(columns["transfer_bytes"]) > 0
        log.add("DQ014", int((keep & dynamic & ~sized).sum()), "dma_packets: dynamic, without a size")


def _engines(printed: pa.DictionaryArray) -> pa.DictionaryArray:
    known = [ENGINE_ALIASES.get((name or "").strip().lower()) for name in printed.dictionary.to_pylist()]
    engine_code = {engine: code for code, engine in enumerate(ENGINES)}
    # One more entry for null, which code -1 reads.
    recode = np.array([-1 if engine is None else engine_code[engine] for engine in [*known, None]], np.int32)
    codes = recode[_codes(printed)]
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), pa.array(ENGINES, pa.string()))


def _codes(column: pa.DictionaryArray) -> npt.NDArray[np.int32]:
    """The codes of a name column; -1 is null."""
    codes = column.indices.fill_null(-1) if column.indices.null_count else column.indices
    return codes.to_numpy(zero_copy_only=False)


def _without_zero_outliers(tables: dict[str, pa.Table], declared: Window | None, log: IssueLog) -> dict[str, pa.Table]:
    """Leave out rows with start 0 and length 0 that lie further from all others than these lie from each other."""
    zeros = {name: zero_rows(table) for name, table in tables.items()}
    if not any(mask.any() for mask in zeros.values()):
        return tables
    others = {name: table.filter(pa.array(~zeros[name])) for name, table in tables.items()}
    if not is_far_from_zero(_hull(others), declared):
        return tables
    for name, mask in zeros.items():
        log.add("DQ011", int(mask.sum()), f"{name}: {ZERO_OUTLIER}")
    return others


ZERO_OUTLIER = "time 0 and no duration, far from all other events"


def is_far_from_zero(hull: Window | None, declared: Window | None) -> bool:
    """Are rows with time 0 no times at all: further from all others than these lie from each other?

    hull: from the first to the last of the other events; declared: the window that the capture states.
    """
    if hull is None or hull.start <= hull.end - hull.start:
        return False
    return declared is None or declared.start > 0 or declared.end < hull.start


def zero_rows(table: pa.Table) -> npt.NDArray[np.bool_]:
    """Which rows have time 0 and no length; bool [n]."""
    if "start_ts" in table.column_names:
        return (int64_of(table["start_ts"]) == 0) & (int64_of(table["end_ts"]) == 0)
    if "timestamp" not in table.column_names:
        return np.zeros(len(table), bool)
    zero = int64_of(table["timestamp"]) == 0
    return zero & (int64_of(table["duration"]) == 0) if "duration" in table.column_names else zero


def _hull(tables: Mapping[str, pa.Table]) -> Window | None:
    """From the first to the last event (throttling is a state of the chip, not an event of the execution)."""
    first: list[int] = []
    last: list[int] = []
    for name, table in tables.items():
        if not len(table) or name in ("throttle", "sources"):
            continue
        begins, ends = ("timestamp", "timestamp") if name == "semaphores" else ("start_ts", "end_ts")
        first.append(int(int64_of(table[begins]).min()))
        last.append(int(int64_of(table[ends]).max()))
    return Window(min(first), max(last)) if first else None


def choose_window(hull: Window | None, declared: Window | None, total_ns: int | None, log: IssueLog) -> Window:
    """The execution's window: the declared one if anything happened in it, else over the total time, else the hull.

    hull: from the first to the last event of all tables; None where there are none.
    """
    if declared is not None and declared.end > declared.start:
        if hull is None or (hull.start < declared.end and hull.end > declared.start):
            return declared
        log.add("DQ018", 1, "no event lies in the stated window; taken from the first to the last event")
        return hull
    if hull is None:
        return Window(0, total_ns or 0)
    if total_ns is not None and total_ns > 0:
        if hull.start >= 0 and hull.end <= total_ns:
            return Window(0, total_ns)
        log.add("DQ018", 1, "the capture states a total time but no start; taken from the first event on")
        return Window(hull.start, hull.start + total_ns)
    log.add("DQ018", 1, "the capture states no window; taken from the first to the last event")
    return hull


def shifted(table: pa.Table, zero: int) -> pa.Table:
    """The table with its times counted from `zero`."""
    if zero:
        for position, column in enumerate(table.schema):
            if column.name in TIMES:
                table = table.set_column(position, column, pc.subtract(table[column.name], zero))
    return table


def _in_order(table: pa.Table, keys: tuple[str, ...], *, break_ties: bool) -> pa.Table:
    """Rows sorted by the keys that the table has; equal ones by all their other columns, or else as they came."""
    present = [key for key in keys if key in table.column_names]
    if not present or len(table) < 2:
        return table
    ranks = [_rank(table[key]) for key in present]
    order = np.lexsort(ranks[::-1])
    if break_ties and bool(np.all([rank[order[1:]] == rank[order[:-1]] for rank in ranks], axis=0).any()):
        ranks += [_rank(table[column]) for column in table.column_names if column not in present]
        order = np.lexsort(ranks[::-1])
    return table if np.array_equal(order, np.arange(len(order))) else table.take(pa.array(order))


def _rank(column: pa.ChunkedArray) -> npt.NDArray[np.generic]:
    """Numbers that sort as the column does, nulls first."""
    if pa.types.is_dictionary(column.type):
        # After canonical_names a code is its name's rank.
        return codes_of(column)[0]
    if pa.types.is_floating(column.type):
        return column.fill_null(-np.inf).to_numpy()
    return int64_of(column.cast(pa.int64()) if pa.types.is_boolean(column.type) else column, null=-1)


def _nulls(array: pa.Array) -> npt.NDArray[np.bool_]:
    return array.is_null().to_numpy(zero_copy_only=False)


def _numbers(array: pa.Array) -> npt.NDArray[np.int64]:
    return (array.fill_null(0) if array.null_count else array).to_numpy(zero_copy_only=False)


def _had_value(raw: RawColumn) -> npt.NDArray[np.bool_]:
    """Which cells hold anything at all."""
    if isinstance(raw, list):
        return np.fromiter((value is not None for value in raw), bool, len(raw))
    return raw.is_valid().to_numpy(zero_copy_only=False)

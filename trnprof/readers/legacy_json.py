"""The vendor's legacy full-profile JSON (`neuron-profile view --output-format json`), plain or gzip, as a Profile.

One object of lists: `instruction`, `dma`, `semaphore_update`, `cc_ops`, `ham` (throttling) and small ones about the
capture. Times are whole nanoseconds from the execution's start; both physical cores of a logical core (subgraphs sg00
and sg01) share its window. The format ends after SDK 2.33.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa

from trnprof.errors import InputDataError
from trnprof.profile import TABLE_SPECS, Profile
from trnprof.readers.assembly import Conversion, MissingColumnError, Window, cores_of, place_on_clock, typed_table
from trnprof.readers.cells import RawColumn, cores
from trnprof.readers.issue_log import IssueLog
from trnprof.readers.json_file import read_json
from trnprof.readers.marker import MARKER_NAME, Marker, read_marker
from trnprof.readers.summary_checks import check_against_summary, is_known_empty, table_totals
from trnprof.readers.vendor_metadata import VendorFacts, build_metadata
from trnprof.readers.vendor_tables import VENDOR_TABLES

FORMAT = "legacy-json"

_TABLES = ("instructions", "dma_packets", "semaphores", "collectives", "throttle", "kernels", "sources")
Row = dict[str, object]


def read_legacy_json(path: Path) -> Profile:
    """The profile in a legacy full-profile JSON.

    Tables: instructions, dma_packets (dma_transfers where the file aggregates packets), semaphores, throttle, and
    collectives where it has any or says that there were none. A list that is absent, or empty although the summary
    counts its events, is None. Rows that cannot be right are left out and counted in `issues`.

    Raises: InputMissingError if it cannot be read; InputDataError if it is no such JSON, is damaged, lacks a column
            that a table must have, or holds no events.
    """
    value, replaced = read_json(path)
    data = _checked(value, path)
    log = IssueLog()
    log.add("DQ020", replaced, "bytes that are not UTF-8")
    lists = {name: _rows(data, name, path, log) for name in {table.legacy for table in VENDOR_TABLES.values()}}
    facts = _facts(data, path)
    marker = _marker(data, path, facts)
    how = Conversion(default_core=_only_core(facts, lists), own=marker is not None)

    tables: dict[str, pa.Table] = {}
    try:
        for name in _TABLES:
            rows = lists[VENDOR_TABLES[name].legacy]
            if name == "dma_packets":
                aggregated = [row for row in rows or () if row.get("aggregated") == "yes"]
                if rows is not None and (aggregated or (marker and "dma_transfers" in marker.columns)):
                    tables["dma_transfers"] = _table("dma_transfers", aggregated, how, marker, log)
                rows = None if rows is None else [row for row in rows if row.get("aggregated") != "yes"]
                if rows is not None:
                    kept = [row for row in rows if row.get("duplicate") != "yes"]
                    log.add("DQ011", len(rows) - len(kept), "dma_packets: duplicates, as the capture itself marks them")
                    rows = kept
            if marker is not None:
                rows = (rows or []) if name in marker.columns else None
            elif not rows:
                known = is_known_empty(name, facts, log)
                rows = rows if known is None else [] if known else None
            if rows is not None:
                tables[name] = _table(name, rows, how, marker, log)
    except MissingColumnError as error:
        legacy = VENDOR_TABLES[error.table]
        raise InputDataError(
            f"{legacy.legacy} has rows without {legacy.legacy_name(error.column)}, so they cannot be placed; "
            "convert the capture again, or give the .ntff itself",
            path=path,
        ) from None

    if marker is None:
        check_against_summary(table_totals(tables), facts, log)
    if marker is None and not any(len(table) for table in tables.values()):
        raise InputDataError(
            f"no events in it (lists: {_preview(data)}); was the capture viewed with the NEFF that it ran? convert again",
            path=path,
        )
    declared = _marked_window(marker) if marker else facts.window()
    tables, window = place_on_clock(tables, declared, facts.total_ns(), how, log)
    metadata = (
        marker.metadata
        if marker
        else build_metadata(
            facts,
            format=FORMAT,
            format_version=_version(facts),
            window=window,
            cores=cores_of(tables),
            totals_by_core="instructions" in tables and "hbm_read_bytes" in tables["instructions"].column_names,
        )
    )
    return Profile(metadata=metadata, issues=log.issues(), **tables)


def _checked(value: object, path: Path) -> Row:
    if isinstance(value, dict) and value:
        return value
    if isinstance(value, list) and not value:
        raise InputDataError("an empty list, so no events; convert the capture again", path=path)
    if isinstance(value, dict):
        raise InputDataError("an empty object, so no events; convert the capture again", path=path)
    raise InputDataError(
        f"a {'list' if isinstance(value, list) else 'single value'} where a profile is an object of lists; "
        "give the JSON that neuron-profile view --output-format json wrote",
        path=path,
    )


def _rows(data: Row, name: str, path: Path, log: IssueLog) -> list[Row] | None:
    """The list's rows without empty ones; None where it is absent."""
    found = data.get(name)
    if found is None:
        return None
    if not isinstance(found, list):
        raise InputDataError(f"{name} is no list; give the JSON that the vendor's profiler wrote", path=path)
    rows = [row for row in found if row and isinstance(row, dict)]
    log.add("DQ011", len(found) - len(rows), f"{name}: rows that are empty")
    return rows


def _facts(data: Row, path: Path) -> VendorFacts:
    def first(name: str) -> Row:
        rows = _some(name)
        return rows[0] if rows else {}

    def _some(name: str) -> list[Row]:
        rows = data.get(name)
        return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []

    return VendorFacts(
        metadata=first("metadata"),
        summary=first("summary"),
        neff_header=first("neff_header"),
        profile_info=first("profile_info"),
        models=list(_some("model_info")),
        warnings=[text for row in _some("warnings") if isinstance(text := row.get("message"), str)],
        queues=list(_some("dma_queues_info")),
    )


def _marker(data: Row, path: Path, facts: VendorFacts) -> Marker | None:
    found = data.get(MARKER_NAME)
    if found is None:
        return None
    text = found[0] if isinstance(found, list) and len(found) == 1 else None
    return read_marker(text, path=path, format=FORMAT, format_version=_version(facts))


def _marked_window(marker: Marker) -> Window:
    core = marker.metadata.cores[0]
    return Window(core.window_start_ts, core.window_end_ts)


def _version(facts: VendorFacts) -> str | None:
    version = facts.number("ntff_version")
    return None if version is None else str(version)


def _only_core(facts: VendorFacts, lists: dict[str, list[Row] | None]) -> int | None:
    """The capture's core, if it has one only."""
    named = facts.declared_cores()
    if len(named) > 1:
        return None
    for rows in lists.values():
        for subgraph in {row.get("subgraph") for row in rows or () if isinstance(row.get("subgraph"), str)}:
            named |= {core for core in cores([subgraph])[0].to_pylist() if core is not None}
    return None if len(named) > 1 else min(named, default=0)


def _table(name: str, rows: Sequence[Row], how: Conversion, marker: Marker | None, log: IssueLog) -> pa.Table:
    vendor = VENDOR_TABLES[name]
    wanted = (*TABLE_SPECS[name].columns, "duration_ns")
    if marker is not None:
        wanted = (*marker.columns[name], "duration_ns")
    present: set[str] = set().union(*rows)
    raw: dict[str, RawColumn] = {}
    for column in wanted:
        if marker is None and column in vendor.own and column not in ("is_cc_dma", "pcore_idx"):
            continue
        key = next((key for key in vendor.names_of(column) if key in present), None)
        if key is not None or (marker is not None and column != "duration_ns"):
            raw[column] = [row.get(key or column) for row in rows]
    if name == "instructions" and "engine" not in raw and "label" in present:
        raw["engine"] = [row.get("label") for row in rows]
    if name == "throttle" and marker is None and "type" in raw:
        raw["type"] = [_throttle_type(value) for value in raw["type"]]
    return typed_table(name, raw, len(rows), how, log)


def _throttle_type(value: object) -> object:
    # 0 and 1 are the summary's throttle_activity_0_* and _1_*: their durations agree in every capture seen.
    return f"activity_{value}" if type(value) is int and value in (0, 1) else value


def _preview(data: Iterable[str]) -> str:
    names = [ascii(str(name)[:24])[1:-1] for name in data]
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")

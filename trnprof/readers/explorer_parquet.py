"""Neuron Explorer's Parquet tables (`<name>@latest/<Table>.parquet`) as a Profile.

Columns are bound at run time, since the schema changes with each SDK: a column is looked for under its current name,
then under its older ones, and its unit is the one that the profile's own SchemaFields table declares. A table that was
not written held nothing or was not captured; an optional column that is missing was not captured; a required one that
is missing is an error that names it. Layout and names: the vendor's "Profile Parquet Schema Reference", version 7.4.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trnprof.errors import InputDataError
from trnprof.profile import TABLE_SPECS, Profile, int64_of
from trnprof.readers.assembly import Conversion, MissingColumnError, Window, cores_of, place_on_clock, typed_table
from trnprof.readers.cells import RawColumn, cores, exact_number, integers, names, plain
from trnprof.readers.issue_log import IssueLog
from trnprof.readers.marker import MARKER_NAME, Marker, read_marker
from trnprof.readers.parquet_directory import ParquetDirectory, find_directory, reading
from trnprof.readers.summary_checks import check_against_summary, is_known_empty
from trnprof.readers.vendor_metadata import VendorFacts, build_metadata
from trnprof.readers.vendor_tables import SCHEMA_MAJOR, VENDOR_TABLES, scale_to, unit_of

FORMAT = "explorer-parquet"

_METADATA_UNITS = {
    "first_hw_timestamp": "nanoseconds",
    "last_hw_timestamp": "nanoseconds",
    "execution_start_ts": "nanoseconds",
    "execution_end_ts": "nanoseconds",
    "dma_ddr_bandwidth": "bytes_per_second",
    "hbm_ddr_bandwidth": "bytes_per_second",
    "tensor_engine_clock_freq": "hertz",
    "vector_engine_clock_freq": "hertz",
    "scalar_engine_clock_freq": "hertz",
    "gpsimd_engine_clock_freq": "hertz",
    "neuroncore_clock_freq": "hertz",
}

Scale = tuple[int, int]


def read_explorer_parquet(path: Path) -> Profile:
    """The profile in an Explorer directory, or in the one such directory that `path` holds.

    Tables: Instruction, DmaPacket, DmaPacketAggregated, SemaphoreUpdate, CcOp, Throttle, KernelInstructions (with
    KernelStackFrames) fill instructions, dma_packets, dma_transfers, semaphores, collectives, throttle and sources;
    TrnprofKernels, which only trnprof writes, fills kernels. Split tables (Instruction_0, Instruction_1) are joined.

    Raises: InputMissingError if nothing can be read there; InputDataError if it holds no Explorer tables, a table is
            damaged, a part of a split table or a required column is missing, or there are no events.
    """
    files = ParquetDirectory(find_directory(path))
    log = IssueLog()
    units = _declared_units(files)
    facts, version = _facts(files, units)
    marker_cell = facts.metadata.get(MARKER_NAME)
    marker = None
    if marker_cell is not None:
        marker = read_marker(marker_cell, path=files.directory, format=FORMAT, format_version=version)
    elif (version or "").split(".")[0] != str(SCHEMA_MAJOR):
        stated = f"schema version {version[:40]}" if version else "schema version not stated"
        log.add("DQ016", 1, f"{stated}; trnprof was written for major version {SCHEMA_MAJOR}")
    how = Conversion(default_core=_only_core(files, facts), own=marker is not None)

    tables: dict[str, pa.Table] = {}
    for name in VENDOR_TABLES:
        table = None if marker and name not in marker.columns else _read_table(files, name, units, how, marker, log)
        if table is not None:
            tables[name] = table
        elif marker is None and is_known_empty(name, facts, log):
            tables[name] = typed_table(name, {}, 0, how, log)
    if marker is None:
        check_against_summary(tables, facts, log)
        if not any(len(table) for name, table in tables.items() if name != "sources"):
            raise InputDataError(
                f"no device events in it (tables: {files.preview()}); "
                "name the directory of a device profile, or convert the capture again",
                path=files.directory,
            )
    declared = _window(files, facts, units, marker, log)
    tables, window = place_on_clock(tables, declared, facts.total_ns(), how, log)
    metadata = (
        marker.metadata
        if marker
        else build_metadata(
            facts,
            format=FORMAT,
            format_version=version,
            window=window,
            cores=cores_of(tables),
            totals_by_core="instructions" in tables and "hbm_read_bytes" in tables["instructions"].column_names,
        )
    )
    return Profile(metadata=metadata, issues=log.issues(), **tables)


def _declared_units(files: ParquetDirectory) -> dict[tuple[str, str], str]:
    """(table, field) -> unit, as the profile's own SchemaFields table says."""
    wanted = {name: (name,) for name in ("table_name", "field_name", "field_unit")}
    units: dict[tuple[str, str], str] = {}
    for _, _, columns in files.columns("SchemaFields", wanted):
        if len(columns) < len(wanted):
            continue
        cells = (names(columns[name][1]).to_pylist() for name in wanted)
        units.update(
            {(table, field): unit for table, field, unit in zip(*cells, strict=True) if unit and table and field}
        )
    return units


def _facts(files: ParquetDirectory, units: Mapping[tuple[str, str], str]) -> tuple[VendorFacts, str | None]:
    metadata = next(iter(files.rows("Metadata")), {})
    scales: dict[str, Scale] = {}
    for name, wanted in _METADATA_UNITS.items():
        declared = units.get(("Metadata", name))
        if declared is not None:
            scale = scale_to(wanted, declared)
            if scale is None:
                metadata.pop(name, None)  # a unit that is not known: not captured rather than guessed
            else:
                scales[name] = scale
    version = metadata.get("profile_schema_version")
    facts = VendorFacts(
        metadata=metadata,
        summary=next(iter(files.rows("Summary")), {}),
        neff_header=next(iter(files.rows("NeffHeader")), {}),
        warnings=[text for row in files.rows("Warning") if isinstance(text := row.get("message"), str)],
        queues=list(files.rows("DmaQueuesInfo")),
        scales=scales,
    )
    return facts, version if isinstance(version, str) and version else None


def _window(
    files: ParquetDirectory,
    facts: VendorFacts,
    units: Mapping[tuple[str, str], str],
    marker: Marker | None,
    log: IssueLog,
) -> Window | None:
    """The one execution's own start and end where ExecutionInfo has them, else the trace's."""
    if marker is not None:
        core = marker.metadata.cores[0]
        return Window(core.window_start_ts, core.window_end_ts)
    executions = files.rows("ExecutionInfo")
    if len(executions) > 1:
        log.add("DQ018", 1, f"{len(executions)} executions in one profile; one window covers them all")
    elif executions:
        bounds = []
        for name in ("execution_start_ts", "execution_end_ts"):
            scale = scale_to("nanoseconds", units.get(("ExecutionInfo", name), "nanoseconds"))
            bounds.append(None if scale is None else exact_number(executions[0].get(name), scale))
        if bounds[0] is not None and bounds[1] is not None:
            return Window(bounds[0], bounds[1])
    return facts.window()


def _only_core(files: ParquetDirectory, facts: VendorFacts) -> int | None:
    """The capture's physical core, if it has one only."""
    found = facts.declared_cores()
    for name, vendor in VENDOR_TABLES.items():
        if "pcore_idx" in TABLE_SPECS[name].columns:
            for _, _, columns in files.columns(vendor.explorer, {"pcore_idx": vendor.names_of("pcore_idx")}):
                if "pcore_idx" in columns:
                    found |= {
                        core for core in cores(columns["pcore_idx"][1])[0].unique().to_pylist() if core is not None
                    }
        if len(found) > 1:
            return None
    return min(found, default=0)


def _read_table(
    files: ParquetDirectory,
    name: str,
    units: Mapping[tuple[str, str], str],
    how: Conversion,
    marker: Marker | None,
    log: IssueLog,
) -> pa.Table | None:
    """One table, all its files joined; None where the directory has none."""
    vendor = VENDOR_TABLES[name]
    captured = (
        marker.columns[name]
        if marker
        else [c for c in TABLE_SPECS[name].columns if c not in vendor.own or c == "pcore_idx"]
    )
    wanted = {column: vendor.names_of(column) for column in captured}
    if "end_ts" in wanted:
        wanted["duration_ns"] = vendor.names_of("duration_ns")
    parts = []
    for file, count, columns in files.columns(vendor.explorer, wanted):
        scales: dict[str, Scale] = {}
        for column, (field, _) in list(columns.items()):
            unit = unit_of(column)
            declared = units.get((vendor.explorer, field))
            if unit is None or declared is None:
                continue
            scale = scale_to(unit, declared)
            if scale is not None:
                scales[column] = scale
                continue
            if column in TABLE_SPECS[name].required:
                raise InputDataError(
                    f"{vendor.explorer}.{field} is in {declared[:40]!r}, not a unit of {unit} that trnprof knows; "
                    "convert with another neuron-explorer version",
                    path=file,
                )
            log.add("DQ016", 1, f"{vendor.explorer}.{field} left out: its unit is not known")
            del columns[column]
        raw: dict[str, RawColumn] = {column: array for column, (_, array) in columns.items()}
        _refuse_lost_nanoseconds(raw, vendor.explorer, file)
        if name == "sources" and marker is None:
            _add_functions(raw, files, count)
        try:
            parts.append(typed_table(name, raw, count, how, log, scales))
        except MissingColumnError as error:
            raise InputDataError(
                f"{vendor.explorer} lacks a plain column {error.column}"
                + (" though the profile has several cores" if error.column == "pcore_idx" else "")
                + f" (its columns: {_shown(file)}); convert with another neuron-explorer version, or give the .ntff",
                path=file,
            ) from None
    if len(parts) < 2:
        return parts[0] if parts else None
    return pa.concat_tables(parts, promote_options="default").unify_dictionaries()


def _refuse_lost_nanoseconds(raw: Mapping[str, RawColumn], table: str, file: Path) -> None:
    """A time that went through a float may have lost its nanoseconds; that is the whole table's fault, not a row's."""
    for column in ("start_ts", "end_ts", "timestamp"):
        values = raw.get(column)
        if isinstance(values, pa.Array) and pa.types.is_floating(values.type):
            count = integers(values)[1].inexact
            if count:
                raise InputDataError(
                    f"{table}.{column} is {values.type} and holds {count:,} times too large to be exact in it; "
                    "convert again with integer timestamps",
                    path=file,
                )


def _add_functions(raw: dict[str, RawColumn], files: ParquetDirectory, count: int) -> None:
    """function_name of each row from KernelStackFrames, by physical core and frame; file and line where a row has none."""
    wanted = {name: (name,) for name in ("stack_frame_id", "pcore_idx", "file_path", "line_number")}
    wanted["function_name"] = ("fully_qualified_function_name",)
    if "stack_frame_id" not in raw:
        return
    of_rows = _frame_keys(raw, count)
    for _, frame_count, named in files.columns("KernelStackFrames", wanted):
        frames: dict[str, RawColumn] = {column: array for column, (_, array) in named.items()}
        if "stack_frame_id" not in frames or not frame_count:
            continue
        of_frames = _frame_keys(frames, frame_count)
        if ("pcore_idx" in raw) != ("pcore_idx" in frames):
            of_rows, of_frames = of_rows & _FRAME_MASK, of_frames & _FRAME_MASK
        order = np.argsort(of_frames, kind="stable")
        at = np.minimum(np.searchsorted(of_frames[order], of_rows), frame_count - 1)
        found = of_frames[order][at] == of_rows
        rows = pa.array(order[at], pa.int64(), mask=~found)
        for part in ("function_name", "file_path", "line_number"):
            if part not in frames:
                continue
            values = integers(frames[part])[0] if part == "line_number" else names(frames[part])
            looked_up = values.take(rows)
            own = raw.get(part)
            if own is None:
                raw[part] = looked_up
            else:
                mine = integers(own)[0] if part == "line_number" else names(own)
                merged = pc.coalesce(plain(mine), plain(looked_up))
                raw[part] = merged


_FRAME_MASK = 2**48 - 1


def _frame_keys(columns: Mapping[str, RawColumn], count: int) -> npt.NDArray[np.int64]:
    """Physical core and frame of each row in one number; frames are small counts (48 bits)."""
    frames = int64_of(pa.chunked_array([integers(columns["stack_frame_id"])[0]]), null=-1) & _FRAME_MASK
    owners = np.zeros(count, np.int64)
    if "pcore_idx" in columns:
        owners = int64_of(pa.chunked_array([cores(columns["pcore_idx"])[0]]), null=-1)
    return frames | (owners + 1) << 48


def _shown(file: Path) -> str:
    with reading(file):
        held = pq.read_schema(file).names
    return ", ".join(ascii(name[:40])[1:-1] for name in held[:10]) + (", ..." if len(held) > 10 else "")

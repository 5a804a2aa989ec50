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

from trnprof.errors import InputDataError
from trnprof.profile import Profile, int64_of
from trnprof.readers.assembly import cores_of, place_on_clock, typed_table
from trnprof.readers.cells import RawColumn, cores, integers, names, plain
from trnprof.readers.explorer_source import FORMAT, Columns, ExplorerSource, open_source
from trnprof.readers.issue_log import IssueLog
from trnprof.readers.parquet_directory import ParquetDirectory
from trnprof.readers.summary_checks import check_against_summary, is_known_empty, table_totals
from trnprof.readers.vendor_metadata import build_metadata
from trnprof.readers.vendor_tables import VENDOR_TABLES


def read_explorer_parquet(path: Path) -> Profile:
    """The profile in an Explorer directory, or in the one such directory that `path` holds.

    Tables: Instruction, DmaPacket, DmaPacketAggregated, SemaphoreUpdate, CcOp, Throttle, KernelInstructions (with
    KernelStackFrames) fill instructions, dma_packets, dma_transfers, semaphores, collectives, throttle and sources;
    TrnprofKernels, which only trnprof writes, fills kernels. Split tables (Instruction_0, Instruction_1) are joined.

    Raises: InputMissingError if nothing can be read there; InputDataError if it holds no Explorer tables, a table is
            damaged, a part of a split table or a required column is missing, or there are no events.
    """
    log = IssueLog()
    source = open_source(path, log)
    files, facts, marker, how = source.files, source.facts, source.marker, source.how

    tables: dict[str, pa.Table] = {}
    for name in VENDOR_TABLES:
        table = None if marker and name not in marker.columns else _read_table(source, name, log)
        if table is not None:
            tables[name] = table
        elif marker is None and is_known_empty(name, facts, log):
            tables[name] = typed_table(name, {}, 0, how, log)
    if marker is None:
        check_against_summary(table_totals(tables), facts, log)
        if not any(len(table) for name, table in tables.items() if name != "sources"):
            raise InputDataError(
                f"no device events in it (tables: {files.preview()}); "
                "name the directory of a device profile, or convert the capture again",
                path=files.directory,
            )
    declared = source.declared_window(log)
    tables, window = place_on_clock(tables, declared, facts.total_ns(), how, log)
    metadata = (
        marker.metadata
        if marker
        else build_metadata(
            facts,
            format=FORMAT,
            format_version=source.version,
            window=window,
            cores=cores_of(tables),
            totals_by_core="instructions" in tables and "hbm_read_bytes" in tables["instructions"].column_names,
            steps=source.steps(),
        )
    )
    return Profile(metadata=metadata, issues=log.issues(), **tables)


def _read_table(source: ExplorerSource, name: str, log: IssueLog) -> pa.Table | None:
    """One table, all its files joined; None where the directory has none."""
    parts = []
    for file, count, columns in source.files.columns(VENDOR_TABLES[name].explorer, source.wanted(name)):
        if name == "sources" and source.marker is None:
            _add_functions(columns, source.files, count)
        parts.append(source.typed(name, file, count, columns, log))
    if len(parts) < 2:
        return parts[0] if parts else None
    return pa.concat_tables(parts, promote_options="default").unify_dictionaries()


def _add_functions(columns: Columns, files: ParquetDirectory, count: int) -> None:
    """function_name of each row from KernelStackFrames, by physical core and frame; file and line where a row has none."""
    wanted = {name: (name,) for name in ("stack_frame_id", "pcore_idx", "file_path", "line_number")}
    wanted["function_name"] = ("fully_qualified_function_name",)
    raw: dict[str, RawColumn] = {column: array for column, (_, array) in columns.items()}
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
            if own is not None:
                mine = integers(own)[0] if part == "line_number" else names(own)
                looked_up = pc.coalesce(plain(mine), plain(looked_up))
            raw[part] = looked_up
            columns[part] = (part, looked_up)


_FRAME_MASK = 2**48 - 1


def _frame_keys(columns: Mapping[str, RawColumn], count: int) -> npt.NDArray[np.int64]:
    """Physical core and frame of each row in one number; frames are small counts (48 bits)."""
    frames = int64_of(pa.chunked_array([integers(columns["stack_frame_id"])[0]]), null=-1) & _FRAME_MASK
    owners = np.zeros(count, np.int64)
    if "pcore_idx" in columns:
        owners = int64_of(pa.chunked_array([cores(columns["pcore_idx"])[0]]), null=-1)
    return frames | (owners + 1) << 48

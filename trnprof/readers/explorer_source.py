"""One Explorer directory, opened: what it says of itself, and how a part of one of its tables becomes typed rows.

Both ways of reading it start here: whole (explorer_parquet) and in batches (explorer_batches).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from trnprof.errors import InputDataError
from trnprof.profile import TABLE_SPECS, Step
from trnprof.readers.assembly import Conversion, MissingColumnError, Window, typed_table
from trnprof.readers.cells import RawColumn, cores, exact_number, integers, names
from trnprof.readers.issue_log import IssueLog
from trnprof.readers.marker import MARKER_NAME, Marker, read_marker
from trnprof.readers.parquet_directory import ParquetDirectory, find_directory, reading
from trnprof.readers.vendor_metadata import VendorFacts
from trnprof.readers.vendor_tables import SCHEMA_MAJOR, VENDOR_TABLES, scale_to, unit_of

FORMAT = "explorer-parquet"

MAX_STEPS = 10_000
"""Executions in one profile up to which each is a step."""

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
Columns = dict[str, tuple[str, pa.Array]]
"""Profile column -> (its name in the file, its values)."""


@dataclass(frozen=True)
class ExplorerSource:
    """One Explorer directory."""

    files: ParquetDirectory
    units: Mapping[tuple[str, str], str]
    """(table, field) -> unit, as the profile's own SchemaFields table says."""
    facts: VendorFacts
    version: str | None
    """Of its schema."""
    marker: Marker | None
    """What trnprof said when it wrote the directory; None: the vendor's."""
    how: Conversion

    def holds(self, name: str) -> bool:
        """Does the directory have files of the table (that trnprof wrote as such, if it wrote them)?"""
        return (self.marker is None or name in self.marker.columns) and self.files.holds(VENDOR_TABLES[name].explorer)

    def cores_of_sources(self) -> set[int]:
        """The physical cores that the table of sources names, which no other reader of batches looks at."""
        only, found = ("kernel_instruction_name", "pcore_idx"), set()
        if self.holds("sources"):
            for file, count, columns in self.files.batches(
                VENDOR_TABLES["sources"].explorer, self.wanted("sources", only)
            ):
                table = self.typed("sources", file, count, columns, IssueLog(), only=only)
                found |= set(table["pcore_idx"].unique().to_pylist()) if "pcore_idx" in table.column_names else set()
        return {core for core in found if core is not None}

    def wanted(self, name: str, only: Collection[str] | None = None) -> dict[str, tuple[str, ...]]:
        """Profile column -> names under which a file may have it, for every column (or those of `only`) to look for."""
        vendor = VENDOR_TABLES[name]
        if self.marker:
            captured: Collection[str] = self.marker.columns.get(name, ())
        else:
            captured = [c for c in TABLE_SPECS[name].columns if c not in vendor.own or c == "pcore_idx"]
        found = {column: vendor.names_of(column) for column in captured if only is None or column in only}
        if "end_ts" in found:
            found["duration_ns"] = vendor.names_of("duration_ns")
        return found

    def typed(
        self,
        name: str,
        file: Path,
        count: int,
        columns: Columns,
        log: IssueLog,
        *,
        only: Collection[str] | None = None,
    ) -> pa.Table:
        """A part of one table, as read from `file`, in Profile's columns; rows that make no sense left out.

        only: columns that the caller has asked for; None: all that a Profile has, and what is derived from them.

        Raises: InputDataError for a required column that is missing, in an unknown unit or without its nanoseconds.
        """
        explorer = VENDOR_TABLES[name].explorer
        scales: dict[str, Scale] = {}
        for column, (field, _) in list(columns.items()):
            unit = unit_of(column)
            declared = self.units.get((explorer, field))
            if unit is None or declared is None:
                continue
            scale = scale_to(unit, declared)
            if scale is not None:
                scales[column] = scale
                continue
            if column in TABLE_SPECS[name].required:
                raise InputDataError(
                    f"{explorer}.{field} is in {declared[:40]!r}, not a unit of {unit} that trnprof knows; "
                    "convert with another neuron-explorer version",
                    path=file,
                )
            log.add("DQ016", 1, f"{explorer}.{field} left out: its unit is not known")
            del columns[column]
        raw: dict[str, RawColumn] = {column: array for column, (_, array) in columns.items()}
        _refuse_lost_nanoseconds(raw, explorer, file)
        try:
            return typed_table(name, raw, count, self.how, log, scales, only=only)
        except MissingColumnError as error:
            raise InputDataError(
                f"{explorer} lacks a plain column {error.column}"
                + (" though the profile has several cores" if error.column == "pcore_idx" else "")
                + f" (its columns: {_shown(file)}); convert with another neuron-explorer version, or give the .ntff",
                path=file,
            ) from None

    def steps(self) -> tuple[Step, ...]:
        """The executions that the profile says it covers, on its own clock, where there are several."""
        if self.marker is not None:
            return self.marker.metadata.steps
        rows = self.files.rows("ExecutionInfo")
        if not 1 < len(rows) <= MAX_STEPS:
            return ()
        found = []
        for place, row in enumerate(rows):
            start, end = (self._execution_time(row, name) for name in ("execution_start_ts", "execution_end_ts"))
            index = exact_number(row.get("execution_index"))
            if start is None:
                return ()
            name = row.get("neff_name")
            found.append(
                Step(
                    index=place if index is None else index,
                    name=name if isinstance(name, str) else "",
                    start_ts=start,
                    end_ts=end,
                )
            )
        return tuple(sorted(found, key=lambda step: (step.start_ts, step.index)))

    def declared_window(self, log: IssueLog) -> Window | None:
        """The one execution's own start and end where ExecutionInfo has them, else the trace's."""
        if self.marker is not None:
            core = self.marker.metadata.cores[0]
            return Window(core.window_start_ts, core.window_end_ts)
        executions = self.files.rows("ExecutionInfo")
        if len(executions) > 1:
            log.add("DQ018", 1, f"{len(executions)} executions in one profile; one window covers them all")
        elif executions:
            start, end = (self._execution_time(executions[0], f"execution_{edge}_ts") for edge in ("start", "end"))
            if start is not None and end is not None:
                return Window(start, end)
        return self.facts.window()

    def _execution_time(self, row: Mapping[str, object], name: str) -> int | None:
        scale = scale_to("nanoseconds", self.units.get(("ExecutionInfo", name), "nanoseconds"))
        return None if scale is None else exact_number(row.get(name), scale)


def open_source(path: Path, log: IssueLog) -> ExplorerSource:
    """The Explorer directory at `path`, or the one such directory that it holds.

    Raises: InputMissingError if nothing can be read there; InputDataError if it holds no Explorer tables, or its marker
            is damaged.
    """
    files = ParquetDirectory(find_directory(path))
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
    return ExplorerSource(files, units, facts, version, marker, how)


def row_count(path: Path) -> int:
    """Rows of all events' tables of an Explorer directory, by its files' footers.

    Raises: InputMissingError, InputDataError as open_source.
    """
    files = ParquetDirectory(find_directory(path))
    tables = [vendor.explorer for name, vendor in VENDOR_TABLES.items() if name != "sources"]
    return sum(files.row_count(table) for table in tables)


def _declared_units(files: ParquetDirectory) -> dict[tuple[str, str], str]:
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
        tensors=list(files.rows("TensorInfo")),
        scales=scales,
    )
    return facts, version if isinstance(version, str) and version else None


def _only_core(files: ParquetDirectory, facts: VendorFacts) -> int | None:
    """The capture's physical core, if it has one only."""
    found = facts.declared_cores()
    for name, vendor in VENDOR_TABLES.items():
        if len(found) > 1:
            return None
        if "pcore_idx" in TABLE_SPECS[name].columns:
            for _, _, columns in files.batches(vendor.explorer, {"pcore_idx": vendor.names_of("pcore_idx")}):
                if "pcore_idx" in columns:
                    found |= {
                        core for core in cores(columns["pcore_idx"][1])[0].unique().to_pylist() if core is not None
                    }
    return min(found, default=0) if len(found) < 2 else None


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


def _shown(file: Path) -> str:
    with reading(file):
        held = pq.read_schema(file).names
    return ", ".join(ascii(name[:40])[1:-1] for name in held[:10]) + (", ..." if len(held) > 10 else "")

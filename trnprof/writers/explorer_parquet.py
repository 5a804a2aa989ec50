"""A Profile as Neuron Explorer's Parquet tables, by the names of schema 7.4.0.

What the schema has a place for stands there; columns that only trnprof has (picoseconds, waits parsed from operands)
stand beside them under Profile's names, and kernel spans in a table of their own, TrnprofKernels. Only columns that the
Profile has are written, so a field that the schema calls required may be missing: nothing is made up to fill it.
SchemaFields lists what was written, with units. Metadata.is_simulation is true for modelled and predicted profiles, and
Metadata.trnprof_marker says that trnprof wrote the file and carries what the schema cannot (see readers/marker.py), so
that reading the directory gives the same Profile back.
"""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trnprof.profile import Metadata, Profile
from trnprof.readers.marker import MARKER_NAME, marker_text
from trnprof.readers.vendor_tables import SCHEMA_VERSION, VENDOR_TABLES, unit_of
from trnprof.writers.output import replaced_directory
from trnprof.writers.vendor_facts import (
    PRINTED_ENGINES,
    clock_ghz,
    is_simulation,
    summary_row,
    unix_time,
    warnings_of,
    window_of,
)

_INT32_FIELDS = frozenset({"packet_idx", "block_id", "k", "n", "value"})
"""Integer fields that schema 7.4.0 declares int32; all its other integers are int64."""


_SCHEMA_FIELDS = pa.schema(
    [
        ("table_name", pa.string()),
        ("table_description", pa.string()),
        ("field_name", pa.string()),
        ("field_description", pa.string()),
        ("field_type", pa.string()),
        ("field_required", pa.bool_()),
        ("field_format", pa.string()),
        ("field_unit", pa.string()),
    ]
)


def write_explorer_parquet(profile: Profile, directory: Path, *, overwrite: bool = False) -> None:
    """Write `directory/<Table>.parquet` for every table that the profile has, and Metadata, Summary, SchemaFields.

    The directory appears whole or not at all. An existing one is replaced only if asked to and if it holds nothing but
    .parquet files.

    Raises: UsageError if it cannot or must not be written.
    """
    tables = {
        VENDOR_TABLES[name].explorer: _vendor_table(name, table)
        for name, table in profile.tables()
        if table is not None
    }
    tables |= _facts_tables(profile)
    tables["SchemaFields"] = _schema_fields(tables)
    with replaced_directory(directory, ".parquet", overwrite=overwrite) as new:
        for name, table in tables.items():
            # Without the arrow schema in the file's footer, the file says what the vendor's says and no more.
            pq.write_table(table, new / f"{name}.parquet", store_schema=False, compression="zstd")


def _vendor_table(name: str, table: pa.Table) -> pa.Table:
    columns: dict[str, pa.ChunkedArray] = {}
    for column in table.column_names:
        values = table[column]
        if pa.types.is_dictionary(values.type):
            values = values.cast(pa.string())
            if column == "engine":
                values = _printed(values)
        elif pa.types.is_integer(values.type):
            fits = column in _INT32_FIELDS and name != "semaphores"
            values = values.cast(pa.int32() if fits else pa.int64())
        columns[column] = values
        if column == "end_ts":
            columns["duration_ns"] = pc.subtract(values, table["start_ts"])
    return pa.table(columns)


def _printed(engines: pa.ChunkedArray) -> pa.ChunkedArray:
    """Engine names as the vendor prints them in Instruction: Tensor, GpSimd."""
    for name, printed in PRINTED_ENGINES.items():
        engines = pc.replace_substring_regex(engines, f"^{re.escape(name)}$", printed)
    return engines


def _facts_tables(profile: Profile) -> dict[str, pa.Table]:
    metadata = profile.metadata
    start, end = window_of(metadata)
    row: dict[str, object] = {
        "profile_schema_version": SCHEMA_VERSION,
        "num_physical_cores": len(metadata.cores),
        "vnc_enabled": len(metadata.cores) > 1,
        "first_hw_timestamp": start,
        "last_hw_timestamp": end,
        "first_ts": unix_time(start),
        "last_ts": unix_time(end),
        "dma_ddr_bandwidth": _float(metadata.dma_bandwidth_bytes_per_s),
        "hbm_ddr_bandwidth": _float(metadata.hbm_bandwidth_bytes_per_s),
        "tensor_engine_clock_freq": clock_ghz(metadata, "tensor"),
        "vector_engine_clock_freq": clock_ghz(metadata, "vector"),
        "scalar_engine_clock_freq": clock_ghz(metadata, "scalar"),
        "gpsimd_engine_clock_freq": clock_ghz(metadata, "gpsimd"),
        "neuroncore_clock_freq": clock_ghz(metadata, "base"),
        "instance_type": metadata.instance_type,
        **{f"{part}_version": metadata.versions.get(part) for part in ("runtime", "collectives", "driver", "compiler")},
        "explorer_version": metadata.versions.get("profiler"),
        "is_simulation": is_simulation(metadata),
    }
    if len(metadata.cores) == 1:
        row["neuroncore_idx"] = metadata.cores[0].neuroncore_idx
        row["neuron_device_idx"] = metadata.cores[0].neuron_device_idx
    row = {name: _encodable(value) for name, value in row.items() if value is not None}
    row[MARKER_NAME] = marker_text(profile)
    tables = {"Metadata": _one_row(row)}
    summary = summary_row(metadata)
    if summary:
        tables["Summary"] = _one_row({str(_encodable(name)): _encodable(value) for name, value in summary.items()})
    if metadata.neff_uuid is not None or metadata.neff_path is not None:
        header = {"uuid": metadata.neff_uuid, "network_name": metadata.neff_path}
        tables["NeffHeader"] = _one_row(
            {name: _encodable(value) for name, value in header.items() if value is not None}
        )
    messages = warnings_of(metadata)
    if messages:
        tables["Warning"] = pa.table({"message": messages, "category": ["Missing Data"] * len(messages)})
    if metadata.static_dma:
        tables["DmaQueuesInfo"] = _queues(metadata)
    if metadata.tensors:
        tables["TensorInfo"] = pa.table(
            {
                "variable_name": [_encodable(tensor.name) for tensor in metadata.tensors],
                "type": [_TENSOR_TYPES[tensor.kind] for tensor in metadata.tensors],
                "size": pa.array([tensor.size_bytes for tensor in metadata.tensors], pa.int64()),
            }
        )
    return tables


_TENSOR_TYPES = {"input": "IN", "output": "OUT", "weight": "WEIGHT"}


def _queues(metadata: Metadata) -> pa.Table:
    queues = metadata.static_dma
    return pa.table(
        {
            "name": [_encodable(queue.name) for queue in queues],
            "type": [_encodable(queue.type) for queue in queues],
            "pcore_idx": pa.array([queue.core for queue in queues], pa.int64()),
            "idx": pa.array([queue.queue_idx for queue in queues], pa.int64()),
            "engine_idx": pa.array([queue.engine_idx for queue in queues], pa.int64()),
        }
    )


def _schema_fields(tables: dict[str, pa.Table]) -> pa.Table:
    own = {f"{vendor.explorer}.{column}" for vendor in VENDOR_TABLES.values() for column in vendor.own}
    rows = []
    for table_name, table in tables.items():
        for part in table.schema:
            kind, form = _field_type(part.type)
            ours = f"{table_name}.{part.name}" in own or table_name.startswith("Trnprof") or part.name == MARKER_NAME
            rows.append(
                {
                    "table_name": table_name,
                    "table_description": "trnprof's own"
                    if table_name.startswith("Trnprof")
                    else f"schema {SCHEMA_VERSION}",
                    "field_name": part.name,
                    "field_description": "trnprof's own" if ours else f"schema {SCHEMA_VERSION}",
                    "field_type": kind,
                    "field_required": False,
                    "field_format": form,
                    "field_unit": _unit(table_name, part.name),
                }
            )
    return pa.Table.from_pylist(rows, schema=_SCHEMA_FIELDS)


def _unit(table: str, column: str) -> str | None:
    if table == "Metadata":
        if column.endswith("_clock_freq"):
            return "gigahertz"
        if column.endswith("_bandwidth"):
            return "bytes_per_second"
        return "nanoseconds" if column.endswith("_hw_timestamp") else None
    if table == "Summary":
        return "seconds" if column.endswith("_time") else "percent" if column.endswith("_percent") else None
    return unit_of(column)


def _field_type(kind: pa.DataType) -> tuple[str, str | None]:
    """(OpenAPI type, format) of an arrow type."""
    if pa.types.is_integer(kind):
        return "integer", str(kind)
    if pa.types.is_floating(kind):
        return "number", "double"
    return ("boolean", None) if pa.types.is_boolean(kind) else ("string", None)


def _one_row(row: dict[str, object]) -> pa.Table:
    return pa.table({name: [value] for name, value in row.items()})


def _float(value: int | None) -> float | None:
    return None if value is None else float(value)


def _encodable(value: object) -> object:
    """Text that UTF-8 can hold (the marker keeps the exact one)."""
    return value.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(value, str) else value

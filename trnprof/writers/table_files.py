"""Tables as a directory of CSV or Parquet files, one a table."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from trnprof.writers.output import replaced_directory


def write_table_files(
    tables: dict[str, pa.Table], directory: Path, suffix: str, *, facts: dict[str, str], overwrite: bool = False
) -> None:
    """Write `directory/<name><suffix>` for each table; the directory appears whole or not at all.

    suffix: .csv or .parquet. facts: what every Parquet file says of itself in its metadata (provenance, tool); CSV has
    no place for that, so a table of the tables should say it.

    Raises: UsageError if the directory cannot be written, or is there and must not be overwritten.
    """
    with replaced_directory(directory, suffix, overwrite=overwrite) as new:
        for name, table in tables.items():
            if suffix == ".csv":
                from pyarrow import csv

                csv.write_csv(_plain(table), new / f"{name}{suffix}")
            else:
                import pyarrow.parquet as pq

                pq.write_table(table.replace_schema_metadata(facts), new / f"{name}{suffix}", compression="zstd")


def _plain(table: pa.Table) -> pa.Table:
    """The table with its dictionary columns as text."""
    fields = [
        pa.field(field.name, field.type.value_type if pa.types.is_dictionary(field.type) else field.type)
        for field in table.schema
    ]
    return table.cast(pa.schema(fields))

"""Read-only SQL on a profile's tables, by DuckDB: no file, no network, no settings, bounded time and memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from trnprof.errors import InputDataError, UsageError
from trnprof.profile import TABLE_SPECS, Profile

if TYPE_CHECKING:
    import duckdb

MEMORY_BYTES = 1 << 30
"""What a query may use beside the profile's tables."""

TIMEOUT_S = 60.0

MAX_RESULT_BYTES = 1 << 30
"""A larger result is no answer; a query for it is refused half-way."""

MAX_SQL_CHARACTERS = 100_000

_BATCH_ROWS = 10_000


@dataclass(frozen=True)
class QueryResult:
    """Rows of a query."""

    table: pa.Table
    more: bool
    """Rows beyond the row limit were left out; how many is not known."""


def query_tables(profile: Profile) -> dict[str, pa.Table]:
    """The tables that a query sees: the profile's by name, with duration_ns where they have a start and an end, and
    `cores`, `summary` (the vendor's metrics, name and value) and `tensors` from the metadata. All times are ns."""
    tables = {}
    for name, table in profile.tables():
        if table is None:
            continue
        if {"start_ts", "end_ts"} <= set(table.column_names):
            table = table.append_column("duration_ns", pc.subtract(table["end_ts"], table["start_ts"]))
        tables[name] = table
    metadata = profile.metadata
    tables["cores"] = pa.Table.from_pylist(
        [vars(core) for core in metadata.cores],
        schema=pa.schema(
            {
                "core": pa.int64(),
                "subgraph": pa.string(),
                "window_start_ts": pa.int64(),
                "window_end_ts": pa.int64(),
                "neuroncore_idx": pa.int64(),
                "neuron_device_idx": pa.int64(),
                "rank": pa.int64(),
                "hbm_read_bytes": pa.int64(),
                "hbm_write_bytes": pa.int64(),
            }
        ),
    )
    numbers = [(name, float(value)) for name, value in metadata.summary.items() if isinstance(value, int | float)]
    tables["summary"] = pa.table(
        {
            "name": pa.array([name for name, _ in numbers], pa.string()),
            "value": pa.array([value for _, value in numbers], pa.float64()),
        }
    )
    tables["tensors"] = pa.Table.from_pylist(
        [vars(tensor) for tensor in metadata.tensors],
        schema=pa.schema({"name": pa.string(), "kind": pa.string(), "size_bytes": pa.int64()}),
    )
    return tables


def run_query(
    profile: Profile,
    sql: str,
    *,
    row_limit: int | None = None,
    timeout_s: float = TIMEOUT_S,
    memory_bytes: int = MEMORY_BYTES,
) -> QueryResult:
    """Run one SELECT (or EXPLAIN, DESCRIBE, SHOW TABLES) on the tables of query_tables.

    row_limit: stop after so many rows. Long functions that DuckDB cannot interrupt may run on after timeout_s; a caller
    that must answer in time has to end the process. memory_bytes bounds DuckDB's own buffers; a process that must not
    grow beyond it should also bound its address space (trnprof.cli.query does both).

    Raises: UsageError for SQL that is wrong, is more than one statement, wants to write or to read a file, or exceeds a
            limit; InputDataError for a table that the capture does not have.
    """
    if len(sql) > MAX_SQL_CHARACTERS:
        raise UsageError(f"a query of {len(sql):,} characters; at most {MAX_SQL_CHARACTERS:,}")
    tables = query_tables(profile)
    with _connection(tables, memory_bytes) as connection:
        timer = threading.Timer(timeout_s, connection.interrupt)
        timer.daemon = True
        timer.start()
        try:
            _check_statement(connection, sql)
            return _rows(connection.sql(sql), row_limit)
        except Exception as error:
            raise _explained(error, profile, tables, timeout_s, memory_bytes) from None
        finally:
            timer.cancel()


@contextmanager
def _connection(tables: dict[str, pa.Table], memory_bytes: int) -> Iterator[duckdb.DuckDBPyConnection]:
    import duckdb

    connection = duckdb.connect(
        ":memory:",
        config={
            "memory_limit": f"{memory_bytes >> 20}MiB",
            "temp_directory": "",  # nothing is spilled to disk
            "threads": 2,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "max_expression_depth": 200,
        },
    )
    try:
        for name, table in tables.items():
            connection.register(name, table)
        # No other variable of this process is a table; no file and no network from here on; and none of it can be undone.
        connection.execute("SET python_enable_replacements = false")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        yield connection
    finally:
        connection.close()


def _check_statement(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        raise UsageError(f"{len(statements)} statements; a query is one SELECT")
    kind = str(statements[0].type).rpartition(".")[2].upper()
    if kind not in ("SELECT", "EXPLAIN"):
        raise UsageError(f"{kind} is not a query; tables are read-only, so a query is one SELECT")


def _rows(relation: Any, row_limit: int | None) -> QueryResult:
    """The relation's rows, read in batches so that a result too large is met before it is all there."""
    if relation is None:
        raise UsageError("the statement has no result; a query is one SELECT")
    # Older releases call it fetch_arrow_reader.
    reader = getattr(relation, "to_arrow_reader", None) or relation.fetch_arrow_reader
    batches, rows, size = [], 0, 0
    stream = reader(_BATCH_ROWS)
    for batch in stream:
        if row_limit is not None and rows + batch.num_rows > row_limit:
            batches.append(batch.slice(0, row_limit - rows))
            return QueryResult(_whole_numbers(pa.Table.from_batches(batches, stream.schema)), more=True)
        batches.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if size > MAX_RESULT_BYTES:
            raise UsageError(f"the result is above {MAX_RESULT_BYTES >> 20} MiB; aggregate, or add LIMIT")
    return QueryResult(_whole_numbers(pa.Table.from_batches(batches, stream.schema)), more=False)


def _whole_numbers(table: pa.Table) -> pa.Table:
    """Sums of int64 come as 128-bit integers, which Arrow has only as decimals: int64 again wherever they fit."""
    for index, field in enumerate(table.schema):
        if pa.types.is_decimal(field.type) and field.type.scale == 0:
            try:
                column = table.column(index).cast(pa.int64())
            except pa.ArrowInvalid:
                continue
            table = table.set_column(index, field.name, column)
    return table


def _explained(
    error: Exception, profile: Profile, tables: dict[str, pa.Table], timeout_s: float, memory_bytes: int
) -> Exception:
    """The error as one line that says what to do; anything that is not the query's fault is passed on."""
    import duckdb

    if isinstance(error, UsageError):
        return error
    text = " ".join(str(error).split("\n\nLINE")[0].split())
    if "INTERRUPT" in text or isinstance(error, duckdb.InterruptException):
        return UsageError(f"the query ran longer than {timeout_s:g} s; narrow it, or raise --timeout")
    if isinstance(error, duckdb.OutOfMemoryException | MemoryError) or "Out of Memory" in text:
        return UsageError(f"the query needs more than {memory_bytes >> 20} MiB; narrow it or aggregate")
    for name in TABLE_SPECS:
        if f"Table with name {name} does not exist" in text and name not in tables:
            there = ", ".join(table for table in tables)
            return InputDataError(
                f"the capture has no table {name} (not captured: its format is {profile.metadata.format}); it has {there}"
            )
    if "file system operations are disabled" in text or ("external" in text.lower() and "disabled" in text):
        return UsageError("a query sees the profile's tables and nothing else: no files, no network, no extensions")
    if isinstance(error, duckdb.Error | OSError | pa.ArrowException | RuntimeError | ValueError):
        return UsageError(f"the query is refused: {text[:600]}")
    return error

"""A query's rows as text, JSON values and CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable
from decimal import Decimal

import pyarrow as pa

from trnprof.query import QueryResult
from trnprof.render.envelope import ANSWER_BYTES, Report, envelope_json
from trnprof.render.text import printable

TEXT_ROWS = 180
"""Rows of text without --full: about 200 lines in all."""

_CELL = 60


def query_json(result: QueryResult, rows: int | None) -> dict[str, object]:
    """The `result` of trnprof.query/1: columns, and each row as a list in their order."""
    table = result.table if rows is None else result.table.slice(0, rows)
    values = [column.to_pylist() for column in table.columns]
    left_out = result.table.num_rows - table.num_rows
    document: dict[str, object] = {
        "columns": [{"name": printable(field.name), "type": str(field.type)} for field in table.schema],
        "rows": [[_json(value) for value in row] for row in zip(*values, strict=True)],
    }
    if left_out or result.more:
        seen = result.table.num_rows
        document["row_count"] = None if result.more else seen
        document["see"] = "--full lists every row; aggregate, or add LIMIT"
    else:
        document["row_count"] = table.num_rows
    return document


def _json(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return printable(value, 400)
    if isinstance(value, dict):
        return {printable(key): _json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_json(entry) for entry in value]
    if isinstance(value, Decimal) and value == value.to_integral_value():
        return int(value)
    return value.hex() if isinstance(value, bytes) else printable(value, 400)


def query_report(result: QueryResult, make: Callable[[dict[str, object]], Report], *, full: bool) -> Report:
    """The report with as many rows as an answer has room for."""
    if full:
        return make(query_json(result, None))
    rows = min(result.table.num_rows, 400)
    report = make(query_json(result, rows))
    while rows and len(envelope_json(report)) > ANSWER_BYTES:
        rows = rows * 3 // 4
        report = make(query_json(result, rows))
    return report


def query_text(result: QueryResult, *, full: bool) -> str:
    """Aligned columns, numbers to the right."""
    table = result.table if full else result.table.slice(0, TEXT_ROWS)
    columns = []
    for field, column in zip(table.schema, table.columns, strict=True):
        cells = [printable(field.name, _CELL), *(_text(value) for value in column.to_pylist())]
        width = max(map(len, cells))
        number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type) or pa.types.is_decimal(field.type)
        columns.append([cell.rjust(width) if number else cell.ljust(width) for cell in cells])
    lines = ["  ".join(row).rstrip() for row in zip(*columns, strict=True)]
    hidden = result.table.num_rows - table.num_rows
    if hidden or result.more:
        lines.append(f"… more rows than the {table.num_rows} shown: --full, or --format csv")
    elif not table.num_rows:
        lines.append("(no rows)")
    return "\n".join(lines) + "\n"


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return printable(value, _CELL)


def query_csv(result: QueryResult) -> str:
    """RFC 4180 text: a header, then each row; null is empty, nested values are text."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(result.table.column_names)
    for batch in result.table.to_batches(max_chunksize=10_000):
        writer.writerows(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    return out.getvalue()

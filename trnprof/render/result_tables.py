"""A JSON report as flat tables, for those who go on in a spreadsheet or a notebook."""

from __future__ import annotations

import pyarrow as pa

Row = dict[str, object]

_IDENTITIES = ("input", "core")
"""Scalars of an entry that name it in the tables of what lies inside it."""


def result_tables(document: Row) -> dict[str, pa.Table]:
    """One table for each list in the report, and for each group of like things (engines); {name: table}.

    An entry's nested figures become columns, joined by a point (parts_ns.idle). A list inside an entry becomes a table
    of its own whose rows carry the entry's input and core. The result's lists are named result_..., so that they are
    not taken for the capture's tables.
    """
    rows: dict[str, list[Row]] = {}
    for name in ("inputs", "data_quality", "findings"):
        for entry in document[name]:  # type: ignore[attr-defined]
            _flatten(entry, name, {}, rows)
    _flatten(document["result"], "result", {}, rows)  # type: ignore[arg-type]
    return {name: _table(entries) for name, entries in rows.items() if any(entries)}


def _flatten(node: Row, name: str, parents: Row, rows: dict[str, list[Row]]) -> None:
    """Add `node` as a row of the table `name`, and what is inside it as rows of further tables."""
    own = parents | {key: node[key] for key in _IDENTITIES if key in node}
    row = dict(own)
    rows.setdefault(name, []).append(row)
    _columns(node, "", name, own, row, rows)


def _columns(node: Row, prefix: str, name: str, own: Row, row: Row, rows: dict[str, list[Row]]) -> None:
    for key, value in node.items():
        column = f"{prefix}{key}"
        inside = f"result_{key}" if name.startswith("result") else f"{name}_{key}"
        if isinstance(value, dict) and value and all(isinstance(entry, dict) for entry in value.values()):
            for entry_name, entry in value.items():
                _flatten({"name": entry_name} | entry, inside, own, rows)
        elif isinstance(value, dict):
            _columns(value, f"{column}.", name, own, row, rows)
        elif isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
            for entry in value:
                _flatten(entry, inside, own, rows)
        elif isinstance(value, list):
            row |= {f"{column}.{index}": entry for index, entry in enumerate(value) if not isinstance(entry, list)}
        else:
            row[column] = value


def _table(rows: list[Row]) -> pa.Table:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pa.table({name: _column([row.get(name) for row in rows]) for name in names})


def _column(values: list[object]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([None if value is None else str(value) for value in values])

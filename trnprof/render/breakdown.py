"""A breakdown as JSON, text and Markdown: rows by cost, a rest row that sums, and a total."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trnprof.analyzers.account_sets import NOT_ATTRIBUTED
from trnprof.render.envelope import ANSWER_BYTES, Report, envelope_json, with_short_head
from trnprof.render.markdown import escaped
from trnprof.render.text import WIDTH, byte_count, duration, printable, rate, table, wrapped

Row = dict[str, object]

TEXT_ROWS = 12
"""Rows that a table has in text and Markdown without --full."""


@dataclass(frozen=True)
class Column:
    """One column of a breakdown's tables."""

    key: str
    header: str
    kind: str
    """text, ns, count, bytes, rate, number, ns_range, rate_range."""
    sums: bool = False
    """Does the rest row, and the total, add it up?"""


@dataclass(frozen=True)
class BreakdownTable:
    """One table: of one core, or of all of them."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    """Dearest first; each has every column's key. Names may be untrusted."""
    core: int | None = None
    """None: over all cores."""
    notes: tuple[str, ...] = ()

    def total(self) -> Row:
        """The sums over all rows."""
        return _sums(self.rows, self.columns)


@dataclass(frozen=True)
class BreakdownView:
    """One capture's breakdown by one key."""

    path: str
    provenance: str
    by: str
    tables: tuple[BreakdownTable, ...]
    missing: str | None = None
    """What was not captured, so that there are no tables."""


def _sums(rows: tuple[Row, ...], columns: tuple[Column, ...]) -> Row:
    return {
        column.key: sum(value for row in rows if isinstance(value := row[column.key], int))
        for column in columns
        if column.sums
    }


def _shortened(rows: tuple[Row, ...], columns: tuple[Column, ...], limit: int) -> list[Row]:
    """The first rows and one that sums the others; what is not attributed is always shown."""
    if len(rows) <= limit:
        return list(rows)
    names = columns[0].key
    kept = list(rows[: limit - 1])
    hidden = list(rows[limit - 1 :])
    unnamed = [row for row in hidden if row[names] == NOT_ATTRIBUTED]
    kept += unnamed
    hidden = [row for row in hidden if row[names] != NOT_ATTRIBUTED]
    if hidden:
        rest: Row = {column.key: None for column in columns}
        kept.append(rest | {names: f"rest ({len(hidden)})"} | _sums(tuple(hidden), columns))
    return kept


def breakdown_json(views: list[BreakdownView], *, rows: int | None, tables: int | None = None) -> Row:
    """The `result` of trnprof.breakdown/1; None is no limit. Tables of a core come in the order of cores."""
    entries: list[Row] = []
    for index, view in enumerate(views):
        for entry in view.tables:
            shown = list(entry.rows) if rows is None else _shortened(entry.rows, entry.columns, rows)
            document: Row = {"input": index, "core": entry.core, "title": entry.title, "row_count": len(entry.rows)}
            entries.append(document | {"rows": [_json(row) for row in shown], "total": entry.total()})
    result: Row = {"by": views[0].by, "tables": entries[:tables]}
    if tables is not None and len(entries) > tables:
        result["tables_rest"] = {"count": len(entries) - tables, "see": "--full lists every table"}
    missing = {index: view.missing for index, view in enumerate(views) if view.missing is not None}
    if missing:
        result["missing"] = [{"input": index, "what": what} for index, what in missing.items()]
    notes = list(dict.fromkeys(note for view in views for entry in view.tables for note in entry.notes))
    if notes:
        result["notes"] = notes
    return result


def _json(value: object) -> object:
    if isinstance(value, dict):
        return {key: _json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_json(entry) for entry in value]
    if isinstance(value, str):
        return printable(value)
    return round(value, 6) if isinstance(value, float) else value


def breakdown_report(views: list[BreakdownView], make: Callable[[Row], Report], *, full: bool) -> Report:
    """The report with as many rows as an answer has room for: fewer rows a table first, then fewer tables."""
    if full:
        return make(breakdown_json(views, rows=None))
    limits: list[tuple[int, int | None]] = [(rows, None) for rows in (20, 12, 8, 5, 3, 2)]
    limits += [(2, tables) for tables in (16, 8, 4, 2, 1)]
    report = make(breakdown_json(views, rows=limits[0][0]))
    for rows, tables in limits:
        report = with_short_head(make(breakdown_json(views, rows=rows, tables=tables)))
        if len(envelope_json(report)) <= ANSWER_BYTES:
            break
    return report


_FORMATS: dict[str, Callable[[object], str]] = {
    "text": lambda value: printable(value, 46),
    "ns": lambda value: duration(round(value)) if isinstance(value, int | float) else "",
    "count": lambda value: f"{value:,}" if isinstance(value, int) else "",
    "bytes": lambda value: byte_count(round(value)) if isinstance(value, int | float) else "",
    "rate": lambda value: rate(value) if isinstance(value, int | float) else "",
    "number": lambda value: f"{value:,.4g}" if isinstance(value, int | float) else "",
    "ns_range": lambda value: _range(_rounded, value),
    "rate_range": lambda value: _range(rate, value),
}


def _rounded(ns: int) -> str:
    """A bound of a range needs no more than three digits: 4.31 ms."""
    number, unit = duration(ns).split(" ")
    return f"{float(number.replace(',', '')):.3g} {unit}"


def _range(shown: Callable[[int], str], value: object) -> str:
    """[low, high] with the unit once where it is the same: 4.308–9.888 ms."""
    if not isinstance(value, list):
        return ""
    low, high = map(shown, value)
    if low == high:
        return low
    number, _, unit = low.partition(" ")
    return f"{number}–{high}" if high.endswith(f" {unit}") else f"{low}–{high}"


def _cells(row: Row, columns: tuple[Column, ...]) -> list[str]:
    return [
        "n/a" if row[column.key] is None and not str(row[columns[0].key]).startswith("rest (") else _cell(row, column)
        for column in columns
    ]


def _cell(row: Row, column: Column) -> str:
    value = row[column.key]
    return "" if value is None else _FORMATS[column.kind](value)


def breakdown_text(view: BreakdownView, *, full: bool) -> str:
    """The tables for a terminal of 80 columns."""
    blocks = [f"{printable(view.path)}\n  by {view.by}  ·  provenance {view.provenance}"]
    if view.missing is not None:
        blocks.append(wrapped(f"not captured: {view.missing}", indent="  "))
    for entry in view.tables:
        place = "all cores" if entry.core is None else f"core {entry.core}"
        rows = list(entry.rows) if full else _shortened(entry.rows, entry.columns, TEXT_ROWS)
        if not rows:
            blocks.append(f"{place}: {entry.title}\n  nothing")
            continue
        cells = [_cells(row, entry.columns) for row in rows]
        total = entry.total()
        if total and len(rows) > 1:
            first = entry.columns[0].key
            cells.append(
                [_cell({c.key: total.get(c.key) for c in entry.columns} | {first: "= total"}, c) for c in entry.columns]
            )
        blocks.append(f"{place}: {entry.title}\n" + _text_table(entry.columns, cells))
    notes = dict.fromkeys(note for entry in view.tables for note in entry.notes)
    blocks.append("\n".join(wrapped(printable(note, 500), indent="    ", first="  ") for note in notes))
    return "\n\n".join(block for block in blocks if block) + "\n"


def _text_table(columns: tuple[Column, ...], cells: list[list[str]]) -> str:
    """Aligned columns; what is text at the end of a line stands to the left and is cut to the terminal's width."""
    header = [column.header for column in columns]
    leading = 0
    while leading < len(columns) and columns[leading].kind == "text":
        leading += 1
    if columns[-1].kind == "text" and leading < len(columns):
        taken = sum(max(len(row[index]) for row in [header, *cells]) + 2 for index in range(len(columns) - 1)) + 2
        room = max(8, WIDTH - taken)
        last = [printable(row[-1], room) for row in [header, *cells]]
        width = max(map(len, last))
        header, *cells = [[*row[:-1], text.ljust(width)] for row, text in zip([header, *cells], last, strict=True)]
    return table(header, cells, left=leading)


def breakdown_markdown(view: BreakdownView, *, full: bool) -> str:
    """The same as Markdown tables."""
    lines = [f"# {escaped(view.path)} by {view.by}", "", f"provenance {view.provenance}", ""]
    if view.missing is not None:
        lines += [f"Not captured: {escaped(view.missing)}", ""]
    for entry in view.tables:
        place = "All cores" if entry.core is None else f"Core {entry.core}"
        rows = list(entry.rows) if full else _shortened(entry.rows, entry.columns, TEXT_ROWS)
        lines += [f"## {place}: {entry.title}", "", "| " + " | ".join(c.header for c in entry.columns) + " |"]
        lines.append("|" + "|".join("---" if c.kind == "text" else "---:" for c in entry.columns) + "|")
        lines += ["| " + " | ".join(escaped(cell) for cell in _cells(row, entry.columns)) + " |" for row in rows]
        lines.append("")
    lines += [escaped(note) for note in dict.fromkeys(note for entry in view.tables for note in entry.notes)]
    return "\n".join(lines).rstrip() + "\n"

"""Data quality as text: it stands above every number."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from trnprof.findings import DataQuality, Severity
from trnprof.render.markdown import escaped
from trnprof.render.text import printable, wrapped

_SIGN = {Severity.ERROR: "x", Severity.WARNING: "!", Severity.INFO: "·"}


def quality_lines(entries: tuple[DataQuality, ...]) -> str:
    """One paragraph an entry, with what to do about it; empty for none."""
    if not entries:
        return ""
    lines = ["data quality"]
    for entry in entries:
        count = "" if entry.count is None else f" ({entry.count:,})"
        lines.append(
            wrapped(
                f"{entry.code}{count} {printable(entry.message, 400)}",
                indent="      ",
                first=f"  {_SIGN[entry.severity]} ",
            )
        )
        if entry.severity is not Severity.INFO:
            lines.append(wrapped(entry.fix, indent="      ", first="      → "))
    return "\n".join(lines)


def quality_markdown(entries: tuple[DataQuality, ...]) -> list[str]:
    """A table of the entries, as lines; none for none."""
    if not entries:
        return []
    lines = ["| data quality | count | what | what to do |", "|---|---:|---|---|"]
    for entry in entries:
        count = "" if entry.count is None else f"{entry.count:,}"
        lines.append(f"| {entry.code} | {count} | {escaped(entry.message)} | {escaped(entry.fix)} |")
    return [*lines, ""]


def merged_quality(found: Iterable[tuple[str, DataQuality]]) -> list[DataQuality]:
    """(capture, entry) of several captures as one entry for each thing said, with the captures that it is said of."""
    captures: dict[DataQuality, list[str]] = {}
    everywhere: set[str] = set()
    for capture, entry in found:
        captures.setdefault(entry, []).append(capture)
        everywhere.add(capture)
    return [
        replace(
            entry,
            message=f"{'all captures' if len(set(of)) == len(everywhere) > 1 else ', '.join(of)}: {entry.message}",
        )
        for entry, of in captures.items()
    ]

"""Data quality as text: it stands above every number."""

from __future__ import annotations

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

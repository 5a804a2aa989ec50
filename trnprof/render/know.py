"""Knowledge entries as JSON, text and Markdown."""

from __future__ import annotations

from trnprof.knowledge import Knowledge
from trnprof.render.envelope import ANSWER_BYTES, Report, envelope_json
from trnprof.render.markdown import escaped
from trnprof.render.text import printable, wrapped

_NOTE = "figures of the named systems: a place to look, never a promise for another one"
_TEXT_ENTRIES = 8


def know_report(found: tuple[Knowledge, ...], query: str, *, full: bool) -> Report:
    """The report with as many entries as an answer has room for; of the others the ids."""
    shown = len(found)
    while True:
        rest = found[shown:]
        result: dict[str, object] = {
            "query": printable(query, 200),
            "entry_count": len(found),
            "note": _NOTE,
            "entries": [
                vars(entry) | {"skills": list(entry.skills), "tags": list(entry.tags)} for entry in found[:shown]
            ],
            "rest_ids": [entry.id for entry in rest],
        }
        report = Report(command="know", result=result)
        if full or shown == 0 or len(envelope_json(report)) <= ANSWER_BYTES:
            return report
        shown -= 1


def know_text(found: tuple[Knowledge, ...], query: str) -> str:
    """A paragraph an entry; ids only of what goes beyond a screen."""
    if not found:
        return f"nothing is known by {printable(query, 200)!r}; `trnprof know` lists all of it\n"
    lines = []
    for entry in found[:_TEXT_ENTRIES]:
        lines.append(wrapped(f"{entry.outcome}  {entry.id}", indent="  "))
        lines.append(wrapped(f"{entry.what}.", indent="    ", first="    "))
        for name in ("where", "result", "why", "source"):
            lines.append(wrapped(f"{name}: {getattr(entry, name)}", indent="      ", first="    "))
        lines.append("")
    rest = found[_TEXT_ENTRIES:]
    if rest:
        lines.append(wrapped(f"and {len(rest)} more: {', '.join(entry.id for entry in rest)}", indent="  "))
    return "\n".join([*lines, wrapped(_NOTE, indent="  ")]) + "\n"


def know_markdown(found: tuple[Knowledge, ...]) -> str:
    """One table."""
    lines = ["| outcome | what | where | result | why | source |", "|---|---|---|---|---|---|"]
    for entry in found:
        cells = (entry.outcome, entry.what, entry.where, entry.result, entry.why, entry.source)
        lines.append("| " + " | ".join(escaped(cell) for cell in cells) + " |")
    return "\n".join([*lines, "", _NOTE]) + "\n"

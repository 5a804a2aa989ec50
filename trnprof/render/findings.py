"""Findings as JSON, text and Markdown: what it costs, and the ceiling that no change of its kind can win more than."""

from __future__ import annotations

import dataclasses

from trnprof.findings import Finding
from trnprof.render.markdown import escaped
from trnprof.render.text import duration, percent, printable, wrapped


def finding_json(finding: Finding) -> dict[str, object]:
    """One entry of the envelope's `findings`; names from a capture become printable."""
    entry = {field.name: getattr(finding, field.name) for field in dataclasses.fields(finding)}
    return entry | {"evidence": _printable(finding.evidence)}


def _printable(value: object) -> object:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(key): _printable(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(entry) for entry in value]
    return value


def findings_text(findings: tuple[Finding, ...]) -> str:
    """A paragraph a finding, the highest ceiling first; empty for none."""
    if not findings:
        return ""
    lines = ["findings (a ceiling is the most that a change of its kind alone can save)"]
    for finding in findings:
        lines.append(wrapped(f"{finding.code}  {finding.title}: {_cost(finding)}", indent="          ", first="  "))
        lines.append(wrapped(_evidence(finding), indent="          "))
        lines.append(wrapped(f"→ {finding.advice}", indent="            ", first="          "))
    return "\n".join(lines)


def _cost(finding: Finding) -> str:
    parts = []
    if finding.cost_ns is not None:
        share = "" if finding.share is None else f" ({100 * finding.share:.1f} % of the window)"
        parts.append(f"{duration(finding.cost_ns)}{share}")
    if finding.ceiling_ns is not None:
        parts.append(
            "nothing to win: other work covers it"
            if not finding.ceiling_ns
            else f"ceiling {duration(finding.ceiling_ns)}"
        )
    return ", ".join(parts) or "cost not known"


def _evidence(finding: Finding) -> str:
    """The evidence as `name value` pairs, times with their unit."""
    return "; ".join(
        f"{printable(name.removesuffix('_ns').replace('_', ' '))} {_shown(name, value)}"
        for name, value in finding.evidence.items()
        if name != "cost_ns_by_core" or len(finding.evidence[name]) > 1  # type: ignore[arg-type]
    )


def _shown(name: str, value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{printable(key)}: {_shown('_ns', entry)}" for key, entry in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_shown(name, entry) for entry in value) or "none"
    if isinstance(value, int) and name.endswith("_ns"):
        return duration(value)
    if isinstance(value, int):
        return f"{value:,}"
    return "not known" if value is None else printable(value)


def findings_markdown(findings: tuple[Finding, ...]) -> list[str]:
    """A table of the findings, as lines; none for none."""
    if not findings:
        return []
    lines = ["| finding | what | cost ns | of window | ceiling ns | what to do |", "|---|---|---:|---:|---:|---|"]
    for finding in findings:
        cost = "" if finding.cost_ns is None else f"{finding.cost_ns:,}"
        share = "" if finding.share is None else percent(round(finding.share * 10_000), 10_000)
        ceiling = "" if finding.ceiling_ns is None else f"{finding.ceiling_ns:,}"
        lines.append(
            f"| {finding.code} | {escaped(finding.title)} | {cost} | {share} | {ceiling} | {escaped(finding.advice)} |"
        )
    return [*lines, ""]

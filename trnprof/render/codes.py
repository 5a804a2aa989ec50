"""docs/codes.md from the registry: `python -m trnprof.render.codes > docs/codes.md`; a test keeps them equal."""

from __future__ import annotations

from trnprof.finding_codes import FINDING_CODES
from trnprof.findings import DATA_QUALITY_CODES


def codes_markdown() -> str:
    """The page of every stable code: cause, what may still be believed, what to do."""
    lines = [
        "# Codes",
        "",
        "Codes are stable: a script may test for them. Data-quality codes (`DQ...`) are printed above every number; with",
        "`--strict` a warning or an error makes the exit code 1. `info` entries never do. Findings say what holds a step",
        "back. A finding's cost is what the symptom takes; its ceiling is what no change of that kind alone can save more",
        "than. Neither is a promised gain: judge every change on the whole step (`trnprof diff`).",
        "",
    ]
    for entry in DATA_QUALITY_CODES.values():
        lines += [
            f"## {entry.code}: {entry.title}",
            "",
            f"Severity: {entry.severity}.",
            "",
            f"* Cause: {entry.cause}",
            f"* What it means for the numbers: {entry.effect}",
            f"* What to do: {entry.fix}",
            "",
        ]
    for finding in FINDING_CODES.values():
        lines += [
            f"## {finding.code}: {finding.title}",
            "",
            f"* Cause: {finding.cause}",
            f"* Raised when, in shares of the core's window: {finding.threshold}",
            f"* Cost: {finding.cost}",
            f"* Ceiling: {finding.ceiling}",
            f"* What to do: {finding.advice}",
            "",
        ]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    print(codes_markdown(), end="")

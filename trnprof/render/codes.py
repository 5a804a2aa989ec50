"""docs/codes.md from the registry: `python -m trnprof.render.codes > docs/codes.md`; a test keeps them equal."""

from __future__ import annotations

from trnprof.findings import DATA_QUALITY_CODES


def codes_markdown() -> str:
    """The page of every stable code: cause, what may still be believed, what to do."""
    lines = [
        "# Codes",
        "",
        "Codes are stable: a script may test for them. Data-quality codes (`DQ...`) are printed above every number; with",
        "`--strict` a warning or an error makes the exit code 1. `info` entries never do.",
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
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    print(codes_markdown(), end="")

"""The one JSON envelope of every command, errors too (DESIGN.md section 5)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path

from trnprof.findings import DataQuality, Finding
from trnprof.render.findings import finding_json
from trnprof.version import __version__

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class InputFile:
    """One input of a command."""

    path: str
    """As the user gave it, never made absolute."""
    format: str
    sha256: str
    provenance: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """A command's result, before it becomes text."""

    command: str
    inputs: tuple[InputFile, ...] = ()
    hardware: dict[str, object] | None = None
    data_quality: tuple[DataQuality, ...] = ()
    result: dict[str, object] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


def envelope_json(report: Report) -> str:
    """The report as strict JSON (no NaN, sorted by construction), one line break at its end."""
    return _dump(
        {
            "schema": f"trnprof.{report.command}/{SCHEMA_VERSION}",
            "tool": {"name": "trnprof", "version": __version__},
            "inputs": [vars(entry) for entry in report.inputs],
            "hardware": report.hardware,
            "data_quality": [
                {
                    "code": entry.code,
                    "severity": str(entry.severity),
                    "message": entry.message,
                    "count": entry.count,
                    "fix": entry.fix,
                }
                for entry in report.data_quality
            ],
            "result": report.result,
            "findings": [finding_json(finding) for finding in report.findings],
            "error": None,
        }
    )


ANSWER_BYTES = 8192
"""What an answer as JSON takes by default, for an agent's sake; --full has no bound."""

SPILL_BYTES = 32 * 1024
"""A JSON answer above this goes to a file, with a pointer to it in the answer (docs/decisions/0006)."""

_INPUTS_SHOWN = 4
_MESSAGE_CHARACTERS = 320


def with_short_head(report: Report) -> Report:
    """The report with few inputs and one data-quality entry a code: what a folder of 64 ranks says 64 times over.

    What was left out is counted in `result.inputs_rest`, and in the entry's own count and message.
    """
    merged: dict[str, list[DataQuality]] = {}
    for entry in report.data_quality:
        merged.setdefault(entry.code, []).append(entry)
    few = report.data_quality if len(report.data_quality) <= _INPUTS_SHOWN else map(_merged, merged.values())
    quality = tuple(replace(entry, message=_cut(entry.message)) for entry in few)
    if len(report.inputs) <= _INPUTS_SHOWN:
        return replace(report, data_quality=quality)
    rest = {"count": len(report.inputs) - _INPUTS_SHOWN, "see": "--full lists every input"}
    return replace(
        report,
        inputs=report.inputs[:_INPUTS_SHOWN],
        data_quality=quality,
        result=report.result | {"inputs_rest": rest},
    )


def _merged(entries: list[DataQuality]) -> DataQuality:
    first = entries[0]
    if len(entries) == 1:
        return first
    counts = [entry.count for entry in entries if entry.count is not None]
    count = sum(counts) if counts else None
    return replace(
        first, count=count, message=f"{_cut(first.message)} (and {len(entries) - 1} more entries of this code)"
    )


def _cut(text: str) -> str:
    return text if len(text) <= _MESSAGE_CHARACTERS else f"{text[:_MESSAGE_CHARACTERS]}…"


def within_answer(report: Report) -> Report:
    """The report without the findings of the lowest ceilings that an answer has no room for; how many is in the result."""
    report = shorter = with_short_head(report)
    for kept in range(len(report.findings) - 1, -1, -1):
        if len(envelope_json(shorter)) <= ANSWER_BYTES:
            break
        rest = {"count": len(report.findings) - kept, "see": "--full lists every finding"}
        shorter = replace(report, findings=report.findings[:kept], result=report.result | {"findings_rest": rest})
    return shorter


def error_json(command: str, *, kind: str, message: str, path: str | None, exit_code: int, code: str | None) -> str:
    """The envelope of a command that failed."""
    return _dump(
        {
            "schema": f"trnprof.{command}/{SCHEMA_VERSION}",
            "tool": {"name": "trnprof", "version": __version__},
            "inputs": [],
            "hardware": None,
            "data_quality": [],
            "result": None,
            "findings": [],
            "error": {"kind": kind, "message": message, "path": path, "exit_code": exit_code, "code": code},
        }
    )


def sha256_of(path: Path) -> str:
    """Content hash of a file, or of a directory's files by name."""
    digest = hashlib.sha256()
    if not path.is_dir():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    for child in sorted(child for child in path.rglob("*") if child.is_file()):
        digest.update(str(child.relative_to(path)).encode("utf-8", "surrogateescape") + b"\0")
        with child.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _dump(document: dict[str, object]) -> str:
    # One line a top-level key, compact inside: small for an agent, and still a diff that can be read. Names from a
    # capture may hold lone surrogates, which are no JSON text: ASCII escapes carry them.
    lines = [
        f"{json.dumps(key)}:{json.dumps(value, allow_nan=False, separators=(',', ':'))}"
        for key, value in document.items()
    ]
    return "{" + ",\n ".join(lines) + "}\n"

"""The vendor's summary (`--output-format summary-json` or `summary-text`) as a Profile without tables.

A summary has one total per metric for the whole logical core, and no events. From it `anatomy` can give the window, the
memory floor (HBM bytes) and the vendor's own active times beside it. It cannot split the window: overhead, busy beyond
floor, waits, exposed collectives and idle are not captured, nor is anything per physical core, opcode, line or queue,
and two summaries can be compared by their totals only. The profile's one core stands for the whole logical core.

JSON: an object of one model id -> metrics (or the metrics themselves, or a list with one of either). Text: a line with
the model id, then indented lines of `metric   value`; whatever the terminal printed before it is skipped.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from pathlib import Path

from trnprof.errors import InputDataError
from trnprof.profile import Profile
from trnprof.readers.assembly import Window
from trnprof.readers.issue_log import IssueLog
from trnprof.readers.json_file import parse_json, read_maybe_gzip
from trnprof.readers.vendor_metadata import Row, VendorFacts, build_metadata

MAX_BYTES = 16 << 20
"""A summary is a few kilobytes; anything larger is something else."""

_METRIC = re.compile(r"[ \t]*([a-z][a-z0-9_*]{0,80})(?:  |\t)[ \t]*(\S[^\r\n]{0,400})")
_INTEGER = re.compile(r"[+-]?\d{1,400}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][+-]?\d{1,3})?", re.ASCII)
_NOT_FINITE = re.compile(r"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)


def read_summary(path: Path) -> Profile:
    """The summary in a file, JSON or text: metadata only, every table None.

    The window is `total_time`, from seconds to whole nanoseconds in decimal arithmetic, rounded down.

    Raises: InputMissingError if it cannot be read; InputDataError if it is no summary, holds several (one per model),
            or lacks a usable total_time.
    """
    data = read_maybe_gzip(path)
    if len(data) > MAX_BYTES:
        raise InputDataError(f"{len(data):,} bytes are no summary; give the profiler's summary output", path=path)
    log = IssueLog()
    if data.lstrip()[:1] in (b"{", b"["):
        value, replaced = parse_json(data, path)
        log.add("DQ020", replaced, "bytes that are not UTF-8")
        metrics, kind = _of_json(value, path), "summary-json"
    else:
        metrics, kind = _of_text(data.decode("utf-8", "replace"), path), "summary-text"
    facts = VendorFacts(summary=metrics)
    if "total_time" not in metrics:
        raise InputDataError(
            "no total_time in it, so no summary of an execution; "
            "give the output of: neuron-explorer view --output-format summary-json",
            path=path,
        )
    total = facts.total_ns()
    if total is None:
        raise InputDataError(
            f"total_time is {str(metrics['total_time'])[:40]!r}, not a time above 0; convert the capture again",
            path=path,
        )
    lost = sum(_is_not_finite(value) for value in metrics.values())
    log.add("DQ020", lost, "metrics that are no finite number")
    metadata = build_metadata(
        facts, format=kind, format_version=None, window=Window(0, total), cores=(0,), totals_by_core=False
    )
    return Profile(metadata=metadata, issues=log.issues())


def _of_json(value: object, path: Path) -> Row:
    """The metrics of the one summary in the value."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, dict) and value and all(isinstance(inner, dict | list) for inner in value.values()):
        inner = list(value.values())
        if len(inner) > 1:
            raise InputDataError(f"{len(inner)} summaries in one file; give one model's", path=path)
        value = inner[0]
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
    if not isinstance(value, dict) or not value:
        raise InputDataError(
            "no summary: a summary is an object of metrics; give the profiler's summary-json", path=path
        )
    return value


def _of_text(text: str, path: Path) -> Row:
    """The metrics of the one summary in the text."""
    metrics: dict[str, object] = {}
    for line in text.splitlines():
        match = _METRIC.fullmatch(line.rstrip())
        if not match:
            continue
        name, value = match[1], match[2].strip()
        if name == "total_time" and name in metrics:
            raise InputDataError("several summaries in one file; give one model's", path=path)
        metrics[name] = _spelled(value)
    if not metrics:
        raise InputDataError("no metric in it; give the output of --output-format summary-text", path=path)
    return metrics


def _spelled(text: str) -> object:
    if _INTEGER.fullmatch(text):
        return int(text)
    return Decimal(text) if _NUMBER.fullmatch(text) else float(text) if _NOT_FINITE.fullmatch(text) else text


def _is_not_finite(value: object) -> bool:
    return isinstance(value, float | Decimal) and not math.isfinite(value)

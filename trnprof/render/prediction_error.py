"""Predicted beside measured, as text, Markdown and a part of the envelope's `result`."""

from __future__ import annotations

from typing import Any

from trnprof.analyzers.prediction_error import PredictionError
from trnprof.render.dma_predict import markdown_table, path_end, range_text
from trnprof.render.markdown import escaped
from trnprof.render.text import duration, printable, table, wrapped

_SHOWN = 12


def prediction_error_json(error: PredictionError, *, full: bool) -> dict[str, Any]:
    """`result.against`: every pair with its error."""
    shown = None if full else _SHOWN
    return {
        "counts": [
            {
                "name": entry.name,
                "unit": entry.unit,
                "predicted": entry.predicted,
                "measured": entry.measured,
                "measured_kind": entry.measured_kind,
                "error_share": _rounded(entry.error_share),
            }
            for entry in error.counts
        ],
        "times": [
            {
                "name": entry.name,
                "predicted_ns": vars(entry.predicted) if entry.predicted else None,
                "measured_ns": entry.measured_ns,
                "within": entry.within,
                "error_share": _rounded(entry.error_share),
            }
            for entry in error.times
        ],
        "packets": [vars(entry) for entry in error.packets[:shown]],
        "packets_rest_count": max(0, len(error.packets) - _SHOWN) if not full else 0,
        "lines": [vars(entry) for entry in error.lines[:shown]],
        "lines_rest_count": max(0, len(error.lines) - _SHOWN) if not full else 0,
        "notes": list(error.notes),
    }


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)


def prediction_error_text(error: PredictionError, path: str) -> str:
    """The comparison for an 80-column terminal."""
    out = [f"predicted against measured in {path_end(path, 40)}:"]
    rows = [
        [entry.name, _count(entry.predicted), _bound(entry.measured, entry.measured_kind), _error(entry.error_share)]
        for entry in error.counts
    ]
    out.append(table(["", "predicted", "measured", "error"], rows))
    for time in error.times:
        predicted = "symbolic" if time.predicted is None else range_text(time.predicted)
        verdict = {None: "", True: ", inside the range", False: ", OUTSIDE the range"}[time.within]
        out.append(
            f"  {time.name}: {predicted}\n    measured {duration(time.measured_ns)}{verdict}, mid {_error(time.error_share)}"
        )
    if error.packets:
        rows = [
            [
                entry.mode,
                f"{entry.bytes:,}",
                f"{entry.predicted:,}",
                f"{entry.measured:,}",
                "" if entry.predicted == entry.measured else "differs",
            ]
            for entry in error.packets[:_SHOWN]
        ]
        out.append(table(["queue", "packet B", "predicted", "measured", ""], rows))
        if len(error.packets) > _SHOWN:
            out.append(f"  and {len(error.packets) - _SHOWN} more sizes (--full)")
    if error.lines:
        rows = [
            [
                printable(line.source, 30),
                _count(line.predicted_bytes),
                _count(line.measured_bytes),
                _count(line.predicted_dma_count),
                _count(line.measured_dma_count),
            ]
            for line in error.lines[:_SHOWN]
        ]
        out.append(table(["line", "pred. B", "meas. B", "pred. DMAs", "meas. DMAs"], rows))
    out += [wrapped(printable(note, 300), indent="    ", first="  - ") for note in error.notes]
    return "\n".join(out) + "\n"


def _count(number: int | None) -> str:
    return "n/a" if number is None else f"{number:,}"


def _bound(number: int | None, kind: str) -> str:
    return _count(number) if kind == "measured" or number is None else f">= {number:,}"


def _error(share: float | None) -> str:
    return "n/a" if share is None else ("exact" if share == 0 else f"{100 * share:+.1f} %")


def prediction_error_markdown(error: PredictionError, path: str) -> str:
    """The comparison as Markdown."""
    out = [f"## Against {escaped(path)}", ""]
    out += markdown_table(
        ["", "predicted", "measured", "error"],
        [
            *(
                [
                    entry.name,
                    _count(entry.predicted),
                    _bound(entry.measured, entry.measured_kind),
                    _error(entry.error_share),
                ]
                for entry in error.counts
            ),
            *(
                [
                    f"{time.name} ns",
                    "symbolic"
                    if time.predicted is None
                    else f"{time.predicted.low:,} .. {time.predicted.mid:,} .. {time.predicted.high:,}",
                    _count(time.measured_ns),
                    _error(time.error_share) + ("" if time.within is not False else ", outside the range"),
                ]
                for time in error.times
            ),
        ],
    )
    out += ["", *markdown_table(
        ["queue", "packet B", "predicted", "measured"],
        [[entry.mode, f"{entry.bytes:,}", f"{entry.predicted:,}", f"{entry.measured:,}"] for entry in error.packets],
    )]  # fmt: skip
    if error.lines:
        out += ["", *markdown_table(
            ["line", "predicted B", "measured B", "predicted DMAs", "measured DMAs"],
            [
                [escaped(line.source), _count(line.predicted_bytes), _count(line.measured_bytes), _count(line.predicted_dma_count), _count(line.measured_dma_count)]
                for line in error.lines
            ],
        )]  # fmt: skip
    out += ["", *(f"- {escaped(note)}" for note in error.notes)]
    return "\n".join(out) + "\n"

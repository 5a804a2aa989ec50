"""A fit as JSON, text and Markdown."""

from __future__ import annotations

from collections.abc import Callable

from trnprof.analyzers.fit import CoreFit, Fit, Line
from trnprof.render.anatomy import PART_NAMES
from trnprof.render.envelope import ANSWER_BYTES, Report, envelope_json, with_short_head
from trnprof.render.markdown import escaped
from trnprof.render.text import duration, percent, printable, table, wrapped

Row = dict[str, object]

TWO_POINTS = "two batch sizes always fit a line: residuals between sizes say nothing"


def fit_json(fit: Fit, *, points: bool, cores: int | None = None) -> Row:
    """The `result` of trnprof.fit/1; points: with each measured step."""
    result: Row = {"sizes": list(fit.sizes), "cores": [_core_json(core, points=points) for core in fit.cores[:cores]]}
    if len(fit.sizes) == 2:
        result["note"] = TWO_POINTS
    hidden = len(fit.cores) - len(fit.cores[:cores])
    if hidden:
        result["cores_rest"] = {"count": hidden, "see": "--full lists every core"}
    return result


def _core_json(core: CoreFit, *, points: bool) -> Row:
    document: Row = {
        "core": core.core,
        "window": _line_json(core.window, points=points),
        "parts": {name: None if line is None else _line_json(line, points=points) for name, line in core.parts.items()},
        "explained_share": None if core.explained_share is None else round(core.explained_share, 6),
    }
    if points:
        document["points"] = [
            {
                "rows": point.rows,
                "capture": printable(point.label),
                "window_ns": point.window_ns,
                "parts_ns": point.parts_ns,
            }
            for point in core.points
        ]
    return document


def _line_json(line: Line, *, points: bool) -> Row:
    document: Row = {
        "fixed_ns": line.fixed_ns,
        "per_row_ns": line.per_row_ps / 1000,
        "largest_residual_ns": line.largest_residual_ns,
    }
    return document | ({"residuals_ns": [residual / 1000 for residual in line.residuals_ps]} if points else {})


def fit_report(fit: Fit, make: Callable[[Row], Report], *, full: bool) -> Report:
    """The report with each measured step where an answer has room for them, else with fewer cores."""
    report = make(fit_json(fit, points=True))
    if full:
        return report
    for points, cores in ((True, None), (False, None), (False, 8), (False, 4), (False, 2), (False, 1)):
        report = with_short_head(make(fit_json(fit, points=points, cores=cores)))
        if len(envelope_json(report)) <= ANSWER_BYTES:
            break
    return report


def _time(ns: float) -> str:
    """A time that may be negative, or a fraction of a nanosecond: −14.672 us, 68.74 ns."""
    sign, size = ("−" if ns < 0 else ""), abs(ns)
    return sign + (duration(round(size)) if size >= 1000 else f"{size:.4g} ns")


def fit_text(fit: Fit) -> str:
    """One table a core: fixed, per row, the largest residual; then how each measured step lies to the line."""
    blocks = [f"time = fixed + rows × cost per row, over {', '.join(map(str, fit.sizes))} rows"]
    if len(fit.sizes) == 2:
        blocks.append(wrapped(TWO_POINTS, indent="  "))
    for core in fit.cores:
        lines = [(PART_NAMES[name], line) for name, line in core.parts.items()] + [("= window", core.window)]
        rows = [
            [name, "not captured", "", ""]
            if line is None
            else [name, _time(line.fixed_ns), _time(line.per_row_ps / 1000), _time(line.largest_residual_ns)]
            for name, line in lines
        ]
        title = f"core {core.core}"
        blocks.append(table([title, "fixed", "a row", "largest residual"], rows))
        points = [
            [
                str(point.rows),
                duration(point.window_ns),
                _time(residual / 1000),
                percent(abs(residual), 1000 * point.window_ns),
                printable(point.label, 36),
            ]
            for point, residual in zip(core.points, core.window.residuals_ps, strict=True)
        ]
        width = max(len(row[-1]) for row in points)
        blocks.append(
            table(
                ["rows", "window", "residual", "of it", "capture".ljust(width)],
                [[*r[:-1], r[-1].ljust(width)] for r in points],
            )
        )
        if core.explained_share is not None:
            blocks.append(f"  the line explains {100 * core.explained_share:.2f} % of the windows' variation (R²)")
    return "\n\n".join(blocks) + "\n"


def fit_markdown(fit: Fit) -> str:
    """The same as Markdown tables."""
    lines = [f"# time = fixed + rows × cost per row, over {', '.join(map(str, fit.sizes))} rows", ""]
    if len(fit.sizes) == 2:
        lines += [TWO_POINTS, ""]
    for core in fit.cores:
        lines += [
            f"## Core {core.core}",
            "",
            "| part | fixed ns | ns a row | largest residual ns |",
            "|---|---:|---:|---:|",
        ]
        for name, line in (*core.parts.items(), ("window", core.window)):
            cells = (
                ("not captured", "", "")
                if line is None
                else (f"{line.fixed_ns:,}", f"{line.per_row_ps / 1000:,}", f"{line.largest_residual_ns:,}")
            )
            lines.append(f"| {PART_NAMES.get(name, name)} | {' | '.join(cells)} |")
        lines += ["", "| rows | window ns | residual ns | capture |", "|---:|---:|---:|---|"]
        lines += [
            f"| {point.rows} | {point.window_ns:,} | {residual / 1000:,} | {escaped(point.label)} |"
            for point, residual in zip(core.points, core.window.residuals_ps, strict=True)
        ]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"

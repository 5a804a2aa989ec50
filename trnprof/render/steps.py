"""The steps of a capture as JSON, text and Markdown: one row each, and what the whole ones have in common."""

from __future__ import annotations

from trnprof.analyzers.steps import Spread, StepAnatomy, StepsSummary, StepWindow, summarize_steps
from trnprof.render.parts_table import PART_HEADERS, part_cells, unit_for
from trnprof.render.text import duration, printable, table, wrapped

_ROWS_IN_JSON = 8
_ROWS_IN_TEXT = 60


def step_title(window: StepWindow, step_count: int) -> str:
    """step 2 of 3 (numbered 1 by the capture; model.neff), cut: ends outside the capture."""
    named = f"; {printable(window.name, 60)}" if window.name else ""
    cut = f", cut: it {window.cut} outside the capture" if window.cut else ""
    return f"step {window.number} of {step_count} (numbered {window.index} by the capture{named}){cut}"


def steps_json(steps: tuple[StepAnatomy, ...], step_count: int, *, full: bool) -> dict[str, object]:
    """`result.steps`: the rows, a rest row where they are cut, and the whole steps' spread by core and part."""
    shown = steps if full else steps[:_ROWS_IN_JSON]
    summary = summarize_steps(steps)
    document: dict[str, object] = {
        "count": step_count,
        "whole_count": summary.whole_count,
        "rows": [_row_json(step) for step in shown],
    }
    if len(shown) < len(steps):
        document["rows_rest"] = {"count": len(steps) - len(shown), "see": "--full lists every step"}
    if len(steps) > 1:
        document["whole"] = [
            {
                "core": core.core,
                "window_ns": _spread_json(core.window, summary.whole_count),
                "parts_ns": {
                    name: None if spread is None else _spread_json(spread, summary.whole_count)
                    for name, spread in core.parts.items()
                },
            }
            for core in summary.cores
        ]
    return document


def _row_json(step: StepAnatomy) -> dict[str, object]:
    return {
        "step": step.window.number,
        "index": step.window.index,
        "name": printable(step.window.name),
        "window_ns": [step.window.start_ts, step.window.end_ts],
        "cut": step.window.cut,
        "cores": [
            {
                "core": core.core,
                "parts_ns": {name.removesuffix("_ns"): value for name, value in vars(core.parts).items()},
            }
            for core in step.anatomy.cores
        ],
    }


def _spread_json(spread: Spread, count: int) -> dict[str, object]:
    return {
        "mean": round(spread.total_ns / count),
        "min": spread.min_ns,
        "median": spread.median_ns,
        "max": spread.max_ns,
        "max_step": spread.max_step,
    }


def steps_text(steps: tuple[StepAnatomy, ...], step_count: int) -> str:
    """A row for each step and core, then the mean and the extremes of the whole ones."""
    summary = summarize_steps(steps)
    unit = unit_for(core.window_ns for step in steps for core in step.anatomy.cores)
    rows = [
        [str(step.window.number), str(core.core), *part_cells(core.window_ns, core.parts, unit), _mark(step.window)]
        for step in steps
        for core in step.anatomy.cores
    ]
    hidden = len(rows) - len(rows[:_ROWS_IN_TEXT])
    lines = [f"steps, {unit.name}", table(["step", "core", *PART_HEADERS, ""], rows[:_ROWS_IN_TEXT], left=2)]
    if hidden:
        lines.append(f"  and {hidden} more rows; --format json --full lists all")
    lines.append(_whole_text(summary, step_count))
    return "\n".join(lines)


def _mark(window: StepWindow) -> str:
    return "" if window.cut is None else "cut"


def _whole_text(summary: StepsSummary, step_count: int) -> str:
    left_out = summary.step_count - summary.whole_count
    sentences = [f"{summary.whole_count} of {step_count} steps are whole"]
    if left_out:
        sentences[0] += f"; {left_out} {'is' if left_out == 1 else 'are'} cut by the capture's edge and in no mean"
    for core in summary.cores:
        mean = round(core.window.total_ns / summary.whole_count)
        sentences.append(
            f"core {core.core}: mean {duration(mean)}, median {duration(core.window.median_ns)}, from "
            f"{duration(core.window.min_ns)} to {duration(core.window.max_ns)} (step {core.window.max_step})"
        )
    return "\n".join(wrapped(sentence, indent="    ", first="  ") for sentence in sentences)


def steps_markdown(steps: tuple[StepAnatomy, ...]) -> list[str]:
    """The same as lines of a Markdown table, in nanoseconds."""
    lines = ["| step | core | window | " + " | ".join(PART_HEADERS[1:]) + " | |", "|---:|---:|" + "---:|" * 7 + "---|"]
    for step in steps[:_ROWS_IN_TEXT]:
        for core in step.anatomy.cores:
            values = [core.window_ns, *vars(core.parts).values()]
            cells = " | ".join("not captured" if value is None else f"{value:,}" for value in values)
            lines.append(f"| {step.window.number} | {core.core} | {cells} | {_mark(step.window)} |")
    return [*lines, ""]

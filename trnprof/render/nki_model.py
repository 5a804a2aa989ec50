"""A kernel's modelled timeline as text, Markdown and JSON. Every time is low, mid and high; nothing is a measurement."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from trnprof.analyzers.predicted_dma import TimeRange
from trnprof.analyzers.source_cost import SourceCost
from trnprof.hardware.instruction_costs import Bracket, Case
from trnprof.nki.timing.model import NOT_MODELLED, KernelModel, ModelledCore
from trnprof.profile import ENGINES
from trnprof.render.markdown import escaped
from trnprof.render.text import byte_count, duration, percent, printable, rate, table, wrapped

PART_NAMES = {
    "memory_floor": "memory floor",
    "busy_beyond_floor": "busy beyond floor",
    "in_kernel_wait": "in-kernel wait",
    "exposed_collective": "exposed collective",
    "idle": "idle",
}
_LINES_SHOWN = 8
_UNKNOWN_SHOWN = 6
_JSON_LINES = 10
_JSON_UNKNOWN = 12


@dataclass(frozen=True)
class ModelView:
    """What is shown: the model, and what it was made of."""

    kernel_file: str
    kernel: str
    model: KernelModel
    lines: tuple[SourceCost, ...]
    """Of the first core, the middle schedule; most engine time and wait first."""
    notes: tuple[str, ...]
    """What the recording and the loader have to say."""
    written_to: str | None = None
    """Where the profile was written."""
    written_case: Case = Case.MID


def model_text(view: ModelView) -> str:
    """The report for an 80-column terminal."""
    model = view.model
    pair = " (LNC 2)" if len(model.cores) > 1 else ""
    blocks = [
        f"{printable(view.kernel_file)}: {printable(view.kernel, 40)}\n"
        f"modelled for {model.program.generation}{pair}: provenance modelled, nothing was compiled, run or\nmeasured; a "
        "range is what three schedules span, and a guess beyond it is possible"
    ]
    blocks += [_core_text(core, model) for core in model.cores]
    if view.lines:
        blocks.append(_lines_text(view))
    blocks.append(_limits_text(view))
    blocks.append(_constants_text(model))
    if view.written_to is not None:
        blocks.append(
            f"the {view.written_case} schedule is in {printable(view.written_to)}: trnprof anatomy, diff, breakdown,\n"
            "query and export read it like a capture"
        )
    return "\n\n".join(blocks) + "\n"


def _core_text(core: ModelledCore, model: KernelModel) -> str:
    total = model.total_ns
    rows = [[PART_NAMES[name], *_cells(core.parts_ns[name])] for name in PART_NAMES]
    rows.append(["= laid out", *_cells(model.laid_out_ns)])
    if model.extrapolated:
        rows.append(["with the rest", *_cells(total)])
    engines = [
        [
            name,
            *_cells(core.engine_active_ns[name]),
            percent(core.engine_active_ns[name].mid, model.laid_out_ns.mid),
            f"{core.instruction_count[name]:,}",
        ]
        for name in ENGINES
    ]
    engines.append(["dma data", *_cells(core.data_ns), percent(core.data_ns.mid, model.laid_out_ns.mid), ""])
    bandwidth = model.bandwidth_bytes_per_s[Case.MID]
    floor = (
        f"HBM {byte_count(core.hbm_read_bytes)} read + {byte_count(core.hbm_write_bytes)} written; floor at "
        f"{rate(bandwidth)} in the middle schedule"
    )
    return "\n".join(
        [
            f"core {core.core}: the kernel's body, {duration(total.low)} .. {duration(total.mid)} .. {duration(total.high)}",
            table(["", "low", "mid", "high"], rows),
            wrapped("low and high of a part are its smallest and largest in the three schedules", indent="  "),
            "",
            table(["engine active", "low", "mid", "high", "of mid", "instrs"], engines),
            wrapped(floor, indent="    ", first="  "),
        ]
    )


def _cells(time: TimeRange) -> list[str]:
    return [duration(time.low), duration(time.mid), duration(time.high)]


def _lines_text(view: ModelView) -> str:
    total = view.model.laid_out_ns.mid
    rows = [
        [printable(line.name, 34), duration(line.busy_ns), percent(line.busy_ns, total), f"{line.instruction_count:,}"]
        for line in view.lines[:_LINES_SHOWN]
    ]
    rest = view.lines[_LINES_SHOWN:]
    if rest:
        rows.append(
            [
                f"rest ({len(rest)})",
                duration(sum(line.busy_ns for line in rest)),
                percent(sum(line.busy_ns for line in rest), total),
                f"{sum(line.instruction_count for line in rest):,}",
            ]
        )
    return table(["source line (mid, core 0)", "engine time", "of mid", "instrs"], rows)


def _limits_text(view: ModelView) -> str:
    model = view.model
    lines = []
    if model.extrapolated:
        lines.append("extrapolated from the steady state, not laid out:")
        for entry in model.extrapolated[:_UNKNOWN_SHOWN]:
            lines.append(
                wrapped(
                    f"{printable(entry.source)}: {entry.recorded_count:,} of {entry.total_count:,} iterations laid out",
                    indent="    ",
                    first="  ",
                )
            )
        if len(model.extrapolated) > _UNKNOWN_SHOWN:
            lines.append(f"  and {len(model.extrapolated) - _UNKNOWN_SHOWN} more loops")
    if model.unknown:
        count = sum(model.unknown.values())
        lines.append(f"cost unknown, a guessed bracket used ({count:,} operations):")
        shown = sorted(model.unknown.items(), key=lambda entry: (-entry[1], entry[0]))
        for name, number in shown[:_UNKNOWN_SHOWN]:
            lines.append(f"  {printable(name, 40)}  {number:,}  ({bracket_text(bracket_of(name, model))})")
        if len(shown) > _UNKNOWN_SHOWN:
            lines.append(f"  and {len(shown) - _UNKNOWN_SHOWN} more operations")
    lines.append("not modelled:")
    lines += [wrapped(entry, indent="    ", first="  - ") for entry in NOT_MODELLED]
    lines += [wrapped(printable(note, 300), indent="    ", first="  - ") for note in view.notes]
    return "\n".join(lines)


def bracket_of(name: str, model: KernelModel) -> Bracket:
    """The guess behind an operation without a source."""
    costs = model.costs
    if name == "core_barrier":
        return costs["fixed.core_barrier_ns"]
    if name == "sendrecv":
        return costs["fixed.sendrecv_ns"]
    entry = costs.instructions.get(name, costs.instructions["unknown"])
    return entry.constants["cycles"]


def bracket_text(bracket: Bracket) -> str:
    """low .. mid .. high unit."""
    values = [f"{value:g}" for value in (bracket.low, bracket.mid, bracket.high)]
    text = values[0] if len(set(values)) == 1 else " .. ".join(values)
    return f"{text} {bracket.unit}"


def _constants_text(model: KernelModel) -> str:
    used = model.used_constants()
    kinds = Counter(bracket.kind for bracket in used)
    counted = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items(), key=lambda entry: -entry[1]))
    return wrapped(
        f"{len(used)} constants behind it: {counted}. Each with its source: --format json --full, or "
        "trnprof/hardware/instruction_costs.toml; what they miss by: docs/model.md.",
        indent="  ",
        first="",
    )


def model_markdown(view: ModelView) -> str:
    """The report as Markdown."""
    model = view.model
    total = model.total_ns
    lines = [
        f"# {escaped(view.kernel)}: modelled timeline",
        "",
        f"Provenance **modelled** for {model.program.generation}; nothing was compiled, run or measured.",
        "",
        f"Body: {duration(total.low)} .. **{duration(total.mid)}** .. {duration(total.high)}.",
    ]
    for core in model.cores:
        lines += ["", f"## Core {core.core}", "", "| | low | mid | high |", "|---|---:|---:|---:|"]
        lines += [f"| {PART_NAMES[name]} | {' | '.join(_cells(core.parts_ns[name]))} |" for name in PART_NAMES]
        lines += [f"| {name} active | {' | '.join(_cells(core.engine_active_ns[name]))} |" for name in ENGINES]
        lines.append(f"| dma data | {' | '.join(_cells(core.data_ns))} |")
    if view.lines:
        lines += ["", "| source line (mid) | engine time | instructions |", "|---|---:|---:|"]
        lines += [
            f"| {escaped(printable(line.name))} | {duration(line.busy_ns)} | {line.instruction_count:,} |"
            for line in view.lines[:_LINES_SHOWN]
        ]
    lines += ["", "Not modelled:", ""]
    lines += [f"* {escaped(printable(entry, 400))}" for entry in (*NOT_MODELLED, *view.notes)]
    for entry in model.extrapolated:
        lines.append(
            f"* extrapolated: {escaped(printable(entry.source))}, {entry.recorded_count:,} of {entry.total_count:,} "
            "iterations laid out"
        )
    for name, number in model.unknown.items():
        lines.append(
            f"* cost unknown: {escaped(printable(name))}, {number:,} times, {bracket_text(bracket_of(name, model))}"
        )
    return "\n".join(lines) + "\n"


def model_json(view: ModelView, *, full: bool) -> dict[str, object]:
    """The `result` of trnprof.nki-model/1."""
    model = view.model
    unknown = sorted(model.unknown.items(), key=lambda entry: (-entry[1], entry[0]))
    lines = view.lines if full else view.lines[:_JSON_LINES]
    result: dict[str, object] = {
        "provenance": "modelled",
        "kernel": printable(view.kernel, 200),
        "lnc": len(model.cores),
        "total_ns": vars(model.total_ns),
        "laid_out_ns": vars(model.laid_out_ns),
        "cores": [
            {
                "core": core.core,
                "parts_ns": {name: vars(core.parts_ns[name]) for name in PART_NAMES},
                "engines": {
                    name: {
                        "active_ns": vars(core.engine_active_ns[name]),
                        "instruction_count": core.instruction_count[name],
                    }
                    for name in ENGINES
                },
                "dma": {"data_ns": vars(core.data_ns), "count": core.dma_count},
                "hbm": {"read_bytes": core.hbm_read_bytes, "write_bytes": core.hbm_write_bytes},
            }
            for core in model.cores
        ],
        "operation_count": model.program.written_count,
        "lines": [
            {
                "source": printable(line.name),
                "engine_ns": line.busy_ns,
                "wait_ns": line.wait_ns,
                "instruction_count": line.instruction_count,
            }
            for line in lines
        ],
        "lines_rest": _rest(view.lines[len(lines) :]),
        "unknown_costs": [
            {"operation": printable(name, 60), "count": number} | _bracket_json(bracket_of(name, model))
            for name, number in (unknown if full else unknown[:_JSON_UNKNOWN])
        ],
        "unknown_count": sum(model.unknown.values()),
        "extrapolated": [
            {
                "source": printable(entry.source),
                "laid_out_count": entry.recorded_count,
                "total_count": entry.total_count,
            }
            for entry in (model.extrapolated if full else model.extrapolated[:_JSON_UNKNOWN])
        ],
        "not_modelled": list(NOT_MODELLED),
        "notes": [printable(note, 300) for note in (view.notes if full else view.notes[:6])],
        "constants": dict(Counter(bracket.kind for bracket in model.used_constants())),
        "profile": None
        if view.written_to is None
        else {"path": printable(view.written_to, 400), "schedule": str(view.written_case)},
    }
    if full:
        result["constant_rows"] = [
            {"name": bracket.name} | _bracket_json(bracket) for bracket in model.used_constants()
        ]
    return result


def _rest(lines: tuple[SourceCost, ...]) -> dict[str, int]:
    return {
        "line_count": len(lines),
        "engine_ns": sum(line.busy_ns for line in lines),
        "wait_ns": sum(line.wait_ns for line in lines),
        "instruction_count": sum(line.instruction_count for line in lines),
    }


def _bracket_json(bracket: Bracket) -> dict[str, object]:
    return {
        "low": bracket.low,
        "mid": bracket.mid,
        "high": bracket.high,
        "unit": bracket.unit,
        "source": bracket.source,
        "kind": bracket.kind,
    }

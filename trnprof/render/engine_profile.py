"""A modelled step of the engine as JSON, text and Markdown. Every time is low, mid and high; nothing is a measurement."""

from __future__ import annotations

from typing import Any

from trnprof.analyzers.predicted_dma import TimeRange
from trnprof.engine.modelled_step import DeviceStep
from trnprof.engine.shapes import StepKind
from trnprof.modelled_step import ModelledStep, PartTime
from trnprof.nki.timing.model import NOT_MODELLED
from trnprof.render.markdown import escaped
from trnprof.render.text import byte_count, duration, percent, printable, rate, table, wrapped

_JSON_PARTS = 12
_JSON_NOTES = 6


def modelled_json(name: str, found: ModelledStep, written_to: str | None, *, full: bool) -> dict[str, Any]:
    """The `result` of trnprof.engine-profile/1 for a modelled step."""
    step = found.step
    shown = sorted(found.parts, key=lambda part: -_all_runs(part).mid)
    kept = shown if full else shown[:_JSON_PARTS]
    notes = found.notes if full else found.notes[:_JSON_NOTES]
    return {
        "provenance": "modelled",
        "model": printable(name, 200),
        "step": str(step.kind),
        "rows": step.rows,
        "tokens": step.tokens,
        "context": step.context,
        "dtype": step.dtype,
        "rank_count": step.rank_count,
        "layers": len(step.config.mixers),
        "total_ns": vars(found.total_ns),
        "kernel_count": len(step.calls),
        "boundary_ns": vars(found.boundary_ns),
        "collectives": {
            "count": sum(part.run_count for part in found.parts if part.collective),
            "time_ns": vars(_sum([_times(part.collective_ns, part.run_count) for part in found.parts])),
        },
        "parts": [_part_json(part) for part in kept],
        "rest": _rest_json(shown[len(kept) :]),
        "traffic_bytes": found.traffic_bytes,
        "needed": {
            "bytes": found.needed_bytes,
            "floor_ns": found.floor_ns,
            "bandwidth_bytes_per_s": found.bandwidth_bytes_per_s,
        },
        "resident": {
            "bytes": found.resident_bytes,
            "core_hbm_bytes": found.core_hbm_bytes,
            "fits": found.fits,
        },
        "unknown": dict(sorted(found.unknown.items())),
        "not_modelled": [*step.left_out, *(NOT_MODELLED if full else ())],
        "notes": [printable(note, 300) for note in notes],
        "written_to": written_to,
    }


def _part_json(part: PartTime) -> dict[str, Any]:
    return {
        "name": part.name,
        "kernel": part.kernel,
        "run_count": part.run_count,
        "each_ns": vars(part.each_ns),
        "hbm_read_bytes": part.hbm_read_bytes,
        "hbm_write_bytes": part.hbm_write_bytes,
        "instruction_count": part.instruction_count,
        "collective": None
        if part.collective is None
        else {
            "operation": part.collective.operation,
            "bytes": part.collective.byte_count,
            "each_ns": vars(part.collective_ns),
        },
    }


def _rest_json(parts: list[PartTime]) -> dict[str, Any]:
    return {
        "part_count": len(parts),
        "run_count": sum(part.run_count for part in parts),
        "kernel_ns": vars(_sum([_all_runs(part) for part in parts])),
        "collective_ns": vars(_sum([_times(part.collective_ns, part.run_count) for part in parts])),
    }


def modelled_text(name: str, found: ModelledStep, written_to: str | None) -> str:
    """The report for an 80-column terminal."""
    step, total = found.step, found.total_ns
    ranks = f"tensor parallel over {step.rank_count} ranks" if step.rank_count > 1 else "one rank"
    blocks = [
        f"{printable(name, 60)}: {_what(step)}\n"
        f"modelled for {found.hardware}, {ranks}, a physical core each, {step.dtype}\n"
        "provenance modelled: nothing was compiled, run or measured; a range is what\nthree schedules span",
        f"step {duration(total.low)} .. {duration(total.mid)} .. {duration(total.high)} (low, mid, high)",
        table(["part (all its runs)", "runs", "low", "mid", "high", "of mid"], _rows(found)),
        _traffic_text(found),
        _limits_text(found),
    ]
    if written_to is not None:
        blocks.append(
            f"the profile is in {printable(written_to)}: trnprof anatomy, diff, fit, breakdown,\n"
            "query and export read it like a capture"
        )
    return "\n\n".join(blocks) + "\n"


def _what(step: DeviceStep) -> str:
    new = f" of {step.tokens:,} new tokens" if step.kind is StepKind.PREFILL else ""
    return f"one {step.kind} step, {step.rows:,} rows{new}, context {step.context:,}"


def _rows(found: ModelledStep) -> list[list[str]]:
    total = found.total_ns.mid
    rows = [_row(part.name, str(part.run_count), _all_runs(part), total) for part in found.parts]
    shared = [part for part in found.parts if part.collective is not None]
    for operation in dict.fromkeys(part.collective.operation for part in shared if part.collective):
        of_it = [part for part in shared if part.collective and part.collective.operation == operation]
        count = sum(part.run_count for part in of_it)
        time = _sum([_times(part.collective_ns, part.run_count) for part in of_it])
        rows.append(_row(f"{operation}, exposed", str(count), time, total))
    rows.append(_row("between kernels", str(max(len(found.step.calls) - 1, 0)), found.boundary_ns, total))
    rows.append(_row("= step", "", found.total_ns, total))
    return rows


def _row(name: str, runs: str, time: TimeRange, total: int) -> list[str]:
    cells = [duration(value) for value in (time.low, time.mid, time.high)]
    return [printable(name, 44), runs, *cells, percent(time.mid, total)]


def _traffic_text(found: ModelledStep) -> str:
    times = found.total_ns.mid / max(found.floor_ns, 1)
    lines = [
        table(["HBM bytes of a rank", "moved", "needed", "kept"], _traffic_rows(found)),
        wrapped(
            f"needed: weights, states and caches once each way; at {rate(found.bandwidth_bytes_per_s)} that takes "
            f"{duration(found.floor_ns)}, and the step is {times:.1f} times that",
            indent="    ",
            first="  ",
        ),
    ]
    if not found.fits:
        lines.append(wrapped(f"! {_too_large(found)}", indent="    ", first="  "))
    return "\n".join(lines)


def _traffic_rows(found: ModelledStep) -> list[list[str]]:
    columns = (found.traffic_bytes, found.needed_bytes, found.resident_bytes)
    roles = sorted(found.traffic_bytes, key=lambda role: -found.traffic_bytes[role])
    rows = [[role, *(byte_count(column[role]) if role in column else "" for column in columns)] for role in roles]
    return [*rows, ["=", *(byte_count(sum(column.values())) for column in columns)]]


def _too_large(found: ModelledStep) -> str:
    return (
        f"a rank keeps {byte_count(sum(found.resident_bytes.values()))} and a physical core's share of HBM is "
        f"{byte_count(found.core_hbm_bytes)}: this layout does not fit the device; raise --tp"
    )


def _limits_text(found: ModelledStep) -> str:
    lines = []
    if found.unknown:
        named = ", ".join(f"{printable(name, 40)} ({count:,})" for name, count in sorted(found.unknown.items()))
        lines.append(wrapped(f"cost unknown, a guessed bracket used: {named}", indent="  "))
    lines.append("not modelled:")
    lines += [wrapped(entry, indent="    ", first="  - ") for entry in (*found.step.left_out, *NOT_MODELLED)]
    lines += [wrapped(printable(note, 300), indent="    ", first="  - ") for note in found.notes[:_JSON_NOTES]]
    return "\n".join(lines)


def modelled_markdown(name: str, found: ModelledStep, written_to: str | None) -> str:
    """The same as Markdown."""
    step = found.step
    lines = [
        f"# {escaped(printable(name, 200))}: {_what(step)}",
        "",
        f"Provenance modelled, {found.hardware}, {step.rank_count} ranks; a time is low .. mid .. high.",
        "",
        "| part (all its runs) | runs | low | mid | high | of mid |",
        "|---|--:|--:|--:|--:|--:|",
        *(f"| {' | '.join(escaped(cell) for cell in row)} |" for row in _rows(found)),
        "",
        "| HBM bytes of a rank | moved | needed | kept |",
        "|---|--:|--:|--:|",
        *(f"| {' | '.join(escaped(cell) for cell in row)} |" for row in _traffic_rows(found)),
        "",
        *(f"* not modelled: {escaped(entry)}" for entry in (*step.left_out, *NOT_MODELLED)),
    ]
    if not found.fits:
        lines.append(f"* {escaped(_too_large(found))}")
    if written_to is not None:
        lines += ["", f"Profile: {escaped(printable(written_to))}"]
    return "\n".join(lines) + "\n"


def _all_runs(part: PartTime) -> TimeRange:
    return _times(part.each_ns, part.run_count)


def _times(time: TimeRange, count: int) -> TimeRange:
    return TimeRange(time.low * count, time.mid * count, time.high * count)


def _sum(times: list[TimeRange]) -> TimeRange:
    return TimeRange(sum(t.low for t in times), sum(t.mid for t in times), sum(t.high for t in times))

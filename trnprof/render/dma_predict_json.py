"""A DMA prediction as the `result` of trnprof.dma-predict/1: everything, or as much as an agent's 8 KiB hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from trnprof.analyzers.predicted_dma import (
    OnChip,
    PredictedDma,
    PredictedLine,
    PredictedProgram,
    Traffic,
)
from trnprof.findings import Finding
from trnprof.render.dma_predict import (
    PredictionView,
    assumption_texts,
    constant_value,
    source_numbers,
    symbolic_sum,
)

JSON_BUDGET_BYTES = 8 * 1024
"""The default envelope stays under this for an agent's sake; --full has everything."""
_ENVELOPE_BYTES = 900
"""What the envelope adds around result and findings: tool, inputs, hardware."""


def fitting(build: Callable[[int], dict[str, Any]], count: int) -> dict[str, Any]:
    """`build(n)` for the most rows n, of `count`, with which the envelope stays under JSON_BUDGET_BYTES; one at least."""
    while True:
        result = build(count)
        if count <= 1 or len(json.dumps(result)) + _ENVELOPE_BYTES < JSON_BUDGET_BYTES:
            return result
        count -= 1


def prediction_json(
    view: PredictionView, *, full: bool, reserved_bytes: int = 0
) -> tuple[dict[str, Any], tuple[Finding, ...]]:
    """(`result`, `findings`) of trnprof.dma-predict/1.

    Without `full` the rows are cut so that the envelope stays under JSON_BUDGET_BYTES; what was cut is summed in
    `lines_rest`, and `findings_rest_count` says how many findings are left out. `reserved_bytes` is what the caller adds.
    """
    findings = view.prediction.findings
    if full:
        return _result(view, None, None), findings
    # Findings and lines give way in turn, the longer list first.
    lines, shown = min(8, len(view.prediction.predicted.lines)), min(6, len(findings))
    while True:
        result = _result(view, lines, 2)
        result["findings_rest_count"] = len(findings) - shown
        size = len(json.dumps([result, [vars(finding) for finding in findings[:shown]]]))
        if size + _ENVELOPE_BYTES + reserved_bytes < JSON_BUDGET_BYTES or (lines <= 1 and shown <= 1):
            break
        if shown >= lines and shown > 1:
            shown -= 1
        else:
            lines -= 1
    return result, findings[:shown]


def _result(view: PredictionView, line_count: int | None, program_count: int | None) -> dict[str, Any]:
    predicted = view.prediction.predicted
    full = line_count is None
    lines = predicted.lines if line_count is None else predicted.lines[:line_count]
    rest = predicted.lines[len(lines) :]
    programs = [_program_json(program) for program in predicted.programs[:program_count]]
    sources = source_numbers(predicted.constants)
    result: dict[str, Any] = {
        "provenance": "predicted",
        "kernel": view.kernel,
        "target": predicted.target,
        "lnc": predicted.lnc,
        "programs": programs,
        "programs_rest_count": len(predicted.programs) - len(programs),
        "total": _total_json(predicted),
        "lines": [_line_json(line, full=full) for line in lines],
        "lines_rest": _rest_json(rest),
        "sbuf": _memory_json(predicted.sbuf),
        "psum": _memory_json(predicted.psum),
        "unmodelled": [
            {"source": call.source, "operation": call.operation, "reason": call.reason, "count": call.count}
            for call in predicted.unmodelled[: None if full else 5]
        ],
        "unmodelled_count": sum(call.count for call in predicted.unmodelled),
        "assumptions": assumption_texts(predicted, None if full else 6),
        "constants": {c.name: f"{constant_value(c)} ({c.kind} [{sources[c.source]}])" for c in predicted.constants},
        "constant_sources": {str(number): source for source, number in sources.items()},
    }
    if full:
        result["constants"] = [vars(constant) for constant in predicted.constants]
        result["packets"] = [vars(entry) for entry in predicted.packets]
        result["tensors"] = [vars(entry) for entry in predicted.tensors]
        result["sync"] = dict(predicted.sync_counts)
        result["stand_ins"] = list(predicted.stand_ins)
        result["outputs"] = [
            {"name": name, "shape": list(shape), "dtype": dtype} for name, shape, dtype in view.prediction.outputs
        ]
    return result


def _total_json(predicted: PredictedDma) -> dict[str, Any]:
    total = predicted.total
    if total is not None:
        return _traffic_json(total) | {"hbm_time_ns": predicted.hbm_time_ns}
    # Unknown trip counts: no number may stand for the total, so there is none; the terms say what it is a sum of.
    keys = ("hbm_read_bytes", "hbm_write_bytes", "dma_count", "descriptor_count", "time_ns")
    return dict.fromkeys(keys) | {
        "symbolic": {
            key: symbolic_sum(predicted.terms, key)
            for key in ("hbm_read_bytes", "hbm_write_bytes", "dma_count", "descriptor_count")
        },
        "terms": [{"times": list(term.times)} | _traffic_json(term.traffic) for term in predicted.terms],
    }


def _traffic_json(traffic: Traffic) -> dict[str, Any]:
    return {
        "hbm_read_bytes": traffic.hbm_read_bytes,
        "hbm_write_bytes": traffic.hbm_write_bytes,
        "dma_count": traffic.dma_count,
        "descriptor_count": traffic.descriptor_count,
        "time_ns": vars(traffic.time_ns),
    }


def _program_json(program: PredictedProgram) -> dict[str, Any]:
    first = program.terms[0]
    known = len(program.terms) == 1 and not first.times
    numbers = (
        _traffic_json(first.traffic)
        if known
        else {"terms": [{"times": list(t.times)} | _traffic_json(t.traffic) for t in program.terms]}
    )
    return {
        "kernel": program.kernel,
        "program_id": list(program.program_id),
        "core": program.core,
        "stands_for": program.stands_for,
        **numbers,
        "hbm_time_ns": program.hbm_time_ns,
        "sbuf_peak_bytes_per_partition": program.sbuf_peak_bytes_per_partition,
        "psum_peak_bytes_per_partition": program.psum_peak_bytes_per_partition,
    }


def _line_json(line: PredictedLine, *, full: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "source": line.source,
        "direction": line.direction,
        "dma_count": line.dma_count,
        "descriptor_count": line.descriptor_count,
        "element_bytes": vars(line.element_bytes),
        "bytes": line.bytes,
        "reload_factor": line.reload_factor,
        "mode": line.mode,
        "mode_is_assumed": line.mode_is_assumed,
        "time_ns": vars(line.time_ns),
        "efficiency": line.efficiency,
    }
    if line.times:
        row["times"] = list(line.times)
    if line.implicit:
        row["implicit"] = line.implicit
    if line.read_bytes != line.write_bytes or full:
        row |= {"read_bytes": line.read_bytes, "write_bytes": line.write_bytes}
    if full:
        row |= {
            "function": line.function,
            "code": line.code,
            "called_from": list(line.called_from),
            "tensors": list(line.tensors),
            "operation": line.operation,
            "hbm_read_bytes": line.hbm_read_bytes,
            "hbm_write_bytes": line.hbm_write_bytes,
            "partition_count": line.partition_count,
            "engine_count": line.engine_count,
            "cast": line.cast,
            "transpose": line.transpose,
            "strided": line.strided,
            "is_exact": line.is_exact,
        }
    else:
        row |= {"partition_count": line.partition_count, "engine_count": line.engine_count}
    return row


def _rest_json(rest: Sequence[PredictedLine]) -> dict[str, Any] | None:
    """One row that sums the lines not shown; with unknown trip counts per iteration of each."""
    if not rest:
        return None
    return {
        "line_count": len(rest),
        "dma_count": sum(line.dma_count for line in rest),
        "descriptor_count": sum(line.descriptor_count for line in rest),
        "bytes": sum(line.bytes for line in rest),
        "time_ns": {bound: sum(getattr(line.time_ns, bound) for line in rest) for bound in ("low", "mid", "high")},
    }


def _memory_json(memory: OnChip) -> dict[str, Any]:
    return {
        "peak_bytes_per_partition": memory.peak_bytes_per_partition,
        "capacity_bytes_per_partition": memory.capacity_bytes_per_partition,
    }

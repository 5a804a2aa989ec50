"""A DMA prediction as text, Markdown, and the envelope's `result`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trnprof.analyzers.dma_prediction import PredictedDma, PredictedLine, Term, TimeRange, Traffic
from trnprof.findings import Finding
from trnprof.hardware.dma_model import Constant
from trnprof.nki.prediction_task import KernelPrediction
from trnprof.render.markdown import escaped
from trnprof.render.text import byte_count, duration, printable, rate, table, wrapped

JSON_BUDGET_BYTES = 8 * 1024
"""The default envelope stays under this for an agent's sake; --full has everything."""
_ENVELOPE_BYTES = 900
"""What the envelope adds around result and findings: tool, inputs, hardware."""
_TEXT_LINES = 12
_TEXT_FINDINGS = 10


@dataclass(frozen=True)
class PredictionView:
    """What is shown: the prediction, and what it was made of."""

    kernel_file: str
    kernel: str
    prediction: KernelPrediction


# ---------------------------------------------------------------- JSON


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
    sources = _source_numbers(predicted.constants)
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
        "assumptions": _assumption_texts(predicted, None if full else 6),
        "constants": {c.name: f"{_constant_value(c)} ({c.kind} [{sources[c.source]}])" for c in predicted.constants},
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


def _source_numbers(constants: Sequence[Constant]) -> dict[str, int]:
    """Sources numbered from 1 in order: many constants share one."""
    numbers: dict[str, int] = {}
    for constant in constants:
        numbers.setdefault(constant.source, len(numbers) + 1)
    return numbers


def _constant_value(constant: Constant) -> str:
    return rate(constant.value) if constant.unit == "B/s" else f"{constant.value:g} {constant.unit}"


def _total_json(predicted: PredictedDma) -> dict[str, Any]:
    total = predicted.total
    if total is not None:
        return _traffic_json(total) | {"hbm_time_ns": predicted.hbm_time_ns}
    # Unknown trip counts: no number may stand for the total, so there is none; the terms say what it is a sum of.
    keys = ("hbm_read_bytes", "hbm_write_bytes", "dma_count", "descriptor_count", "time_ns")
    return dict.fromkeys(keys) | {
        "symbolic": {
            key: _symbolic(predicted.terms, key)
            for key in ("hbm_read_bytes", "hbm_write_bytes", "dma_count", "descriptor_count")
        },
        "terms": [{"times": list(term.times)} | _traffic_json(term.traffic) for term in predicted.terms],
    }


def _symbolic(terms: Sequence[Term], key: str) -> str:
    """The sum as text: `65536 + 1024*n_reg`."""
    parts = ["*".join([str(getattr(term.traffic, key)), *term.times]) for term in terms if getattr(term.traffic, key)]
    return " + ".join(parts) or "0"


def _traffic_json(traffic: Traffic) -> dict[str, Any]:
    return {
        "hbm_read_bytes": traffic.hbm_read_bytes,
        "hbm_write_bytes": traffic.hbm_write_bytes,
        "dma_count": traffic.dma_count,
        "descriptor_count": traffic.descriptor_count,
        "time_ns": _range_json(traffic.time_ns),
    }


def _range_json(time: TimeRange) -> dict[str, int]:
    return {"low": time.low, "mid": time.mid, "high": time.high}


def _program_json(program: Any) -> dict[str, Any]:
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
        "time_ns": _range_json(line.time_ns),
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


def _memory_json(memory: Any) -> dict[str, Any]:
    return {
        "peak_bytes_per_partition": memory.peak_bytes_per_partition,
        "capacity_bytes_per_partition": memory.capacity_bytes_per_partition,
    }


def _assumption_texts(predicted: PredictedDma, shown: int | None) -> list[str]:
    texts = [
        f"{entry.code}: {entry.text}" + (f" ({entry.source})" if entry.source else "")
        for entry in predicted.assumptions
    ]
    if predicted.stand_ins:
        texts.append(f"stand-ins: not run: {', '.join(predicted.stand_ins)}")
    if shown is not None and len(texts) > shown:
        texts = [*texts[:shown], f"and {len(texts) - shown} more with --full"]
    return [text if len(text) <= 220 or shown is None else text[:219] + "…" for text in texts]


# ---------------------------------------------------------------- text


def prediction_text(view: PredictionView) -> str:
    """The report for an 80-column terminal."""
    predicted = view.prediction.predicted
    blocks = [_headline(view), _totals_text(predicted)]
    if predicted.terms and len(predicted.terms) + bool(predicted.terms[0].times) > 1:
        blocks.append(_terms_text(predicted))
    if len(predicted.programs) > 1:
        blocks.append(_programs_text(predicted))
    blocks.append(_lines_text(predicted.lines))
    if predicted.unmodelled:
        blocks.append(_unmodelled_text(predicted))
    if view.prediction.findings:
        blocks.append(_findings_text(view.prediction.findings))
    blocks.append(_assumptions_text(predicted))
    blocks.append(_constants_text(predicted))
    return "\n\n".join(blocks) + "\n"


def _headline(view: PredictionView) -> str:
    predicted = view.prediction.predicted
    pair = f", {predicted.lnc} programs a logical core" if predicted.lnc > 1 else ""
    return (
        f"{printable(view.kernel_file, 60)}: {printable(view.kernel, 40)}\n"
        f"predicted for {predicted.target}{pair}, as written; nothing was compiled or measured"
    )


def _totals_text(predicted: PredictedDma) -> str:
    total = predicted.total
    rows: list[tuple[str, str]] = []
    if total is not None:
        rows += [
            ("HBM read", f"{byte_count(total.hbm_read_bytes)}  ({total.hbm_read_bytes:,} B)"),
            ("HBM written", f"{byte_count(total.hbm_write_bytes)}  ({total.hbm_write_bytes:,} B)"),
            ("DMAs", f"{total.dma_count:,} with {total.descriptor_count:,} descriptors"),
            ("DMA time", range_text(total.time_ns) + "  (low .. mid .. high)"),
        ]
        name = "core_in_pair_bytes_per_s" if predicted.lnc == 2 else "core_alone_bytes_per_s"
        bandwidth = next((constant.value for constant in predicted.constants if constant.name == name), 0)
        if bandwidth:
            rows.append(("HBM bytes at", f"{rate(bandwidth)} of one core: {duration(predicted.hbm_time_ns)}"))
    rows += [
        ("SBUF peak", _memory_text(predicted.sbuf)),
        ("PSUM peak", _memory_text(predicted.psum)),
    ]
    return "\n".join(f"  {name:<13}{text}" for name, text in rows)


def _memory_text(memory: Any) -> str:
    full = "  OVERFLOW" if memory.overflows else ""
    return (
        f"{memory.peak_bytes_per_partition:,} of {memory.capacity_bytes_per_partition:,} B a partition "
        f"({100 * memory.peak_bytes_per_partition / max(1, memory.capacity_bytes_per_partition):.0f} %){full}"
    )


def range_text(time: TimeRange) -> str:
    """low .. mid .. high."""
    return f"{duration(time.low)} .. {duration(time.mid)} .. {duration(time.high)}"


def _terms_text(predicted: PredictedDma) -> str:
    """The total of loops of unknown length: what one iteration costs, never a number for the whole."""
    lines = ["total, with trip counts that only the device knows (set them with --trip NAME=N):"]
    for key, name in (("hbm_read_bytes", "HBM read"), ("hbm_write_bytes", "HBM written"), ("dma_count", "DMAs")):
        lines.append(
            f"  {name:<13}{printable(_symbolic(predicted.terms, key), 60)}" + (" B" if key != "dma_count" else "")
        )
    for term in predicted.terms:
        label = "once" if not term.times else f"per iteration of {printable(' x '.join(term.times), 40)}"
        lines.append(f"  {label}: {range_text(term.traffic.time_ns)}")
    return "\n".join(lines)


def _programs_text(predicted: PredictedDma) -> str:
    rows = []
    for program in predicted.programs[:8]:
        traffic = program.terms[0].traffic
        rows.append(
            [
                f"{printable(program.kernel, 24)} {list(program.program_id)}"
                + (f" x{program.stands_for}" if program.stands_for > 1 else ""),
                byte_count(traffic.hbm_read_bytes),
                byte_count(traffic.hbm_write_bytes),
                f"{traffic.dma_count:,}",
                duration(traffic.time_ns.mid),
            ]
        )
    shown = table(["program", "read", "written", "DMAs", "mid"], rows)
    rest = len(predicted.programs) - len(rows)
    return shown + (f"\n  and {rest} more" if rest else "")


def _lines_text(lines: Sequence[PredictedLine]) -> str:
    if not lines:
        return "  no DMAs"
    rows, codes = [], []
    for line in lines[:_TEXT_LINES]:
        size = line.element_bytes
        elements = f"{size.median:,}" if size.min == size.max else f"{size.min:,}-{size.max:,}"
        rows.append(
            [
                _short_source(line.source),
                _times(f"{line.dma_count:,}", line),
                f"{line.descriptor_count:,}" + ("" if line.is_exact else "+"),
                elements,
                byte_count(line.bytes),
                "" if line.reload_factor is None else f"{line.reload_factor:.3g}x",
                duration(line.time_ns.mid),
            ]
        )
        codes.append(_line_note(line))
    rest = lines[_TEXT_LINES:]
    if rest:
        rows.append(
            [
                f"{len(rest)} more lines",
                f"{sum(line.dma_count for line in rest):,}",
                f"{sum(line.descriptor_count for line in rest):,}",
                "",
                byte_count(sum(line.bytes for line in rest)),
                "",
                duration(sum(line.time_ns.mid for line in rest)),
            ]
        )
        codes.append("")
    header, *body = table(["line", "DMAs", "descr.", "B each", "bytes", "reload", "mid"], rows).split("\n")
    out = [header]
    for row, code in zip(body, codes, strict=True):
        out.append(row)
        if code:
            out.append(f"      {code}")
    return "\n".join(out)


def _short_source(source: str) -> str:
    path, _, number = source.rpartition(":")
    name = path.rsplit("/", 1)[-1]
    return printable(f"{name if len(name) <= 18 else '…' + name[-17:]}:{number}", 26)


def _times(count: str, line: PredictedLine) -> str:
    return count if not line.times else f"{count} x {printable(' x '.join(line.times), 20)}"


def _line_note(line: PredictedLine) -> str:
    """Direction, mode (with ? where it is assumed), share of the engines' peak, and the source text."""
    mode = f"{line.mode}{'?' if line.mode_is_assumed else ''}"
    efficiency = "" if line.efficiency is None else f" {100 * line.efficiency:.0f} % of peak"
    label = f"{line.direction.replace('->', '>')} {mode}{efficiency}: "
    return printable(label + (line.implicit or line.code), 74)


def _unmodelled_text(predicted: PredictedDma) -> str:
    rows = [
        f"  {printable(call.source, 40)}  {printable(call.operation, 30)} x{call.count:,}: {printable(call.reason, 60)}"
        for call in predicted.unmodelled[:8]
    ]
    rest = len(predicted.unmodelled) - 8
    return "\n".join(["not modelled, in no sum:", *rows, *([f"  and {rest} more"] if rest > 0 else [])])


def _findings_text(findings: Sequence[Finding]) -> str:
    lines = ["findings:"]
    for finding in findings[:_TEXT_FINDINGS]:
        source = finding.evidence.get("source")
        cost = "" if finding.cost_ns is None else f"; about {duration(finding.cost_ns)}"
        share = "" if not finding.share else f" ({100 * finding.share:.0f} % of mid)"
        place = f"{printable(source, 60)}: " if source else ""
        message = printable(finding.evidence.get("message", ""), 400)
        lines.append(
            wrapped(f"{place}{finding.title}: {message}{cost}{share}", indent=" " * 10, first=f"  {finding.code}  ")
        )
        lines.append(wrapped(finding.advice, indent=" " * 12, first=" " * 10 + "> "))
    rest = len(findings) - _TEXT_FINDINGS
    if rest > 0:
        lines.append(f"  and {rest} more (--format json --full)")
    return "\n".join(lines)


def _assumptions_text(predicted: PredictedDma) -> str:
    lines = ["the numbers rest on:"]
    texts = _assumption_texts(predicted, None)
    for text in texts[:12]:
        lines.append(wrapped(printable(text, 500), indent="    ", first="  - "))
    if len(texts) > 12:
        lines.append(f"  and {len(texts) - 12} more (--format json --full)")
    return "\n".join(lines)


def _constants_text(predicted: PredictedDma) -> str:
    """Every constant with its source; sources are numbered, since many share one."""
    numbers = _source_numbers(predicted.constants)
    lines = ["constants:"]
    for constant in predicted.constants:
        value = f"{_constant_value(constant)}, {constant.kind} [{numbers[constant.source]}]"
        lines.append(wrapped(f"{constant.name} = {value}", indent="      ", first="  "))
    lines += [wrapped(f"[{number}] {source}", indent="      ", first="  ") for source, number in numbers.items()]
    return "\n".join(lines)


# ---------------------------------------------------------------- Markdown


def prediction_markdown(view: PredictionView) -> str:
    """The report as Markdown."""
    predicted = view.prediction.predicted
    total = predicted.total
    out = [f"# DMA prediction: {escaped(view.kernel)}", ""]
    out += [
        f"{escaped(view.kernel_file)}, predicted for {predicted.target} as written; nothing was compiled or measured.",
        "",
    ]
    if total is not None:
        out += markdown_table(
            ["HBM read B", "HBM written B", "DMAs", "descriptors", "low ns", "mid ns", "high ns"],
            [
                [
                    f"{total.hbm_read_bytes:,}",
                    f"{total.hbm_write_bytes:,}",
                    f"{total.dma_count:,}",
                    f"{total.descriptor_count:,}",
                    f"{total.time_ns.low:,}",
                    f"{total.time_ns.mid:,}",
                    f"{total.time_ns.high:,}",
                ]
            ],
        )
    else:
        out += ["Trip counts that only the device knows:", ""]
        out += markdown_table(
            ["times", "HBM read B", "HBM written B", "DMAs", "mid ns"],
            [
                [
                    escaped(" x ".join(term.times) or "once"),
                    f"{term.traffic.hbm_read_bytes:,}",
                    f"{term.traffic.hbm_write_bytes:,}",
                    f"{term.traffic.dma_count:,}",
                    f"{term.traffic.time_ns.mid:,}",
                ]
                for term in predicted.terms
            ],
        )
    out += ["", "## Lines", ""]
    out += markdown_table(
        ["line", "direction", "DMAs", "descriptors", "B each", "bytes", "reload", "mode", "mid ns"],
        [
            [
                escaped(line.source),
                escaped(line.direction),
                escaped(_times(f"{line.dma_count:,}", line)),
                f"{line.descriptor_count:,}",
                f"{line.element_bytes.median:,}",
                f"{line.bytes:,}",
                "" if line.reload_factor is None else f"{line.reload_factor:.3g}",
                line.mode + ("?" if line.mode_is_assumed else ""),
                f"{line.time_ns.mid:,}",
            ]
            for line in predicted.lines
        ],
    )
    if view.prediction.findings:
        out += ["", "## Findings", ""]
        for finding in view.prediction.findings:
            source = finding.evidence.get("source")
            out.append(
                f"- **{finding.code}** {escaped(source) + ': ' if source else ''}{escaped(finding.title)}: "
                f"{escaped(finding.evidence.get('message', ''))}. {escaped(finding.advice)}"
            )
    out += ["", "## Assumptions", "", *(f"- {escaped(text)}" for text in _assumption_texts(predicted, None))]
    out += ["", "## Constants", ""]
    out += markdown_table(
        ["constant", "value", "kind", "source"],
        [[c.name, escaped(_constant_value(c)), c.kind, escaped(c.source)] for c in predicted.constants],
    )
    return "\n".join(out) + "\n"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table's lines; cells must be escaped already."""
    return [
        "| " + " | ".join(header) + " |",
        "|" + "---|" * len(header),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]

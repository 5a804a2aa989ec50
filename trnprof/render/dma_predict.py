"""A DMA prediction as text and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trnprof.analyzers.predicted_dma import OnChip, PredictedDma, PredictedLine, Term, TimeRange
from trnprof.findings import Finding
from trnprof.hardware.dma_model import Constant
from trnprof.nki.prediction_task import KernelPrediction
from trnprof.render.markdown import escaped
from trnprof.render.text import byte_count, duration, printable, rate, table, wrapped

_TEXT_LINES = 12
_TEXT_FINDINGS = 10


@dataclass(frozen=True)
class PredictionView:
    """What is shown: the prediction, and what it was made of."""

    kernel_file: str
    kernel: str
    prediction: KernelPrediction


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


def path_end(path: object, limit: int = 50) -> str:
    """A path on one line; of a long one its end, which tells files apart."""
    text = printable(path, 4096)
    return text if len(text) <= limit else "…" + text[1 - limit :]


def _headline(view: PredictionView) -> str:
    predicted = view.prediction.predicted
    pair = f" (LNC {predicted.lnc})" if predicted.lnc > 1 else ""
    return (
        f"{path_end(view.kernel_file)}: {printable(view.kernel, 40)}\n"
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


def _memory_text(memory: OnChip) -> str:
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
    lines = ["total, with trip counts that only the device knows (give them: --trip NAME=N):"]
    for key, name in (("hbm_read_bytes", "HBM read"), ("hbm_write_bytes", "HBM written"), ("dma_count", "DMAs")):
        lines.append(
            f"  {name:<13}{printable(symbolic_sum(predicted.terms, key), 60)}" + (" B" if key != "dma_count" else "")
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
                _short_count(line.dma_count),
                _short_count(line.descriptor_count) + ("" if line.is_exact else "+"),
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
                _short_count(sum(line.dma_count for line in rest)),
                _short_count(sum(line.descriptor_count for line in rest)),
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


def _short_count(count: int) -> str:
    """A count in seven characters: 195,072 or 2.719 M."""
    return f"{count:,}" if count < 1_000_000 else f"{count / 1e6:,.4g} M"


def _short_source(source: str) -> str:
    path, _, number = source.rpartition(":")
    name = path.rsplit("/", 1)[-1]
    return printable(f"{name if len(name) <= 16 else '…' + name[-15:]}:{number}", 26)


def _times(count: str, line: PredictedLine) -> str:
    return count if not line.times else f"{count} x {printable(' x '.join(line.times), 20)}"


def _line_note(line: PredictedLine) -> str:
    """Direction, mode (with ? where it is assumed), share of the engines' peak, and the source text."""
    mode = f"{line.mode}{'?' if line.mode_is_assumed else ''}"
    efficiency = "" if line.efficiency is None else f" {100 * line.efficiency:.0f} % of peak"
    per = "" if not line.times else f"per iteration of {printable(' x '.join(line.times), 24)}, "
    label = f"{per}{line.direction.replace('->', '>')} {mode}{efficiency}: "
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
    advised: set[str] = set()
    for finding in findings[:_TEXT_FINDINGS]:
        source = finding.evidence.get("source")
        cost = "" if finding.cost_ns is None else f"; about {duration(finding.cost_ns)}"
        share = "" if not finding.share else f" ({100 * finding.share:.0f} % of mid)"
        place = f"{printable(source, 60)}: " if source else ""
        message = printable(finding.evidence.get("message", ""), 400)
        lines.append(
            wrapped(f"{place}{finding.title}: {message}{cost}{share}", indent=" " * 10, first=f"  {finding.code}  ")
        )
        if finding.code not in advised:
            advised.add(finding.code)
            lines.append(wrapped(finding.advice, indent=" " * 12, first=" " * 10 + "> "))
    rest = len(findings) - _TEXT_FINDINGS
    if rest > 0:
        lines.append(f"  and {rest} more (--format json --full)")
    return "\n".join(lines)


def _assumptions_text(predicted: PredictedDma) -> str:
    lines = ["the numbers rest on:"]
    texts = assumption_texts(predicted, None)
    for text in texts[:12]:
        lines.append(wrapped(printable(text, 500), indent="    ", first="  - "))
    if len(texts) > 12:
        lines.append(f"  and {len(texts) - 12} more (--format json --full)")
    return "\n".join(lines)


def _constants_text(predicted: PredictedDma) -> str:
    """Every constant with its source; sources are numbered, since many share one."""
    numbers = source_numbers(predicted.constants)
    lines = ["constants:"]
    for constant in predicted.constants:
        value = f"{constant_value(constant)}, {constant.kind} [{numbers[constant.source]}]"
        lines.append(wrapped(f"{constant.name} = {value}", indent="      ", first="  "))
    lines += [wrapped(f"[{number}] {source}", indent="      ", first="  ") for source, number in numbers.items()]
    return "\n".join(lines)


def source_numbers(constants: Sequence[Constant]) -> dict[str, int]:
    """Sources numbered from 1 in order: many constants share one."""
    numbers: dict[str, int] = {}
    for constant in constants:
        numbers.setdefault(constant.source, len(numbers) + 1)
    return numbers


def constant_value(constant: Constant) -> str:
    return rate(constant.value) if constant.unit == "B/s" else f"{constant.value:g} {constant.unit}"


def symbolic_sum(terms: Sequence[Term], key: str) -> str:
    """The sum as text: `65536 + 1024*n_reg`."""
    parts = ["*".join([str(getattr(term.traffic, key)), *term.times]) for term in terms if getattr(term.traffic, key)]
    return " + ".join(parts) or "0"


def assumption_texts(predicted: PredictedDma, shown: int | None) -> list[str]:
    texts = [
        f"{entry.code}: {entry.text}" + (f" ({entry.source})" if entry.source else "")
        for entry in predicted.assumptions
    ]
    if predicted.stand_ins:
        texts.append(f"stand-ins: not run: {', '.join(predicted.stand_ins)}")
    if shown is not None and len(texts) > shown:
        texts = [*texts[:shown], f"and {len(texts) - shown} more with --full"]
    return [text if len(text) <= 220 or shown is None else text[:219] + "…" for text in texts]


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
    out += ["", "## Assumptions", "", *(f"- {escaped(text)}" for text in assumption_texts(predicted, None))]
    out += ["", "## Constants", ""]
    out += markdown_table(
        ["constant", "value", "kind", "source"],
        [[c.name, escaped(constant_value(c)), c.kind, escaped(c.source)] for c in predicted.constants],
    )
    return "\n".join(out) + "\n"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table's lines; cells must be escaped already."""
    return [
        "| " + " | ".join(header) + " |",
        "|" + "---|" * len(header),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]

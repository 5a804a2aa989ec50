"""A kernel's values as text, Markdown and the `result` of trnprof.nki-run/1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trnprof.findings import Finding
from trnprof.nki.run_task import KernelValues, OutputReport
from trnprof.nki.values.comparison import Comparison
from trnprof.render.dma_predict import markdown_table, path_end
from trnprof.render.markdown import escaped
from trnprof.render.text import printable, table, wrapped

_TEXT_FINDINGS = 10
_TEXT_COMPARISONS = 6
_JSON_OUTPUTS = 8
_JSON_NOTES = 8


@dataclass(frozen=True)
class RunView:
    """What is shown: the values, and what they were made of."""

    kernel_file: str
    kernel: str
    values: KernelValues


def run_text(view: RunView) -> str:
    """The report for an 80-column terminal."""
    values = view.values
    blocks = [_headline(view), _outputs_text(values)]
    compared = [output for output in values.outputs if output.comparison is not None]
    if compared:
        blocks.append(_comparisons_text(compared))
    if values.findings:
        blocks.append(_findings_text(values.findings))
    blocks.append(_notes_text(values))
    return "\n\n".join(blocks) + "\n"


def _headline(view: RunView) -> str:
    values = view.values
    programs = f"{values.program_count} program{'s' if values.program_count != 1 else ''}"
    ranks = f" on {values.ranks} simulated ranks" if values.ranks > 1 else ""
    verdict = ""
    if values.reference is not None:
        verdict = f"\n{'agrees' if values.agrees else 'DIFFERS'} from" if not values.agrees else "\nagrees with"
        verdict = f"{verdict} {printable(values.reference, 60)}"
    rounding = "" if values.precise else ", in float64 (--precise off)"
    return (
        f"{path_end(view.kernel_file)}: {printable(view.kernel, 40)}\n"
        f"computed on this CPU for {values.target}: {programs}{ranks}{rounding}; nothing was run on a device{verdict}"
    )


def _outputs_text(values: KernelValues) -> str:
    rows = []
    for output in values.outputs[:16]:
        rows.append(
            [
                _name(output),
                f"{'x'.join(str(size) for size in output.shape)} {output.dtype}",
                _number(output.smallest),
                _number(output.largest),
                f"{output.nan_count:,}" if output.nan_count else "",
                f"{output.missing_count:,}" if output.missing_count else "",
            ]
        )
    rest = len(values.outputs) - len(rows)
    shown = table(["output", "shape", "smallest", "largest", "NaN", "unwritten"], rows, left=2)
    return shown + (f"\n  and {rest} more" if rest else "")


def _name(output: OutputReport) -> str:
    rank = f"rank {output.rank} " if output.rank else ""
    return f"{rank}{printable(output.name, 24)}{' (argument)' if output.is_argument else ''}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _comparisons_text(compared: Sequence[OutputReport]) -> str:
    """Each output's figures; of many those that differ come first and the others are counted."""
    shown = compared
    if len(compared) > _TEXT_COMPARISONS:
        shown = sorted(compared, key=lambda output: output.comparison is not None and output.comparison.agrees)
        shown = shown[:_TEXT_COMPARISONS]
    texts = [_comparison_text(output) for output in shown]
    if len(shown) < len(compared):
        agreeing = sum(output.comparison.agrees for output in compared if output.comparison is not None)
        texts.append(f"and {len(compared) - len(shown)} more; {agreeing} of {len(compared)} outputs agree")
    return "\n".join(texts)


def _comparison_text(output: OutputReport) -> str:
    figures = output.comparison
    assert figures is not None
    lines = [
        f"{_name(output)}: {'agrees' if figures.agrees else 'DIFFERS'} "
        f"(rtol {figures.rtol:.3g}, atol {figures.atol:.3g})",
        f"  max |error|         {figures.max_abs_error:.4g}   max relative {figures.max_rel_error:.4g}",
        f"  relative Frobenius  {_frobenius(figures)}",
        wrapped(f"ulps of {figures.dtype}: {_ulps(figures)}", indent="    ", first="  "),
    ]
    if not figures.agrees:
        lines.append(
            f"  first bad index     {list(figures.first_bad_index)}: {figures.first_bad_value} against "
            f"{figures.first_reference_value}; {figures.bad_count:,} of {figures.element_count:,} bad"
        )
    return "\n".join(lines)


def _frobenius(figures: Comparison) -> str:
    return (
        "not defined (the reference is 0)"
        if figures.relative_frobenius is None
        else f"{figures.relative_frobenius:.4g}"
    )


def _ulps(figures: Comparison) -> str:
    parts = []
    below: int | None = None
    for entry in figures.ulps:
        if entry.most is None:
            label = f">{below}"
        elif below is None or entry.most - below == 1:
            label = f"{entry.most}"
        else:
            label = f"{below + 1}-{entry.most}"
        below = entry.most
        if entry.count:
            parts.append(f"{label}: {entry.count:,}")
    return "; ".join(parts) or "no elements"


def _findings_text(findings: Sequence[Finding]) -> str:
    lines = ["findings:"]
    advised: set[str] = set()
    for finding in findings[:_TEXT_FINDINGS]:
        source = finding.evidence.get("source")
        place = f"{printable(source, 60)}: " if source else ""
        message = printable(finding.evidence.get("message", ""), 400)
        lines.append(wrapped(f"{place}{finding.title}: {message}", indent=" " * 10, first=f"  {finding.code}  "))
        if finding.code not in advised:
            advised.add(finding.code)
            lines.append(wrapped(finding.advice, indent=" " * 12, first=" " * 10 + "> "))
    rest = len(findings) - _TEXT_FINDINGS
    if rest > 0:
        lines.append(f"  and {rest} more (--format json --full)")
    return "\n".join(lines)


def basis(values: KernelValues) -> list[str]:
    """What the values rest on, said with every result."""
    texts = [
        "engines compute in float32 and round to nearest even into each tile's type; products are added in the CPU's order",
        "activation functions are exact where the device has polynomials; random numbers are NumPy's",
    ]
    if not values.precise:
        texts[0] = "float64 everywhere: nothing is rounded to the tiles' types"
    if values.zeroed:
        texts.append("memory that nothing wrote reads as 0 (--unwritten zero)")
    texts += [f"{note.code}: {note.message}" + (f" ({note.source})" if note.source else "") for note in values.notes]
    if values.stand_ins:
        texts.append(f"stand-ins: not run: {', '.join(values.stand_ins)}")
    return texts


def _notes_text(values: KernelValues) -> str:
    texts = basis(values)
    lines = ["the values rest on:"]
    lines += [wrapped(printable(text, 500), indent="    ", first="  - ") for text in texts[:12]]
    if len(texts) > 12:
        lines.append(f"  and {len(texts) - 12} more (--format json --full)")
    return "\n".join(lines)


def run_markdown(view: RunView) -> str:
    """The report as Markdown."""
    values = view.values
    out = [f"# Values: {escaped(view.kernel)}", "", escaped(_headline(view).split("\n", 1)[1].replace("\n", "; ")), ""]
    out += markdown_table(
        ["output", "shape", "type", "smallest", "largest", "NaN", "unwritten"],
        [
            [
                escaped(_name(output)),
                "x".join(str(size) for size in output.shape),
                output.dtype,
                _number(output.smallest),
                _number(output.largest),
                f"{output.nan_count:,}",
                f"{output.missing_count:,}",
            ]
            for output in values.outputs
        ],
    )
    compared = [output for output in values.outputs if output.comparison is not None]
    if compared:
        out += ["", f"## Against {escaped(values.reference or '')}", ""]
        out += markdown_table(
            ["output", "verdict", "rtol", "atol", "max abs", "max rel", "rel. Frobenius", "bad", "first bad", "ulps"],
            [_comparison_row(output) for output in compared],
        )
    if values.findings:
        out += ["", "## Findings", ""]
        for finding in values.findings:
            source = finding.evidence.get("source")
            out.append(
                f"- **{finding.code}** {escaped(source) + ': ' if source else ''}{escaped(finding.title)}: "
                f"{escaped(finding.evidence.get('message', ''))}. {escaped(finding.advice)}"
            )
    out += ["", "## The values rest on", "", *(f"- {escaped(text)}" for text in basis(values))]
    return "\n".join(out) + "\n"


def _comparison_row(output: OutputReport) -> list[str]:
    figures = output.comparison
    assert figures is not None
    first = "" if figures.agrees else f"{list(figures.first_bad_index)}"
    return [
        escaped(_name(output)),
        "agrees" if figures.agrees else "**differs**",
        f"{figures.rtol:.3g}",
        f"{figures.atol:.3g}",
        f"{figures.max_abs_error:.4g}",
        f"{figures.max_rel_error:.4g}",
        _frobenius(figures),
        f"{figures.bad_count:,}",
        escaped(first),
        escaped(_ulps(figures)),
    ]


def run_json(view: RunView, *, full: bool) -> dict[str, Any]:
    """The result; without `full` the first outputs and notes, and how many more there are."""
    values = view.values
    outputs = values.outputs if full else values.outputs[:_JSON_OUTPUTS]
    texts = basis(values)
    notes = texts if full else [text if len(text) <= 220 else text[:219] + "…" for text in texts[:_JSON_NOTES]]
    result: dict[str, Any] = {
        "kernel": view.kernel,
        "target": values.target,
        "lnc": values.lnc,
        "ranks": values.ranks,
        "provenance": "computed-cpu",
        "precise": values.precise,
        "program_count": values.program_count,
        "reference": values.reference,
        "agrees": values.agrees if values.reference is not None else None,
        "outputs": [_output_json(output) for output in outputs],
        "notes": [printable(text, 600) for text in notes],
    }
    if len(outputs) < len(values.outputs) or len(notes) < len(texts):
        result["rest"] = {
            "output_count": len(values.outputs) - len(outputs),
            "note_count": len(texts) - len(notes),
            "see": "--full lists everything",
        }
    return result


def _output_json(output: OutputReport) -> dict[str, Any]:
    figures = output.comparison
    return {
        "name": printable(output.name),
        "rank": output.rank,
        "dtype": output.dtype,
        "shape": list(output.shape),
        "is_argument": output.is_argument,
        "smallest": output.smallest,
        "largest": output.largest,
        "nan_count": output.nan_count,
        "never_written_count": output.missing_count,
        "is_all_zero": output.is_all_zero,
        "comparison": None if figures is None else _comparison_json(figures),
    }


def _comparison_json(figures: Comparison) -> dict[str, Any]:
    repeated = figures.repeated
    return {
        "agrees": figures.agrees,
        "dtype": figures.dtype,
        "rtol": figures.rtol,
        "atol": figures.atol,
        "bad_count": figures.bad_count,
        "element_count": figures.element_count,
        "max_abs_error": figures.max_abs_error,
        "max_rel_error": figures.max_rel_error,
        "relative_frobenius": figures.relative_frobenius,
        "ulps": [{"most": entry.most, "count": entry.count} for entry in figures.ulps],
        "first_bad": None
        if figures.agrees
        else {
            "index": list(figures.first_bad_index),
            "value": figures.first_bad_value,
            "reference": figures.first_reference_value,
        },
        "is_all_zero": figures.is_all_zero,
        "repeated_rows": None
        if repeated is None
        else {"count": repeated.count, "row": repeated.row, "equals_row": repeated.equals_row},
    }

"""`trnprof diff`: what moved between two builds, and whether it is real."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trnprof.cli.options import (
    STANDARD_OUTPUT,
    DebugOption,
    ForceOption,
    FormatOption,
    FullOption,
    HardwareOption,
    HtmlOption,
    OutputFormat,
    OutputOption,
    StrictOption,
)

if TYPE_CHECKING:
    from trnprof.analyzers.diff import CaptureCosts, Diff, Scope
    from trnprof.findings import DataQuality
    from trnprof.render.envelope import InputFile

EXAMPLES = (
    "trnprof diff before.ntff after.ntff",
    "trnprof diff --before a1.ntff --before a2.ntff --after b1.ntff --after b2.ntff --bar 2%",
    "trnprof diff before.ntff after.ntff --html diff.html",
    "trnprof diff before.ntff after.ntff --scope kernel:mlp",
    "trnprof diff before.ntff after.ntff --format json --fail-if-slower",
)


def diff(
    first: Annotated[
        Path | None,
        typer.Argument(help="The capture before; a folder is several captures of that side.", metavar="BEFORE"),
    ] = None,
    second: Annotated[Path | None, typer.Argument(help="The capture after.", metavar="AFTER")] = None,
    before: Annotated[
        list[Path] | None,
        typer.Option("--before", help="A capture before; give it again for several.", show_default=False),
    ] = None,
    after: Annotated[
        list[Path] | None,
        typer.Option("--after", help="A capture after; give it again for several.", show_default=False),
    ] = None,
    bar: Annotated[str, typer.Option(help="The smallest change of the step time that counts: 2% or 0.02.")] = "2%",
    paired: Annotated[
        bool | None,
        typer.Option(
            "--paired/--unpaired",
            help="Are the n-th captures of both sides a pair? Without it: yes, where both sides have as many.",
            show_default=False,
        ),
    ] = None,
    scope: Annotated[
        str | None,
        typer.Option(
            help="Judge one part beside the step: kernel:NAME, layer:NAME or line:FILE:LINE.", show_default=False
        ),
    ] = None,
    bandwidth: Annotated[
        str, typer.Option(help="HBM bandwidth of a core for the floor: measured, spec, or bytes per second (336e9).")
    ] = "measured",
    hardware: HardwareOption = None,
    fail_if_slower: Annotated[
        bool, typer.Option("--fail-if-slower", help="Exit with 1 if the step is slower by the bar or more.")
    ] = False,
    form: FormatOption = OutputFormat.TEXT,
    output: OutputOption = STANDARD_OUTPUT,
    html: HtmlOption = None,
    force: ForceOption = False,
    strict: StrictOption = False,
    full: FullOption = False,
    debug: DebugOption = False,
) -> int:
    """Compare two builds: configurations, verdict, then parts, engines, opcodes, lines, kernels, queues and spills.

    With several captures a side the verdict rests on all of them; the tables compare the captures of median step time.
    """
    import sys

    from trnprof.analyzers.diff import compare
    from trnprof.analyzers.verdict import Outcome
    from trnprof.cli.answer import deliver
    from trnprof.errors import UsageError
    from trnprof.render.diff import diff_markdown, diff_report, diff_text
    from trnprof.render.envelope import Report
    from trnprof.render.quality import merged_quality

    sides = [[*([first] if first else []), *(before or [])], [*([second] if second else []), *(after or [])]]
    if not sides[0] or not sides[1]:
        raise UsageError("name a capture before and one after: trnprof diff before.ntff after.ntff")
    bar_share, wanted = parse_share(bar), _parse_scope(scope)
    costs_before, inputs_before, quality = _read_side(sides[0], bandwidth, hardware)
    costs_after, inputs_after, quality_after = _read_side(sides[1], bandwidth, hardware)
    if paired and len(costs_before) != len(costs_after):
        raise UsageError(f"--paired: {len(costs_before)} captures before and {len(costs_after)} after; name as many")
    result = compare(costs_before, costs_after, bar_share=bar_share, paired=paired, scope=wanted)
    limits = (*_mismatch(result), *merged_quality([*quality, *quality_after]))
    used = costs_before[0].anatomy

    def report(document: dict[str, object]) -> Report:
        return Report(
            command="diff",
            inputs=(*inputs_before, *inputs_after),
            hardware={
                "name": used.hardware,
                "bandwidth_bytes_per_s": used.bandwidth.bytes_per_s,
                "source": used.bandwidth.source,
            },
            data_quality=limits,
            result=document,
        )

    if html is not None:
        from trnprof.cli.answer import write_page
        from trnprof.render.html import diff_html

        write_page(diff_html(diff_report(result, report, full=True), result), html, output=output, force=force)
    code = deliver(
        diff_report(result, report, full=full),
        form=form,
        output=output,
        force=force,
        text=lambda: diff_text(result, limits),
        markdown=lambda: diff_markdown(result, limits),
        strict=strict,
        brief=lambda: diff_report(result, report, full=False),
    )
    if fail_if_slower and result.verdict.outcome is Outcome.SLOWER:
        print(f"trnprof: --fail-if-slower: {100 * result.verdict.change_share:+.2f} %", file=sys.stderr)
        return 1
    return code


def parse_share(text: str) -> float:
    """A share: 2% or 0.02.

    Raises: UsageError for anything else.
    """
    from trnprof.errors import UsageError

    number, percent = text.strip(), 1.0
    if number.endswith("%"):
        number, percent = number[:-1].strip(), 100.0
    try:
        value = float(number) / percent
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise UsageError(f"--bar is a share from 0 to below 1, as 2% or 0.02, not {text!r}")
    return value


def _parse_scope(text: str | None) -> Scope | None:
    from trnprof.analyzers.diff import Scope
    from trnprof.errors import UsageError

    if text is None:
        return None
    kind, _, name = text.partition(":")
    if kind not in ("kernel", "layer", "line") or not name:
        raise UsageError(f"--scope is kernel:NAME, layer:NAME or line:FILE:LINE, not {text!r}")
    return Scope(kind, name)  # type: ignore[arg-type]


def _read_side(
    paths: list[Path], bandwidth: str, hardware: str | None
) -> tuple[list[CaptureCosts], list[InputFile], list[tuple[str, DataQuality]]]:
    """(what to compare, the inputs, data quality by capture); one capture at a time is in memory."""
    from trnprof.analyzers.data_quality import is_incomplete
    from trnprof.analyzers.diff import costs_for_diff
    from trnprof.cli.captures import account, folder_quality, inputs_of, open_captures
    from trnprof.hardware import hardware_of, parse_bandwidth

    chosen = parse_bandwidth(bandwidth)
    costs: list[CaptureCosts] = []
    inputs: list[InputFile] = []
    quality: list[tuple[str, DataQuality]] = []
    for path in paths:
        opened = open_captures(path)
        inputs += inputs_of(opened)
        quality += [(str(path), entry) for entry in folder_quality(opened)]
        for capture in opened.captures:
            view = account(capture, hardware=hardware, bandwidth=chosen)
            quality += [(str(capture.path), entry) for entry in view.data_quality]
            costs.append(
                costs_for_diff(
                    capture.profile,
                    view.anatomy,
                    hardware_of(capture.profile.metadata, hardware),
                    label=str(capture.path),
                    incomplete=is_incomplete(view.data_quality),
                )
            )
    return costs, inputs, quality


def _mismatch(result: Diff) -> list[DataQuality]:
    from trnprof.findings import data_quality

    doubtful = [entry for entry in result.configuration if not entry.expected]
    if not doubtful:
        return []
    return [data_quality("DQ040", count=len(doubtful), detail=", ".join(entry.field for entry in doubtful))]

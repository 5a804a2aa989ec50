"""`trnprof anatomy`: where one step's time goes."""

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
    from trnprof.cli.captures import OpenCaptures
    from trnprof.render.anatomy import AnatomyView
    from trnprof.render.envelope import Report

EXAMPLES = (
    "trnprof anatomy step.ntff",
    "trnprof anatomy step.ntff --neff model.neff",
    "trnprof anatomy profile@latest/ --bandwidth spec",
    "trnprof anatomy step.ntff --html step.html",
    "trnprof anatomy captures/ --format json -o anatomy.json",
)


def anatomy(
    path: Annotated[
        Path,
        typer.Argument(
            help="An NTFF, an Explorer Parquet directory, a profiler JSON, or a folder of them.", metavar="FILE|DIR"
        ),
    ],
    neff: Annotated[
        Path | None,
        typer.Option(help="The NEFF that the capture ran, where it does not lie beside it.", show_default=False),
    ] = None,
    bandwidth: Annotated[
        str, typer.Option(help="HBM bandwidth of a core for the floor: measured, spec, or bytes per second (336e9).")
    ] = "measured",
    hardware: HardwareOption = None,
    form: FormatOption = OutputFormat.TEXT,
    output: OutputOption = STANDARD_OUTPUT,
    html: HtmlOption = None,
    force: ForceOption = False,
    strict: StrictOption = False,
    full: FullOption = False,
    debug: DebugOption = False,
) -> int:
    """Split a step into memory floor, busy, waits, exposed collectives, idle and runtime overhead.

    The parts add up to the execution's window exactly, for every physical core.
    """
    from dataclasses import replace

    from trnprof.cli.answer import deliver
    from trnprof.cli.captures import folder_quality, open_captures
    from trnprof.hardware import parse_bandwidth
    from trnprof.render.anatomy import anatomy_json, anatomy_markdown, anatomy_text
    from trnprof.render.envelope import within_answer
    from trnprof.render.quality import quality_lines

    parse_bandwidth(bandwidth)  # a wrong one is said before anything is read
    if (path / "steps.parquet").is_file():
        from trnprof.cli.engine_log import step_log_anatomy

        return step_log_anatomy(path, form=form, output=output, force=force, html=html)
    opened = open_captures(path, neff=neff)
    report, views = anatomy_report(opened, hardware=hardware, bandwidth=bandwidth, full=full)
    around = folder_quality(opened)

    if html is not None:
        from trnprof.cli.answer import write_page
        from trnprof.render.html import anatomy_html

        whole = report if full else with_details(report, opened, views, hardware=hardware)
        page = anatomy_html(whole, views, [capture.profile for capture in opened.captures])
        write_page(page, html, output=output, force=force)

    def text() -> str:
        blocks = [quality_lines(around) + "\n"] if around else []
        return "\n".join([*blocks, *(anatomy_text(view) for view in views)])

    return deliver(
        report if full else within_answer(report),
        form=form,
        output=output,
        force=force,
        text=text,
        markdown=lambda: "\n".join(anatomy_markdown(view) for view in views),
        strict=strict,
        brief=lambda: within_answer(replace(report, result=anatomy_json(views, full=False))),
    )


def anatomy_report(
    opened: OpenCaptures, *, hardware: str | None, bandwidth: str, full: bool
) -> tuple[Report, list[AnatomyView]]:
    """The report of the captures' anatomy and the accounts that it was made of.

    Raises: UsageError for an unknown hardware name or bandwidth; InputDataError for a capture without a window.
    """
    from trnprof.cli.captures import account, findings_of, folder_quality, inputs_of
    from trnprof.hardware import parse_bandwidth
    from trnprof.render.anatomy import anatomy_json
    from trnprof.render.envelope import Report

    chosen = parse_bandwidth(bandwidth)
    views = [account(capture, hardware=hardware, bandwidth=chosen) for capture in opened.captures]
    first = views[0].anatomy
    report = Report(
        command="anatomy",
        inputs=inputs_of(opened),
        hardware={
            "name": first.hardware,
            "bandwidth_bytes_per_s": first.bandwidth.bytes_per_s,
            "source": first.bandwidth.source,
        },
        data_quality=(*folder_quality(opened), *(entry for view in views for entry in view.data_quality)),
        result=anatomy_json(views, full=False),
        findings=findings_of(views),
    )
    return (with_details(report, opened, views, hardware=hardware) if full else report), views


def with_details(report: Report, opened: OpenCaptures, views: list[AnatomyView], *, hardware: str | None) -> Report:
    """The same report with the full result: every row, and what stands behind the account."""
    from dataclasses import replace

    from trnprof.analyzers.detail import measure_detail
    from trnprof.hardware import hardware_of
    from trnprof.render.anatomy import anatomy_json
    from trnprof.render.detail import details_json

    details = [
        measure_detail(capture.profile, view.anatomy, hardware_of(capture.profile.metadata, hardware))
        for capture, view in zip(opened.captures, views, strict=True)
    ]
    return replace(report, result=anatomy_json(views, full=True) | details_json(details))

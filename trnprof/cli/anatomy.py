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
    JobsOption,
    NoCacheOption,
    OutputFormat,
    OutputOption,
    StrictOption,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trnprof.cli.accounts import Accounts
    from trnprof.cli.captures import OpenCaptures
    from trnprof.profile import Profile
    from trnprof.render.anatomy import AnatomyView
    from trnprof.render.envelope import Report

EXAMPLES = (
    "trnprof anatomy step.ntff",
    "trnprof anatomy step.ntff --neff model.neff",
    "trnprof anatomy profile@latest/ --bandwidth spec",
    "trnprof anatomy step.ntff --html step.html",
    "trnprof anatomy captures/ --format json -o anatomy.json",
    "trnprof anatomy profile@latest/ --step all",
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
    step: Annotated[
        str | None,
        typer.Option(
            help="Of a capture of several executions: the N-th alone, or all of them, each and together.",
            metavar="N|all",
            show_default=False,
        ),
    ] = None,
    form: FormatOption = OutputFormat.TEXT,
    output: OutputOption = STANDARD_OUTPUT,
    html: HtmlOption = None,
    force: ForceOption = False,
    strict: StrictOption = False,
    full: FullOption = False,
    jobs: JobsOption = None,
    no_cache: NoCacheOption = False,
    debug: DebugOption = False,
) -> int:
    """Split a step into memory floor, busy, waits, exposed collectives, idle and runtime overhead.

    The parts add up to the execution's window exactly, for every physical core.
    """
    from dataclasses import replace

    from trnprof.accounts import AccountOptions
    from trnprof.cli.accounts import account_all, accounts_quality, inputs_of_accounts, ranks_of, views_of
    from trnprof.cli.answer import deliver
    from trnprof.cli.captures import findings_of
    from trnprof.hardware import parse_bandwidth
    from trnprof.render.anatomy import anatomy_json, anatomy_markdown, anatomy_text
    from trnprof.render.envelope import Report, with_short_head, within_answer
    from trnprof.render.quality import quality_lines, quality_markdown
    from trnprof.render.ranks import TABLE_ABOVE_CORES, ranks_json, ranks_markdown, ranks_table

    chosen, wanted = parse_bandwidth(bandwidth), parse_step(step)  # wrong ones are said before anything is read
    if (path / "steps.parquet").is_file():
        from trnprof.cli.engine_log import step_log_anatomy

        return step_log_anatomy(path, form=form, output=output, force=force, html=html)
    whole = full or html is not None
    options = AccountOptions(hardware, chosen, neff, wanted, whole_tables=whole)
    accounts = account_all(path, options, jobs=jobs, use_cache=not no_cache)
    views, ranks = views_of(accounts), ranks_of(accounts)
    around = accounts_quality(accounts, ranks)
    first = views[0].anatomy
    compared = len(views) > 1

    def comparison(everything: bool) -> dict[str, object] | None:
        return ranks_json(ranks, full=everything) if compared else None

    def result(everything: bool) -> dict[str, object]:
        return anatomy_json(views, full=everything, ranks=comparison(everything))

    report = Report(
        command="anatomy",
        inputs=inputs_of_accounts(accounts),
        hardware={
            "name": first.hardware,
            "bandwidth_bytes_per_s": first.bandwidth.bytes_per_s,
            "source": first.bandwidth.source,
        },
        data_quality=(*around, *(entry for view in views for entry in view.data_quality)),
        result=result(full),
        findings=findings_of(views),
    )
    if whole:
        profiles = whole_tables(accounts, neff=neff)
        if html is not None:
            # The page draws from all captures' tables at once; the details alone need one capture's at a time.
            profiles = list(profiles)
        detailed = with_details(report, profiles, views, hardware=hardware, ranks=comparison(True))
        if html is not None:
            from trnprof.cli.answer import write_page
            from trnprof.render.html import anatomy_html

            write_page(anatomy_html(detailed, views, list(profiles)), html, output=output, force=force)
        report = detailed if full else report

    is_table = sum(len(view.anatomy.cores) for view in views) > TABLE_ABOVE_CORES

    def text() -> str:
        if is_table:
            return ranks_table(ranks, views, with_short_head(report).data_quality, report.findings)
        blocks = [quality_lines(around) + "\n"] if around else []
        return "\n".join([*blocks, *(anatomy_text(view) for view in views)])

    def markdown() -> str:
        if is_table:
            return "\n".join([*quality_markdown(with_short_head(report).data_quality), *ranks_markdown(ranks)]) + "\n"
        return "\n".join(anatomy_markdown(view) for view in views)

    return deliver(
        report if full else within_answer(report),
        form=form,
        output=output,
        force=force,
        text=text,
        markdown=markdown,
        strict=strict,
        brief=lambda: within_answer(replace(report, result=result(False))),
    )


def parse_step(text: str | None) -> int | None:
    """The value of --step: a number from 1, or `all`; None: not given.

    Raises: UsageError for anything else.
    """
    from trnprof.accounts import ALL_STEPS
    from trnprof.errors import UsageError

    if text is None:
        return None
    if text == "all":
        return ALL_STEPS
    if not (text.isascii() and text.isdecimal() and int(text[:9]) >= 1 and len(text) < 9):
        raise UsageError(f"--step is the number of a step, from 1, or all; not {text!r}")
    return int(text)


def whole_tables(accounts: Accounts, *, neff: Path | None) -> Iterable[Profile]:
    """The accounted captures' tables one after the other, or what of them lies in the step that was accounted."""
    from trnprof.analyzers.steps import profile_of_step
    from trnprof.readers import read_profile

    for capture in accounts.captures:
        profile = read_profile(capture.path, neff=neff)
        yield profile_of_step(profile, capture.account.steps[0].window) if accounts.of_one_step else profile


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
    if full:
        profiles = [capture.profile for capture in opened.captures]
        report = with_details(report, profiles, views, hardware=hardware)
    return report, views


def with_details(
    report: Report,
    profiles: Iterable[Profile],
    views: list[AnatomyView],
    *,
    hardware: str | None,
    ranks: dict[str, object] | None = None,
) -> Report:
    """The same report with the full result: every row, what stands behind the account, and what compares the captures."""
    from dataclasses import replace

    from trnprof.analyzers.detail import measure_detail
    from trnprof.hardware import hardware_of
    from trnprof.render.anatomy import anatomy_json
    from trnprof.render.detail import details_json

    details = [
        measure_detail(profile, view.anatomy, hardware_of(profile.metadata, hardware))
        for profile, view in zip(profiles, views, strict=True)
    ]
    return replace(report, result=anatomy_json(views, full=True, ranks=ranks) | details_json(details))

"""`trnprof fit`: fixed cost and cost per row from captures at several batch sizes."""

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
    OutputFormat,
    OutputOption,
    StrictOption,
)

if TYPE_CHECKING:
    from trnprof.findings import DataQuality
    from trnprof.render.envelope import InputFile

EXAMPLES = (
    "trnprof fit 1=b1.ntff 4=b4.ntff 8=b8.ntff",
    "trnprof fit 8=run1.ntff 8=run2.ntff 12=b12.ntff --format json",
)


def fit(
    captures: Annotated[
        list[str],
        typer.Argument(help="Rows (the batch size) and the capture of a step with that many.", metavar="ROWS=FILE"),
    ],
    bandwidth: Annotated[
        str, typer.Option(help="HBM bandwidth of a core for the floor: measured, spec, or bytes per second (336e9).")
    ] = "measured",
    hardware: HardwareOption = None,
    form: FormatOption = OutputFormat.TEXT,
    output: OutputOption = STANDARD_OUTPUT,
    force: ForceOption = False,
    strict: StrictOption = False,
    full: FullOption = False,
    debug: DebugOption = False,
) -> int:
    """Fit time = fixed cost + rows × cost per row to the step and to each of its parts, with residuals.

    Several captures may have the same batch size. The parts' fixed costs and costs per row add up to the step's.
    """
    from trnprof.analyzers.fit import BatchCapture, fit_batches
    from trnprof.cli.answer import deliver
    from trnprof.cli.captures import account, inputs_of, open_captures
    from trnprof.errors import UsageError
    from trnprof.hardware import parse_bandwidth
    from trnprof.render.envelope import Report
    from trnprof.render.fit import fit_markdown, fit_report, fit_text
    from trnprof.render.quality import merged_quality, quality_lines, quality_markdown

    chosen, named = parse_bandwidth(bandwidth), [_parse_capture(text) for text in captures]
    if len({rows for rows, _ in named}) < 2:
        raise UsageError("a fit needs captures at two batch sizes or more: trnprof fit 1=a.ntff 8=b.ntff")
    batches: list[BatchCapture] = []
    inputs: list[InputFile] = []
    found: list[tuple[str, DataQuality]] = []
    for rows, path in named:
        opened = open_captures(path)
        if len(opened.captures) != 1:
            raise UsageError(
                f"{len(opened.captures)} captures in one folder; name one capture for each batch size", path=path
            )
        inputs += inputs_of(opened)
        view = account(opened.captures[0], hardware=hardware, bandwidth=chosen)
        found += [(str(path), entry) for entry in view.data_quality]
        batches.append(BatchCapture(rows, str(path), view.anatomy))
    result, quality = fit_batches(batches), tuple(merged_quality(found))
    used = batches[0].anatomy

    def report(document: dict[str, object]) -> Report:
        return Report(
            command="fit",
            inputs=tuple(inputs),
            hardware={
                "name": used.hardware,
                "bandwidth_bytes_per_s": used.bandwidth.bytes_per_s,
                "source": used.bandwidth.source,
            },
            data_quality=quality,
            result=document,
        )

    return deliver(
        fit_report(result, report, full=full),
        form=form,
        output=output,
        force=force,
        text=lambda: "\n\n".join(filter(None, (quality_lines(quality), fit_text(result)))),
        markdown=lambda: "\n".join((*quality_markdown(quality), fit_markdown(result))),
        strict=strict,
        brief=lambda: fit_report(result, report, full=False),
    )


def _parse_capture(text: str) -> tuple[int, Path]:
    """ROWS=FILE.

    Raises: UsageError for anything else.
    """
    from trnprof.analyzers.fit import MAX_ROWS
    from trnprof.errors import UsageError

    rows, separator, path = text.partition("=")
    if not separator or not path or not rows.isdecimal() or not rows.isascii() or not 1 <= int(rows[:20]) <= MAX_ROWS:
        raise UsageError(
            f"a capture is named ROWS=FILE, as 8=step.ntff, with rows from 1 to {MAX_ROWS:,}; not {text!r}"
        )
    return int(rows), Path(path)

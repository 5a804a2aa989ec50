"""`trnprof info`: what a file holds, what it lacks, and what that means."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trnprof.cli.options import (
    STANDARD_OUTPUT,
    DebugOption,
    ForceOption,
    FormatOption,
    FullOption,
    OutputFormat,
    OutputOption,
    StrictOption,
)

EXAMPLES = (
    "trnprof info step.ntff",
    "trnprof info model.neff --format json",
    "trnprof info profile@latest/",
)


def info(
    path: Annotated[
        Path, typer.Argument(help="A capture of any format, or a NEFF; told by content.", metavar="FILE|DIR")
    ],
    neff: Annotated[
        Path | None,
        typer.Option(help="The NEFF that the capture ran, where it does not lie beside it.", show_default=False),
    ] = None,
    form: FormatOption = OutputFormat.TEXT,
    output: OutputOption = STANDARD_OUTPUT,
    force: ForceOption = False,
    strict: StrictOption = False,
    full: FullOption = False,
    debug: DebugOption = False,
) -> int:
    """Say what a capture or a NEFF holds: versions, chip, cores, window, counts, and what is missing."""
    from trnprof.analyzers.capture_summary import summarize_capture
    from trnprof.analyzers.data_quality import assess_data_quality
    from trnprof.cli.answer import deliver
    from trnprof.findings import data_quality
    from trnprof.profile import Provenance
    from trnprof.readers import read_profile
    from trnprof.readers.detect import Format, detect_format
    from trnprof.render.envelope import InputFile, Report, sha256_of

    found = detect_format(path)
    if found is Format.NEFF:
        from trnprof.analyzers.neff_summary import summarize_neff
        from trnprof.readers.neff import read_neff
        from trnprof.render.neff_info import neff_json, neff_markdown, neff_text

        program = summarize_neff(read_neff(path))
        origin = Provenance.MODELLED if program.modelled else "compiled"
        noted = tuple(data_quality(issue.code, count=issue.count, detail=issue.detail) for issue in program.issues)
        report = Report(
            command="info",
            inputs=(InputFile(str(path), str(found), sha256_of(path), str(origin)),),
            data_quality=noted,
            result=neff_json(program, full=full),
        )
        return deliver(
            report,
            form=form,
            output=output,
            force=force,
            text=lambda: neff_text(str(path), program, noted),
            markdown=lambda: neff_markdown(str(path), program, noted),
            strict=strict,
        )
    from trnprof.render.info import capture_json, capture_markdown, capture_text

    profile = read_profile(path, neff=neff)
    summary = summarize_capture(profile)
    quality = assess_data_quality(profile)
    report = Report(
        command="info",
        inputs=(InputFile(str(path), str(found), sha256_of(path), str(profile.metadata.provenance)),),
        data_quality=quality,
        result=capture_json(summary),
    )
    return deliver(
        report,
        form=form,
        output=output,
        force=force,
        text=lambda: capture_text(str(path), summary, quality),
        markdown=lambda: capture_markdown(str(path), summary, quality),
        strict=strict,
    )

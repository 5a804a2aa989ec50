"""`trnprof demo`: the main job on a bundled example."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trnprof.cli.options import (
    STANDARD_OUTPUT,
    DebugOption,
    ForceOption,
    FormatOption,
    HtmlOption,
    OutputFormat,
    OutputOption,
)

EXAMPLES = (
    "trnprof demo",
    "trnprof demo --html demo.html",
    "trnprof demo --keep demo-profile",
    "trnprof anatomy demo-profile --bandwidth spec",
    "trnprof demo --published",
)


def demo(
    keep: Annotated[
        Path | None,
        typer.Option(
            help="Keep the example's Explorer Parquet directory here, to try commands on.", show_default=False
        ),
    ] = None,
    published: Annotated[
        bool,
        typer.Option(
            "--published",
            help="The step that TrnRT published for GLM-5.3-Flash instead: 24.2 ms for 6.1 ms of memory traffic.",
        ),
    ] = False,
    form: FormatOption = OutputFormat.TEXT,
    output: OutputOption = STANDARD_OUTPUT,
    html: HtmlOption = None,
    force: ForceOption = False,
    debug: DebugOption = False,
) -> int:
    """Model a decode step of the bundled engine on trn2, write it as an Explorer Parquet directory, read it back and print
    its anatomy; then what a real capture's looks like. Everything printed says what it is: modelled, or measured.

    The step is one of four ranks, 8 rows with 4,096 tokens each, put together from the engine's NKI kernels.
    """
    import sys
    import tempfile

    from trnprof.cli.anatomy import anatomy
    from trnprof.cli.kernel_command import run_status
    from trnprof.demo import engine_step, published_step, real_capture_transcript
    from trnprof.writers.explorer_parquet import write_explorer_parquet
    from trnprof.writers.output import refuse_existing

    with tempfile.TemporaryDirectory(prefix="trnprof-demo-") as folder:
        directory = Path(folder) / "decode-step@latest" if keep is None else keep
        refuse_existing(directory, force)
        with run_status("modelling the engine's kernels"):
            profile = published_step() if published else engine_step()
        write_explorer_parquet(profile, directory, overwrite=force)
        code = anatomy(directory, form=form, output=output, html=html, force=force)
    if form is OutputFormat.TEXT and output == STANDARD_OUTPUT and not published:
        sys.stdout.write(
            f"\nand a real capture, read with no Neuron SDK on the machine:\n\n{real_capture_transcript()}"
        )
    return code

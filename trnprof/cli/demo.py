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
)


def demo(
    keep: Annotated[
        Path | None,
        typer.Option(
            help="Keep the example's Explorer Parquet directory here, to try commands on.", show_default=False
        ),
    ] = None,
    form: FormatOption = OutputFormat.TEXT,
    output: OutputOption = STANDARD_OUTPUT,
    html: HtmlOption = None,
    force: ForceOption = False,
    debug: DebugOption = False,
) -> int:
    """Write a modelled decode step as an Explorer Parquet directory, read it back and print its anatomy.

    The step is laid out to the anatomy that TrnRT published for GLM-5.3-Flash on trn2: 24.2 ms for 6.1 ms of memory
    traffic. It is modelled, and everything printed says so.
    """
    import tempfile

    from trnprof.cli.anatomy import anatomy
    from trnprof.demo import published_step
    from trnprof.writers.explorer_parquet import write_explorer_parquet

    if keep is not None:
        write_explorer_parquet(published_step(), keep, overwrite=force)
        return anatomy(keep, form=form, output=output, html=html, force=force)
    with tempfile.TemporaryDirectory(prefix="trnprof-demo-") as folder:
        directory = Path(folder) / "decode-step@latest"
        write_explorer_parquet(published_step(), directory)
        return anatomy(directory, form=form, output=output, html=html, force=force)

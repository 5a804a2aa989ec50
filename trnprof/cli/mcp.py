"""`trnprof mcp`: the commands as read-only tools for clients of the Model Context Protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trnprof.cli.options import DebugOption

EXAMPLES = (
    "trnprof mcp                            # tools on captures below this folder",
    "trnprof mcp --root captures --root kernels --run-kernels",
    "claude mcp add trnprof -- trnprof mcp --root captures",
)


def mcp(
    root: Annotated[
        list[Path] | None,
        typer.Option(
            "--root",
            help="A folder whose files tools may read; again for several. Without it: this one.",
            show_default=False,
        ),
    ] = None,
    run_kernels: Annotated[
        bool, typer.Option("--run-kernels", help="Let dma_predict run kernels' Python in its guarded child.")
    ] = False,
    timeout: Annotated[float, typer.Option(help="Seconds that one call may take.", min=1, max=86_400)] = 300,
    debug: DebugOption = False,
) -> int:
    """Serve info, anatomy, breakdown, diff, fit, query, dma_predict, know, skills and schema over stdio.

    Read-only: tools write nothing, and read only what lies inside the roots. Needs the extra: pip install 'trnprof[mcp]'.
    """
    from trnprof.errors import InputMissingError
    from trnprof.mcp_server import ServerSettings, serve

    roots = tuple(path.resolve() for path in root or [Path()])
    for path in roots:
        if not path.is_dir():
            raise InputMissingError("no such folder; --root names one that tools may read", path=path)
    serve(ServerSettings(roots, run_kernels, timeout))
    return 0

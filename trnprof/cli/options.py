"""Options that several commands share, written once."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class OutputFormat(StrEnum):
    """The forms that a result can take."""

    TEXT = "text"
    JSON = "json"
    MD = "md"


STANDARD_OUTPUT = Path("-")
"""Where an answer goes that nobody named a place for; a large JSON answer goes to a file instead (cli/answer.py)."""

WHOLE_STANDARD_OUTPUT = Path("/dev/stdout")
"""What `--output -` means: all of it on standard output, however large."""


def _named_output(context: typer.Context, value: Path) -> Path:
    source = context.get_parameter_source("output")
    named = source is not None and source.name == "COMMANDLINE"
    return WHOLE_STANDARD_OUTPUT if named and value == STANDARD_OUTPUT else value


FormatOption = Annotated[OutputFormat, typer.Option("--format", "-f", help="text, json (one envelope) or md.")]
OutputOption = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        help="Write the result here; - is standard output, whole. Without it JSON above 32 KiB goes to a file, named in the answer.",
        show_default=False,
        callback=_named_output,
    ),
]
HtmlOption = Annotated[
    Path | None,
    typer.Option("--html", help="Write the same as one offline page here, besides the result.", show_default=False),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite an existing output file.")]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Exit with 1 if the capture has a data-quality warning or error.")
]
FullOption = Annotated[bool, typer.Option("--full", help="JSON with every row instead of the top ones and a rest.")]
JobsOption = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        "-j",
        min=1,
        max=256,
        help="Processes for the captures of a folder; without it as many as there are processors.",
        show_default=False,
    ),
]
NoCacheOption = Annotated[
    bool, typer.Option("--no-cache", help="Make everything again, and keep nothing ($TRNPROF_CACHE_DIR says where).")
]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
HardwareOption = Annotated[
    str | None,
    typer.Option(
        "--hardware",
        help="trn1, trn2 or trn3; without it the capture says, or trn2 is assumed.",
        show_default=False,
        autocompletion=lambda: ["trn1", "trn2", "trn3"],
    ),
]

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


FormatOption = Annotated[OutputFormat, typer.Option("--format", "-f", help="text, json (one envelope) or md.")]
OutputOption = Annotated[
    Path, typer.Option("--output", "-o", help="Write the result here; - is standard output.", show_default=False)
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

STANDARD_OUTPUT = Path("-")

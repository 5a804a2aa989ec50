"""`trnprof schema`: the JSON schema of a command's answer."""

from __future__ import annotations

from typing import Annotated

import typer

from trnprof.cli.options import STANDARD_OUTPUT, DebugOption, ForceOption, OutputOption

EXAMPLES = (
    "trnprof schema                     # which commands have one",
    "trnprof schema anatomy",
    "trnprof schema diff -o diff.schema.json",
)


def _complete_command(incomplete: str) -> list[str]:
    from trnprof.result_schema import commands_with_schema

    return [name for name in commands_with_schema() if name.startswith(incomplete)]


def schema(
    command: Annotated[
        str | None,
        typer.Argument(
            help="A command, as anatomy or skills-list; envelope is what all have in common.",
            autocompletion=_complete_command,
        ),
    ] = None,
    output: OutputOption = STANDARD_OUTPUT,
    force: ForceOption = False,
    debug: DebugOption = False,
) -> int:
    """Print the JSON schema of what a command prints with --format json."""
    import json

    from trnprof.cli.answer import write_output
    from trnprof.result_schema import commands_with_schema, schema_of

    if command is None:
        write_output("\n".join(commands_with_schema()) + "\n", output, force=force)
    else:
        document = schema_of(command)
        lines = [f"{json.dumps(key)}:{json.dumps(value, separators=(',', ':'))}" for key, value in document.items()]
        write_output("{" + ",\n ".join(lines) + "}\n", output, force=force)
    return 0

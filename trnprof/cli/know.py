"""`trnprof know`: what has won and lost on Trainium, with figures and sources."""

from __future__ import annotations

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
)

EXAMPLES = (
    "trnprof know moe",
    "trnprof know VEC001 --format json",
    "trnprof know linear attention state",
    "trnprof know                          # all of it",
)


def know(
    query: Annotated[
        list[str] | None,
        typer.Argument(help="Words, or a finding's code; none lists everything.", metavar="[WORD ...]"),
    ] = None,
    form: FormatOption = OutputFormat.TEXT,
    output: OutputOption = STANDARD_OUTPUT,
    force: ForceOption = False,
    full: FullOption = False,
    debug: DebugOption = False,
) -> int:
    """Look up what was tried on Trainium: what, where, gain or loss, why, and who says so."""
    from trnprof.cli.answer import deliver
    from trnprof.knowledge import search_knowledge
    from trnprof.render.know import know_markdown, know_report, know_text

    asked = " ".join(query or ())
    found = search_knowledge(asked)
    return deliver(
        know_report(found, asked, full=full),
        form=form,
        output=output,
        force=force,
        text=lambda: know_text(found, asked),
        markdown=lambda: know_markdown(found),
        brief=lambda: know_report(found, asked, full=False),
    )

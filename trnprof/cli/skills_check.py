"""`trnprof skills check`: are skills well formed, and do their commands exist?"""

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
)

EXAMPLES = (
    "trnprof skills check                     # the bundled ones",
    "trnprof skills check .claude/skills      # those of a project",
)


def skills_check(
    path: Annotated[
        Path | None,
        typer.Argument(help="A skill, or a folder of skills; without it the bundled ones.", show_default=False),
    ] = None,
    form: FormatOption = OutputFormat.TEXT,
    output: OutputOption = STANDARD_OUTPUT,
    force: ForceOption = False,
    full: FullOption = False,
    debug: DebugOption = False,
) -> int:
    """Check skills against the Agent Skills specification, their links, and that every trnprof line in them parses.

    Exits with 1 if anything is wrong.
    """
    from trnprof.cli.answer import deliver
    from trnprof.render.skills import check_report, check_text
    from trnprof.skill_library import bundled_folder, check_skill, skill_folders

    folders = skill_folders(path if path is not None else bundled_folder())
    problems = [problem for folder in folders for problem in check_skill(folder)]
    names = [folder.name if path is None else str(folder) for folder in folders]
    code = deliver(
        check_report(names, problems, full=full),
        form=form,
        output=output,
        force=force,
        text=lambda: check_text(names, problems),
        markdown=lambda: check_text(names, problems),
        brief=lambda: check_report(names, problems, full=False),
    )
    return 1 if problems else code

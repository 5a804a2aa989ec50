"""`trnprof skills show`: one skill's text."""

from __future__ import annotations

from typing import Annotated

import typer

from trnprof.cli.options import (
    STANDARD_OUTPUT,
    DebugOption,
    ForceOption,
    FormatOption,
    OutputFormat,
    OutputOption,
)
from trnprof.skill_library import SKILL_FILE

EXAMPLES = (
    "trnprof skills show step-anatomy",
    "trnprof skills show step-anatomy references/decision-table.md",
)


def _complete_skill(incomplete: str) -> list[str]:
    from trnprof.skill_library import bundled_skills

    return [skill.name for skill in bundled_skills() if skill.name.startswith(incomplete)]


def skills_show(
    name: Annotated[
        str, typer.Argument(help="The skill; `trnprof skills list` names them.", autocompletion=_complete_skill)
    ],
    file: Annotated[str, typer.Argument(help="One of its files.")] = SKILL_FILE,
    form: FormatOption = OutputFormat.TEXT,
    output: OutputOption = STANDARD_OUTPUT,
    force: ForceOption = False,
    debug: DebugOption = False,
) -> int:
    """Print a bundled skill, or one of its reference files."""
    from trnprof.cli.answer import deliver
    from trnprof.render.skills import show_report
    from trnprof.skill_library import bundled_skill

    skill = bundled_skill(name)
    text = skill.text(file)
    return deliver(
        show_report(skill, file), form=form, output=output, force=force, text=lambda: text, markdown=lambda: text
    )

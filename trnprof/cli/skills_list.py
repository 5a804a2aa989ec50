"""`trnprof skills list`: the bundled skills."""

from __future__ import annotations

from trnprof.cli.options import (
    STANDARD_OUTPUT,
    DebugOption,
    ForceOption,
    FormatOption,
    OutputFormat,
    OutputOption,
)

EXAMPLES = ("trnprof skills list", "trnprof skills list --format json")


def skills_list(
    form: FormatOption = OutputFormat.TEXT,
    output: OutputOption = STANDARD_OUTPUT,
    force: ForceOption = False,
    debug: DebugOption = False,
) -> int:
    """List the bundled skills and what each is for."""
    from trnprof.cli.answer import deliver
    from trnprof.render.skills import list_markdown, list_report, list_text
    from trnprof.skill_library import bundled_skills

    skills = bundled_skills()
    return deliver(
        list_report(skills),
        form=form,
        output=output,
        force=force,
        text=lambda: list_text(skills),
        markdown=lambda: list_markdown(skills),
    )

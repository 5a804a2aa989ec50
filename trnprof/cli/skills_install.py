"""`trnprof skills install`: the skills to where a coding agent finds them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trnprof.cli.options import (
    STANDARD_OUTPUT,
    DebugOption,
    FormatOption,
    OutputFormat,
    OutputOption,
)
from trnprof.skill_installer import Client

EXAMPLES = (
    "trnprof skills install                       # for Claude Code, into this project",
    "trnprof skills install --for claude --for codex --for cursor",
    "trnprof skills install --home                # for every project of yours",
    "trnprof skills install step-anatomy verify-change --project ../engine",
)


def skills_install(
    names: Annotated[
        list[str] | None, typer.Argument(help="Which skills; none means all of them.", metavar="[SKILL ...]")
    ] = None,
    clients: Annotated[
        list[Client] | None,
        typer.Option(
            "--for",
            help="For whom: claude (.claude/skills), codex (.agents/skills), cursor (.cursor/skills); give it again for "
            "several. Without it: claude.",
            show_default=False,
        ),
    ] = None,
    project: Annotated[Path, typer.Option(help="The project's folder.")] = Path(),
    home: Annotated[bool, typer.Option("--home", help="Into your home folder instead of a project.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done and do nothing.")] = False,
    form: FormatOption = OutputFormat.TEXT,
    output: OutputOption = STANDARD_OUTPUT,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite your edits of skills; an existing output file too.")
    ] = False,
    debug: DebugOption = False,
) -> int:
    """Copy the skills into a project or your home folder, or bring them up to date.

    The same call twice changes nothing. What you edited stays, and is named, until you say --force.
    """
    import sys

    from trnprof.cli.answer import deliver
    from trnprof.errors import InputMissingError
    from trnprof.render.skills import install_report, install_text
    from trnprof.skill_installer import State, install_skills
    from trnprof.skill_library import bundled_skill, bundled_skills

    root = Path.home() if home else project
    if not root.is_dir():
        raise InputMissingError("no such folder; name the project's with --project", path=root)
    skills = [bundled_skill(name) for name in dict.fromkeys(names)] if names else list(bundled_skills())
    wanted = list(dict.fromkeys(clients or [Client.CLAUDE]))
    installed = [install_skills(skills, root, client, force=force, dry_run=dry_run) for client in wanted]
    kept = sum(one.count(State.KEPT) for one in installed)
    if kept:
        print(f"trnprof: files kept as they are: {kept}; --force overwrites your edits", file=sys.stderr)
    return deliver(
        install_report(installed, dry_run=dry_run),
        form=form,
        output=output,
        force=force,
        text=lambda: install_text(installed, dry_run=dry_run),
        markdown=lambda: install_text(installed, dry_run=dry_run),
    )

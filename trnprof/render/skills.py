"""Skills, an installation and a check as JSON and text."""

from __future__ import annotations

from collections.abc import Sequence

from trnprof.render.envelope import Report
from trnprof.render.markdown import escaped
from trnprof.render.text import printable, wrapped
from trnprof.skill_installer import Installed, State
from trnprof.skill_library import Problem, Skill
from trnprof.version import __version__


def list_report(skills: Sequence[Skill]) -> Report:
    """Each skill's name, description, files and size."""
    rows = [
        {
            "name": skill.name,
            "description": skill.description,
            "files": list(skill.files),
            "bytes": sum(map(len, skill.files.values())),
        }
        for skill in skills
    ]
    return Report(command="skills-list", result={"version": __version__, "skills": rows})


def list_text(skills: Sequence[Skill]) -> str:
    """A paragraph a skill."""
    lines = [f"{skill.name}\n{wrapped(skill.description, indent='    ', first='    ')}" for skill in skills]
    return (
        "\n".join([*lines, "", "`trnprof skills show NAME` prints one, `trnprof skills install` installs them."]) + "\n"
    )


def list_markdown(skills: Sequence[Skill]) -> str:
    """One table."""
    rows = [f"| {escaped(skill.name)} | {escaped(skill.description)} |" for skill in skills]
    return "\n".join(["| skill | what it is for |", "|---|---|", *rows]) + "\n"


def show_report(skill: Skill, file: str) -> Report:
    """One file of a skill."""
    result: dict[str, object] = {
        "name": skill.name,
        "file": file,
        "files": list(skill.files),
        "text": skill.text(file),
    }
    return Report(command="skills-show", result=result)


def install_report(installed: Sequence[Installed], *, dry_run: bool) -> Report:
    """What was done in each folder; of the files those that are the user's."""
    folders = [
        {
            "client": one.client,
            "folder": one.folder,
            "previous_version": one.previous_version,
            "counts": {str(state): one.count(state) for state in State},
            "kept": [printable(path) for path, state in one.files.items() if state is State.KEPT],
        }
        for one in installed
    ]
    result: dict[str, object] = {"version": __version__, "dry_run": dry_run, "folders": folders}
    return Report(command="skills-install", result=result)


def install_text(installed: Sequence[Installed], *, dry_run: bool) -> str:
    """A line a folder, and what is the user's."""
    lines = ["nothing was written: --dry-run"] if dry_run else []
    for one in installed:
        counts = ", ".join(f"{one.count(state)} {state}" for state in State if one.count(state))
        lines.append(f"{one.client}: {printable(one.folder)}: {counts or 'nothing to do'}")
        lines += [
            f"  kept, since it is not as trnprof wrote it (--force overwrites): {printable(path)}"
            for path, state in one.files.items()
            if state is State.KEPT
        ]
    return "\n".join(lines) + "\n"


def check_report(folders: Sequence[str], problems: Sequence[Problem], *, full: bool) -> Report:
    """What is wrong, skill by skill."""
    shown = problems if full else problems[:20]
    result: dict[str, object] = {
        "skills": [printable(folder, 200) for folder in folders[: None if full else 20]],
        "skill_count": len(folders),
        "problem_count": len(problems),
        "problems": [
            {"path": printable(one.path, 400), "message": printable(one.message, 2000 if full else 200)}
            for one in shown
        ],
    }
    return Report(command="skills-check", result=result)


def check_text(folders: Sequence[str], problems: Sequence[Problem]) -> str:
    """A line a problem."""
    lines = [f"{printable(one.path, 400)}: {printable(one.message, 500)}" for one in problems]
    return "\n".join([*lines, f"{len(folders)} skills, {len(problems)} problems"]) + "\n"

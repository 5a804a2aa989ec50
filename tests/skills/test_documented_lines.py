"""Every `trnprof` line in a skill or a document is a command that parses, and runs on the bundled examples."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.skills.conftest import ROOT
from trnprof.cli import run
from trnprof.skill_library import command_error, trnprof_lines

PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "skills").rglob("*.md")),
)

NOT_RUN = {
    r"trnprof --install-completion": "changes the user's shell",
    r"trnprof mcp\b": "serves until its client goes away: tests/test_mcp.py",
    r"trnprof engine\b": "the engine's own tests",
    r"trnprof anatomy run/": "reads what the engine's line before it wrote: the engine's own tests",
}
"""What a line begins with, and why it is only parsed."""

PLACEHOLDER = re.compile(r"\b(FILE|NAME|CODE|COMMAND|DIR|VALUE)\b")


def lines_of(page: str) -> list[str]:
    return list(dict.fromkeys(trnprof_lines((ROOT / page).read_text(encoding="utf-8"))))


RUNNABLE = list(
    dict.fromkeys(
        line
        for page in PAGES
        for line in lines_of(page)
        if not PLACEHOLDER.search(line) and not any(re.match(start, line) for start in NOT_RUN)
    )
)


@pytest.mark.parametrize("page", PAGES)
def test_lines_parse(page: str) -> None:
    wrong = {line: error for line in lines_of(page) if (error := command_error(line)) is not None}
    assert not wrong


def test_examples_in_help_parse() -> None:
    """Each command's EXAMPLES, which its --help prints."""
    import importlib
    import pkgutil

    import trnprof.cli

    lines = []
    for module in pkgutil.iter_modules(trnprof.cli.__path__):
        examples = getattr(importlib.import_module(f"trnprof.cli.{module.name}"), "EXAMPLES", ())
        lines += [line for line in trnprof_lines("```\n" + "\n".join(examples) + "\n```") if "<" not in line]
    assert len(lines) > 40
    assert {line: error for line in lines if (error := command_error(line)) is not None} == {}


def test_a_wrong_line_is_found() -> None:
    """The check can fail: an option that is not there, a missing argument, a group without a command."""
    for line in ("trnprof anatomy step.ntff --fast", "trnprof diff --bar", "trnprof skills", "trnprof nosuch x"):
        assert command_error(line), line


def test_every_skill_has_lines() -> None:
    for skill in sorted((ROOT / "skills").glob("*/SKILL.md")):
        lines = lines_of(str(skill.relative_to(ROOT)))
        assert any("--format json" in line for line in lines), skill


@pytest.mark.slow
@pytest.mark.parametrize("line", RUNNABLE)
def test_lines_run(line: str, bundled: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Exit code 0; what it writes goes to a copy of the folder."""
    folder = tmp_path / "work"
    folder.mkdir()
    for entry in bundled.iterdir():
        (folder / entry.name).symlink_to(entry)
    if "--keep changed" in line:  # it makes what the next line reads
        (folder / "changed").unlink()
    if "lhs_t" in line:
        (folder / "kernel.py").unlink()
        shutil.copy(ROOT / "examples/kernels/matmul_tilings.py", folder / "kernel.py")
    if "inputs.py" in line or "--load" in line:  # a kernel of q, k and v
        (folder / "kernel.py").unlink()
        shutil.copy(ROOT / "examples/kernels/flash_attention.py", folder / "kernel.py")
    if "examples/" in line:
        (folder / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path))
    words = shlex.split(line.split(" | ")[0])[1:]
    printed, complaints = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complaints):
        code = run(words)
    assert code == 0, complaints.getvalue() + printed.getvalue()[-400:]

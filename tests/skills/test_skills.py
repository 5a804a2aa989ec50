"""The bundled skills: the reference validator, our own check, and what each must say."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from skills_ref import validate  # the Agent Skills reference validator

from tests.skills.conftest import ROOT
from trnprof.finding_codes import FINDING_CODES
from trnprof.findings import DATA_QUALITY_CODES
from trnprof.knowledge import all_knowledge, search_knowledge
from trnprof.nki.hazard_codes import HAZARD_CODES
from trnprof.skill_library import bundled_skills, check_skill, split_front_matter
from trnprof.version import __version__

SKILLS = sorted(path.parent for path in (ROOT / "skills").glob("*/SKILL.md"))
NAMES = {
    "step-anatomy",
    "dma-traffic-predictor",
    "gdn-profiling",
    "moe-decode",
    "collectives-and-waits",
    "kernel-change",
    "verify-change",
    "kernel-on-a-cpu",
    "device-hazards",
}


def test_the_nine_skills_are_there_and_bundled() -> None:
    assert {folder.name for folder in SKILLS} == {skill.name for skill in bundled_skills()} == NAMES


@pytest.mark.parametrize("folder", SKILLS, ids=lambda folder: folder.name)
def test_reference_validator_and_own_check(folder: Path) -> None:
    assert validate(folder) == []
    assert check_skill(folder) == ()


@pytest.mark.parametrize("folder", SKILLS, ids=lambda folder: folder.name)
def test_text_of_a_skill(folder: Path) -> None:
    text = (folder / "SKILL.md").read_text(encoding="utf-8")
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert all(path.suffix == ".md" for path in files)
    assert re.search(
        r"\bdata\b[^.]*\.? *[^.]*never[^.]*instruction|data\. Never follow an instruction",
        text,
        re.IGNORECASE | re.DOTALL,
    )
    assert len(text) < 8192, "an agent reads it whole"
    assert (folder / "references").is_dir()
    assert "Use when" in text or "Use for" in text or "Use after" in text or "Use before" in text
    linked = set(re.findall(r"\]\((references/[^)]+)\)", text))
    assert {f"references/{path.name}" for path in (folder / "references").iterdir()} == linked, (
        "each reference is linked"
    )


def test_codes_in_skills_exist() -> None:
    known = set(FINDING_CODES) | set(HAZARD_CODES) | set(DATA_QUALITY_CODES) | {"DQ040"}
    for path in (ROOT / "skills").rglob("*.md"):
        used = set(
            re.findall(r"\b(?:DQ|DMA|HBM|HAZ|LNC|CC|VEC|ACT|GPS|PE|THR|WAIT|PIPE|IDLE|RUN)\d{3}\b", path.read_text())
        )
        assert used <= known, (path, used - known)


def test_what_skills_look_up_is_known() -> None:
    for path in (ROOT / "skills").rglob("*.md"):
        for query in re.findall(r"trnprof know ([\w ]+?)(?: --format json|`|\n)", path.read_text()):
            if query != "CODE":
                assert search_knowledge(query), (path, query)


def test_every_skill_that_knowledge_names_exists() -> None:
    assert {name for entry in all_knowledge() for name in entry.skills} <= NAMES


WRONG = {
    "no front matter": ("# title\n", "front matter"),
    "other name": ("---\nname: other\ndescription: d\n---\nx\n", "folder's name"),
    "capital name": ("---\nname: Bad\ndescription: d\n---\nx\n", "a-z"),
    "no description": ("---\nname: skill\n---\nx\n", "description"),
    "long description": (f"---\nname: skill\ndescription: {'d' * 1025}\n---\nx\n", "description"),
    "unknown key": ("---\nname: skill\ndescription: d\nmodel: big\n---\nx\n", "'model'"),
    "yaml list": ("---\nname: skill\ndescription: [a, b]\n---\nx\n", "quote this value"),
    "broken quote": ('---\nname: skill\ndescription: "a\n---\nx\n', "quote"),
    "twice": ("---\nname: skill\nname: skill\ndescription: d\n---\nx\n", "twice"),
    "dead link": ("---\nname: skill\ndescription: d\n---\n[a](references/no.md)\n", "not in the skill"),
    "link out": ("---\nname: skill\ndescription: d\n---\n[a](../../etc/passwd)\n", "not in the skill"),
    "wrong command": ("---\nname: skill\ndescription: d\n---\n```\ntrnprof anatomy\n```\n", "Missing argument"),
    "unknown option": ("---\nname: skill\ndescription: d\n---\n`trnprof info step.ntff --quick`\n", "No such option"),
    "too long": ("---\nname: skill\ndescription: d\n---\n" + "x\n" * 501, "references/"),
}


@pytest.mark.parametrize("name", WRONG)
def test_check_finds_what_is_wrong(name: str, tmp_path: Path) -> None:
    text, expected = WRONG[name]
    folder = tmp_path / "skill"
    folder.mkdir()
    (folder / "SKILL.md").write_text(text, encoding="utf-8")
    problems = check_skill(folder)
    assert len(problems) == 1 and expected in problems[0].message, problems


def test_a_block_of_text_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "skill"
    folder.mkdir()
    text = (
        "---\nname: skill\ndescription: >-\n  Does one thing.\n  Use when asked.\nmetadata:\n  version: '1'\n---\nx\n"
    )
    (folder / "SKILL.md").write_text(text, encoding="utf-8")
    assert check_skill(folder) == () and validate(folder) == []
    fields, _ = split_front_matter(text.encode(), folder)
    assert fields == {"name": "skill", "description": "Does one thing. Use when asked.", "metadata": {"version": "1"}}


def test_check_refuses_what_could_run(tmp_path: Path) -> None:
    folder = tmp_path / "skill"
    (folder / "scripts").mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: skill\ndescription: d\n---\nx\n", encoding="utf-8")
    (folder / "scripts/run.sh").write_text("echo\n", encoding="utf-8")
    (problem,) = check_skill(folder)
    assert "not Markdown" in problem.message and problem.path.endswith("scripts/run.sh")


def test_front_matter_reads_as_the_reference_does() -> None:
    from skills_ref.parser import parse_frontmatter

    for folder in SKILLS:
        content = (folder / "SKILL.md").read_bytes()
        fields, body = split_front_matter(content, folder / "SKILL.md")
        theirs, their_body = parse_frontmatter(content.decode())
        assert fields == theirs and body.strip() == their_body.strip()


def test_an_installed_copy_has_every_file() -> None:
    """What setuptools is told to package matches each skill file and schema, and nothing else lies there."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["package-data"]
    for folder, package in (("skills", "trnprof.skills"), ("trnprof/schemas", "trnprof.schemas")):
        packaged = {path for pattern in data[package] for path in (ROOT / folder).glob(pattern)}
        there = {path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts}
        assert there - packaged == {ROOT / folder / "__init__.py"}
    assert "knowledge.toml" in data["trnprof"]


def test_plugin_manifests_agree_with_the_package() -> None:
    plugin = json.loads((ROOT / ".claude-plugin/plugin.json").read_text(encoding="utf-8"))
    market = json.loads((ROOT / ".claude-plugin/marketplace.json").read_text(encoding="utf-8"))
    assert (plugin["name"], plugin["version"]) == ("trnprof", __version__)
    (entry,) = market["plugins"]
    assert entry["name"] == plugin["name"] and entry["source"] == "./"

"""Installing skills: idempotent, versioned, and a user's edit is never lost without --force."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnprof.cli import run
from trnprof.errors import InputDataError
from trnprof.skill_installer import FOLDERS, MANIFEST, Client, State, install_skills
from trnprof.skill_library import Skill, bundled_skills


def skill(**files: bytes) -> Skill:
    return Skill(
        "one", "what one is for", {name.replace("__", "/").replace("_md", ".md"): text for name, text in files.items()}
    )


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("client", Client)
def test_twice_changes_nothing(client: Client, tmp_path: Path) -> None:
    skills = bundled_skills()
    first = install_skills(skills, tmp_path, client)
    assert set(first.files.values()) == {State.WRITTEN} and first.previous_version is None
    before = tree(tmp_path)
    assert {
        f"{FOLDERS[client]}/{one.name}/{file}": text for one in skills for file, text in one.files.items()
    }.items() <= (before.items())
    again = install_skills(skills, tmp_path, client)
    assert set(again.files.values()) == {State.UNCHANGED} and again.previous_version is not None
    assert tree(tmp_path) == before


def test_an_edit_is_kept_until_force(tmp_path: Path) -> None:
    folder = tmp_path / ".claude/skills/one"
    install_skills([skill(SKILL_md=b"1")], tmp_path, Client.CLAUDE)
    (folder / "SKILL.md").write_bytes(b"mine")
    for text in (b"1", b"2"):
        result = install_skills([skill(SKILL_md=text)], tmp_path, Client.CLAUDE)
        assert result.files == {"one/SKILL.md": State.KEPT}
        assert (folder / "SKILL.md").read_bytes() == b"mine"
    assert install_skills([skill(SKILL_md=b"2")], tmp_path, Client.CLAUDE, force=True).count(State.UPDATED) == 1
    assert (folder / "SKILL.md").read_bytes() == b"2"


def test_a_file_that_never_was_ours_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / ".claude/skills/one"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_bytes(b"theirs")
    (folder / "notes.md").write_bytes(b"notes")
    assert install_skills([skill(SKILL_md=b"1")], tmp_path, Client.CLAUDE).files == {"one/SKILL.md": State.KEPT}
    install_skills([skill(SKILL_md=b"1")], tmp_path, Client.CLAUDE, force=True)
    assert (folder / "notes.md").read_bytes() == b"notes", "not a file of the skill: not even with force"


def test_an_update_writes_and_removes_what_is_ours(tmp_path: Path) -> None:
    install_skills([skill(SKILL_md=b"1", references__a_md=b"a", references__b_md=b"b")], tmp_path, Client.CLAUDE)
    folder = tmp_path / ".claude/skills/one"
    (folder / "references/b.md").write_bytes(b"mine")
    result = install_skills([skill(SKILL_md=b"2")], tmp_path, Client.CLAUDE)
    assert result.files == {
        "one/SKILL.md": State.UPDATED,
        "one/references/a.md": State.REMOVED,
        "one/references/b.md": State.KEPT,
    }
    assert not (folder / "references/a.md").exists() and (folder / "references/b.md").read_bytes() == b"mine"


def test_one_skill_leaves_the_others(tmp_path: Path) -> None:
    skills = bundled_skills()
    install_skills(skills, tmp_path, Client.CLAUDE)
    before = tree(tmp_path)
    result = install_skills(skills[:1], tmp_path, Client.CLAUDE)
    assert set(result.files) == {f"{skills[0].name}/{file}" for file in skills[0].files}
    assert tree(tmp_path) == before
    assert set(install_skills(skills, tmp_path, Client.CLAUDE).files.values()) == {State.UNCHANGED}


def test_links_are_not_written_through(tmp_path: Path) -> None:
    outside = tmp_path / "outside.md"
    outside.write_bytes(b"precious")
    folder = tmp_path / "project/.claude/skills/one"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").symlink_to(outside)
    root = tmp_path / "project"
    assert install_skills([skill(SKILL_md=b"1")], root, Client.CLAUDE).files == {"one/SKILL.md": State.KEPT}
    install_skills([skill(SKILL_md=b"1")], root, Client.CLAUDE, force=True)
    assert outside.read_bytes() == b"precious" and (folder / "SKILL.md").read_bytes() == b"1"


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    result = install_skills(bundled_skills(), tmp_path, Client.CODEX, dry_run=True)
    assert result.count(State.WRITTEN) > 9 and tree(tmp_path) == {}


@pytest.mark.parametrize("manifest", ["", "[]", '{"version":"1"}', '{"version":"1","files":{"../../x":"0"}}', "\0\xff"])
def test_a_foreign_manifest_is_refused(manifest: str, tmp_path: Path) -> None:
    folder = tmp_path / FOLDERS[Client.CLAUDE]
    folder.mkdir(parents=True)
    (folder / MANIFEST).write_text(manifest, encoding="utf-8")
    with pytest.raises(InputDataError, match="manifest"):
        install_skills([skill(SKILL_md=b"1")], tmp_path, Client.CLAUDE)
    assert not (folder / "one").exists()


@given(
    st.lists(
        st.tuples(st.sampled_from(["install 1", "install 2", "edit", "delete"]), st.sampled_from("ab")), max_size=12
    )
)
def test_no_edit_is_ever_lost(steps: list[tuple[str, str]]) -> None:
    """Whatever is installed, edited and deleted in whatever order: what the user wrote last stays."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        root, edits = Path(folder), {}
        for step, name in steps:
            file = root / f".claude/skills/one/{name}.md"
            if step == "edit":
                file.parent.mkdir(parents=True, exist_ok=True)
                edits[file] = os.urandom(8)
                file.write_bytes(edits[file])
            elif step == "delete":
                file.unlink(missing_ok=True)
                edits.pop(file, None)
            else:
                version = step[-1].encode()
                install_skills([Skill("one", "", {"a.md": version, "b.md": version})], root, Client.CLAUDE)
            for edited, text in edits.items():
                assert edited.read_bytes() == text


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["skills", "install", "--project", str(tmp_path), "--for", "claude", "--for", "cursor", "--format", "json"]
    assert run(words) == 0
    folders = json.loads(capsys.readouterr().out)["result"]["folders"]
    assert [entry["client"] for entry in folders] == ["claude", "cursor"]
    (tmp_path / ".claude/skills/moe-decode/SKILL.md").write_text("mine", encoding="utf-8")
    assert run(words) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["result"]["folders"][0]["kept"] == ["moe-decode/SKILL.md"]
    assert "--force" in printed.err
    assert run(["skills", "check", str(tmp_path / ".cursor/skills")]) == 0
    assert run(["skills", "check", str(tmp_path / ".claude/skills")]) == 1
    assert run(["skills", "install", "--project", str(tmp_path / "absent")]) == 66
    assert run(["skills", "install", "no-such-skill", "--project", str(tmp_path)]) == 2


def test_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run(["skills", "install", "--home", "--for", "codex"]) == 0
    assert (tmp_path / ".agents/skills/step-anatomy/SKILL.md").is_file()

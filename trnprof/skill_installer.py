"""Copying the bundled skills to where coding agents look for skills, without ever losing a user's edit.

A manifest beside the skills holds the hash of each file as it was written. A file that still has that hash is trnprof's
and may be updated or removed; any other file that differs from the bundled one is the user's and stays.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from trnprof.errors import InputDataError, InputMissingError
from trnprof.skill_library import Skill
from trnprof.version import __version__

MANIFEST = ".trnprof-skills.json"
_MANIFEST_BYTES = 1 << 20


class Client(StrEnum):
    """Coding agents, by where they look for skills in a project or a home folder."""

    CLAUDE = "claude"
    CODEX = "codex"
    CURSOR = "cursor"


FOLDERS = {Client.CLAUDE: ".claude/skills", Client.CODEX: ".agents/skills", Client.CURSOR: ".cursor/skills"}
"""Below the project or the home folder."""


class State(StrEnum):
    """What an installation did with a file."""

    WRITTEN = "written"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    KEPT = "kept"
    """It is the user's: edited, or never trnprof's."""
    REMOVED = "removed"
    """trnprof's, and no longer part of any skill."""


@dataclass(frozen=True)
class Installed:
    """One client's folder after an installation."""

    client: str
    folder: str
    previous_version: str | None
    """Of the trnprof that installed before; None: none did."""
    files: dict[str, State]
    """By path below the folder."""

    def count(self, state: State) -> int:
        """How many files are in this state."""
        return sum(one is state for one in self.files.values())


def install_skills(
    skills: Sequence[Skill], root: Path, client: Client, *, force: bool = False, dry_run: bool = False
) -> Installed:
    """Bring `root`'s skill folder for `client` to the state of `skills`; the same call twice changes nothing.

    With `force` a user's edits of these files are overwritten; files that never were trnprof's stay even then.
    Raises: InputMissingError if the folder cannot be written; InputDataError for a manifest that cannot be read.
    """
    folder = root / FOLDERS[client]
    previous_version, known = _read_manifest(folder / MANIFEST)
    wanted = {f"{skill.name}/{file}": content for skill in skills for file, content in skill.files.items()}
    files: dict[str, State] = {}
    hashes: dict[str, str] = {}
    try:
        for path, content in wanted.items():
            state = _state(folder, path, content, known.get(path), force=force)
            files[path] = state
            if state in (State.WRITTEN, State.UPDATED) and not dry_run:
                _write(folder / path, content)
            if state is not State.KEPT:
                hashes[path] = _hash(content)
            elif path in known:
                hashes[path] = known[path]  # the user's edit of our file: still told from a file that never was ours
        names = {skill.name for skill in skills}
        for path, digest in known.items():
            if path in wanted:
                continue
            if path.split("/")[0] in names or not _bundled(path):
                present = _content(folder, path)
                if present is None:
                    continue
                files[path] = State.REMOVED if _hash(present) == digest else State.KEPT
                if files[path] is State.REMOVED and not dry_run:
                    _remove(folder, path)
                continue
            hashes[path] = digest  # a skill that was installed before and not asked for now
        if not dry_run:
            manifest = {"tool": "trnprof", "version": __version__, "files": dict(sorted(hashes.items()))}
            _write(folder / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())
    except OSError as error:
        raise InputMissingError(
            f"cannot be written ({error.strerror or error})", path=error.filename or folder
        ) from None
    return Installed(str(client), str(folder), previous_version, files)


def _bundled(path: str) -> bool:
    from trnprof.skill_library import bundled_folder

    return (bundled_folder() / path.split("/")[0]).is_dir()


def _state(folder: Path, path: str, content: bytes, known: str | None, *, force: bool) -> State:
    present = _content(folder, path)
    if present is None:
        return State.WRITTEN if not os.path.lexists(folder / path) or force else State.KEPT
    if present == content:
        return State.UNCHANGED
    return State.UPDATED if force or _hash(present) == known else State.KEPT


def _content(folder: Path, path: str) -> bytes | None:
    """The file's bytes; None if there is none, or something else than a plain file in plain folders stands there."""
    place = folder / path
    if any(one.is_symlink() for one in (place, *list(place.parents)[: path.count("/")])) or not place.is_file():
        return None
    return place.read_bytes()


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all; a link is replaced, never written through."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o644)  # noqa: PTH101
        os.replace(temporary, path)  # noqa: PTH105
    except BaseException:
        os.unlink(temporary)  # noqa: PTH108
        raise


def _remove(folder: Path, path: str) -> None:
    place = folder / path
    place.unlink()
    for parent in list(place.parents)[: path.count("/")]:
        if any(parent.iterdir()):
            return
        parent.rmdir()


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _read_manifest(path: Path) -> tuple[str | None, dict[str, str]]:
    """(version that installed, hash by path); names that lead out of the folder are refused."""
    if not path.is_file():
        return None, {}
    try:
        if path.stat().st_size > _MANIFEST_BYTES:
            raise ValueError
        document = json.loads(path.read_text(encoding="utf-8"))
        version, files = str(document["version"]), dict(document["files"])
        for name, digest in files.items():
            if not isinstance(digest, str) or name.startswith("/") or "\\" in name or ".." in name.split("/"):
                raise ValueError
    except (ValueError, KeyError, TypeError):
        raise InputDataError("not a manifest that trnprof wrote; move it away to install anew", path=path) from None
    return version, files

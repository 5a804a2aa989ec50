"""Results kept between runs, by the content they were made from; anything that does not fit is made again.

A key names the content of every input, the options and trnprof's own code, so an entry of an older version is never
found. An entry carries its key and a digest of its content: one that was cut short, changed or put in another's place is
not used. A folder that cannot be written or read means that nothing is kept; it is never an error.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from functools import cache
from pathlib import Path

from trnprof.typed_json import to_plain
from trnprof.version import __version__

ENVIRONMENT_VARIABLE = "TRNPROF_CACHE_DIR"
"""Names the folder; empty: nothing is kept."""

MAX_ENTRY_BYTES = 64 << 20
MAX_ENTRIES = 2000
"""The oldest beyond this many are removed."""

Key = dict[str, object]
"""Plain JSON values."""


def cache_folder() -> Path | None:
    """Where results are kept: $TRNPROF_CACHE_DIR, or the user's folder for such files; None: nowhere."""
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    if named is not None:
        return Path(named) if named else None
    try:
        home = Path.home()
    except RuntimeError:
        return None
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "trnprof"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "trnprof" / "Cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "trnprof"


class ResultCache:
    """A folder of results."""

    def __init__(self, folder: Path | None) -> None:
        """folder: made when the first result is kept; None: nothing is kept or found."""
        self._folder = folder

    def load(self, key: Key) -> object | None:
        """What was kept under the key, as parsed from JSON; None if there is nothing, or nothing that can be trusted."""
        path = self._path(key)
        if path is None:
            return None
        try:
            if path.stat().st_size > MAX_ENTRY_BYTES:
                return None
            entry = json.loads(path.read_bytes())
            if entry["key"] != _whole(key) or entry["sha256"] != _digest(entry["content"]):
                return None
            return json.loads(entry["content"])
        except (OSError, ValueError, TypeError, LookupError, RecursionError):
            return None

    def store(self, key: Key, value: object) -> None:
        """Keep a result: dataclasses, dicts, lists and JSON's values."""
        path = self._path(key)
        if path is None:
            return
        content = json.dumps(to_plain(value), allow_nan=False, separators=(",", ":"))
        entry = json.dumps({"key": _whole(key), "sha256": _digest(content), "content": content})
        if len(entry) > MAX_ENTRY_BYTES:
            return
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    file.write(entry)
                os.replace(temporary, path)  # noqa: PTH105
            except BaseException:
                os.unlink(temporary)  # noqa: PTH108
                raise
            self._remove_oldest(path.parent)
        except OSError:
            return

    def _path(self, key: Key) -> Path | None:
        if self._folder is None:
            return None
        return self._folder / f"{_digest(json.dumps(_whole(key), sort_keys=True))}.json"

    @staticmethod
    def _remove_oldest(folder: Path) -> None:
        entries = list(folder.glob("*.json"))
        if len(entries) <= MAX_ENTRIES:
            return
        dated = sorted((entry.stat().st_mtime_ns, entry) for entry in entries)
        for _, entry in dated[: len(entries) - MAX_ENTRIES]:
            entry.unlink(missing_ok=True)


def _whole(key: Key) -> Key:
    return {"version": __version__, "code": code_digest(), **key}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@cache
def code_digest() -> str:
    """A digest of the code that results are made with, by its files' sizes and times: a checkout's version stays the same."""
    import trnprof.analyzers
    import trnprof.hardware
    import trnprof.readers

    digest = hashlib.sha256()
    folders = [
        Path(__file__).parent,
        *(Path(m.__path__[0]) for m in (trnprof.readers, trnprof.analyzers, trnprof.hardware)),
    ]
    for folder in folders:
        for path in sorted((*folder.glob("*.py"), *folder.glob("*.toml"))):
            found = path.stat()
            digest.update(f"{path.name} {found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()

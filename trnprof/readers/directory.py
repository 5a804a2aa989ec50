"""A folder of captures: which of its files are captures, which are programs, and which rank each capture is of."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from trnprof.errors import InputDataError, InputMissingError
from trnprof.readers.detect import Format, detect_format

MAX_FILES = 10_000
"""More entries than this in one folder is no folder of captures."""

_MAX_DEPTH = 3
"""The runtime writes captures one or two folders down: <instance>_pid_<pid>/<time>/profile_nc_0_session_0.ntff."""

_RANK = re.compile(r"(?:^|[^a-z])(?:rank|worker|vnc|nc|core)[_-]?(\d{1,6})", re.IGNORECASE)
_ONLY_NUMBER = re.compile(r"(\d{1,6})(?:@\w+)?")
_MAX_MISSING_SHARE = 2
"""Numbers that are this many times sparser than dense are no numbering of ranks."""


@dataclass(frozen=True)
class CaptureFolder:
    """What a folder holds, by content."""

    captures: tuple[Path, ...]
    """Files and Explorer directories with a profile, sorted by name."""
    neffs: tuple[Path, ...]
    """Programs, sorted by name."""
    rejected: tuple[tuple[Path, str], ...] = ()
    """What has a capture's name but is none, and why: an empty file, a directory without tables."""


def captures_in(path: Path) -> CaptureFolder:
    """The captures in `path`: itself, if it is a file or one Explorer directory; else what lies in it.

    Where nothing lies directly in it, its folders are looked through, as deep as the runtime nests them.

    Raises: InputMissingError if nothing is there; InputDataError if the folder holds no device profile.
    """
    if not path.is_dir() or any(path.glob("*.parquet")):
        return CaptureFolder((path,), ())
    found = _Found()
    folders = [path]
    for _ in range(_MAX_DEPTH):
        folders = [inner for folder in folders for inner in _look_in(folder, found)]
        if found.captures or not folders:
            break
    if not found.captures:
        named = f"; {found.rejected[0][0].name}: {found.rejected[0][1]}" if found.rejected else ""
        raise InputDataError(
            f"no device profile in the folder (saw {len(found.neffs)} neff, 0 ntff/parquet/json){named}; "
            "capture one with: neuron-explorer capture -n model.neff -s step.ntff",
            path=path,
        )
    return CaptureFolder(tuple(found.captures), tuple(found.neffs), tuple(found.rejected))


class _Found:
    def __init__(self) -> None:
        self.captures: list[Path] = []
        self.neffs: list[Path] = []
        self.rejected: list[tuple[Path, str]] = []
        self.entry_count = 0


def _look_in(folder: Path, found: _Found) -> list[Path]:
    """Sort one folder's entries; returns the folders in it that are no captures."""
    try:
        children = sorted(folder.iterdir())
    except OSError as error:
        raise InputMissingError(f"cannot be read ({error.strerror or error})", path=folder) from None
    found.entry_count += len(children)
    if found.entry_count > MAX_FILES:
        raise InputDataError(f"{found.entry_count} entries; name one capture in it", path=folder)
    folders = []
    for child in children:
        try:
            kind = detect_format(child)
        except (InputDataError, InputMissingError) as error:
            if child.suffix.lower() == ".ntff" or (rank_in_name(child) is not None and _could_be_capture(child)):
                found.rejected.append((child, error.message))
            if child.is_dir() and not child.is_symlink():
                folders.append(child)
            continue
        (found.neffs if kind is Format.NEFF else found.captures).append(child)
    return folders


def _could_be_capture(path: Path) -> bool:
    """Is it an empty directory, or a file of a kind that captures come in?"""
    if path.is_dir():
        return path.name.endswith("@latest") or not any(path.iterdir())
    return path.suffix.lower() in (".json", ".gz", ".ntff")


def rank_in_name(path: Path) -> int | None:
    """The rank (or worker, or NeuronCore) that a capture's name gives: 5 of profile_rank_5.ntff and of vnc_5@latest."""
    stem = path.name.removesuffix(".gz").removesuffix(".json").removesuffix(".ntff")
    found = list(_RANK.finditer(stem))
    if found:
        return int(found[0][1])
    number = _ONLY_NUMBER.fullmatch(stem)
    return int(number[1]) if number else None


def missing_ranks(ranks: set[int]) -> tuple[int, ...]:
    """The numbers that are not there between the others, where they are a numbering: from 0, or else from the lowest."""
    if len(ranks) < 2:
        return ()
    first = 0 if min(ranks) <= 1 else min(ranks)
    missing = (
        [number for number in range(first, max(ranks) + 1) if number not in ranks] if max(ranks) < MAX_FILES else []
    )
    return tuple(missing) if len(missing) <= _MAX_MISSING_SHARE * len(ranks) else ()

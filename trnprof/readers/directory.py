"""A folder of captures: which of its files are captures, and which are programs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trnprof.errors import InputDataError, InputMissingError
from trnprof.readers.detect import Format, detect_format

MAX_FILES = 10_000
"""More entries than this in one folder is no folder of captures."""


@dataclass(frozen=True)
class CaptureFolder:
    """What a folder holds, by content."""

    captures: tuple[Path, ...]
    """Files and Explorer directories with a profile, sorted by name."""
    neffs: tuple[Path, ...]
    """Programs, sorted by name."""


def captures_in(path: Path) -> CaptureFolder:
    """The captures in `path`: itself, if it is a file or one Explorer directory; else what lies directly in it.

    Raises: InputMissingError if nothing is there; InputDataError if the folder holds no device profile.
    """
    if not path.is_dir() or any(path.glob("*.parquet")):
        return CaptureFolder((path,), ())
    captures: list[Path] = []
    neffs: list[Path] = []
    counts = {"neff": 0, "ntff": 0, "parquet": 0, "json": 0}
    try:
        children = sorted(path.iterdir())
    except OSError as error:
        raise InputMissingError(f"cannot be read ({error.strerror or error})", path=path) from None
    if len(children) > MAX_FILES:
        raise InputDataError(f"{len(children)} entries; name one capture in it", path=path)
    for child in children:
        try:
            found = detect_format(child)
        except (InputDataError, InputMissingError):
            continue
        if found is Format.NEFF:
            neffs.append(child)
            counts["neff"] += 1
            continue
        captures.append(child)
        counts["ntff" if found is Format.NTFF else "parquet" if found is Format.EXPLORER_PARQUET else "json"] += 1
    if not captures:
        raise InputDataError(
            f"no device profile in the folder (saw {counts['neff']} neff, 0 ntff/parquet/json); "
            "capture one with: neuron-explorer capture -n model.neff -s step.ntff",
            path=path,
        )
    return CaptureFolder(tuple(captures), tuple(neffs))

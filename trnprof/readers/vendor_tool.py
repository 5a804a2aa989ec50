"""An NTFF version that trnprof does not read, converted by the vendor's own tool where it is installed.

`neuron-explorer view` writes Explorer Parquet into the directory that --output-file names; its predecessor,
`neuron-profile view`, writes the legacy JSON. Source: tools/neuron-explorer/how-to-analyze-profile-output.rst and
archive/profiler/neuron-profile-user-guide.rst in aws-neuron-sdk. Never run here on the real tools: unverified on device.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trnprof.errors import InputDataError, InputMissingError
from trnprof.readers.detect import NTFF_VERSIONS

MAX_SECONDS = 2 * 3600
"""The vendor says that more than half an hour is expected above 2 GB."""

_TOOLS = (("neuron-explorer", "parquet", "profile@latest"), ("neuron-profile", "json", "profile.json"))
"""(program, the format it is asked for, the name of what it writes), the newer one first."""


@dataclass(frozen=True)
class Converted:
    """What the tool made of a capture."""

    path: Path
    command: str
    """As it was run, for a shell."""


def unread_version(path: Path) -> int | None:
    """The container version of an NTFF that trnprof does not read; None for one that it reads, or that has none.

    Raises: InputMissingError if the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            head = file.read(1)
    except OSError as error:
        raise InputMissingError(f"cannot be read ({error.strerror or error})", path=path) from None
    return head[0] if head and head[0] not in NTFF_VERSIONS else None


@contextmanager
def converted(ntff: Path, neff: Path | None, version: int) -> Iterator[Converted]:
    """The capture as the vendor's tool converts it, in a folder that is gone afterwards.

    neff: the program that the capture ran; without it the only NEFF beside the capture.

    Raises: InputDataError with the exact command where no tool is installed, there is no NEFF, or the tool fails.
    """
    program = neff or _only_neff(ntff)
    found = next((tool for tool in _TOOLS if shutil.which(tool[0])), None)
    if found is None or program is None:
        name, form, written = found or _TOOLS[0]
        command = shlex.join(_command(name, program or Path("model.neff"), ntff, form, Path(written)))
        missing = (
            f"{name} is not on PATH" if found is None else "the NEFF that it ran is not beside it (name it with --neff)"
        )
        raise InputDataError(
            f"file has NTFF version {version}; supported {NTFF_VERSIONS[0]}-{NTFF_VERSIONS[-1]}; upgrade trnprof, or "
            f"convert it with the vendor's tool and give trnprof the result: {command}  ({missing})",
            path=ntff,
        )
    name, form, written = found
    with tempfile.TemporaryDirectory(prefix="trnprof-convert-") as folder:
        target = Path(folder) / written
        arguments = _command(name, program.resolve(), ntff.resolve(), form, target)
        command = shlex.join(_command(name, program, ntff, form, Path(written)))
        try:
            ran = subprocess.run(
                arguments, stdin=subprocess.DEVNULL, capture_output=True, timeout=MAX_SECONDS, check=False, cwd=folder
            )
        except subprocess.TimeoutExpired:
            raise InputDataError(
                f"{name} did not finish within {MAX_SECONDS // 60} minutes; run it yourself: {command}", path=ntff
            ) from None
        except OSError as error:
            raise InputDataError(f"{name} cannot be run ({error.strerror or error}): {command}", path=ntff) from None
        if ran.returncode or not target.exists():
            said = (ran.stderr or ran.stdout).decode("utf-8", "replace").strip().splitlines()
            raise InputDataError(
                f"{name} could not convert it (exit code {ran.returncode}, "
                f"{said[-1][:200] if said else 'it said nothing'}); run it yourself: {command}",
                path=ntff,
            )
        try:
            yield Converted(target, command)
        except (InputDataError, InputMissingError) as error:
            raise InputDataError(
                f"what {name} made of it cannot be read: {error.message}; run it yourself: {command}", path=ntff
            ) from None


def _command(name: str, neff: Path, ntff: Path, form: str, target: Path) -> list[str]:
    ingest_only = ["--ingest-only"] if form == "parquet" else []
    return [
        *(name, "view", "-n", str(neff), "-s", str(ntff)),
        *ingest_only,
        *("--output-format", form, "--output-file", str(target)),
    ]


def _only_neff(ntff: Path) -> Path | None:
    """The NEFF with the capture's own stem, or the only one in its folder."""
    own = ntff.with_suffix(".neff")
    if own.is_file():
        return own
    beside = sorted(path for path in ntff.parent.glob("*.neff") if path.is_file())
    return beside[0] if len(beside) == 1 else None

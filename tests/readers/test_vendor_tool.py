"""An NTFF of an unknown version goes through the vendor's tool where it is installed; a small program stands in for it.

The stand-in checks its arguments against the documented command line and writes a profile with our own writers: it takes
the vendor's place on PATH, no part of trnprof's.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.table_profiles import issue
from trnprof.demo import published_step
from trnprof.errors import InputDataError
from trnprof.readers import read_profile

UNKNOWN = bytes([7]) + (300).to_bytes(8, "little") + bytes(119) + bytes(300)

STAND_IN = """#!{python}
import argparse, sys
from pathlib import Path
parser = argparse.ArgumentParser()
parser.add_argument("command", choices=["view"])
parser.add_argument("-n", "--neff-path", required=True)
parser.add_argument("-s", "--session-file", required=True)
parser.add_argument("--ingest-only", action="store_true")
parser.add_argument("--output-format", required=True, choices=["{form}"])
parser.add_argument("--output-file", required=True)
given = parser.parse_args()
assert Path(given.neff_path).is_file() and Path(given.session_file).read_bytes()[0] == 7
{body}
"""

WRITE_PARQUET = """
from trnprof.demo import published_step
from trnprof.writers.explorer_parquet import write_explorer_parquet
write_explorer_parquet(published_step(), Path(given.output_file))
"""

WRITE_JSON = """
from trnprof.demo import published_step
from trnprof.writers.legacy_json import write_legacy_json
write_legacy_json(published_step(), Path(given.output_file))
"""


@pytest.fixture
def capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A capture of an unknown version with its NEFF beside it, and nothing of the vendor's on PATH."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    folder = tmp_path / "captured here"
    folder.mkdir()
    (folder / "model.neff").write_bytes(b"a program")
    (folder / "step.ntff").write_bytes(UNKNOWN)
    return folder / "step.ntff"


def install(tmp_path: Path, name: str, form: str, body: str) -> None:
    program = tmp_path / "bin" / name
    program.write_text(STAND_IN.format(python=sys.executable, form=form, body=body), encoding="utf-8")
    program.chmod(0o755)


def refusal(capture: Path, **options: Path) -> str:
    with pytest.raises(InputDataError) as error:
        read_profile(capture, **options)
    assert error.value.path == str(capture)
    return error.value.message


@pytest.mark.parametrize(
    ("name", "form", "body"),
    [("neuron-explorer", "parquet", WRITE_PARQUET), ("neuron-profile", "json", WRITE_JSON)],
)
def test_the_tool_s_profile_is_read(capture: Path, tmp_path: Path, name: str, form: str, body: str) -> None:
    install(tmp_path, name, form, body)
    before = sorted(tmp_path.rglob("*"))
    profile = read_profile(capture)
    whole = published_step()
    assert profile.instructions is not None and whole.instructions is not None
    assert len(profile.instructions) == len(whole.instructions)
    assert profile.metadata.provenance == whole.metadata.provenance
    detail = issue(profile, "DQ033")[1]
    assert detail.startswith(f"{name} view -n '{capture.parent}/model.neff' -s '{capture}'")
    assert sorted(tmp_path.rglob("*")) == before, "nothing is left behind"


def test_without_a_tool_the_error_has_the_command(capture: Path) -> None:
    message = refusal(capture)
    assert message.startswith("file has NTFF version 7; supported 4-6; upgrade trnprof")
    assert (
        f"neuron-explorer view -n '{capture.parent}/model.neff' -s '{capture}' --ingest-only --output-format parquet "
        "--output-file profile@latest"
    ) in message
    assert "not on PATH" in message


def test_a_tool_needs_the_program_too(capture: Path, tmp_path: Path) -> None:
    install(tmp_path, "neuron-explorer", "parquet", WRITE_PARQUET)
    (capture.parent / "model.neff").rename(tmp_path / "elsewhere.neff")
    assert "--neff" in refusal(capture)
    assert read_profile(capture, neff=tmp_path / "elsewhere.neff").instructions is not None


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("print('cannot parse \\x1b[31m this', file=sys.stderr); sys.exit(3)", "exit code 3, cannot parse"),
        ("pass", "exit code 0, it said nothing"),
        ("Path(given.output_file).mkdir()", "without Explorer Parquet tables"),
    ],
)
def test_a_tool_that_fails_is_told_apart(capture: Path, tmp_path: Path, body: str, said: str) -> None:
    install(tmp_path, "neuron-explorer", "parquet", body)
    assert said in refusal(capture)


def test_known_versions_are_never_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    install(tmp_path, "neuron-explorer", "parquet", WRITE_PARQUET)
    path = tmp_path / "step.ntff"
    path.write_bytes(bytes([6]) + UNKNOWN[1:])
    assert "version" not in refusal(path)

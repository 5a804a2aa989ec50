"""The command-line contract: exit codes, one-line errors, one envelope, nothing half-written (DESIGN.md section 5)."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from trnprof.cli import build_app

EMPTY = b""
TEXT = b"not a capture at all\nsecond line\n"
UNKNOWN_VERSION = bytes([7]) + (300).to_bytes(8, "little") + bytes(119) + bytes(300)
HEADER_ONLY = bytes([6]) + (3000).to_bytes(8, "little") + bytes(119)

DAMAGED = {
    "empty": (EMPTY, "empty"),
    "text": (TEXT, "not a capture"),
    "binary": (os.urandom(4) + b"\xff" * 600, "not a capture|version|truncated|damaged"),
    "unknown version": (UNKNOWN_VERSION, r"version 7"),
    "header only": (HEADER_ONLY, ""),
    "json without end": (b'{"instruction": [{"a": 1', "line 1"),
    "quote in a name": (b'{"instruction": [{"name": "a"b"}]}', r"line 1|byte"),
    "damaged gzip": (b"\x1f\x8b\x08\x00garbage", "gzip"),
}


def one_line(stderr: str) -> str:
    lines = stderr.strip("\n").split("\n")
    assert len(lines) == 1, stderr
    assert "Traceback" not in stderr
    return lines[0]


@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.parametrize("command", ["anatomy", "info"])
def test_damaged_input_is_one_line_and_65(trnprof: Run, tmp_path: Path, name: str, command: str) -> None:
    content, expected = DAMAGED[name]
    path = tmp_path / "step.ntff"
    path.write_bytes(content)
    before = sorted(tmp_path.rglob("*"))
    result = trnprof(command, path.name)
    assert (result.returncode, result.stdout) == (65, "")
    line = one_line(result.stderr)
    assert line.startswith("trnprof: step.ntff: ")
    assert re.search(expected, line), line
    assert sorted(tmp_path.rglob("*")) == before, "nothing is written"


def test_missing_input_is_66(trnprof: Run) -> None:
    result = trnprof("anatomy", "absent.ntff")
    assert result.returncode == 66
    assert one_line(result.stderr) == "trnprof: absent.ntff: no such file; check the path"


def test_folder_without_anything(trnprof: Run, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    result = trnprof("anatomy", "nothing")
    assert result.returncode == 65
    assert "no device profile in the folder (saw 0 neff, 0 ntff/parquet/json)" in one_line(result.stderr)


def test_usage_errors_are_2(trnprof: Run, example: Path) -> None:
    for arguments in (
        ["anatomy"],
        ["anatomy", example, "--format", "yaml"],
        ["anatomy", example, "--bandwidth", "fast"],
        ["anatomy", example, "--bandwidth", "-3"],
        ["anatomy", example, "--hardware", "trn9"],
        ["no-such-command"],
    ):
        result = trnprof(*arguments)
        assert result.returncode == 2, arguments
        one_line(result.stderr)


@pytest.mark.parametrize(
    "name", ["a\nb.ntff", "tab\t.ntff", "esc\x1b[2J.ntff", "quote'\".ntff", "<b>.ntff", "x" * 200, "\udcff\udcfe.ntff"]
)
def test_hostile_names_stay_on_one_line(trnprof: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(TEXT)
    result = trnprof("anatomy", name, "--format", "json")
    assert result.returncode == 65
    line = one_line(result.stderr)
    assert not re.search(r"[\x00-\x1f\x7f]", line)
    error = json.loads(result.stdout)["error"]
    assert error["exit_code"] == 65 and error["kind"] == "bad-input"
    assert error["path"] is not None


def test_errors_have_the_envelope_in_json(trnprof: Run) -> None:
    for arguments, kind, code in (
        (["anatomy", "absent.ntff", "--format", "json"], "input-missing", 66),
        (["anatomy", "--format=json"], "usage", 2),
    ):
        result = trnprof(*arguments)
        envelope = json.loads(result.stdout)
        assert list(envelope) == [
            "schema",
            "tool",
            "inputs",
            "hardware",
            "data_quality",
            "result",
            "findings",
            "error",
        ]
        assert envelope["schema"] == "trnprof.anatomy/1"
        assert envelope["error"]["kind"] == kind
        assert result.returncode == envelope["error"]["exit_code"] == code


def test_the_example_s_anatomy_is_the_published_one(trnprof: Run, example: Path) -> None:
    """24.2 ms = 6.1 + 10.0 + 4.6 + 2.8 + 0.7; 2,038 MB a core; 125 collectives; labelled modelled."""
    result = trnprof("anatomy", example, "--format", "json")
    assert result.returncode == 0 and result.stderr == ""
    assert len(result.stdout) < 8192
    envelope = json.loads(result.stdout)
    assert envelope["inputs"][0]["provenance"] == "modelled"
    assert envelope["hardware"]["bandwidth_bytes_per_s"] == 336_000_000_000
    for core in envelope["result"]["cores"]:
        assert core["window_ns"] == 24_200_000
        assert core["parts_ns"] == {
            "runtime_overhead": 0,
            "memory_floor": 6_065_476,
            "busy_beyond_floor": 10_034_524,
            "in_kernel_wait": 4_600_000,
            "exposed_collective": 2_800_000,
            "idle": 700_000,
        }
        assert sum(core["parts_ns"].values()) == core["window_ns"]
        assert core["hbm"]["read_bytes"] + core["hbm"]["write_bytes"] == 2_038_000_000
        assert core["collectives"]["count"] == 125
    assert trnprof("anatomy", example, "--bandwidth", "spec", "--format", "json").stdout != result.stdout


def test_demo_prints_it_and_says_modelled(trnprof: Run, tmp_path: Path) -> None:
    """The engine's own step, then a real capture's transcript; each says what it is."""
    result = trnprof("demo", "--keep", "kept")
    assert result.returncode == 0
    modelled, _, real = result.stdout.partition("and a real capture")
    assert "provenance modelled" in modelled and "= window" in modelled and "collectives: 9" in modelled
    assert "provenance measured-device" in real and "= window" in real
    assert [line for line in result.stdout.splitlines() if len(line) > 80] == []
    kernels = trnprof("breakdown", "kept", "--by", "kernel").stdout
    assert "gdn.delta_rule" in kernels and "moe.experts" in kernels and "attention.attend" in kernels
    again = trnprof("demo", "--keep", "kept")
    assert again.returncode == 2 and "--force" in one_line(again.stderr)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_demo_of_the_published_step(trnprof: Run, tmp_path: Path) -> None:
    result = trnprof("demo", "--published")
    assert result.returncode == 0
    assert "provenance modelled" in result.stdout and "24.200 ms" in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_text_fits_80_columns(trnprof: Run, example: Path) -> None:
    for command in (["anatomy", example], ["info", example], ["demo", "--published"]):
        long = [line for line in trnprof(*command).stdout.splitlines() if len(line) > 80 and str(example) not in line]
        assert long == []


def test_same_input_same_bytes(trnprof: Run, example: Path) -> None:
    """Whatever the hash seed (G3)."""
    for form in ("text", "json", "md"):
        runs = {trnprof("anatomy", example, "--format", form, PYTHONHASHSEED=seed).stdout for seed in ("0", "1", "77")}
        assert len(runs) == 1


def test_output_is_whole_or_not_at_all(trnprof: Run, tmp_path: Path, example: Path) -> None:
    target = tmp_path / "anatomy.json"
    assert trnprof("anatomy", example, "--format", "json", "-o", target).stdout == ""
    first = target.read_text(encoding="utf-8")
    assert json.loads(first)["schema"] == "trnprof.anatomy/1"
    refused = trnprof("anatomy", example, "-o", target)
    assert refused.returncode == 2 and "--force" in one_line(refused.stderr)
    assert target.read_text(encoding="utf-8") == first
    assert trnprof("anatomy", example, "-o", target, "--force").returncode == 0
    assert target.read_text(encoding="utf-8") != first
    assert trnprof("anatomy", example, "-o", tmp_path / "no" / "folder.txt").returncode == 66
    assert sorted(path.name for path in tmp_path.iterdir()) == ["anatomy.json"], "no temporary file is left"


def test_a_closed_pipe_is_no_error(trnprof: Run, example: Path) -> None:
    import subprocess
    import sys

    command = f"{sys.executable} -m trnprof anatomy {example} | head -1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert result.stderr == ""


def test_an_ascii_terminal_gets_replacements(trnprof: Run, example: Path) -> None:
    result = trnprof("anatomy", example, PYTHONIOENCODING="ascii")
    assert result.returncode == 0 and "memory floor" in result.stdout


def test_strict_fails_on_a_warning_only(trnprof: Run, example: Path) -> None:
    """The example's only entries are notes; folders with an unreadable file have a warning."""
    assert trnprof("anatomy", example, "--strict").returncode == 0
    folder = example.parent / "with-damage"
    folder.mkdir(exist_ok=True)
    if not (folder / "good@latest").exists():
        (folder / "good@latest").symlink_to(example)
    (folder / "bad.ntff").write_bytes(HEADER_ONLY)
    lenient = trnprof("anatomy", folder)
    assert lenient.returncode == 0 and "DQ022" in lenient.stdout and "bad.ntff" in lenient.stdout
    strict = trnprof("anatomy", folder, "--strict")
    assert strict.returncode == 1 and "DQ022" in one_line(strict.stderr)


def test_every_command_has_help_with_examples(trnprof: Run) -> None:
    names = [command.callback.__name__ for command in build_app().registered_commands if command.callback]
    assert {"anatomy", "info", "demo"} <= set(names)
    for name in names:
        result = trnprof(name.replace("_", "-"), "--help")
        assert result.returncode == 0
        assert f"trnprof {name.replace('_', '-')}" in result.stdout
        assert "Examples:" in result.stdout


def test_help_imports_nothing_heavy(trnprof: Run) -> None:
    """numpy, pyarrow, pandas, plotly and duckdb cost 0.1 to 0.5 s each: help, version and completion do without."""
    import subprocess
    import sys

    probe = (
        "import sys; from trnprof.cli import run; run(['anatomy', '--help']); "
        "print([m for m in ('numpy', 'pyarrow', 'pandas', 'plotly', 'duckdb', 'jinja2', 'rich') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_version(trnprof: Run) -> None:
    from trnprof.version import __version__

    assert trnprof("--version").stdout == f"trnprof {__version__}\n"


def test_a_folder_with_programs_and_no_profile(trnprof: Run, tmp_path: Path) -> None:
    """A4: one NEFF and no capture: said with counts, not "no data"."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "model.neff").write_bytes(
        (2).to_bytes(8, "little") + (1024).to_bytes(8, "little") + bytes(1008) + b"\x1f\x8b\x08\x00"
    )
    result = trnprof("anatomy", "run")
    assert result.returncode == 65
    assert "no device profile in the folder (saw 1 neff, 0 ntff/parquet/json)" in one_line(result.stderr)


def test_a_program_without_its_capture_is_named(trnprof: Run, example: Path, tmp_path: Path) -> None:
    """A3: the captures that are there are analysed, the NEFF that never ran is named, exit 0."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "ran@latest").symlink_to(example)
    (folder / "never_ran.neff").write_bytes(
        (2).to_bytes(8, "little") + (1024).to_bytes(8, "little") + bytes(1008) + b"\x1f\x8b\x08\x00"
    )
    result = trnprof("anatomy", "run", "--format", "json")
    assert result.returncode == 0, result.stderr
    envelope = json.loads(result.stdout)
    (entry,) = [entry for entry in envelope["data_quality"] if entry["code"] == "DQ015"]
    assert entry["count"] == 1 and "never_ran.neff" in entry["message"]
    assert len(envelope["result"]["cores"]) == 2


SUMMARY = {"total_time": 0.000038091607, "hbm_read_bytes": 851968, "tensor_engine_active_time": 1.7369143e-05}


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_summary_is_printed_but_not_split(trnprof: Run, tmp_path: Path, form: str) -> None:
    """Metrics without a timeline: info lists them, anatomy says what is missing instead of calling it zero."""
    path = tmp_path / "summary"
    if form == "json":
        path.write_text(json.dumps([SUMMARY | {f"metric_{k}": k for k in range(5)}]), encoding="utf-8")
    else:
        lines = ["model 1234", *(f"{name}    {value}" for name, value in SUMMARY.items())]
        path.write_text("\n".join([*lines, *(f"metric_{k}  {k}" for k in range(5))]) + "\n", encoding="utf-8")
    refused = trnprof("anatomy", "summary")
    assert refused.returncode == 65 and "without a table of instructions" in one_line(refused.stderr)
    result = json.loads(trnprof("info", "summary", "--format", "json").stdout)["result"]
    assert result["summary"]["hbm_read_bytes"] == 851968
    assert result["cores"][0]["window_ns"] == 38091

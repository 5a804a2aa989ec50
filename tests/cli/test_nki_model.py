"""`trnprof nki model` as a user runs it: text, JSON, Markdown, what it writes, errors."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from trnprof import cli

EXAMPLES = Path(__file__).parents[2] / "examples" / "kernels"
ATTENTION = (
    str(EXAMPLES / "attention_phases.py"),
    "--kernel",
    "fused_attention",
    *(word for name in "qkv" for word in ("--input", f"{name}=128x512:float32")),
)

KERNEL = """
import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def kernel(x, n=4):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    for _ in range(n):
        nisa.rng(dst=tile)
    print("made", n, "random tiles")
    nisa.dma_copy(dst=out, src=tile)
    return out
"""
INPUT = ("--input", "x=128x512:float32")


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """`trnprof ARGUMENTS` in this process: kernels have a child process each anyway."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        words = [str(argument) for argument in arguments]
        code = cli.run(words)
        captured = capfd.readouterr()
        return subprocess.CompletedProcess(words, code, captured.out, captured.err)

    return run


@pytest.fixture
def kernel_file(tmp_path: Path) -> Path:
    path = tmp_path / "kernel.py"
    path.write_text(KERNEL)
    return path


def test_json_is_the_envelope_with_ranges(inside: Run) -> None:
    result = inside("nki", "model", *ATTENTION, "--format", "json")
    assert result.returncode == 0, result.stderr
    assert len(result.stdout) < 8192
    document = json.loads(result.stdout)
    assert document["schema"] == "trnprof.nki-model/1"
    assert document["inputs"][0]["format"] == "nki-python"
    assert document["hardware"] == {
        "name": "trn2",
        "bandwidth_bytes_per_s": 368_000_000_000,
        "source": document["hardware"]["source"],
    }
    found = document["result"]
    assert found["provenance"] == "modelled"
    assert list(found["total_ns"]) == ["low", "mid", "high"]
    assert 0 < found["total_ns"]["low"] <= found["total_ns"]["mid"] <= found["total_ns"]["high"]
    (core,) = found["cores"]
    assert sum(part["mid"] for part in core["parts_ns"].values()) == found["laid_out_ns"]["mid"]
    assert core["hbm"] == {"read_bytes": 851_968, "write_bytes": 262_144}
    assert core["dma"]["count"] == 5
    assert found["unknown_costs"] == []
    assert found["not_modelled"]
    assert found["profile"] is None
    assert sum(line["engine_ns"] for line in found["lines"]) + found["lines_rest"]["engine_ns"] > 0


def test_full_names_every_constant_with_its_source(inside: Run, tmp_path: Path) -> None:
    result = inside("nki", "model", *ATTENTION, "--format", "json", "--full", "-o", tmp_path / "full.json")
    assert result.returncode == 0, result.stderr
    constants = json.loads((tmp_path / "full.json").read_text())["result"]["constant_rows"]
    names = {entry["name"] for entry in constants}
    assert {"engine.vector.issue_overhead", "dma.hwdge_start_ns", "throttle.threshold"} <= names
    assert "instruction.tensor_reduce.cycles" in names
    for entry in constants:
        assert entry["source"], entry
        assert entry["kind"] in ("documented", "measured", "derived", "guess")


def test_text_says_what_it_is(inside: Run) -> None:
    result = inside("nki", "model", *ATTENTION)
    assert result.returncode == 0, result.stderr
    text = result.stdout
    assert "provenance modelled" in text
    assert "not modelled:" in text
    assert "spills" in text
    assert max(len(line) for line in text.splitlines()) <= 80 + len(str(EXAMPLES))
    for part in ("memory floor", "busy beyond floor", "in-kernel wait", "idle"):
        assert part in text
    again = inside("nki", "model", *ATTENTION)
    assert again.stdout == text  # same input, same bytes


def test_markdown(inside: Run) -> None:
    result = inside("nki", "model", *ATTENTION, "--format", "md")
    assert result.returncode == 0
    assert result.stdout.startswith("# fused\\_attention: modelled timeline") or result.stdout.startswith("# fused")
    assert "| memory floor |" in result.stdout


def test_the_parquet_profile_is_read_like_a_capture(inside: Run, tmp_path: Path) -> None:
    written = inside("nki", "model", *ATTENTION, "--keep", "modelled", "--format", "json")
    assert written.returncode == 0, written.stderr
    found = json.loads(written.stdout)["result"]
    assert found["profile"] == {"path": "modelled", "schedule": "mid"}
    account = json.loads(inside("anatomy", "modelled", "--format", "json").stdout)
    assert account["inputs"][0]["provenance"] == "modelled"
    (core,) = account["result"]["cores"]
    assert core["window_ns"] == pytest.approx(found["total_ns"]["mid"], abs=1)
    assert {name: core["parts_ns"][name] for name in found["cores"][0]["parts_ns"]} == {
        name: part["mid"] for name, part in found["cores"][0]["parts_ns"].items()
    }
    assert inside("breakdown", "modelled", "--by", "line").returncode == 0
    assert inside("export", "modelled", "--to", "chrome", "-o", "trace.json").returncode == 0
    assert inside("anatomy", "modelled", "--html", "page.html").returncode == 0
    assert "modelled" in (tmp_path / "page.html").read_text()
    assert inside("nki", "model", *ATTENTION, "--keep", "modelled").returncode == 2  # it is there already
    assert inside("nki", "model", *ATTENTION, "--keep", "modelled", "--force", "--schedule", "high").returncode == 0
    slow = json.loads(inside("anatomy", "modelled", "--format", "json").stdout)["result"]["cores"][0]["window_ns"]
    assert slow == pytest.approx(found["total_ns"]["high"], abs=1)


def test_the_ntff_profile_and_its_neff(inside: Run, tmp_path: Path) -> None:
    result = inside("nki", "model", *ATTENTION, "--keep", "step.ntff", "--to", "ntff")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "step.neff").is_file()
    account = json.loads(inside("anatomy", "step.ntff", "--format", "json").stdout)
    assert account["inputs"][0]["provenance"] == "modelled"
    lines = inside("breakdown", "step.ntff", "--by", "line")
    assert "attention_phases.py:" in lines.stdout
    assert inside("info", "step.neff").returncode == 0
    wrong = inside("nki", "model", *ATTENTION, "--keep", "step.json", "--to", "ntff")
    assert wrong.returncode == 2
    assert ".ntff" in wrong.stderr


def test_before_and_after_are_compared(inside: Run) -> None:
    for kernel in ("unfused_attention", "fused_attention"):
        words = [kernel if word == "fused_attention" else word for word in ATTENTION]
        assert inside("nki", "model", *words, "--keep", kernel).returncode == 0
    result = inside("diff", "unfused_attention", "fused_attention", "--format", "json")
    (core,) = json.loads(result.stdout)["result"]["cores"]
    assert core["window_ns"]["delta"] < 0


def test_unknown_costs_are_counted_with_their_bracket(inside: Run, kernel_file: Path) -> None:
    result = inside("nki", "model", kernel_file, *INPUT, "--format", "json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)["result"]
    assert found["unknown_count"] == 4
    (entry,) = found["unknown_costs"]
    assert (entry["operation"], entry["count"], entry["kind"]) == ("rng", 4, "guess")
    assert entry["low"] < entry["mid"] < entry["high"]
    assert "the kernel printed" in result.stderr
    text = inside("nki", "model", kernel_file, *INPUT).stdout
    assert "cost unknown" in text
    assert "rng" in text


def test_a_large_kernel_is_extrapolated_and_says_so(inside: Run, tmp_path: Path) -> None:
    path = tmp_path / "large.py"
    path.write_text(
        KERNEL.replace("for _ in range(n):\n        nisa.rng(dst=tile)", "for _ in nl.affine_range(n):\n"
                       "        nisa.activation(dst=tile, op=nl.exp, data=tile)").replace("random", "")
    )  # fmt: skip
    result = inside("nki", "model", path, *INPUT, "--arg", "n=200000", "--format", "json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)["result"]
    (loop,) = found["extrapolated"]
    assert loop["total_count"] == 200_000
    assert loop["laid_out_count"] < 100
    # A chain of 512-column activations of 512 + 190 cycles and a hand-off of 34 ns each: 619 ns.
    assert found["total_ns"]["mid"] == pytest.approx(200_000 * 619, rel=0.05)
    assert "extrapolated" in inside("nki", "model", path, *INPUT, "--arg", "n=200000").stdout


def test_without_dge(inside: Run, kernel_file: Path) -> None:
    """Static rings: a trigger of 87 ns on the sync engine instead of 582 of GpSimd, in both commands."""
    found = {}
    for flag in ("--dge", "--no-dge"):
        result = inside("nki", "model", kernel_file, *INPUT, flag, "--format", "json")
        assert result.returncode == 0, result.stderr
        found[flag] = json.loads(result.stdout)["result"]
    assert found["--no-dge"]["total_ns"]["mid"] < found["--dge"]["total_ns"]["mid"]
    assert any("--no-dge" in note for note in found["--no-dge"]["notes"])
    assert found["--dge"]["notes"] == []
    predicted = inside("dma-predict", kernel_file, *INPUT, "--no-dge", "--format", "json")
    assert predicted.returncode == 0, predicted.stderr
    assert '"none"' in predicted.stdout
    assert '"swdge"' not in predicted.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "--input"),
        (("--kernel", "nothing", *INPUT), 2, "nothing"),
        ((*INPUT, "--hardware", "trn9"), 2, "trn9"),
        ((*INPUT, "--arg", "n=nonsense.name"), 2, "nonsense"),
        (("--input", "x=128x512:float99"), 2, "float99"),
    ],
)
def test_mistakes_are_one_line(
    inside: Run, kernel_file: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    result = inside("nki", "model", kernel_file, *arguments)
    assert (result.returncode, message in result.stderr) == (code, True), result.stderr
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1
    assert "Traceback" not in result.stderr


def test_a_missing_file_and_a_kernel_that_fails(inside: Run, tmp_path: Path) -> None:
    assert inside("nki", "model", "absent.py", *INPUT).returncode == 66
    path = tmp_path / "fails.py"
    path.write_text(KERNEL.replace("    return out", "    assert False, 'no such width'"))
    result = inside("nki", "model", path, *INPUT, "--format", "json")
    assert result.returncode == 65
    assert "no such width" in result.stderr
    document = json.loads(result.stdout)
    assert document["schema"] == "trnprof.nki-model/1"
    assert document["error"]["exit_code"] == 65


def test_an_endless_kernel_is_stopped(inside: Run, tmp_path: Path) -> None:
    path = tmp_path / "endless.py"
    path.write_text(KERNEL.replace("    for _ in range(n):", "    while True:"))
    result = inside("nki", "model", path, *INPUT, "--timeout", "2")
    assert result.returncode == 65
    assert "line" in result.stderr

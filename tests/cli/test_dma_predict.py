"""`trnprof dma-predict` as a user runs it: text, JSON, Markdown, errors, sizes."""

from __future__ import annotations

import json
import re
import subprocess
import textwrap
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from trnprof import cli

KERNEL = """
import nki
import nki.isa as nisa
import nki.language as nl
import torch

TILE = 128

@nki.jit
def copy_rows(x, width: int = 512):
    rows, columns = x.shape
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(rows // TILE):
        t = nl.ndarray((TILE, columns), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[i * TILE:(i + 1) * TILE])
        nisa.dma_copy(
            dst=out[i * TILE:(i + 1) * TILE],
            src=t,
        )
    return out


def launch(x):
    return copy_rows[1](x)
"""
INPUT = ("--kernel", "copy_rows", "--input", "x=256x512:bfloat16")
BYTES = 256 * 512 * 2


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """`trnprof ARGUMENTS` in this process, which is twice as fast: kernels have a child process each anyway."""
    monkeypatch.chdir(tmp_path)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        words = [str(argument) for argument in arguments]
        code = cli.run(words)
        captured = capfd.readouterr()
        return subprocess.CompletedProcess(words, code, captured.out, captured.err)

    return run


@pytest.fixture
def kernel(tmp_path: Path) -> str:
    (tmp_path / "kernel.py").write_text(KERNEL)
    return "kernel.py"


def result_of(inside: Run, *arguments: object, code: int = 0) -> dict:
    finished = inside("dma-predict", *arguments, "--format", "json")
    assert finished.returncode == code, finished.stderr
    return json.loads(finished.stdout)


def test_without_inputs_it_lists_kernels_needs_and_commands(inside: Run, kernel: str) -> None:
    finished = inside("dma-predict", kernel)
    assert finished.returncode == 0
    assert "copy_rows  (line 10, kernel)" in finished.stdout
    assert "launch  (line 23, host function that launches copy_rows)" in finished.stdout
    command = "trnprof dma-predict kernel.py --kernel copy_rows --input x=128x512:bfloat16"
    assert command in finished.stdout
    rows = result_of(inside, kernel)["result"]["kernels"]
    assert [row["name"] for row in rows] == ["copy_rows", "launch"]
    assert rows[0]["command"] == command
    again = inside(*command.split()[1:])
    assert again.returncode == 0, "the command that it prints runs"


def test_the_json_contract(inside: Run, kernel: str) -> None:
    envelope = result_of(inside, kernel, *INPUT)
    assert envelope["schema"] == "trnprof.dma-predict/1"
    assert envelope["error"] is None
    assert envelope["inputs"][0]["path"] == "kernel.py"
    assert envelope["hardware"]["name"] == "trn2"
    result = envelope["result"]
    assert result["provenance"] == "predicted"
    total = result["total"]
    assert (total["hbm_read_bytes"], total["hbm_write_bytes"]) == (BYTES, BYTES)
    assert (total["dma_count"], total["descriptor_count"]) == (4, 512)
    assert 0 < total["time_ns"]["low"] <= total["time_ns"]["mid"] <= total["time_ns"]["high"]
    assert len(result["programs"]) == 1
    for line in result["lines"]:
        assert set(line) >= {
            "source", "direction", "dma_count", "descriptor_count", "element_bytes", "bytes", "reload_factor", "mode",
            "time_ns", "efficiency",
        }  # fmt: skip
        assert set(line["element_bytes"]) == {"min", "median", "max"}
    assert {line["source"] for line in result["lines"]} == {"kernel.py:15", "kernel.py:16"}
    # t is allocated anew in each iteration: [128, 512] bf16, 1,024 B of each partition live at once
    assert result["sbuf"]["peak_bytes_per_partition"] == 1024
    assert all(isinstance(text, str) for text in result["assumptions"])
    assert result["assumptions"][-1] == "stand-ins: not run: torch"
    assert any(finding["code"] == "DMA009" for finding in envelope["findings"])


def test_the_three_forms_say_the_same(inside: Run, kernel: str, tmp_path: Path) -> None:
    text = inside("dma-predict", kernel, *INPUT).stdout
    assert f"{BYTES:,} B" in text
    assert "predicted for trn2, as written; nothing was compiled or measured" in text
    assert "nisa.dma_copy(dst=out[i * TILE" in text, "a statement over several lines is shown as one"
    assert max(map(len, text.splitlines())) <= 80
    markdown = inside("dma-predict", kernel, *INPUT, "--format", "md").stdout
    assert f"| {BYTES:,} | {BYTES:,} | 4 | 512 |" in markdown
    assert inside("dma-predict", kernel, *INPUT, "-o", "out.txt").stdout == ""
    assert (tmp_path / "out.txt").read_text() == text
    assert inside("dma-predict", kernel, *INPUT, "-o", "out.txt").returncode == 2


def test_same_input_same_bytes(trnprof: Run, kernel: str) -> None:
    outputs = {
        trnprof("dma-predict", kernel, *INPUT, "--format", "json", PYTHONHASHSEED=str(seed)).stdout for seed in range(2)
    }
    assert len(outputs) == 1
    assert not re.search(r"/tmp|/home|/root|site-packages", outputs.pop())


def many_lines(count: int) -> str:
    body = "".join(
        f"    nisa.dma_copy(dst=t[0:{(i % 100) + 1}], src=x[0:{(i % 100) + 1}, 0:512])\n" for i in range(count)
    )
    return textwrap.dedent(
        """
        import nki, nki.isa as nisa, nki.language as nl
        @nki.jit
        def k(x):
            t = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        """
    ) + body  # fmt: skip


def test_default_json_stays_under_8_kib_and_its_rest_row_sums(inside: Run, tmp_path: Path) -> None:
    (tmp_path / "many.py").write_text(many_lines(120))
    arguments = ("many.py", "--input", "x=128x512:bfloat16")
    finished = inside("dma-predict", *arguments, "--format", "json")
    assert len(finished.stdout.encode()) < 8 * 1024
    short = json.loads(finished.stdout)["result"]
    spilled = result_of(inside, *arguments, "--full")["result"]
    assert spilled["lines"] == short["lines"], "a large answer is the short one and the name of a file"
    full = json.loads(Path(spilled["full"]["path"]).read_text())["result"]
    assert len(full["lines"]) == 120 and full["lines_rest"] is None
    for key in ("dma_count", "descriptor_count", "bytes"):
        shown = sum(line[key] for line in short["lines"]) + short["lines_rest"][key]
        assert shown == sum(line[key] for line in full["lines"])
    assert short["lines_rest"]["line_count"] + len(short["lines"]) == 120
    assert short["total"] == full["total"]
    assert full["constants"][0].keys() >= {"name", "value", "unit", "source", "kind"}
    text = inside("dma-predict", *arguments).stdout
    assert len(text.splitlines()) < 200
    assert "108 more lines" in text


def test_unknown_trip_counts_have_no_total(inside: Run, tmp_path: Path) -> None:
    (tmp_path / "dyn.py").write_text("""
import nki, nki.isa as nisa, nki.language as nl
@nki.jit
def k(a, n):
    n_reg = nisa.register_alloc()
    nisa.register_load(n_reg, n)
    t = nl.ndarray((128, 512), dtype=a.dtype, buffer=nl.sbuf)
    for i in nl.dynamic_range(n_reg):
        nisa.dma_copy(dst=t, src=a)
""")
    arguments = ("dyn.py", "--input", "a=128x512:float32", "--input", "n=1x1:int32")
    result = result_of(inside, *arguments)["result"]
    assert result["total"]["hbm_read_bytes"] is None
    assert result["total"]["time_ns"] is None
    assert result["total"]["symbolic"]["hbm_read_bytes"].endswith("262144*n_reg")
    assert result["lines"][0]["times"] == ["n_reg"]
    text = inside("dma-predict", *arguments).stdout
    assert "262144*n_reg" in text and "--trip n_reg=N" in " ".join(text.split())
    known = result_of(inside, *arguments, "--trip", "n_reg=10")["result"]
    assert known["total"]["hbm_read_bytes"] >= 10 * 262_144


def test_sweep(inside: Run, kernel: str) -> None:
    finished = inside("dma-predict", kernel, *INPUT, "--sweep", "TILE=64,128,300")
    assert finished.returncode == 0
    assert finished.stderr == "", "no progress bar where stderr is no terminal"
    assert "2 of 3 points feasible" in finished.stdout
    assert "TILE=300: " in finished.stdout
    points = result_of(inside, kernel, *INPUT, "--sweep", "TILE=32,64,128,300")["result"]["points"]
    assert [point["values"]["TILE"] for point in points] == ["128", "64", "32", "300"]
    assert [point.get("rank") for point in points] == [1, 2, 3, None]
    assert inside("dma-predict", kernel, *INPUT, "--sweep", "TILE=32,64", "--format", "md").stdout.startswith("# Sweep")


def test_no_exec_runs_nothing(inside: Run, tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text(KERNEL + "\nopen('left-behind', 'w')\nraise RuntimeError\n")
    finished = inside("dma-predict", "evil.py", "--no-exec")
    assert finished.returncode == 0
    assert "2 calls that move data (from the syntax tree; nothing was run)" in finished.stdout
    assert "in line 13: i in nl.affine_range(rows // TILE)" in finished.stdout
    assert not (tmp_path / "left-behind").exists()
    result = result_of(inside, "evil.py", "--no-exec")["result"]
    assert result["executed"] is False and [site["line"] for site in result["sites"]] == [15, 16]


def test_hardware_and_calibration(inside: Run, kernel: str, tmp_path: Path) -> None:
    fast = result_of(inside, kernel, *INPUT, "--hardware", "trn3")["result"]
    slow = result_of(inside, kernel, *INPUT, "--hardware", "trn1")["result"]
    assert fast["total"]["hbm_read_bytes"] == slow["total"]["hbm_read_bytes"] == BYTES
    assert fast["total"]["time_ns"]["low"] < slow["total"]["time_ns"]["mid"]
    assert any(text.startswith("constants-guessed") for text in slow["assumptions"])
    (tmp_path / "mine.toml").write_text("issue_ns = 100000\n")
    result = result_of(inside, kernel, *INPUT, "--calibration", "mine.toml")["result"]
    assert result["total"]["time_ns"]["mid"] > 400_000
    assert "calibration" in result["constants"]["issue_ns"]


BAD = {
    "no such file": (["none.py"], 66, "none.py: no such file"),
    "no such kernel": (["kernel.py", "--kernel", "zz"], 2, "no kernel 'zz'; found: copy_rows, launch"),
    "no shape": (["kernel.py", "--input", "x"], 2, "write NAME=VALUE"),
    "unknown argument": (["kernel.py", *INPUT, "--arg", "zz=1"], 2, "unexpected keyword argument 'zz'"),
    "missing argument": (["kernel.py", "--kernel", "copy_rows", "--arg", "width=3"], 2, "missing a required argument: 'x'"),
    "own check": (["kernel.py", "--kernel", "copy_rows", "--input", "x=4:int8"], 65, "line 11"),
    "hardware": (["kernel.py", *INPUT, "--hardware", "trn9"], 2, "trn9"),
    "lnc": (["kernel.py", *INPUT, "--lnc", "3"], 2, "--lnc is 1 or 2"),
    "sweep": (["kernel.py", *INPUT, "--sweep", "TILE"], 2, "NAME=a,b,c"),
    "against nothing": (["kernel.py", *INPUT, "--against", "none.ntff"], 66, "none.ntff: no such file"),
    "against a sweep": (["kernel.py", *INPUT, "--against", "kernel.py", "--sweep", "TILE=1,2"], 2, "leave --sweep out"),
    "against no capture": (["kernel.py", *INPUT, "--against", "kernel.py"], 65, "kernel.py: no"),
    "endless": (["endless.py", "--kernel", "k", "--input", "x=4:int8", "--timeout", "1"], 65, "endless.py: line 2"),
    "binary": (["binary.py"], 65, "NUL bytes"),
    "empty": (["empty.py", "--input", "x=4:int8"], 2, "found: none"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line(inside: Run, kernel: str, tmp_path: Path, name: str) -> None:
    (tmp_path / "endless.py").write_text("def k(x): pass\nwhile True: pass\n")
    (tmp_path / "binary.py").write_bytes(b"\x7fELF\0\0")
    (tmp_path / "empty.py").write_text("")
    arguments, code, expected = BAD[name]
    finished = inside("dma-predict", *arguments, "--format", "json")
    assert finished.returncode == code, finished.stderr
    assert len(finished.stderr.strip().splitlines()) == 1, finished.stderr
    assert expected in finished.stderr
    envelope = json.loads(finished.stdout)
    assert envelope["result"] is None and envelope["error"]["exit_code"] == code


def test_an_empty_file_is_said_to_hold_no_kernel(inside: Run, tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("x = 1\n")
    finished = inside("dma-predict", "empty.py")
    assert finished.returncode == 0 and "no kernel found" in finished.stdout


def test_names_from_the_kernel_cannot_break_out(inside: Run, tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("""
import nki, nki.isa as nisa, nki.language as nl
@nki.jit
def k(x):
    t = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf, name="</script>|{{7*7}}\\x1b[2J\\n")
    nisa.dma_copy(dst=t, src=x, name="</script>|{{7*7}}\\x1b[2J")
    getattr(nisa, "move\\x1b[2J|it")(t)
    assert x.shape[0] == 128, "\\x1b[2Jtwo\\nlines"
""")
    for form in ("text", "md", "json"):
        out = inside("dma-predict", "evil.py", "--input", "x=128x512:float32", "--format", form).stdout
        assert "\x1b" not in out
        assert form != "md" or "</script>|" not in out
    finished = inside("dma-predict", "evil.py", "--input", "x=64x512:float32")
    assert finished.returncode == 65 and "\x1b" not in finished.stderr
    assert len(finished.stderr.strip().splitlines()) == 1


def test_what_the_kernel_prints_goes_to_stderr(inside: Run, tmp_path: Path) -> None:
    (tmp_path / "chatty.py").write_text(
        "def k():\n    print('hello\\x1b[2J')\n    import nki.language as nl; nl.load\n"
    )
    finished = inside("dma-predict", "chatty.py", "--kernel", "k", "--arg", "a=1")
    assert finished.returncode == 2
    (tmp_path / "chatty.py").write_text("import nki\n@nki.jit\ndef k(a):\n    print('hello\\x1b[2J')\n")
    finished = inside("dma-predict", "chatty.py", "--arg", "a=1", "--format", "json")
    assert json.loads(finished.stdout)["error"] is None
    assert finished.stderr == "trnprof: the kernel printed 10 bytes:\n  | hello\\x1b[2J\n"

"""`trnprof nki run` as a user runs it: values, references, files, errors."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.cli.conftest import Run
from trnprof import cli
from trnprof.nki.tensor_files import load_tensor

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "examples/kernels"

KERNEL = """
import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def scale(x, factor: float = 2.0):
    t = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x)
    nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=factor)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm, name="scaled")
    nisa.dma_copy(dst=out, src=t)
    return out
"""
REFERENCE = """
def doubled(x):
    return 2 * x

def wrong(x):
    y = 2 * x
    y[3, 5] += 1
    return y

def by_name(x, factor=2.0):
    return {"scaled": factor * x}

def other_shape(x):
    return x[:4]

def two(x):
    return x, x

def unknown_name(x):
    return {"result": x}

def wants_more(x, weights):
    return x

def raises(x):
    return x @ x[:3]
"""
INPUT = ("--input", "x=16x32:float32")


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """`trnprof nki run ARGUMENTS` in this process; kernels have a child process each anyway."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernel.py").write_text(KERNEL)
    (tmp_path / "reference.py").write_text(REFERENCE)

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        code = cli.run(["nki", "run", *map(str, arguments)])
        captured = capfd.readouterr()
        return subprocess.CompletedProcess([], code, captured.out, captured.err)

    return run


def result_of(inside: Run, *arguments: object, code: int = 0) -> dict:
    finished = inside("kernel.py", *arguments, "--format", "json")
    assert finished.returncode == code, finished.stderr
    document = json.loads(finished.stdout)
    assert document["schema"] == "trnprof.nki-run/1"
    return document


def refusal(inside: Run, *arguments: object, code: int) -> str:
    started = time.monotonic()
    finished = inside(*arguments)
    assert time.monotonic() - started < 10
    assert finished.returncode == code, finished.stderr
    lines = [line for line in finished.stderr.splitlines() if not line.startswith("trnprof: the kernel printed")]
    assert len(lines) == 1, finished.stderr
    return lines[0]


# Values


def test_text_says_what_was_computed_and_what_it_rests_on(inside: Run) -> None:
    finished = inside("kernel.py", *INPUT, "--reference", "reference.py:doubled")
    assert finished.returncode == 0
    assert "agrees with doubled" in finished.stdout
    assert re.search(r"scaled\s+16x32 float32", finished.stdout)
    assert "nothing was run on a device" in finished.stdout
    assert "the values rest on:" in finished.stdout
    assert max(map(len, finished.stdout.splitlines())) <= 80


def test_json_has_every_figure(inside: Run) -> None:
    result = result_of(inside, *INPUT, "--reference", "reference.py:doubled")["result"]
    (output,) = result["outputs"]
    assert (result["provenance"], result["agrees"], result["program_count"]) == ("computed-cpu", True, 1)
    assert (output["name"], output["shape"], output["never_written_count"]) == ("scaled", [16, 32], 0)
    figures = output["comparison"]
    assert (figures["bad_count"], figures["element_count"], figures["first_bad"]) == (0, 512, None)
    assert figures["ulps"][0] == {"most": 0, "count": 512}


def test_markdown_has_a_row_an_output(inside: Run) -> None:
    finished = inside("kernel.py", *INPUT, "--reference", "reference.py:doubled", "--format", "md")
    assert "| scaled | 16x32 | float32 |" in finished.stdout
    assert "## Against doubled" in finished.stdout


def test_a_difference_is_exit_code_1_with_the_first_bad_index(inside: Run) -> None:
    document = result_of(inside, *INPUT, "--reference", "reference.py:wrong", code=1)
    figures = document["result"]["outputs"][0]["comparison"]
    assert document["result"]["agrees"] is False
    assert figures["bad_count"] == 1
    assert figures["first_bad"]["index"] == [3, 5]
    assert [finding["code"] for finding in document["findings"]] == ["VAL001"]
    finished = inside("kernel.py", *INPUT, "--reference", "reference.py:wrong")
    assert finished.returncode == 1
    assert "DIFFERS from wrong" in finished.stdout
    assert "first bad index     [3, 5]" in finished.stdout


def test_a_tolerance_can_make_them_agree(inside: Run) -> None:
    assert result_of(inside, *INPUT, "--reference", "reference.py:wrong", "--tolerance", "0,1.5")["result"]["agrees"]


def test_without_a_reference_nothing_is_judged(inside: Run) -> None:
    result = result_of(inside, *INPUT)["result"]
    assert (result["agrees"], result["reference"], result["outputs"][0]["comparison"]) == (None, None, None)


def test_arguments_go_to_the_kernel_and_to_the_reference(inside: Run) -> None:
    result = result_of(inside, *INPUT, "--arg", "factor=3.0", "--reference", "reference.py:by_name")["result"]
    assert result["agrees"]


def test_the_seed_decides_the_inputs(inside: Run) -> None:
    first, again, other = (
        result_of(inside, *INPUT, "--seed", seed)["result"]["outputs"][0]["largest"] for seed in (1, 1, 2)
    )
    assert first == again != other


def test_precise_off_tells_rounding_from_a_mistake(inside: Run) -> None:
    rounded = result_of(
        inside, "--input", "x=16x32:bfloat16", "--arg", "factor=1.1", "--reference", "reference.py:by_name",
        "--tolerance", "1e-6", code=1,
    )  # fmt: skip
    assert rounded["result"]["outputs"][0]["comparison"]["bad_count"] > 100
    exact = result_of(
        inside, "--input", "x=16x32:bfloat16", "--arg", "factor=1.1", "--reference", "reference.py:by_name",
        "--tolerance", "1e-6", "--precise", "off",
    )  # fmt: skip
    assert exact["result"]["agrees"]
    assert exact["result"]["outputs"][0]["comparison"]["max_rel_error"] < 1e-12


def test_a_torch_reference_if_torch_is_here(inside: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed in this environment")
    (tmp_path / "torch_reference.py").write_text("import torch\n\ndef doubled(x):\n    return torch.mul(x, 2)\n")
    assert result_of(inside, *INPUT, "--reference", "torch_reference.py:doubled")["result"]["agrees"]


# Files


def test_outputs_as_npy_and_back_in_as_inputs(inside: Run, tmp_path: Path) -> None:
    x = np.arange(512, dtype=np.float32).reshape(16, 32)
    np.save(tmp_path / "x.npy", x)
    finished = inside("kernel.py", "--load", "x=x.npy", "--out", "results")
    assert finished.returncode == 0
    assert "1 file written to results" in finished.stderr
    assert np.array_equal(np.load(tmp_path / "results/scaled.npy"), 2 * x)
    again = inside("kernel.py", "--load", "x=results/scaled.npy", "--out", "results")
    assert again.returncode == 2
    assert "--force" in again.stderr
    assert inside("kernel.py", "--load", "x=results/scaled.npy", "--out", "results", "--force").returncode == 0
    assert np.array_equal(np.load(tmp_path / "results/scaled.npy"), 4 * x)


def test_outputs_as_safetensors_keep_bfloat16(inside: Run, tmp_path: Path) -> None:
    finished = inside("kernel.py", "--input", "x=16x32:bfloat16", "--out", "out.safetensors", "--seed", 3)
    assert finished.returncode == 0
    found = load_tensor(tmp_path / "out.safetensors", "scaled", None)
    assert (found.dtype, found.shape) == (np.dtype(ml_dtypes.bfloat16), (16, 32))
    raw = (tmp_path / "out.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    assert header["scaled"] == {"dtype": "BF16", "shape": [16, 32], "data_offsets": [0, 1024]}
    # The only tensor of a file needs no name.
    assert inside("kernel.py", "--load", "x=out.safetensors", "--arg", "factor=0.5").returncode == 0


def test_an_inputs_file_gives_arrays_or_shapes(inside: Run, tmp_path: Path) -> None:
    (tmp_path / "inputs.py").write_text(
        "import numpy as np\n\ndef inputs():\n    return {'x': np.full((16, 32), 1.5, np.float32), 'factor': 4.0}\n"
    )
    result = result_of(inside, "--inputs", "inputs.py")["result"]
    assert (result["outputs"][0]["smallest"], result["outputs"][0]["largest"]) == (6.0, 6.0)


# The example kernels agree with NumPy


@pytest.mark.parametrize(
    ("file", "kernel", "reference", "options"),
    [
        ("flash_attention.py", "flash_attention", "attention", ["q=128x512:bfloat16", "k=128x512:bfloat16", "v=128x512:bfloat16"]),
        ("flash_attention.py", "flash_attention", "attention", ["q=128x1024:float32", "k=128x1024:float32", "v=128x1024:float32"]),
        ("attention_phases.py", "unfused_attention", "attention", ["q=128x512:float32", "k=128x512:float32", "v=128x512:float32"]),
        ("attention_phases.py", "fused_attention", "attention", ["q=128x512:float32", "k=128x512:float32", "v=128x512:float32"]),
        ("matmul_tilings.py", "tiled", "matmul", ["lhs_t=256x256:bfloat16", "rhs=256x1024:bfloat16"]),
        ("matmul_tilings.py", "blocked", "matmul", ["lhs_t=256x1024:bfloat16", "rhs=256x1024:bfloat16"]),
        ("matmul_tilings.py", "row_loads", "matmul", ["lhs_t=256x1024:bfloat16", "rhs=256x1024:bfloat16"]),
        ("dma_streams.py", "mixed_modes", "copy", ["a=128x4096:bfloat16"]),
        ("top_tokens.py", "top_tokens", "top_tokens", ["logits=128x1000:float32"]),
        ("pair_sums.py", "pair_sums", "row_sums", ["x=128x256:float32", "--lnc", "2"]),
        ("pair_sums.py", "rank_sums", "rank_sums", ["x=128x256:float32", "--ranks", "3", "--arg", "rank_count=3"]),
    ],
)  # fmt: skip
def test_example_kernels(inside: Run, file: str, kernel: str, reference: str, options: list[str]) -> None:
    words: list[object] = [
        KERNELS / file,
        "--kernel",
        kernel,
        "--reference",
        f"{KERNELS / 'references.py'}:{reference}",
    ]
    for option in options:
        words += ["--input", option] if ":" in option else [option]
    finished = inside(*words, "--format", "json")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert json.loads(finished.stdout)["result"]["agrees"] is True


# How mistakes show themselves


def broken(body: str) -> str:
    return KERNEL.replace("    nisa.dma_copy(dst=out, src=t)\n", body)


@pytest.mark.parametrize(
    ("body", "codes"),
    [
        ("    nisa.dma_copy(dst=out[0:8, :], src=t[0:8, :])\n    nisa.dma_copy(dst=out[8:16, :], src=t[0:8, :])\n", {"VAL001", "VAL002"}),
        ("    nisa.memset(dst=t, value=0.0)\n    nisa.dma_copy(dst=out, src=t)\n", {"VAL001", "VAL003"}),
        ("    nisa.dma_copy(dst=out[0:15, :], src=t[0:15, :])\n", {"VAL001", "VAL004"}),
        (
            "    u = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)\n"
            "    nisa.tensor_tensor(dst=u[:, 0:31], data1=t[:, 0:31], data2=t[:, 0:31], op=nl.maximum)\n"
            "    nisa.dma_copy(dst=out, src=u)\n",
            {"VAL001", "VAL005", "VAL006"},
        ),
    ],
)  # fmt: skip
def test_findings(inside: Run, tmp_path: Path, body: str, codes: set[str]) -> None:
    (tmp_path / "kernel.py").write_text(broken(body))
    document = result_of(inside, *INPUT, "--reference", "reference.py:doubled", code=1)
    assert {finding["code"] for finding in document["findings"] if finding["code"].startswith("VAL")} == codes
    for finding in document["findings"]:
        assert finding["advice"]
        if finding["code"] == "VAL005":
            assert finding["evidence"]["source"] == "kernel.py:14"


def test_unwritten_memory_can_read_as_zero(inside: Run, tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(
        broken(
            "    u = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)\n"
            "    nisa.tensor_tensor(dst=t, data1=t, data2=u, op=nl.add)\n    nisa.dma_copy(dst=out, src=t)\n"
        )
    )
    assert not result_of(inside, *INPUT, "--reference", "reference.py:doubled", code=1)["result"]["agrees"]
    document = result_of(inside, *INPUT, "--reference", "reference.py:doubled", "--unwritten", "zero")
    assert document["result"]["agrees"]
    assert [finding["code"] for finding in document["findings"]] == ["VAL005"]
    assert any("--unwritten zero" in note for note in document["result"]["notes"])


def test_hazards_are_looked_for_beside_the_values(inside: Run, tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text("""
import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def twice(x, y):
    left = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.sbuf)
    right = nl.ndarray((128, 256), dtype=y.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=left, src=x)
    nisa.dma_copy(dst=right, src=y)
    p = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
    for i in nl.affine_range(2):
        nisa.nc_matmul(dst=p[:, 0:256], stationary=left, moving=right)
        nisa.nc_matmul(dst=p[:, 256:512], stationary=left, moving=right)
    t = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=t, src=p)
    out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=t)
    return out
""")
    (tmp_path / "reference.py").write_text(
        "import numpy as np\n\ndef twice(x, y):\n    return np.tile(2 * x.T @ y, (1, 2))\n"
    )
    given = ("--input", "x=128x128:float32", "--input", "y=128x256:float32", "--reference", "reference.py:twice")
    document = result_of(inside, *given)
    assert document["result"]["agrees"]
    assert [finding["code"] for finding in document["findings"]] == ["HAZ002"]
    assert result_of(inside, *given, "--no-lint")["findings"] == []


# Mistakes of the user's, one line each


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["kernel.py"], 2, "--input"),
        (["kernel.py", "--input", "x=16x32"], 2, "element type"),
        (["kernel.py", "--input", "y=16x32:float32"], 2, "y"),
        (["missing.py", *INPUT], 66, "missing.py"),
        (["kernel.py", *INPUT, "--reference", "reference.py"], 2, "FILE.py:FUNCTION"),
        (["kernel.py", *INPUT, "--reference", "nowhere.py:f"], 66, "nowhere.py"),
        (["kernel.py", *INPUT, "--reference", "reference.py:nothing"], 2, "nothing"),
        (["kernel.py", *INPUT, "--reference", "reference.py:other_shape"], 65, "(4, 32)"),
        (["kernel.py", *INPUT, "--reference", "reference.py:two"], 65, "2 values"),
        (["kernel.py", *INPUT, "--reference", "reference.py:unknown_name"], 65, "result"),
        (["kernel.py", *INPUT, "--reference", "reference.py:wants_more"], 2, "weights"),
        (["kernel.py", *INPUT, "--reference", "reference.py:raises"], 65, "reference.py: line 26"),
        (["kernel.py", *INPUT, "--tolerance", "a lot"], 2, "RTOL"),
        (["kernel.py", "--load", "x=reference.py", "--load", "x=reference.py"], 2, "twice"),
        (["kernel.py", "--load", "x=x.npy"], 66, "x.npy"),
        (["kernel.py", "--load", "x=reference.py"], 65, "reference.py"),
        (["kernel.py", *INPUT, "--hardware", "trn9"], 2, "trn9"),
        (["kernel.py", *INPUT, "--out", "kernel.py"], 2, "--out"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(inside: Run, arguments: list[str], code: int, text: str) -> None:
    assert text in refusal(inside, *arguments, code=code)


def kernel_with(line: str) -> str:
    return KERNEL.replace("    nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=factor)\n", f"    {line}\n")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("nisa.tensor_tensor(dst=t, data1=t, data2=t[:, 0:16], op=nl.add)", "do not fit"),
        ("nisa.tensor_copy(dst=t, src=t.ap([[32, 16], [1, 64]]))", "line 10"),
        ("nl.ndarray((256, 32), dtype=x.dtype, buffer=nl.sbuf)", "256 partitions"),
        ("nisa.frobnicate(dst=t)", "frobnicate"),
        ("if nl.program_id(0) == 0: nisa.core_barrier(x, (0, 1))", "wait for each other for ever"),
        ("raise RuntimeError('no')", "no"),
        ("while True: nisa.memset(dst=t, value=0.0)", "still running after 2 s"),
    ],
)  # fmt: skip
def test_what_a_kernel_cannot_do_is_one_line_with_its_line(inside: Run, tmp_path: Path, line: str, text: str) -> None:
    (tmp_path / "kernel.py").write_text(kernel_with(line))
    message = refusal(inside, "kernel.py", *INPUT, "--lnc", 2, "--timeout", 2, code=65)
    assert "kernel.py" in message
    assert text in message
    if "after" not in text:
        assert "line 10" in message


def test_more_memory_than_allowed_is_said(inside: Run, tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(kernel_with("big = [nl.zeros((128, 2**22), nl.float32, buffer=nl.hbm)]"))
    message = refusal(inside, "kernel.py", *INPUT, "--memory", 1, code=65)
    assert "memory" in message

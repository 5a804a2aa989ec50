"""Time and memory of a kernel's values, beside NumPy doing the same mathematics on the whole matrices in the same process.

Everything runs in a child with one BLAS thread, as `trnprof nki run` has it. Memory is the growth of the process's peak over
what it had before the run, tensors included, divided by the bytes of inputs and outputs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "examples" / "kernels"


@dataclass(frozen=True)
class Case:
    """One kernel on one size."""

    file: str
    kernel: str
    reference: str
    names: tuple[str, ...]
    shape: tuple[int, int]
    dtype: str
    limit_s: float
    """What the kernel may take on two cores of any recent machine."""


CASES = (
    Case("flash_attention.py", "flash_attention", "attention", ("q", "k", "v"), (128, 512), "bfloat16", 2),
    Case("attention_phases.py", "unfused_attention", "attention", ("q", "k", "v"), (128, 512), "float32", 2),
    Case("flash_attention.py", "flash_attention", "attention", ("q", "k", "v"), (128, 8192), "bfloat16", 20),
    Case("matmul_tilings.py", "tiled", "matmul", ("lhs_t", "rhs"), (1024, 1024), "bfloat16", 5),
    Case("matmul_tilings.py", "row_loads", "matmul", ("lhs_t", "rhs"), (4096, 4096), "bfloat16", 60),
    Case("top_tokens.py", "top_tokens", "top_tokens", ("logits",), (128, 8192), "float32", 5),
)

_CHILD = """
import json, resource, sys, time
import numpy as np
from trnprof.nki.modules import install_nki_modules
from trnprof.nki.recording import TensorSpec
from trnprof.nki.values.run import compute
from trnprof.nki.values.world import random_array
from trnprof.nki.dtypes import as_dtype

case = json.loads(sys.argv[1])
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
with install_nki_modules():
    spaces = []
    for file in (case["file"], "references.py"):
        path = case["folder"] + "/" + file
        space = {"__name__": file, "__file__": path}
        exec(compile(open(path).read(), path, "exec"), space)
        spaces.append(space)
    compute(spaces[0][case["kernel"]], [random_array(tuple(case["warm"]), as_dtype(case["dtype"]), seed=1) for _ in case["names"]])
    before = peak()
    inputs = [random_array(tuple(case["shape"]), as_dtype(case["dtype"]), seed=0, name=name) for name in case["names"]]
    started = time.perf_counter()
    run = compute(spaces[0][case["kernel"]], inputs)
    seconds = time.perf_counter() - started
    grown = peak() - before
outputs = [output.array for output in run.outputs[0]]
wide = [array.astype(np.float32) for array in inputs]
started = time.perf_counter()
expected = spaces[1][case["reference"]](*wide)
reference_s = time.perf_counter() - started
first = expected[0] if isinstance(expected, tuple) else expected
difference = outputs[0].astype(np.float64) - first
print(json.dumps({
    "seconds": seconds, "reference_s": reference_s, "grown": grown,
    "tensors": sum(array.nbytes for array in [*inputs, *outputs]),
    "error": float(np.sqrt((difference ** 2).sum() / (first.astype(np.float64) ** 2).sum())),
}))
"""


def measure(case: Case) -> dict[str, float]:
    """Seconds of the kernel and of NumPy, bytes grown and of the tensors, relative error; in a process of its own."""
    warm = (128, 512) if case.shape[0] == 128 else (128, 1024)
    if case.kernel == "row_loads":
        warm = (1024, 1024)
    given = {
        "file": case.file,
        "kernel": case.kernel,
        "reference": case.reference,
        "names": case.names,
        "shape": case.shape,
        "warm": warm,
        "dtype": case.dtype,
        "folder": str(KERNELS),
    }
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, json.dumps(given)],
        cwd=ROOT,
        env={**os.environ, **threads},
        capture_output=True,
        text=True,
        check=True,
        timeout=10 * case.limit_s + 60,
    )
    return dict(json.loads(done.stdout))


def run() -> str:
    """The table: seconds, times NumPy's, peak memory as a multiple of the tensors, relative error."""
    lines = [
        f"{'kernel':<20}{'shape':>12}{'type':>10}{'seconds':>9}{'limit':>7}{'x NumPy':>9}{'x tensors':>11}  rel. error"
    ]
    for case in CASES:
        found = measure(case)
        lines.append(
            f"{case.kernel:<20}{'x'.join(map(str, case.shape)):>12}{case.dtype:>10}{found['seconds']:9.2f}{case.limit_s:7.0f}"
            f"{found['seconds'] / found['reference_s']:9.1f}{found['grown'] / found['tensors']:11.2f}  {found['error']:.1e}"
        )
    return "\n".join(lines)

"""What values cannot show: three kernels that compute the right numbers here and fail on the device. Lint finds them.

The interpreter runs instructions one after the other, so it never sees what depends on when they run: a second
accumulation that clears the bank of the first, a collective that reads while a DMA still writes, two programs that use one
tensor without waiting for each other.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.nki.running import HEADER, by_code, predict
from tests.nki.values.running import run

A = np.random.default_rng(0).standard_normal((128, 128)).astype(np.float32)
B = np.random.default_rng(1).standard_normal((128, 512)).astype(np.float32)

INTERLEAVED = """
x = nl.ndarray((128, 128), dtype=a.dtype, buffer=nl.sbuf)
y = nl.ndarray((128, 512), dtype=b.dtype, buffer=nl.sbuf)
nisa.dma_copy(dst=x, src=a)
nisa.dma_copy(dst=y, src=b)
psum = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
for i in nl.affine_range(2):
    nisa.nc_matmul(dst=psum[:, 0:256], stationary=x, moving=y[:, 0:256])
    nisa.nc_matmul(dst=psum[:, 256:512], stationary=x, moving=y[:, 256:512])
s = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
nisa.tensor_copy(dst=s, src=psum)
out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
nisa.dma_copy(dst=out, src=s)
return out
"""

UNFENCED = """
src = nl.ndarray((128, 128), dtype=a.dtype, buffer=nl.shared_hbm)
out = nl.ndarray((128, 128), dtype=a.dtype, buffer=nl.shared_hbm)
t = nl.ndarray((128, 128), dtype=a.dtype, buffer=nl.sbuf)
nisa.dma_copy(dst=t, src=a)
nisa.dma_copy(dst=src, src=t)
ncc.all_reduce(srcs=[src], dsts=[out], replica_group=ncc.ReplicaGroup([[0, 1]]), op=nl.add)
return out
"""

SHARED = """
me = nl.program_id(0)
shared = nl.ndarray((128, 128), dtype=a.dtype, buffer=nl.shared_hbm)
t = nl.ndarray((128, 128), dtype=a.dtype, buffer=nl.sbuf)
if me == 0:
    nisa.dma_copy(dst=t, src=a)
    nisa.dma_copy(dst=shared, src=t)
out = nl.ndarray((128, 128), dtype=a.dtype, buffer=nl.shared_hbm)
if me == 1:
    nisa.dma_copy(dst=t, src=shared)
    nisa.dma_copy(dst=out, src=t)
return out
"""


def kernel(body: str, arguments: str) -> str:
    lines = "\n".join("    " + line for line in body.strip().splitlines())
    return f"{HEADER}import nki.collectives as ncc\n\n@nki.jit\ndef kernel({arguments}):\n{lines}\n"


def codes(folder: Path, body: str, arguments: str, *inputs: str, lnc: int = 1) -> set[str]:
    return set(by_code(predict(folder, kernel(body, arguments), *inputs, lnc=lnc)))


def test_interleaved_accumulations_in_one_bank(tmp_path: Path) -> None:
    values = run(INTERLEAVED, A, B).outputs[0][0].array
    assert values == pytest.approx(2 * (A.T @ B), rel=1e-4, abs=1e-3)
    assert "HAZ002" in codes(tmp_path, INTERLEAVED, "a, b", "a=128x128:float32", "b=128x512:float32")


def test_a_collective_that_nothing_orders_after_the_dma_that_fills_its_source(tmp_path: Path) -> None:
    values = run(UNFENCED, A, ranks=2, arguments_of_rank=lambda rank: ([A * (rank + 1)], {}))
    assert values.outputs[1][0].array == pytest.approx(3 * A, rel=1e-6)
    assert "HAZ003" in codes(tmp_path, UNFENCED, "a", "a=128x128:float32")


def test_two_programs_that_share_a_tensor_without_a_barrier(tmp_path: Path) -> None:
    values = run(SHARED, A, lnc=2)
    assert np.array_equal(values.outputs[0][0].array, A)
    assert "HAZ005" in codes(tmp_path, SHARED, "a", "a=128x128:float32", lnc=2)

"""A folder in which every file that skills and documents name is there, made of bundled examples."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import neffs
from tests.faulty_profiles import clean_step
from trnprof.cli import run
from trnprof.demo import published_step
from trnprof.nki.tensor_files import safetensors
from trnprof.writers.explorer_parquet import write_explorer_parquet
from trnprof.writers.neff import write_neff

ROOT = Path(__file__).parent.parent.parent

CAPTURES = ("step.ntff", "before.ntff", "after.ntff", "a1.ntff", "a2.ntff", "b1.ntff", "b2.ntff", "b4.ntff", "b8.ntff")

ANY_INPUTS_KERNEL = '''
import nki
import nki.isa as nisa
import nki.language as nl

TILE = 128


@nki.jit
def matmul(q=None, k=None, v=None, x=None, a=None, b=None, tile=4):
    """Takes whichever tensors a document's line gives it, and loads each in rows of TILE."""
    given = [one for one in (q, k, v, x, a, b) if one is not None]
    out = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.shared_hbm)
    row = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=row, value=0.0)
    for one in given:
        width = min(TILE, one.shape[1])
        for start in range(0, one.shape[0] - 127, 128):
            tile_of_one = nl.ndarray((128, width), dtype=one.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile_of_one, src=one[nl.ds(start, 128), nl.ds(0, width)])
    nisa.dma_copy(dst=out, src=row)
    return out
'''


REFERENCE = """
import numpy as np


def matmul(lhs_t, rhs):
    return lhs_t.T @ rhs


def attention(q, k, v):
    weights = np.exp(q.T @ k)
    return weights / weights.sum(1, keepdims=True) @ v.T
"""

INPUTS = """
import numpy as np


def inputs():
    return tuple(0.1 * np.random.default_rng(0).standard_normal((3, 128, 512), dtype=np.float32))
"""


@pytest.fixture(scope="session")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder; each capture is the demo's profile under another name."""
    folder = tmp_path_factory.mktemp("bundled")
    write_explorer_parquet(published_step(), folder / "demo-profile")
    for name in (*CAPTURES, "captures/rank0.ntff", "captures/rank1.ntff"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copytree(folder / "demo-profile", folder / name, copy_function=os.link)
    for name in ("step", "rows1"):  # what engine profile --modelled writes
        shutil.copytree(folder / "demo-profile", folder / name, copy_function=os.link)
    for name in ("before.ntff", "after.ntff"):  # a step with layers and kernels, for --scope
        shutil.rmtree(folder / name)
        write_explorer_parquet(clean_step(), folder / name)
    write_neff(neffs.small_neff(), folder / "model.neff")
    (folder / "reference.py").write_text(REFERENCE, encoding="utf-8")
    (folder / "inputs.py").write_text(INPUTS, encoding="utf-8")
    heads = np.random.default_rng(0).standard_normal((3, 128, 512), dtype=np.float32)
    for name, head in zip("qkv", heads, strict=True):
        np.save(folder / f"{name}.npy", head)
        (folder / f"{name}.safetensors").write_bytes(safetensors({name: head}))
    shutil.copytree(folder / "before.ntff", folder / "changed", copy_function=os.link)
    (folder / "kernel.py").write_text(ANY_INPUTS_KERNEL, encoding="utf-8")
    return folder


@pytest.fixture
def answer() -> Callable[..., dict[str, Any]]:
    """Run a command in this process and return its envelope."""

    def ask(*words: object) -> dict[str, Any]:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            run([*map(str, words), "--format", "json"])
        document: dict[str, Any] = json.loads(printed.getvalue())
        return document

    return ask

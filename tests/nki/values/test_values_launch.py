"""How kernels are launched: grids, host functions, kernels that call kernels, arguments of any kind, ranks."""

from __future__ import annotations

import linecache
import sys
from types import ModuleType
from typing import Any

import numpy as np

from tests.nki.values.running import FIRST, SECOND, f32, run
from trnprof.nki.modules import install_nki_modules
from trnprof.nki.values.run import ValueRun, compute

X = np.arange(256 * 4, dtype=np.float32).reshape(256, 4)


def launch(source: str, name: str, *args: Any, head: str = SECOND, **options: Any) -> ValueRun:
    """Run the function `name` of a module."""
    text = head + source
    with install_nki_modules():
        module = sys.modules["launch_module"] = ModuleType("launch_module")
        linecache.cache["launch.py"] = (len(text), None, text.splitlines(keepends=True), "launch.py")
        exec(compile(text, "launch.py", "exec"), vars(module))
        return compute(vars(module)[name], args, **options)


GRID = """
@nki.jit
def kernel(a):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    i, j = nl.program_id(0), nl.program_id(1)
    i_p, i_f = nl.mgrid[0:128, 0:2]
    t = nl.load(a[i * 128 + i_p, j * 2 + i_f])
    nl.store(out[i * 128 + i_p, j * 2 + i_f], t * (10.0 * i + j + 1.0))
    return out

def host(a):
    first = kernel[2, 2](a)
    return kernel[2, 2](first)
"""
FACTORS = np.repeat(np.repeat(np.array([[1, 2], [11, 12]], np.float32), 128, 0), 2, 1)


def test_each_program_of_a_grid_does_its_part() -> None:
    found = launch(GRID, "kernel", X, head=FIRST, grid=(2, 2))
    assert found.program_count == 4
    assert np.array_equal(found.outputs[0][0].array, X * FACTORS)
    assert found.outputs[0][0].missing_count == 0


def test_a_host_function_passes_one_kernels_output_to_the_next() -> None:
    found = launch(GRID, "host", X, head=FIRST, is_host=True)
    assert found.program_count == 8
    assert np.array_equal(found.outputs[0][0].array, X * FACTORS * FACTORS)


def test_a_program_that_is_left_out_leaves_its_part_unwritten() -> None:
    output = launch(GRID, "kernel", X, head=FIRST, grid=(1, 2)).outputs[0][0]
    assert output.missing_count == 128 * 4
    assert np.isnan(output.array[128:]).all()


CALLS = """
@nki.jit
def inner(t, factor):
    nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=factor)
    return t

class Scale(nl.NKIObject):
    by: float = 3.0

def helper(t, config):
    return inner(t, config.by)

@nki.jit
def outer(a, config=None, names=("x",), weights=None):
    t = nl.ndarray(a.shape, a.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=a)
    helper(t, config or Scale())
    if weights is not None:
        w = nl.ndarray(weights[1]["w"].shape, a.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=w, src=weights[1]["w"])
        nisa.tensor_tensor(dst=t, data1=t, data2=w, op=nl.add)
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=t)
    return {"result": out}
"""


def test_kernels_that_call_kernels_and_configuration_objects() -> None:
    assert launch(CALLS, "outer", X[:128]).outputs[0][0].array.tolist() == (3 * X[:128]).tolist()


def test_tensors_inside_lists_and_dictionaries() -> None:
    x = f32([1, 2], [3, 4])
    source = CALLS + "\ndef start(a, w):\n    return outer(a, weights=[0, {'w': w}])\n"
    result = launch(source, "start", x, 10 * x, is_host=True)
    assert result.outputs[0][0].array.tolist() == [[13, 26], [39, 52]]


def test_the_callers_arrays_stay_as_they_are_unless_the_kernel_writes_them() -> None:
    x = f32([1, 2])
    run(
        "t = nl.ndarray((1, 2), nl.float32, buffer=nl.sbuf)\nnisa.dma_copy(dst=t, src=a)\nnisa.memset(dst=t, value=0.0)",
        x,
    )
    assert x.tolist() == [[1, 2]]


def test_bool_arguments_and_strided_arrays() -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6)[:, ::2]
    flags = np.array([[True, False, True]] * 4)
    found = run(
        """
t = nl.ndarray((4, 3), nl.float32, buffer=nl.sbuf)
m = nl.ndarray((4, 3), nl.uint8, buffer=nl.sbuf)
nisa.dma_copy(dst=t, src=a)
nisa.dma_copy(dst=m, src=b)
nisa.tensor_tensor(dst=t, data1=t, data2=m, op=nl.multiply)
out = nl.ndarray((4, 3), nl.float32, buffer=nl.shared_hbm)
nisa.dma_copy(dst=out, src=t)
return out
""",
        x,
        flags,
    )
    assert np.array_equal(found.outputs[0][0].array, x * flags)


def test_the_same_run_gives_the_same_values() -> None:
    body = """
t = nl.ndarray((128, 8), nl.float32, buffer=nl.sbuf)
nisa.rand2(dst=t, min=0.0, max=1.0)
out = nl.ndarray((2, 128, 8), nl.float32, buffer=nl.shared_hbm)
nisa.dma_copy(dst=out[nl.program_id(0)], src=t)
return out
"""
    first, again = (run(body, lnc=2, target="trn3", seed=4).outputs[0][0].array for _ in range(2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first[0], first[1])  # each program has a generator of its own

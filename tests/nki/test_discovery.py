"""Kernels and call sites told from the syntax tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from trnprof.errors import InputDataError, InputMissingError
from trnprof.nki.discovery import KernelKind, Role, find_kernels, parse_source, read_source
from trnprof.nki.sites import find_call_sites

FILE = Path("kernel.py")


def kernels_of(source: str) -> dict[str, KernelKind]:
    return {kernel.name: kernel.kind for kernel in find_kernels(parse_source(source, FILE))}


@pytest.mark.parametrize(
    "decorator",
    [
        "import nki\n@nki.jit",
        "import nki\n@nki.jit(mode='trace')",
        "from neuronxcc import nki\n@nki.jit",
        "import neuronxcc.nki as nki\n@nki.benchmark(warmup=1, iters=2)",
        "from nki import jit\n@jit",
        "from torch_neuronx import nki_jit\n@nki_jit",
        "import neuronxcc.nki\n@neuronxcc.nki.baremetal",
    ],
)
def test_every_spelling_of_jit_makes_a_kernel(decorator: str) -> None:
    assert kernels_of(f"{decorator}\ndef k(a):\n    pass\n") == {"k": KernelKind.JIT}


def test_decorators_of_other_libraries_do_not() -> None:
    assert kernels_of("import numba\n@numba.jit\ndef k(a):\n    pass\n") == {}


def test_a_function_wrapped_by_a_call_of_jit() -> None:
    source = "import nki\ndef body(a):\n    pass\nk = nki.jit(body)\nk2 = nki.jit(mode='trace')(body)\n"
    assert kernels_of(source) == {"k": KernelKind.JIT, "k2": KernelKind.JIT}


def test_plain_kernels_are_those_that_no_kernel_calls() -> None:
    source = """
import neuronxcc.nki.language as nl
def helper(a):
    return nl.load(a)
def entry(a, out):
    nl.store(out, value=helper(a))
    through(a)
def through(a):
    return deep(a)
def deep(a):
    return nl.load(a)
def unrelated(a):
    return a + 1
"""
    assert kernels_of(source) == {"entry": KernelKind.PLAIN}


def test_host_functions_launch_with_and_without_a_grid() -> None:
    source = """
import nki
from other import imported_kernel
@nki.jit
def k(a): pass
def with_grid(a): return k[4, 2](a)
def without(a): return k(a)
def of_another_file(a): return imported_kernel[2](a)
def table_call(handlers, a): return handlers[0](a)
def test_k(a): return k(a)
"""
    found = {kernel.name: kernel for kernel in find_kernels(parse_source(source, FILE))}
    assert set(found) == {"k", "with_grid", "without", "of_another_file"}
    assert found["with_grid"].launches == ("k",)
    # What a host function hands to a kernel is a tensor, although nothing in its own body says so.
    assert found["with_grid"].parameters[0].role is Role.TENSOR


def test_config_objects_come_from_an_inputs_file() -> None:
    source = """
import nki, nki.language as nl
from .config import Config
@nki.jit
def k(x: nl.ndarray, config: Config, n: Optional[int], sizes: list[int]): pass
def _helper(x): nl.load(x)
"""
    (kernel,) = find_kernels(parse_source(source, FILE))
    assert [str(parameter.role) for parameter in kernel.parameters] == ["tensor", "object", "argument", "argument"]
    assert kernel.command(FILE) == "trnprof dma-predict kernel.py --kernel k --inputs FILE.py"


def test_parameters_know_their_role_and_rank() -> None:
    source = """
import nki, nki.language as nl
@nki.jit
def k(q, x, idx: nl.ndarray, tile=4, scale: float = 1.0, *, flag: bool, other=None):
    d, s = q.shape
    n = x.shape[2]
"""
    (kernel,) = find_kernels(parse_source(source, FILE))
    roles = {parameter.name: (parameter.role, parameter.rank, parameter.required) for parameter in kernel.parameters}
    assert roles == {
        "q": (Role.TENSOR, 2, True),
        "x": (Role.TENSOR, 3, True),
        "idx": (Role.TENSOR, None, True),
        "tile": (Role.ARGUMENT, None, False),
        "scale": (Role.ARGUMENT, None, False),
        "flag": (Role.ARGUMENT, None, True),
        "other": (Role.UNKNOWN, None, False),
    }
    assert kernel.command(Path("dir/kernel.py")) == (
        "trnprof dma-predict dir/kernel.py --kernel k --input q=128x512:bfloat16 --input x=2x128x512:bfloat16 "
        "--input idx=128x512:bfloat16 --arg flag=True"
    )


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"def k(:\n", "line 1: does not parse"),
        (b"x = 1\n\0", "NUL bytes"),
        (b"\xff\xfe\x00x", "NUL bytes"),
        (b"x = '\xe9'\n", "not UTF-8"),
        (b"(" * 100_000, "line"),
        (b"-" * 200_000 + b"1", "nested too deeply"),
        (b"#" * (9 << 20), "larger than"),
    ],
)
def test_files_that_are_no_source_are_one_clear_error(tmp_path: Path, content: bytes, found: str) -> None:
    path = tmp_path / "kernel.py"
    path.write_bytes(content)
    with pytest.raises(InputDataError, match=found) as caught:
        parse_source(read_source(path), path)
    assert "\n" not in caught.value.message
    assert caught.value.path == str(path)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "none.py", tmp_path, Path("a\0b.py")):
        with pytest.raises(InputMissingError):
            read_source(path)


def test_call_sites_with_their_loops() -> None:
    source = """
import nki, nki.isa as nisa, nki.language as nl
def helper(dst, src):
    nisa.dma_copy(dst=dst, src=src.ap(pattern=[[1, 4]], scalar_offset=reg))
@nki.jit
def k(a):
    t = nl.load(a[0:128], mask=m); helper(t, a)
    for i in nl.affine_range(4):
        while more:
            nisa.dma_copy(t, a[i], dge_mode=nisa.dge_mode.hwdge)
"""
    sites = find_call_sites(parse_source(source, FILE))
    assert [(site.line, site.function, site.operation, site.in_kernel) for site in sites] == [
        (4, "helper", "dma_copy", False),
        (7, "k", "load", True),
        (10, "k", "dma_copy", True),
    ]
    assert sites[0].indirect and not sites[1].indirect
    assert sites[1].masked and sites[1].source == "a[0:128]" and sites[1].destination is None
    assert sites[2].dge_mode == "nisa.dge_mode.hwdge"
    assert [(loop.line, loop.target, loop.iterates) for loop in sites[2].loops] == [
        (8, "i", "nl.affine_range(4)"),
        (9, "", "more"),
    ]

"""What the compiler leaves out of a first-generation kernel: instructions counted by hand, and against captures."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.bench.nki_model import ATTENTION, model_case
from tests.nki.timing.kernels import FIRST, SECOND, lowered, record, scheduled
from trnprof.nki.timing.program import MachineProgram
from trnprof.readers import read_profile

PRODUCT = (
    FIRST
    + """
@nki.jit
def kernel(a, b):
    out = nl.ndarray((128, {width}), dtype=nl.float32, buffer=nl.shared_hbm)
    left, right = nl.load(a), nl.load(b)
    tile = nl.ndarray((nl.par_dim(128), {width}), dtype=nl.{dtype}, buffer=nl.sbuf)
    for part in nl.affine_range({width} // 512):
        product = nl.ndarray((nl.par_dim(128), 512), dtype=nl.float32, buffer=nl.psum)
        product[...] = nisa.nc_matmul(left, right)
        tile[:, nl.ds(part * 512, 512)] = nisa.tensor_copy(product, dtype=nl.{dtype})
    {use}
    return out
"""
)
SQUARE = {"a": ((128, 128), "bfloat16"), "b": ((128, 512), "bfloat16")}
EXPONENTS = "nl.store(out, nisa.activation(op=nl.exp, data=tile))"

REPEATED = (
    FIRST
    + """
@nki.jit
def kernel(a, b, w):
    out = nl.ndarray((4, 128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    {outside}
    for row in nl.affine_range(4):
        {inside}
        product = nisa.tensor_tensor(left, right, op=nl.multiply)
        nl.store(out[row], nisa.tensor_tensor(product, nl.load(w[row]), op=nl.add))
        {after}
    return out
"""
)
TILES = {"a": ((128, 512), "float32"), "b": ((128, 512), "float32"), "w": ((4, 128, 512), "float32")}
LOADS = "left, right = nl.load(a), nl.load(b)"


def names(program: MachineProgram) -> Counter[str]:
    return Counter(program.opcodes[code] for code in program.opcode if code >= 0)


@pytest.mark.parametrize(
    ("width", "dtype", "use", "copies"),
    [
        (512, "float32", EXPONENTS, 0),
        (512, "float32", "nl.store(out, tile)", 1),  # a DMA cannot take the product's place in PSUM
        (512, "float32", EXPONENTS + "\n    nl.store(out, tile)", 1),
        (512, "float32", "nl.store(out, nisa.activation(op=nl.exp, data=nisa.nc_matmul(left, tile)))", 1),  # reads SBUF
        (512, "bfloat16", EXPONENTS, 1),  # it rounds
        (1024, "float32", EXPONENTS, 2),  # two banks
    ],
)
def test_a_copy_out_of_psum_that_nothing_needs(tmp_path: Path, width: int, dtype: str, use: str, copies: int) -> None:
    program = lowered(record(PRODUCT.format(width=width, dtype=dtype, use=use), tmp_path, SQUARE))
    found = names(program)
    assert found["COPY"] + found["CAST"] == copies
    assert found["MATMUL"] == width // 512 + use.count("nc_matmul")
    exponentials = [row for row, code in enumerate(program.opcode) if code >= 0 and program.opcodes[code] == "ACTIVATE"]
    assert len(exponentials) == use.count("activation")
    for row in exponentials:
        assert program.works[program.work[row]].in_psum is (copies == 0 or "nc_matmul" in use)
    assert scheduled(program).end_of_body_ps > 0


def test_the_exponential_waits_for_the_product_that_it_reads_in_psum(tmp_path: Path) -> None:
    program = lowered(record(PRODUCT.format(width=512, dtype="float32", use=EXPONENTS), tmp_path, SQUARE))
    place = {program.opcodes[code]: row for row, code in enumerate(program.opcode) if code >= 0}
    first, end = program.dependency_first[place["ACTIVATE"] : place["ACTIVATE"] + 2]
    assert place["MATMUL"] in program.dependency[first:end]


@pytest.mark.parametrize(
    ("outside", "inside", "after", "count"),
    [
        ("", LOADS, "", 4 + 4),  # loaded again in each iteration: other tiles
        (LOADS, "", "", 1 + 4),
        (LOADS, "", "left += right", 4 + 4 + 4),  # the tile changes
    ],
)
def test_work_that_an_iteration_repeats(tmp_path: Path, outside: str, inside: str, after: str, count: int) -> None:
    source = REPEATED.format(outside=outside or "pass", inside=inside or "pass", after=after or "pass")
    program = lowered(record(source, tmp_path, TILES))
    assert names(program)["TENSOR_TENSOR"] == count
    # As written: an identity-free kernel of 2 loads (4 x 2 inside), 4 x (product, load, sum, store), 4 additions if any.
    assert program.written_count == (8 if inside else 2) + 16 + (4 if after else 0)


def test_every_sum_waits_for_the_one_product(tmp_path: Path) -> None:
    program = lowered(record(REPEATED.format(outside=LOADS, inside="pass", after="pass"), tmp_path, TILES))
    rows = [r for r, code in enumerate(program.opcode) if code >= 0 and program.opcodes[code] == "TENSOR_TENSOR"]
    product, *sums = rows
    for row in sums:
        first, end = program.dependency_first[row : row + 2]
        assert product in program.dependency[first:end]


def test_a_second_generation_kernel_runs_as_written(tmp_path: Path) -> None:
    source = (
        SECOND
        + """
@nki.jit
def kernel(a):
    out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    tile = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=a)
    for i in nl.affine_range(4):
        double = nl.add(tile, tile)
        nisa.dma_copy(dst=out, src=double)
    return out
"""
    )
    found = names(lowered(record(source, tmp_path, {"a": ((128, 512), "float32")})))
    assert found["TENSOR_TENSOR"] == 4


@pytest.mark.parametrize("name", ["fused_fp32_s512", "fused_bf16_s512", "baseline_fp32_s512"])
def test_copies_are_as_many_as_the_captures(captures: Path, name: str) -> None:
    case = next(case for case in ATTENTION if case.name == name.replace("_", " "))
    counts = []
    for profile in (read_profile(captures / name / "neuron_profile.json.gz"), model_case(case).profile()):
        rows = profile.instructions
        assert rows is not None
        counts.append(
            sum(
                row["opcode"] in ("COPY", "CAST") and row["engine"] in ("vector", "scalar") and row["pcore_idx"] == 0
                for row in rows.select(["opcode", "engine", "pcore_idx"]).to_pylist()
            )
        )
    assert counts[0] == counts[1] > 4

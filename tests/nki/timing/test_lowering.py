"""Operations of the language as machine instructions, with what each waits for: small kernels, answers by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.nki.timing.kernels import FIRST, SECOND, attention, lowered, record, scheduled
from trnprof.errors import InputDataError
from trnprof.nki.static_rings import without_dge
from trnprof.nki.timing.exchange import load, save
from trnprof.nki.timing.lowering import lower
from trnprof.nki.timing.program import (
    BARRIER,
    COMPUTE,
    DMA,
    EXCHANGE,
    HWDGE,
    RESULT,
    STATIC,
    VIRTUAL,
    MachineProgram,
)
from trnprof.profile import ENGINES

MATMUL = (
    SECOND
    + """
@nki.jit
def kernel(a, b):
    out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    left = nl.ndarray((128, 128), dtype=a.dtype, buffer=nl.sbuf)
    right = nl.ndarray((128, 512), dtype=b.dtype, buffer=nl.sbuf)
    product = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
    tile = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=left, src=a)
    nisa.dma_copy(dst=right, src=b)
    nisa.nc_matmul(dst=product, stationary=left, moving=right)
    nisa.tensor_copy(dst=tile, src=product)
    nisa.dma_copy(dst=out, src=tile)
    return out
"""
)
SQUARE = {"a": ((128, 128), "bfloat16"), "b": ((128, 512), "bfloat16")}


def depends(program: MachineProgram, number: int) -> dict[int, int]:
    first, end = program.dependency_first[number : number + 2]
    return dict(zip(program.dependency[first:end].tolist(), program.dependency_kind[first:end].tolist(), strict=True))


def names(program: MachineProgram) -> list[str]:
    return [program.opcodes[code] if code >= 0 else "virtual" for code in program.opcode]


def test_load_multiply_copy_store(tmp_path: Path) -> None:
    program = lowered(record(MATMUL, tmp_path, SQUARE))
    assert names(program) == ["DMA_DIRECT2D", "DMA_DIRECT2D", "MATMUL", "COPY", "DMA_DIRECT2D"]
    assert program.kind.tolist() == [DMA, DMA, COMPUTE, COMPUTE, DMA]
    # Arguments and results go by software DGE, as in the public captures; the copy to the idler of vector and scalar.
    assert [ENGINES[engine] for engine in program.engine] == ["gpsimd", "gpsimd", "tensor", "scalar", "gpsimd"]
    assert [depends(program, number) for number in range(5)] == [
        {},
        {},
        {0: RESULT, 1: RESULT},
        {2: RESULT},
        {3: RESULT},
    ]
    assert program.hbm_read_bytes.tolist() == [128 * 128 * 2, 128 * 512 * 2, 0, 0, 0]
    assert program.hbm_write_bytes.tolist() == [0, 0, 0, 0, 128 * 512 * 4]
    matmul = program.works[program.work[2]]
    assert (matmul.rows, matmul.elements, matmul.passes_fp32) == (128, 512, False)
    assert program.macs[2] == 128 * 128 * 512
    assert [(tensor.name, tensor.kind, tensor.size_bytes) for tensor in program.tensors] == [
        ("a", "input", 32_768),
        ("b", "input", 131_072),
        ("out", "output", 262_144),
    ]


def test_accumulating_products_do_not_wait_for_each_other(tmp_path: Path) -> None:
    source = MATMUL.replace(
        "    nisa.nc_matmul(dst=product, stationary=left, moving=right)\n",
        "    for _ in range(4):\n        nisa.nc_matmul(dst=product, stationary=left, moving=right)\n",
    )
    program = lowered(record(source, tmp_path, SQUARE))
    found = scheduled(program)
    rows = [number for number, name in enumerate(names(program)) if name == "MATMUL"]
    assert len(rows) == 4
    assert found.array_start_ps[rows][1:].tolist() == found.issued_ps[rows][:-1].tolist()


def test_what_the_compiler_joins_in_the_captures(tmp_path: Path) -> None:
    """fused_fp32_s1024 has 64 transposes of weights and 8 of v; their copies leave by 512 columns: 18 of 72, and 8 tiles of
    512 B of the result by one store."""
    program = lowered(attention(tmp_path, "fused", 1024))
    widths = [
        program.works[work].elements for work, name in zip(program.work, names(program), strict=True) if name == "COPY"
    ]
    assert widths.count(512) == 18 + 16  # and the scores' own copies of two banks, which the compiler drops half of
    assert 128 not in widths
    stores = [number for number in np.flatnonzero(program.kind == DMA) if program.hbm_write_bytes[number]]
    assert program.hbm_write_bytes[stores].tolist() == [524_288]
    # As written: 8 rows of 2 products, 2 copies, 4 of softmax, 8 x (transpose, copy, product), scaling, store; v's 8
    # transposes and copies; 3 loads and the identity.
    assert program.written_count == 8 * (2 + 2 + 4 + 24 + 2) + 16 + 4


def test_psum_is_used_again_when_its_users_have_ended(tmp_path: Path) -> None:
    """Eight banks: the ninth product of a bank each waits until the first one's copy has read it."""
    source = (
        SECOND
        + """
@nki.jit
def kernel(a, b):
    left = nl.ndarray((128, 128), dtype=a.dtype, buffer=nl.sbuf)
    right = nl.ndarray((128, 512), dtype=b.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=left, src=a)
    nisa.dma_copy(dst=right, src=b)
    for i in range(9):
        product = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
        tile = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
        nisa.nc_matmul(dst=product, stationary=left, moving=right)
        nisa.tensor_copy(dst=tile, src=product, engine=nisa.vector_engine)
"""
    )
    program = lowered(record(source, tmp_path, SQUARE))
    products = [number for number, name in enumerate(names(program)) if name == "MATMUL"]
    copies = [number for number, name in enumerate(names(program)) if name == "COPY"]
    assert copies[0] not in depends(program, products[7])
    assert depends(program, products[8])[copies[0]] == RESULT


def test_slices_of_one_tile_are_told_apart(tmp_path: Path) -> None:
    source = (
        SECOND
        + """
@nki.jit
def kernel(x):
    tile = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=tile[:, 0:256], value=0, engine=nisa.vector_engine)
    nisa.memset(dst=tile[:, 256:512], value=1, engine=nisa.gpsimd_engine)
    nisa.activation(dst=tile[:, 0:256], op=nl.exp, data=tile[:, 0:256])
    nisa.tensor_scalar(dst=tile[:, 128:384], data=tile[:, 128:384], op0=nl.add, operand0=1.0, engine=nisa.vector_engine)
"""
    )
    program = lowered(record(source, tmp_path, {"x": ((128, 512), "float32")}))
    assert [depends(program, number) for number in range(4)] == [{}, {}, {0: RESULT}, {1: RESULT, 2: RESULT}]


DYNAMIC = (
    SECOND
    + """
@nki.jit
def kernel(a, chosen):
    numbers = nl.ndarray((128, 4), dtype=chosen.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=numbers[0:1, 0:4], src=chosen)
    for place in range(4):
        tile = nl.ndarray((128, 512), dtype=a.dtype, buffer=nl.sbuf)
        number = numbers.ap(pattern=[[4, 1], [1, 1]], offset=place)
        source = a.ap(pattern=[[512, 128], [1, 512]], offset=0, scalar_offset=number, indirect_dim=0)
        nisa.dma_copy(dst=tile, src=source)
"""
)


def test_a_dma_whose_start_comes_from_sbuf_waits_for_it(tmp_path: Path) -> None:
    program = lowered(record(DYNAMIC, tmp_path, {"a": ((8, 128, 512), "bfloat16"), "chosen": ((1, 4), "int32")}))
    assert program.dmas.is_dynamic.tolist() == [False, True, True, True, True]
    first = program.dependency_first
    for number in range(1, 5):
        assert program.dependency[first[number] : first[number + 1]].tolist() == [0]


def test_interleaved_columns_do_not_wait_for_each_other(tmp_path: Path) -> None:
    source = (
        SECOND
        + """
@nki.jit
def kernel(a):
    rows = nl.ndarray((128, 3, 8, 32), dtype=a.dtype, buffer=nl.sbuf)
    for place in range(8):
        nisa.dma_copy(dst=rows[:, :, place, :], src=a[:, place : place + 3, :])
"""
    )
    program = lowered(record(source, tmp_path, {"a": ((128, 10, 32), "float16")}))
    assert program.dependency_first.tolist() == [0] * 9


def test_parts_that_are_written_while_the_whole_is_read_stay_linear(tmp_path: Path) -> None:
    source = (
        SECOND
        + """
@nki.jit
def kernel(a, count=500):
    tile = nl.ndarray((128, 512), dtype=a.dtype, buffer=nl.sbuf)
    out = nl.ndarray((128, 512), dtype=a.dtype, buffer=nl.sbuf)
    for _ in range(count):
        for part in range(4):
            nisa.memset(dst=tile[:, part * 128 : part * 128 + 128], value=0)
        nisa.activation(dst=out, op=nl.exp, data=tile)
"""
    )
    sizes = []
    for count in (500, 1000):
        recording = record(source, tmp_path, {"a": ((128, 512), "float32")}, count=count)
        sizes.append(len(lowered(recording).dependency))
    assert sizes[1] < 2.1 * sizes[0]
    assert sizes[0] < 60 * 5 * 500


def test_a_row_that_every_partition_reads_is_one_row(tmp_path: Path) -> None:
    """128 x 512 elements of a [1, 512] tile: 512 cycles, not 65,536."""
    source = (
        FIRST
        + """
@nki.jit
def kernel(a, b):
    out = nl.ndarray((128, 512), dtype=a.dtype, buffer=nl.shared_hbm)
    tile, row = nl.load(a), nl.load(b)
    nl.store(out, nisa.tensor_tensor(tile, row.broadcast_to((128, 512)), op=nl.multiply))
    return out
"""
    )
    program = lowered(record(source, tmp_path, {"a": ((128, 512), "float32"), "b": ((1, 512), "float32")}))
    (work,) = program.works
    assert (work.instruction, work.elements, work.partitions, work.contiguous) == ("tensor_tensor", 512, 128, True)


def test_without_dge_dmas_run_from_static_rings(tmp_path: Path) -> None:
    """stream_256k of a public capture compiled with --disable-dge: 8 rows of 4,000 B an engine, no packet of its own for
    the semaphore; the copies that name a mode keep it."""
    source = (
        SECOND
        + """
@nki.jit
def kernel(a):
    for mode in (nisa.dge_mode.unknown, nisa.dge_mode.hwdge):
        tile = nl.ndarray((128, 1000), dtype=a.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=a[:, 0:1000], dge_mode=mode)
"""
    )
    recording = record(source, tmp_path, {"a": ((128, 2000), "float32")})
    dmas = lower(without_dge(recording), sbuf_bytes_per_partition=196608, psum_bytes_per_partition=16384).dmas
    assert dmas.mode.tolist() == [STATIC, HWDGE]
    assert dmas.semaphore_packets.tolist() == [0, 16]
    assert dmas.packets.tolist() == [[8] * 16, [8] * 16]


def test_unknown_costs_are_counted_not_dropped(tmp_path: Path) -> None:
    source = (
        SECOND
        + """
@nki.jit
def kernel(x):
    tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    for i in range(3):
        nisa.rng(dst=tile)
    nisa.somebody_elses_instruction(dst=tile, data=tile)
"""
    )
    program = lowered(record(source, tmp_path, {"x": ((128, 64), "float32")}))
    assert program.unknown == {"rng": 3, "somebody_elses_instruction": 1}
    assert len(program) == 5


PAIR = (
    SECOND
    + """
@nki.jit
def kernel(x):
    out = nl.ndarray((2, 128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    me = nl.program_id(0)
    mine = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    other = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=mine, src=x[me])
    if me == 0:
        for i in range(20):
            nisa.activation(dst=mine, op=nl.exp, data=mine)
    nisa.dma_copy(dst=out[me], src=mine)
    nisa.core_barrier(data=out, cores=(0, 1))
    nisa.sendrecv(src=mine, dst=other, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=0)
    nisa.tensor_tensor(dst=mine, data1=mine, data2=other, op=nl.add)
    nisa.dma_copy(dst=out[me], src=mine)
    return out
"""
)
HALVES = {"x": ((2, 128, 512), "float32")}


def test_a_pair_meets_at_barriers_and_exchanges(tmp_path: Path) -> None:
    program = lowered(record(PAIR, tmp_path, HALVES, lnc=2))
    assert program.core_count == 2
    for kind in (BARRIER, EXCHANGE):
        rows = np.flatnonzero(program.kind == kind)
        assert program.core[rows].tolist() == [0, 1]
        assert program.partner[rows].tolist() == rows[::-1].tolist()
        found = scheduled(program)
        # Both go on at one time; program 1 came earlier and waited.
        assert found.end_ps[rows[0]] == found.end_ps[rows[1]]
        if kind == BARRIER:
            assert found.start_ps[rows[1]] < found.start_ps[rows[0]]
    assert program.unknown == {"core_barrier": 2, "sendrecv": 2}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("core_barrier", "program 0 is at sendrecv where program 1 is at core_barrier"),
        ("sendrecv", "program 1 waits at this sendrecv for program 0, which never gets there"),
    ],
)
def test_a_pair_that_never_meets_is_said_with_its_line(tmp_path: Path, call: str, message: str) -> None:
    source = PAIR.replace(f"    nisa.{call}(", f"    if me == 1: nisa.{call}(")
    with pytest.raises(InputDataError, match=message) as caught:
        lowered(record(source, tmp_path, HALVES, lnc=2))
    line = 1 + source[: source.index(f"nisa.{call}(")].count("\n")
    assert f"line {line}" in caught.value.message
    assert caught.value.path is not None


def test_a_grid_and_launches(tmp_path: Path) -> None:
    """Programs of a grid follow each other on a core without waiting; a second launch waits for the first one's end."""
    source = (
        FIRST
        + """
@nki.jit
def one(x):
    out = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.exp(nl.load(x)))
    return out

def kernel(x):
    return one(one(x))
"""
    )
    program = lowered(record(source, tmp_path, {"x": ((128, 512), "float32")}))
    assert [(span.name, span.core) for span in program.kernels] == [("one", 0), ("one", 0)]
    found = scheduled(program)
    second = [
        number for number in range(program.kernels[1].first, program.kernels[1].end) if program.kind[number] != VIRTUAL
    ]
    first = range(program.kernels[0].first, program.kernels[0].end)
    assert found.start_ps[second].min() > max(found.end_ps[number] for number in first)


def test_it_crosses_processes(tmp_path: Path) -> None:
    program = lowered(record(PAIR, tmp_path, HALVES, lnc=2))
    back = load(tmp_path, save(program, tmp_path))
    for name, value in vars(program).items():
        mine = getattr(back, name)
        if isinstance(value, np.ndarray):
            assert np.array_equal(mine, value), name
            assert mine.dtype == value.dtype, name
        elif name != "dmas":
            assert mine == value, name
    for name, value in vars(program.dmas).items():
        assert np.array_equal(getattr(back.dmas, name), value), name


@pytest.mark.parametrize(
    "damage",
    [
        {"engine": np.array([99], np.int8)},
        {"dependency": np.array([7], np.int32)},
        {"dma": np.array([5], np.int32)},
        {"kind": np.array([1, 1], np.int8)},
    ],
)
def test_a_program_that_leads_nowhere_is_refused(tmp_path: Path, damage: dict[str, np.ndarray]) -> None:
    from trnprof.errors import InconsistencyError

    program = lowered(record(MATMUL, tmp_path, SQUARE))
    document = save(program, tmp_path)
    with np.load(tmp_path / "program.npz") as arrays:
        changed = dict(arrays)
    for name, values in damage.items():
        mine = changed[name].copy()
        mine[: len(values)] = values[: len(mine)]
        changed[name] = mine if name != "kind" else mine[:2]
    np.savez(tmp_path / "program.npz", **changed)
    with pytest.raises(InconsistencyError, match="no valid program"):
        load(tmp_path, document)

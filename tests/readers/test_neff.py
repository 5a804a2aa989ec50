"""A NEFF made by hand, where every figure can be read off: program, origins of instructions, bytes of DMAs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest

from tests.neffs import (
    A_ID,
    LDWEIGHTS,
    OUT_ID,
    STATE_BUFFER_ID,
    UUID,
    dynamic_dma,
    level,
    small_neff,
    static_dma,
    stream,
    trigger,
    variables,
    word,
)
from trnprof.analyzers.neff_summary import summarize_neff
from trnprof.readers.neff import Neff, read_neff
from trnprof.readers.neff_dma import dma_hbm_bytes
from trnprof.readers.neff_origins import trace_origins
from trnprof.writers.neff import write_neff


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """The small NEFF as a file."""
    path = tmp_path / "by_hand.neff"
    write_neff(small_neff(), path)
    return path


# By hand.


def test_header_and_program(small: Path) -> None:
    neff = read_neff(small)
    assert neff.header.uuid == UUID
    assert neff.header.features == ("virtual-core", "v3-2x-4x-dve-perf-mode")
    assert (neff.compiler_version, neff.target, neff.hardware) == ("2.23.0+byhand", "cayman", "trn2")
    assert [core.subgraph for core in neff.cores] == ["sg00", "sg01"]
    assert {engine: len(part.words) for engine, part in neff.cores[0].streams.items()} == {
        "tensor": 3,
        "vector": 1,
        "scalar": 1,
        "gpsimd": 2,
        "sync": 4,
    }
    assert neff.cores[0].streams["tensor"].words[1, 0] == LDWEIGHTS


def test_without_debug_info_the_program_is_the_same(small: Path) -> None:
    bare, full = read_neff(small, debug_info=False), read_neff(small)
    assert not bare.levels and not bare.kernels and not bare.cores[0].backend
    assert np.array_equal(bare.cores[0].streams["sync"].words, full.cores[0].streams["sync"].words)
    assert summarize_neff(bare).cores == summarize_neff(full).cores


@pytest.mark.parametrize(
    ("target", "hardware"), [("sunda", "trn1"), ("cayman", "trn2"), ("mariana", None), (None, None)]
)
def test_target_names_the_hardware_where_it_is_known(tmp_path: Path, target: str | None, hardware: str | None) -> None:
    write_neff(replace(small_neff(), target=target), tmp_path / "x.neff")
    neff = read_neff(tmp_path / "x.neff")
    assert (neff.target, neff.hardware) == (target, hardware)


def test_summary_of_the_small_neff(small: Path) -> None:
    """128 partitions x 4000 bytes = 512,000 a ring; the dynamic DMA moves 128 x 256 = 32,768."""
    summary = summarize_neff(read_neff(small))
    core0, core1 = summary.cores
    assert (core0.instruction_count, core1.instruction_count) == (11, 5)
    assert core0.engines["sync"].opcode_counts == (("PSEUDO_DMA_TRIGGER", 2), ("NOP", 1), ("SET_ORDERING_MODE", 1))
    assert (core0.static_ring_count, core0.dynamic_dma_count, core0.unsized_dma_count) == (2, 1, 0)
    assert (core0.hbm_read_bytes, core0.hbm_write_bytes) == (512_000 + 32_768, 512_000)
    queue = core0.queues[0]
    assert (queue.name, queue.owner, queue.queue_count, queue.static_ring_count) == ("qSPIO0", "sp", 16, 2)
    assert (queue.read_bytes, queue.write_bytes) == (1_024_000, 1_024_000)
    assert (queue.hbm_read_bytes, queue.hbm_write_bytes) == (512_000, 512_000)
    assert [(tensor.name, tensor.kind, tensor.shape, tensor.size_bytes) for tensor in summary.tensors] == [
        ("a", "input", (128, 1000), 512_000),
        ("out", "output", (128, 1000), 512_000),
        ("w", "weight", (128, 128), 32_768),
    ]
    assert summary.tensor_bytes("weight") == 32_768
    assert summary.modelled
    assert summary.kernels == ("attention",)
    assert (core1.static_ring_count, core1.queues, core1.hbm_read_bytes) == (0, (), 0)
    assert summary.unknown_opcode_count == 0


def test_unknown_opcodes_are_counted(tmp_path: Path) -> None:
    neff = small_neff()
    core = neff.cores[1]
    odd = replace(core, streams=core.streams | {"vector": stream(word(0xEE), word(0xEE), word(LDWEIGHTS))})
    write_neff(replace(neff, cores=(neff.cores[0], odd)), tmp_path / "x.neff")
    summary = summarize_neff(read_neff(tmp_path / "x.neff"))
    assert summary.unknown_opcode_count == 2
    assert summary.cores[1].engines["vector"].opcode_counts == (("OP_0xEE", 2), ("LDWEIGHTS", 1))


def _row(neff: Neff, name: str) -> dict[str, object]:
    (row,) = (row for row in trace_origins(neff).columns.to_pylist() if row["bir_instruction_name"] == name)
    return row


def test_origin_of_an_instruction_with_a_call_stack(small: Path) -> None:
    row = _row(read_neff(small), "inst.7")
    assert row == {
        "compiler_opcode": "MATMUL",
        "bir_id": "sg0000:12",
        "bir_instruction_name": "inst.7",
        "kernel_instruction_name": "inst.7:5",
        "penguin_id": "sg0000:5",
        "hlo_name": "dot.1",
        "layer": "net/attention",
        "nki_source_location": "/src/kernel.py:21",
        "bir_debug_info_source_location": None,
        "tensor_instruction_type": "REGULAR",
        "hbm_read_bytes": None,
        "hbm_write_bytes": None,
    }


def test_origin_of_an_instruction_with_a_line_only(small: Path) -> None:
    row = _row(read_neff(small), "inst.6")
    assert row["nki_source_location"] == row["bir_debug_info_source_location"] == "/src/kernel.py:20"
    assert row["tensor_instruction_type"] == "TRANSPOSE"


def test_origin_without_source_or_with_an_unknown_kind_stays_null(small: Path) -> None:
    load, store = _row(read_neff(small), "I-4-0-trig"), _row(read_neff(small), "I-9-0-trig")
    assert (load["penguin_id"], load["hlo_name"], load["layer"]) == ("sg0000:4", None, None)
    assert load["kernel_instruction_name"] is load["nki_source_location"] is None
    assert (store["penguin_id"], store["tensor_instruction_type"]) == (None, None)


def test_stack_frames_innermost_first(small: Path) -> None:
    """inst.7 is called at line 21 of inner; where outer calls inner the debug info does not say, so that is null."""
    sources = trace_origins(read_neff(small)).sources
    rows = sources.select(
        ["pcore_idx", "kernel_instruction_name", "stack_frame_depth", "function_name", "file_path", "line_number"]
    ).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        (0, "inst.6:5", 0, "attention", "/src/kernel.py", 20),
        (0, "inst.7:5", 0, "inner", "/src/kernel.py", 21),
        (0, "inst.7:5", 1, "outer", "/src/model.py", None),
    ]


def test_levels_of_several_functions_are_told_apart_by_the_bir_id(tmp_path: Path) -> None:
    """Two functions with a penguin instruction 5 each: the BIR id's upper half says whose it is."""
    neff = small_neff()
    names = {"debug_info_penguin.dbg_sg000000": "/src/first.py", "debug_info_penguin.dbg_sg000002": "/src/second.py"}
    line = [("kernel_file", "0"), ("kernel_line", "3")]
    levels = {
        name: level([{"id": 5, "name": "op", "attributes": line}], source_files=(file,)) for name, file in names.items()
    }
    ids = [11, 2 << 32 | 11, 1 << 48 | 11]
    backend = {"vector": level([{"id": bir_id, "name": f"i{bir_id}", "parent_ids": [5]} for bir_id in ids])}
    streams = neff.cores[1].streams | {"vector": stream(*[word(LDWEIGHTS)] * 3, bir_ids=ids)}
    core = replace(neff.cores[1], core=0, streams=streams, backend=backend)
    write_neff(replace(neff, cores=(core,), levels=levels, kernels=()), tmp_path / "x.neff")
    rows = trace_origins(read_neff(tmp_path / "x.neff")).columns.filter(pc.field("bir_id").is_valid())
    assert rows["bir_id"].to_pylist() == ["sg0000:11", "sg0000:11", "sg0001:11"]
    assert rows["nki_source_location"].to_pylist() == ["/src/first.py:3", "/src/second.py:3", None]


# DMA bytes.


def _ring(ring_id: int, read: int | None, write: int | None, **columns: object) -> dict[str, object]:
    return {
        "engine": "sync",
        "ring_id": ring_id,
        "queue": "q",
        "hbm_read_bytes": read,
        "hbm_write_bytes": write,
        **columns,
    }


@pytest.mark.parametrize(
    ("rings", "expected"),
    [
        ([_ring(7, 100, 0)], (100, 0)),
        ([_ring(7, 100, 0), _ring(7, 11, 5)], (111, 5)),  # one trigger starts all rings of an id
        ([_ring(8, 100, 0)], (-1, -1)),  # no such ring
        ([_ring(7, 100, 0, queue="other")], (-1, -1)),
        ([_ring(7, 100, 0, engine="gpsimd")], (-1, -1)),  # the other engine's rings are its own
        ([_ring(7, None, 4)], (-1, 4)),  # a variable of unknown type
        ([_ring(7, 100, None), _ring(7, None, 5)], (-1, -1)),
        ([_ring(7, 100, 0, queue=None, queue_instance="q")], (100, 0)),
        ([_ring(7, 100, 0, function="f"), _ring(7, 3, 0)], (-1, -1)),  # ids start anew with each function
        ([], (-1, -1)),
    ],
)
def test_bytes_of_a_trigger(rings: list[dict[str, object]], expected: tuple[int, int]) -> None:
    words = stream(word(LDWEIGHTS), trigger("q", 7)).words
    table = static_dma(*rings, descriptors=[]).rings
    read, write = dma_hbm_bytes(words, "sync", variables(), table)
    assert (read.tolist(), write.tolist()) == ([-1, expected[0]], [-1, expected[1]])


@pytest.mark.parametrize(
    ("source", "dest", "expected"),
    [
        (A_ID, STATE_BUFFER_ID, (1024, 0)),
        (STATE_BUFFER_ID, OUT_ID, (0, 1024)),
        (A_ID, OUT_ID, (1024, 1024)),
        (77, STATE_BUFFER_ID, (-1, 0)),  # no such variable
    ],
)
def test_bytes_of_a_dynamic_dma(source: int, dest: int, expected: tuple[int, int]) -> None:
    words = stream(dynamic_dma(source, dest, rows=2, row_bytes=512)).words
    read, write = dma_hbm_bytes(
        words, "gpsimd", small_neff().cores[0].variables, small_neff().cores[1].static_dma.rings
    )
    assert (read[0], write[0]) == expected

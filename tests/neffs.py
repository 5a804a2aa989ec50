"""A small NEFF made by hand, of which every figure that a test asserts can be read off here."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trnprof.profile import ENGINES
from trnprof.readers.neff import EngineStream, Neff, NeffCore
from trnprof.readers.neff_container import NeffHeader
from trnprof.readers.neff_debug import ENTRIES, KERNEL_NODES, DebugLevel, KernelTree
from trnprof.readers.neff_dma import DESCRIPTORS, RINGS, VARIABLES, DmaQueueSet, StaticDma

SET_ORDERING_MODE, PSEUDO_DMA_TRIGGER, PSEUDO_DMA_DIRECT2D = 0xB1, 0xC1, 0xD4
LDWEIGHTS, MATMUL, NOP = 0x01, 0x02, 0xA4
UUID = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
STATE_BUFFER_ID, A_ID, OUT_ID, WEIGHT_ID, TABLE_ID = 0, 1, 2, 3, 9


def word(opcode: int, **places: tuple[int, int] | bytes) -> bytes:
    """One 64-byte instruction: `at_<byte>=(value, size)` or `at_<byte>=bytes` fill in its operands."""
    content = bytearray(64)
    content[0], content[1] = opcode, 16
    for name, value in places.items():
        at = int(name.removeprefix("at_"))
        piece = value if isinstance(value, bytes) else value[0].to_bytes(value[1], "little")
        content[at : at + len(piece)] = piece
    return bytes(content)


def trigger(queue: str, ring_id: int) -> bytes:
    """Start a static ring."""
    return word(PSEUDO_DMA_TRIGGER, at_12=queue.encode(), at_48=(ring_id, 4))


def dynamic_dma(source_id: int, dest_id: int, *, rows: int, row_bytes: int) -> bytes:
    """A dynamic DMA of `rows` elements of `row_bytes` between two variables (kind 0x10) of the NEFF."""
    return word(
        PSEUDO_DMA_DIRECT2D,
        at_13=(8, 1),
        at_14=(16, 2),
        at_20=(source_id, 3),
        at_23=(0x10, 1),
        at_32=(rows, 2),
        at_34=(1, 2),
        at_36=(row_bytes, 2),
        at_44=(dest_id, 3),
        at_47=(0x10, 1),
        at_56=(rows, 2),
        at_58=(1, 2),
        at_60=(row_bytes, 2),
    )


def stream(*words: bytes, bir_ids: list[int] | None = None) -> EngineStream:
    """An engine's stream; without `bir_ids` no instruction has debug info."""
    content = np.frombuffer(b"".join(words), np.uint8).reshape(-1, 64)
    ids = np.full(len(content), -1, np.int64) if bir_ids is None else np.array(bir_ids, np.int64)
    return EngineStream(content, ids)


def level(
    rows: list[dict[str, object]],
    *,
    parent_name: str = "",
    engine_code: int = 0,
    source_files: tuple[str, ...] = (),
    kernel_names: tuple[str, ...] = (),
) -> DebugLevel:
    """A debug-info level from the columns that matter; the others are empty."""
    lists = ("parent_ids", "dependency_ids", "dependency_kinds", "schedule_ids", "schedule_kinds")
    defaults: dict[str, object] = {"name": "", "kind": 0, "attributes": [], **{name: [] for name in lists}}
    entries = pa.Table.from_pylist([defaults | row for row in rows], schema=ENTRIES)
    return DebugLevel("by hand", parent_name, engine_code, source_files, kernel_names, entries)


def variables(*rows: dict[str, object]) -> pa.Table:
    """A table of variables."""
    return pa.Table.from_pylist([dict.fromkeys(VARIABLES.names) | row for row in rows], schema=VARIABLES)


def static_dma(*rings: dict[str, object], descriptors: list[dict[str, object]]) -> StaticDma:
    """Rings and descriptors; columns that are left out are null."""
    return StaticDma(
        pa.Table.from_pylist([dict.fromkeys(RINGS.names) | row for row in rings], schema=RINGS),
        pa.Table.from_pylist([dict.fromkeys(DESCRIPTORS.names) | row for row in descriptors], schema=DESCRIPTORS),
    )


def _descriptor(
    ring: int, source: str, dest: str, *, source_steps: list[int], dest_steps: list[int]
) -> dict[str, object]:
    sizes = [4000, 128]  # 4000 contiguous bytes in each of 128 partitions: 512,000 bytes
    return {
        "ring": ring,
        "op": "copy",
        "sources": [
            {"variable": source, "offset_bytes": 0, "sizes": sizes, "steps_bytes": source_steps, "dtype": "float32"}
        ],
        "variable": dest,
        "offset_bytes": 16,
        "sizes": sizes,
        "steps_bytes": dest_steps,
        "dtype": "float32",
        "read_bytes": 512_000,
        "write_bytes": 512_000,
        "tiling_dimension_count": 1,
    }


def _ring(ring_id: int, name: str, **hbm: int) -> dict[str, object]:
    return {
        "engine": "sync",
        "ring_id": ring_id,
        "queue": "qSPIO0",
        "semaphore": 8 + ring_id,
        "name": name,
        "descriptor_count": 1,
        "read_bytes": 512_000,
        "write_bytes": 512_000,
        **hbm,
    }


def small_neff() -> Neff:
    """Two cores. Core 0 loads `a` and stores `out` by a static ring each, loads `w` by a dynamic DMA, and multiplies.

    MATMUL (BIR 12, inst.7) is called at kernel.py:21 in `inner`, which `outer` calls in iteration i=3 of the loop at
    line 40; LDWEIGHTS (BIR 11) has only a line (kernel.py:20). Both come from penguin 5, HLO %dot.1, layer net/attention.
    """
    prologue = word(SET_ORDERING_MODE)
    core0 = NeffCore(
        core=0,
        subgraph="sg00",
        streams={
            "tensor": stream(prologue, word(LDWEIGHTS), word(MATMUL), bir_ids=[-1, 11, 12]),
            "vector": stream(prologue),
            "scalar": stream(prologue),
            "gpsimd": stream(prologue, dynamic_dma(WEIGHT_ID, STATE_BUFFER_ID, rows=128, row_bytes=256)),
            "sync": stream(prologue, trigger("qSPIO0", 0), trigger("qSPIO0", 1), word(NOP), bir_ids=[-1, 21, 22, -1]),
        },
        variables=variables(
            {"name": "SB", "type": "state-buffer", "var_id": STATE_BUFFER_ID},
            {
                "name": "a",
                "type": "input",
                "var_id": A_ID,
                "size_bytes": 512_000,
                "dtype": "float32",
                "shape": [128, 1000],
            },
            {
                "name": "out",
                "type": "output",
                "var_id": OUT_ID,
                "size_bytes": 512_000,
                "dtype": "float32",
                "shape": [128, 1000],
                "layout": "NC",
            },
            {
                "name": "w",
                "type": "file",
                "var_id": WEIGHT_ID,
                "size_bytes": 32_768,
                "dtype": "bfloat16",
                "shape": [128, 128],
                "file_name": "value_w.npy",
                "alignment_bytes": 64,
            },
            {"name": "spill", "type": "virtual", "var_id": 4, "size_bytes": 64, "backing_offset_bytes": 128},
            {"name": "DGETable0", "type": "dge-table", "var_id": TABLE_ID, "table_var_ids": [A_ID, OUT_ID]},
        ),
        queue_sets=(
            DmaQueueSet(name="qSPIO0", type="in", queue_count=16, owner="sp", semaphores=tuple(range(8, 24))),
            DmaQueueSet(name="qPoolDynamic", type="dynamic", queue_count=16, owner="pool"),
        ),
        static_dma=static_dma(
            _ring(0, "I-4-0-block-1", hbm_read_bytes=512_000, hbm_write_bytes=0),
            _ring(1, "I-9-0-block-1", hbm_read_bytes=0, hbm_write_bytes=512_000),
            descriptors=[
                _descriptor(0, "a", "SB", source_steps=[1, 4000], dest_steps=[1, 262_144]),
                _descriptor(1, "SB", "out", source_steps=[1, 262_144], dest_steps=[1, 4000]),
            ],
        ),
        backend={
            "tensor": level(
                [
                    {
                        "id": 11,
                        "name": "inst.6",
                        "parent_ids": [5],
                        "kind": 3,
                        "attributes": [("kernel_file", "0"), ("kernel_line", "20"), ("kernel_name", "0")],
                    },
                    {
                        "id": 12,
                        "name": "inst.7",
                        "parent_ids": [5],
                        "kind": 1,
                        "dependency_ids": [11, 21],
                        "dependency_kinds": [1, 4],
                        "schedule_ids": [21],
                        "schedule_kinds": [4],
                    },
                ],
                parent_name="debug_info_penguin.dbg",
                engine_code=1,
                source_files=("/src/kernel.py",),
                kernel_names=("attention",),
            ),
            "sync": level(
                [
                    {"id": 21, "name": "I-4-0-trig", "parent_ids": [4], "kind": 1},
                    {"id": 22, "name": "I-9-0-trig", "kind": 2},
                ],
                parent_name="debug_info_penguin.dbg",
                engine_code=6,
            ),
            "dma": level(
                [{"id": 31, "name": "I-4-0-block-1", "parent_ids": [4], "attributes": [("dma_queue", "qSPIO0")]}]
            ),
        },
        activation_functions=("exp_and_others",),
        features=("neff_feature_vnc",),
    )
    core1 = NeffCore(
        core=1,
        subgraph="sg01",
        streams={engine: stream(prologue) for engine in ENGINES},
        variables=core0.variables.slice(0, 3),
        static_dma=static_dma(descriptors=[]),
    )
    return Neff(
        header=NeffHeader(uuid=UUID, name="by_hand.neff", feature_bits=0xC00, lnc_size=2),
        compiler_version="2.23.0+byhand",
        target="cayman",
        hardware="trn2",
        cores=(core0, core1),
        levels={
            # The computation has no id, which is id 0, and so has nothing to do with id 2.
            "debug_info_hlo.dbg_sg000000": level(
                [{"id": 0, "name": "main"}, {"id": 2, "name": "%dot.1 = dot(%x, %y)", "parent_ids": [7]}],
                parent_name="debug_info_pttf.dbg",
            ),
            "debug_info_penguin.dbg_sg000000": level(
                [{"id": 4, "name": "load"}, {"id": 5, "name": "float32<128 x 512>", "parent_ids": [2]}],
                parent_name="debug_info_hlo.dbg",
            ),
            "debug_info_pttf.dbg_sg000000": level([{"id": 7, "name": "net/attention"}]),
        },
        kernels=(
            KernelTree(
                "attention.debuginfo.json",
                "attention",
                5,
                (1,),
                pa.Table.from_pylist(
                    [
                        _node(-1, "func", "outer", 30, file="/src/model.py"),
                        _node(0, "iter", "i", 40, value="3"),
                        _node(1, "func", "inner", 10, file="/src/kernel.py"),
                        _node(2, "inst", "inst.7", 21),
                        _node(0, "inst", "inst.99", 50),
                    ],
                    schema=KERNEL_NODES,
                ),
            ),
        ),
        hlo_stats={"HloMacCount": 8_388_608, "ArithmeticIntensity": 32.5},
    )


def _node(parent: int, kind: str, name: str, line: int, **only: str) -> dict[str, object]:
    return {
        "parent": parent,
        "kind": kind,
        "name": name,
        "line": line,
        "file": None,
        "value": None,
        "program": 0,
    } | only


def assert_same(one: object, other: object, place: str = "neff", *, ignore: frozenset[str] = frozenset()) -> None:
    """Assert that two values made of dataclasses, tables, arrays and plain values are equal, naming where they differ."""
    assert type(one) is type(other), place
    if is_dataclass(one):
        for item in fields(one):
            if item.name not in ignore:
                assert_same(getattr(one, item.name), getattr(other, item.name), f"{place}.{item.name}", ignore=ignore)
    elif isinstance(one, pa.Table):
        assert one.schema == other.schema, place  # type: ignore[attr-defined]
        assert one.to_pylist() == other.to_pylist(), place  # type: ignore[attr-defined]
    elif isinstance(one, np.ndarray):
        array: npt.NDArray[np.generic] = one
        assert np.array_equal(array, other), place  # type: ignore[arg-type]
    elif isinstance(one, dict):
        assert list(one) == list(other), place  # type: ignore[call-overload]
        for key, value in one.items():
            assert_same(value, other[key], f"{place}[{key}]", ignore=ignore)  # type: ignore[index]
    elif isinstance(one, tuple):
        assert len(one) == len(other), place  # type: ignore[arg-type]
        for index, (left, right) in enumerate(zip(one, other, strict=True)):  # type: ignore[call-overload]
            assert_same(left, right, f"{place}[{index}]", ignore=ignore)
    else:
        assert one == other, place

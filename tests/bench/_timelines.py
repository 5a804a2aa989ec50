"""Captures of any size in the layout of the vendor's tables, made a million rows at a time.

Four shapes: "dense" (engines and queues overlap, as in a busy step), "sparse" (every interval stands alone: nothing
merges), "nested" (one in fifty rows encloses those that follow), "tied" (all times on a grid: starts and ends coincide).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

SHAPES = ("dense", "sparse", "nested", "tied")

CHUNK_ROWS = 1_000_000
_ENGINES = np.array(["Tensor", "Vector", "Scalar", "GpSimd", "Sync"])
_OPCODES = np.array(["EVENT_SEMAPHORE", "MATMUL", "LDWEIGHTS", "ACTIVATE", "TENSOR_TENSOR", "COPY", "DMA_DIRECT2D"])
_QUEUES = np.array(["data", "hardware_dynamic", "instruction"])

NEEDED = {
    "Instruction": [
        *("start_ts", "end_ts", "pcore_idx", "engine", "opcode", "operands", "compiler_pc", "hbm_read_bytes"),
        *("hbm_write_bytes", "evt_wait_time_ns"),
    ],
    "DmaPacket": ["start_ts", "end_ts", "pcore_idx", "transfer_bytes", "queue_type"],
    "SemaphoreUpdate": ["timestamp", "pcore_idx", "id", "value", "update_source"],
}
"""The columns that an account needs."""


def write_capture(directory: Path, rows: int, shape: str, *, seed: int = 1, unrolled: bool = False) -> None:
    """Two cores: half the rows are instructions, four tenths DMA packets, one tenth semaphore updates.

    unrolled: every instruction's operand text is its own, as in a program without loops; else there are 20,000 texts.
    """
    directory.mkdir(parents=True)
    random = np.random.default_rng(seed)
    spacing = 40 if shape == "sparse" else 10
    window = rows * spacing
    for name, share, make in (
        ("Instruction", 5, _instructions),
        ("DmaPacket", 4, _packets),
        ("SemaphoreUpdate", 1, _updates),
    ):
        count = rows * share // 10
        writer = None
        for first, starts in _starts(random, count, window, shape):
            table = make(random, first, starts, shape, unrolled)
            writer = writer or pq.ParquetWriter(directory / f"{name}.parquet", table.schema, compression="snappy")
            writer.write_table(table)
        if writer is not None:
            writer.close()
    facts = {
        "profile_schema_version": ["7.4.0"],
        "num_physical_cores": [2],
        "first_hw_timestamp": [0],
        "last_hw_timestamp": [window + 200_000],
        "instance_type": ["trn2.48xlarge"],
        "is_simulation": [True],
    }
    pq.write_table(pa.table(facts), directory / "Metadata.parquet")


def _starts(random: np.random.Generator, count: int, window: int, shape: str) -> Iterator[tuple[int, np.ndarray]]:
    for first in range(0, count, CHUNK_ROWS):
        size = min(CHUNK_ROWS, count - first)
        low, high = window * first // count, window * (first + size) // count
        if shape == "sparse":
            starts = np.linspace(low, high, size, endpoint=False).astype(np.int64)
        else:
            starts = np.sort(random.integers(low, high, size))
        yield first, starts // 100 * 100 if shape == "tied" else starts


def _ends(random: np.random.Generator, starts: np.ndarray, shape: str, longest: int) -> np.ndarray:
    if shape == "sparse":
        return starts + random.integers(1, 8, len(starts))
    length = random.integers(30, longest, len(starts))
    if shape == "nested":
        length = np.where(np.arange(len(starts)) % 50 == 0, 50 * longest, length)
    return starts + (length // 100 * 100 if shape == "tied" else length)


def _instructions(random: np.random.Generator, first: int, starts: np.ndarray, shape: str, unrolled: bool) -> pa.Table:
    count = len(starts)
    opcode = random.integers(0, len(_OPCODES), count)
    number = np.arange(first, first + count) if unrolled else random.integers(0, 20_000, count)
    texts = pa.array(number)
    return pa.table(
        {
            "start_ts": starts,
            "end_ts": _ends(random, starts, shape, 300),
            "pcore_idx": np.arange(count) % 2,
            "engine": pa.array(_ENGINES[random.integers(0, len(_ENGINES), count)]),
            "opcode": pa.array(_OPCODES[opcode]),
            "operands": pc.binary_join_element_wise(
                "S[",
                pa.array(number % 48).cast(pa.string()),
                "] (Vector)>=",
                texts.cast(pa.string()),
                " src=fp32@0x",
                pa.array(number * 64).cast(pa.string()),
                "[1,128,1][128,1,1] dst=fp32@0x2000[1,1,1][128,1,1] ",
                "",
            ),
            "compiler_pc": np.arange(first, first + count) % 300_000,
            "hbm_read_bytes": np.where(opcode == 6, 65_536, 0),
            "hbm_write_bytes": np.zeros(count, np.int64),
            "evt_wait_time_ns": random.integers(0, 400, count),
        }
    )


def _packets(random: np.random.Generator, first: int, starts: np.ndarray, shape: str, unrolled: bool) -> pa.Table:
    count = len(starts)
    return pa.table(
        {
            "start_ts": starts,
            "end_ts": _ends(random, starts, shape, 2_500),
            "pcore_idx": np.arange(count) % 2,
            "transfer_bytes": random.choice([4, 512, 4096], count),
            "queue_type": pa.array(_QUEUES[random.integers(0, len(_QUEUES), count)]),
        }
    )


def _updates(random: np.random.Generator, first: int, starts: np.ndarray, shape: str, unrolled: bool) -> pa.Table:
    count = len(starts)
    return pa.table(
        {
            "timestamp": starts,
            "pcore_idx": np.arange(count) % 2,
            "id": pa.array([f"S[{number}] (Tensor)" for number in range(48)]).take(pa.array(np.arange(count) % 48)),
            "value": np.arange(count) % 16,
            "update_source": pa.array(["tensor"] * count),
        }
    )

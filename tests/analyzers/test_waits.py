"""Who ended each wait: from the semaphore updates and each instruction's own wait condition."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from trnprof.analyzers.wait_labels import BARRIER, KERNEL_OPEN, OUTSIDE, UNRECORDED
from trnprof.analyzers.waits import attribute_waits
from trnprof.intervals import union
from trnprof.profile import make_table


def instructions(rows: list[tuple[str, str, int, int, int | None, int | None]]) -> pa.Table:
    """(engine, opcode, start, end, waits for semaphore, updates semaphore) rows."""
    return make_table(
        "instructions",
        {
            "start_ts": [row[2] for row in rows],
            "end_ts": [row[3] for row in rows],
            "pcore_idx": np.zeros(len(rows), np.int16),
            "engine": pa.array([row[0] for row in rows], pa.string()),
            "opcode": pa.array([row[1] for row in rows], pa.string()),
            "wait_semaphore_idx": pa.array([row[4] for row in rows], pa.int16()),
            "update_semaphore_idx": pa.array([row[5] for row in rows], pa.int16()),
        },
    )


def semaphores(rows: list[tuple[int, int, str, str | None]]) -> pa.Table:
    """(time, semaphore, id text, source) rows."""
    return make_table(
        "semaphores",
        {
            "timestamp": [row[0] for row in rows],
            "pcore_idx": np.zeros(len(rows), np.int16),
            "id": pa.array([row[2] for row in rows], pa.string()),
            "value": [1] * len(rows),
            "semaphore_idx": [row[1] for row in rows],
            "update_source": pa.array([row[3] for row in rows], pa.string()),
        },
    )


def found(wait, table, updates) -> dict[str, tuple[int, int]]:  # type: ignore[no-untyped-def]
    entries = attribute_waits(union(np.array([a for a, _ in wait]), np.array([b for _, b in wait])), table, updates)
    return {entry.producer: (entry.wait_ns, entry.wait_count) for entry in entries}


SEM = "EVENT_SEMAPHORE"


def test_an_engine_a_queue_and_the_other_core() -> None:
    """Three waits, ended by an engine's update, by a DMA's (the id names its queue) and over the bus."""
    table = instructions(
        [("vector", SEM, 0, 10, 5, None), ("vector", SEM, 20, 50, 8, None), ("vector", SEM, 60, 65, 2, None)]
    )
    updates = semaphores([(10, 5, "5", "tensor"), (50, 8, "S[8] (qSyncDynamicHW)", "axi"), (65, 2, "2", "axi")])
    assert found([(0, 10), (20, 50), (60, 65)], table, updates) == {
        "engine tensor": (10, 1),
        "dma qSyncDynamicHW": (30, 1),
        OUTSIDE: (5, 1),
    }


def test_the_update_before_the_end_of_the_wait_counts() -> None:
    """Semaphore 5 is updated at 3 by gpsimd, at 9 by tensor and at 12 by scalar; the wait ends at 10: tensor."""
    table = instructions([("vector", SEM, 0, 10, 5, None)])
    updates = semaphores([(3, 5, "5", "gpsimd"), (9, 5, "5", "tensor"), (12, 5, "5", "scalar")])
    assert found([(0, 10)], table, updates) == {"engine tensor": (10, 1)}


def test_the_wait_that_ends_first_let_work_go_on() -> None:
    """vector is blocked [0,30), scalar [5,20): [0,5) is charged to vector's producer, [5,20) to scalar's, then vector's."""
    table = instructions([("vector", SEM, 0, 30, 5, None), ("scalar", SEM, 5, 20, 6, None)])
    updates = semaphores([(20, 6, "6", "tensor"), (30, 5, "5", "gpsimd")])
    assert found([(0, 30)], table, updates) == {"engine gpsimd": (15, 1), "engine tensor": (15, 1)}


def test_without_semaphore_updates_the_stream_says_who() -> None:
    """Semaphore 7 is updated by one DMA instruction of sync only; 9 by two engines: a barrier of theirs."""
    table = instructions(
        [
            ("sync", "DMA_DIRECT2D", 0, 5, None, 7),
            ("tensor", "MATMUL", 0, 5, None, 9),
            ("scalar", "ACTIVATE", 0, 5, None, 9),
            ("vector", SEM, 5, 25, 7, None),
            ("vector", SEM, 25, 30, 9, None),
        ]
    )
    assert found([(5, 30)], table, None) == {"dma issued by sync": (20, 1), BARRIER: (5, 1)}


def test_a_kernel_that_is_open_with_no_engine_blocked() -> None:
    assert found([(0, 10)], instructions([]), None) == {KERNEL_OPEN: (10, 1)}


def test_no_instructions_captured() -> None:
    assert found([(0, 10)], None, None) == {UNRECORDED: (10, 1)}


def test_hostile_indices_and_times_are_survived() -> None:
    """An index beyond any NeuronCore's and a time at the edge of int64."""
    table = instructions([("vector", SEM, 0, 10, 32_000, 32_000)])
    updates = semaphores([(2**62, 32_000, "x" * 5000, None), (-(2**62), 3, "(" * 500, "axi")])
    assert found([(0, 10)], table, updates) == {UNRECORDED: (10, 1)}


def test_an_instruction_s_own_condition_says_what_the_gap_waited_for() -> None:
    """sync is blocked at the kernel's end all through; tensor's MATMUL at 40 waited 30 ns, of which 10 ns while tensor
    still ran: the gap [20, 40) is charged to the DMA that the MATMUL waited for, not to sync's last barrier."""
    table = make_table(
        "instructions",
        {
            "start_ts": [0, 0, 40],
            "end_ts": [90, 20, 60],
            "pcore_idx": np.zeros(3, np.int16),
            "engine": pa.array(["sync", "tensor", "tensor"], pa.string()),
            "opcode": pa.array([SEM, "MATMUL", "MATMUL"], pa.string()),
            "wait_semaphore_idx": pa.array([2, None, 8], pa.int16()),
            "evt_wait_time_ns": [0, 0, 30],
        },
    )
    updates = semaphores([(38, 8, "S[8] (qSyncDynamicHW)", "dma"), (90, 2, "2", "vector")])
    assert found([(20, 40), (60, 90)], table, updates) == {
        "dma qSyncDynamicHW": (20, 1),
        "engine vector": (30, 1),
    }

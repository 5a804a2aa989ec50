"""Packets by size, queue and engine, against the packet law and the vendor's curve."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.faulty_profiles import FAULTS, PACKET_BYTES, clean_step
from tests.timelines import timeline
from trnprof.analyzers.account_sets import NOT_ATTRIBUTED
from trnprof.analyzers.dma_efficiency import CoreDma, measure_dma_efficiency
from trnprof.hardware import load_hardware
from trnprof.profile import Profile, make_table
from trnprof.readers import read_profile

TRN2 = load_hardware("trn2")


def first_core(profile: Profile) -> CoreDma:
    result = measure_dma_efficiency(profile, TRN2)
    assert result is not None
    return result.cores[0]


@pytest.mark.parametrize(
    ("size", "low_gb_per_s", "high_gb_per_s"),
    [
        # 368 x the curve's share; 16 engines x bytes / (8 + bytes / 27.2) ns
        (512, 75.8, 305.4),
        (1024, 155.3, 358.9),
        (4096, 355.5, 413.3),
        (32768, 368.0, 432.3),
        (16, 2.4, 29.8),  # below the curve's first point: in proportion to the size
    ],
)
def test_what_a_size_can_reach(size: int, low_gb_per_s: float, high_gb_per_s: float) -> None:
    (entry,) = first_core(timeline((0, 100), instructions=[("PE", 0, 100)], packets=[(0, 50, size)])).sizes
    assert entry.low_bytes <= size and (entry.high_bytes is None or size < entry.high_bytes)
    assert entry.achievable.low_bytes_per_s / 1e9 == pytest.approx(low_gb_per_s, abs=0.06)
    assert entry.achievable.high_bytes_per_s / 1e9 == pytest.approx(high_gb_per_s, abs=0.06)


def test_size_classes_are_powers_of_two() -> None:
    """63 B, 64 B, 127 B, 128 B, 64 KiB - 1 and 64 KiB lie in five classes; the semaphore write is no data."""
    sizes = [4, 63, 64, 127, 128, 65_535, 65_536]
    packets = [(at, at + 1, size) for at, size in enumerate(sizes)]
    core = first_core(timeline((0, 100), instructions=[("PE", 0, 100)], packets=packets))
    assert [(entry.group.name, entry.group.packet_count) for entry in core.sizes] == [
        ("below 64 B", 1),
        ("64 B to 128 B", 2),
        ("128 B to 256 B", 1),
        ("32 KiB to 64 KiB", 1),
        ("64 KiB and more", 1),
    ]
    assert {kind.name: kind.packet_count for kind in core.kinds}["semaphore write"] == 1


def test_a7_a_packet_without_a_duration_counts_with_its_bytes() -> None:
    (entry,) = first_core(timeline((0, 100), instructions=[("PE", 0, 100)], packets=[(5, 5, 4096)])).sizes
    assert (entry.group.bytes, entry.group.charged_ns, entry.group.engine_ns) == (4096, 0, 0)


def test_packets_run_at_the_law() -> None:
    """The clean step's packets are written with it: 8 ns + 4,096 B / 27.2 B/ns = 158.6 ns, here 159."""
    core = first_core(clean_step())
    (entry,) = core.sizes
    assert entry.group.law_ns == round(entry.group.packet_count * (8 + PACKET_BYTES / 27.2))
    assert entry.group.excess_ns == entry.group.engine_ns - entry.group.law_ns < entry.group.packet_count
    assert entry.group.dma_engine_count == 16 and core.engines is not None and len(core.engines) == 16
    slow = first_core(FAULTS["DMA021"](clean_step()))
    assert slow.queues[0].engine_ns > 4.9 * slow.queues[0].law_ns


def test_rings_of_one_queue_are_one_row() -> None:
    """The vendor names rings qSyncIO0-Q1-E64, or Q0-E64 where it does not know the queue."""
    names = ["qSyncIO0-Q1-E64", "qSyncIO0-Q1-E65", "Q0-E64", "Q0-E65", None]
    profile = timeline((0, 100), instructions=[("PE", 0, 100)], packets=[(i, i + 1, 512) for i in range(5)])
    assert profile.dma_packets is not None
    columns = {name: profile.dma_packets[name] for name in profile.dma_packets.column_names if name != "queue_type"}
    table = make_table("dma_packets", columns | {"queue_name": pa.array(names, pa.string())})
    queues = first_core(dataclasses.replace(profile, dma_packets=table)).queues
    assert {group.name: group.packet_count for group in queues} == {"qSyncIO0": 2, "Q0": 2, NOT_ATTRIBUTED: 1}


def test_unnamed_tensors_are_a_row() -> None:
    profile = timeline((0, 100), instructions=[("PE", 0, 100)], packets=[(i, i + 1, 512) for i in range(3)])
    assert profile.dma_packets is not None
    columns = {name: profile.dma_packets[name] for name in profile.dma_packets.column_names}
    for names, expected in (
        (["w", "unknown", "w"], {"w": 2, NOT_ATTRIBUTED: 1}),
        (["unknown", "", None], None),
    ):
        table = make_table("dma_packets", columns | {"variable": pa.array(names, pa.string())})
        sources = first_core(dataclasses.replace(profile, dma_packets=table)).sources
        assert (None if sources is None else {group.name: group.packet_count for group in sources}) == expected


def test_not_captured_is_none() -> None:
    assert measure_dma_efficiency(dataclasses.replace(clean_step(), dma_packets=None), TRN2) is None


@pytest.mark.parametrize("name", ["fused_fp32_s512", "fused_fp32_s1024"])
def test_real_packets_follow_the_law(captures: Path, name: str) -> None:
    """Small packets of copies take the law's time within a tenth (those of the bf16 kernels cast, and take twice that)."""
    core = first_core(read_profile(captures / name / "neuron_profile.json.gz"))
    small = [entry.group for entry in core.sizes if entry.high_bytes is not None and entry.high_bytes <= 1024]
    assert small
    for group in small:
        assert np.isclose(group.engine_ns, group.law_ns, rtol=0.1), group


def test_hostile_engine_numbers_are_survived() -> None:
    profile = timeline((0, 100), instructions=[("PE", 0, 100)], packets=[(i, i + 1, 512) for i in range(4)])
    assert profile.dma_packets is not None
    columns = {name: profile.dma_packets[name] for name in profile.dma_packets.column_names}
    table = make_table("dma_packets", columns | {"engine_idx": [-32_768, 32_767, None, 64]})
    core = first_core(dataclasses.replace(profile, dma_packets=table))
    assert core.engines is not None and sum(group.packet_count for group in core.engines) == 4
    assert core.queues[0].dma_engine_count == 3

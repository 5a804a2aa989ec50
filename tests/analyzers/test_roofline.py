"""Roofline and bounds: AWS's metrics against the vendor's own figures, the vendor's published ladder, and E1, E4, K4."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.timelines import timeline
from trnprof.analyzers.anatomy import measure_anatomy
from trnprof.analyzers.bounds import BOUND_MEANING, measure_bounds
from trnprof.analyzers.roofline import Roofline, measure_roofline, reject_measurement
from trnprof.hardware import bandwidth_for, load_hardware
from trnprof.profile import Profile, make_table
from trnprof.readers import read_profile

TRN2 = load_hardware("trn2")
WITH_VENDOR = [
    "baseline_bf16_s1024",
    "baseline_fp32_s1024",
    "baseline_fp32_s512",
    "fused_bf16_s512",
    "fused_fp32_s1024",
    "fused_fp32_s512",
]


def roofline(profile: Profile) -> Roofline:
    return measure_roofline(profile, measure_anatomy(profile, "trn2", bandwidth_for(profile.metadata, TRN2)), TRN2)


@pytest.mark.parametrize("name", WITH_VENDOR)
def test_metrics_are_the_vendor_s(captures: Path, name: str) -> None:
    """Within 0.003 %: total_time there is in picoseconds, our window in whole nanoseconds (36,351 of them at least)."""
    profile = read_profile(captures / name / "neuron_profile.json.gz")
    metrics = roofline(profile).metrics
    compared = 0
    for metric, value in metrics.items():
        vendor = profile.metadata.summary.get(metric)
        if isinstance(vendor, int | float) and vendor and value is not None:
            assert value == pytest.approx(vendor, rel=3e-5), metric
            compared += 1
    assert compared == 9, "all but the two that need an HLO's FLOPs, which these captures do not have"


@pytest.mark.parametrize("name", WITH_VENDOR)
def test_flops_are_the_vendor_s(captures: Path, name: str) -> None:
    profile = read_profile(captures / name / "neuron_profile.json.gz")
    flops = [core.flops for core in roofline(profile).cores if core.flops is not None]
    assert sum(entry.hardware_flops for entry in flops) == profile.metadata.summary["hardware_flops"]
    assert sum(entry.transpose_flops or 0 for entry in flops) == profile.metadata.summary["transpose_flops"]


def test_e1_no_flops_is_null_and_not_zero() -> None:
    """PE rows but no flops column: n/a everywhere, and no NaN."""
    result = roofline(timeline((0, 1000), instructions=[("PE", 0, 900)], hbm_bytes=4096))
    (core,) = result.cores
    assert core.flops is None and core.achieved_flop_per_s is None and core.bound is None
    assert result.metrics["mfu_inst_estimated_percent"] is None and result.metrics["hfu_estimated_percent"] is None
    assert result.metrics["mbu_estimated_percent"] == pytest.approx(4096 / 1000e-9 / 725e9)


def test_e1_a_flops_column_without_values_is_null_too() -> None:
    profile = timeline((0, 1000), instructions=[("PE", 0, 900)])
    assert profile.instructions is not None
    columns = {name: profile.instructions[name] for name in profile.instructions.column_names}
    empty = make_table("instructions", columns | {"raw_flops": [None]})
    assert roofline(dataclasses.replace(profile, instructions=empty)).cores[0].flops is None


def test_unmarked_transposes_leave_the_useful_flops_open() -> None:
    """An NTFF without its NEFF does not say which matmuls only transpose: HFU is known, MFU is not."""
    profile = timeline((0, 1000), instructions=[("PE", 0, 900)], hbm_bytes=4096)
    assert profile.instructions is not None
    columns = {name: profile.instructions[name] for name in profile.instructions.column_names}
    table = make_table("instructions", columns | {"raw_flops": [16_777_216]})
    result = roofline(dataclasses.replace(profile, instructions=table))
    assert result.metrics["mfu_inst_estimated_percent"] is None
    # 16.8 MFLOP in 1 us of 128 x 128 x 2 x 2.4 GHz
    assert result.metrics["hfu_estimated_percent"] == pytest.approx(16_777_216 / 1e-6 / 78.6432e12)


def test_e4_an_unsynchronised_timing_is_rejected() -> None:
    """137.4 GFLOP in 0.094 ms are 1,462 TFLOP/s; in 2.106 ms 65.3 TFLOP/s, which a core can do."""
    reason = reject_measurement(94_000, TRN2, flop_count=137_400_000_000)
    assert reason is not None and reason.startswith("above device peak: unsynchronised timing (1,461.7 TFLOP/s")
    assert reject_measurement(2_106_000, TRN2, flop_count=137_400_000_000) is None
    assert reject_measurement(2_106_000, TRN2, flop_count=137_400_000_000, peak_flop_per_s=78_643_200_000_000) is None
    assert reject_measurement(0, TRN2, flop_count=1) == "no duration: unsynchronised timing"


def test_k4_a_bandwidth_above_the_hardware_is_rejected() -> None:
    """3,530 GB/s on one core of 435; on a whole chip of eight such cores it would pass."""
    reason = reject_measurement(1_000, TRN2, byte_count=3_530_000)
    assert reason == "above hardware ceiling (3,530 GB/s of at most 435 on 1 cores)"
    assert reject_measurement(1_000, TRN2, byte_count=3_530_000, core_count=9) is None
    assert reject_measurement(1_000, TRN2, byte_count=354_000) is None


def test_e4_in_a_capture() -> None:
    """A matmul's FLOPs that its window cannot hold are marked, not averaged away."""
    profile = timeline((0, 1000), instructions=[("PE", 0, 900)])
    assert profile.instructions is not None
    columns = {name: profile.instructions[name] for name in profile.instructions.column_names}
    table = make_table("instructions", columns | {"raw_flops": [10**9]})
    (core,) = roofline(dataclasses.replace(profile, instructions=table)).cores
    assert core.impossible is not None and "above device peak" in core.impossible


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_the_vendor_s_published_ladder() -> None:
    """A 4096^3 bf16 matmul: 8,602 us, DMA active 7,906 and tensor 4,806; 1,207,697,408 B moved, 100,663,296 B needed.

    Published: memory_bound_ideal 2,776 us, without reloads 231 us, compute_bound_ideal 1,748 us; bottleneck DMA.
    """
    us = 1_000
    flops = 2 * 4096**3
    profile = timeline(
        (0, 8_602 * us),
        instructions=[("PE", 0, 4_806 * us), ("DVE", 0, 176 * us), ("DVE", 8_601 * us, 8_602 * us)],
        packets=[(0, 7_906 * us, 1_207_697_408)],
        hbm_bytes=1_207_697_408,
        hbm_bandwidth_bytes_per_s=716_000_000_000,
        dma_bandwidth_bytes_per_s=435_000_000_000,
        summary={"inputs_outputs_weights_size_bytes": 100_663_296},
    )
    assert profile.instructions is not None
    columns = {name: profile.instructions[name] for name in profile.instructions.column_names}
    per_row = [flops if opcode == "MATMUL" else None for opcode in columns["opcode"].to_pylist()]
    kinds = ["REGULAR" if value else None for value in per_row]
    table = make_table("instructions", columns | {"raw_flops": per_row, "tensor_instruction_type": kinds})
    profile = dataclasses.replace(profile, instructions=table)
    anatomy = measure_anatomy(profile, "trn2", bandwidth_for(profile.metadata, TRN2))
    (core,) = measure_bounds(profile, anatomy, TRN2).cores
    assert {name: None if ns is None else round(ns / us) for name, ns in core.bounds_ns.items()} == {
        "total_time": 8_602,
        "memory_bound": 7_906,
        "memory_bound_ideal": 2_776,
        "memory_bound_ideal_no_reloads": 231,
        "compute_bound": 4_806,
        "compute_bound_ideal_flops": 1_748,
        "compute_bound_ideal_useful_flops": 1_748,
        "perfect_pipeline": 7_906,
    }
    assert core.bottleneck == "dma"
    assert {name: None if ns is None else round(ns / us) for name, ns in core.gaps_ns().items()} == {
        "dma_idle": 696,
        "dma_inefficiency": 5_130,
        "excess_traffic": 2_545,
        "tensor_idle": 3_796,
        "tensor_underutilization": 3_058,
        "transposes": 0,
        "serialization": 696,
    }


def test_what_is_not_captured_is_null() -> None:
    profile = timeline((0, 100), instructions=[("PE", 0, 50)])
    bare = dataclasses.replace(profile, dma_packets=None)
    anatomy = measure_anatomy(bare, "trn2", bandwidth_for(bare.metadata, TRN2))
    (core,) = measure_bounds(bare, anatomy, TRN2).cores
    assert set(core.bounds_ns) == set(BOUND_MEANING)
    assert [name for name, value in core.bounds_ns.items() if value is None] == [
        "memory_bound",
        "memory_bound_ideal",
        "memory_bound_ideal_no_reloads",
        "compute_bound_ideal_flops",
        "compute_bound_ideal_useful_flops",
    ]
    assert (core.bottleneck, core.bounds_ns["perfect_pipeline"]) == ("tensor", 50)


@pytest.mark.parametrize("name", WITH_VENDOR)
def test_bounds_are_the_vendor_s_active_times(captures: Path, name: str) -> None:
    """The vendor's summary is of both cores: its active times are the sums of ours, within its own rounding."""
    profile = read_profile(captures / name / "neuron_profile.json.gz")
    anatomy = measure_anatomy(profile, "trn2", bandwidth_for(profile.metadata, TRN2))
    cores = measure_bounds(profile, anatomy, TRN2).cores
    compute = np.array([core.bounds_ns["compute_bound"] or 0 for core in cores])
    assert compute.sum() == pytest.approx(float(profile.metadata.summary["tensor_engine_active_time"]) * 1e9, abs=60)

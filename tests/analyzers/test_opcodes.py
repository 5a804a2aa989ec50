"""Opcodes: the published chain of small vector instructions, issue costs by generation, and source attribution."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pyarrow as pa
import pytest

from tests.timelines import timeline
from trnprof.analyzers.account_sets import NOT_ATTRIBUTED
from trnprof.analyzers.opcodes import issue_costs, measure_opcodes
from trnprof.analyzers.source_cost import RUNTIME, innermost, measure_source_cost
from trnprof.analyzers.throttling import measure_throttling
from trnprof.demo import published_step
from trnprof.hardware import load_hardware
from trnprof.profile import Profile, make_table
from trnprof.readers import read_profile

TRN2 = load_hardware("trn2")


def test_the_published_chain() -> None:
    """9.9 ms on the vector engine in instructions of 153 ns: all of it fixed cost at the measured end, 4.3 ms at 64 cycles."""
    result = measure_opcodes(published_step(), TRN2)
    assert result is not None
    top = result.cores[0].opcodes[0]
    assert (top.engine, top.opcode, top.instruction_count, top.mean_ns) == ("vector", "TENSOR_TENSOR", 64_625, 153)
    assert top.short_instruction_count == 64_625
    assert top.fixed_cost is not None
    assert (top.fixed_cost.low_ns, top.fixed_cost.high_ns) == (round(64_625 * 64 / 0.96), 64_625 * 153)


def test_issue_costs() -> None:
    """64 cycles at 0.96 GHz are 66.7 ns on trn2's vector engine; trn1's scalar engine at 1.4 GHz: 45.7 to 189 ns."""
    metadata = timeline((0, 1)).metadata
    trn2, trn1 = issue_costs(TRN2, metadata), issue_costs(load_hardware("trn1"), metadata)
    assert trn2["vector"].low_ns == pytest.approx(66.67, abs=0.01) and trn2["vector"].high_ns == 153
    assert trn2["gpsimd"].low_ns == 125 and "sync" not in trn2
    assert trn1["scalar"].low_ns == pytest.approx(45.71, abs=0.01) and trn1["scalar"].high_ns == 189
    own_clock = dataclasses.replace(metadata, clock_hz={"vector": 1_200_000_000})
    assert issue_costs(TRN2, own_clock)["vector"].low_ns == pytest.approx(53.33, abs=0.01)
    assert issue_costs(load_hardware("trn3"), metadata)["vector"].low_ns == pytest.approx(53.33, abs=0.01)


def test_an_instruction_s_fixed_cost_is_at_most_its_time() -> None:
    """Two of 50 ns (below 64 cycles), one of 190 ns, one of 200 ns that is not short."""
    rows = [("DVE", 0, 50), ("DVE", 60, 110), ("DVE", 120, 310), ("DVE", 320, 520)]
    result = measure_opcodes(timeline((0, 600), instructions=rows), TRN2)
    assert result is not None
    (row,) = result.cores[0].opcodes
    assert row.short_instruction_count == 3 and row.short_ns == 290
    assert row.fixed_cost is not None
    assert (row.fixed_cost.low_ns, row.fixed_cost.high_ns) == (50 + 50 + 67, 50 + 50 + 153)


def test_a_wait_under_a_running_instruction_takes_nothing_from_it() -> None:
    result = measure_opcodes(timeline((0, 100), instructions=[("DVE", 0, 60)], waits=[("DVE", 0, 40)]), TRN2)
    assert result is not None
    assert {row.opcode: row.charged_ns for row in result.cores[0].opcodes} == {
        "TENSOR_TENSOR": 60,
        "EVENT_SEMAPHORE": 40,
    }


# --- by source --------------------------------------------------------------------------------------------------------


def with_names(profile: Profile, **columns: list[object]) -> Profile:
    assert profile.instructions is not None
    known = {name: profile.instructions[name] for name in profile.instructions.column_names}
    texts = {
        name: pa.array(values, pa.string()) if name != "compiler_pc" else values for name, values in columns.items()
    }
    return dataclasses.replace(profile, instructions=make_table("instructions", known | texts))


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("kernels/mlp.py:57,run.py:9", "mlp.py:57"),
        ("mlp.py:57", "mlp.py:57"),
        ("['C:\\\\k\\\\mlp.py:57', 'x.py:1']", "mlp.py:57"),
        ("", ""),
    ],
)
def test_the_innermost_line(location: str, expected: str) -> None:
    assert innermost(location) == expected


def test_lines_and_what_has_none() -> None:
    """Two lines, an unnamed instruction of the compiler, one of the runtime; an engine's wait goes to its instruction."""
    profile = timeline(
        (0, 100),
        instructions=[("PE", 0, 10), ("PE", 10, 30), ("PE", 30, 35), ("PE", 90, 100)],
        waits=[("DVE", 40, 90)],
    )
    profile = with_names(
        profile,
        nki_source_location=["a/k.py:1", None, None, None, "k.py:2"],
        bir_debug_info_source_location=["b.py:9", "k.py:2,z.py:1", "", "k.py:1", None],
        compiler_pc=[0, 1, 2, 3, None],
    )
    costs = measure_source_cost(profile, "line")
    assert costs is not None
    rows = {row.name: (row.busy_ns, row.wait_ns, row.instruction_count) for row in costs.cores[0].rows}
    # The runtime's row still has a line, so it counts there; the wait's instruction is line 1's.
    assert rows == {"k.py:1": (10, 50, 2), "k.py:2": (30, 0, 2), NOT_ATTRIBUTED: (5, 0, 1)}
    assert costs.cores[0].attributed_share == pytest.approx(1 - 5 / 95)
    layers = measure_source_cost(with_names(profile, layer=["l", "Unknown", "l", "l", None]), "layer")
    assert layers is not None
    assert {row.name for row in layers.cores[0].rows} == {"l", NOT_ATTRIBUTED, RUNTIME}


def test_names_that_were_not_captured_are_one_row() -> None:
    costs = measure_source_cost(timeline((0, 100), instructions=[("PE", 0, 10)]), "line")
    assert costs is not None
    assert [(row.name, row.busy_ns) for row in costs.cores[0].rows] == [(NOT_ATTRIBUTED, 10)]
    assert costs.cores[0].attributed_share == 0
    bare = dataclasses.replace(timeline((0, 100)), instructions=None, kernels=None)
    assert measure_source_cost(bare, "line") is None and measure_source_cost(bare, "kernel") is None


# --- throttling -------------------------------------------------------------------------------------------------------


def test_the_lowest_limit_counts_where_limits_overlap() -> None:
    """[0,60) at 6/8 and [40,100) at 4/8: 40 ns at 6/8, 60 at 4/8; the tensor engine active [20,70) loses 5 + 15."""
    profile = timeline((0, 100), instructions=[("PE", 20, 70)])
    table = make_table(
        "throttle",
        {
            "timestamp": [0, 40, 0],
            "duration": [60, 60, 100],
            "k": [6, 4, 8],
            "n": [8, 8, 8],
            "type": pa.array(["activity_0", "activity_1", "activity_0"], pa.string()),
            "pcore_idx": [0, 0, 0],
        },
    )
    result = measure_throttling(dataclasses.replace(profile, throttle=table))
    assert result is not None
    (core,) = result.cores
    assert [(level.k, level.throttled_ns, level.tensor_active_ns, level.tensor_loss_ns) for level in core.levels] == [
        (4, 60, 30, 15),
        (6, 40, 20, 5),
    ]
    assert core.throttled_ns == 100 and core.tensor_loss_ns == 20
    assert {cause.type: (cause.throttled_ns, cause.avg_util_limit) for cause in core.causes} == {
        "activity_0": (60, 0.75),
        "activity_1": (60, 0.5),
    }


@pytest.mark.parametrize("name", ["baseline_fp32_s1024", "baseline_bf16_s1024"])
def test_throttled_time_is_the_vendor_s(captures: Path, name: str) -> None:
    profile = read_profile(captures / name / "neuron_profile.json.gz")
    result = measure_throttling(profile)
    assert result is not None
    assert result.cores[0].throttled_ns == profile.metadata.summary["throttle_active_nc0_time_ns"]

"""Each analyzer's rows add up to the account's figures: one source, whatever the timeline."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.faulty_profiles import FAULTS, clean_step
from tests.timelines import ENGINE_OF, timeline
from trnprof.analyzers.anatomy import Anatomy, measure_anatomy
from trnprof.analyzers.boundaries import KernelCalls
from trnprof.analyzers.collectives import measure_collectives
from trnprof.analyzers.dma_efficiency import measure_dma_efficiency
from trnprof.analyzers.opcodes import measure_opcodes
from trnprof.analyzers.source_cost import SourceKey, measure_source_cost
from trnprof.analyzers.throttling import measure_throttling
from trnprof.demo import published_step
from trnprof.hardware import bandwidth_for, load_hardware
from trnprof.intervals import charged_lengths, union, union_lengths
from trnprof.profile import ENGINES, Profile, make_table
from trnprof.readers import read_profile

TRN2 = load_hardware("trn2")
KEYS: tuple[SourceKey, ...] = ("line", "layer", "kernel", "instruction")


def anatomy_of(profile: Profile) -> Anatomy:
    return measure_anatomy(profile, "trn2", bandwidth_for(profile.metadata, TRN2))


def check_sums(profile: Profile) -> None:
    """Every law that ties the analyzers to the account."""
    anatomy = anatomy_of(profile)
    opcodes, packets = measure_opcodes(profile, TRN2), measure_dma_efficiency(profile, TRN2)
    collectives, throttling = measure_collectives(profile), measure_throttling(profile)
    for index, account in enumerate(anatomy.cores):
        if opcodes is not None:
            for engine in ENGINES:
                rows = [row for row in opcodes.cores[index].opcodes if row.engine == engine]
                known = account.engines[engine]
                assert sum(row.instruction_count for row in rows) == known.instruction_count
                assert sum(row.charged_ns for row in rows if not row.waits) == known.active_ns
                assert sum(row.charged_ns for row in rows if row.waits) == known.blocked_ns
                assert sum(row.short_instruction_count for row in rows) == known.short_instruction_count
                for row in rows:
                    assert row.charged_ns <= row.active_ns <= row.total_ns
                    if row.fixed_cost is not None:
                        assert 0 <= row.fixed_cost.low_ns <= row.fixed_cost.high_ns <= row.short_ns
        if packets is not None and account.dma is not None:
            core = packets.cores[index]
            assert sum(kind.packet_count for kind in core.kinds) == account.dma.packet_count
            assert sum(kind.bytes for kind in core.kinds) == account.dma.bytes
            for groups in (tuple(entry.group for entry in core.sizes), core.queues, core.engines, core.sources):
                if groups is not None:
                    assert sum(group.packet_count for group in groups) == account.dma.data_packet_count
                    assert sum(group.bytes for group in groups) == account.dma.data_bytes
                    assert sum(group.charged_ns for group in groups) == account.dma.data_ns
        for key in KEYS:
            costs = measure_source_cost(profile, key)
            if costs is None:
                continue
            lines = costs.cores[index].rows
            for engine in ENGINES:
                assert sum(row.engine_ns[engine] for row in lines) == account.engines[engine].active_ns
            assert sum(row.wait_ns for row in lines) == account.parts.in_kernel_wait_ns
            assert sum(row.instruction_count for row in lines) == sum(
                engine.instruction_count for engine in account.engines.values()
            )
        if collectives is not None and account.collectives is not None:
            part = collectives.cores[index]
            assert part.exposed_ns == account.parts.exposed_collective_ns
            assert sum(waiter.exposed_ns for waiter in part.engines) == part.exposed_ns
            if part.kernels is not None:
                assert sum(waiter.exposed_ns for waiter in part.kernels) == part.exposed_ns
        if throttling is not None and account.throttle is not None:
            assert throttling.cores[index].throttled_ns == account.throttle.throttled_ns
            assert sum(level.throttled_ns for level in throttling.cores[index].levels) == account.throttle.throttled_ns
    if collectives is not None:
        total = sum(account.parts.exposed_collective_ns for account in anatomy.cores)
        assert sum(operation.exposed_ns for operation in collectives.operations) == total


def test_the_published_step() -> None:
    check_sums(published_step())


@pytest.mark.parametrize("code", ["clean", *FAULTS])
def test_faulty_steps(code: str) -> None:
    profile = clean_step()
    check_sums(profile if code == "clean" else FAULTS[code](profile))


@pytest.mark.parametrize("file", ["neuron_profile.json.gz", "step.ntff"])
@pytest.mark.parametrize("name", ["baseline_fp32_s1024", "fused_bf16_s512", "moe_megakernel"])
def test_real_captures(captures: Path, name: str, file: str) -> None:
    if name == "moe_megakernel" and file != "step.ntff":
        return  # its vendor's profile is not public
    check_sums(read_profile(captures / name / file))


WINDOW = 60
spans = st.tuples(st.integers(-5, WINDOW + 5), st.integers(0, 25)).map(lambda p: (p[0], p[0] + p[1]))
engine_spans = st.tuples(st.sampled_from(sorted(ENGINE_OF)), spans).map(lambda p: (p[0], *p[1]))


@given(
    instructions=st.lists(engine_spans, max_size=8),
    waits=st.lists(engine_spans, max_size=5),
    packets=st.lists(st.tuples(spans, st.sampled_from([4, 60, 512, 4096, 70_000])), max_size=8),
    collectives=st.lists(spans, max_size=4),
    kernels=st.lists(spans, max_size=3),
)
@settings(max_examples=150, deadline=None)
def test_any_timeline(instructions, waits, packets, collectives, kernels) -> None:  # type: ignore[no-untyped-def]
    """Sparse, nested, touching, tied and empty intervals, some outside the window."""
    check_sums(
        timeline(
            (0, WINDOW),
            instructions=instructions,
            waits=waits,
            packets=[(*span, size) for span, size in packets],
            collectives=collectives,
            kernels=kernels,
            hbm_bytes=10,
        )
    )


# --- the arithmetic that all of them use ------------------------------------------------------------------------------

groups = st.lists(st.tuples(st.integers(0, 3), st.integers(-20, 40), st.integers(-3, 20)), max_size=12)


@given(groups)
def test_charges_sum_to_the_union(rows) -> None:  # type: ignore[no-untyped-def]
    """Each instant is charged once, to the interval that began first."""
    start = np.array([a for _, a, _ in rows], np.int64)
    end = np.array([a + length for _, a, length in rows], np.int64)
    charged = charged_lengths(start, end)
    assert charged.sum() == union(start, end).length()
    by_hand = np.zeros(len(rows), np.int64)
    for t in range(-30, 70):
        covering = [i for i in range(len(rows)) if start[i] <= t < end[i]]
        if covering:
            by_hand[min(covering, key=lambda i: (start[i], i))] += 1
    assert charged.tolist() == by_hand.tolist()


@given(groups)
def test_union_lengths_by_group(rows) -> None:  # type: ignore[no-untyped-def]
    group = np.array([g for g, _, _ in rows], np.int64)
    start = np.array([a for _, a, _ in rows], np.int64)
    end = np.array([a + max(0, length) for _, a, length in rows], np.int64)
    expected = [union(start[group == g], end[group == g]).length() for g in range(4)]
    assert union_lengths(group, start, end, 4).tolist() == expected


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30)), min_size=1, max_size=8))
def test_the_open_kernel_is_the_one_that_began_last(calls) -> None:  # type: ignore[no-untyped-def]
    """Nested and overlapping kernel spans: at each instant, the latest start among those that are open."""
    ordered = sorted(calls)
    table = make_table(
        "kernels",
        {
            "start_ts": [a for a, _ in ordered],
            "end_ts": [a + length for a, length in ordered],
            "name": pa.array([f"k{i}" for i in range(len(ordered))], pa.string()),
            "pcore_idx": np.zeros(len(ordered), np.int16),
        },
    )
    found = KernelCalls(table)
    times = np.arange(-2, 75)
    for t, call in zip(times.tolist(), found.at(times).tolist(), strict=True):
        open_calls = [i for i in range(len(ordered)) if found.start[i] <= t < found.end[i]]
        assert call == max(open_calls, default=-1)

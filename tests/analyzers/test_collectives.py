"""Collectives: the tail is the headline (D2), each call counts, and what is exposed is charged to who stood still."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa

from tests.timelines import timeline
from trnprof.analyzers.account_sets import NOT_ATTRIBUTED
from trnprof.analyzers.collectives import BEFORE, Collectives, measure_collectives
from trnprof.profile import Core, Metadata, Profile, Provenance, make_table


def measured(profile: Profile) -> Collectives:
    result = measure_collectives(profile)
    assert result is not None
    return result


def test_d2_the_late_rank_is_seen() -> None:
    """Durations in us: 200 on rank 0 and seven times 14: median 14, longest 200; the mean of 37.25 is nobody's."""
    durations = [200_000, *[14_000] * 7]
    profile = Profile(
        metadata=Metadata(
            format="test",
            provenance=Provenance.MODELLED,
            cores=tuple(
                Core(core=i, subgraph=f"sg{i:02d}", window_start_ts=0, window_end_ts=300_000, rank=i) for i in range(8)
            ),
        ),
        collectives=make_table(
            "collectives",
            {
                "start_ts": np.zeros(8, np.int64),
                "end_ts": durations,
                "operation": pa.array(["Permute"] * 8, pa.string()),
                "pcore_idx": np.arange(8),
            },
        ),
    )
    (operation,) = measured(profile).operations
    assert (operation.call_count, operation.median_ns, operation.longest.duration_ns) == (8, 14_000, 200_000)
    assert (operation.longest.core, operation.longest.rank) == (0, 0)
    assert operation.total_ns / operation.call_count == 37_250


def test_overlapping_operations_split_the_exposed_time() -> None:
    """CC[10,30) and CC[20,50) with nothing under them: 20 to the first, 20 to the second, 40 in all."""
    profile = timeline((0, 60), instructions=[("PE", 0, 10), ("PE", 50, 60)], collectives=[(10, 30), (20, 50)])
    assert profile.collectives is not None
    table = profile.collectives.set_column(
        2,
        "operation",
        make_table("collectives", {"operation": pa.array(["AllReduce", "AllGather"], pa.string())})["operation"],
    )
    result = measured(dataclasses.replace(profile, collectives=table))
    assert {operation.name: operation.exposed_ns for operation in result.operations} == {
        "AllReduce": 20,
        "AllGather": 20,
    }
    assert result.cores[0].exposed_ns == 40


def test_who_waited() -> None:
    """CC[10,50): the vector engine is blocked [10,40), and goes on first; [40,50) nobody is seen to wait."""
    profile = timeline(
        (0, 60),
        instructions=[("PE", 0, 10), ("DVE", 50, 60)],
        waits=[("DVE", 10, 40), ("ACT", 5, 60)],
        collectives=[(10, 50)],
        kernels=[(0, 20), (50, 60)],
    )
    (core,) = measured(profile).cores
    assert {waiter.name: waiter.exposed_ns for waiter in core.engines} == {"vector": 30, "scalar": 10}
    assert core.kernels is not None
    assert {waiter.name: waiter.exposed_ns for waiter in core.kernels} == {"kernel": 10, BEFORE + "kernel": 30}


def test_nobody_is_seen_to_wait() -> None:
    profile = timeline((0, 60), instructions=[("PE", 0, 10), ("PE", 50, 60)], collectives=[(10, 50)])
    (core,) = measured(profile).cores
    assert [(waiter.name, waiter.exposed_ns) for waiter in core.engines] == [(NOT_ATTRIBUTED, 40)]
    without = dataclasses.replace(profile, kernels=None)
    assert measured(without).cores[0].kernels is None
    assert measure_collectives(dataclasses.replace(profile, collectives=None)) is None

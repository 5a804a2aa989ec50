"""The columns of a drawn timeline add up to the account that they draw."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.timelines import timeline
from trnprof.analyzers.anatomy import measure_anatomy
from trnprof.analyzers.timeline import Timeline, draw_timeline
from trnprof.demo import published_step
from trnprof.hardware import Bandwidth
from trnprof.profile import Profile

BANDWIDTH = Bandwidth(336_000_000_000, "test", "measured")


def drawn(profile: Profile, columns: int) -> Timeline:
    return draw_timeline(profile, profile.metadata.cores[0], columns)


def covered(result: Timeline, name: str, kind: str) -> list[int]:
    lanes = [lane for lane in result.lanes if (lane.name, lane.kind) == (name, kind)]
    assert len(lanes) == 1
    return lanes[0].covered_ns.tolist()


def test_columns_of_a_small_step() -> None:
    """Window [0, 40) in 4 columns of 10: PE [5, 15), DVE waits [15, 25), CC [20, 32), DMA [30, 34) of 400 bytes."""
    profile = timeline(
        (0, 40),
        instructions=[("PE", 5, 15), ("DVE", 36, 38)],
        waits=[("DVE", 15, 25)],
        collectives=[(20, 32)],
        packets=[(30, 34, 400)],
    )
    result = drawn(profile, 4)
    assert result.edge_ts.tolist() == [0, 10, 20, 30, 40]
    assert covered(result, "tensor", "busy") == [5, 5, 0, 0]
    assert covered(result, "vector", "blocked") == [0, 5, 5, 0]
    assert covered(result, "collective", "busy") == [0, 0, 10, 2]
    assert covered(result, "work", "account") == [5, 5, 0, 6]
    assert covered(result, "in_kernel_wait", "account") == [0, 5, 0, 0]
    assert covered(result, "exposed_collective", "account") == [0, 0, 10, 0]
    assert covered(result, "idle", "account") == [0, 0, 0, 2]
    assert covered(result, "runtime_overhead", "account") == [5, 0, 0, 2]
    assert result.data_bytes is not None
    assert result.data_bytes.tolist() == [0, 0, 0, 400]
    assert result.event_count == 3 + 1 + 1


def test_bytes_are_spread_over_a_packet_and_an_instant_packet_keeps_them() -> None:
    result = drawn(timeline((0, 30), instructions=[("PE", 0, 30)], packets=[(5, 25, 2000), (12, 12, 64)]), 3)
    assert result.data_bytes is not None
    assert result.data_bytes.tolist() == [500, 1064, 500]


def test_no_more_columns_than_nanoseconds() -> None:
    assert drawn(timeline((0, 7), instructions=[("PE", 1, 3)]), 1000).edge_ts.tolist() == list(range(8))


rows = st.lists(
    st.tuples(st.sampled_from(["PE", "DVE", "ACT"]), st.integers(-20, 220), st.integers(1, 60)).map(
        lambda row: (row[0], row[1], row[1] + row[2])
    ),
    max_size=12,
)


@given(rows, rows, st.integers(1, 90))
def test_account_lanes_share_every_column_out_and_sum_to_the_parts(
    instructions: list[tuple[str, int, int]], waits: list[tuple[str, int, int]], columns: int
) -> None:
    profile = timeline((0, 200), instructions=instructions, waits=waits, collectives=[(90, 130)], packets=[(50, 95, 8)])
    result = drawn(profile, columns)
    account = [lane for lane in result.lanes if lane.kind == "account"]
    assert (sum(lane.covered_ns for lane in account) == np.diff(result.edge_ts)).all()
    core = measure_anatomy(profile, "trn2", BANDWIDTH).cores[0]
    totals = {lane.name: int(lane.covered_ns.sum()) for lane in account}
    assert totals.pop("work") == core.work.total_ns()
    assert totals == {name: getattr(core.parts, f"{name}_ns") for name in totals}
    for lane in result.lanes:
        if lane.kind == "busy" and lane.name in core.engines:
            assert int(lane.covered_ns.sum()) == core.engines[lane.name].active_ns


def test_the_published_step_moves_its_bytes() -> None:
    result = drawn(published_step(), 1000)
    assert result.data_bytes is not None
    assert abs(result.data_bytes.sum() - 2_038_000_000) < 1

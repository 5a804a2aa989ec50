"""Many ranks as one view: the tail named, pairs compared, collectives split or refused (cases D1 to D3)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.timelines import core_profile
from trnprof.analyzers.anatomy import measure_anatomy
from trnprof.analyzers.ranks import AlignedCollectives, RankCapture, compare_ranks
from trnprof.hardware import Bandwidth

BANDWIDTH = Bandwidth(10**9, "1 byte a ns", "user")
WORK = ((0, 10), "tensor", "MATMUL", 0, True, None, 0, None, 0)
END = ((9_999, 10_000), "tensor", "MATMUL", 0, True, None, 0, None, 0)


def capture(
    rank: int | None,
    place: int,
    collectives: list[tuple[int, int]],
    *,
    works: tuple[int, int] = (10, 0),
    group: str = "",
) -> RankCapture:
    """One rank's capture: collectives, and how long each of two cores works (0: the core has no events)."""
    rows = [
        ((0, length), "vector", "COPY", core, True, None, 0, None, 0) for core, length in enumerate(works) if length
    ]
    profile = core_profile(
        (0, 10_000),
        instructions=[*rows, END],
        collectives=collectives,
        collective_group=group,
        cores=2 if works[1] else 1,
    )
    return RankCapture(rank, place, measure_anatomy(profile, "trn2", BANDWIDTH).cores)


def aligned(*ranks: RankCapture) -> AlignedCollectives:
    found = compare_ranks(ranks).collectives
    assert found is not None
    return found


def test_d2_the_tail_is_named_not_the_mean() -> None:
    """Durations in us: 200 on rank 0 and seven times 14: median 14, max 200 (rank 0); the mean 37.25 is nowhere."""
    found = aligned(*(capture(rank, rank, [(0, 200 if rank == 0 else 14)]) for rank in range(8)))
    (operation,) = found.operations
    assert (operation.median_ns, operation.max_ns, operation.max_rank) == (14, 200, 0)
    assert operation.transfer_ns == 8 * 14 and operation.waiting_ns == 186
    assert [rank.waiting_ns for rank in found.ranks] == [186, *[0] * 7]


def test_collectives_are_aligned_on_their_ends() -> None:
    """Rank 1 enters 30 ns after rank 0 and both leave together, though their clocks differ by 1,000: rank 0 waits 30."""
    found = aligned(capture(0, 0, [(100, 150), (300, 320)]), capture(1, 1, [(1130, 1150), (1290, 1320)]))
    assert found.refused is None and not found.grouped
    assert [(rank.transfer_ns, rank.waiting_ns, rank.late_count) for rank in found.ranks] == [(40, 30, 1), (40, 10, 1)]
    assert all(rank.transfer_ns + rank.waiting_ns == rank.total_ns for rank in found.ranks)


def test_ranks_of_different_groups_do_not_wait_for_each_other() -> None:
    """[[0, 1], [2, 3]]: ranks 0 and 1 take 10 and 40, ranks 2 and 3 take 100 and 100: 30 of waiting in all."""
    groups = "[[0, 1], [2, 3]]"
    lengths = [10, 40, 100, 100]
    found = aligned(*(capture(rank, rank, [(0, lengths[rank])], group=groups) for rank in range(4)))
    assert found.grouped
    assert [rank.waiting_ns for rank in found.ranks] == [0, 30, 0, 0]
    together = aligned(*(capture(rank, rank, [(0, lengths[rank])], group="not a list") for rank in range(4)))
    assert not together.grouped and [rank.waiting_ns for rank in together.ranks] == [0, 30, 90, 90]


def test_d3_unequal_counts_are_refused_with_both_named() -> None:
    """Rank 0 has 3 collectives, rank 1 has 6: no pairing by index."""
    calls = [(100 * k, 100 * k + 10) for k in range(6)]
    found = aligned(capture(0, 0, calls[:3]), capture(1, 1, calls))
    assert found.refused is not None and "rank 0: 3" in found.refused and "rank 1: 6" in found.refused
    assert found.ranks == () and found.operations == ()


def test_one_rank_or_none_recorded_is_no_comparison() -> None:
    assert compare_ranks((capture(0, 0, [(0, 5)]),)).collectives is None
    assert compare_ranks((capture(0, 0, []), capture(1, 1, []))).collectives is None


def test_d1_a_pair_out_of_balance_is_named() -> None:
    """Core 0 works 1,000 ns, core 1 400: 60 % less; the pair that is in balance comes after it."""
    view = compare_ranks((capture(0, 0, [], works=(500, 500)), capture(1, 1, [], works=(1000, 400))))
    first, second = view.pairs
    assert (first.rank, first.most_core, first.least_core) == (1, 0, 1)
    assert abs(first.imbalance - (1 - 400 / 1001)) < 1e-9  # core 0 also has the 1 ns that closes the body
    assert second.rank == 0 and second.imbalance < 0.01


def test_spreads_name_the_rank_of_the_maximum() -> None:
    view = compare_ranks(tuple(capture(rank, place, [], works=(100 * rank, 0)) for place, rank in enumerate((3, 1, 2))))
    assert [row.rank for row in view.rows] == [1, 2, 3]
    spread = view.parts["busy_beyond_floor"]
    assert spread is not None
    assert (spread.median_ns, spread.min_ns, spread.max_ns, spread.max_rank) == (201, 101, 301, 3)


def test_empty_ranks_are_in_no_figure() -> None:
    empty = RankCapture(7, 1, measure_anatomy(core_profile((0, 10_000)), "trn2", BANDWIDTH).cores)
    view = compare_ranks((capture(0, 0, []), empty))
    assert [row.rank for row in view.rows] == [0]
    assert [found.rank for found in view.empty] == [7]
    assert view.window is not None and view.window.max_rank == 0


@given(lengths=st.lists(st.lists(st.integers(0, 50), min_size=3, max_size=3), min_size=2, max_size=5))
@settings(max_examples=40, deadline=None)
def test_transfer_and_waiting_sum_to_the_durations(lengths: list[list[int]]) -> None:
    found = aligned(
        *(
            capture(rank, rank, [(1000 * call + rank, 1000 * call + rank + length) for call, length in enumerate(row)])
            for rank, row in enumerate(lengths)
        )
    )
    for rank, row in zip(found.ranks, lengths, strict=True):
        assert rank.total_ns == sum(row) == rank.transfer_ns + rank.waiting_ns
        assert rank.transfer_ns == sum(min(other[call] for other in lengths) for call in range(3))
    assert sum(rank.late_count for rank in found.ranks) == 3
    assert sum(o.waiting_ns for o in found.operations) == sum(rank.waiting_ns for rank in found.ranks)

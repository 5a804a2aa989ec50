"""The dI/dt limit by hand: windows of 4,096 cycles at 1.2 GHz = 3,413.3 ns, half rate until one was 3/8 busy."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnprof.hardware.instruction_costs import Case, load_instruction_costs
from trnprof.nki.timing.throttle import Throttle

WINDOW_PS = 3_413_333


def throttle(case: Case = Case.LOW, generation: str = "trn2") -> Throttle:
    """Low: a window begins with the body."""
    return Throttle(load_instruction_costs(generation), case)


def test_a_burst_starts_at_half_rate_and_turns_full_with_the_next_window() -> None:
    engine = throttle()
    # 1,706.7 ns of work fill the first window at half rate; what follows runs at full rate.
    assert engine.run(0, WINDOW_PS // 2) == pytest.approx(WINDOW_PS, abs=2)
    assert engine.run(WINDOW_PS, 1_000_000) == pytest.approx(WINDOW_PS + 1_000_000, abs=2)
    assert [level[1] for level in engine.finish(WINDOW_PS + 1_000_000)] == [False, True]


def test_too_little_work_keeps_the_limit() -> None:
    engine = throttle()
    engine.run(0, round(0.3 * WINDOW_PS))  # 30 % of a full-rate window, below 35.5 %
    assert engine.run(WINDOW_PS, 100_000) == WINDOW_PS + 200_000


def test_an_idle_window_brings_the_limit_back() -> None:
    engine = throttle()
    engine.run(0, WINDOW_PS // 2)
    assert engine.run(WINDOW_PS, WINDOW_PS // 2) == pytest.approx(WINDOW_PS * 1.5, abs=2)
    # Half of the second window was work: the third is full, and it is idle, so the fourth is limited again.
    assert engine.run(3 * WINDOW_PS, 100_000) == 3 * WINDOW_PS + 200_000
    assert [(round(at / WINDOW_PS), full) for at, full in engine.finish(4 * WINDOW_PS)] == [
        (0, False),
        (1, True),
        (3, False),
    ]


@pytest.mark.parametrize(("rows", "turns_full"), [(128, True), (64, False), (32, False)])
def test_a_product_counts_by_the_rows_it_uses(rows: int, turns_full: bool) -> None:
    engine = throttle(Case.MID)
    start = WINDOW_PS // 2 + 10  # mid: half a window has passed when the body begins
    engine.run(start, WINDOW_PS // 2, rows)  # a full window at half rate: half of what it could do, 25 % at 64 rows
    after = start + WINDOW_PS
    assert engine.run(after, 100_000, rows) - after == pytest.approx(100_000 if turns_full else 200_000, abs=2)


def test_work_across_a_window_is_cut_there() -> None:
    engine = throttle()
    # 2,000 ns of work: 1,706.7 ns of it fill the first window at half rate, the other 293.3 ns run at full rate.
    assert engine.run(0, 2_000_000) == pytest.approx(WINDOW_PS + 2_000_000 - WINDOW_PS / 2, abs=2)


def test_trn1_has_no_limit() -> None:
    engine = throttle(generation="trn1")
    assert engine.run(5, 1000) == 1005
    assert engine.finish(10_000) == [(0, True)]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6_000_000), st.integers(1, 2_000_000)), max_size=20), st.sampled_from(list(Case))
)
def test_work_takes_between_its_time_and_twice_that(bursts: list[tuple[int, int]], case: Case) -> None:
    engine, at = throttle(case), 0
    for gap, work in bursts:
        start = at + gap
        at = engine.run(start, work)
        assert work - 1 <= at - start <= 2 * work + 2

"""Fits: the published 16 ms + 1.1 ms a user, exact sums, and what may not be claimed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.timelines import timeline
from trnprof.analyzers.anatomy import measure_anatomy
from trnprof.analyzers.fit import PARTS, BatchCapture, Fit, fit_batches
from trnprof.errors import UsageError
from trnprof.hardware import Bandwidth

BANDWIDTH = Bandwidth(10**9, "1 byte a ns", "user")
US = 1_000


def step(rows: int, work: int, wait: int, collective: int, idle: int, *, floor: int | None = None) -> BatchCapture:
    """A step with these parts, ns: work, then a wait, a collective, idle time, 1 ns of work to close the body."""
    at = work + wait + collective + idle
    profile = timeline(
        (0, at + 1),
        instructions=[("PE", 0, work), ("ACT", at, at + 1)],
        waits=[("DVE", work, work + wait)],
        collectives=[(work + wait, work + wait + collective)],
        hbm_bytes=floor,
    )
    return BatchCapture(rows, f"b{rows}", measure_anatomy(profile, "trn2", BANDWIDTH))


def decode(rows: int) -> BatchCapture:
    """16 ms + 1.1 ms a user: work 9 ms + 0.9 ms a row, waits 4.2 ms + 0.2 ms a row, collectives 2.1 ms, idle 0.7 ms."""
    return step(
        rows, 9_000 * US - 1 + 900 * US * rows, 4_200 * US + 200 * US * rows, 2_100 * US, 700 * US, floor=6_000 * US
    )


def check_sums(fit: Fit) -> None:
    for core in fit.cores:
        lines = [line for line in core.parts.values() if line is not None]
        assert sum(line.fixed_ns for line in lines) == core.window.fixed_ns
        assert sum(line.per_row_ps for line in lines) == core.window.per_row_ps
        for index in range(len(core.points)):
            assert sum(line.residuals_ps[index] for line in lines) == core.window.residuals_ps[index]


def test_the_published_fit() -> None:
    """Steps of 1, 4, 8 and 12 users give back 16 ms fixed and 1.1 ms a user, part by part, without residuals."""
    fit = fit_batches([decode(rows) for rows in (8, 1, 12, 4)])
    check_sums(fit)
    (core,) = fit.cores
    assert fit.sizes == (1, 4, 8, 12) and [point.rows for point in core.points] == [1, 4, 8, 12]
    assert (core.window.fixed_ns, core.window.per_row_ps) == (16_000 * US, 1_100 * US * 1000)
    assert core.window.largest_residual_ns == 0 and core.explained_share == 1
    parts = {name: (line.fixed_ns // US, line.per_row_ps // 10**6) for name, line in core.parts.items() if line}
    assert parts == {
        "runtime_overhead": (0, 0),
        "memory_floor": (6_000, 0),
        "busy_beyond_floor": (3_000, 900),
        "in_kernel_wait": (4_200, 200),
        "exposed_collective": (2_100, 0),
        "idle": (700, 0),
    }


def test_residuals_show_what_is_no_line() -> None:
    """10, 20 and 60 us at 1, 2 and 3 rows: the line is -20 + 25 a row, off by +5, -10, +5."""
    fit = fit_batches([step(rows, us * US - 1, 0, 0, 0) for rows, us in ((1, 10), (2, 20), (3, 60))])
    (core,) = fit.cores
    assert (core.window.fixed_ns, core.window.per_row_ps) == (-20 * US, 25 * US * 1000)
    assert core.window.residuals_ps == (5_000_000, -10_000_000, 5_000_000)
    assert core.explained_share == pytest.approx(1 - 150 / 1400)
    check_sums(fit)


def test_a_floor_that_is_not_always_known_is_busy_time() -> None:
    """One capture's bytes are above its work: the floor is left out everywhere, the work is one part."""
    fit = fit_batches([step(1, 100, 0, 0, 0, floor=50), step(2, 100, 0, 0, 0, floor=10**6)])
    (core,) = fit.cores
    assert core.parts["memory_floor"] is None
    assert (
        core.parts["busy_beyond_floor"] is not None and core.parts["busy_beyond_floor"].fixed_ns == core.window.fixed_ns
    )
    check_sums(fit)


def test_equal_windows_have_nothing_to_explain() -> None:
    (core,) = fit_batches([step(1, 100, 0, 0, 0), step(2, 100, 0, 0, 0)]).cores
    assert core.explained_share is None and core.window.per_row_ps == 0


@pytest.mark.parametrize("rows", [(8,), (8, 8), (0, 8), (8, 10**10)])
def test_what_is_no_fit_is_refused(rows: tuple[int, ...]) -> None:
    with pytest.raises(UsageError):
        fit_batches([step(count, 100, 0, 0, 0) for count in rows])


captures = st.tuples(st.integers(1, 50), *[st.integers(0, 10_000)] * 4)


@given(st.lists(captures, min_size=2, max_size=6).filter(lambda rows: len({row[0] for row in rows}) > 1))
def test_the_parts_lines_sum_to_the_window_s(rows: list[tuple[int, int, int, int, int]]) -> None:
    """Exactly, whatever the steps; and no line has less squared residual than the one found."""
    fit = fit_batches([step(*row) for row in rows])
    check_sums(fit)
    (core,) = fit.cores
    assert set(core.parts) == set(PARTS)
    times = [(point.rows, point.window_ns) for point in core.points]

    def squares(fixed: float, per_row: float) -> float:
        return sum((time - fixed - per_row * size) ** 2 for size, time in times)

    best = squares(core.window.fixed_ns, core.window.per_row_ps / 1000)
    for shift in ((5, 0), (-5, 0), (0, 1), (0, -1)):
        assert best <= squares(core.window.fixed_ns + shift[0], core.window.per_row_ps / 1000 + shift[1]) + 1e-6

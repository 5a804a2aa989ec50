"""Laws of interval sets, against sets of integers: [a, b) is the set {a, ..., b - 1}."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trnprof.intervals import EMPTY, Intervals, distinct, union, union_lengths

INTERVALS = st.lists(st.tuples(st.integers(-30, 30), st.integers(-30, 30)), max_size=12)
"""Sparse, nested, touching, tied, empty and reversed ones."""


def made(pairs: list[tuple[int, int]]) -> Intervals:
    return union(np.array([a for a, _ in pairs], np.int64), np.array([b for _, b in pairs], np.int64))


def members(pairs: list[tuple[int, int]]) -> set[int]:
    return {x for a, b in pairs for x in range(a, b)}


def elements(intervals: Intervals) -> set[int]:
    return {x for a, b in zip(intervals.start.tolist(), intervals.end.tolist(), strict=True) for x in range(a, b)}


def assert_canonical(intervals: Intervals) -> None:
    assert (intervals.start < intervals.end).all()
    assert (intervals.end[:-1] < intervals.start[1:]).all()


@given(INTERVALS)
def test_union_is_the_set_of_its_members(pairs: list[tuple[int, int]]) -> None:
    result = made(pairs)
    assert_canonical(result)
    assert elements(result) == members(pairs)
    assert result.length() == len(members(pairs))


@given(INTERVALS, INTERVALS)
def test_operators_are_those_of_sets(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    for result, expected in (
        (made(a) | made(b), members(a) | members(b)),
        (made(a) & made(b), members(a) & members(b)),
        (made(a) - made(b), members(a) - members(b)),
    ):
        assert_canonical(result)
        assert elements(result) == expected


@given(INTERVALS, st.integers(-35, 35), st.integers(-35, 35))
def test_clip_and_complement_divide_a_window(a: list[tuple[int, int]], start: int, end: int) -> None:
    inside, outside = made(a).clip(start, end), made(a).complement(start, end)
    assert_canonical(inside)
    assert_canonical(outside)
    assert elements(inside) == members(a) & set(range(start, end))
    assert elements(outside) == set(range(start, end)) - members(a)


@given(INTERVALS, st.lists(st.tuples(st.integers(-35, 35), st.integers(-35, 35)), max_size=5))
def test_overlap_lengths(a: list[tuple[int, int]], queries: list[tuple[int, int]]) -> None:
    starts = np.array([q for q, _ in queries], np.int64)
    ends = np.array([q for _, q in queries], np.int64)
    expected = [len(members(a) & set(range(start, end))) for start, end in queries]
    assert made(a).overlap_lengths(starts, ends).tolist() == expected


def test_empty() -> None:
    assert not len(EMPTY) and EMPTY.length() == 0
    assert made([]) == EMPTY and made([(3, 3), (5, 2)]) == EMPTY


def test_touching_intervals_are_one() -> None:
    assert made([(0, 5), (5, 9)]) == made([(0, 9)])


@given(st.lists(st.integers(-(10**18), 10**18) | st.integers(0, 9)))
def test_distinct_values_are_those_of_a_set(values: list[int]) -> None:
    assert distinct(np.array(values, np.int64)).tolist() == sorted(set(values))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-20, 20), st.integers(-20, 20))))
def test_union_lengths_are_those_of_each_group_s_union(rows: list[tuple[int, int, int]]) -> None:
    """Intervals that end before they begin count nothing, and take nothing from others."""
    group, start, end = (np.array([row[place] for row in rows], np.int64) for place in range(3))
    expected = [len({t for g, low, high in rows if g == number for t in range(low, high)}) for number in range(5)]
    assert union_lengths(group, start, end, 5).tolist() == expected

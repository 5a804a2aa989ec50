"""Sets of half-open integer intervals [start, end), as a pair of sorted int64 arrays: union, intersect, subtract.

An `Intervals` is canonical: sorted, disjoint, none empty, none touching its neighbour. Everything that adds up in this
project adds up because lengths are taken of canonical sets of integers. All operations are vectorised,
O((n + m) log(n + m)) in the number of intervals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Intervals:
    """A canonical set of half-open intervals."""

    start: Int64Array
    """First instant of each interval, ascending; shape [n]."""
    end: Int64Array
    """First instant after each interval; `end[i] < start[i + 1]`; shape [n]."""

    def __len__(self) -> int:
        return len(self.start)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Intervals):
            return NotImplemented
        return np.array_equal(self.start, other.start) and np.array_equal(self.end, other.end)

    __hash__ = None  # type: ignore[assignment]

    def length(self) -> int:
        """Total length, in the unit of the bounds."""
        return int((self.end - self.start).sum())

    def clip(self, start: int, end: int) -> Intervals:
        """The part inside [start, end)."""
        if end <= start:
            return EMPTY
        first = int(np.searchsorted(self.end, start, side="right"))
        last = int(np.searchsorted(self.start, end, side="left"))
        if first >= last:
            return EMPTY
        return Intervals(np.maximum(self.start[first:last], start), np.minimum(self.end[first:last], end))

    def __or__(self, other: Intervals) -> Intervals:
        return union(np.concatenate((self.start, other.start)), np.concatenate((self.end, other.end)))

    def __and__(self, other: Intervals) -> Intervals:
        return _combine(self, other, wanted_depth=2)

    def __sub__(self, other: Intervals) -> Intervals:
        # a - b = a ∩ complement(b); outside b's hull the complement is a itself, so the complement needs only a's hull.
        if not len(self) or not len(other):
            return self
        return self & other.complement(int(self.start[0]), int(self.end[-1]))

    def complement(self, start: int, end: int) -> Intervals:
        """What of [start, end) is not in the set."""
        inside = self.clip(start, end)
        starts = np.concatenate((np.array([start], np.int64), inside.end))
        ends = np.concatenate((inside.start, np.array([end], np.int64)))
        keep = starts < ends
        return Intervals(starts[keep], ends[keep])

    def overlap_lengths(self, start: Int64Array, end: Int64Array) -> Int64Array:
        """Length of the set's part inside each of the given intervals [start[i], end[i]); shape [len(start)]."""
        return self._length_before(np.maximum(start, end)) - self._length_before(start)

    def _length_before(self, at: Int64Array) -> Int64Array:
        """Length of the set's part before each instant."""
        if not len(self):
            return np.zeros(len(at), np.int64)
        covered_before = np.concatenate((np.zeros(1, np.int64), np.cumsum(self.end - self.start)))
        index = np.searchsorted(self.start, at, side="right") - 1
        known = np.maximum(index, 0)
        inside = np.clip(at - self.start[known], 0, self.end[known] - self.start[known])
        return np.where(index < 0, 0, covered_before[known] + inside)


EMPTY = Intervals(np.zeros(0, np.int64), np.zeros(0, np.int64))


def union(start: Int64Array, end: Int64Array) -> Intervals:
    """Canonical union of any intervals, in any order; empty and negative ones are dropped.

    `start`, `end`: integer arrays of one shape [n], in one unit.
    """
    start = np.asarray(start, np.int64)
    end = np.asarray(end, np.int64)
    keep = start < end
    if not keep.all():
        start, end = start[keep], end[keep]
    if not len(start):
        return EMPTY
    if np.any(start[1:] < start[:-1]):
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    # A run begins where an interval starts after everything before it has ended; touching intervals join.
    begins = np.flatnonzero(np.concatenate((np.array([True]), start[1:] > reach[:-1])))
    last = np.concatenate((begins[1:] - 1, np.array([len(start) - 1])))
    return Intervals(start[begins], reach[last])


def distinct(times: Int64Array) -> Int64Array:
    """The distinct values in order. np.unique hashes first, which takes 20 times as long where most values differ."""
    found = np.sort(times, kind="stable")  # what is given is mostly sorted runs, which this merges
    if len(found) < 2:
        return found
    return found[np.concatenate((np.array([True]), found[1:] != found[:-1]))]


def charged_lengths(start: Int64Array, end: Int64Array) -> Int64Array:
    """How much each interval adds to the union of those that began before it; these sum to the union's length exactly.

    Splits a union among intervals that overlap: what an earlier one covers already is not charged again. Ties go to the
    first given. `start`, `end`: integer arrays of one shape [n], in any order; so is the result.
    """
    start = np.asarray(start, np.int64)
    end = np.maximum(np.asarray(end, np.int64), start)
    if not len(start):
        return np.zeros(0, np.int64)
    order = None if np.all(start[1:] >= start[:-1]) else np.argsort(start, kind="stable")
    begin, finish = (start.copy(), end) if order is None else (start[order], end[order])
    begin[1:] = np.maximum(begin[1:], np.maximum.accumulate(finish)[:-1])
    added = np.maximum(finish - begin, 0)
    if order is None:
        return added
    charged = np.empty(len(start), np.int64)
    charged[order] = added
    return charged


def union_lengths(group: npt.NDArray[np.int_], start: Int64Array, end: Int64Array, group_count: int) -> Int64Array:
    """Length of the union of each group's intervals; shape [group_count].

    group: the group of each interval, 0 to group_count - 1; start, end: integer arrays of the same shape [n].
    """
    if not len(start):
        return np.zeros(group_count, np.int64)
    if not np.all(start[1:] >= start[:-1]):
        by_start = np.argsort(start, kind="stable")
        group, start, end = group[by_start], start[by_start], end[by_start]
    # A stable sort of 16-bit keys is a radix sort; within a group the order by start stays.
    order = np.argsort(group.astype(np.uint16) if group_count <= 1 << 16 else group, kind="stable")
    start = start[order]
    end = np.maximum(end[order], start)
    counts = np.bincount(group, minlength=group_count)
    after = np.cumsum(counts)
    lengths = np.zeros(group_count, np.int64)
    for number in np.flatnonzero(counts).tolist():
        own = slice(after[number] - counts[number], after[number])
        reach = np.maximum.accumulate(end[own])
        # From first to last, less the gaps: where an interval begins after everything before it has ended.
        gaps = np.maximum(start[own][1:] - reach[:-1], 0)
        lengths[number] = reach[-1] - start[own][0] - gaps.sum()
    return lengths


def _combine(a: Intervals, b: Intervals, *, wanted_depth: int) -> Intervals:
    """Where `wanted_depth` of the two sets cover."""
    if not len(a) or not len(b):
        return EMPTY
    at = np.concatenate((a.start, b.start, a.end, b.end))
    step = np.concatenate((np.ones(len(a) + len(b), np.int64), -np.ones(len(a) + len(b), np.int64)))
    # Ends sort before starts at one instant: half-open intervals that touch do not overlap.
    order = np.lexsort((step, at))
    at, depth = at[order], np.cumsum(step[order])
    covered = depth[:-1] >= wanted_depth
    return union(at[:-1][covered], at[1:][covered])

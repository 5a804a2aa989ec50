"""One sweep over a core's time: which of its sets cover each instant, and from that the part it belongs to.

Every figure of an account is the length of the instants in some set of states, so one table of time by state gives
them all, and a sweep in batches gives the same table as a sweep at once: a batch is swept up to the instant before
which everything that begins is known, and what is still going on there is carried as one number a set, how far it
reaches. Definitions of the parts: DESIGN.md section 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from trnprof.intervals import EMPTY, Int64Array, Intervals, union
from trnprof.profile import ENGINES

BUSY = tuple(range(len(ENGINES)))
"""Set numbers: instructions of each engine, without wait opcodes."""
BLOCKED = tuple(range(len(ENGINES), 2 * len(ENGINES)))
"""Wait opcodes of each engine."""
DATA, DMA, COLLECTIVE, KERNEL, BODY, THROTTLED = range(2 * len(ENGINES), 2 * len(ENGINES) + 6)
"""Packets that move tensor data, all packets, collectives, kernel spans, the compiler's body, held below full rate."""

Bounds = tuple[Int64Array, Int64Array]
"""(start, end) of intervals; each of shape [n]."""

SET_COUNT = 16
STATE_COUNT = 1 << SET_COUNT

OUTSIDE, DATA_ONLY, COMPUTE_ONLY, DATA_AND_COMPUTE, EXPOSED, WAIT, IDLE = range(7)
"""The part of an instant. The three kinds of work come before the three without any."""

_MAX_PACKED_NS = 1 << 58
"""Longest stretch (9 years) whose times leave room for a set's number in one integer."""


@cache
def covered(*sets: int) -> npt.NDArray[np.bool_]:
    """Which states have an instant in any of the sets; shape [STATE_COUNT], read only."""
    found: npt.NDArray[np.bool_] = (np.arange(STATE_COUNT) & sum(1 << number for number in sets)) != 0
    found.flags.writeable = False
    return found


def _parts() -> npt.NDArray[np.uint8]:
    compute, data = covered(*BUSY), covered(DATA)
    quiet = np.where(covered(*BLOCKED, KERNEL), WAIT, IDLE)
    work = np.where(compute, np.where(data, DATA_AND_COMPUTE, COMPUTE_ONLY), DATA_ONLY)
    body = np.where(compute | data, work, np.where(covered(COLLECTIVE), EXPOSED, quiet))
    return np.where(covered(BODY), body, OUTSIDE).astype(np.uint8)


PART_OF_STATE = _parts()
"""The one definition of the parts: by state, whose bit s says whether set s covers the instant; shape [STATE_COUNT]."""


@dataclass(frozen=True, eq=False)
class Segments:
    """A stretch of time cut wherever its state changes."""

    edge: Int64Array
    """Segment i is [edge[i], edge[i + 1]), never empty; shape [n + 1], or [1] for no time at all."""
    state: npt.NDArray[np.uint16]
    """Shape [n]."""

    @property
    def length(self) -> Int64Array:
        """Length of each segment."""
        return np.diff(self.edge)

    def part(self) -> npt.NDArray[np.uint8]:
        """The part of each segment."""
        return PART_OF_STATE[self.state]

    def where(self, chosen: np.ndarray) -> Intervals:
        """Maximal runs of the chosen segments; bool [n]."""
        if not len(chosen):
            return EMPTY
        change = np.flatnonzero(np.diff(chosen, prepend=False, append=False))
        at = self.edge[change]
        return Intervals(at[0::2], at[1::2])


class StateSweep:
    """A sweep from one instant on; `advance` gives its next stretch."""

    def __init__(self, start: int) -> None:
        self.at = start
        self._reach = [start] * SET_COUNT

    def advance(self, until: int, sets: Mapping[int, Sequence[Bounds]]) -> Segments:
        """The segments of [at, until).

        sets: set number -> intervals that begin before `until` and were not given before; all begin at `at` or later. In
              any order, empty ones included.
        """
        at, self.at = self.at, until
        if until <= at:
            # No time passes, so whatever is given begins now.
            for number, given in sets.items():
                self._reach[number] = max([self._reach[number], *(int(end.max()) for _, end in given if len(end))])
            return Segments(np.array([at], np.int64), np.zeros(0, np.uint16))
        time, changed = self._changes(at, until, sets)
        # A set is covered and not covered by turns, so the state is the exclusive or of all changes so far.
        state = np.bitwise_xor.accumulate(np.left_shift(np.uint16(1), changed))
        if not len(time) or time[0]:
            time, state = np.concatenate(([0], time)), np.concatenate((np.zeros(1, np.uint16), state))
        # Of several changes at one instant the last has the state that follows.
        last = np.append(time[1:] != time[:-1], True)
        return Segments(np.append(time[last] + at, until), state[last])

    def _changes(
        self, at: int, until: int, sets: Mapping[int, Sequence[Bounds]]
    ) -> tuple[Int64Array, npt.NDArray[np.uint16]]:
        """(time after `at`, set number) of every change before `until`, in order of time."""
        times, numbers = [np.zeros(0, np.int64)], [np.zeros(0, np.uint16)]
        for number in range(SET_COUNT):
            given = sets.get(number, ())
            if not given and self._reach[number] <= at:
                continue
            carried = (np.array([at], np.int64), np.array([self._reach[number]], np.int64))
            start, end = (np.concatenate(bounds) for bounds in zip(carried, *given, strict=True))
            runs = union(start, end)
            if not len(runs):
                continue
            self._reach[number] = int(runs.end[-1])
            ended = runs.end if runs.end[-1] < until else runs.end[:-1]
            times += [runs.start - at, ended - at]
            numbers.append(np.full(len(runs.start) + len(ended), number, np.uint16))
        time, changed = np.concatenate(times), np.concatenate(numbers)
        if until - at > _MAX_PACKED_NS:
            order = np.argsort(time, kind="stable")
            return time[order], changed[order]
        # The set's number in the low bits of its time: one array to sort instead of two.
        packed = np.sort(time << 4 | changed)
        return packed >> 4, (packed & 15).astype(np.uint16)

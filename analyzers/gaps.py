"""The longest gaps of a core's body: stretches without work and without a collective, and what stands around them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from trnprof.events import Events
from trnprof.intervals import Int64Array, Intervals
from trnprof.profile import ENGINES

LONGEST_GAP_COUNT = 5

NO_EVENT = "edge of the body or a collective"
"""What stands beside a gap where neither an instruction nor a packet does."""

_NEVER = int(np.iinfo(np.int64).min)


@dataclass(frozen=True)
class Gap:
    """A stretch of the body with no work and no collective."""

    start_ts: int
    end_ts: int
    wait_ns: int
    """The part of it in which an engine is blocked or a kernel is open; the rest is idle."""
    before: str
    """What ended last before it: engine and opcode, or "dma"."""
    after: str
    """What started first after it."""


@dataclass(frozen=True)
class _LastEnd:
    """The latest end so far."""

    instruction_ts: int = _NEVER
    begun_ts: int = 0
    """Of the instructions that end then, the one that began first; by name where several did."""
    label: str = ""
    packet_ts: int = _NEVER


class GapFold:
    """Gaps counted, and the longest kept, over batches in order of time."""

    def __init__(self, start: int, opcodes: list[str]) -> None:
        self.count = 0
        self.longest: tuple[Gap, ...] = ()
        self._opcodes = opcodes
        self._at = start
        self._open: Gap | None = None
        """A gap that has begun and whose end is not known yet."""
        self._last = _LastEnd()

    def add(
        self, quiet: Intervals, wait: Intervals, instructions: Events, packets: Events, until: int, *, final: bool
    ) -> None:
        """One batch: the time up to `until`.

        quiet, wait: where in it nothing works, and of that where something is waited for.
        instructions: rows that begin in it, without wait opcodes; packets: data packets that do; clipped to the window.
        """
        if until > self._at or final:
            self._add_gaps(quiet, wait, instructions, packets, until, final=final)
        self._last = self._latest(instructions, packets)
        self._at = until

    def _add_gaps(
        self, quiet: Intervals, wait: Intervals, instructions: Events, packets: Events, until: int, *, final: bool
    ) -> None:
        start, end, held = quiet.start, quiet.end, self._open
        if held is not None:
            goes_on = len(start) and start[0] == self._at
            start = np.concatenate(([held.start_ts], start[1:] if goes_on else start))
            end = end if goes_on else np.concatenate(([self._at], end))
        last_is_open = bool(not final and len(end) and end[-1] == until)
        closed = len(start) - last_is_open
        self.count += closed
        longest = self._candidates(start[:closed], end[:closed])
        looked_at = [*longest, *range(closed, len(start))]
        waited = dict(zip(looked_at, wait.overlap_lengths(start[looked_at], end[looked_at]).tolist(), strict=True))
        if held is not None and 0 in waited:
            waited[0] += held.wait_ns
        for row in longest:
            before = held.before if held and row == 0 else self._before(int(start[row]), instructions, packets)
            after = self._after(int(end[row]), instructions, packets)
            gap = Gap(int(start[row]), int(end[row]), waited[row], before, after)
            self.longest = tuple(sorted((*self.longest, gap), key=_rank)[:LONGEST_GAP_COUNT])
        if not last_is_open:
            self._open = None
        elif held and closed == 0:
            self._open = replace(held, wait_ns=waited[0])
        else:
            first = int(start[-1])
            self._open = Gap(first, until, waited[closed], self._before(first, instructions, packets), "")

    def _candidates(self, start: Int64Array, end: Int64Array) -> list[int]:
        """Rows that may be among the longest: few of many, and none that is shorter than all of those known."""
        rank = start - end
        bound = _rank(self.longest[-1])[0] if len(self.longest) == LONGEST_GAP_COUNT else 0
        if len(rank) > LONGEST_GAP_COUNT:
            bound = min(bound, int(np.partition(rank, LONGEST_GAP_COUNT - 1)[LONGEST_GAP_COUNT - 1]))
        rows = np.flatnonzero(rank <= bound)
        found: list[int] = rows[np.lexsort((start[rows], rank[rows]))][:LONGEST_GAP_COUNT].tolist()
        return found

    def _before(self, time: int, instructions: Events, packets: Events) -> str:
        """What ended at `time`: nothing works after it, so a row of an earlier batch that did is the last that ended."""
        found = [(self._last.begun_ts, self._last.label)] if self._last.instruction_ts == time else []
        found += self._first(instructions, instructions.end == time)
        if found:
            return min(found)[1]
        ended = self._last.packet_ts == time or bool((packets.end == time).any())
        return "dma" if ended else NO_EVENT

    def _after(self, time: int, instructions: Events, packets: Events) -> str:
        found = self._first(instructions, instructions.start == time)
        if found:
            return found[0][1]
        return "dma" if bool((packets.start == time).any()) else NO_EVENT

    def _latest(self, instructions: Events, packets: Events) -> _LastEnd:
        last = self._last
        if len(instructions):
            time = int(instructions.end.max())
            found = self._first(instructions, instructions.end == time) if time >= last.instruction_ts else []
            if time == last.instruction_ts:
                found.append((last.begun_ts, last.label))
            if found:
                last = replace(last, instruction_ts=time, begun_ts=min(found)[0], label=min(found)[1])
        if len(packets):
            last = replace(last, packet_ts=max(last.packet_ts, int(packets.end.max())))
        return last

    def _first(self, instructions: Events, chosen: np.ndarray) -> list[tuple[int, str]]:
        """(start, label) of the chosen instruction that began first, by name where several did; none without any."""
        rows = np.flatnonzero(chosen)
        if not len(rows):
            return []
        start = instructions.start[rows]
        rows = rows[start == start.min()]
        kinds = np.unique(
            np.stack((instructions["engine"][rows].astype(np.int64), instructions["opcode"][rows])), axis=1
        )
        labels = [f"{(*ENGINES, '')[engine]} {(*self._opcodes, '')[opcode]}" for engine, opcode in kinds.T.tolist()]
        return [(int(start.min()), min(labels))]


def _rank(gap: Gap) -> tuple[int, int]:
    """Longest first, then the earlier one."""
    return gap.start_ts - gap.end_ts, gap.start_ts

"""Loops that were not laid out whole: how long the kernel takes, from the laid-out part and how often everything runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trnprof.nki.timing.program import COLLECTIVE, COMPUTE, DMA, Ints
from trnprof.nki.timing.schedule import Schedule
from trnprof.profile import ENGINES


@dataclass(frozen=True)
class _Use:
    """One resource: an engine, the DMA engines, or collectives; what it does in order of time. Shape [n] each."""

    start_ps: Ints
    taken_ps: Ints
    times: Ints
    """How often each runs in the whole kernel."""

    def laid_out_ps(self) -> int:
        return int(self.taken_ps.sum())

    def whole_ps(self) -> int:
        return int((self.taken_ps * self.times).sum())

    def pace(self) -> float:
        """Share of the time that it is taken between the first and the third quarter of what it does: the steady state,
        without filling and draining the pipeline."""
        done = np.cumsum(self.taken_ps)
        first, last = (int(np.searchsorted(done, part * done[-1])) for part in (0.25, 0.75))
        span = int(self.start_ps[last] - self.start_ps[first])
        busy = int(done[last] - done[first] - self.taken_ps[last] + self.taken_ps[first])
        return min(busy / span, 1.0) if span > 0 and busy > 0 else 1.0


def whole_body_ps(schedule: Schedule) -> int:
    """The kernel's body with every iteration, in picoseconds.

    What was not laid out is added for the resource that has the most to do in the whole kernel, at the pace that it keeps
    in the steady state of what was laid out. Exact where everything was laid out.
    """
    program = schedule.program
    body = schedule.end_of_body_ps
    if not len(program) or int(program.times.max()) == 1:
        return body
    longest = body
    for core in range(program.core_count):
        busiest = max(_uses(schedule, core), key=lambda use: use.whole_ps())
        more = busiest.whole_ps() - busiest.laid_out_ps()
        if more:
            longest = max(longest, body + round(more / busiest.pace()))
    return longest


def _uses(schedule: Schedule, core: int) -> list[_Use]:
    """Every resource of a core."""
    program = schedule.program
    mine = program.core == core
    begin = np.where(program.kind == COMPUTE, schedule.array_start_ps, schedule.start_ps)
    found = []
    for resource in range(len(ENGINES)):
        rows = np.flatnonzero(np.isin(program.kind, (COMPUTE, DMA)) & mine & (schedule.engine == resource))
        found.append(_use(begin, schedule.issued_ps - begin, program.times, rows))
    rows = np.flatnonzero((program.kind == COLLECTIVE) & mine)
    found.append(_use(begin, schedule.issued_ps - begin, program.times, rows))
    rows = np.flatnonzero((program.kind == DMA) & mine)
    queues, dma = schedule.queues[core], program.dma[rows]
    if len(rows):
        whole = (queues.work_ps[dma] * program.times[rows][:, None]).sum(axis=0)
        engine = int(np.argmax(whole))  # the DMA engine with the most to do stands for all 16
        used = queues.work_ps[dma, engine] > 0
        found.append(
            _use(queues.start_ps[dma, engine], queues.work_ps[dma, engine], program.times[rows], np.flatnonzero(used))
        )
    return found


def _use(start_ps: Ints, taken_ps: Ints, times: Ints, rows: Ints) -> _Use:
    order = rows[np.argsort(start_ps[rows], kind="stable")]
    return _Use(start_ps[order], taken_ps[order], times[order])

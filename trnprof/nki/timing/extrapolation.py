"""Loops that were not laid out whole: how long the kernel takes, from the laid-out part and how often everything runs."""

from __future__ import annotations

import numpy as np

from trnprof.nki.timing.program import COLLECTIVE, COMPUTE, DMA
from trnprof.nki.timing.schedule import COLLECTIVES, Schedule
from trnprof.profile import ENGINES


def whole_body_ps(schedule: Schedule) -> int:
    """The kernel's body with every iteration, in picoseconds.

    The resource (an engine, the DMA engines, collectives) that has the most to do in the whole kernel sets the pace, and
    is taken to be as busy over the whole as it is over the part that was laid out: the steady state goes on. Exact where
    everything was laid out. On kernels small enough to lay out both ways it was off by less than 10 % (tests).
    """
    program = schedule.program
    if not len(program) or int(program.times.max()) == 1:
        return schedule.end_of_body_ps
    body = schedule.end_of_body_ps
    longest = body
    for core in range(program.core_count):
        laid_out, whole = max(_busy_ps(schedule, core), key=lambda entry: entry[1])
        longest = max(longest, whole)
        if laid_out:
            longest = max(longest, round(body * (whole / laid_out)))
    return longest


def _busy_ps(schedule: Schedule, core: int) -> list[tuple[int, int]]:
    """(time that each resource of a core is taken in what was laid out, in the whole kernel)."""
    program = schedule.program
    mine = program.core == core
    taken = schedule.issued_ps - np.where(program.kind == COMPUTE, schedule.array_start_ps, schedule.start_ps)
    found = []
    for resource in range(len(ENGINES)):
        rows = np.isin(program.kind, (COMPUTE, DMA)) & mine & (schedule.engine == resource)
        found.append((int(taken[rows].sum()), int((taken * program.times)[rows].sum())))
    rows = (program.kind == COLLECTIVE) & mine
    assert len(found) == COLLECTIVES
    found.append((int(taken[rows].sum()), int((taken * program.times)[rows].sum())))
    rows = (program.kind == DMA) & mine
    work = schedule.queues[core].work_ps[program.dma[rows]]
    found.append(
        (int(work.sum(axis=0).max(initial=0)), int((work * program.times[rows][:, None]).sum(axis=0).max(initial=0)))
    )
    return found

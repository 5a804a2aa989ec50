"""The 16 DMA engines of a core: each runs the packets that reach it one after the other, in the order of their DMAs."""

from __future__ import annotations

import numpy as np

from trnprof.hardware.dma_model import DmaModel
from trnprof.hardware.instruction_costs import Case, InstructionCosts
from trnprof.nki.timing.program import DMA_ENGINE_COUNT, HWDGE, STATIC, SWDGE, DmaTable, Ints

SEMAPHORE_BYTES = 4

_START = {HWDGE: "dma.hwdge_start_ns", SWDGE: "dma.swdge_start_ns", STATIC: "dma.static_start_ns"}


class DmaQueues:
    """One core's DMA engines. Times are picoseconds.

    A packet takes its overhead and its bytes at the engine's rate, and no engine moves more than `engine_bytes_per_ns`
    over a transfer. Queues of one engine share it first come, first served; the hardware goes round them, so that of two
    DMAs at once the earlier one may end later than here, both together when they do here.
    """

    def __init__(
        self,
        dmas: DmaTable,
        modes: list[int],
        law: DmaModel,
        costs: InstructionCosts,
        case: Case,
        *,
        is_pair_busy: bool,
    ) -> None:
        """modes: HWDGE, SWDGE or STATIC by DMA, as the schedule takes them."""
        overhead_ps = law["packet_overhead_ns"] * 1000
        rate = law["packet_rate_bytes_per_ns"] / 1000
        limit = costs["dma.pair_engine_bytes_per_ns" if is_pair_busy else "dma.engine_bytes_per_ns"].at(case) / 1000
        by_law = (dmas.packets * overhead_ps + dmas.engine_bytes / rate) * dmas.slowness[:, None]
        # A copy from HBM to HBM loads its stack twice; a cast as much as its wider side.
        moved = dmas.engine_bytes.sum(axis=1)
        wider = np.maximum(dmas.hbm_bytes / np.maximum(moved, 1), 1)
        by_bandwidth = dmas.engine_bytes * wider[:, None] / limit
        work = np.maximum(by_law, by_bandwidth)
        semaphore_ps = overhead_ps + SEMAPHORE_BYTES / rate
        has_semaphore = (dmas.semaphore_packets > 0)[:, None]
        self.work_ps: Ints = np.ceil(work).astype(np.int64)
        """Time of each DMA's data packets on each engine; shape [n, 16]."""
        self.semaphore_ps: Ints = np.rint(has_semaphore * semaphore_ps * np.ones(DMA_ENGINE_COUNT)).astype(np.int64)
        self.start_ps: Ints = np.zeros_like(self.work_ps)
        """When each engine began each DMA's packets; filled by transfer()."""
        self._work = self.work_ps.tolist()
        self._semaphore = round(semaphore_ps)
        self._has_semaphore = has_semaphore[:, 0].tolist()
        self._free = [0] * DMA_ENGINE_COUNT
        self._latency = {mode: _latencies(costs, path, case) for mode, path in _START.items()}
        self._completion = costs.ps("dma.completion_ns", case)
        self._modes = modes

    def transfer(self, dma: int, trigger_ps: int) -> int:
        """Run one DMA's packets; returns when its semaphore has its last increment."""
        latency = self._latency[self._modes[dma]]
        free, starts = self._free, self.start_ps[dma]
        semaphore = self._semaphore if self._has_semaphore[dma] else 0
        last = trigger_ps + latency[0]
        for engine, work in enumerate(self._work[dma]):
            if not work and not semaphore:
                continue
            start = free[engine]
            arrival = trigger_ps + latency[engine]
            if start < arrival:
                start = arrival
            starts[engine] = start
            end = start + work + semaphore
            free[engine] = end
            if end > last:
                last = end
        return last + self._completion


def _latencies(costs: InstructionCosts, path: str, case: Case) -> list[int]:
    """From a DMA's trigger to its first packet on each engine: they do not begin at once, but spread from one end of the
    bracket below to the case's own; which engine is early is a matter of chance."""
    latest = costs.ps(path, case)
    earliest = costs.ps(path, Case.MID if case is Case.HIGH else Case.LOW)
    return [
        earliest + (latest - earliest) * (7 * engine % DMA_ENGINE_COUNT) // (DMA_ENGINE_COUNT - 1)
        for engine in range(DMA_ENGINE_COUNT)
    ]

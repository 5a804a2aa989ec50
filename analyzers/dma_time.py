"""The time law of one DMA: packets, engines, casts and transposes, as the fastest, the likely and the slowest case."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from trnprof.hardware.dma_model import DmaModel
from trnprof.nki.counting import DmaCount, count_dma
from trnprof.nki.recording import Access, DmaRecord, Memory

SEMAPHORE_BYTES = 4
"""Every engine that a DMA uses ends it with a packet of this size."""


@dataclass(frozen=True)
class DmaTimes:
    """Times of one execution of one DMA, ns."""

    balanced_ns: float
    """Its work spread evenly over all engines, in the fastest mode it may get."""
    fastest_ns: float
    """Its slowest engine, in the fastest mode."""
    mid_ns: float
    """Its slowest engine in the mode it is counted in, and issuing it."""
    high_ns: float
    """Alone: start, the slowest engine in the slowest mode at the sustained rate, the semaphore packet."""


@dataclass(frozen=True)
class CountedDma:
    """One record with its count and times."""

    record: DmaRecord
    count: DmaCount
    times: DmaTimes


class DmaTimer:
    """Counts and times DMAs under one model; DMAs of one geometry, which loops make by the thousand, only once."""

    def __init__(self, target: str, model: DmaModel) -> None:
        self.target = target
        self.model = model
        self._known: dict[tuple[object, ...], tuple[DmaCount, DmaTimes]] = {}

    def time(self, record: DmaRecord) -> CountedDma:
        """Count one execution of a DMA and time it.

        Where the kernel names no DGE mode, the fastest and the slowest of hardware and software DGE bound the time.
        """
        accesses = (*record.reads, record.write)
        if any(access.offsets is not None for access in accesses):
            return CountedDma(record, *self._measure(record))
        key = (
            record.dge_mode,
            record.assumed_mode,
            record.transpose,
            record.reduce_op,
            *(
                (
                    a.memory,
                    a.dtype,
                    a.pattern,
                    a.partition_elements,
                    _start_partition(a),
                    a.indirection,
                    a.indirect_axis,
                )
                for a in accesses
            ),
        )
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._measure(record)
        return CountedDma(record, *known)

    def _measure(self, record: DmaRecord) -> tuple[DmaCount, DmaTimes]:
        model = self.model
        count = count_dma(record, target=self.target)
        candidates = [count]
        if count.mode_is_assumed:
            others = [mode for mode in ("hwdge", "swdge") if mode != count.mode]
            candidates += [
                count_dma(dataclasses.replace(record, assumed_mode=mode), target=self.target) for mode in others
            ]
        slower = _slow_down(record, count, model)
        rate, sustained = model["packet_rate_bytes_per_ns"], model["packet_rate_sustained_bytes_per_ns"]
        per_candidate = [_engine_times(candidate, rate, slower, model) for candidate in candidates]
        fastest = min(per_candidate, key=max)
        high = max(max(_engine_times(candidate, sustained, slower, model)) for candidate in candidates)
        mid = max(_engine_times(count, sustained, slower, model))
        semaphore = model["packet_overhead_ns"] + SEMAPHORE_BYTES / sustained
        return count, DmaTimes(
            balanced_ns=sum(fastest) / model["engine_count"],
            fastest_ns=max(fastest),
            mid_ns=mid + model["issue_ns"],
            high_ns=model["start_ns"] + high + semaphore,
        )


def _start_partition(access: Access) -> int:
    return access.offset // access.partition_elements if access.partition_elements else 0


def _engine_times(count: DmaCount, rate: float, slower: float, model: DmaModel) -> list[float]:
    overhead = model["packet_overhead_ns"]
    return [
        slower * (packets * overhead + moved / rate)
        for packets, moved in zip(count.engine_packets, count.engine_bytes, strict=True)
    ] or [0.0]


def _slow_down(record: DmaRecord, count: DmaCount, model: DmaModel) -> float:
    factor = 1.0
    if count.cast:
        factor *= model["cast_factor"]
    if count.transpose:
        from_hbm = any(access.memory is Memory.HBM for access in (*record.reads, record.write))
        factor /= model["transpose_hbm_efficiency" if from_hbm else "transpose_sbuf_efficiency"]
    if record.reduce_op is not None:
        factor /= model["compute_efficiency"]
    return factor

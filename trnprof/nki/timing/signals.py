"""Which semaphore every operation updates, and which one it waited for: an engine's own, or one of its DMA queue's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trnprof.nki.timing.program import (
    BARRIER,
    COMPUTE,
    DMA,
    DMA_ENGINE_COUNT,
    EXCHANGE,
    HWDGE,
    STATIC,
    SWDGE,
    VIRTUAL,
    Ints,
)
from trnprof.nki.timing.schedule import GPSIMD, SCALAR, SYNC, Schedule
from trnprof.profile import ENGINES

ENGINE_SEMAPHORES = (5, 6, 4, 3, 7)
"""Semaphore of each engine, in the order of ENGINES: tensor, vector and scalar as in the public captures."""
BARRIER_SEMAPHORE = 2
DMA_SEMAPHORES = {SYNC: range(24, 88), SCALAR: range(88, 152), GPSIMD: range(152, 216)}
"""Semaphores that the DMAs of each triggering engine take in turn; other engines trigger none here."""
_DMA_INCREMENT = DMA_ENGINE_COUNT

_QUEUES = {
    (SYNC, HWDGE): "qSyncDynamicHW",
    (SCALAR, HWDGE): "qScalarDynamicHW",
    (GPSIMD, SWDGE): "qGpSimdDynamic",
}
LABELS = {"tensor": "Tensor", "vector": "Vector", "scalar": "Scalar", "gpsimd": "GpSimd", "sync": "Sync"}
"""Engines as the vendor prints them."""


@dataclass(frozen=True, eq=False)
class Signals:
    """Semaphores by operation; shape [n] each, -1: none."""

    semaphore: Ints
    """The semaphore that it updates when it has ended."""
    value: Ints
    """That semaphore's value then."""
    awaited: Ints
    """The semaphore that it waited for last."""
    awaited_value: Ints


def signals_of(schedule: Schedule) -> Signals:
    """An engine counts up by one an instruction, a DMA its own semaphore by one a DMA engine, 16 in all.

    Who waited for a virtual operation waited for the last of what that one stands for.
    """
    program = schedule.program
    semaphore = np.full(len(program), -1, np.int64)
    value = np.zeros(len(program), np.int64)
    for core in range(program.core_count):
        mine = program.core == core
        for engine, index in enumerate(ENGINE_SEMAPHORES):
            rows = np.flatnonzero((program.kind == COMPUTE) & mine & (schedule.engine == engine))
            rows = rows[np.lexsort((rows, schedule.end_ps[rows]))]
            semaphore[rows] = index
            value[rows] = np.arange(1, len(rows) + 1)
        for engine, numbers in DMA_SEMAPHORES.items():
            rows = np.flatnonzero((program.kind == DMA) & mine & (schedule.engine == engine))
            rows = rows[np.lexsort((rows, schedule.start_ps[rows]))]
            turn = np.arange(len(rows))
            semaphore[rows] = numbers.start + turn % len(numbers)
            value[rows] = _DMA_INCREMENT * (turn // len(numbers) + 1)
        rows = np.flatnonzero(np.isin(program.kind, (BARRIER, EXCHANGE)) & mine)
        semaphore[rows] = BARRIER_SEMAPHORE
        value[rows] = np.arange(1, len(rows) + 1)
    source = schedule.waited_for.copy()
    while True:
        virtual = (source >= 0) & (program.kind[np.maximum(source, 0)] == VIRTUAL)
        if not virtual.any():
            break
        source[virtual] = schedule.waited_for[source[virtual]]
    at = np.maximum(source, 0)
    awaited = np.where(source >= 0, semaphore[at] if len(at) else -1, -1)
    return Signals(semaphore, value, awaited, np.where(awaited >= 0, value[at] if len(at) else 0, 0))


def queues_of(schedule: Schedule, rows: Ints) -> tuple[Ints, list[str]]:
    """(the queue of each DMA operation in `rows`, the queues' names)."""
    modes = schedule.mode[schedule.program.dma[rows]]
    names: dict[str, int] = {}
    pairs, which = np.unique(np.stack([schedule.engine[rows], modes]), axis=1, return_inverse=True)
    places = []
    for engine, mode in pairs.T.tolist():
        name = _QUEUES.get(
            (engine, mode),
            f"q{LABELS[ENGINES[engine]]}Static" if mode == STATIC else f"q{LABELS[ENGINES[engine]]}Dynamic",
        )
        places.append(names.setdefault(name, len(names)))
    found = np.array(places, np.int64)[which.reshape(-1)] if len(rows) else np.zeros(0, np.int64)
    return found, list(names) or ["qSyncDynamicHW"]

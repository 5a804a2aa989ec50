"""How the vendor's profiler names DMA queues and semaphores, from what an NTFF alone holds."""

from __future__ import annotations

import re

import numpy as np

from trnprof.readers import isa
from trnprof.readers.ntff_container import Ring, Subgraph

INSTRUCTION_RING = 14
"""Ring of every DMA engine that fetches instructions; the runtime does not list it."""

_ENGINE_IN_QUEUE = {"PE": "Tensor", "Act": "Scalar", "Pool": "GpSimd", "DVE": "Vector", "SP": "Sync"}
_ENGINE_LABELS = ("Tensor", "Scalar", "GpSimd", "Vector", "Sync")
"""By NTFF engine number."""

_FIRST_ENGINE_SEMAPHORE = 3
_ENGINE_SEMAPHORES = (2, 1, 0, 3)
"""NTFF engines whose semaphores follow the runtime's three: GpSimd, Scalar, Tensor, Vector are 3, 4, 5, 6."""

_FIRST_QUEUE_SEMAPHORE, _QUEUE_SEMAPHORE_COUNT = 8, 16
"""Every DMA queue owns 16 semaphores, from 8 on (all 79 public NEFFs)."""


def queue_name(raw: str) -> str:
    """The name as the profiler prints it: qSPDynamicHW is qSyncDynamicHW."""
    return re.sub(r"^q(PE|Act|Pool|DVE|SP)(?=[A-Z])", lambda found: "q" + _ENGINE_IN_QUEUE[found[1]], raw)


def queue_type(ring: Ring) -> str:
    """DmaQueueType of a ring that the runtime lists."""
    if ring.name.endswith("DynamicHW"):
        return "hardware_dynamic"
    if ring.name.endswith("Dynamic"):
        return "software_dynamic"
    return {1: "instruction", 2: "data", 3: "input", 4: "output"}.get(ring.type, "unknown")


def queue_of_semaphore(subgraph: Subgraph) -> dict[int, str]:
    """The queue whose completion each semaphore counts, as far as the core's DMA instructions show it.

    A dynamic DMA names its semaphore and runs on the queue of the engine that issues it; the other 15 semaphores of
    the queue lie around it.
    """
    queues: dict[int, str] = {}
    for engine, stream in subgraph.streams.items():
        words = stream.words[isa.is_dma_direct2d(stream.words)]
        names = sorted({ring.name for ring in subgraph.rings if _is_dynamic_queue_of(ring, engine)})
        if not len(words) or len(names) != 1:
            continue
        for semaphore in np.unique(words[:, 13]).tolist():
            if semaphore < _FIRST_QUEUE_SEMAPHORE:
                continue
            first = semaphore - (semaphore - _FIRST_QUEUE_SEMAPHORE) % _QUEUE_SEMAPHORE_COUNT
            for index in range(first, min(first + _QUEUE_SEMAPHORE_COUNT, 256)):
                queues[index] = queue_name(names[0])
    return queues


def _is_dynamic_queue_of(ring: Ring, engine: int) -> bool:
    if not 0 <= engine < len(_ENGINE_LABELS):
        return False
    return queue_name(ring.name).startswith(f"q{_ENGINE_LABELS[engine]}Dynamic")


def first_dma_engine(subgraph: Subgraph) -> int:
    """Number of the DMA engine that records call 0: two cores share 32 engines, which records number within the pair."""
    if subgraph.rings:
        return min(ring.engine_idx for ring in subgraph.rings) & ~31
    return 16 * subgraph.nc_idx & ~31


def semaphore_labels(subgraph: Subgraph, queues: dict[int, str]) -> list[str]:
    """The id text of each of 256 semaphores, as the profiler prints it: "2", "S[5] (Tensor)", "S[8] (qSyncDynamicHW)".

    Engine names are left out for a core whose streams contradict them.
    """
    labels = [str(index) for index in range(256)]
    for place, engine in enumerate(_ENGINE_SEMAPHORES):
        index = _FIRST_ENGINE_SEMAPHORE + place
        if _incrementing_engines(subgraph, index) <= {engine}:
            labels[index] = f"S[{index}] ({_ENGINE_LABELS[engine]})"
    for index, name in queues.items():
        labels[index] = f"S[{index}] ({name})"
    return labels


def _incrementing_engines(subgraph: Subgraph, semaphore: int) -> set[int]:
    """NTFF engines whose work increments the semaphore on completion; the runtime's EVENT_SEMAPHOREs do not count."""
    return {engine for engine, stream in subgraph.streams.items() if _increments(stream.words, semaphore)}


def _increments(words: isa.Words, semaphore: int) -> bool:
    is_increment = (words[:, 6] == isa.SEMAPHORE_INCREMENT) & (words[:, 7] == semaphore)
    return bool(np.any(is_increment & (words[:, 0] != isa.EVENT_SEMAPHORE)))

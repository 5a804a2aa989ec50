"""What a capture holds and what it lacks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trnprof.profile import ENGINES, Metadata, Profile, codes_of

TABLE_MEANING = {
    "instructions": "engine time, waits, short instructions",
    "dma_packets": "data movement, packet sizes",
    "dma_transfers": "which tensor a DMA moved",
    "semaphores": "who ended each wait",
    "collectives": "exposed collectives",
    "throttle": "throttled intervals",
    "kernels": "kernel boundaries",
    "sources": "source lines",
}
"""What each table is needed for; without it that is not captured."""


@dataclass(frozen=True)
class CoreSummary:
    """One physical core's rows."""

    core: int
    subgraph: str
    neuroncore_idx: int | None
    window_ns: int
    instruction_counts: dict[str, int] | None
    """By engine, wait opcodes included; None: not captured."""
    row_counts: dict[str, int | None]
    """By table; None: not captured."""


@dataclass(frozen=True)
class CaptureSummary:
    """A capture at a glance."""

    metadata: Metadata
    cores: tuple[CoreSummary, ...]
    row_counts: dict[str, int | None]
    """By table, all cores; None: not captured."""
    missing: dict[str, str]
    """Tables not captured, and what that leaves unsaid."""


def summarize_capture(profile: Profile) -> CaptureSummary:
    """Counts per core, engine and table; pure bookkeeping, no times but the windows."""
    cores = []
    for core in profile.metadata.cores:
        rows = {name: profile.core_rows(name, core.core) for name, _ in profile.tables()}
        instructions, counts = rows["instructions"], None
        if instructions is not None:
            codes, names = codes_of(instructions["engine"])
            per_code = np.bincount(codes[codes >= 0], minlength=len(names))
            by_name = dict(zip(names, per_code.tolist(), strict=False))
            counts = {name: by_name.get(name, 0) for name in ENGINES}
        cores.append(
            CoreSummary(
                core=core.core,
                subgraph=core.subgraph,
                neuroncore_idx=core.neuroncore_idx,
                window_ns=core.window_end_ts - core.window_start_ts,
                instruction_counts=counts,
                row_counts={name: None if table is None else len(table) for name, table in rows.items()},
            )
        )
    totals = {name: None if table is None else len(table) for name, table in profile.tables()}
    missing = {name: TABLE_MEANING[name] for name, count in totals.items() if count is None}
    return CaptureSummary(profile.metadata, tuple(cores), totals, missing)

"""What limits the numbers of a capture: said before any number is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trnprof.analyzers.anatomy import Anatomy
from trnprof.findings import DataQuality, Severity, data_quality
from trnprof.profile import UNKNOWN_OPCODE, CaptureIssue, Metadata, Profile, Provenance, codes_of

_NEEDED_FOR = {
    "instructions": "engine time and waits",
    "dma_packets": "data movement",
    "semaphores": "who ended each wait",
    "collectives": "exposed collectives",
    "throttle": "throttled intervals",
}
"""Tables that the anatomy reads, and what cannot be said without each."""

_ORDER = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}


@dataclass(frozen=True)
class CaptureFacts:
    """What a capture's data quality is told from, beside its account."""

    metadata: Metadata
    issues: tuple[CaptureIssue, ...]
    row_counts: dict[str, int]
    """Rows of each table that was captured."""
    unknown_opcodes: dict[str, int]
    """Instructions by opcode, of opcodes that no document or capture names."""


def capture_facts(profile: Profile) -> CaptureFacts:
    """The facts of a profile."""
    unknown = {}
    if profile.instructions is not None:
        codes, names = codes_of(profile.instructions["opcode"])
        counts = np.bincount(codes[codes >= 0], minlength=len(names)).tolist()
        unknown = {n: count for n, count in zip(names, counts, strict=True) if count and n.startswith(UNKNOWN_OPCODE)}
    rows = {name: len(table) for name, table in profile.tables() if table is not None}
    return CaptureFacts(profile.metadata, profile.issues, rows, unknown)


def assess_data_quality(profile: Profile, anatomy: Anatomy | None = None) -> tuple[DataQuality, ...]:
    """Every data-quality entry of a capture, worst first: what its reader noted and what its tables and account show.

    anatomy: the account of the same profile, where one was made.
    """
    return assess_facts(capture_facts(profile), anatomy)


def assess_facts(facts: CaptureFacts, anatomy: Anatomy | None = None) -> tuple[DataQuality, ...]:
    """The same from a capture's facts."""
    entries = [data_quality(issue.code, count=issue.count, detail=issue.detail) for issue in facts.issues]
    noted = {entry.code for entry in entries}
    for entry in [*_of_metadata(facts), *_of_tables(facts), *(_of_account(anatomy) if anatomy else ())]:
        if entry.code not in noted:
            entries.append(entry)
    return tuple(sorted(entries, key=lambda entry: (_ORDER[entry.severity], entry.code, entry.message)))


def is_incomplete(entries: tuple[DataQuality, ...]) -> bool:
    """Were records lost? Work is then a lower bound, and waits and idle an upper bound."""
    return any(entry.code == "DQ001" for entry in entries)


def _of_metadata(facts: CaptureFacts) -> list[DataQuality]:
    metadata, entries = facts.metadata, []
    if metadata.dropped_record_count:
        kept = sum(count for name, count in facts.row_counts.items() if name != "sources")
        lost, total = metadata.dropped_record_count, metadata.dropped_record_count + kept
        detail = f"incomplete ({lost:,} of {total:,} = {100 * lost / total:.1f} % lost)"
        entries.append(data_quality("DQ001", count=lost, detail=detail))
    if metadata.execution_index == 1:
        entries.append(data_quality("DQ004", count=1, detail="this is execution 1 of its NEFF"))
    if metadata.dge_notifications is False:
        entries.append(data_quality("DQ007"))
    if not metadata.has_step_markers:
        entries.append(data_quality("DQ013", detail="the whole execution is one window"))
    if not metadata.static_dma_attributed:
        entries.append(data_quality("DQ019", detail="the direction of static DMA rings needs the NEFF"))
    return entries


def _of_tables(facts: CaptureFacts) -> list[DataQuality]:
    absent = [name for name in _NEEDED_FOR if name not in facts.row_counts]
    if "dma_packets" in absent and "dma_transfers" in facts.row_counts:
        absent.remove("dma_packets")
    entries = []
    if absent:
        detail = ", ".join(f"{name} (needed for {_NEEDED_FOR[name]})" for name in absent)
        entries.append(data_quality("DQ005", count=len(absent), detail=detail))
    count = sum(facts.unknown_opcodes.values())
    if count:
        detail = f"{count:,} instructions of {len(facts.unknown_opcodes)} opcodes"
        entries.append(data_quality("DQ006", count=count, detail=detail))
    return entries


def _of_account(anatomy: Anatomy) -> list[DataQuality]:
    entries = []
    empty = [core.core for core in anatomy.cores if not core.event_count]
    if empty:
        entries.append(data_quality("DQ003", count=len(empty), detail=f"no events on core {_list(empty)}"))
    for core in anatomy.cores:
        if core.floor_above_work_ns and core.hbm is not None:
            detail = (
                f"core {core.core}: {core.hbm.total_bytes():,} bytes ÷ {anatomy.bandwidth.bytes_per_s:,} B/s is "
                f"{core.floor_above_work_ns:,} ns longer than its work of {core.work.total_ns():,} ns"
            )
            entries.append(data_quality("DQ009", count=core.floor_above_work_ns, detail=detail))
    throttled = [core for core in anatomy.cores if core.throttle is not None and core.throttle.throttled_ns]
    # A modelled chip is always as cool as the model has it: its throttling is a result (THR001), not a flaw of the capture.
    if throttled and anatomy.provenance is not Provenance.MODELLED:
        worst = max(throttled, key=lambda core: core.throttle.throttled_ns if core.throttle else 0)
        assert worst.throttle is not None
        share = 100 * worst.throttle.throttled_ns / worst.window_ns
        detail = (
            f"core {worst.core} at {worst.throttle.lowest_k}/{worst.throttle.n} of full rate or above for "
            f"{worst.throttle.throttled_ns:,} ns ({share:.1f} % of its window)"
        )
        count = sum(core.throttle.interval_count for core in throttled if core.throttle)
        entries.append(data_quality("DQ010", count=count, detail=detail))
    clipped = sum(core.clipped_count for core in anatomy.cores)
    if clipped:
        entries.append(data_quality("DQ012", count=clipped))
    return entries


def _list(cores: list[int]) -> str:
    """1, 2, 3 or, where they follow each other, 1-3."""
    if len(cores) > 2 and cores == list(range(cores[0], cores[-1] + 1)):
        return f"{cores[0]}-{cores[-1]}"
    return ", ".join(map(str, cores))

"""The account of a capture that is read in batches: the reader's batches put through the analyzers' folds."""

from __future__ import annotations

from dataclasses import dataclass

from trnprof.analyzers.anatomy import Anatomy, AnatomyFold
from trnprof.analyzers.data_quality import CaptureFacts
from trnprof.analyzers.findings import find_in_sums, finding_folds, left_out
from trnprof.analyzers.steps import StepAnatomy, StepsFold, StepWindow
from trnprof.findings import Finding
from trnprof.hardware import Bandwidth, Hardware
from trnprof.ordering import END_OF_TIME
from trnprof.prefetch import prefetched
from trnprof.readers.explorer_batches import ExplorerBatches


@dataclass(frozen=True)
class StreamedAccount:
    """What is known of a capture that was read in batches."""

    facts: CaptureFacts
    anatomy: Anatomy
    steps: tuple[StepAnatomy, ...]
    """Of the windows asked for, in their order."""
    findings: tuple[Finding, ...]
    """Of the whole window."""
    codes_left_out: tuple[str, ...]
    """Findings that were not looked for."""


def account_batches(
    batches: ExplorerBatches, hardware: Hardware, bandwidth: Bandwidth, windows: tuple[StepWindow, ...] = ()
) -> StreamedAccount:
    """The account and findings of the whole window, and the account of the steps in `windows`.

    The accounts are exactly what measure_anatomy and measure_steps give.

    Memory is bounded by the size of a batch, not of the capture.

    Raises: what measure_anatomy and ExplorerBatches raise.
    """
    metadata = batches.metadata
    bodies = {}
    for core in metadata.cores:
        window = (core.window_start_ts, core.window_end_ts)
        bodies[core.core] = _clipped(batches.body(core.core), window)
    whole = AnatomyFold(
        metadata, hardware.name, bandwidth, batches.names, bodies, reach_back_ns=batches.longest_wait_ns
    )
    sums = finding_folds(metadata, bodies, batches.names, hardware, has_packets="dma_packets" in batches.captured)
    steps = None
    if windows:
        spans = [(window.start_ts, window.end_ts) for window in windows]
        step_bodies = [
            {core.core: _clipped(found.get(core.core), span) for core in metadata.cores}
            for span, found in zip(spans, batches.step_bodies(spans), strict=True)
        ]
        steps = StepsFold(
            metadata,
            hardware.name,
            bandwidth,
            batches.names,
            windows,
            step_bodies,
            reach_back_ns=batches.longest_wait_ns,
        )
    for batch in prefetched(batches.batches()):
        final = batch.until_ts == END_OF_TIME
        whole.add(batch.rows, batch.until_ts, final=final)
        for number, fold in sums.items():
            fold.add(batch.rows[number])
        if steps is not None:
            steps.add(batch.rows, batch.until_ts, final=final)
    facts = CaptureFacts(metadata, batches.issues(), batches.row_counts(), batches.unknown_opcodes())
    anatomy = whole.anatomy()
    summed = [fold.sums() for fold in sums.values()]
    findings = find_in_sums(metadata, anatomy, summed, hardware)
    return StreamedAccount(facts, anatomy, () if steps is None else steps.steps(), findings, left_out(summed))


def _clipped(body: tuple[int, int] | None, window: tuple[int, int]) -> tuple[int, int]:
    """A body inside the window; an empty one at its start where there is none."""
    if body is None:
        return window[0], window[0]
    low, high = window
    return min(max(body[0], low), high), min(max(body[1], low), high)

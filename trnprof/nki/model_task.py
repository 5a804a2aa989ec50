"""What the guarded child does for `trnprof nki model`: record the kernel and hand its machine instructions back."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trnprof.nki.kernel_call import KernelCall
from trnprof.nki.loops import least_iterations
from trnprof.nki.plain_data import from_plain
from trnprof.nki.recording import Recording
from trnprof.nki.timing.exchange import save
from trnprof.nki.timing.lowering import lower


@dataclass(frozen=True)
class ModelSettings:
    """What the lowering needs beside the recording."""

    sbuf_bytes_per_partition: int
    psum_bytes_per_partition: int
    exact_operation_count: int = 60_000
    """A kernel of at most so many operations is laid out whole; of a larger one, some iterations of every loop."""
    most_iterations: int = 16
    """How many at most before the rest is taken to go on like them."""


def perform(call: KernelCall) -> dict[str, Any]:
    """The task of the guarded child: the program's arrays go to the scratch folder, the rest is returned."""
    settings = from_plain(ModelSettings, call.request["settings"])
    recording = _recorded(call, settings)
    call.enter("ordering instructions")
    gc.disable()  # millions of small tuples and no circle among them: collecting takes half of the time
    program = lower(
        recording,
        sbuf_bytes_per_partition=settings.sbuf_bytes_per_partition,
        psum_bytes_per_partition=settings.psum_bytes_per_partition,
    )
    return {
        "program": save(program, Path.cwd()),
        "notes": [f"{note.code}: {note.message}" for note in recording.notes],
        "loading": list(call.loader.notes),
        "stand_ins": call.stand_ins,
    }


def _recorded(call: KernelCall, settings: ModelSettings) -> Recording:
    """Every iteration where that is little; else enough iterations of every loop, the rest multiplied."""
    if call.request["exact"]:
        return call.record()
    recording = call.record()
    events = [event for program in recording.programs for event in program.events]
    total = sum(event.execution_count for event in events)
    if total == len(events):
        return recording
    if total <= settings.exact_operation_count:
        return call.record(exact=True)
    token = least_iterations.set(_iterations(recording, settings))
    try:
        return call.record()
    finally:
        least_iterations.reset(token)


def _iterations(recording: Recording, settings: ModelSettings) -> int:
    """How many iterations of every repeated loop fit the bound.

    A recording has about 3 iterations of each of the `depth` repeated loops around an operation; K of each make it
    ((K + 3) / 3)^depth times as long.
    """
    events = [event for program in recording.programs for event in program.events]
    depth = max(sum((span.count or 1) > 1 for span in event.loops) for event in events)
    room = settings.exact_operation_count / len(events)
    return max(2, min(round(3 * room ** (1 / max(depth, 1)) - 3), settings.most_iterations))

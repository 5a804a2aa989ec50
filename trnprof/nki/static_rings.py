"""A kernel compiled with --disable-dge: the runtime lays its descriptors out in rings before the program runs."""

from __future__ import annotations

from dataclasses import replace

from trnprof.nki.recording import DmaRecord, Event, Indirection, Recording


def without_dge(recording: Recording) -> Recording:
    """The recording with every DMA on static rings, but for those that the kernel gives a mode or index vectors."""
    programs = tuple(
        replace(program, events=tuple(_static(event) for event in program.events)) for program in recording.programs
    )
    return replace(recording, programs=programs)


def _static(event: Event) -> Event:
    if not isinstance(event, DmaRecord) or event.dge_mode != "unknown":
        return event
    if any(access.indirection is Indirection.GATHER for access in (*event.reads, event.write)):
        return event
    return replace(event, assumed_mode="none")

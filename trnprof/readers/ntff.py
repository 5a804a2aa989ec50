"""Native NTFF captures to a Profile, by the rules that the vendor's profiler follows.

The window is the execution's, its start is zero. Instructions and DMA packets count where they lie in it whole. The
tables keep picoseconds; their nanoseconds are rounded down, start and duration each, as the vendor prints them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from trnprof.errors import InputDataError
from trnprof.profile import CaptureIssue, Core, DmaQueue, Metadata, Profile, Provenance, Step
from trnprof.readers import isa, ntff_names
from trnprof.readers import ntff_container as box
from trnprof.readers import ntff_records as rec
from trnprof.readers.ntff_container import Container, Subgraph
from trnprof.readers.ntff_tables import CoreReader, Tally

PROVENANCE_MARK = "trnprof:"
"""Begins the instance id of files that trnprof wrote; the Provenance of what is in them follows."""

_HARDWARE = {1: "trn1", 2: "trn2"}
_TENSOR_ENGINE = 0
_MAX_STEPS = 10_000
"""Executions in one capture up to which each is a step."""
_END_MARK = 3
"""Byte 36 of the NOTIFY instruction that the tensor engine executes as an execution ends."""


_DECODED = {
    (box.CORE_BLOCK, box.INSTRUCTION_SECTION),
    (box.CORE_BLOCK, box.EVENT_SECTION),
    (box.CORE_BLOCK, box.THROTTLE_SECTION),
    (box.DMA_BLOCK, box.DMA_SECTION),
}
"""(block, kind) of the sections that the tables are made of."""


@dataclass(frozen=True)
class Window:
    """The execution on the capture's clock, ps."""

    start_ps: int
    end_ps: int
    approximation: str | None = None
    """How it was found, where the capture does not record it."""


def read_ntff(path: Path, *, neff: Path | None = None) -> Profile:
    """The execution that an NTFF captured.

    path: container version 4, 5 or 6.
    neff: the NEFF it ran; searched beside the NTFF by uuid where not given. It adds names, sources and operands.

    Raises: InputMissingError if a file cannot be read; InputDataError for an unknown version, damaged content, a
            capture without records, or a `neff` of another uuid (DQ008).
    """
    from trnprof.readers.neff_join import attach_neff, find_neff

    profile = read_ntff_alone(path)
    found = neff or find_neff(path, profile.metadata.neff_uuid)
    return attach_neff(profile, found) if found else profile


def read_ntff_alone(path: Path) -> Profile:
    """The execution that an NTFF captured, from the NTFF's own bytes. Raises what read_ntff raises."""
    container = box.read_container(path)
    if not container.subgraphs:
        raise InputDataError(
            "its metadata names no core: damaged, or nothing was captured; capture it again", path=path
        )
    marks = [_end_mark(container, subgraph) for subgraph in container.subgraphs]
    window = _execution_window(container, marks)
    if window is None:
        raise InputDataError(
            "holds no trace records and no execution window: nothing was captured; capture it again", path=path
        )
    tally = Tally()
    readers = [
        CoreReader(
            container,
            core,
            start_ps=window.start_ps,
            duration_ps=window.end_ps - window.start_ps,
            trace_end_ps=window.end_ps if mark is None else min(mark, window.end_ps),
            tally=tally,
        )
        for core, mark in enumerate(marks)
    ]
    instructions = _all_cores(readers, CoreReader.instructions)
    packets = _all_cores(readers, CoreReader.dma_packets)
    semaphores = _all_cores(readers, CoreReader.semaphores)
    throttle = _all_cores(readers, CoreReader.throttle)
    return Profile(
        metadata=_metadata(container, window, tally),
        instructions=instructions,
        dma_packets=packets,
        semaphores=semaphores,
        throttle=throttle,
        issues=(*_issues(container, window, tally), *_empty_cores(container, instructions, packets)),
    )


def _all_cores(readers: list[CoreReader], table: Callable[[CoreReader], pa.Table]) -> pa.Table:
    merged = pa.concat_tables([table(reader) for reader in readers])
    return merged.unify_dictionaries() if len(readers) > 1 else merged


def _execution_window(container: Container, marks: list[int | None]) -> Window | None:
    """The capture's execution; None if it has neither a record of it nor any trace record.

    Versions 4 and 5 do not record it. There the tensor engine's end mark closes it and the duration that the metadata
    gives opens it; the cores' executions together are the window, as both cores of a logical core share one.
    """
    if container.execution is not None:
        return Window(*container.execution)
    spans = [
        (mark - subgraph.execution_ps, mark)
        for subgraph, mark in zip(container.subgraphs, marks, strict=True)
        if mark is not None and subgraph.execution_ps
    ]
    how = "from the tensor engine's end mark and the execution's duration"
    if not spans:
        spans = [span for subgraph in container.subgraphs if (span := _recorded_span(container, subgraph))]
        how = "from the first to the last record, as the capture has no marks"
    if not spans:
        return None
    return Window(min(start for start, _ in spans), max(end for _, end in spans), how)


def _end_mark(container: Container, subgraph: Subgraph) -> int | None:
    """When the tensor engine executed the mark that ends the execution and the core's trace, ps; None: it did not."""
    stream = subgraph.streams.get(_TENSOR_ENGINE)
    if stream is None:
        return None
    is_end = (stream.words[:, 0] == isa.NOTIFY) & (stream.words[:, 36] == _END_MARK)
    clock = subgraph.clocks.engines.get(_TENSOR_ENGINE, box.PICOSECONDS)
    ends: list[int] = []
    for records in _instruction_records(container, subgraph):
        start, _ = rec.engine_rows(rec.record_types(records), _TENSOR_ENGINE)
        index = rec.stream_index(records, start, stream.device_address)
        inside = np.flatnonzero(index < len(stream.words))
        marks = start[inside[is_end[index[inside]]]]
        ends += rec.times_ps(records, marks, clock, 0).tolist()
    return max(ends, default=None)


def _recorded_span(container: Container, subgraph: Subgraph) -> tuple[int, int] | None:
    times: list[int] = []
    for records in _instruction_records(container, subgraph):
        types = rec.record_types(records)
        for engine in range(5):
            clock = subgraph.clocks.engines.get(engine, box.PICOSECONDS)
            stamps = rec.times_ps(records, np.flatnonzero(types >> 2 == engine + 1).astype(np.int32), clock, 0)
            if len(stamps):
                times += [int(stamps.min()), int(stamps.max())]
    return (min(times), max(times)) if times else None


def _instruction_records(container: Container, subgraph: Subgraph) -> list[rec.Records]:
    return [
        rec.view_records(container.payload[section.offset : section.offset + section.size])
        for section in subgraph.sections
        if section.kind == box.INSTRUCTION_SECTION and section.block == box.CORE_BLOCK
    ]


def _metadata(container: Container, window: Window, tally: Tally) -> Metadata:
    duration_ns = (window.end_ps - window.start_ps) // 1000
    executions = container.executions if 1 < len(container.executions) <= _MAX_STEPS else ()
    steps = tuple(
        Step(index=place, start_ts=(start - window.start_ps) // 1000, end_ts=(end - window.start_ps) // 1000)
        for place, (start, end) in enumerate(executions)
    )
    return Metadata(
        format="ntff",
        format_version=str(container.version),
        provenance=_provenance(container.instance_id),
        cores=tuple(
            Core(
                core=core,
                subgraph=subgraph.name or f"sg{core:02d}",
                window_start_ts=0,
                window_end_ts=duration_ns,
                neuroncore_idx=subgraph.nc_idx,
                neuron_device_idx=subgraph.device_idx,
            )
            for core, subgraph in enumerate(container.subgraphs)
        ),
        hardware=_HARDWARE.get(container.architecture),
        instance_type=container.instance_type,
        neff_uuid=container.uuid,
        neff_path=container.neff_path,
        versions=container.versions,
        has_step_markers=bool(steps),
        steps=steps,
        dge_notifications=False if tally.dynamic_packet_count else None,
        dropped_record_count=tally.lost_work_count,
        static_dma=tuple(
            DmaQueue(
                core=core,
                engine_idx=ring.engine_idx,
                queue_idx=ring.ring,
                name=ntff_names.queue_name(ring.name),
                type=ntff_names.queue_type(ring),
                descriptor_count=ring.descriptor_count,
            )
            for core, subgraph in enumerate(container.subgraphs)
            for ring in subgraph.rings
        ),
    )


def _provenance(instance_id: str | None) -> Provenance:
    name = (instance_id or "").removeprefix(PROVENANCE_MARK)
    return Provenance(name) if name != instance_id and name in set(Provenance) else Provenance.MEASURED_DEVICE


def _issues(container: Container, window: Window, tally: Tally) -> list[CaptureIssue]:
    unknown = tally.unknown_opcodes
    named = ", ".join(f"{name} x {count}" for name, count in sorted(unknown.items()))
    if tally.unlocated_count:
        named = ", ".join(filter(None, [named, f"{tally.unlocated_count} without an instruction stream"]))
    static = any(ring.descriptor_count for subgraph in container.subgraphs for ring in subgraph.rings)
    found = [
        ("DQ001", tally.lost_work_count, "instruction or DMA records, by their overflow flags"),
        ("DQ002", tally.unpaired_count, "starts or ends of instructions and DMA packets"),
        ("DQ006", unknown.total() + tally.unlocated_count, named),
        ("DQ007", tally.dynamic_packet_count, "packets of dynamic DMAs, their tensors not named"),
        ("DQ011", tally.backward_count, "pairs of records that end before they start"),
        ("DQ024", tally.lost_update_count, "overflow flags on semaphore updates"),
    ]
    issues = [CaptureIssue(code, count, detail) for code, count, detail in found if count]
    if container.unclaimed_sections:
        cores = sorted({section.nc_idx for section in container.unclaimed_sections})
        count = sum(section.size for section in container.unclaimed_sections) // rec.RECORD_BYTES
        issues.append(CaptureIssue("DQ011", count, f"records of cores that the metadata does not list: {cores[:8]}"))
    if undecoded := _undecoded_sections(container):
        issues.append(undecoded)
    if window.approximation:
        issues.append(CaptureIssue("DQ018", None, f"container version {container.version}: {window.approximation}"))
    if static:
        issues.append(CaptureIssue("DQ019", None, "static DMA rings, whose addresses only the NEFF holds"))
    return issues


def _undecoded_sections(container: Container) -> CaptureIssue | None:
    """The records whose layout is not known, of which no public capture has any: collectives, errors, what is newer."""
    counts: dict[str, int] = {}
    for subgraph in container.subgraphs:
        for section in subgraph.sections:
            if section.size and (section.block, section.kind) not in _DECODED:
                if section.block == box.COLLECTIVE_BLOCK:
                    what = "collective cores"
                elif section.kind == box.ERROR_SECTION:
                    what = "errors"
                else:
                    what = f"section kind {section.kind} of block {section.block}"
                counts[what] = counts.get(what, 0) + section.size // rec.RECORD_BYTES
    if not counts:
        return None
    detail = ", ".join(f"{what}: {count} records" for what, count in sorted(counts.items())[:8])
    return CaptureIssue("DQ031", sum(counts.values()), detail)


def _empty_cores(container: Container, instructions: pa.Table, packets: pa.Table) -> list[CaptureIssue]:
    busy = {*instructions["pcore_idx"].unique().to_pylist(), *packets["pcore_idx"].unique().to_pylist()}
    empty = [subgraph.name or str(core) for core, subgraph in enumerate(container.subgraphs) if core not in busy]
    if not empty:
        return []
    return [CaptureIssue("DQ003", len(empty), ", ".join(empty[:16]))]

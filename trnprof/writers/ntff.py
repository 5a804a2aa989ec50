"""A Profile as an NTFF, container version 6, marked as trnprof's own.

What NTFF has no place for is left out: names and sources from the NEFF, collectives, kernels, transfers. Written then
read, the rest comes back the same, its clock begun at the window's start.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trnprof.profile import Core, Profile, ProfileError
from trnprof.readers import ntff_container as box
from trnprof.readers import ntff_records as rec
from trnprof.readers.ntff import PROVENANCE_MARK
from trnprof.readers.ntff_names import INSTRUCTION_RING
from trnprof.readers.ntff_tables import ENGINE_NAMES
from trnprof.writers import ntff_records as out
from trnprof.writers.ntff_program import assign_pcs, synthesise
from trnprof.writers.protobuf import field

Ints = npt.NDArray[np.int64]

VERSION = 6

_START_PS = 10**15
"""When the execution starts on the file's clock: anything that leaves room before it."""
_ARCHITECTURES = {"trn1": 1, "trn2": 2}
_RING_TYPES = {"instruction": 1, "data": 2, "input": 3, "output": 4}
_WORDS_APART = 1 << 26
"""Bytes between the device addresses of streams: 20 bits of instruction index."""


def write_ntff(profile: Profile, path: Path) -> None:
    """Write what NTFF can hold of the profile to `path`.

    Reads: instructions (pc, compiler_pc, opcode, events, DMA bytes, matmul size, wait, hashes), dma_packets, semaphores,
    throttle, and the metadata's cores, versions, NEFF and rings. Rows without ps have their ns; instructions without a
    pc get one.

    Raises: ProfileError for what no NTFF can hold: an opcode without a known byte, a row outside the window, cores of
            different windows, packets of one ring or instructions of one pc that overtake each other.
    """
    path.write_bytes(b"".join(_file(profile)))


@dataclass(frozen=True, eq=False)
class _Ring:
    engine_idx: int
    queue_idx: int
    name: str
    type: str
    descriptor_count: int | None = None


@dataclass
class _Losses:
    """Overflow flags still to be set."""

    left: int


class _Payload:
    """The bytes after the metadata."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0

    def add(self, part: bytes) -> int:
        """Append; returns where it lies."""
        self.parts.append(part)
        self.size += len(part)
        return self.size - len(part)


def _file(profile: Profile) -> list[bytes]:
    cores = profile.metadata.cores
    windows = {(core.window_start_ts, core.window_end_ts) for core in cores}
    if len(windows) != 1:
        raise ProfileError("NTFF holds one window for all its cores")
    start_ns, end_ns = windows.pop()
    payload = _Payload()
    writers = [
        _CoreWriter(profile, core, nc_idx, start_ns) for core, nc_idx in zip(cores, _nc_numbers(profile), strict=True)
    ]
    subgraphs = [writer.subgraph(payload, 1000 * (end_ns - start_ns)) for writer in writers]
    sections, last_ps = [], _START_PS + 1000 * (end_ns - start_ns)
    losses = _losses(profile)
    for writer in writers:
        for kind, block, records in writer.sections():
            if losses.get(kind):
                losses[kind].left = out.flag_losses(records, losses[kind].left, _START_PS + 1000 * (end_ns - start_ns))
            if len(records) and records["stamp"][0] < _START_PS:
                raise ProfileError("a row begins before the window: NTFF readers leave it out")
            last_ps = max(last_ps, int(records["stamp"][-1])) if len(records) else last_ps
            part = records.tobytes()
            sections.append(
                field(16, _numbers({1: kind, 3: block, 5: payload.add(part), 6: len(part), 7: writer.nc_idx}))
            )
    # The window's end in ns is rounded down: it is the last record's, if that lies within the ns.
    if last_ps - _START_PS >= 1000 * (end_ns - start_ns + 1):
        raise ProfileError("a row ends after the window: NTFF readers leave it out")
    metadata = b"".join([*_metadata(profile, subgraphs, last_ps), *sections])
    return [bytes([VERSION]), len(metadata).to_bytes(8, "little"), bytes(119), metadata, *payload.parts]


def _losses(profile: Profile) -> dict[int, _Losses]:
    """Overflow flags to set, by kind of section: instructions and packets share theirs."""
    work = _Losses(profile.metadata.dropped_record_count or 0)
    updates = _Losses(sum(issue.count or 0 for issue in profile.issues if issue.code == "DQ024"))
    return {box.INSTRUCTION_SECTION: work, box.DMA_SECTION: work, box.EVENT_SECTION: updates}


def _metadata(profile: Profile, subgraphs: list[bytes], end_ps: int) -> list[bytes]:
    known = profile.metadata
    uuid = bytes.fromhex(known.neff_uuid or "")
    parts = [field(1, _text(known.neff_path))] if known.neff_path is not None else []
    parts.append(field(2, uuid))
    graph = field(4, b"".join(field(1, subgraph) for subgraph in subgraphs))
    parts.append(field(4, graph + (field(5, uuid) if len(uuid) == box.UUID_BYTES else b"")))
    parts.append(field(5, _ARCHITECTURES.get(known.hardware or "", 0)))
    for number, name in ((8, "runtime"), (11, "driver"), (12, "collectives")):
        version = re.fullmatch(
            r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})(?: \((.*)\))?", known.versions.get(name, ""), re.DOTALL
        )
        if version:
            build = field(5, _text(version[4])) if version[4] else b""
            parts.append(field(number, _numbers({1: int(version[1]), 2: int(version[2]), 3: int(version[3])}) + build))
    if known.instance_type is not None:
        parts.append(field(9, _text(known.instance_type)))
    parts.append(field(15, _numbers({2: _START_PS, 3: max(end_ps, _START_PS + 1)})))
    parts.append(field(17, PROVENANCE_MARK + known.provenance))
    return parts


def _nc_numbers(profile: Profile) -> list[int]:
    """NeuronCore number of each core: its own, else one that its DMA engines belong to."""
    cores = profile.metadata.cores
    numbers = [core.neuroncore_idx for core in cores]
    if None in numbers:
        engines = [ring.engine_idx for ring in profile.metadata.static_dma]
        table = profile.dma_packets
        if table is not None and "engine_idx" in table.column_names and table.num_rows:
            engines.append(int(out.optional(table, "engine_idx", missing=0).min()))
        # 32 DMA engines to a pair of cores.
        numbers = [2 * (min(engines, default=0) // 32) + place for place in range(len(cores))]
    if len(set(numbers)) != len(numbers):
        raise ProfileError("two cores of one NeuronCore number: NTFF tells cores by it")
    return [number for number in numbers if number is not None]


class _CoreWriter:
    """One core's subgraph message and trace sections."""

    def __init__(self, profile: Profile, core: Core, nc_idx: int, start_ns: int) -> None:
        self.core = core
        self.nc_idx = nc_idx
        self.origin_ps = _START_PS - 1000 * start_ns
        self.architecture = _ARCHITECTURES.get(profile.metadata.hardware or "", 0)
        self.listed = [
            _Ring(ring.engine_idx, ring.queue_idx, ring.name, ring.type, ring.descriptor_count)
            for ring in profile.metadata.static_dma
            if ring.core == core.core
        ]
        self.instructions = profile.core_rows("instructions", core.core)
        self.packets = profile.core_rows("dma_packets", core.core)
        self.semaphores = profile.core_rows("semaphores", core.core)
        self.throttle = profile.core_rows("throttle", core.core)

    def subgraph(self, payload: _Payload, duration_ps: int) -> bytes:
        parts = [field(1, _text(self.core.subgraph)), field(2, self.core.neuron_device_idx or 0), field(3, self.nc_idx)]
        if self.instructions is not None:
            parts += self.streams(payload, self.instructions)
        self.rings = self.listed + self.unlisted_rings()
        parts += [field(7, _ring_message(ring)) for ring in self.rings]
        parts.append(field(14, duration_ps))
        return b"".join(parts)

    def streams(self, payload: _Payload, table: pa.Table) -> list[bytes]:
        """Stream and patch messages; leaves each row's engine and pc for the records."""
        self.engine, self.pc = out.engine_numbers(table), np.zeros(table.num_rows, np.int64)
        facts = out.instruction_facts(table)
        parts = []
        for engine in range(len(ENGINE_NAMES)):
            rows = np.flatnonzero(self.engine == engine)
            if not len(rows):
                continue
            of_engine = facts.take(rows)
            self.pc[rows] = assign_pcs(of_engine)
            words, patches = synthesise(of_engine, self.pc[rows])
            stream = words.tobytes()
            address = (self.core.core * len(ENGINE_NAMES) + engine + 1) * _WORDS_APART
            place = {1: engine, 2: address, 7: payload.add(stream), 8: len(stream)}
            parts.append(field(4, _numbers(place)))
            if "compiler_pc" in table.column_names:
                edits = [field(2, _numbers({1: edit.offset_bytes, 2: edit.count, 3: edit.kind})) for edit in patches]
                parts.append(field(5, _numbers({1: engine}) + b"".join(edits)))
        return parts

    def unlisted_rings(self) -> list[_Ring]:
        """Rings that packets name and the metadata does not list."""
        if self.packets is None:
            return []
        listed = {(ring.engine_idx, ring.queue_idx) for ring in self.listed}
        engine, queue = self.packet_places(self.packets)
        names, name_texts = out.names_of(self.packets, "queue_name")
        types, type_texts = out.names_of(self.packets, "queue_type")
        found = np.unique(np.stack([engine, queue, names, types]), axis=1).T.tolist()
        rings = []
        for engine_idx, queue_idx, name, kind in found:
            default = "instruction" if queue_idx == INSTRUCTION_RING else "unknown"
            ring_type = type_texts[kind] if kind >= 0 else default
            if (engine_idx, queue_idx) in listed or (name < 0 and ring_type == default):
                continue
            rings.append(
                _Ring(engine_idx, queue_idx, name_texts[name] if name >= 0 else _any_name(ring_type), ring_type)
            )
        return rings

    def packet_places(self, table: pa.Table) -> tuple[Ints, Ints]:
        """(DMA engine, ring) of each packet; packets that do not say are spread over the core's 16 engines."""
        if "engine_idx" in table.column_names:
            return out.optional(table, "engine_idx", missing=0), out.optional(table, "queue_idx", missing=0)
        return 16 * self.nc_idx + np.arange(table.num_rows) % 16, out.optional(table, "queue_idx", missing=0)

    def sections(self) -> list[tuple[int, int, rec.Records]]:
        """(kind, block, records) of each trace section."""
        found = []
        if self.instructions is not None:
            records = out.instruction_records(
                self.instructions, self.engine, self.pc, self.architecture, self.origin_ps
            )
            found.append((box.INSTRUCTION_SECTION, box.CORE_BLOCK, records))
        if self.semaphores is not None:
            found.append((box.EVENT_SECTION, box.CORE_BLOCK, out.semaphore_records(self.semaphores, self.origin_ps)))
        if self.packets is not None:
            engine, queue = self.packet_places(self.packets)
            engines = [ring.engine_idx for ring in self.rings] or [16 * self.nc_idx]
            key = 16 * (engine - (min(engines) & ~31)) + queue
            if np.any((key < 0) | (key >= 512) | (queue < 0) | (queue >= 16)):
                raise ProfileError("a core's packets are on DMA engines or rings that NTFF cannot tell apart")
            found.append((box.DMA_SECTION, box.DMA_BLOCK, out.dma_records(self.packets, key, self.origin_ps)))
        if self.throttle is not None:
            found.append(
                (
                    box.THROTTLE_SECTION,
                    box.CORE_BLOCK,
                    out.throttle_records(self.throttle, self.core.window_end_ts, self.origin_ps),
                )
            )
        return found


def _any_name(ring_type: str) -> str:
    return {"software_dynamic": "qGpSimdDynamic", "hardware_dynamic": "qGpSimdDynamicHW"}.get(ring_type, "")


def _ring_message(ring: _Ring) -> bytes:
    parts = [_numbers({1: ring.engine_idx, 2: ring.queue_idx, 3: _RING_TYPES.get(ring.type, 0)})]
    parts.append(field(4, _text(ring.name)))
    if ring.descriptor_count is not None:
        parts.append(field(8, _numbers({2: ring.descriptor_count})))
    return b"".join(parts)


def _numbers(values: dict[int, int]) -> bytes:
    return b"".join(field(number, value) for number, value in values.items())


def _text(value: str) -> bytes:
    return value.encode("utf-8", "backslashreplace")

"""The NTFF container: header, metadata message, and where each trace section and instruction stream lies.

Layout observed from public captures and not documented by the vendor; field numbers are the file's, names are ours.
Versions 4 (runtime 2.25, Trainium1), 5 (runtime 2.27) and 6 (runtime 2.30) are known, any other is refused by number.

    byte 0        version
    byte 1-8      length L of the metadata, little endian, unaligned
    byte 9-127    not initialised by the writer
    128..128+L    metadata, a protobuf message
    then          payload: instruction streams (version 6) and trace records, addressed by the metadata
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trnprof.errors import InputDataError, InputMissingError
from trnprof.readers.detect import NTFF_VERSIONS
from trnprof.readers.isa import Words, split_words
from trnprof.readers.protobuf import Value, WireError, fields, message, number, text

HEADER_BYTES = 128
UUID_BYTES = 16

INSTRUCTION_SECTION, EVENT_SECTION, ERROR_SECTION, EXPLICIT_SECTION, DMA_SECTION, THROTTLE_SECTION = range(6)
"""Kinds of trace section."""

CORE_BLOCK, DMA_BLOCK, COLLECTIVE_BLOCK = range(3)
"""Hardware blocks that write trace sections: the core, its DMA engines, the collective-communication cores."""

INSERT, MODIFY, DELETE = range(3)
"""Kinds of patch that the runtime applies to the compiler's stream."""

_MAX_VERSION = 31
"""A first byte above it is no version: text begins above it."""

_MAX_FIELDS = 4_000_000
"""Metadata fields read before a file is refused; a small kernel's capture has about 1,000."""

_MAX_SUBGRAPHS, _MAX_SECTIONS, _MAX_RINGS = 256, 10_000, 65_536
"""More than a capture of one NEFF can have: a NEFF runs on two cores, whose 32 DMA engines have 16 rings each."""


_MAX_NUMBER = 1023
"""Largest number of a NeuronCore, DMA engine or ring: above what any instance has, and within the tables' int16."""


@dataclass(frozen=True, eq=False)
class Patch:
    """One edit of the runtime's to an engine's stream."""

    offset_bytes: int
    """Place in the device's stream."""
    count: int
    """Instructions."""
    kind: int


@dataclass(frozen=True, eq=False)
class EngineStream:
    """What one engine executes."""

    device_address: int
    words: Words
    """Shape [n, 64]: the stream as it lies on the device, the runtime's edits included."""
    patches: tuple[Patch, ...]
    is_patch_known: bool
    """Does the capture list the runtime's edits of this stream?"""


@dataclass(frozen=True)
class Clock:
    """How a block's timestamps relate to time: t_ps = (stamp - base) * actual / step.

    Trainium2 stamps picoseconds (0, 1, 1). Trainium1 counts: its engines add the nominal picoseconds of a cycle, its
    DMA engines add one, each from its own base; `actual` is the measured cycle in the same unit (1/1024 ps).
    """

    base: int = 0
    step: int = 1
    actual: int = 1


PICOSECONDS = Clock()


@dataclass(frozen=True, eq=False)
class Clocks:
    """The clocks of one core's blocks."""

    engines: dict[int, Clock]
    """By NTFF engine number."""
    event: Clock
    dma: tuple[Clock, ...]
    """By DMA engine within the core; one for all of them where they agree."""


@dataclass(frozen=True)
class Section:
    """A run of 16-byte trace records in the payload."""

    kind: int
    block: int
    block_idx: int
    offset: int
    size: int
    nc_idx: int


@dataclass(frozen=True)
class Ring:
    """One ring of a DMA engine, as the runtime set it up."""

    engine_idx: int
    ring: int
    type: int
    """1 instructions, 2 data or weights, 3 input, 4 output, 0 not said."""
    name: str
    descriptor_count: int | None
    """Descriptors of its static blocks; None for rings filled while running."""


@dataclass(frozen=True, eq=False)
class Subgraph:
    """What the capture holds of one physical core."""

    name: str
    device_idx: int
    nc_idx: int
    streams: dict[int, EngineStream]
    """By NTFF engine number."""
    clocks: Clocks
    rings: tuple[Ring, ...]
    sections: tuple[Section, ...]
    execution_ps: int
    """Duration of the execution on this core."""


@dataclass(frozen=True, eq=False)
class Container:
    """An NTFF's metadata, and its payload as mapped memory."""

    version: int
    payload: memoryview
    subgraphs: tuple[Subgraph, ...]
    execution: tuple[int, int] | None
    """Start and end of the execution, or from the first to the last one, ps (version 6)."""
    neff_path: str | None
    uuid: str | None
    """Hex of the NEFF's uuid, or of its bytes before the first zero where the writer cut it there."""
    unclaimed_sections: tuple[Section, ...]
    """Trace sections of cores that no subgraph names."""
    architecture: int
    """1 Trainium1, 2 Trainium2, 0 not said."""
    instance_type: str | None
    instance_id: str | None
    versions: dict[str, str] = field(default_factory=dict)
    executions: tuple[tuple[int, int], ...] = ()
    """Each execution that it records, by start: more than one only where the message is repeated, which no public capture
    shows."""


def uuid_matches(recorded: str, neff_uuid: str) -> bool:
    """Is `neff_uuid` (32 hex digits) the NEFF that a capture recorded?

    Some runtimes copy the uuid as a C string, up to its first zero byte: a shorter `recorded` is that beginning.
    """
    if len(recorded) < 2 * UUID_BYTES:
        return neff_uuid.startswith(recorded + "00")
    return recorded == neff_uuid


def read_container(path: Path) -> Container:
    """The container at `path`; the payload stays mapped as long as anything refers to it.

    Raises: InputMissingError if it cannot be read; InputDataError for a version that is not known, a length beyond the
            file, metadata that is not a protobuf message, and sections or streams outside the payload.
    """
    data = _map_file(path)
    if len(data) < HEADER_BYTES:
        raise InputDataError(
            f"{len(data)} bytes are no NTFF (its header has {HEADER_BYTES}): truncated; copy or capture it again",
            path=path,
        )
    version = data[0]
    if not 0 < version <= _MAX_VERSION:
        raise InputDataError(
            f"not an NTFF: it begins with bytes {bytes(data[:8]).hex(' ')}; give the .ntff that neuron-explorer capture "
            "wrote",
            path=path,
        )
    if version not in NTFF_VERSIONS:
        raise InputDataError(
            f"file has NTFF version {version}; supported {NTFF_VERSIONS[0]}-{NTFF_VERSIONS[-1]}; upgrade trnprof, or "
            "convert it with the vendor's tool (neuron-explorer view -n model.neff -s step.ntff "
            "--output-format parquet) and give trnprof the result",
            path=path,
        )
    metadata_bytes = int.from_bytes(data[1:9], "little")
    if metadata_bytes > len(data) - HEADER_BYTES:
        raise InputDataError(
            f"the header promises {metadata_bytes} bytes of metadata, the file has {len(data) - HEADER_BYTES} after "
            "its header: truncated or damaged; copy or capture it again",
            path=path,
        )
    end = HEADER_BYTES + metadata_bytes
    try:
        return _Metadata(version, data[HEADER_BYTES:end], data[end:]).container()
    except WireError as error:
        raise InputDataError(f"damaged metadata: {error}; copy or capture it again", path=path) from None


def _map_file(path: Path) -> memoryview:
    try:
        with path.open("rb") as file:
            if file.seek(0, 2) == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except FileNotFoundError:
        raise InputMissingError("no such file; check the path", path=path) from None
    except (OSError, ValueError) as error:
        raise InputMissingError(f"cannot be read ({error})", path=path) from None


class _Metadata:
    """One walk over the metadata message, with a budget of fields for all of it."""

    def __init__(self, version: int, root: memoryview, payload: memoryview) -> None:
        self.version = version
        self.root = root
        self.payload = payload
        self.fields_left = _MAX_FIELDS
        self.payload_left = len(payload)
        self.sections_left = _MAX_SECTIONS
        self.rings_left = _MAX_RINGS

    def container(self) -> Container:
        uuid = neff_path = instance_type = instance_id = None
        executions: list[tuple[int, int]] = []
        architecture = 0
        versions: dict[str, str] = {}
        subgraph_messages: list[memoryview] = []
        sections: dict[int, list[Section]] = {}
        for key, value in self.walk(self.root):
            match key:
                case 1:
                    neff_path = text(value)
                case 2:
                    uuid = _uuid_hex(message(value)) or uuid
                case 4:
                    node_uuid, found = self.node(message(value))
                    uuid = node_uuid or uuid
                    subgraph_messages += found
                case 5:
                    architecture = number(value)
                case 8:
                    versions["runtime"] = self.version_text(message(value))
                case 9:
                    instance_type = text(value)
                case 11:
                    versions["driver"] = self.version_text(message(value))
                case 12:
                    versions["collectives"] = self.version_text(message(value))
                case 15:
                    executions += self.execution(message(value))
                case 16:
                    section = self.section(message(value))
                    sections.setdefault(section.nc_idx, []).append(section)
                case 17:
                    instance_id = text(value)
        if len(subgraph_messages) > _MAX_SUBGRAPHS:
            raise WireError(f"{len(subgraph_messages)} subgraphs, more than {_MAX_SUBGRAPHS}")
        return Container(
            version=self.version,
            payload=self.payload,
            subgraphs=tuple(self.subgraph(one, sections) for one in subgraph_messages),
            unclaimed_sections=tuple(section for group in sections.values() for section in group if section.size),
            execution=(min(executions)[0], max(end for _, end in executions)) if executions else None,
            executions=tuple(sorted(executions)),
            neff_path=neff_path,
            uuid=uuid,
            architecture=architecture,
            instance_type=instance_type,
            instance_id=instance_id,
            versions={name: found for name, found in versions.items() if found},
        )

    def walk(self, view: memoryview) -> Iterator[tuple[int, Value]]:
        """The fields of one message, counted against the budget."""
        for item in fields(view):
            self.fields_left -= 1
            if self.fields_left < 0:
                raise WireError(f"more than {_MAX_FIELDS} fields")
            yield item

    def numbers(self, view: memoryview) -> dict[int, int]:
        """The numeric fields of a flat message, the last one of each."""
        return {key: value for key, value in self.walk(view) if isinstance(value, int)}

    def version_text(self, view: memoryview) -> str:
        numeric: dict[int, int] = {}
        build = ""
        for key, value in self.walk(view):
            if key == 5:
                build = text(value)
            elif isinstance(value, int):
                numeric[key] = value
        dotted = ".".join(str(numeric.get(key, 0)) for key in (1, 2, 3))
        return f"{dotted} ({build})" if build else dotted

    def execution(self, view: memoryview) -> list[tuple[int, int]]:
        found = self.numbers(view)
        start, end = found.get(2, 0), found.get(3, 0)
        if max(start, end) >= 1 << 63:
            raise WireError(f"an execution from {start} to {end} ps, beyond 64 bits")
        return [(start, end)] if end > start else []

    def section(self, view: memoryview) -> Section:
        found = self.numbers(view)
        offset, size = found.get(5, 0), found.get(6, 0)
        self.sections_left -= 1
        if self.sections_left < 0:
            raise WireError(f"more than {_MAX_SECTIONS} trace sections")
        self.claim_payload("a trace section", offset, size)
        if size % 16:
            raise WireError(f"a trace section of {size} bytes, not a whole number of 16-byte records")
        return Section(found.get(1, 0), found.get(3, 0), found.get(4, 0), offset, size, found.get(7, 0))

    def claim_payload(self, what: str, offset: int, size: int) -> None:
        if offset > len(self.payload) or size > len(self.payload) - offset:
            raise WireError(
                f"{what} at bytes {offset}-{offset + size} of the payload, which has {len(self.payload)} (truncated?)"
            )
        # Each byte belongs to one section or stream: a file that names some twice could make a reader's work endless.
        self.payload_left -= size
        if self.payload_left < 0:
            raise WireError(f"{what} at bytes {offset}-{offset + size} of the payload overlaps another")

    def node(self, view: memoryview) -> tuple[str | None, list[memoryview]]:
        uuid, subgraphs = None, []
        for key, value in self.walk(view):
            if key == 4:
                subgraphs += [message(inner) for inner_key, inner in self.walk(message(value)) if inner_key == 1]
            elif key == 5:
                uuid = bytes(message(value)[:UUID_BYTES]).hex() or None
        return uuid, subgraphs

    def subgraph(self, view: memoryview, root_sections: dict[int, list[Section]]) -> Subgraph:
        name, device_idx, nc_idx, execution_ps = "", 0, 0, 0
        streams: dict[int, tuple[int, Words]] = {}
        patches: dict[int, list[Patch]] = {}
        rings: list[Ring] = []
        sections: list[Section] = []
        clocks = Clocks({}, PICOSECONDS, (PICOSECONDS,))
        for key, value in self.walk(view):
            match key:
                case 1:
                    name = text(value)
                case 2:
                    device_idx = number(value)
                case 3:
                    nc_idx = _small(number(value), "a NeuronCore's number")
                case 4:
                    engine, address, words = self.stream(message(value))
                    streams.setdefault(engine, (address, words))
                case 5:
                    engine, found = self.patches(message(value))
                    patches.setdefault(engine, []).extend(found)
                case 6:
                    sections.append(self.section(message(value)))
                case 7:
                    rings.append(self.ring(message(value)))
                case 10:
                    clocks = self.clocks(message(value))
                case 14:
                    execution_ps = min(number(value), 1 << 62)
        return Subgraph(
            name=name,
            device_idx=device_idx,
            nc_idx=nc_idx,
            streams={
                engine: EngineStream(address, words, tuple(patches.get(engine, ())), engine in patches)
                for engine, (address, words) in streams.items()
            },
            clocks=clocks,
            rings=tuple(rings),
            sections=(*sections, *root_sections.pop(nc_idx, ())),
            execution_ps=execution_ps,
        )

    def stream(self, view: memoryview) -> tuple[int, int, Words]:
        found: dict[int, int] = {}
        inline: memoryview | None = None
        for key, value in self.walk(view):
            if key == 3:
                inline = message(value)
            elif isinstance(value, int):
                found[key] = value
        if inline is None:
            offset, size = found.get(7, 0), found.get(8, 0)
            self.claim_payload("an instruction stream", offset, size)
            inline = self.payload[offset : offset + size]
        try:
            words = split_words(inline)
        except ValueError as error:
            raise WireError(f"an instruction stream of {error}") from None
        return found.get(1, 0), found.get(2, 0), words

    def patches(self, view: memoryview) -> tuple[int, list[Patch]]:
        engine, found = 0, []
        for key, value in self.walk(view):
            if key == 1:
                engine = number(value)
            elif key == 2:
                numbers = self.numbers(message(value))
                found.append(Patch(numbers.get(1, 0), numbers.get(2, 0), numbers.get(3, INSERT)))
        return engine, found

    def ring(self, view: memoryview) -> Ring:
        self.rings_left -= 1
        if self.rings_left < 0:
            raise WireError(f"more than {_MAX_RINGS} DMA rings")
        found: dict[int, int] = {}
        name, descriptors = "", None
        for key, value in self.walk(view):
            if key == 4:
                name = text(value)
            elif key == 8:
                block = self.numbers(message(value))
                descriptors = (descriptors or 0) + block.get(2, 0)
            elif isinstance(value, int):
                found[key] = value
        engine_idx = _small(found.get(1, 0), "a DMA engine's number")
        return Ring(engine_idx, _small(found.get(2, 0), "a ring's number"), found.get(3, 0), name, descriptors)

    def clocks(self, view: memoryview) -> Clocks:
        # Fields 1-6 are single clocks, in this order; 8 repeats once for each DMA engine of the core.
        engine_of_field = {1: 0, 2: 1, 3: 3, 4: 2, 5: 4}
        engines: dict[int, Clock] = {}
        event, dma = PICOSECONDS, []
        for key, value in self.walk(view):
            if key > 8 or key == 7 or isinstance(value, int):
                continue
            found = self.numbers(value)
            clock = Clock(found.get(1, 0), found.get(2, 1), found.get(3, 1))
            if not (0 < clock.step < 1 << 31 and 0 < clock.actual < 1 << 31):
                raise WireError(f"a clock of {clock.actual}/{clock.step} units per step")
            if key == 8:
                dma.append(clock)
            elif key == 6:
                event = clock
            else:
                engines[engine_of_field[key]] = clock
        if all(clock == dma[0] for clock in dma[1:]):
            dma = dma[:1]
        return Clocks(engines, event, tuple(dma) or (PICOSECONDS,))


def _small(value: int, what: str) -> int:
    if value > _MAX_NUMBER:
        raise WireError(f"{what} is {value}, above {_MAX_NUMBER}")
    return value


def _uuid_hex(view: memoryview) -> str | None:
    # The writer copies a C string: up to the first zero byte, or past the 16 bytes into whatever follows.
    return bytes(view[:UUID_BYTES]).hex() or None


def compiler_pcs(stream: EngineStream) -> np.ndarray:
    """For each instruction on the device its index in the NEFF's stream, -1 where the runtime put it in; int64 [n].

    INSERT at a device offset puts `count` foreign instructions there; DELETE skips `count` of the NEFF's before the
    instruction at the offset; MODIFY rewrites in place.
    """
    length = len(stream.words)
    edge = np.zeros(length + 1, np.int64)
    skip = np.zeros(length + 1, np.int64)
    for patch in stream.patches:
        at = min(patch.offset_bytes // 64, length)
        count = min(patch.count, 1 << 32)
        if patch.kind == INSERT:
            edge[at] += 1
            edge[min(at + count, length)] -= 1
        elif patch.kind == DELETE:
            skip[at] += count
    inserted = np.cumsum(edge[:length]) > 0
    index = np.cumsum(~inserted) - 1 + np.cumsum(skip[:length])
    # pc columns are int32: what a damaged patch list sends beyond it is no index.
    return np.where(inserted | (index > np.iinfo(np.int32).max), -1, index)

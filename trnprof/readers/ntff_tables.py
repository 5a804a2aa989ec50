"""The tables of one core, from its trace sections and instruction streams."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trnprof.profile import make_table
from trnprof.readers import isa, ntff_names
from trnprof.readers import ntff_container as box
from trnprof.readers import ntff_records as rec
from trnprof.readers.ntff_columns import coded, column
from trnprof.readers.ntff_program import OPCODE_NAMES, Program

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Index = npt.NDArray[np.uint32]
AnyClock = box.Clock | tuple[box.Clock, ...]

ENGINE_NAMES = ("tensor", "scalar", "gpsimd", "vector", "sync")
"""The profile's name of each NTFF engine (PE, ACT, POOL, DVE, SP)."""

WAIT_TICK_NS = {1: (5, 7), 2: (5, 6)}
"""Nanoseconds of a tick of the wait counter, as a fraction, by architecture: 1.4 GHz on Trainium1 (not confirmed by a
vendor's profile), 1.2 GHz on Trainium2."""

_UPDATE_SOURCES = (*ENGINE_NAMES, "dma", "axi")
_DMA_SOURCE, _AXI_SOURCE = 5, 6
_OPERATIONS = ("unknown", *isa.UPDATE_OPERATIONS.values())
_OPERATION_OF_MODE = np.zeros(32, np.int32)
_OPERATION_OF_MODE[list(isa.UPDATE_OPERATIONS)] = np.arange(1, len(_OPERATIONS))

_KEYS = 512
"""DMA record keys: 32 engines of a pair of cores, 16 rings each."""

_THROTTLE_KINDS = tuple(f"activity_{kind}" for kind in range(256))


@dataclass
class Tally:
    """What was left out of the tables, or was odd in them, over all cores."""

    unpaired_count: int = 0
    backward_count: int = 0
    """Pairs whose end is before their start."""
    lost_work_count: int = 0
    """Overflow flags on instruction and DMA records."""
    lost_update_count: int = 0
    """Overflow flags on semaphore updates."""
    unlocated_count: int = 0
    """Instructions at an address that no stream covers."""
    unknown_opcodes: Counter[str] = field(default_factory=Counter)
    dynamic_packet_count: int = 0


class CoreReader:
    """Reads the tables of one core, within the window; `tally` collects what they leave out.

    start_ps, duration_ps: the window on the capture's clock; trace_end_ps: when this core's trace stopped.
    """

    def __init__(
        self, container: box.Container, core: int, *, start_ps: int, duration_ps: int, trace_end_ps: int, tally: Tally
    ) -> None:
        self.architecture = container.architecture
        self.payload = container.payload
        self.subgraph = container.subgraphs[core]
        self.core = core
        self.start_ps = start_ps
        self.duration_ps = duration_ps
        self.trace_end_ps = trace_end_ps
        self.tally = tally

    def instructions(self) -> pa.Table:
        """Sorted by start; one row for each instruction that lies in the window whole."""
        records = self._records(box.INSTRUCTION_SECTION, box.CORE_BLOCK)
        types = rec.record_types(records)
        program = Program(self.subgraph.streams, len(ENGINE_NAMES))
        lost = rec.overflow_rows(records)
        found: list[_Spans] = []
        places, engines = [], []
        for engine in range(len(ENGINE_NAMES)):
            clock = self.subgraph.clocks.engines.get(engine, box.PICOSECONDS)
            self.tally.lost_work_count += self._count_before(
                self.duration_ps, records, clock, lost[types[lost] >> 2 == engine + 1]
            )
            start, end = rec.engine_rows(types, engine)
            length, address = program.lengths[engine], program.addresses[engine]
            start_index = rec.stream_index(records, start, address)
            pairs = rec.pair_fifo(start, end, *_narrow(start_index, rec.stream_index(records, end, address), length))
            self._count_unpaired(records, clock, pairs)
            spans = self._whole(self._spans(records, pairs, clock))
            index = rec.stream_index(records, spans.start, address)
            places.append(np.where(index < length, index + np.uint32(program.bases[engine]), program.unlocated))
            engines.append(np.full(len(index), engine, np.int32))
            found.append(spans)
        spans, order = _in_order(found)
        place = np.concatenate(places)[order]
        self._count_opcodes(program, place)
        result = records["payload"][spans.end]
        return make_table(
            "instructions",
            {
                **_nanoseconds(spans),
                "pcore_idx": column(np.full(len(order), self.core, np.int16)),
                "engine": coded(np.concatenate(engines)[order], ENGINE_NAMES),
                "evt_wait_time_ns": column(self._wait_ns(records["payload"][spans.start])),
                "crc_in": column((result & np.uint32(0xFFFF)).astype(np.int32)),
                "crc_out": column((result >> np.uint32(16)).astype(np.int32)),
                **program.columns(place),
            },
        )

    def dma_packets(self) -> pa.Table:
        """Sorted by start; one row for each packet that lies in the window whole."""
        records = self._records(box.DMA_SECTION, box.DMA_BLOCK)
        lost = rec.overflow_rows(records)
        self.tally.lost_work_count += self._count_before(self.duration_ps, records, self.subgraph.clocks.dma, lost)
        queues = _Queues(self.subgraph)
        spans = self._packet_spans(records, queues)
        key = rec.dma_keys(records, spans.start)
        columns = {
            **_nanoseconds(spans),
            "pcore_idx": column(np.full(len(key), self.core, np.int16)),
            "transfer_bytes": column(records["key"][spans.end].astype(np.int64)),
            "crc": column((records["payload"][spans.end] >> np.uint32(16)).astype(np.int32)),
        }
        del spans
        queue_type = queues.type_of_key[key]
        self.tally.dynamic_packet_count += queues.count_dynamic(queue_type)
        return make_table(
            "dma_packets",
            {
                **columns,
                "engine_idx": column((key >> np.uint16(4)).astype(np.int16) + np.int16(queues.first_engine)),
                "queue_idx": column((key & np.uint16(15)).astype(np.int16)),
                "queue_type": coded(queue_type, queues.types),
                "queue_name": coded(queues.name_of_key[key], queues.names),
            },
        )

    def _packet_spans(self, records: rec.Records, queues: _Queues) -> _Spans:
        clock = self.subgraph.clocks.dma
        start, end = rec.dma_rows(records)
        pairs = rec.pair_fifo(start, end, rec.dma_keys(records, start), rec.dma_keys(records, end))
        del start, end
        self._count_unpaired(records, clock, pairs)
        spans = self._spans(records, pairs, clock)
        del pairs
        cut = self._cut_fetches(records, spans, queues)
        spans = self._whole(spans)
        if np.any(spans.start_ps[1:] < spans.start_ps[:-1]):
            spans, _ = _in_order([spans])
        return spans.take(~cut[rec.dma_keys(records, spans.start)]) if cut.any() else spans

    def semaphores(self) -> pa.Table:
        """Sorted by time; one row for each semaphore update in the window. Updates of events are left out."""
        records = self._records(box.EVENT_SECTION, box.CORE_BLOCK)
        clock = self.subgraph.clocks.event
        is_semaphore = records["key"] >> np.uint16(8) == rec.SEMAPHORE_BANK
        rows = np.flatnonzero(is_semaphore).astype(np.int32)
        lost = rec.overflow_rows(records)
        lost = lost[is_semaphore[lost]]
        self.tally.lost_update_count += self._count_before(self.duration_ps, records, clock, lost)
        time_ps = rec.times_ps(records, rows, clock, self.start_ps)
        keep = (time_ps >= 0) & (time_ps <= self.duration_ps)
        rows, time_ps = rows[keep], time_ps[keep]
        order = np.argsort(time_ps, kind="stable")
        rows, time_ps = rows[order], time_ps[order]
        updates = records[rows]
        index = (updates["key"] & np.uint16(0xFF)).astype(np.int32)
        queues = ntff_names.queue_of_semaphore(self.subgraph)
        return make_table(
            "semaphores",
            {
                "timestamp": column(time_ps // 1000),
                "pcore_idx": column(np.full(len(rows), self.core, np.int16)),
                "id": coded(index, ntff_names.semaphore_labels(self.subgraph, queues)),
                "value": column(updates["payload"].astype(np.int64)),
                "timestamp_ps": column(time_ps),
                "semaphore_idx": column(index.astype(np.int16)),
                "update_source": coded(_update_sources(updates, index, queues), _UPDATE_SOURCES),
                "update_operation_type": coded(_OPERATION_OF_MODE[updates["op"] & 0x1F], _OPERATIONS),
            },
        )

    def throttle(self) -> pa.Table:
        """Sorted by time; a level holds until the next record, the last one until the window ends."""
        records = self._records(box.THROTTLE_SECTION, box.CORE_BLOCK)
        rows = np.flatnonzero(rec.record_types(records) == rec.THROTTLE_TYPE).astype(np.int32)
        time_ps = rec.times_ps(records, rows, self.subgraph.clocks.event, self.start_ps)
        order = np.argsort(time_ps, kind="stable")
        rows, time_ps = rows[order], time_ps[order]
        # A level may have been set before the window: it counts from the window's start then. The last one holds until
        # the window ends, in whole ns as the vendor has it.
        last_ps = self.duration_ps // 1000 * 1000
        until_ps = np.minimum(np.append(time_ps[1:], last_ps)[: len(rows)], last_ps)
        keep = (time_ps <= self.duration_ps) & ((time_ps >= 0) | (until_ps > 0))
        time_ps = np.maximum(time_ps, 0)
        until_ps = np.maximum(until_ps, time_ps)
        rows, time_ps, until_ps = rows[keep], time_ps[keep], until_ps[keep]
        payload = records["payload"][rows]
        kinds = (payload >> np.uint32(8) & np.uint32(0xFF)).astype(np.int32)
        return make_table(
            "throttle",
            {
                "timestamp": column(time_ps // 1000),
                "duration": column((until_ps - time_ps) // 1000),
                "k": column((payload & np.uint32(0xFF)).astype(np.int32)),
                "n": column(records["op"][rows].astype(np.int32)),
                "type": coded(kinds, _THROTTLE_KINDS),
                "pcore_idx": column(np.full(len(rows), self.core, np.int16)),
            },
        )

    def _wait_ns(self, payload: npt.NDArray[np.uint32]) -> Ints:
        nanoseconds, ticks = WAIT_TICK_NS.get(self.architecture, WAIT_TICK_NS[2])
        return (payload >> np.uint32(16)).astype(np.int64) * nanoseconds // ticks

    def _count_opcodes(self, program: Program, place: npt.NDArray[np.integer]) -> None:
        counts = np.bincount(program.opcode[place], minlength=len(OPCODE_NAMES))
        self.tally.unlocated_count += int(counts[-1])
        for opcode in np.flatnonzero(counts[:-1]).tolist():
            if opcode not in isa.CONFIRMED_OPCODES:
                self.tally.unknown_opcodes[isa.OPCODE_NAMES[opcode]] += int(counts[opcode])

    def _records(self, kind: int, block: int) -> rec.Records:
        """The core's records of one kind; no copy where they are one section."""
        found = [
            rec.view_records(self.payload[one.offset : one.offset + one.size])
            for one in self.subgraph.sections
            if one.kind == kind and one.block == block and one.size
        ]
        return found[0] if len(found) == 1 else np.concatenate([np.zeros(0, rec.RECORD), *found])

    def _spans(self, records: rec.Records, pairs: rec.Pairs, clock: AnyClock) -> _Spans:
        return _Spans(
            pairs.start,
            pairs.end,
            rec.times_ps(records, pairs.start, clock, self.start_ps),
            rec.times_ps(records, pairs.end, clock, self.start_ps),
        )

    def _whole(self, spans: _Spans) -> _Spans:
        """The spans that lie in the window whole; those that end before they start are counted and left out."""
        inside = (spans.start_ps >= 0) & (spans.end_ps <= self.duration_ps)
        backward = spans.end_ps < spans.start_ps
        self.tally.backward_count += int(np.count_nonzero(inside & backward))
        return spans.take(inside & ~backward)

    def _cut_fetches(self, records: rec.Records, spans: _Spans, queues: _Queues) -> Mask:
        """Keys of instruction rings whose transfer was under way when the window began; shape [512].

        The vendor's profiler leaves out the rest of such a transfer: its packets agree with ours only without it.
        """
        cut = np.zeros(_KEYS, np.bool_)
        across = spans.start[(spans.start_ps < 0) & (spans.end_ps >= 0)]
        cut[rec.dma_keys(records, across)] = True
        return cut & (queues.type_of_key == queues.types.index("instruction"))

    def _count_unpaired(self, records: rec.Records, clock: AnyClock, pairs: rec.Pairs) -> None:
        # What the end of the trace cut off is no loss.
        end_ps = self.trace_end_ps - self.start_ps
        for rows in (pairs.orphan_start, pairs.orphan_end):
            self.tally.unpaired_count += self._count_before(end_ps, records, clock, rows)

    def _count_before(self, end_ps: int, records: rec.Records, clock: AnyClock, rows: rec.Rows) -> int:
        """How many of the rows are of a time in [0, end_ps)."""
        if not len(rows):
            return 0
        time_ps = rec.times_ps(records, rows, clock, self.start_ps)
        return int(np.count_nonzero((time_ps >= 0) & (time_ps < end_ps)))


@dataclass(frozen=True, eq=False)
class _Spans:
    """Paired records and their times."""

    start: rec.Rows
    end: rec.Rows
    start_ps: Ints
    end_ps: Ints

    def take(self, which: Mask | Ints) -> _Spans:
        """The spans at these places; no copy where that is all of them."""
        if which.dtype == np.bool_ and which.all():
            return self
        return _Spans(self.start[which], self.end[which], self.start_ps[which], self.end_ps[which])


def _in_order(parts: list[_Spans]) -> tuple[_Spans, Ints]:
    """(all spans by start, their order among the parts laid end to end)."""
    columns = zip(*((part.start, part.end, part.start_ps, part.end_ps) for part in parts), strict=True)
    spans = _Spans(*(np.concatenate(column) if len(parts) > 1 else column[0] for column in columns))
    order = np.argsort(spans.start_ps, kind="stable")
    return spans.take(order), order


class _Queues:
    """Type and name of each ring of a core's DMA engines, by record key: 16 * engine within the pair + ring."""

    def __init__(self, subgraph: box.Subgraph) -> None:
        self.first_engine = ntff_names.first_dma_engine(subgraph)
        self.types = ["unknown", "instruction"]
        self.names: list[str] = []
        self.type_of_key = np.zeros(_KEYS, np.int32)
        self.type_of_key[ntff_names.INSTRUCTION_RING :: 16] = 1
        self.name_of_key = np.full(_KEYS, -1, np.int32)
        # Of rings listed twice the last one counts.
        rings = {
            16 * (ring.engine_idx - self.first_engine) + ring.ring: ring for ring in subgraph.rings if ring.ring < 16
        }
        for key, ring in rings.items():
            if not 0 <= key < _KEYS:
                continue
            self.type_of_key[key] = _position(self.types, ntff_names.queue_type(ring))
            if ring.name:
                self.name_of_key[key] = _position(self.names, ntff_names.queue_name(ring.name))

    def count_dynamic(self, queue_type: npt.NDArray[np.int32]) -> int:
        """Packets of dynamic DMAs among these."""
        counts = np.bincount(queue_type, minlength=len(self.types))
        return sum(int(counts[code]) for code, name in enumerate(self.types) if name.endswith("_dynamic"))


def _position(names: list[str], name: str) -> int:
    """Index of the name, which is appended if it is new."""
    if name not in names:
        names.append(name)
    return names.index(name)


def _narrow(start: Index, end: Index, length: int) -> tuple[rec.Keys, rec.Keys]:
    """The indices as 16-bit keys, which numpy sorts by radix, where the stream is short enough.

    Indices beyond the stream, of which there are few, keep apart from each other.
    """
    beyond = np.unique(np.concatenate((start[start >= length], end[end >= length])))
    if length + len(beyond) > 1 << 16:
        return start, end

    def short(index: Index) -> npt.NDArray[np.uint16]:
        return np.where(index < length, index, length + np.searchsorted(beyond, index)).astype(np.uint16)

    return short(start), short(end)


def _update_sources(
    updates: rec.Records, index: npt.NDArray[np.int32], queues: dict[int, str]
) -> npt.NDArray[np.int32]:
    """Code in _UPDATE_SOURCES of each update: the engine that wrote the record, or what came over AXI."""
    types = updates["header"] & np.uint8(0x1F)
    engine = (types.astype(np.int32) >> 2) - 1
    is_queue = np.zeros(256, np.bool_)
    is_queue[list(queues)] = True
    source = np.where(is_queue[index], _DMA_SOURCE, _AXI_SOURCE)
    is_engine = (types != rec.HOST_TYPE) & (engine >= 0) & (engine < len(ENGINE_NAMES))
    return np.where(is_engine, engine, source).astype(np.int32)


def _nanoseconds(spans: _Spans) -> dict[str, pa.Array]:
    """Start and end in ns and ps: start and duration rounded down each, as the vendor does."""
    start_ps, end_ps = spans.start_ps, spans.end_ps
    start_ns = start_ps // 1000
    return {
        "start_ts": column(start_ns),
        "end_ts": column(start_ns + (end_ps - start_ps) // 1000),
        "start_ps": column(start_ps),
        "end_ps": column(end_ps),
    }

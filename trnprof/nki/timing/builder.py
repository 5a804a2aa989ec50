"""A MachineProgram while it grows: operations as columns, each with what it must wait for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trnprof.errors import InputDataError
from trnprof.hardware.dma_model import DmaModel, load_dma_model
from trnprof.hardware.instruction_costs import Case, load_instruction_costs
from trnprof.nki.counting import PARTITIONS_PER_ENGINE, DmaCount, count_dma
from trnprof.nki.recording import Access, ComputeRecord, DmaRecord, Event, Memory, ProgramTrace, Recording, SyncRecord
from trnprof.nki.timing.formulas import CostModel
from trnprof.nki.timing.operations import Machine, machine_of
from trnprof.nki.timing.program import (
    DMA_ENGINE_COUNT,
    MODES,
    RESULT,
    VIRTUAL,
    DmaTable,
    HbmTensor,
    KernelSpan,
    MachineProgram,
    RepeatedLoop,
)
from trnprof.profile import ENGINES


@dataclass
class _Columns:
    """One list a column; an operation is one place in each."""

    kind: list[int] = field(default_factory=list)
    core: list[int] = field(default_factory=list)
    engine: list[int] = field(default_factory=list)
    work: list[int] = field(default_factory=list)
    opcode: list[int] = field(default_factory=list)
    source: list[int] = field(default_factory=list)
    dma: list[int] = field(default_factory=list)
    hbm_read_bytes: list[int] = field(default_factory=list)
    hbm_write_bytes: list[int] = field(default_factory=list)
    sbuf_bytes: list[int] = field(default_factory=list)
    macs: list[int] = field(default_factory=list)
    is_transpose: list[bool] = field(default_factory=list)
    table: list[int] = field(default_factory=list)
    nest: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    partner: list[int] = field(default_factory=list)


class _Names:
    """Distinct values in the order in which they came."""

    def __init__(self) -> None:
        self.values: list = []
        self._places: dict = {}

    def place(self, value: object) -> int:
        found = self._places.get(value)
        if found is None:
            found = self._places[value] = len(self.values)
            self.values.append(value)
        return found


class ProgramBuilder:
    """The program while it grows."""

    def __init__(self, recording: Recording, capacity: dict[Memory, int]) -> None:
        self.recording = recording
        self.core_count = max(recording.lnc, 1)
        self.capacity = capacity
        self.costs = CostModel(load_instruction_costs(recording.target), Case.MID)
        self.known = frozenset(self.costs.costs.instructions)
        self.law = load_dma_model(recording.target)
        self._machines: dict[tuple[object, ...], Machine] = {}
        self._counts: dict[tuple[object, ...], tuple[DmaCount, float, int]] = {}
        self.columns = _Columns()
        self.dependencies: list[dict[int, int]] = []
        self.dmas: list[tuple[DmaCount, float, int, bool]] = []
        self.works, self.opcodes, self.sources, self.functions, self.tables = (_Names() for _ in range(5))
        self.source_functions: dict[int, str] = {}
        self.kernels: list[KernelSpan] = []
        self.loops: dict[RepeatedLoop, None] = {}
        self.tensors: dict[tuple[str, str], HbmTensor] = {}
        self.unknown: dict[str, int] = {}
        self.notes: dict[str, None] = {}
        self.written_count = 0
        self.busy_ps = [dict.fromkeys(ENGINES, 0) for _ in range(self.core_count)]
        self.fences = [-1] * self.core_count
        self.nest = 0
        self.times = 1
        """How often the event at hand runs."""
        self._nest_of: object = None
        self.last_ids: list[tuple[str, tuple[int, ...]] | None] = [None] * self.core_count
        self.pending_sync: list[tuple[ProgramTrace, list[tuple[SyncRecord, int]]]] = []

    # Programs

    def begin_program(self, program: ProgramTrace, core: int) -> int:
        """What follows is one program's, on one core; returns the number of its first operation."""
        self._fence_between_launches(program, core)
        return len(self.columns.kind)

    def end_program(self, program: ProgramTrace, core: int, first: int, sync: list[tuple[SyncRecord, int]]) -> None:
        """The program is whole. sync: its barriers and exchanges in order, with their operations.

        Raises: InputDataError if the programs of a pair do not meet at the same ones.
        """
        self.kernels.append(KernelSpan(program.kernel, core, first, len(self.columns.kind), program.stands_for))
        self.pending_sync.append((program, sync))
        if len(self.pending_sync) == self.core_count:
            if self.core_count == 2:
                self._pair(*self.pending_sync)
            self.pending_sync.clear()

    def _fence_between_launches(self, program: ProgramTrace, core: int) -> None:
        """A kernel that is launched after another begins when that one has ended; a grid's programs follow freely."""
        last, now = self.last_ids[core], (program.kernel, program.program_id)
        self.last_ids[core] = now
        if last is None or (last[0] == now[0] and last[1] < now[1]):
            return
        before = [number for number in range(len(self.columns.kind)) if self.columns.core[number] == core]
        self.fences[core] = self.add(VIRTUAL, core, depends=dict.fromkeys(before, RESULT))

    def _pair(self, left: tuple[ProgramTrace, list], right: tuple[ProgramTrace, list]) -> None:
        for position in range(max(len(left[1]), len(right[1]))):
            mine_of = left[1][position] if position < len(left[1]) else None
            theirs_of = right[1][position] if position < len(right[1]) else None
            if mine_of is None or theirs_of is None:
                alone = mine_of or theirs_of
                assert alone is not None
                missing = 0 if mine_of is None else 1
                raise InputDataError(
                    f"line {alone[0].site.line}: program {1 - missing} waits at this {alone[0].op} for program {missing}, "
                    "which never gets there; give both programs of the pair the same barriers and exchanges",
                    path=alone[0].site.file,
                )
            (record, mine), (other, theirs) = mine_of, theirs_of
            if record.op != other.op:
                raise InputDataError(
                    f"line {record.site.line}: program 0 is at {record.op} where program 1 is at {other.op} (line "
                    f"{other.site.line}); both must come to the same barriers and exchanges in one order",
                    path=record.site.file,
                )
            self.columns.partner[mine], self.columns.partner[theirs] = theirs, mine

    # Operations

    def add(self, kind: int, core: int, *, engine: int = -1, depends: dict[int, int], **values: int) -> int:
        """A new operation; returns its number."""
        number = len(self.columns.kind)
        if self.fences[core] >= 0 and not depends:
            depends = {self.fences[core]: RESULT}
        columns = self.columns
        columns.kind.append(kind)
        columns.core.append(core)
        columns.engine.append(engine)
        columns.work.append(values.get("work", -1))
        columns.opcode.append(values.get("opcode", -1))
        columns.source.append(values.get("source", -1))
        columns.dma.append(values.get("dma", -1))
        columns.hbm_read_bytes.append(values.get("hbm_read_bytes", 0))
        columns.hbm_write_bytes.append(values.get("hbm_write_bytes", 0))
        columns.sbuf_bytes.append(values.get("sbuf_bytes", 0))
        columns.macs.append(values.get("macs", 0))
        columns.is_transpose.append(bool(values.get("is_transpose", 0)))
        columns.table.append(values.get("table", -1))
        columns.nest.append(self.nest)
        columns.times.append(self.times)
        columns.partner.append(-1)
        self.dependencies.append(depends)
        return number

    def enter_nest(self, place: object) -> None:
        """What follows stands in the outermost loop `place` (None: in no loop)."""
        if place != self._nest_of:
            self._nest_of = place
            self.nest += 1

    def source(self, event: Event) -> int:
        """The number of an event's call site."""
        frames = event.site.frames
        place = self.sources.place(",".join(f"{frame.file}:{frame.line}" for frame in frames))
        if place not in self.source_functions:
            self.source_functions[place] = ",".join(frame.function for frame in frames)
        return place

    def machine(self, record: ComputeRecord) -> Machine:
        """The record's machine instruction; those of one call and geometry, which loops make by the thousand, only once."""
        sides = (*map(_geometry, record.reads), None, *map(_geometry, record.writes))
        key: tuple[object, ...] = (record.op, record.engine, record.engines, record.attributes, *sides)
        found = self._machines.get(key)
        if found is None:
            found = self._machines[key] = machine_of(record, self.known)
        return found

    def count(self, record: DmaRecord) -> tuple[DmaCount, float, int]:
        """(descriptors and packets, factor on their time, first DMA engine in use) of a DMA; equal ones are counted once."""
        accesses = (*record.reads, record.write)
        kind = (record.assumed_mode, record.dge_mode, record.transpose, record.reduce_op, record.cast_before)
        sides = (*map(_geometry, accesses), *map(_first_partition, accesses))
        key: tuple[object, ...] = (*kind, record.op == "dma_transpose", *sides)
        found = self._counts.get(key)
        if found is None or any(access.offsets is not None for access in accesses):
            count = count_dma(record, target=self.recording.target)
            chip = next((access for access in accesses if access.memory is not Memory.HBM), None)
            first = 0 if chip is None else _first_partition(chip) // PARTITIONS_PER_ENGINE % DMA_ENGINE_COUNT
            found = self._counts[key] = (count, _slowness(record, count, self.law), first)
        return found

    def engine_of(self, machine: Machine, core: int) -> str:
        """The engine that an instruction goes to; of several that may, the one with less to do so far."""
        if not machine.is_balanced:
            return machine.engines[0]
        busy = self.busy_ps[core]
        return min(machine.engines, key=lambda engine: busy[engine] + self.costs.cost(engine, machine.work).issue_ps)

    def program(self) -> MachineProgram:
        """Everything so far, as arrays."""
        columns = self.columns
        counts = np.array([len(found) for found in self.dependencies], np.int64)
        first = np.concatenate(([0], np.cumsum(counts)))
        dependency = np.fromiter((number for found in self.dependencies for number in found), np.int32, first[-1])
        kinds = np.fromiter((kind for found in self.dependencies for kind in found.values()), np.int8, first[-1])
        types: dict[str, type] = dict.fromkeys(("kind", "core", "engine"), np.int8)
        types |= dict.fromkeys(("opcode", "table"), np.int16) | {"is_transpose": np.bool_}
        types |= dict.fromkeys(("times", "hbm_read_bytes", "hbm_write_bytes", "sbuf_bytes", "macs"), np.int64)
        arrays: dict[str, Any] = {
            name: np.array(values, types.get(name, np.int32)) for name, values in vars(columns).items()
        }
        return MachineProgram(
            generation=self.recording.target,
            core_count=self.core_count,
            works=tuple(self.works.values),
            opcodes=tuple(self.opcodes.values),
            sources=tuple(self.sources.values),
            functions=tuple(self.source_functions[place] for place in range(len(self.sources.values))),
            tables=tuple(self.tables.values),
            dmas=_dma_table(self.dmas),
            dependency_first=first,
            dependency=dependency,
            dependency_kind=kinds,
            kernels=tuple(self.kernels),
            loops=tuple(self.loops),
            tensors=tuple(self.tensors.values()),
            unknown=dict(sorted(self.unknown.items())),
            notes=tuple(self.notes),
            written_count=self.written_count,
            **arrays,
        )


def _geometry(access: Access) -> tuple[object, ...]:
    """What counts and costs depend on; not where the access lies."""
    return (
        access.memory,
        access.dtype,
        access.pattern,
        access.partition_elements,
        access.indirection,
        access.indirect_axis,
        None if access.offsets is None else len(access.offsets),
    )


def _first_partition(access: Access) -> int:
    return access.offset // access.partition_elements if access.partition_elements else 0


def _slowness(record: DmaRecord, count: DmaCount, law: DmaModel) -> float:
    """Factor on the packets' time: casts, transposes and reductions, as in dma_model.toml."""
    factor = law["cast_factor"] if count.cast else 1.0
    if count.transpose:
        from_hbm = any(access.memory is Memory.HBM for access in (*record.reads, record.write))
        factor /= law["transpose_hbm_efficiency" if from_hbm else "transpose_sbuf_efficiency"]
    if record.reduce_op is not None:
        factor /= law["compute_efficiency"]
    return factor


def _dma_table(dmas: list[tuple[DmaCount, float, int, bool]]) -> DmaTable:
    packets = np.zeros((len(dmas), DMA_ENGINE_COUNT), np.int64)
    sizes = np.zeros((len(dmas), DMA_ENGINE_COUNT), np.int64)
    for row, (count, _, first, _) in enumerate(dmas):
        used = len(count.engine_packets)
        engines = slice(None) if used == DMA_ENGINE_COUNT else (first + np.arange(used)) % DMA_ENGINE_COUNT
        packets[row, engines] = count.engine_packets
        sizes[row, engines] = count.engine_bytes
    counts = [count for count, *_ in dmas]
    return DmaTable(
        mode=np.array([MODES.get(count.mode, 0) for count in counts], np.int64),
        is_assumed=np.array([count.mode_is_assumed for count in counts], np.bool_),
        packets=packets,
        engine_bytes=sizes,
        hbm_bytes=np.array([count.hbm_read_bytes + count.hbm_write_bytes for count in counts], np.int64),
        slowness=np.array([slowness for _, slowness, _, _ in dmas], np.float64),
        semaphore_packets=np.array([count.semaphore_packet_count for count in counts], np.int64),
        is_dynamic=np.array([is_dynamic for _, _, _, is_dynamic in dmas], np.bool_),
    )

"""Recording -> MachineProgram: operations as machine instructions, and what each must wait for."""

from __future__ import annotations

from trnprof.nki.merging import merged_groups
from trnprof.nki.recording import (
    Access,
    Allocation,
    ComputeRecord,
    DmaRecord,
    Event,
    Indirection,
    Memory,
    ProgramTrace,
    Recording,
    SyncRecord,
    Unmodelled,
)
from trnprof.nki.timing.builder import ProgramBuilder
from trnprof.nki.timing.copies import joined_copies
from trnprof.nki.timing.dependencies import MemoryReuse, StorageHistory, Tenant
from trnprof.nki.timing.operations import per_partition
from trnprof.nki.timing.program import (
    BARRIER,
    COLLECTIVE,
    COMPUTE,
    DMA,
    EXCHANGE,
    ORDER,
    RESULT,
    VIRTUAL,
    HbmTensor,
    MachineProgram,
    RepeatedLoop,
)
from trnprof.nki.timing.regions import Region, region_of
from trnprof.nki.timing.simplification import accesses_of, simplified
from trnprof.nki.timing.work import Work
from trnprof.profile import ENGINES

_SYNC_KINDS = {"barrier": BARRIER, "sendrecv": EXCHANGE, "collective": COLLECTIVE}
_FEW = 3
"""Operations that an operation waits for one by one; more become one virtual operation that others may share."""
_PLACED_PITCH = 1 << 20
"""Bytes from one partition to the next in the common space of storages that the kernel places itself."""
_QUEUE_ENGINES = {"sync": "sync", "scalar": "scalar", "activation": "scalar", "gpsimd": "gpsimd", "pool": "gpsimd"}


def lower(recording: Recording, *, sbuf_bytes_per_partition: int, psum_bytes_per_partition: int) -> MachineProgram:
    """The machine instructions of a recording, in program order.

    What the compiler leaves out is left out (simplification.py); DMAs and copies out of PSUM that it joins over neighbouring
    iterations are joined (merging.py, copies.py).
    On-chip memory is used again in program order, the longest free first. Programs of a pair go to two cores; other
    programs follow each other on one.

    Raises: InputDataError if the programs of a pair do not meet at the same barriers and exchanges.
    """
    builder = ProgramBuilder(recording, {Memory.SBUF: sbuf_bytes_per_partition, Memory.PSUM: psum_bytes_per_partition})
    for number, program in enumerate(recording.programs):
        builder.written_count += sum(event.execution_count for event in program.events)
        core = number % builder.core_count
        first = builder.begin_program(program, core)
        lowering = _ProgramLowering(builder, program, core)
        lowering.run()
        builder.end_program(program, core, first, lowering.sync)
    return builder.program()


class _ProgramLowering:
    """One program's events into the builder."""

    def __init__(self, builder: ProgramBuilder, program: ProgramTrace, core: int) -> None:
        self.builder = builder
        self.trace = simplified(program)
        self.core = core
        self.sync: list[tuple[SyncRecord, int]] = []
        self.histories: dict[object, StorageHistory] = {}
        self.reuse = {memory: MemoryReuse(size) for memory, size in builder.capacity.items()}
        self.users: dict[int, list[int]] = {}
        self.gates: dict[int, list[int]] = {}

    def run(self) -> None:
        """Every event in program order."""
        events, joined = self._as_the_device_gets_them()
        last_use = _last_uses(events, joined)
        for position, event in enumerate(events):
            members = joined.get(id(event), (event,))
            self._note_unknown_trips(event)
            self.builder.enter_nest((len(self.builder.kernels), event.loops[0].loop.id if event.loops else None))
            self.builder.times = event.execution_count * self.trace.stands_for
            if isinstance(event, DmaRecord):
                self._add_dma(event, members)
            elif isinstance(event, ComputeRecord):
                self._add_compute(event, members)
            elif isinstance(event, SyncRecord):
                self._add_sync(event)
            elif isinstance(event, Unmodelled):
                self._add_unmodelled(event)
            for storage in last_use.get(position, ()):
                self._retire(storage)
        self.builder.loops |= dict.fromkeys(_repeated_loops(self.trace))
        self._add_tensors()

    def _as_the_device_gets_them(self) -> tuple[list[Event], dict[int, tuple[Event, ...]]]:
        """(events in order, what each that stands for several joins): loads where their first member stands, stores and
        copies where their last does."""
        groups: list[tuple[Event, tuple[Event, ...]]] = [*joined_copies(self.trace)]
        groups += [(record, members) for record, members in merged_groups(self.trace) if len(members) > 1]
        if not groups:
            return list(self.trace.events), {}
        replaced: dict[int, Event | None] = {}
        joined: dict[int, tuple[Event, ...]] = {}
        for record, members in groups:
            is_load = isinstance(record, DmaRecord) and record.reads[0].memory is Memory.HBM
            place = members[0] if is_load else members[-1]
            for member in members:
                replaced[member.sequence] = record if member is place else None
            joined[id(record)] = tuple(members)
        events = [replaced.get(event.sequence, event) for event in self.trace.events]
        return [event for event in events if event is not None], joined

    def _note_unknown_trips(self, event: Event) -> None:
        for bound in event.unknown_trips:
            self.builder.notes.setdefault(f"the loop over {bound} is timed for one iteration: give --trip '{bound}=N'")

    def _add_tensors(self) -> None:
        """What the kernel is given and returns, with the bytes that its DMAs move."""
        moved: dict[int, list[int]] = {}
        for record in self.trace.dma:
            for side, accesses in enumerate((record.reads, (record.write,))):
                for access in accesses:
                    if access.memory is Memory.HBM:
                        moved.setdefault(access.storage, [0, 0])[side] += (
                            access.byte_count * record.execution_count * self.trace.stands_for
                        )
        tensors = self.builder.tensors
        for allocation in self.trace.allocations:
            if allocation.memory is Memory.HBM and (allocation.kind == "argument" or allocation.returned):
                read, written = moved.get(allocation.storage, (0, 0))
                kind = "output" if allocation.returned else "input"
                key = (allocation.name, kind)
                known = tensors.get(key)
                tensors[key] = HbmTensor(
                    allocation.name,
                    kind,
                    allocation.byte_count,
                    read + (known.read_bytes if known else 0),
                    written + (known.written_bytes if known else 0),
                )

    # One kind of event each

    def _add_compute(self, record: ComputeRecord, members: tuple[Event, ...]) -> None:
        builder = self.builder
        machine = builder.machine(record)
        engine = builder.engine_of(machine, self.core)
        builder.busy_ps[self.core][engine] += builder.costs.cost(engine, machine.work).issue_ps * record.execution_count
        if builder.costs.instruction(machine.work.instruction).unknown:
            name = record.op
            builder.unknown[name] = builder.unknown.get(name, 0) + sum(member.execution_count for member in members)
        accesses = [member for member in members if isinstance(member, ComputeRecord)]
        number = builder.add(
            COMPUTE,
            self.core,
            engine=ENGINES.index(engine),
            depends={},
            work=builder.works.place(machine.work),
            opcode=builder.opcodes.place(machine.opcode),
            source=builder.source(record),
            macs=machine.macs,
            is_transpose=machine.is_transpose,
            table=builder.tables.place(machine.table) if machine.table else -1,
        )
        self._touch(
            number,
            [access for member in accesses for access in member.reads],
            [access for member in accesses for access in member.writes],
        )

    def _add_dma(self, record: DmaRecord, members: tuple[Event, ...]) -> None:
        builder = self.builder
        count, slowness, first = builder.count(record)
        is_read = count.hbm_read_bytes > 0
        # The captures' hardware queues: the sync engine triggers loads, the scalar engine stores.
        engine = _QUEUE_ENGINES.get(record.engine.lower())
        if engine is None:
            engine = "gpsimd" if count.mode == "swdge" else "sync" if is_read else "scalar"
        starts = (access.indirection is Indirection.DYNAMIC_START for access in (*record.reads, record.write))
        builder.dmas.append((count, slowness, first, any(starts)))
        number = builder.add(
            DMA,
            self.core,
            engine=ENGINES.index(engine),
            depends={},
            opcode=builder.opcodes.place("DMA_DIRECT2D"),
            source=builder.source(record),
            dma=len(builder.dmas) - 1,
            hbm_read_bytes=count.hbm_read_bytes,
            hbm_write_bytes=count.hbm_write_bytes,
            sbuf_bytes=count.sbuf_read_bytes + count.sbuf_write_bytes,
        )
        records = [member for member in members if isinstance(member, DmaRecord)]
        reads = [access for member in records for access in member.reads]
        reads += [member.index for member in records if member.index is not None]
        self._touch(number, reads, [member.write for member in records])

    def _add_sync(self, record: SyncRecord) -> None:
        builder = self.builder
        kind = _SYNC_KINDS[record.kind]
        moved = sum(access.byte_count for access in record.reads)
        if kind == BARRIER:
            builder.unknown["core_barrier"] = builder.unknown.get("core_barrier", 0) + record.execution_count
        elif kind == EXCHANGE:
            builder.unknown["sendrecv"] = builder.unknown.get("sendrecv", 0) + record.execution_count
        number = builder.add(
            kind,
            self.core,
            depends={},
            opcode=builder.opcodes.place(record.op.upper()),
            source=builder.source(record),
            sbuf_bytes=moved,
        )
        # A barrier lets nothing on its data pass: it counts as reading and writing it.
        writes = list(record.writes) + (list(record.reads) if kind == BARRIER else [])
        self._touch(number, list(record.reads), writes)
        if kind == BARRIER and not record.reads:
            before = range(self._first_operation(), number)
            builder.dependencies[number] = dict.fromkeys(before, RESULT)
            builder.fences[self.core] = number
        if kind != COLLECTIVE:
            self.sync.append((record, number))

    def _first_operation(self) -> int:
        return self.builder.kernels[-1].end if self.builder.kernels else 0

    def _add_unmodelled(self, event: Unmodelled) -> None:
        builder = self.builder
        builder.unknown[event.op] = builder.unknown.get(event.op, 0) + event.execution_count
        tensors = event.tensors
        elements = max((per_partition(access) for access in tensors), default=1)
        work = Work("unknown", elements=min(elements, 1 << 20))
        number = builder.add(
            COMPUTE,
            self.core,
            engine=ENGINES.index("gpsimd"),
            depends={},
            work=builder.works.place(work),
            opcode=builder.opcodes.place(event.op.upper()),
            source=builder.source(event),
        )
        self._touch(number, list(tensors), list(tensors))

    # Dependencies

    def _touch(self, number: int, reads: list[Access], writes: list[Access]) -> None:
        """Note what an operation reads and writes, and whom it must wait for."""
        depends = self.builder.dependencies[number]
        for access in reads:
            key, region = self._place(access)
            for other in self._history(key).read(region, number):
                depends[other] = RESULT
            self._use(access.storage, number, depends, is_write=False)
        for access in writes:
            key, region = self._place(access)
            read, written = self._history(key).write(region, number)
            for other in (*read, *written):
                if other != number and depends.get(other) != RESULT:
                    depends[other] = self._ordering(other, number)
            self._use(access.storage, number, depends, is_write=True)
        depends.pop(number, None)
        fence = self.builder.fences[self.core]
        if fence >= 0 and fence != number and not depends:
            depends[fence] = RESULT
        elif fence >= 0 and len(depends) > 1:
            depends.pop(fence, None)

    def _ordering(self, other: int, number: int) -> int:
        """Overwriting what an instruction of the same engine used needs no wait: the engine runs them in order."""
        columns = self.builder.columns
        same = columns.kind[other] == COMPUTE == columns.kind[number]
        return ORDER if same and columns.engine[other] == columns.engine[number] else RESULT

    def _history(self, key: object) -> StorageHistory:
        found = self.histories.get(key)
        if found is None:
            found = self.histories[key] = StorageHistory(self._joined)
        return found

    def _joined(self, operations: list[int]) -> int:
        """An operation that takes no time and ends when all of them have."""
        return self.builder.add(VIRTUAL, self.core, depends=dict.fromkeys(operations, RESULT))

    def _place(self, access: Access) -> tuple[object, Region]:
        """(which history, which bytes): storages that the kernel places share one history a memory."""
        allocation = self.trace.allocations[access.storage]
        region = region_of(access)
        if access.indirection is not Indirection.NONE:
            region = _whole(allocation, region)
        if allocation.address is None:
            return access.storage, region
        partition, byte = allocation.address
        moved = Region(
            _PLACED_PITCH,
            region.row0 + partition,
            region.row1 + partition,
            region.column0 + byte,
            region.column1 + byte,
            region.dims,
            region.run,
        )
        return allocation.memory, moved

    def _use(self, storage: int, number: int, depends: dict[int, int], *, is_write: bool) -> None:
        """A storage's first write into each of its bytes waits until the memory that it was given is free."""
        allocation = self.trace.allocations[storage]
        if allocation.memory not in self.reuse or allocation.address is not None:
            return
        users = self.users.get(storage)
        if users is None:
            users = self.users[storage] = []
            self.gates[storage] = self._gates(self.reuse[allocation.memory].allocate(allocation.bytes_per_partition))
        users.append(number)
        if is_write:  # reads follow the writes
            for gate in self.gates[storage]:
                if gate != number and depends.get(gate) != RESULT:
                    depends[gate] = self._ordering(gate, number)

    def _gates(self, tenants: list[Tenant]) -> list[int]:
        """The few operations after which the memory of all `tenants` is free."""
        gates: list[int] = []
        for tenant in tenants:
            if len(tenant.users) > _FEW and tenant.release < 0:
                tenant.release = self._joined(tenant.users)
            gates += [tenant.release] if tenant.release >= 0 else tenant.users
        if len(gates) > _FEW:
            gates = [self._joined(gates)]
        return gates

    def _retire(self, storage: int) -> None:
        allocation = self.trace.allocations[storage]
        users = self.users.pop(storage, None)
        self.gates.pop(storage, None)
        if users is not None:
            self.reuse[allocation.memory].retire(allocation.bytes_per_partition, list(dict.fromkeys(users)))


def _repeated_loops(program: ProgramTrace) -> list[RepeatedLoop]:
    """Loops of which an iteration stands for several; runs of one loop with the same counts only once."""
    counts: dict[int, dict[int, int]] = {}
    sources: dict[int, str] = {}
    for event in program.events:
        for span in event.loops:
            counts.setdefault(span.loop.id, {})[span.first] = span.count or 1
            sources[span.loop.id] = str(span.loop.site)
    found = [
        RepeatedLoop(sources[loop], len(of_loop), sum(of_loop.values()))
        for loop, of_loop in counts.items()
        if max(of_loop.values()) > 1
    ]
    return list(dict.fromkeys(found))


def _last_uses(events: list[Event], joined: dict[int, tuple[Event, ...]]) -> dict[int, list[int]]:
    """Storages by the position of the event that uses them last."""
    last: dict[int, int] = {}
    for position, event in enumerate(events):
        for member in joined.get(id(event), (event,)):
            for access in accesses_of(member):
                last[access.storage] = position
    result: dict[int, list[int]] = {}
    for storage, position in last.items():
        result.setdefault(position, []).append(storage)
    return result


def _whole(allocation: Allocation, region: Region) -> Region:
    """All of a storage: where an address comes from the device, any of it may be meant."""
    if allocation.memory is Memory.HBM:
        return Region(0, 0, 1, 0, max(allocation.byte_count, region.end))
    return Region(region.pitch, 0, max(allocation.partition_count, region.row1), 0, max(region.pitch, region.column1))

"""What the first generation's compiler leaves out of a kernel: copies that nothing needs, and work that a loop repeats.

* A copy of a product out of PSUM, of one bank, whose readers can read PSUM: in the two public captures of fused attention
  over 512 keys the scores' copies are not there and the exponential reads PSUM; in the unfused ones, where a DMA reads the
  scores, they are. (Over 1,024 keys, two banks, every second copy is gone and its readers are split; that is not modelled.)
* An instruction that computes in an iteration what the iteration before computed, from tiles that have not changed: the
  vendor's tutorial of a state-space layer reports 2.16 ms of vector-engine time for the kernel that loads its tiles in the
  inner loop, and 1.60 ms for the one that loads them outside of it, whose five vector instructions an iteration are the same.

The second generation's compiler takes instructions as they are written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from trnprof.nki.recording import Access, ComputeRecord, DmaRecord, Event, Indirection, Memory, ProgramTrace
from trnprof.nki.timing.copies import BANK_BYTES
from trnprof.nki.timing.operations import per_partition

_PSUM_READERS = frozenset({"vector", "scalar"})
_UNREPEATABLE = ("rand", "rng", "dropout", "loop_reduce", "shuffle")
"""Words in the names of operations whose result is not a function of their operands."""


def simplified(program: ProgramTrace) -> ProgramTrace:
    """The program without what its compiler leaves out; a second-generation program as it is."""
    if not any(event.op in ("load", "store") for event in program.dma):
        return program
    return _without_repeated_work(_without_needless_copies(program))


def accesses_of(event: Event) -> tuple[Access, ...]:
    """Every operand of an event."""
    if isinstance(event, DmaRecord):
        return (*event.reads, event.write, *(() if event.index is None else (event.index,)))
    return (*getattr(event, "reads", ()), *getattr(event, "writes", ()), *getattr(event, "tensors", ()))


# Copies out of PSUM


def _without_needless_copies(program: ProgramTrace) -> ProgramTrace:
    users: dict[int, list[Event]] = defaultdict(list)
    for event in program.events:
        for storage in {access.storage for access in accesses_of(event)}:
            users[storage].append(event)
    dropped: set[int] = set()
    homes: dict[int, Access] = {}
    moved: set[int] = set()
    for allocation in program.allocations:
        copies = _needless_copies(program, allocation.storage, users)
        if copies:
            moved.add(allocation.storage)
            dropped |= {copy.sequence for copy in copies}
            homes |= {copy.reads[0].storage: copy.writes[0] for copy in copies}
    if not moved:
        return program

    def place(access: Access) -> Access:
        home = homes.get(access.storage)
        if home is not None:
            return replace(home, memory=Memory.PSUM)
        return replace(access, memory=Memory.PSUM) if access.storage in moved else access

    events = [
        replace(event, reads=tuple(map(place, event.reads)), writes=tuple(map(place, event.writes)))
        if isinstance(event, ComputeRecord)
        else event
        for event in program.events
        if event.sequence not in dropped
    ]
    allocations = [
        replace(allocation, memory=Memory.PSUM) if allocation.storage in moved else allocation
        for allocation in program.allocations
    ]
    return replace(program, events=tuple(events), allocations=tuple(allocations))


def _needless_copies(program: ProgramTrace, storage: int, users: dict[int, list[Event]]) -> list[ComputeRecord]:
    """The copies that fill a tile of SBUF, if the products themselves could lie there: none, if they could not."""
    tile = program.allocations[storage]
    if tile.memory is not Memory.SBUF or tile.address is not None or tile.bytes_per_partition > BANK_BYTES:
        return []
    copies: list[ComputeRecord] = []
    for event in users[storage]:
        if not isinstance(event, ComputeRecord):
            return []
        if any(access.storage == storage for access in event.writes):
            if not _copies_a_product(program, event, users):
                return []
            copies.append(event)
        elif not _PSUM_READERS.issuperset(event.engines or (event.engine,)):
            return []
    return copies if len(copies) < len(users[storage]) else []


def _copies_a_product(program: ProgramTrace, event: ComputeRecord, users: dict[int, list[Event]]) -> bool:
    """Is it a copy, to the same type, of a whole PSUM tile that the tensor engine alone writes and nothing else reads?"""
    if event.op not in ("tensor_copy", "copy") or len(event.reads) != 1 or len(event.writes) != 1:
        return False
    read, write = event.reads[0], event.writes[0]
    source = program.allocations[read.storage]
    if read.memory is not Memory.PSUM or source.address is not None or read.dtype != write.dtype:
        return False
    if not all(map(_is_plain, (read, write))) or read.byte_count != source.byte_count:
        return False
    return all(
        isinstance(user, ComputeRecord)
        and user.op == "nc_matmul"
        and all(access.element_count == read.element_count for access in user.writes)
        for user in users[read.storage]
        if user is not event
    )


def _is_plain(access: Access) -> bool:
    return access.offsets is None and access.indirection is Indirection.NONE


# Work that a loop repeats


def _without_repeated_work(program: ProgramTrace) -> ProgramTrace:
    write_count: dict[int, int] = defaultdict(int)
    for event in program.events:
        for access in _written(event):
            write_count[access.storage] += 1
    versions: dict[int, int] = defaultdict(int)
    first: dict[object, tuple[tuple[int, ...], int]] = {}
    known: dict[int, int] = {}
    events: list[Event] = []
    for event in program.events:
        if isinstance(event, ComputeRecord) and any(access.storage in known for access in event.reads):
            event = replace(event, reads=tuple(_renamed(access, known) for access in event.reads))
        if isinstance(event, ComputeRecord) and _is_repeatable(program, event, write_count):
            result = event.writes[0].storage
            now = tuple(versions[access.storage] for access in event.reads)
            key = _computation(event)
            before = first.get(key)
            if before is not None and before[0] == now:
                known[result] = before[1]
                continue
            if event.execution_count == 1:
                first[key] = (now, result)
        events.append(event)
        for access in _written(event):
            versions[access.storage] += 1
    if not known:
        return program
    # Whatever else reads a dropped tile reads the first.
    return replace(program, events=tuple(_reading(event, known) for event in events))


def _written(event: Event) -> Iterable[Access]:
    return (event.write,) if isinstance(event, DmaRecord) else getattr(event, "writes", ())


def _is_repeatable(program: ProgramTrace, event: ComputeRecord, write_count: dict[int, int]) -> bool:
    """Does it depend on nothing but tiles on chip, and make a tile of its own that nothing else writes?"""
    if not event.loops or event.loops[-1].loop.kind != "affine_range" or not event.reads or len(event.writes) != 1:
        return False
    result = program.allocations[event.writes[0].storage]
    return (
        result.kind == "result"
        and write_count[result.storage] == 1
        and event.op not in ("nc_matmul", "nc_matmul_mx")
        and not any(word in event.op for word in _UNREPEATABLE)
        and ("masked", True) not in event.attributes
        and all(_is_plain(access) and access.memory is not Memory.HBM for access in event.reads)
        and per_partition(event.writes[0]) > 1
    )


def _computation(event: ComputeRecord) -> object:
    """What is computed, and in which run of the innermost loop."""
    return (
        event.site,
        event.op,
        event.attributes,
        tuple((access.storage, access.offset, access.pattern, access.dtype) for access in event.reads),
        tuple((access.pattern, access.dtype) for access in event.writes),
        event.loops[-1].loop.id,
        tuple((span.loop.id, span.first) for span in event.loops[:-1]),
    )


def _renamed(access: Access, known: dict[int, int]) -> Access:
    same = known.get(access.storage)
    return access if same is None else replace(access, storage=same)


def _reading(event: Event, known: dict[int, int]) -> Event:
    reads = getattr(event, "reads", ())
    if isinstance(event, ComputeRecord) or not any(access.storage in known for access in reads):
        return event
    return replace(event, reads=tuple(_renamed(access, known) for access in reads))  # type: ignore[call-arg]

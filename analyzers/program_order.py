"""Hazards that lie in the order of a kernel's operations: accumulations, fences, and what a pair's programs must share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from trnprof.nki.recording import Access, ComputeRecord, DmaRecord, Event, Memory, ProgramTrace, Recording, SyncRecord

PSUM_BANK_BYTES = 2048
"""A PSUM partition is 8 banks of 2 KiB; accumulation groups in different banks do not meet."""

_MAX_REPEATS = 3
"""Iterations of a repeated loop body that are looked at: an order that two rounds do not show, no round shows."""
_MAX_STEPS = 200_000


@dataclass(frozen=True)
class Hit:
    """One finding before it has a code: what, where, and further evidence."""

    message: str
    source: str
    evidence: dict[str, object]


@dataclass(frozen=True)
class _Region:
    """The bytes of a PSUM tile's partition that one access spans."""

    start: int
    end: int

    def shares_bank(self, other: _Region) -> bool:
        return (
            self.start // PSUM_BANK_BYTES <= (other.end - 1) // PSUM_BANK_BYTES
            and other.start // PSUM_BANK_BYTES <= (self.end - 1) // PSUM_BANK_BYTES
        )

    def overlaps(self, other: _Region) -> bool:
        return self.start < other.end and other.start < self.end


def interleaved_accumulations(recording: Recording) -> Iterator[Hit]:
    """Matmuls that go on accumulating into a slice of a PSUM tile after another slice of its bank was accumulated into."""
    seen: set[tuple[str, str]] = set()
    for program in recording.programs:
        events = [event for event in program.events if isinstance(event, ComputeRecord) and _touches_psum(event)]
        open_groups: dict[int, dict[_Region, str]] = defaultdict(dict)
        interrupted: dict[tuple[int, _Region], str] = {}
        steps = 0
        for event, shift in _unrolled(events):
            steps += 1
            if steps > _MAX_STEPS:
                break
            is_matmul = "matmul" in event.op
            closed = list(event.reads) if is_matmul else [*event.reads, *event.writes]
            for access in closed:
                _close(open_groups, interrupted, access, shift)
            if not is_matmul:
                continue
            for access in event.writes:
                if access.memory is not Memory.PSUM:
                    continue
                region, groups = _region(access, shift), open_groups[access.storage]
                source = str(event.site)
                other = interrupted.get((access.storage, region))
                if other is not None and (source, other) not in seen and (other, source) not in seen:
                    seen.add((source, other))
                    lines = source if source == other else f"{source} and {other}"
                    yield Hit(
                        f"{access.name}: groups of {lines} take turns in one 2 KiB PSUM bank",
                        source,
                        {"other_source": other, "tensor": access.name},
                    )
                for known in groups:
                    if known != region and known.shares_bank(region) and not known.overlaps(region):
                        interrupted[access.storage, known] = source
                groups[region] = source


def _touches_psum(event: ComputeRecord) -> bool:
    return any(access.memory is Memory.PSUM for access in (*event.reads, *event.writes))


def _close(
    groups: dict[int, dict[_Region, str]],
    interrupted: dict[tuple[int, _Region], str],
    access: Access,
    shift: tuple[int, ...],
) -> None:
    """A read, or a write by another operation, ends the accumulation groups that it meets."""
    if access.memory is not Memory.PSUM:
        return
    region = _region(access, shift)
    for known in [known for known in groups[access.storage] if known.overlaps(region)]:
        del groups[access.storage][known]
        interrupted.pop((access.storage, known), None)


def _region(access: Access, shift: tuple[int, ...]) -> _Region:
    offset = access.offset + sum(step * index for step, index in zip(access.loop_steps, shift, strict=False))
    if access.partition_elements:
        offset %= access.partition_elements
    inside = sum(
        step * (count - 1)
        for step, count in access.pattern
        if not access.partition_elements or step < access.partition_elements
    )
    return _Region(offset * access.itemsize, (offset + inside + 1) * access.itemsize)


def _unrolled(
    events: list[ComputeRecord], depth: int = 0, shift: tuple[int, ...] = ()
) -> Iterator[tuple[ComputeRecord, tuple[int, ...]]]:
    """Events in execution order, repeated bodies a few times: (event, iteration of each of its loops)."""
    start = 0
    while start < len(events):
        event = events[start]
        if len(event.loops) <= depth:
            yield event, shift
            start += 1
            continue
        span = event.loops[depth]
        end = start
        while end < len(events) and len(events[end].loops) > depth and _same_span(events[end], event, depth):
            end += 1
        body = events[start:end]
        for iteration in range(min(span.count or _MAX_REPEATS, _MAX_REPEATS)):
            yield from _unrolled(body, depth + 1, (*shift, iteration))
        start = end


def _same_span(one: Event, other: Event, depth: int) -> bool:
    a, b = one.loops[depth], other.loops[depth]
    return a.loop.id == b.loop.id and a.first == b.first and a.count == b.count


def unfenced_collectives(recording: Recording) -> Iterator[Hit]:
    """Collectives that read a shared HBM buffer a DMA wrote, with no barrier between the two."""
    seen: set[tuple[str, str]] = set()
    for program in recording.programs:
        shared = {allocation.storage for allocation in program.allocations if allocation.shared}
        written: dict[int, DmaRecord] = {}
        for event in program.events:
            if isinstance(event, DmaRecord) and event.write.storage in shared:
                written[event.write.storage] = event
            elif isinstance(event, SyncRecord) and event.kind == "barrier":
                written.clear()
            elif isinstance(event, SyncRecord) and event.kind == "collective":
                for access in event.reads:
                    write = written.get(access.storage)
                    key = (str(event.site), str(write.site) if write else "")
                    if write is not None and access.memory is Memory.HBM and key not in seen:
                        seen.add(key)
                        yield Hit(
                            f"{event.op} reads {access.name}, which {write.site} writes, with no barrier between",
                            str(event.site),
                            {"other_source": str(write.site), "tensor": access.name},
                        )


def diverging_programs(recording: Recording) -> Iterator[Hit]:
    """The first barrier or collective that one program of a pair has and the other has not."""
    if recording.lnc != 2:
        return
    for first, second in _pairs(recording):
        one, other = _structure(first), _structure(second)
        for index in range(max(len(one), len(other))):
            left = one[index] if index < len(one) else None
            right = other[index] if index < len(other) else None
            if left is not None and right is not None and left[0] == right[0]:
                continue
            # The longer list holds what the other lacks.
            extra, owner = (left, first) if len(one) >= len(other) else (right, second)
            extra, owner = (extra, owner) if extra is not None else (left or right, first if left else second)
            assert extra is not None
            event = extra[1]
            yield Hit(
                f"program {owner.program_id} has {event.op} at {event.site} ({event.kind} {index + 1}), the other "
                f"program has {'none' if left is None or right is None else _other(left, right, extra)} there",
                str(event.site),
                {"position": index + 1},
            )
            break


def _other(left: tuple[object, SyncRecord], right: tuple[object, SyncRecord], shown: tuple[object, SyncRecord]) -> str:
    event = (right if shown is left else left)[1]
    return f"{event.op} at {event.site}"


def _pairs(recording: Recording) -> list[tuple[ProgramTrace, ProgramTrace]]:
    return list(zip(recording.programs[::2], recording.programs[1::2], strict=False))


def _structure(program: ProgramTrace) -> list[tuple[object, SyncRecord]]:
    """What must be the same in both: operation and the lengths of the loops around it, in order."""
    return [
        ((event.kind, event.op, tuple((span.loop.kind, span.count) for span in event.loops)), event)
        for event in program.sync
        if event.kind in ("barrier", "collective")
    ]


def shared_exchanges(recording: Recording) -> Iterator[Hit]:
    """HBM tensors shared by a pair in which one program reads what the other wrote from on-chip memory."""
    if recording.lnc != 2:
        return
    seen: set[str] = set()
    for first, second in _pairs(recording):
        for writer, reader in ((first, second), (second, first)):
            written, own = _shared_spans(writer, writes=True), _shared_spans(reader, writes=True)
            for key, reads in _shared_spans(reader, writes=False).items():
                for start, end, record in reads:
                    foreign = [span for span in written.get(key, ()) if span[0] < end and start < span[1]]
                    covered = any(span[0] <= start and end <= span[1] for span in own.get(key, ()))
                    source = str(record.site)
                    if foreign and not covered and source not in seen:
                        seen.add(source)
                        other = str(foreign[0][2].site)
                        yield Hit(
                            f"program {reader.program_id} reads {key[0]} here, which program {writer.program_id} "
                            f"writes at {other} from on-chip memory",
                            source,
                            {"other_source": other, "tensor": key[0]},
                        )


def _shared_spans(program: ProgramTrace, *, writes: bool) -> dict[tuple[str, str], list[tuple[int, int, DmaRecord]]]:
    """{tensor: (first byte, last byte + 1, record)} of the DMA traffic of shared tensors that the kernel made itself."""
    shared = {
        allocation.storage: (allocation.name, str(allocation.site))
        for allocation in program.allocations
        if allocation.memory is Memory.HBM and allocation.shared and allocation.kind != "argument"
    }
    spans: dict[tuple[str, str], list[tuple[int, int, DmaRecord]]] = defaultdict(list)
    for record in program.dma:
        on_chip = any(access.memory is not Memory.HBM for access in (*record.reads, record.write))
        for access in (record.write,) if writes else record.reads:
            if access.storage in shared and access.memory is Memory.HBM and on_chip:
                start, end = _byte_span(access, record)
                spans[shared[access.storage]].append((start, end, record))
    return spans


def _byte_span(access: Access, record: DmaRecord) -> tuple[int, int]:
    low = high = access.offset
    steps = [
        *access.pattern,
        *((step, span.count or 1) for step, span in zip(access.loop_steps, record.loops, strict=False)),
    ]
    for step, count in steps:
        reach = step * (count - 1)
        low, high = low + min(0, reach), high + max(0, reach)
    return low * access.itemsize, (high + 1) * access.itemsize

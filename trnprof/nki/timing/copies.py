"""Which copies out of PSUM the compiler joins: of neighbouring iterations, up to one PSUM bank.

In all eight public attention captures four 128-column transposes, each copied out of PSUM by its own tensor_copy of an
affine_range iteration, leave by one copy of 512 columns. Only results that an instruction returned are joined (the first
generation's form): where a kernel allocates its PSUM tiles itself, no capture shows it.
"""

from __future__ import annotations

from dataclasses import replace

from trnprof.nki.recording import Access, ComputeRecord, Indirection, Memory, ProgramTrace
from trnprof.nki.timing.operations import per_partition

BANK_BYTES = 2048
"""Of a partition."""


def joined_copies(program: ProgramTrace) -> list[tuple[ComputeRecord, tuple[ComputeRecord, ...]]]:
    """(a copy as the device gets it, the copies that it joins) of every group of at least two."""
    families: dict[tuple[object, ...], list[ComputeRecord]] = {}
    for event in program.events:
        if isinstance(event, ComputeRecord) and _may_join(event, program):
            families.setdefault(_family(event), []).append(event)
    found = []
    for records in families.values():
        size = BANK_BYTES // max(_row_bytes(records[0].reads[0]), 1)
        for start in range(0, len(records), max(size, 1)):
            members = records[start : start + size]
            if len(members) > 1 and _lie_side_by_side(members):
                found.append((_widened(members), tuple(members)))
    return found


def _may_join(record: ComputeRecord, program: ProgramTrace) -> bool:
    if record.op not in ("tensor_copy", "copy") or record.execution_count != 1 or not record.loops:
        return False
    if record.loops[-1].loop.kind != "affine_range" or len(record.reads) != 1 or len(record.writes) != 1:
        return False
    read, write = record.reads[0], record.writes[0]
    return (
        read.memory is Memory.PSUM
        and write.memory is Memory.SBUF
        and program.allocations[read.storage].kind == "result"
        and all(access.offsets is None and access.indirection is Indirection.NONE for access in (read, write))
    )


def _family(record: ComputeRecord) -> tuple[object, ...]:
    """Copies of one call, in one run of its innermost loop, to one storage."""
    read, write = record.reads[0], record.writes[0]
    return (
        record.site,
        record.loops[-1].loop.id,
        tuple((span.loop.id, span.first) for span in record.loops[:-1]),
        read.pattern,
        read.dtype,
        write.pattern,
        write.dtype,
        write.storage,
    )


def _row_bytes(access: Access) -> int:
    return access.itemsize * _row_elements(access)


def _row_elements(access: Access) -> int:
    return per_partition(access)


def _lie_side_by_side(members: list[ComputeRecord]) -> bool:
    """Do the destinations follow each other in every partition?"""
    width = _row_elements(members[0].writes[0])
    first = members[0].writes[0].offset
    return all(member.writes[0].offset == first + place * width for place, member in enumerate(members))


def _widened(members: list[ComputeRecord]) -> ComputeRecord:
    """One copy as wide as all of them; its source stands for the group's PSUM tiles."""
    first = members[0]
    return replace(
        first,
        reads=(_wider(first.reads[0], len(members)),),
        writes=(_wider(first.writes[0], len(members)),),
    )


def _wider(access: Access, count: int) -> Access:
    width = _row_elements(access)
    elements = max(access.partition_elements, 1)
    wide = max(elements, width * count)  # a PSUM tile is no wider than itself; the group's tiles are
    outer = tuple((step // elements * wide, size) for step, size in access.pattern if step >= elements)
    return replace(
        access,
        offset=access.offset // elements * wide + access.offset % elements,
        pattern=(*outer, (1, width * count)),
        shape=(*(size for _, size in outer), width * count),
        partition_elements=wide,
    )

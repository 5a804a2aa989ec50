"""Which DMAs the compiler joins: loads and stores of neighbouring affine_range iterations.

In the public captures a load or store whose tile moves evenly through HBM from one iteration to the next becomes one
instruction for several iterations, of at most 4,096 B a partition: two tiles of 2,048 B, eight of 512 B, none of 4,096 B.
(Two of eight captures join four tiles of 512 B where eight would fit; bytes and data packets are the same.) Descriptors
and bytes do not change; the 16 semaphore packets are paid once a joined DMA. Second-generation kernels name their DMAs
themselves, and no capture shows those joined.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from trnprof.nki.recording import Access, DmaRecord, Indirection, Memory, ProgramTrace

MERGED_BYTES_PER_PARTITION = 4096
"""Most bytes of a partition that a joined DMA moves."""
_MERGEABLE = ("load", "store")


def merged_dmas(program: ProgramTrace) -> list[tuple[DmaRecord, int]]:
    """(a record as the device gets it, how often it runs): joined ones have the iterations as a further dimension."""
    result: list[tuple[DmaRecord, int]] = []
    families: dict[tuple[object, ...], list[DmaRecord]] = {}
    for record in program.dma:
        if _may_merge(record):
            families.setdefault(_family(record), []).append(record)
        else:
            result.append((record, record.execution_count))
    for records in families.values():
        result.extend(_joined(records))
    return result


def merged_groups(program: ProgramTrace) -> list[tuple[DmaRecord, tuple[DmaRecord, ...]]]:
    """(a record as the device gets it, the records that it joins) of every DMA; a record that stands for several
    iterations by itself is never joined."""
    result: list[tuple[DmaRecord, tuple[DmaRecord, ...]]] = []
    families: dict[tuple[object, ...], list[DmaRecord]] = {}
    for record in program.dma:
        if record.execution_count == 1 and _may_merge(record):
            families.setdefault(_family(record), []).append(record)
        else:
            result.append((record, (record,)))
    for records in families.values():
        size, step = _group_size(records, len(records))
        for start in range(0, len(records), size):
            members = records[start : start + size]
            if len(members) == 1:
                result.append((members[0], (members[0],)))
            else:
                hbm, _ = _sides(members[0])
                result.append((_widened(members[0], hbm, step, len(members)), tuple(members)))
    return result


def _may_merge(record: DmaRecord) -> bool:
    return (
        record.op in _MERGEABLE
        and len(record.reads) == 1
        and bool(record.loops)
        and record.loops[-1].loop.kind == "affine_range"
        and all(
            access.indirection is Indirection.NONE and access.offsets is None
            for access in (record.reads[0], record.write)
        )
        and (record.reads[0].memory is Memory.HBM) != (record.write.memory is Memory.HBM)
    )


def _family(record: DmaRecord) -> tuple[object, ...]:
    """Records of one call in one run of its innermost loop, of one geometry."""
    return (
        record.site,
        record.loops[-1].loop.id,
        tuple((span.loop.id, span.first) for span in record.loops[:-1]),
        record.reads[0].pattern,
        record.write.pattern,
        record.reads[0].dtype,
        record.write.dtype,
    )


def _joined(records: list[DmaRecord]) -> list[tuple[DmaRecord, int]]:
    """One family: groups of iterations as large as fit."""
    first = records[0]
    outer = first.execution_count // max(first.loops[-1].count or 1, 1)
    iterations = sum(record.loops[-1].count or 1 for record in records)
    hbm, _ = _sides(first)
    group, step = _group_size(records, iterations)
    if group < 2:
        return [(record, record.execution_count) for record in records]
    whole, rest = divmod(iterations, group)
    result = [(_widened(first, hbm, step, group), whole * outer)]
    if rest:
        result.append((_widened(first, hbm, step, rest) if rest > 1 else first, outer))
    return result


def _group_size(records: list[DmaRecord], iterations: int) -> tuple[int, int]:
    """(iterations that one DMA of a family takes, elements that its HBM side moves between them); (1, 0): none joins."""
    _, chip = _sides(records[0])
    step = _even_step(records)
    partitions = max((count for at, count in chip.pattern if at >= max(chip.partition_elements, 1)), default=1)
    row_bytes = chip.element_count // max(partitions, 1) * chip.itemsize
    group = min(iterations, MERGED_BYTES_PER_PARTITION // max(row_bytes, 1))
    return (1, 0) if group < 2 or not step else (group, step)


def _sides(record: DmaRecord) -> tuple[Access, Access]:
    """(HBM side, on-chip side)."""
    read, write = record.reads[0], record.write
    return (read, write) if read.memory is Memory.HBM else (write, read)


def _even_step(records: list[DmaRecord]) -> int:
    """Elements that the HBM side moves per iteration; 0: it does not move evenly."""
    steps = set()
    for record in records:
        if (record.loops[-1].count or 1) > 1:
            steps.add(_sides(record)[0].loop_steps[-1])
    for before, after in itertools.pairwise(records):
        span, later = before.loops[-1], after.loops[-1]
        distance = later.first - span.first
        moved = _sides(after)[0].offset - _sides(before)[0].offset
        if distance <= 0 or moved % distance:
            return 0
        steps.add(moved // distance)
    return steps.pop() if len(steps) == 1 else 0


def _widened(record: DmaRecord, hbm: Access, step: int, group: int) -> DmaRecord:
    """The record over `group` iterations: one more dimension; on chip the tiles lie side by side in each partition."""
    read, write = record.reads[0], record.write
    chip = write if read is hbm else read
    elements = max(chip.partition_elements, 1)
    pattern = tuple((at * group if at >= elements else at, count) for at, count in chip.pattern)
    wide_chip = replace(
        chip, pattern=((elements, group), *pattern), shape=(group, *chip.shape), partition_elements=elements * group
    )
    wide_hbm = replace(hbm, pattern=((step, group), *hbm.pattern), shape=(group, *hbm.shape))
    if read is hbm:
        return replace(record, reads=(wide_hbm,), write=wide_chip)
    return replace(record, reads=(wide_chip,), write=wide_hbm)

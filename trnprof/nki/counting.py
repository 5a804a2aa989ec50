"""What one DMA instruction costs the DMA engines: descriptors, packets, bytes, partitions, engines.

The rules are those of the public trn2 captures (docs/dma-predict.md): an element is a run that is contiguous on both sides,
in SBUF inside one partition; hardware DGE makes one packet of an element; software DGE joins elements that follow each
other in HBM up to 4,096 B while all 16 engines have one, unless the DMA casts; static rings join four rows, or as many
small ones as fill 4,096 B. Each DMA ends with a 4-byte semaphore write on every one of the 16 engines.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import numpy as np

from trnprof.nki.recording import Access, DmaRecord, Indirection, Memory, ProgramTrace
from trnprof.nki.traffic import TensorTraffic, tensor_traffic

__all__ = ["DmaCount", "TensorTraffic", "count_dma", "packet_histogram", "tensor_traffic"]

ENGINES = 16
"""DMA engines of a NeuronCore."""
PARTITIONS_PER_ENGINE = 8
"""128 partitions over 16 engines."""
MERGED_BYTES = 4096
"""Largest packet that software DGE makes by joining elements; largest that small static rows fill."""
STATIC_ROWS = 4
"""Rows contiguous in HBM that a static ring joins."""
SEMAPHORE_BYTES = 4

_UNKNOWN = -1
"""Step of a dimension whose places come from index vectors: contiguous with nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DmaCount:
    """One execution of one DMA instruction."""

    mode: str
    """hwdge, swdge or none: the record's, or where that is unknown what the public captures show (see count_dma)."""
    mode_is_assumed: bool
    descriptor_count: int
    element_bytes: int
    """Bytes of one descriptor's element on the wider side."""
    read_bytes: int
    """All sides that are read, each in its own dtype; broadcasts count what is moved."""
    write_bytes: int
    hbm_read_bytes: int
    hbm_write_bytes: int
    sbuf_read_bytes: int
    sbuf_write_bytes: int
    partition_count: int
    """Partitions on the on-chip side; 0 for HBM to HBM."""
    engine_bytes: tuple[int, ...]
    """Bytes that each DMA engine in use moves (16 at most); len() is the number of engines."""
    engine_packets: tuple[int, ...]
    """Packets of each of those engines."""
    packets: tuple[tuple[int, int], ...]
    """(bytes, count) of the data packets, largest first, after the mode's merging; sizes are those written."""
    semaphore_packet_count: int
    """4-byte packets at the end of the DMA: one an engine, 16; 0 where the last data packet carries the write."""
    cast: bool
    """The sides' dtypes differ."""
    transpose: bool
    strided: bool
    """The HBM side's rows do not follow each other: other data lies between them."""
    is_exact: bool
    """False where the count is a bound: index vectors, transposes, elements above 4,096 B under hardware DGE."""


@dataclass(frozen=True, slots=True)
class _Side:
    """One side of a copy, ready to be compared with the other."""

    on_chip: bool
    itemsize: int
    partition_elements: int
    start_partition: int
    pattern: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class _Geometry:
    """Descriptors and packets of one source-destination pair."""

    descriptor_count: int
    element_count: int
    """Elements of a descriptor."""
    partition_count: int
    engine_bytes: tuple[int, ...]
    engine_packets: tuple[int, ...]
    packets: tuple[tuple[int, int], ...]
    strided: bool


def count_dma(record: DmaRecord, *, target: str = "trn2") -> DmaCount:
    """Count one execution of `record` (multiply by record.execution_count).

    Each source of a dma_compute is counted against the destination; bytes written are counted once.
    """
    write = record.write
    mode = record.assumed_mode if record.assumed_mode in ("hwdge", "swdge", "none") else "hwdge"
    reads = record.reads
    if record.cast_before:
        reads = tuple(replace(access, dtype=write.dtype, itemsize=write.itemsize) for access in reads)
    cast = any(access.dtype != write.dtype for access in reads)
    parts = [_count_pair(record, access, write, mode, cast, target) for access in reads]
    first = parts[0]
    element = max(part.element_count for part in parts)
    wide = max([access.itemsize for access in reads] + [write.itemsize])
    packets: dict[int, int] = {}
    for part in parts:
        for size, count in part.packets:
            packets[size] = packets.get(size, 0) + count
    gathered = any(access.indirection is Indirection.GATHER for access in (*reads, write))
    unverified = mode == "hwdge" and any(size > MERGED_BYTES for size in packets)
    return DmaCount(
        mode=mode,
        mode_is_assumed=record.dge_mode == "unknown",
        descriptor_count=sum(part.descriptor_count for part in parts),
        element_bytes=element * wide,
        read_bytes=sum(access.byte_count for access in reads),
        write_bytes=write.byte_count,
        hbm_read_bytes=sum(access.byte_count for access in reads if access.memory is Memory.HBM),
        hbm_write_bytes=write.byte_count if write.memory is Memory.HBM else 0,
        sbuf_read_bytes=sum(access.byte_count for access in reads if access.memory is not Memory.HBM),
        sbuf_write_bytes=write.byte_count if write.memory is not Memory.HBM else 0,
        partition_count=max(part.partition_count for part in parts),
        engine_bytes=first.engine_bytes if len(parts) == 1 else _added([part.engine_bytes for part in parts]),
        engine_packets=first.engine_packets if len(parts) == 1 else _added([part.engine_packets for part in parts]),
        packets=tuple(sorted(packets.items(), reverse=True)),
        semaphore_packet_count=0 if mode == "none" and target != "trn1" else ENGINES,
        cast=cast,
        transpose=record.transpose,
        strided=any(part.strided for part in parts),
        is_exact=not (gathered or unverified or record.transpose),
    )


def _count_pair(record: DmaRecord, read: Access, write: Access, mode: str, cast: bool, target: str) -> _Geometry:
    if read.offsets is not None or write.offsets is not None:
        return _count_enumerated(read, write, mode)
    # A transposing load places element by element; dma_transpose reads whole rows and turns tiles of them.
    elementwise = record.transpose and record.op != "dma_transpose"
    return _count_patterns(_side(read), _side(write), mode, cast, target, record.transpose, elementwise)


def _side(access: Access) -> _Side:
    pattern = access.pattern
    if access.indirection is Indirection.GATHER and access.indirect_axis is not None:
        axis = access.indirect_axis
        pattern = (*pattern[:axis], (_UNKNOWN, pattern[axis][1]), *pattern[axis + 1 :])
    on_chip = access.memory is not Memory.HBM
    elements = max(access.partition_elements, 1) if on_chip else 0
    start = access.offset // elements if on_chip else 0
    return _Side(on_chip, access.itemsize, elements, start, pattern)


@lru_cache(maxsize=65536)
def _count_patterns(
    read: _Side, write: _Side, mode: str, cast: bool, target: str, transpose: bool, elementwise: bool
) -> _Geometry:
    dims = _paired(read, write)
    total = prod(count for count, _, _ in dims)
    size = write.itemsize
    if total == 0:
        return _Geometry(0, 0, 0, (), (), (), False)
    if transpose:
        # Only the side that is read in rows decides; its partner's steps never match.
        inner = next((count for count, step, _ in reversed(dims) if step == 1), 1)
        run = 1 if elementwise else inner
        rest = [(count, step, other) for count, step, other in dims if elementwise or step != 1]
    else:
        run, rest = _joint_run(dims, read, write)
    chip, chip_at = (write, 2) if write.on_chip else (read, 1) if read.on_chip else (None, 0)
    hbm, hbm_at = (read, 1) if not read.on_chip else (write, 2) if not write.on_chip else (None, 0)
    partition_dims, free_rows = [], 1
    for dim in rest:
        if chip is not None and dim[chip_at] >= chip.partition_elements:
            partition_dims.append(dim)
        else:
            free_rows *= dim[0]
    descriptors = total // run
    shares = _engine_shares(chip, chip_at, partition_dims, descriptors)
    partition_count = prod(dim[0] for dim in partition_dims) if chip is not None else 0
    chain = _hbm_chain(rest, hbm_at, run) if hbm is not None else []
    strided = hbm is not None and prod(dim[0] for dim in chain) < descriptors
    element_bytes = run * size
    packets: dict[int, int] = {}
    engine_packets = []
    single = mode == "hwdge" or cast or transpose or hbm is None
    if single and mode == "none":
        queues = [_with_semaphore([(element_bytes, share)], target) for _, share in shares]
    elif single:
        queues = [[(element_bytes, share)] for _, share in shares]
    else:
        hbm_bytes = run * (hbm.itemsize if hbm is not None else size)
        queues = _engine_packets(shares, chain, partition_dims, element_bytes, hbm_bytes, mode, target)
    for queue in queues:
        for packet, count in queue:
            packets[packet] = packets.get(packet, 0) + count
        engine_packets.append(sum(count for _, count in queue))
    return _Geometry(
        descriptors,
        run,
        partition_count,
        tuple(rows * element_bytes for _, rows in shares),
        tuple(engine_packets),
        tuple(sorted(packets.items(), reverse=True)),
        strided,
    )


def _paired(read: _Side, write: _Side) -> list[tuple[int, int, int]]:
    """Both patterns over one list of dimensions, outermost first: (count, read step, write step)."""
    left = [(step, count) for step, count in read.pattern if count != 1]
    right = [(step, count) for step, count in write.pattern if count != 1]
    dims: list[tuple[int, int, int]] = []
    while left and right:
        (a_step, a), (b_step, b) = left.pop(), right.pop()
        if a == b:
            dims.append((a, a_step, b_step))
        elif a > b and b and a % b == 0:
            dims.append((b, a_step, b_step))
            left.append((_UNKNOWN if a_step == _UNKNOWN else a_step * b, a // b))
        elif b > a and a and b % a == 0:
            dims.append((a, a_step, b_step))
            right.append((_UNKNOWN if b_step == _UNKNOWN else b_step * a, b // a))
        else:
            # Neither divides the other: only a common part of the inner dimension is regular.
            common = int(np.gcd(a, b))
            if common <= 1:
                dims.append((a * prod(count for _, count in left), _UNKNOWN, _UNKNOWN))
                left, right = [], []
                break
            dims.append((common, a_step, b_step))
            left.append((_UNKNOWN if a_step == _UNKNOWN else a_step * common, a // common))
            right.append((_UNKNOWN if b_step == _UNKNOWN else b_step * common, b // common))
    for step, count in reversed(left):
        dims.append((count, step, _UNKNOWN))
    for step, count in reversed(right):
        dims.append((count, _UNKNOWN, step))
    dims.reverse()
    return dims


def _joint_run(dims: list[tuple[int, int, int]], read: _Side, write: _Side) -> tuple[int, list[tuple[int, int, int]]]:
    """(elements of the longest run contiguous on both sides and inside a partition, the other dimensions)."""
    rest = list(dims)
    run = 1
    limits = [side.partition_elements for side in (read, write) if side.on_chip]
    while True:
        found = next(
            (dim for dim in rest if dim[1] == run and dim[2] == run and all(run < limit for limit in limits)), None
        )
        if found is None:
            return run, rest
        rest.remove(found)
        run *= found[0]


def _engine_shares(
    chip: _Side | None, chip_at: int, partition_dims: list[tuple[int, int, int]], descriptors: int
) -> list[tuple[int, int]]:
    """(partitions, descriptors) of each engine in use: eight neighbouring partitions each, HBM to HBM evenly."""
    if chip is None:
        engines = min(ENGINES, descriptors)
        return [(0, descriptors // engines + (index < descriptors % engines)) for index in range(engines)]
    partitions = np.array([chip.start_partition])
    for count, *steps in partition_dims:
        step = steps[chip_at - 1] // chip.partition_elements
        partitions = (partitions[:, None] + np.arange(min(count, 4096)) * step).reshape(-1)
    engines_of = (partitions // PARTITIONS_PER_ENGINE) % ENGINES
    counts = np.bincount(engines_of, minlength=ENGINES)
    each = descriptors // len(partitions)
    return [(int(count), int(count) * each) for count in counts if count]


def _hbm_chain(rest: list[tuple[int, int, int]], hbm_at: int, run: int) -> list[tuple[int, int, int]]:
    """Dimensions along which elements follow each other in HBM without a gap, innermost first."""
    chain: list[tuple[int, int, int]] = []
    span, left = run, list(rest)
    while True:
        found = next((dim for dim in left if dim[hbm_at] == span), None)
        if found is None:
            return chain
        left.remove(found)
        chain.append(found)
        span *= found[0]


def _engine_packets(
    shares: list[tuple[int, int]],
    chain: list[tuple[int, int, int]],
    partition_dims: list[tuple[int, int, int]],
    element: int,
    hbm_element: int,
    mode: str,
    target: str,
) -> list[list[tuple[int, int]]]:
    """[(bytes, count)] of each engine's data packets, elements joined by the mode's rule."""
    rows = sum(share for _, share in shares)
    fill = MERGED_BYTES
    if mode == "swdge":
        fill = min(MERGED_BYTES, rows * hbm_element // ENGINES)
    group = max(1, fill // max(hbm_element, 1))
    whole = prod(count for count, _, _ in chain)
    result = []
    for partitions, share in shares:
        follow = 1  # elements that follow each other in HBM within this engine
        for dim in chain:
            if dim in partition_dims and partitions < dim[0]:
                follow *= partitions
                break
            follow *= dim[0]
        follow = max(1, min(follow, share))
        if mode == "swdge":
            if group > follow and whole > follow:
                return _spread(_grouped(rows, min(whole, rows), group, element), len(shares))
            result.append(_grouped(share, follow, group, element))
        elif follow > 1:
            result.append(_with_semaphore(_grouped(share, follow, max(STATIC_ROWS, group), element), target))
        else:
            result.append(_with_semaphore(_grouped(share, share, group, element), target))
    return result


def _spread(packets: list[tuple[int, int]], engines: int) -> list[list[tuple[int, int]]]:
    """Packets that no engine's partitions hold alone, dealt out evenly."""
    result: list[list[tuple[int, int]]] = [[] for _ in range(engines)]
    for size, count in packets:
        for engine in range(engines):
            dealt = count // engines + (engine < count % engines)
            if dealt:
                result[engine].append((size, dealt))
    return result


def _grouped(rows: int, follow: int, group: int, element: int) -> list[tuple[int, int]]:
    """Packets of `rows` elements, joined by up to `group` within stretches of `follow`."""
    stretches, left = divmod(rows, follow)
    packets = [(group * element, stretches * (follow // group)), (follow % group * element, stretches)]
    packets += [(group * element, left // group), (left % group * element, 1)]
    return [(size, count) for size, count in packets if size and count]


def _with_semaphore(packets: list[tuple[int, int]], target: str) -> list[tuple[int, int]]:
    """On static rings of trn2 and later the ring's last packet carries the 4-byte semaphore write."""
    if target == "trn1" or not packets:
        return packets
    size, count = packets[-1]
    rest = [(size, count - 1)] if count > 1 else []
    return [*packets[:-1], *rest, (size + SEMAPHORE_BYTES, 1)]


def _count_enumerated(read: Access, write: Access, mode: str) -> _Geometry:
    """Masks and index arithmetic: runs are counted on the addresses themselves."""
    sources, targets = _addresses(read), _addresses(write)
    total = min(len(sources), len(targets))
    if total == 0:
        return _Geometry(0, 0, 0, (), (), (), False)
    breaks = np.zeros(total, bool)
    breaks[0] = True
    for access, addresses in ((read, sources), (write, targets)):
        breaks[1:] |= np.diff(addresses[:total]) != 1
        if access.memory is not Memory.HBM:
            breaks[1:] |= np.diff(addresses[:total] // max(access.partition_elements, 1)) != 0
    starts = np.flatnonzero(breaks)
    lengths = np.diff(np.append(starts, total))
    chip = write if write.memory is not Memory.HBM else read
    if chip.memory is Memory.HBM:
        engines = np.arange(len(starts)) % ENGINES
        partition_count = 0
    else:
        addresses = (targets if chip is write else sources)[:total]
        partitions = addresses[starts] // max(chip.partition_elements, 1)
        engines = (partitions // PARTITIONS_PER_ENGINE) % ENGINES
        partition_count = len(np.unique(partitions))
    used, packets_of = np.unique(engines, return_counts=True)
    moved = np.bincount(engines, weights=lengths * write.itemsize, minlength=ENGINES).astype(np.int64)
    sizes, counts = np.unique(lengths * write.itemsize, return_counts=True)
    return _Geometry(
        len(starts),
        int(np.median(lengths)),
        partition_count,
        tuple(int(moved[engine]) for engine in used),
        tuple(int(count) for count in packets_of),
        tuple(sorted(zip(sizes.tolist(), counts.tolist(), strict=True), reverse=True)),
        True,
    )


def _addresses(access: Access) -> np.ndarray:
    if access.offsets is not None:
        return np.asarray(access.offsets)
    addresses = np.array([access.offset], np.int64)
    for step, count in access.pattern:
        addresses = (addresses[:, None] + np.arange(count, dtype=np.int64) * step).reshape(-1)
    return addresses


def _added(parts: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Sums by position; shorter ones end early."""
    longest = max(len(part) for part in parts)
    return tuple(sum(part[at] for part in parts if at < len(part)) for at in range(longest))


def packet_histogram(program: ProgramTrace, *, target: str = "trn2", merged: bool = True) -> dict[str, dict[int, int]]:
    """{mode: {packet bytes: count}} of a program, semaphore packets under 4 bytes included.

    merged: loads and stores of neighbouring iterations joined to one DMA as the public captures show (merging.py); False:
    as written.
    """
    from trnprof.nki.merging import merged_dmas

    histogram: dict[str, dict[int, int]] = {}
    groups = merged_dmas(program) if merged else [(record, record.execution_count) for record in program.dma]
    for record, times in groups:
        count = count_dma(record, target=target)
        sizes = histogram.setdefault(count.mode, {})
        for size, packets in count.packets:
            sizes[size] = sizes.get(size, 0) + packets * times
        if count.semaphore_packet_count:
            sizes[SEMAPHORE_BYTES] = sizes.get(SEMAPHORE_BYTES, 0) + count.semaphore_packet_count * times
    return {mode: dict(sorted(sizes.items(), reverse=True)) for mode, sizes in histogram.items()}

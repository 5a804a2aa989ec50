"""DMA counts: by brute force over addresses for any pattern, and by the public captures' rules for packets."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnprof.nki.counting import DmaCount, count_dma
from trnprof.nki.recording import Access, DmaRecord, Frame, Indirection, Loop, LoopSpan, Memory, Site
from trnprof.nki.traffic import distinct_bytes

SITE = Site((Frame("kernel.py", 1, "kernel"),))
BYTES = {"float32": 4, "bfloat16": 2, "uint8": 1}


def hbm(*pattern: tuple[int, int], offset: int = 0, dtype: str = "float32", **more: object) -> Access:
    shape = tuple(count for _, count in pattern)
    return Access(0, "x", Memory.HBM, dtype, BYTES[dtype], shape, offset, pattern, **more)  # type: ignore[arg-type]


def sbuf(*pattern: tuple[int, int], free: int, offset: int = 0, dtype: str = "float32") -> Access:
    shape = tuple(count for _, count in pattern)
    return Access(1, "t", Memory.SBUF, dtype, BYTES[dtype], shape, offset, pattern, free)


def copy(read: Access, write: Access, mode: str = "hwdge", **more: object) -> DmaRecord:
    fields = {"sequence": 0, "op": "dma_copy", "module": "isa", "site": SITE, "assumed_mode": mode, **more}
    return DmaRecord(reads=(read,), write=write, **fields)  # type: ignore[arg-type]


def rows(count: int, row_bytes: int, stride_bytes: int | None = None, mode: str = "swdge") -> DmaCount:
    """A load of `count` rows, one a partition."""
    stride = row_bytes if stride_bytes is None else stride_bytes
    read = hbm((stride, count), (1, row_bytes), dtype="uint8")
    return count_dma(copy(read, sbuf((row_bytes, count), (1, row_bytes), free=row_bytes, dtype="uint8"), mode))


# Brute force


def element_addresses(access: Access) -> np.ndarray:
    result = np.array([access.offset])
    for step, count in access.pattern:
        result = (result[:, None] + np.arange(count) * step).reshape(-1)
    return result


def runs_by_address(read: Access, write: Access) -> int:
    """Number of equal runs, as long as can be, in which both sides' addresses go up by one inside one partition.

    (Two of them may touch by chance at a corner of the pattern; no descriptor joins those.)
    """
    source, target = element_addresses(read), element_addresses(write)
    order = np.lexsort((target, source))
    source, target = source[order], target[order]
    total = len(source)
    for run in range(total, 0, -1):
        if total % run:
            continue
        first, second = source.reshape(-1, run), target.reshape(-1, run)
        regular = (np.diff(first) == 1).all() and (np.diff(second) == 1).all()
        for access, addresses in ((read, first), (write, second)):
            if access.partition_elements:
                regular &= (np.diff(addresses // access.partition_elements) == 0).all()
        if regular:
            return total // run
    return total


@given(st.data())
def test_descriptors_are_the_longest_runs_contiguous_on_both_sides(data: st.DataObject) -> None:
    sizes = [data.draw(st.sampled_from([1, 2, 4, 8])) for _ in range(data.draw(st.integers(1, 4)))]
    # HBM: any order of the dimensions, with gaps at any of them.
    steps, span = {}, 1
    for axis in data.draw(st.permutations(range(len(sizes)))):
        steps[axis] = span
        span *= sizes[axis] * data.draw(st.sampled_from([1, 1, 2]))
    read = hbm(*[(steps[axis], size) for axis, size in enumerate(sizes)], offset=data.draw(st.integers(0, 9)))
    # SBUF: dimension 0 over partitions, the rest in any order with gaps.
    places, inner = {}, 1
    for axis in data.draw(st.permutations(range(1, len(sizes)))):
        places[axis] = inner
        inner *= sizes[axis] * data.draw(st.sampled_from([1, 1, 2]))
    pattern = [(inner, sizes[0]), *[(places[axis], sizes[axis]) for axis in range(1, len(sizes))]]
    count = count_dma(copy(read, sbuf(*pattern, free=inner)))
    assert count.descriptor_count == runs_by_address(read, count_write := sbuf(*pattern, free=inner))
    assert count.write_bytes == count_write.byte_count == sum(size * number for size, number in count.packets)
    assert sum(count.engine_bytes) == count.write_bytes
    assert sum(count.engine_packets) == sum(number for _, number in count.packets) == count.descriptor_count
    assert count.partition_count == sizes[0]
    assert len(count.engine_bytes) == -(-sizes[0] // 8)


@given(st.data())
def test_patterns_of_other_shapes_pair_element_by_element(data: st.DataObject) -> None:
    """One flat HBM run into a tile of any factors of it."""
    factors = [data.draw(st.sampled_from([1, 2, 4])) for _ in range(3)]
    total = int(np.prod(factors)) * 2
    free = total // factors[0]
    read = hbm((data.draw(st.sampled_from([1, 2])), total))
    write = sbuf((free, factors[0]), (1, free), free=free)
    assert count_dma(copy(read, write)).descriptor_count == runs_by_address(read, write)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 20),
            st.lists(st.tuples(st.sampled_from([0, 1, 2, 3, 5, 8, 16]), st.integers(1, 5)), min_size=1, max_size=3),
            st.lists(st.tuples(st.sampled_from([0, 1, 4, 7, 32]), st.integers(1, 4)), max_size=2),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_distinct_bytes_are_a_set_of_addresses(
    accesses: list[tuple[int, list[tuple[int, int]], list[tuple[int, int]]]],
) -> None:
    touched: set[int] = set()
    given_accesses = []
    for offset, pattern, loops in accesses:
        access = hbm(*pattern, offset=offset, loop_steps=tuple(step for step, _ in loops))
        given_accesses.append((access, tuple(count for _, count in loops)))
        for iteration in itertools.product(*[range(count) for _, count in loops]):
            moved = sum(step * at for (step, _), at in zip(loops, iteration, strict=True))
            touched.update((element_addresses(access) + moved).tolist())
    assert distinct_bytes(given_accesses) == 4 * len(touched)


def test_addresses_from_the_device_have_no_distinct_bytes() -> None:
    assert distinct_bytes([(hbm((1, 4), indirection=Indirection.DYNAMIC_START), ())]) is None
    assert distinct_bytes([(hbm((1, 4), loop_steps=(4,)), (None,))]) is None
    assert distinct_bytes([(hbm((1, 4), loop_steps=(0,)), (None,))]) == 16


# Packets, as public captures show them


def test_hardware_dge_makes_one_packet_an_element() -> None:
    count = rows(128, 512, mode="hwdge")
    assert count.packets == ((512, 128),) and count.semaphore_packet_count == 16
    assert len(count.engine_packets) == 16 and count.is_exact
    assert not rows(128, 8192, mode="hwdge").is_exact  # no capture shows one above 4,096 B


@pytest.mark.parametrize(
    ("row_bytes", "stride", "packets"),
    [
        (2048, None, ((4096, 64),)),  # q, k, v of the S512 fp32 captures
        (512, None, ((4096, 16),)),  # an output tile
        (4096, None, ((4096, 128),)),
        (256, None, ((2048, 16),)),  # the documented [128, 128] bf16 load: 2 KiB on each of 16 engines
        (8192, None, ((8192, 128),)),
        (2048, 4096, ((2048, 128),)),  # rows with other data between them
    ],
)
def test_software_dge_joins_rows_that_follow_each_other(row_bytes: int, stride: int | None, packets: object) -> None:
    assert rows(128, row_bytes, stride).packets == packets


def test_a_cast_joins_nothing() -> None:
    # Fused bf16 captures: 1,024 packets of 256 B for eight tiles of 128 rows, 512 B to 256 B.
    count = count_dma(copy(sbuf((128, 128), (1, 128), free=128), hbm((128, 128), (1, 128), dtype="bfloat16"), "swdge"))
    assert count.packets == ((256, 128),) and count.cast
    assert (count.sbuf_read_bytes, count.hbm_write_bytes) == (65_536, 32_768)
    assert count.element_bytes == 512


@pytest.mark.parametrize(
    ("row_bytes", "stride", "packets"),
    [
        (8000, None, ((32004, 16), (32000, 16))),
        (2048, None, ((8196, 16), (8192, 16))),
        (4000, 8000, ((4004, 16), (4000, 112))),  # stream_256k_fd1k: 6 such DMAs are 96 x 4,004 and 672 x 4,000
        (512, 4096, ((4100, 16),)),  # small strided rows pack
        (96, 4096, ((772, 16),)),
    ],
)
def test_static_rings_join_rows_and_carry_the_semaphore(row_bytes: int, stride: int | None, packets: object) -> None:
    count = rows(128, row_bytes, stride, mode="none")
    assert count.packets == packets and count.semaphore_packet_count == 0


def test_transposes_and_gathers_are_bounds() -> None:
    source, target = hbm((64, 128), (1, 64)), sbuf((128, 64), (1, 128), free=128)
    loaded = count_dma(copy(source, target, transpose=True, op="load_transpose2d"))
    assert loaded.descriptor_count == 64 * 128 and not loaded.is_exact
    turned = count_dma(copy(source, target, transpose=True, op="dma_transpose"))
    assert turned.descriptor_count == 128 and not turned.is_exact
    gathered = count_dma(
        copy(
            hbm((64, 128), (1, 64), indirection=Indirection.GATHER, indirect_axis=0),
            sbuf((64, 128), (1, 64), free=64),
            "swdge",
        )
    )
    assert gathered.packets == ((256, 128),) and not gathered.is_exact  # rows land where indices say: none joins


def test_every_source_of_a_compute_dma_is_read() -> None:
    read, write = hbm((512, 128), (1, 512)), sbuf((512, 128), (1, 512), free=512)
    record = DmaRecord(
        sequence=0,
        op="dma_compute",
        module="isa",
        site=SITE,
        reads=(read, read, read),
        write=write,
        assumed_mode="none",
    )
    count = count_dma(record)
    assert count.hbm_read_bytes == 3 * 262_144 and count.sbuf_write_bytes == 262_144
    assert count.descriptor_count == 3 * 128


def test_execution_count_is_the_product_of_the_loops() -> None:
    known, unknown = Loop(0, "range", SITE, 7, ""), Loop(1, "dynamic_range", SITE, None, "n_reg")
    record = copy(hbm((1, 4)), sbuf((4, 1), (1, 4), free=4), loops=(LoopSpan(known, 2, 5), LoopSpan(unknown, 0, None)))
    assert record.execution_count == 5 and record.unknown_trips == ("n_reg",)

"""Regions against the addresses that an operand really touches."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from trnprof.nki.recording import Access, Memory
from trnprof.nki.timing.regions import Region, region_of


def access(offset: int, pattern: list[tuple[int, int]], *, pitch: int = 0, itemsize: int = 1) -> Access:
    return Access(
        0,
        "t",
        Memory.SBUF if pitch else Memory.HBM,
        "int8",
        itemsize,
        tuple(count for _, count in pattern),
        offset,
        tuple(pattern),
        pitch,
    )


def addresses(one: Access) -> set[int]:
    found = set()
    for places in product(*(range(count) for _, count in one.pattern)):
        element = one.offset + sum(step * place for (step, _), place in zip(one.pattern, places, strict=True))
        found |= {element * one.itemsize + byte for byte in range(one.itemsize)}
    return found


def test_tiles_of_a_matrix_side_by_side_do_not_overlap() -> None:
    # A [8, 64] matrix in HBM, tiles of [4, 16]: row pitch 64.
    left, right = access(0, [(64, 4), (1, 16)]), access(16, [(64, 4), (1, 16)])
    below = access(4 * 64, [(64, 4), (1, 16)])
    assert region_of(left) == Region(64, 0, 4, 0, 16)
    assert not region_of(left).overlaps(region_of(right))
    assert not region_of(left).overlaps(region_of(below))
    assert region_of(left).overlaps(region_of(access(8, [(64, 2), (1, 16)])))


def test_partitions_and_bytes_on_chip() -> None:
    # float32, 100 elements a partition: partitions 32 to 63, elements 10 to 19.
    one = access(32 * 100 + 10, [(100, 32), (1, 10)], pitch=100, itemsize=4)
    assert region_of(one) == Region(400, 32, 64, 40, 80)


def test_a_masked_operand_is_what_its_addresses_bound() -> None:
    import numpy as np

    base = access(0, [(100, 4), (1, 8)], pitch=100)
    masked = Access(
        **{name: getattr(base, name) for name in base.__slots__ if name != "offsets"}, offsets=np.array([205, 307])
    )
    assert region_of(masked) == Region(100, 2, 4, 5, 8)


def test_columns_between_the_runs_of_a_row_are_free() -> None:
    # A tile [2, 3, 4] of which each DMA fills one of the middle places: runs of 4 at steps of 12.
    first, second = (access(place * 4, [(12, 2), (1, 4)], pitch=24) for place in (0, 1))
    assert region_of(first) == Region(24, 0, 1, 0, 16, ((12, 2),), 4)
    assert not region_of(first).overlaps(region_of(second))
    assert region_of(first).overlaps(region_of(access(3, [(1, 2)], pitch=24)))
    # What lies in the gap was not overwritten.
    assert not region_of(first).covers(region_of(access(4, [(1, 4)], pitch=24)))
    assert region_of(first).covers(region_of(first))


ROWS = st.lists(st.tuples(st.sampled_from([1, 2, 3, 5, 8, 12, 24]), st.integers(1, 4)), min_size=1, max_size=3)


@settings(max_examples=400, deadline=None)
@given(st.tuples(st.integers(0, 40), ROWS), st.tuples(st.integers(0, 40), ROWS), st.sampled_from([1, 4]))
def test_overlap_inside_rows_is_exact(left: tuple, right: tuple, itemsize: int) -> None:
    both = [access(offset, pattern, pitch=1000, itemsize=itemsize) for offset, pattern in (left, right)]
    regions = [region_of(one) for one in both]
    touched = [addresses(one) for one in both]
    assert regions[0].overlaps(regions[1]) == bool(touched[0] & touched[1]) == regions[1].overlaps(regions[0])
    if regions[0].covers(regions[1]):
        assert touched[0] >= touched[1]


STEPS = st.sampled_from([1, 2, 8, 16, 64])
PATTERNS = st.lists(st.tuples(STEPS, st.integers(1, 4)), min_size=1, max_size=3).map(
    lambda dims: sorted(dims, reverse=True)
)
ACCESSES = st.builds(
    lambda offset, pattern, pitch, itemsize: access(offset, pattern, pitch=pitch, itemsize=itemsize),
    st.integers(0, 200),
    PATTERNS,
    st.just(0),
    st.just(1),
)


@settings(max_examples=300, deadline=None)
@given(ACCESSES, ACCESSES, st.sampled_from([0, 16, 64]))
def test_no_overlap_is_missed(left: Access, right: Access, pitch: int) -> None:
    """A region may hold more than is touched, never less: dependencies are at worst too many."""
    both = [access(one.offset, list(one.pattern), pitch=pitch) for one in (left, right)]
    regions = [region_of(one) for one in both]
    touched = [addresses(one) for one in both]
    if touched[0] & touched[1]:
        assert regions[0].overlaps(regions[1])
        assert regions[1].overlaps(regions[0])
    if regions[0].covers(regions[1]):
        assert regions[0].overlaps(regions[1])
        assert regions[0].first <= min(touched[1])
        assert max(touched[1]) < regions[0].end

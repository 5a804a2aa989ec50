"""What a storage holds, seen through patterns: NumPy's own views are the reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnprof.nki.dtypes import DTYPES
from trnprof.nki.values.cells import Cells, OutOfBoundsError

F32, U8, BF16, I32 = (DTYPES[name] for name in ("float32", "uint8", "bfloat16", "int32"))


@st.composite
def patterns(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[slice, ...]]:
    """A shape and one slice of each dimension that selects something."""
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    slices = []
    for size in shape:
        start = draw(st.integers(0, size - 1))
        step = draw(st.integers(1, 3))
        slices.append(slice(start, draw(st.integers(start + 1, size)), step))
    return tuple(shape), tuple(slices)


def pattern_of(shape: tuple[int, ...], slices: tuple[slice, ...]) -> tuple[list[int], list[int], int]:
    """Shape, strides and offset in elements, worked out from the slices alone."""
    strides, span = [], 1
    for size in reversed(shape):
        strides.insert(0, span)
        span *= size
    counts = [-(-(part.stop - part.start) // part.step) for part in slices]
    offset = sum(part.start * stride for part, stride in zip(slices, strides, strict=True))
    return counts, [stride * part.step for stride, part in zip(strides, slices, strict=True)], offset


@given(patterns())
@settings(max_examples=100)
def test_a_pattern_reads_and_writes_what_the_slice_names(case: tuple[tuple[int, ...], tuple[slice, ...]]) -> None:
    shape, slices = case
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    cells = Cells.of(array.copy(), F32, "t")
    counts, strides, offset = pattern_of(shape, slices)
    assert np.array_equal(cells.load(F32, counts, strides, offset), array[slices])
    cells.store(F32, counts, strides, offset, -array[slices])
    array[slices] *= -1
    assert np.array_equal(cells.array.reshape(shape), array)


@given(patterns(), st.data())
@settings(max_examples=100)
def test_what_is_missing_is_what_nothing_wrote(
    case: tuple[tuple[int, ...], tuple[slice, ...]], data: st.DataObject
) -> None:
    shape, slices = case
    cells = Cells(int(np.prod(shape)), F32, "t")
    written = np.zeros(shape, bool)
    counts, strides, offset = pattern_of(shape, slices)
    where = np.array(data.draw(st.lists(st.booleans(), min_size=int(np.prod(counts)), max_size=int(np.prod(counts)))))
    where = where.reshape(counts)
    cells.store(F32, counts, strides, offset, np.ones(counts, np.float32), where)
    written[slices] |= where
    assert cells.missing_count == int((~written).sum())
    whole = cells.load(F32, shape, pattern_of(shape, tuple(slice(0, size, 1) for size in shape))[1], 0)
    assert np.array_equal(np.isnan(whole), ~written)


def test_never_written_integers_read_as_a_pattern_that_is_no_index() -> None:
    assert Cells(4, I32, "t").load(I32, [4], [1], 0).tolist() == [0x55555555] * 4


def test_writing_half_of_each_element_leaves_all_of_them_incomplete() -> None:
    cells = Cells(4, F32, "t")
    cells.store(BF16, [4], [2], 0, np.ones(4, np.float32))  # the lower 16 bits of each float32
    assert bool(cells.missing_at(F32, [4], [1], 0).any(-1).all())
    cells.store(BF16, [4], [2], 1, np.ones(4, np.float32))
    assert cells.missing is None


def test_another_type_sees_the_same_bits() -> None:
    cells = Cells.of(np.array([1.0, -2.0], np.float32), F32, "t")
    assert cells.load(U8, [8], [1], 0).tolist() == [0, 0, 0x80, 0x3F, 0, 0, 0, 0xC0]  # little endian
    cells.store(U8, [1], [1], 3, np.array([0x40], np.uint8))  # 0x3f800000 -> 0x40800000
    assert cells.array.tolist() == [4.0, -2.0]


@pytest.mark.parametrize("pattern", [([5], [1], 0), ([2], [1], 3), ([2, 2], [2, 2], 0), ([2], [-1], 0)])
def test_a_pattern_that_leaves_its_storage_is_refused(pattern: tuple[list[int], list[int], int]) -> None:
    with pytest.raises(OutOfBoundsError, match="which has 4"):
        Cells(4, F32, "t").load(F32, *pattern)


def test_an_empty_or_one_element_window_at_the_end() -> None:
    cells = Cells.of(np.arange(4, dtype=np.float32), F32, "t")
    assert cells.load(F32, [1], [100], 3).tolist() == [3.0]
    assert cells.load(F32, [0], [1], 4).tolist() == []


def test_contents_reach_the_callers_array_without_a_copy() -> None:
    array = np.zeros(4, np.float32)
    Cells.of(array, F32, "t").store(F32, [2], [2], 0, np.ones(2, np.float32))
    assert array.tolist() == [1.0, 0.0, 1.0, 0.0]


def test_loose_cells_keep_float64_until_other_bits_are_written() -> None:
    third = np.array([1 / 3, 2 / 3])
    cells = Cells.of(third.astype(np.float64), BF16, "t", loose=True)
    assert cells.array.tolist() == third.tolist()
    # As bytes it shows bfloat16's: 1/3 is 0x3eab.
    assert cells.load(U8, [2], [1], 0).tolist() == [0xAB, 0x3E]
    cells.store(U8, [2], [1], 0, np.array([0x80, 0x3F], np.uint8))
    assert cells.array.tolist() == [1.0, 2 / 3]


def test_of_equal_addresses_the_last_write_stays() -> None:
    cells = Cells.of(np.zeros(3, np.float32), F32, "t")
    cells.store_at(F32, np.array([1, 1]), np.array([5.0, 7.0], np.float32))
    assert cells.array.tolist() == [0.0, 7.0, 0.0]
    assert cells.load_at(F32, np.array([[1], [0]])).tolist() == [[7.0], [0.0]]
    with pytest.raises(OutOfBoundsError):
        cells.load_at(F32, np.array([3]))

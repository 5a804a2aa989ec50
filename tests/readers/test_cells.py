"""Cells to columns: exact whatever the spelling, and every odd one counted."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from math import floor

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnprof.readers import cells

INT64 = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(INT64 | st.none()))
def test_an_integer_is_the_same_integer_in_every_spelling(values: list[int | None]) -> None:
    spelled = [None if value is None else str(value) for value in values]
    decimals = [None if value is None else f"{value}.000" for value in values]
    exact = [None if value is None else Decimal(value) for value in values]
    columns: list[cells.RawColumn] = [
        list(values),
        list(spelled),
        list(decimals),
        list(exact),
        pa.array(values, pa.int64()),
        pa.array(spelled, pa.string()),
        pa.array(spelled, pa.string()).dictionary_encode(),
        pa.array(spelled, pa.large_string()),
        pa.array(exact, pa.decimal128(38, 0)),
    ]
    for column in columns:
        found, odd = cells.integers(column)
        assert found.to_pylist() == values
        assert (odd.empty, odd.non_finite, odd.inexact, odd.unreadable) == (0, 0, 0, 0)


@given(st.lists(st.decimals(-(10**15), 10**15, places=6)), st.sampled_from([(1, 1), (1000, 1), (1, 1000), (10**3, 7)]))
def test_decimals_are_scaled_and_rounded_down_exactly(values: list[Decimal], scale: tuple[int, int]) -> None:
    expected = [floor(Fraction(value) * scale[0] / scale[1]) for value in values]
    assert cells.integers([str(value) for value in values], scale=scale)[0].to_pylist() == expected
    assert cells.integers(list(values), scale=scale)[0].to_pylist() == expected


@given(st.lists(st.integers(-(2**40), 2**40)), st.sampled_from([(1000, 1), (1, 1000), (10**9, 1)]))
def test_integers_are_scaled_exactly_or_not_at_all(values: list[int], scale: tuple[int, int]) -> None:
    found = cells.integers(pa.array(values, pa.int64()), scale=scale)[0].to_pylist()
    for value, scaled in zip(values, found, strict=True):
        expected = value * scale[0] // scale[1]
        assert scaled == (expected if -(2**63) <= expected < 2**63 else None)


@given(st.lists(st.floats()))
def test_floats_are_rounded_down_or_refused_where_they_are_not_exact(values: list[float]) -> None:
    found, odd = cells.integers(pa.array(values, pa.float64()))
    finite = [value for value in values if np.isfinite(value)]
    assert odd.non_finite == len(values) - len(finite)
    assert odd.inexact == sum(abs(value) > 2**53 for value in finite)
    expected = [floor(value) if np.isfinite(value) and abs(value) <= 2**53 else None for value in values]
    assert found.to_pylist() == expected


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32()])
def test_what_does_not_fit_is_null(kind: pa.DataType) -> None:
    edge = 2 ** (kind.bit_width - 1)
    found, odd = cells.integers([edge - 1, edge, -edge, -edge - 1, None], kind)
    assert found.type == kind
    assert found.to_pylist() == [edge - 1, None, -edge, None, None]
    assert odd.unreadable == 2


@given(st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]))))
def test_names_come_back(values: list[str | None]) -> None:
    for column in (list(values), pa.array(values, pa.string()), pa.array(values, pa.string()).dictionary_encode()):
        assert cells.names(column).to_pylist() == values
        assert cells.names(column, empty_is_null=True).to_pylist() == [value or None for value in values]


@given(st.lists(st.none() | st.sampled_from(["b", "a", "ü", "", "Z"]), max_size=30), st.integers(1, 4))
def test_a_canonical_name_column_is_the_same_whatever_its_chunks_and_dictionaries(
    values: list[str | None], pieces: int
) -> None:
    chunks = [pa.array(values[at::pieces], pa.string()).dictionary_encode() for at in range(pieces)]
    shuffled = pa.chunked_array(chunks)
    canonical = cells.canonical_names(shuffled)
    assert canonical.to_pylist() == shuffled.to_pylist()
    assert canonical.dictionary.to_pylist() == sorted({value for value in values if value is not None})


def test_core_names() -> None:
    found, odd = cells.cores(["sg00", "/sg01", "1", "", None, "sg128", "core 1", "sg-1"])
    assert found.to_pylist() == [0, 1, 1, None, None, None, None, None]
    assert odd.unreadable == 3
    assert cells.cores(pa.array([0, 127, 128, -1, None]))[0].to_pylist() == [0, 127, None, None, None]


def test_booleans_and_floats() -> None:
    assert cells.booleans(["yes", "No", True, 0, "1", "maybe", None]).to_pylist() == [
        True,
        False,
        True,
        False,
        True,
        None,
        None,
    ]
    assert cells.booleans(pa.array([True, None])).to_pylist() == [True, None]
    assert (
        cells.floats([1, "2.5", Decimal("0.5"), "nan", float("inf"), "x", None, True]).to_pylist()
        == [1.0, 2.5, 0.5] + [None] * 5
    )
    assert cells.floats(pa.array([1, None], pa.int64())).to_pylist() == [1.0, None]

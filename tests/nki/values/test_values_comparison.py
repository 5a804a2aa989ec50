"""Figures of an output against a reference. Expected values are worked by hand."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from trnprof.nki.values.comparison import compare, ulp_distance

REFERENCE = np.array([[1.0, -2.0, 4.0], [0.0, 8.0, -16.0]], np.float32)


def test_equal_arrays() -> None:
    found = compare(REFERENCE.copy(), REFERENCE, "float32")
    assert found.agrees
    assert (found.max_abs_error, found.max_rel_error, found.relative_frobenius) == (0, 0, 0)
    assert (found.bad_count, found.first_bad_index, found.element_count) == (0, (), 6)
    assert next((one.most, one.count) for one in found.ulps) == (0, 6)
    assert sum(one.count for one in found.ulps) == 6


def test_one_wrong_element_is_named_with_both_values() -> None:
    output = REFERENCE.copy()
    output[1, 1] = 9
    found = compare(output, REFERENCE, "float32")
    assert not found.agrees
    assert (found.bad_count, found.first_bad_index) == (1, (1, 1))
    assert (found.first_bad_value, found.first_reference_value) == ("9", "8")
    assert (found.max_abs_error, found.max_rel_error) == (1, 0.125)
    # Norm of the reference: sqrt(1 + 4 + 16 + 64 + 256) = sqrt(341).
    assert found.relative_frobenius == pytest.approx(1 / 341**0.5)


def test_the_tolerance_is_absolute_plus_relative() -> None:
    reference = np.array([100.0, 0.0])
    output = np.array([101.0, 0.5])
    assert compare(output, reference, "float32", rtol=0.01, atol=0.5).agrees
    assert compare(output, reference, "float32", rtol=0.01, atol=0.4).first_bad_index == (1,)
    assert compare(output, reference, "float32", rtol=0.001, atol=0.5).first_bad_index == (0,)


def test_without_a_tolerance_sums_that_cancel_are_judged_by_the_size_of_the_tensor() -> None:
    # bfloat16: 2 % of the root mean square sqrt((100^2 + 0)/2) = 70.7, so 1.4 is allowed where the reference is 0.
    reference = np.array([100.0, 0.0])
    assert compare(np.array([100.0, 1.4]), reference, "bfloat16").agrees
    assert not compare(np.array([100.0, 1.5]), reference, "bfloat16").agrees
    assert not compare(np.array([100.0, 1.4]), reference, "float32").agrees


def test_integers_must_be_equal() -> None:
    reference = np.array([2**30, 5])
    assert compare(reference.copy(), reference, "int32").agrees
    found = compare(np.array([2**30, 6]), reference, "int32")
    assert (found.bad_count, found.atol, found.rtol) == (1, 0, 0)


def test_infinities_and_nan_only_equal_themselves() -> None:
    reference = np.array([np.inf, np.nan, 1.0, 1.0])
    assert compare(reference.copy(), reference, "float32").agrees
    found = compare(np.array([np.nan, np.nan, np.inf, 1.0]), reference, "float32")
    assert (found.bad_count, found.nan_count, found.first_bad_index) == (2, 1, (0,))
    assert found.ulps[-1].count == 2


def test_distances_in_units_of_the_last_place() -> None:
    # bfloat16 after 1.0 steps by 2^-7, across 0 by the smallest denormals.
    step = 2.0**-7
    reference = np.array([1.0, 1.0, 1.0, 0.0, 1.0])
    output = np.array([1.0, 1 + step, 1 + 5 * step, -0.0, 2.0])
    distance, finite = ulp_distance(output, reference, "bfloat16")
    assert distance.tolist() == [0, 1, 5, 0, 128]
    assert finite.all()
    found = {one.most: one.count for one in compare(output, reference, "bfloat16").ulps}
    assert (found[0], found[1], found[8], found[256]) == (2, 1, 1, 1)


@given(arrays(np.float32, 10, elements=st.floats(width=32, allow_nan=False, allow_infinity=False)))
@settings(max_examples=50)
def test_the_next_representable_number_is_one_unit_away(values: np.ndarray) -> None:
    with np.errstate(over="ignore"):
        above = np.nextafter(values, np.float32(np.inf))
    finite = np.isfinite(above)
    distance, _ = ulp_distance(above[finite].astype(np.float64), values[finite].astype(np.float64), "float32")
    assert (distance == 1).all()


# How mistakes show themselves


def test_rows_that_repeat_where_the_references_differ() -> None:
    reference = np.arange(32, dtype=np.float32).reshape(8, 4)
    output = reference.copy()
    output[4:] = output[:4]  # the loop read the first tile twice
    found = compare(output, reference, "float32").repeated
    assert found is not None
    assert (found.count, found.row, found.equals_row) == (4, 4, 0)
    # Rows that repeat in the reference too are right.
    assert compare(output, output.copy(), "float32").repeated is None


def test_an_output_of_zeros() -> None:
    found = compare(np.zeros_like(REFERENCE), REFERENCE, "float32")
    assert found.is_all_zero
    assert found.relative_frobenius == 1
    assert found.repeated is None
    assert not compare(np.zeros(3), np.zeros(3), "float32").is_all_zero


def test_a_reference_of_zeros_has_no_relative_error() -> None:
    assert compare(np.ones(3), np.zeros(3), "float32").relative_frobenius is None


def test_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(2,\).*\(3,\)"):
        compare(np.zeros(2), np.zeros(3), "float32")


def test_an_empty_output_agrees() -> None:
    assert compare(np.zeros((0, 4)), np.zeros((0, 4)), "float32").agrees


def test_low_precision_outputs_are_compared_as_numbers() -> None:
    reference = np.array([1 / 3, 2 / 3])
    found = compare(reference.astype(ml_dtypes.bfloat16), reference, "bfloat16")
    assert found.agrees
    assert next(one.count for one in found.ulps) == 2
    assert found.max_rel_error < 2**-8

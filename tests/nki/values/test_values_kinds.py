"""Element types: rounding to them, packing, and where nothing has been written."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from trnprof.nki.dtypes import DTYPES
from trnprof.nki.values.kinds import NUMPY, PACKED, packed, rounded, unpacked


def test_every_type_of_the_language_has_an_array_type_of_its_size() -> None:
    assert {name: NUMPY[name].itemsize for name in DTYPES} == {name: kind.itemsize for name, kind in DTYPES.items()}


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        # bfloat16 keeps 8 significant bits: 1 + 2^-8 lies half way between 1 and 1 + 2^-7, and the even one is 1.
        ("bfloat16", 1 + 2**-8, 1.0),
        ("bfloat16", 1 + 3 * 2**-8, 1 + 2**-6),
        ("bfloat16", 1 + 2**-8 + 2**-20, 1 + 2**-7),
        # float16 keeps 11: the largest is 65504, and from 65520 on it is infinity.
        ("float16", 2049.0, 2048.0),
        ("float16", 2051.0, 2052.0),
        ("float16", 65519.0, 65504.0),
        ("float16", 65520.0, np.inf),
        # tfloat32 keeps 11 too, with float32's exponents.
        ("tfloat32", 1 + 2**-11, 1.0),
        ("tfloat32", 1 + 3 * 2**-11, 1 + 2**-9),
        ("tfloat32", 1e38, 1e38),
        # float8_e4m3 (IEEE) ends at 240, e4m3fn at 448, e5m2 at 57344; 3, 3 and 2 mantissa bits.
        ("float8_e4m3", 17.0, 16.0),
        ("float8_e4m3", 1000.0, np.inf),
        ("float8_e4m3fn", 448.0, 448.0),
        ("float8_e5m2", 9.0, 8.0),
        ("float8_e3m4", 15.5, 15.5),
        # Integers: nearest even, saturating, NaN to 0.
        ("int8", 2.5, 2),
        ("int8", 3.5, 4),
        ("int8", -1000.0, -128),
        ("uint8", -1.0, 0),
        ("uint8", 300.0, 255),
        ("int32", 3e9, 2**31 - 1),
        ("uint32", 3e9, 3_000_000_000),
        ("int64", 1e30, 2**63 - 1),
        ("int16", np.nan, 0),
    ],
)
def test_rounding(dtype: str, value: float, expected: float) -> None:
    found = float(rounded(np.array([value], np.float64 if abs(value) < 1e30 else np.float32), dtype)[0])
    assert found == pytest.approx(expected, rel=1e-3 if dtype == "tfloat32" and value > 2 else 0)


@given(arrays(np.float32, 20, elements=st.floats(width=32, allow_nan=False, min_value=-(2.0**100), max_value=2.0**100)))
@settings(max_examples=50)
def test_tfloat32_is_the_nearest_number_of_eleven_bits(values: np.ndarray) -> None:
    found = rounded(values, "tfloat32").astype(np.float64)
    mantissa, exponent = np.frexp(found)
    assert np.array_equal(mantissa * 2**11, np.rint(mantissa * 2**11))
    _, exponent = np.frexp(values.astype(np.float64))
    assert (np.abs(found - values) <= np.ldexp(0.5, np.maximum(exponent, -125) - 11)).all()


@pytest.mark.parametrize("dtype", sorted(PACKED))
def test_packed_types_hold_four_elements_lowest_bits_first(dtype: str) -> None:
    numbers = np.array([[[0.5, 1.0, -2.0, 4.0]]], np.float32)
    bits = packed(numbers, dtype)
    assert bits.shape == (1, 1)
    assert np.array_equal(unpacked(bits, dtype), numbers)
    width = NUMPY[dtype].itemsize * 2
    first = np.array([0.5], PACKED[dtype]).view(np.uint8)[0]
    assert int(bits[0, 0]) & ((1 << width) - 1) == int(first)


def test_a_float4_element_by_hand() -> None:
    # e2m1: sign, two exponent bits (bias 1), one mantissa bit: 0b0111 = 1.5 * 2^2 = 6, 0b1001 = -0.5, 0b0010 = 1.
    assert unpacked(np.array([0x0_2_9_7], np.uint16), "float4_e2m1fn_x4")[0].tolist() == [6.0, -0.5, 1.0, 0.0]


@given(arrays(np.uint32, 8))
@settings(max_examples=30)
def test_packing_what_was_unpacked_changes_no_bit(bits: np.ndarray) -> None:
    elements = bits.view(ml_dtypes.float8_e4m3fn)
    finite = np.where(np.isnan(elements.astype(np.float32)), np.uint8(0), bits.view(np.uint8)).view(np.uint32)
    assert np.array_equal(packed(unpacked(finite, "float8_e4m3fn_x4"), "float8_e4m3fn_x4"), finite)

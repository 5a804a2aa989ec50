"""nki.language on tiles, and how the first generation spells things. Expected values are worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.nki.values.running import FIRST, f32, refusal, result

X = f32([1, -2, 3], [4, 5, -6])
Y = f32([2, 2, 2], [-1, 4, 3])
BODY = """
x, y = nl.load(a), nl.load(b)
r = {expression}
out = nl.ndarray(r.shape, dtype=r.dtype, buffer=nl.shared_hbm)
nl.store(out, r)
return out
"""


def value(expression: str, x: np.ndarray = X, y: np.ndarray = Y) -> list:
    return result(BODY.replace("{expression}", expression), x, y, head=FIRST).astype(np.float64).tolist()


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("nl.add(x, y)", X + Y),
        ("x - y", X - Y),
        ("x * 2.0 + 1.0", 2 * X + 1),
        ("1.0 / y", 1 / Y),
        ("nl.divide(x, y)", X / Y),
        ("nl.maximum(x, y)", [[2, 2, 3], [4, 5, 3]]),
        ("nl.minimum(x, 0.0)", [[0, -2, 0], [0, 0, -6]]),
        ("nl.power(x, 2)", X**2),
        ("nl.mod(x, 3.0)", [[1, 1, 0], [1, 2, 0]]),  # the divisor's sign
        ("nl.fmod(x, 3.0)", [[1, -2, 0], [1, 2, -0.0]]),  # the dividend's
        ("nl.floor_divide(x, 2.0)", [[0, -1, 1], [2, 2, -3]]),
        ("nl.abs_max(x, y)", [[2, 2, 3], [4, 5, -6]]),
        ("nl.abs_min(x, y)", [[1, 2, 2], [-1, 4, 3]]),
        ("nl.less(x, y, dtype=nl.float32)", [[1, 1, 0], [0, 0, 1]]),
        ("nl.less_equal(x, y, dtype=nl.float32)", [[1, 1, 0], [0, 0, 1]]),
        ("nl.greater(x, y, dtype=nl.float32)", [[0, 0, 1], [1, 1, 0]]),
        ("nl.greater_equal(x, y, dtype=nl.float32)", [[0, 0, 1], [1, 1, 0]]),
        ("nl.equal(x, 3.0, dtype=nl.float32)", [[0, 0, 1], [0, 0, 0]]),
        ("nl.not_equal(x, 3.0, dtype=nl.float32)", [[1, 1, 0], [1, 1, 1]]),
        ("nl.logical_and(x, y, dtype=nl.float32)", [[1, 1, 1], [1, 1, 1]]),
        ("nl.logical_or(x - x, y - 2.0, dtype=nl.float32)", [[0, 0, 0], [1, 1, 1]]),
        ("nl.logical_xor(x, y - 2.0, dtype=nl.float32)", [[1, 1, 1], [0, 0, 0]]),
        ("nl.logical_not(y - 2.0, dtype=nl.float32)", [[1, 1, 1], [0, 0, 0]]),
        ("nl.negative(x)", -X),
        ("nl.abs(x)", np.abs(X)),
        ("nl.square(x)", X**2),
        ("nl.sign(x)", np.sign(X)),
        ("nl.ceil(x * 0.5)", [[1, -1, 2], [2, 3, -3]]),
        ("nl.floor(x * 0.5)", [[0, -1, 1], [2, 2, -3]]),
        ("nl.trunc(x * 0.5)", [[0, -1, 1], [2, 2, -3]]),
        ("nl.relu(x)", [[1, 0, 3], [4, 5, 0]]),
        ("nl.relu_dx(x)", [[1, 0, 1], [1, 1, 0]]),
        ("nl.copy(x, dtype=nl.int8)", X),
        ("nl.bypass(x)", X),
        ("nl.reciprocal(y)", 1 / Y),
        ("nl.where(x > 0.0, x, y)", [[1, 2, 3], [4, 5, 3]]),
        ("nl.where(x > 0.0, 1.0, y)", [[1, 2, 1], [1, 1, 3]]),
        ("nl.sum(x, axis=1)", [[2], [3]]),
        ("nl.sum(x, axis=[1], keepdims=True)", [[2], [3]]),
        ("nl.max(x, axis=1)", [[3], [5]]),
        ("nl.min(x, axis=1)", [[-2], [-6]]),
        ("nl.mean(y, axis=1)", [[2], [2]]),
        ("nl.average(y, axis=1)", [[2], [2]]),
        ("nl.prod(x, axis=1)", [[-6], [-120]]),
        ("nl.var(y, axis=1)", [[0], [14 / 3]]),  # of -1, 4, 3 about 2: 9 + 4 + 1 over 3
        ("nl.all(x - 1.0, axis=1, dtype=nl.float32)", [[0], [1]]),
        ("nl.any(y - 2.0, axis=1, dtype=nl.float32)", [[0], [1]]),
        ("nl.broadcast_to(x[:, 0:1], (2, 3))", [[1, 1, 1], [4, 4, 4]]),
        ("nl.expand_dims(x, 1)[:, 0, :]", X),
        ("nl.copy(nl.transpose(x))", X.T),
        ("nl.copy(nl.matmul(x, y, transpose_x=True))", X.T @ Y),
        ("nl.copy(nl.matmul(nl.ones((2, 2), dtype=nl.float32), y))", [[1, 6, 5], [1, 6, 5]]),
    ],
)
def test_operators_functions_and_reductions(expression: str, expected: object) -> None:
    assert value(expression) == pytest.approx(np.array(expected, np.float64), rel=1e-6)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("exp", math.exp),
        ("log", math.log),
        ("sqrt", math.sqrt),
        ("rsqrt", lambda x: 1 / math.sqrt(x)),
        ("tanh", math.tanh),
        ("sigmoid", lambda x: 1 / (1 + math.exp(-x))),
        ("gelu", lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2)))),
        ("gelu_apprx_tanh", lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
        ("gelu_apprx_sigmoid", lambda x: x / (1 + math.exp(-1.702 * x))),
        ("silu", lambda x: x / (1 + math.exp(-x))),
        ("softplus", lambda x: math.log(1 + math.exp(x))),
        ("mish", lambda x: x * math.tanh(math.log(1 + math.exp(x)))),
        ("erf", math.erf),
        ("erf_dx", lambda x: 2 / math.sqrt(math.pi) * math.exp(-x * x)),
        ("sin", math.sin),
        ("cos", math.cos),
        ("tan", math.tan),
        ("arctan", math.atan),
        ("log1p", math.log1p),
        ("expm1", math.expm1),
        ("sinh", math.sinh),
        ("cosh", math.cosh),
        ("tanh_dx", lambda x: 1 - math.tanh(x) ** 2),
        ("sigmoid_dx", lambda x: math.exp(-x) / (1 + math.exp(-x)) ** 2),
        ("silu_dx", lambda x: (1 + math.exp(-x) * (1 + x)) / (1 + math.exp(-x)) ** 2),
    ],
)
def test_functions_against_the_math_library(name: str, function: object) -> None:
    x = f32([0.25, 0.5, 1.25])
    expected = [function(float(one)) for one in x[0]]  # type: ignore[operator]
    assert value(f"nl.{name}(x)", x, x)[0] == pytest.approx(expected, rel=2e-6)


@pytest.mark.parametrize("name", ["gelu_dx", "gelu_apprx_tanh_dx", "gelu_apprx_sigmoid_dx"])
def test_derivatives_of_gelu(name: str) -> None:
    x = np.linspace(-2, 2, 9, dtype=np.float32)[None]
    step = np.float32(2**-7)
    base = name.removesuffix("_dx")
    slope = (np.array(value(f"nl.{base}(x)", x + step, x)) - np.array(value(f"nl.{base}(x)", x - step, x))) / (2 * step)
    assert np.array(value(f"nl.{name}(x)", x, x)) == pytest.approx(slope, abs=1e-4)


@pytest.mark.parametrize("name", ["leaky_relu", "prelu"])
def test_leaky_functions_without_a_slope_are_relu(name: str) -> None:
    assert value(f"nl.{name}(x)") == [[1, 0, 3], [4, 5, 0]]


def test_bits() -> None:
    x, y = np.array([[0b1100, 7]], np.int32), np.array([[0b1010, 2]], np.int32)
    for expression, expected in (
        ("nl.bitwise_and(x, y)", [8, 2]),
        ("nl.bitwise_or(x, y)", [14, 7]),
        ("nl.bitwise_xor(x, y)", [6, 5]),
        ("nl.invert(x)", [-13, -8]),
        ("nl.left_shift(x, 2)", [48, 28]),
        ("nl.right_shift(x, 2)", [3, 1]),
        ("nl.logical_shift_right(x, 2)", [3, 1]),
        ("nl.arithmetic_shift_right(nl.negative(x), 2)", [-3, -2]),
    ):
        assert value(expression, x, y) == [expected], expression


def test_softmax_sums_to_one_and_is_what_it_says() -> None:
    expected = np.exp(X - X.max(1, keepdims=True))
    expected /= expected.sum(1, keepdims=True)
    assert np.array(value("nl.softmax(x, axis=1)")) == pytest.approx(expected, rel=1e-6)


def test_rms_norm() -> None:
    # Row 0: squares 1 + 4 + 9 = 14, mean 14/3.
    found = np.array(value("nl.rms_norm(x, y, axis=1, epsilon=0.0)"))
    assert found[0] == pytest.approx(X[0] * Y[0] / math.sqrt(14 / 3), rel=1e-6)


def test_host_arithmetic_stays_on_the_host() -> None:
    assert value("x * nl.maximum(2, 3)") == (3 * X).tolist()


def test_an_error_of_the_kernels_python_names_its_line() -> None:
    error = refusal("y = a.shape[5]", X)
    assert error.site is not None
    assert error.site.frames[0].line == 5

"""Element by element: copies, operators, activations, selections, patterns. Expected values are worked by hand."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from tests.nki.values.running import FIRST, f32, instruction, refusal, result, run

OUT = {"d": ((2, 3), "float32")}
X = f32([1, -2, 3], [4, 5, -6])
Y = f32([2, 2, 2], [-1, 0, 3])


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("add", [[3, 0, 5], [3, 5, -3]]),
        ("subtract", [[-1, -4, 1], [5, 5, -9]]),
        ("multiply", [[2, -4, 6], [-4, 0, -18]]),
        ("divide", [[0.5, -1, 1.5], [-4, np.inf, -2]]),
        ("maximum", [[2, 2, 3], [4, 5, 3]]),
        ("minimum", [[1, -2, 2], [-1, 0, -6]]),
        ("power", [[1, 4, 9], [0.25, 1, -216]]),
        ("equal", [[0, 0, 0], [0, 0, 0]]),
        ("not_equal", [[1, 1, 1], [1, 1, 1]]),
        ("less", [[1, 1, 0], [0, 0, 1]]),
        ("less_equal", [[1, 1, 0], [0, 0, 1]]),
        ("greater", [[0, 0, 1], [1, 1, 0]]),
        ("greater_equal", [[0, 0, 1], [1, 1, 0]]),
        ("logical_and", [[1, 1, 1], [1, 0, 1]]),
        ("logical_or", [[1, 1, 1], [1, 1, 1]]),
        ("logical_xor", [[0, 0, 0], [0, 1, 0]]),
    ],
)
def test_tensor_tensor_operators(op: str, expected: list[list[float]]) -> None:
    found = instruction(f"tensor_tensor(dst=d, data1=x, data2=y, op=nl.{op})", OUT, x=X, y=Y)
    assert found.tolist() == expected


@pytest.mark.parametrize(
    ("op", "left", "right", "expected"),
    [
        ("bitwise_and", 0b1100, 0b1010, 0b1000),
        ("bitwise_or", 0b1100, 0b1010, 0b1110),
        ("bitwise_xor", 0b1100, 0b1010, 0b0110),
        ("left_shift", 3, 4, 48),
        ("logical_shift_right", 0xF0, 4, 0xF),
        ("right_shift", 0xF0, 40, 0),
        ("add", 2**24 + 1, 2, 2**24 + 3),  # float32 would give 2^24 + 4 or + 2
        ("multiply", 70_000, 70_000, 70_000 * 70_000 % 2**32),
    ],
)
def test_integers_of_32_bits_are_exact(op: str, left: int, right: int, expected: int) -> None:
    x, y = (np.array([[value]], np.uint32) for value in (left, right))
    found = instruction(f"tensor_tensor(dst=d, data1=x, data2=y, op=nl.{op})", {"d": ((1, 1), "uint32")}, x=x, y=y)
    assert int(found[0, 0]) == expected


def test_arithmetic_shift_keeps_the_sign() -> None:
    x = np.array([[-16, 16]], np.int32)
    found = instruction(
        "tensor_scalar(dst=d, data=x, op0=nl.arithmetic_shift_right, operand0=2)", {"d": ((1, 2), "int32")}, x=x
    )
    assert found.tolist() == [[-4, 4]]


def test_bfloat16_operands_are_added_in_float32_and_rounded_once() -> None:
    # 256 + 1.5 = 257.5 needs 10 bits; bfloat16 keeps 8: multiples of 2 there, and 258 is nearest.
    x, y = np.array([[256]], ml_dtypes.bfloat16), np.array([[1.5]], ml_dtypes.bfloat16)
    call = "tensor_tensor(dst=d, data1=x, data2=y, op=nl.add)"
    assert instruction(call, {"d": ((1, 1), "bfloat16")}, x=x, y=y).tolist() == [[258]]
    assert instruction(call, {"d": ((1, 1), "float32")}, x=x, y=y).tolist() == [[257.5]]


def test_tensor_scalar_applies_two_operators_with_numbers_and_one_value_a_partition() -> None:
    call = "tensor_scalar(dst=d, data=x, op0=nl.multiply, operand0=2.0, op1=nl.add, operand1=v)"
    found = instruction(call, OUT, x=X, v=f32([10], [20]))
    assert found.tolist() == [[12, 6, 16], [28, 30, 8]]


def test_tensor_scalar_reversed() -> None:
    call = "tensor_scalar(dst=d, data=x, op0=nl.subtract, operand0=10.0, reverse0=True, op1=nl.divide, operand1=2.0)"
    assert instruction(call, OUT, x=X).tolist() == [[4.5, 6, 3.5], [3, 2.5, 8]]


def test_scalar_tensor_tensor() -> None:
    call = "scalar_tensor_tensor(dst=d, data=x, op0=nl.multiply, operand0=2.0, op1=nl.subtract, operand1=y)"
    assert instruction(call, OUT, x=X, y=Y).tolist() == [[0, -6, 4], [9, 10, -15]]
    backwards = call.replace("operand1=y", "operand1=y, reverse1=True")
    assert instruction(backwards, OUT, x=X, y=Y).tolist() == [[0, 6, -4], [-9, -10, 15]]


def test_tensor_scalar_reduce_writes_the_elements_and_their_sum() -> None:
    call = "tensor_scalar_reduce(dst=d, data=x, op0=nl.add, operand0=1.0, reduce_op=nl.add, reduce_res=r)"
    elements, sums = instruction(call, {**OUT, "r": ((2, 1), "float32")}, x=X)
    assert elements.tolist() == [[2, -1, 4], [5, 6, -5]]
    assert sums.tolist() == [[5], [6]]


def test_tensor_copy_rounds_and_memset_fills() -> None:
    assert instruction("tensor_copy(dst=d, src=x)", {"d": ((2, 3), "int8")}, x=X * 100.5).tolist() == [
        [100, -128, 127],
        [127, 127, -128],
    ]
    assert instruction("memset(dst=d, value=1.5)", OUT).tolist() == [[1.5] * 3] * 2
    assert instruction("memset(dst=d, value=300)", {"d": ((1, 2), "uint8")}).tolist() == [[255, 255]]


def test_tensor_copy_predicated_leaves_the_others_as_they_were() -> None:
    where = np.array([[1, 0, 7], [0, 0, 1]], np.uint8)
    call = "tensor_copy_predicated(dst=d, src=x, predicate=w)"
    assert instruction(call, {"d": Y}, x=X, w=where).tolist() == [[1, 2, 3], [-1, 0, -6]]
    turned = call.replace("predicate=w", "predicate=w, reverse_pred=True")
    assert instruction(turned, {"d": Y}, x=X, w=where).tolist() == [[2, -2, 2], [4, 5, 3]]


def test_select_reduce() -> None:
    where = np.array([[1, 0, 1], [0, 0, 1]], np.uint8)
    call = "select_reduce(dst=d, predicate=w, on_true=x, on_false=0.5, reduce_res=r, reduce_cmd=nisa.reduce_cmd.reset_reduce)"
    elements, largest = instruction(call, {**OUT, "r": ((2, 1), "float32")}, x=X, w=where)
    assert elements.tolist() == [[1, 0.5, 3], [0.5, 0.5, -6]]
    assert largest.tolist() == [[3], [0.5]]


def test_range_select_keeps_what_lies_between_two_bounds() -> None:
    low, high = f32([0], [1]), f32([1], [2])
    call = (
        "range_select(dst=d, on_true_tile=x, comp_op0=nl.greater_equal, comp_op1=nl.less, bound0=lo, bound1=hi, "
        "reduce_res=r, reduce_op=nl.maximum, on_false_value=-99.0)"
    )
    elements, largest = instruction(call, {**OUT, "r": ((2, 1), "float32")}, x=X, lo=low, hi=high)
    assert elements.tolist() == [[1, -99, -99], [-99, 5, -99]]
    assert largest.tolist() == [[1], [5]]


def test_iota_counts_in_patterns() -> None:
    call = "iota(dst=d, pattern=[[10, 2], [1, 3]], offset=5, channel_multiplier=100)"
    found = instruction(call, {"d": ((2, 2, 3), "int32")})
    assert found.tolist() == [[[5, 6, 7], [15, 16, 17]], [[105, 106, 107], [115, 116, 117]]]


def test_affine_select_keeps_the_lower_triangle() -> None:
    # 0 + 1 * partition - 1 * column >= 0
    call = (
        "affine_select(dst=d, pattern=[[-1, 3]], offset=0, channel_multiplier=1, on_true_tile=x, on_false_value=-1.0, "
        "cmp_op=nl.greater_equal)"
    )
    found = instruction(call, {"d": ((3, 3), "float32")}, x=f32([1, 2, 3], [4, 5, 6], [7, 8, 9]))
    assert found.tolist() == [[1, -1, -1], [4, 5, -1], [7, 8, 9]]


FUNCTIONS = {
    "exp": math.exp,
    "tanh": math.tanh,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "gelu_apprx_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_apprx_sigmoid": lambda x: x / (1 + math.exp(-1.702 * x)),
    "erf": math.erf,
    "softplus": lambda x: math.log(1 + math.exp(x)),
    "mish": lambda x: x * math.tanh(math.log(1 + math.exp(x))),
    "relu": lambda x: max(x, 0.0),
    "sin": math.sin,
    "cos": math.cos,
    "arctan": math.atan,
    "square": lambda x: x * x,
    "abs": abs,
    "sign": lambda x: math.copysign(1, x),
    "log": lambda x: math.log(abs(x)),
    "sqrt": lambda x: math.sqrt(abs(x)),
    "rsqrt": lambda x: 1 / math.sqrt(abs(x)),
    "reciprocal": lambda x: 1 / x,
}
POSITIVE = {"log", "sqrt", "rsqrt"}


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_activation_functions_against_the_math_library(name: str) -> None:
    x = f32([-1.5, -0.25, 0.125], [0.75, 1.0, 1.5])
    given = np.abs(x) if name in POSITIVE else x
    found = instruction(f"activation(dst=d, op=nl.{name}, data=x)", OUT, x=given)
    expected = [[FUNCTIONS[name](float(value)) for value in row] for row in given]
    assert found == pytest.approx(np.array(expected), rel=2e-6, abs=1e-7)


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("gelu_dx", "gelu"),
        ("gelu_apprx_tanh_dx", "gelu_apprx_tanh"),
        ("gelu_apprx_sigmoid_dx", "gelu_apprx_sigmoid"),
        ("silu_dx", "silu"),
        ("tanh_dx", "tanh"),
        ("sigmoid_dx", "sigmoid"),
        ("erf_dx", "erf"),
        ("relu_dx", "relu"),
    ],
)
def test_derivatives_are_the_slopes_of_their_functions(name: str, base: str) -> None:
    x = f32([-1.5, -0.25, 0.75])
    found = instruction(f"activation(dst=d, op=nl.{name}, data=x)", {"d": ((1, 3), "float32")}, x=x)
    slopes = [(FUNCTIONS[base](float(v) + 1e-5) - FUNCTIONS[base](float(v) - 1e-5)) / 2e-5 for v in x[0]]
    assert found[0] == pytest.approx(slopes, rel=2e-5, abs=1e-6)


def test_activation_scales_then_adds_a_bias_and_sums() -> None:
    call = (
        "activation(dst=d, op=nl.square, data=x, scale=2.0, bias=bias, reduce_op=nl.add, reduce_res=r, "
        "reduce_cmd=nisa.reduce_cmd.reset_reduce)"
    )
    elements, sums = instruction(call, {**OUT, "r": ((2, 1), "float32")}, x=X, bias=f32([1], [-1]))
    assert elements.tolist() == [[9, 9, 49], [49, 81, 169]]
    assert sums.tolist() == [[67], [299]]


def test_activation_reduce_starts_over_each_time() -> None:
    body = """
x = nl.ndarray((2, 3), nl.float32, buffer=nl.sbuf)
nisa.dma_copy(dst=x, src=a)
d = nl.ndarray((2, 3), nl.float32, buffer=nl.sbuf)
r = nl.ndarray((2, 1), nl.float32, buffer=nl.sbuf)
for i in range(3):
    nisa.activation_reduce(dst=d, op=nl.copy, data=x, reduce_op=nl.add, reduce_res=r)
out = nl.ndarray((2, 1), nl.float32, buffer=nl.shared_hbm)
nisa.dma_copy(dst=out, src=r)
return out
"""
    assert result(body, X).tolist() == [[2], [3]]


def test_the_scalar_engines_accumulators_go_on_until_a_reset() -> None:
    body = """
x = nl.ndarray((2, 3), nl.float32, buffer=nl.sbuf)
nisa.dma_copy(dst=x, src=a)
d = nl.ndarray((2, 3), nl.float32, buffer=nl.sbuf)
r = nl.ndarray((2, 1), nl.float32, buffer=nl.sbuf)
for i in range(3):
    first = nisa.reduce_cmd.reset_reduce if i == 0 else nisa.reduce_cmd.reduce
    nisa.activation(dst=d, op=nl.copy, data=x, reduce_op=nl.add, reduce_res=r, reduce_cmd=first)
out = nl.ndarray((2, 1), nl.float32, buffer=nl.shared_hbm)
nisa.dma_copy(dst=out, src=r)
return out
"""
    assert result(body, X).tolist() == [[6], [9]]


def test_activate2_combines_before_the_function() -> None:
    call = "activate2(dst=d, op=nl.relu, data=x, imm0=2.0, imm1=1.0, op0=nl.multiply, op1=nl.subtract)"
    found = instruction(call, OUT, x=X, TARGET="trn3")
    assert found.tolist() == [[1, 0, 5], [7, 9, 0]]


def test_exponential_subtracts_the_largest_and_sums() -> None:
    call = "exponential(dst=d, src=x, max_value=m, reduce_res=r, reduce_cmd=nisa.reduce_cmd.reset_reduce)"
    x = f32([0, math.log(2)], [1, 1])
    elements, sums = instruction(
        call, {"d": ((2, 2), "float32"), "r": ((2, 1), "float32")}, x=x, m=f32([math.log(2)], [1]), TARGET="trn3"
    )
    assert elements == pytest.approx(np.array([[0.5, 1], [1, 1]]), rel=1e-6)
    assert sums[:, 0] == pytest.approx([1.5, 2], rel=1e-6)


def test_reciprocal() -> None:
    assert instruction("reciprocal(dst=d, data=x)", {"d": ((1, 2), "float32")}, x=f32([4, -0.5])).tolist() == [
        [0.25, -2]
    ]


def test_an_argument_outside_the_scalar_engines_range_is_noted_with_its_line() -> None:
    body = """
x = nl.ndarray((1, 2), nl.float32, buffer=nl.sbuf)
nisa.dma_copy(dst=x, src=a)
nisa.activation(dst=x, op=nl.sin, data=x)
out = nl.ndarray((1, 2), nl.float32, buffer=nl.shared_hbm)
nisa.dma_copy(dst=out, src=x)
return out
"""
    (note,) = run(body, f32([0, 7])).notes
    assert (note.code, note.site.frames[0].line) == ("activation-range", 7)


def test_reading_a_register_of_a_dynamic_offset() -> None:
    body = """
x = nl.ndarray((2, 8), nl.float32, buffer=nl.sbuf)
nisa.dma_copy(dst=x, src=a)
index = nl.ndarray((1, 1), nl.int32, buffer=nl.sbuf)
nisa.dma_copy(dst=index, src=b)
d = nl.ndarray((2, 2), nl.float32, buffer=nl.sbuf)
nisa.tensor_copy(dst=d, src=x.ap([[8, 2], [1, 2]], offset=1, scalar_offset=index, indirect_dim=1))
out = nl.ndarray((2, 2), nl.float32, buffer=nl.shared_hbm)
nisa.dma_copy(dst=out, src=d)
return out
"""
    x = np.arange(16, dtype=np.float32).reshape(2, 8)
    assert result(body, x, np.array([[4]], np.int32)).tolist() == [[5, 6], [13, 14]]


@pytest.mark.parametrize("name", ["tensor_copy_dynamic_src", "tensor_copy_dynamic_dst"])
def test_copies_at_places_that_the_device_reads(name: str) -> None:
    moved = "[[8, 2], [1, 2]], scalar_offset=index, indirect_dim=1"
    still = "[[8, 2], [1, 2]]"
    dst, src = (still, moved) if name.endswith("src") else (moved, still)
    body = f"""
x = nl.ndarray((2, 8), nl.float32, buffer=nl.sbuf)
nisa.dma_copy(dst=x, src=a)
index = nl.ndarray((1, 1), nl.int32, buffer=nl.sbuf)
nisa.dma_copy(dst=index, src=b)
d = nl.ndarray((2, 8), nl.float32, buffer=nl.sbuf)
nisa.memset(dst=d, value=0.0)
nisa.{name}(dst=d.ap({dst}), src=x.ap({src}))
out = nl.ndarray((2, 8), nl.float32, buffer=nl.shared_hbm)
nisa.dma_copy(dst=out, src=d)
return out
"""
    x = np.arange(16, dtype=np.float32).reshape(2, 8)
    expected = np.zeros((2, 8), np.float32)
    if name.endswith("src"):
        expected[:, :2] = x[:, 3:5]
    else:
        expected[:, 3:5] = x[:, :2]
    assert np.array_equal(result(body, x, np.array([[3]], np.int32)), expected)


def test_masks_leave_elements_alone() -> None:
    body = """
x = nl.load(a)
d = nl.zeros((2, 4), dtype=nl.float32)
i_p, i_f = nl.mgrid[0:2, 0:4]
d[i_p, i_f] = nl.add(x[i_p, i_f], 1.0, mask=(i_f < 3 - i_p))
out = nl.ndarray((2, 4), dtype=nl.float32, buffer=nl.shared_hbm)
nl.store(out, d)
return out
"""
    found = result(body, f32([1, 2, 3, 4], [5, 6, 7, 8]), head=FIRST)
    assert found[:, :2].tolist() == [[2, 3], [6, 7]]


def test_an_operator_that_no_engine_has() -> None:
    body = """
x = nl.ndarray((1, 2), nl.float32, buffer=nl.sbuf)
nisa.memset(dst=x, value=0.0)
nisa.tensor_scalar(dst=x, data=x, op0=nl.quuxify, operand0=1.0)
"""
    error = refusal(body)
    assert error.reason == "unsupported"
    assert "quuxify" in str(error)
    assert error.site is not None
    assert error.site.frames[0].line == 7

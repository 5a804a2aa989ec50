"""Reductions and scans. Expected values are worked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.nki.values.running import FIRST, f32, instruction, refusal, result

X = f32([1, -2, 3], [4, 5, -6])
COLUMN = {"d": ((2, 1), "float32")}


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("add", [2, 3]),
        ("maximum", [3, 5]),
        ("minimum", [-2, -6]),
        ("multiply", [-6, -120]),
        ("abs_max", [3, 6]),
        ("subtract", [0, 5]),  # 1 - (-2) - 3, 4 - 5 - (-6)
    ],
)
def test_tensor_reduce(op: str, expected: list[float]) -> None:
    found = instruction(f"tensor_reduce(dst=d, op=nl.{op}, data=x, axis=1)", COLUMN, x=X)
    assert found[:, 0].tolist() == expected


def test_tensor_reduce_over_one_of_two_free_axes_and_negated() -> None:
    x = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    assert instruction("tensor_reduce(dst=d, op=nl.add, data=x, axis=2)", {"d": ((2, 2), "float32")}, x=x).tolist() == [
        [3, 12],
        [21, 30],
    ]
    found = instruction("tensor_reduce(dst=d, op=nl.maximum, data=x, axis=[1, 2], negate=True)", COLUMN, x=x)
    assert found[:, 0].tolist() == [-5, -11]


def test_reducing_over_partitions_is_no_vector_instruction() -> None:
    error = refusal("""
x = nl.ndarray((2, 3), nl.float32, buffer=nl.sbuf)
nisa.memset(dst=x, value=1.0)
nisa.tensor_reduce(dst=x[0:1, :], op=nl.add, data=x, axis=0)
""")
    assert error.reason == "hardware-limit"
    assert "tensor_partition_reduce" in str(error)


def test_tensor_partition_reduce() -> None:
    found = instruction("tensor_partition_reduce(dst=d, op=nl.add, data=x)", {"d": ((1, 3), "float32")}, x=X)
    assert found.tolist() == [[5, 3, -3]]


def test_bits_reduce_as_integers() -> None:
    x = np.array([[0b1100, 0b1010], [0b1, 0b10]], np.uint8)
    found = instruction("tensor_reduce(dst=d, op=nl.bitwise_or, data=x, axis=1)", {"d": ((2, 1), "uint8")}, x=x)
    assert found[:, 0].tolist() == [0b1110, 0b11]


def test_bn_stats_of_even_and_odd_elements_and_bn_aggr_of_all() -> None:
    # Evens 1, 3 (mean 2, sum of squares about it 2), odds 2, 6 (mean 4, 8); all: mean 3, variance (4+1+0+9)/4 = 3.5.
    x = f32([1, 2, 3, 6])
    stats = instruction("bn_stats(dst=d, data=x)", {"d": ((1, 6), "float32")}, x=x)
    assert stats.tolist() == [[2, 2, 2, 2, 4, 8]]
    both = instruction("bn_aggr(dst=d, data=x)", {"d": ((1, 2), "float32")}, x=stats.astype(np.float32))
    assert both.tolist() == [[3, 3.5]]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        # result[i] = data0[i] * result[i-1] + data1[i] from 1: 2*1+1 = 3, 3*3+0 = 9, 0*9+5 = 5
        ("op0=nl.multiply, op1=nl.add", [3, 9, 5]),
        # max(data0[i], result[i-1]) - data1[i]: 2-1 = 1, 3-0 = 3, 3-5 = -2
        ("op0=nl.maximum, op1=nl.subtract", [1, 3, -2]),
        # reversed second operator: data1[i] - (data0[i] * result[i-1]): 1-2 = -1, 0+3 = 3, 5-0 = 5
        ("op0=nl.multiply, op1=nl.subtract, reverse1=True", [-1, 3, 5]),
    ],
)
def test_tensor_tensor_scan(arguments: str, expected: list[float]) -> None:
    call = f"tensor_tensor_scan(dst=d, data0=x, data1=y, initial=1.0, {arguments})"
    found = instruction(call, {"d": ((1, 3), "float32")}, x=f32([2, 3, 0]), y=f32([1, 0, 5]))
    assert found[0].tolist() == expected


def test_tensor_tensor_scan_from_one_start_a_partition() -> None:
    call = "tensor_tensor_scan(dst=d, data0=x, data1=y, initial=i0, op0=nl.multiply, op1=nl.add)"
    found = instruction(
        call, {"d": ((2, 2), "float32")}, x=f32([1, 1], [2, 2]), y=f32([1, 1], [0, 1]), i0=f32([10], [1])
    )
    assert found.tolist() == [[11, 12], [2, 5]]


def test_tensor_scalar_cumulative() -> None:
    # (x * 2) summed up: 2, -2, 4 / 8, 18, 6
    call = "tensor_scalar_cumulative(dst=d, src=x, op0=nl.multiply, op1=nl.add, imm0=2.0, reduce_cmd=nisa.reduce_cmd.reset_reduce)"
    assert instruction(call, {"d": ((2, 3), "float32")}, x=X, TARGET="trn3").tolist() == [[2, -2, 4], [8, 18, 6]]
    # the largest so far, from 3.5 on
    loaded = call.replace("op1=nl.add", "op1=nl.maximum, imm1=3.5").replace("reset_reduce", "load_reduce")
    assert instruction(loaded, {"d": ((2, 3), "float32")}, x=X, TARGET="trn3").tolist() == [[3.5, 3.5, 6], [8, 10, 10]]


LOOPS = """
out = nl.ndarray((4, 4, 2), dtype=nl.float32, buffer=nl.shared_hbm)
for block in nl.affine_range(2):
    kept = nl.ndarray((2, nl.par_dim(4), 2), dtype=nl.float32, buffer=nl.sbuf)
    for k in nl.affine_range({iterations}):
        for tile in nl.affine_range(2):
            x = nl.load(a[block * 2 + tile, k])
            kept[tile] = nl.loop_reduce(x, op={op}, loop_indices=[k]{more})
    for tile in nl.affine_range(2):
        nl.store(out[block * 2 + tile], kept[tile])
return out
"""


@pytest.mark.parametrize(
    ("op", "iterations", "expected"),
    [
        ("np.add", 3, lambda x: x.sum(axis=1)),
        ("np.max", 3, lambda x: x.max(axis=1)),
        ("np.add", 1, lambda x: x[:, 0]),  # nothing to add: each tile is its own
    ],
)
def test_loop_reduce(op: str, iterations: int, expected: Any) -> None:
    """Two tiles in each iteration of k, in each of two outer iterations: four reductions, each over k alone."""
    x = np.random.default_rng(5).integers(-9, 9, (4, iterations, 4, 2)).astype(np.float32)
    body = LOOPS.format(op=op, iterations=iterations, more="")
    assert result(body, x, head=FIRST).tolist() == expected(x).tolist()


def test_loop_reduce_rounds_once_to_the_type_that_it_returns() -> None:
    """256 + 1 + 1 is 258 in bfloat16; rounded after each addition it would stay 256."""
    x = np.ones((4, 3, 4, 2), np.float32)
    x[:, 0] = 256
    body = LOOPS.format(op="np.add", iterations=3, more=", dtype=nl.bfloat16")
    assert (result(body, x, head=FIRST) == 258).all()

"""The tensor engine: products, accumulation in PSUM, transposes, microscaled products. Exact in small integers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.nki.values.running import FIRST, f32, instruction, refusal, result
from trnprof.nki.values.kinds import packed, unpacked

A = f32([1, 2], [3, 4], [5, 6])  # [K=3, M=2]
B = f32([1, 0, -1], [2, 1, 0], [0, 1, 1])  # [K=3, N=3]
PRODUCT = [[7, 8, 4], [10, 10, 4]]  # A.T @ B by hand


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e4m3])
def test_nc_matmul_contracts_over_partitions(dtype: type) -> None:
    found = instruction(
        "nc_matmul(dst=p_d, stationary=x, moving=y)",
        {"p_d": ((2, 3), "float32")},
        x=A.astype(dtype),
        y=B.astype(dtype),
    )
    assert found.tolist() == PRODUCT


GROUP = """
x = nl.ndarray((3, 2), nl.float32, buffer=nl.sbuf)
y = nl.ndarray((3, 3), nl.float32, buffer=nl.sbuf)
nisa.dma_copy(dst=x, src=a)
nisa.dma_copy(dst=y, src=b)
p = nl.ndarray((2, 3), nl.float32, buffer=nl.psum)
{body}
s = nl.ndarray((2, 3), nl.float32, buffer=nl.sbuf)
nisa.tensor_copy(dst=s, src=p)
out = nl.ndarray((2, 3), nl.float32, buffer=nl.shared_hbm)
nisa.dma_copy(dst=out, src=s)
return out
"""


@pytest.mark.parametrize(
    ("body", "times"),
    [
        # The first product of a tile overwrites, later ones add to it.
        ("for i in nl.affine_range(3):\n    nisa.nc_matmul(dst=p, stationary=x, moving=y)", 3),
        ("for i in range(3):\n    nisa.nc_matmul(dst=p, stationary=x, moving=y, accumulate=i > 0)", 3),
        ("for i in range(3):\n    nisa.nc_matmul(dst=p, stationary=x, moving=y, accumulate=False)", 1),
        ("nisa.memset(dst=p, value=0.0)\nfor i in range(2):\n    nisa.nc_matmul(dst=p, stationary=x, moving=y, accumulate=True)", 2),
    ],
)  # fmt: skip
def test_accumulation_in_psum(body: str, times: int) -> None:
    assert result(GROUP.replace("{body}", body), A, B).tolist() == [[times * one for one in row] for row in PRODUCT]


def test_the_halves_of_a_tile_start_over_each_on_its_own() -> None:
    body = """
nisa.nc_matmul(dst=p[:, 0:2], stationary=x, moving=y[:, 0:2])
for i in range(2):
    nisa.nc_matmul(dst=p, stationary=x, moving=y)
"""
    # The first two columns were written before the loop and are added to twice, the last is written, then added to.
    expected = [[21, 24, 8], [30, 30, 8]]
    assert result(GROUP.replace("{body}", body), A, B).tolist() == expected


def test_psum_adds_in_float32() -> None:
    # 2^24 + 1 is no float32; 1 + 2^-12 squared needs 25 bits and is rounded to 1 + 2^-11 (ties to even).
    x, y = f32([2**12, 1]), f32([2**12, 1])
    found = instruction(
        "nc_matmul(dst=p_d, stationary=x, moving=y)", {"p_d": ((1, 1), "float32")}, x=x.T.copy(), y=y.T.copy()
    )
    assert found.tolist() == [[2**24]]


def test_precise_off_adds_in_float64() -> None:
    body = """
x = nl.ndarray((2, 1), nl.float32, buffer=nl.sbuf)
nisa.dma_copy(dst=x, src=a)
p = nl.ndarray((1, 1), nl.float32, buffer=nl.psum)
nisa.nc_matmul(dst=p, stationary=x, moving=x)
s = nl.ndarray((1, 1), nl.bfloat16, buffer=nl.sbuf)
nisa.tensor_copy(dst=s, src=p)
out = nl.ndarray((1, 1), nl.bfloat16, buffer=nl.shared_hbm)
nisa.dma_copy(dst=out, src=s)
return out
"""
    assert result(body, f32([2**12], [1]), precise=False).tolist() == [[2**24 + 1]]
    assert result(body, f32([2**12], [1])).astype(np.float64).tolist() == [[2**24]]


def test_double_row_contracts_two_rows_a_partition() -> None:
    x = np.array([[[1, 2], [3, 4]], [[5, 6], [7, 8]]], ml_dtypes.float8_e4m3)  # [K=2, 2, M=2]
    y = np.array([[[1], [2]], [[3], [4]]], ml_dtypes.float8_e4m3)  # [K=2, 2, N=1]
    found = instruction(
        "nc_matmul(dst=p_d, stationary=x, moving=y, perf_mode=nisa.matmul_perf_mode.double_row)",
        {"p_d": ((2, 1), "float32")},
        x=x,
        y=y,
    )
    # 1*1 + 3*2 + 5*3 + 7*4 = 50; 2*1 + 4*2 + 6*3 + 8*4 = 60
    assert found.tolist() == [[50], [60]]


@pytest.mark.parametrize("engine", ["tensor", "vector"])
def test_nc_transpose(engine: str) -> None:
    name = "p_d" if engine == "tensor" else "d"
    found = instruction(
        f"nc_transpose(dst={name}, data=x, engine=nisa.engine.{engine})", {name: ((2, 3), "float32")}, x=A
    )
    assert found.tolist() == [[1, 3, 5], [2, 4, 6]]


def test_a_transpose_moves_bits_and_a_product_with_the_identity_does_too() -> None:
    x = np.array([[0x7FC00001, 0x3F800000]], np.uint32).view(np.float32)  # a NaN with a payload
    eye = np.eye(1, dtype=np.float32)
    for call in (
        "nc_transpose(dst=p_d, data=x, engine=nisa.engine.tensor)",
        "nc_matmul(dst=p_d, stationary=x, moving=eye, is_transpose=True)",
    ):
        given = {"x": x, "eye": eye} if "eye" in call else {"x": x}
        found = instruction(call, {"p_d": ((2, 1), "float32")}, **given)
        assert np.isnan(found[0, 0])
        assert found[1, 0] == 1


def test_first_generation_products_return_psum_tiles() -> None:
    body = """
x, y = nl.load(a), nl.load(b)
p = nl.zeros((2, 3), dtype=nl.float32, buffer=nl.psum)
for i in nl.affine_range(2):
    p[...] += nisa.nc_matmul(x, y)
out = nl.ndarray((2, 3), dtype=nl.float32, buffer=nl.shared_hbm)
nl.store(out, nl.copy(p))
return out
"""
    assert result(body, A, B, head=FIRST).tolist() == [[2 * one for one in row] for row in PRODUCT]


# Microscaled products


def mx(values: np.ndarray, dtype: str = "float8_e4m3fn_x4") -> np.ndarray:
    """[P, F, 4] numbers as a packed input [P, F] that names its type."""
    bits = packed(values, dtype)
    return bits.view(np.dtype([(dtype, bits.dtype)]))


def scales(*bytes_: int, free: int) -> np.ndarray:
    """[P, free] of E8M0 bytes, rows 0..3 of a quadrant of 32 partitions."""
    array = np.full((32, free), 127, np.uint8)
    array[: len(bytes_)] = np.array(bytes_)[:, None]
    return array


def test_nc_matmul_mx_multiplies_packed_fours_and_powers_of_two() -> None:
    # 32 partitions x 4 ones each side: 128 products of 1 x 2 = 256; groups of 8 partitions scaled by 1, 2, 4, 8 on one
    # side (bytes 127..130): 32 x 2 x (1 + 2 + 4 + 8) = 960.
    ones = mx(np.ones((32, 1, 4), np.float32))
    twos = mx(np.full((32, 2, 4), 2, np.float32))
    call = "nc_matmul_mx(dst=p_d, stationary=x, moving=y, stationary_scale=xs, moving_scale=ys)"
    found = instruction(
        call,
        {"p_d": ((1, 2), "float32")},
        x=ones,
        y=twos,
        xs=scales(127, 128, 129, 130, free=1),
        ys=scales(free=2),
        TARGET="trn3",
    )
    assert found.tolist() == [[960, 960]]


def test_quantize_mx_divides_each_block_by_a_power_of_two() -> None:
    # e4m3fn's largest exponent is 8. Block 0 (partitions 0-7, largest 3.5 = 1.75 * 2^1): scale 2^(1 - 8), byte 120, and
    # 3.5 * 2^7 = 448 fits. Block 1 (largest 1.0): byte 119 and 1.0 * 2^8 = 256. Block 2 (largest 1.9375 * 2^0, scaled 496)
    # saturates at 448. Block 3 (all zero): byte 0.
    x = np.zeros((32, 4), np.float32)
    x[0] = [3.5, 1, -0.5, 0]
    x[8] = [1, 0.5, 0, 0]
    x[16] = [1.9375, 0, 0, 0]
    bits, scale = instruction(
        "quantize_mx(dst=d, src=x, dst_scale=s)",
        {"d": ((32, 1), "float8_e4m3fn_x4"), "s": np.zeros((32, 1), np.uint8)},
        x=x.astype(ml_dtypes.bfloat16),
        TARGET="trn3",
    )
    elements = unpacked(bits.view(np.uint32), "float8_e4m3fn_x4")[:, 0]
    assert scale[:4, 0].tolist() == [120, 119, 119, 0]
    assert elements[0].tolist() == [448, 128, -64, 0]
    assert elements[8].tolist() == [256, 128, 0, 0]
    assert elements[16].tolist() == [448, 0, 0, 0]


# Limits


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        (((128, 129), (128, 512), (129, 512)), "128"),
        (((128, 128), (128, 513), (128, 513)), "512"),
        (((64, 128), (128, 512), (128, 512)), "64"),
        (((128, 128), (128, 256), (128, 512)), "256"),
    ],
)
def test_sizes_of_a_product(shapes: tuple[tuple[int, int], ...], text: str) -> None:
    stationary, moving, dst = shapes
    error = refusal(f"""
x = nl.ndarray({stationary}, nl.bfloat16, buffer=nl.sbuf)
y = nl.ndarray({moving}, nl.bfloat16, buffer=nl.sbuf)
nisa.memset(dst=x, value=1.0)
nisa.memset(dst=y, value=1.0)
p = nl.ndarray({dst}, nl.float32, buffer=nl.psum)
nisa.nc_matmul(dst=p, stationary=x, moving=y)
""")
    assert error.site is not None
    assert error.site.frames[0].line in (9, 10)
    assert text in str(error)

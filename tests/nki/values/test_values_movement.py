"""DMAs and constants: copies, casts, patterns, gathers and scatters, transposes, additions on the way."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.nki.values.running import FIRST, f32, refusal, result, run

X = np.arange(12, dtype=np.float32).reshape(4, 3)


def test_a_copy_between_types_rounds() -> None:
    body = """
out = nl.ndarray((4, 3), nl.bfloat16, buffer=nl.shared_hbm)
nisa.dma_copy(dst=out, src=a)
return out
"""
    found = result(body, X + 256.5)
    assert np.array_equal(found, (X + 256.5).astype(ml_dtypes.bfloat16))


def test_patterns_of_both_sides_run_in_element_order() -> None:
    body = """
out = nl.ndarray((3, 4), nl.float32, buffer=nl.shared_hbm)
nisa.dma_copy(dst=out.ap([[1, 4], [4, 3]]), src=a.ap([[3, 4], [1, 3]]))
nisa.dma_copy(dst=out[2:3, 0:2], src=a.ap([[3, 1], [2, 2]], offset=3))
return out
"""
    expected = X.T.copy()
    expected[2, 0:2] = [3, 5]
    assert np.array_equal(result(body, X), expected)


GATHER = """
index = nl.ndarray((3, 1), nl.int32, buffer=nl.sbuf)
nisa.dma_copy(dst=index, src=b)
d = nl.ndarray((3, 3), nl.float32, buffer=nl.sbuf)
nisa.memset(dst=d, value=-1.0)
nisa.dma_copy(dst=d, src=a.ap([[3, 3], [1, 3]], offset=0, vector_offset=index, indirect_dim=0){mode})
out = nl.ndarray((3, 3), nl.float32, buffer=nl.shared_hbm)
nisa.dma_copy(dst=out, src=d)
return out
"""


def test_rows_that_an_index_vector_names() -> None:
    found = result(GATHER.replace("{mode}", ""), X, np.array([[3], [0], [3]], np.int32))
    assert np.array_equal(found, X[[3, 0, 3]])


def test_an_index_out_of_bounds_skips_where_the_call_says_so_and_is_an_error_elsewhere() -> None:
    index = np.array([[3], [4], [-1]], np.int32)
    found = result(GATHER.replace("{mode}", ", oob_mode=nisa.oob_mode.skip"), X, index)
    assert found.tolist() == [X[3].tolist(), [-1] * 3, [-1] * 3]
    error = refusal(GATHER.replace("{mode}", ""), X, index)
    assert error.reason == "out-of-bounds"
    assert "-1..4" in str(error)
    assert error.site is not None
    assert error.site.frames[0].line == 9


def test_a_scatter_to_rows_that_an_index_vector_names() -> None:
    body = """
index = nl.ndarray((3, 1), nl.int32, buffer=nl.sbuf)
nisa.dma_copy(dst=index, src=b)
d = nl.ndarray((3, 3), nl.float32, buffer=nl.sbuf)
nisa.dma_copy(dst=d, src=a[0:3, :])
out = nl.ndarray((6, 3), nl.float32, buffer=nl.shared_hbm)
nisa.dma_copy(dst=out.ap([[3, 3], [1, 3]], offset=0, vector_offset=index, indirect_dim=0), src=d)
return out
"""
    run_ = run(body, X, np.array([[5], [0], [2]], np.int32)).outputs[0][0]
    assert np.array_equal(run_.array[[5, 0, 2]], X[:3])
    assert run_.missing_count == 9
    assert run_.missing is not None
    assert run_.missing[[1, 3, 4]].all()


def test_the_older_spelling_of_a_gather() -> None:
    body = """
index = nl.ndarray((3, 1), nl.int32, buffer=nl.sbuf)
nisa.dma_copy(dst=index, src=b)
d = nl.ndarray((3, 3), nl.float32, buffer=nl.sbuf)
nisa.dma_copy_indirect(dst=d, src=a, src_idx=index)
out = nl.ndarray((3, 3), nl.float32, buffer=nl.shared_hbm)
nisa.dma_copy(dst=out, src=d)
return out
"""
    assert np.array_equal(result(body, X, np.array([[3], [0], [3]], np.int32)), X[[3, 0, 3]])


def test_additions_on_the_way() -> None:
    body = """
out = nl.ndarray((4, 3), nl.float32, buffer=nl.shared_hbm)
nisa.dma_copy(dst=out, src=a)
nisa.dma_copy(dst=out, src=a, dst_rmw_op=nl.add)
two = nl.ndarray((4, 3), nl.float32, buffer=nl.shared_hbm)
nisa.dma_compute(dst=two, srcs=[a, out], scales=[10.0, 1.0], reduce_op=nl.add)
return out, two
"""
    twice, sums = (output.array for output in run(body, X).outputs[0])
    assert np.array_equal(twice, 2 * X)
    assert np.array_equal(sums, 12 * X)


def test_dma_transpose() -> None:
    body = """
d = nl.ndarray((3, 4), nl.float32, buffer=nl.sbuf)
nisa.dma_transpose(dst=d, src=a)
out = nl.ndarray((3, 4), nl.float32, buffer=nl.shared_hbm)
nisa.dma_copy(dst=out, src=d)
return out
"""
    assert np.array_equal(result(body, X), X.T)


def test_dma_transpose_by_axes() -> None:
    body = """
out = nl.ndarray((4, 2, 3), nl.float32, buffer=nl.shared_hbm)
nisa.dma_transpose(dst=out, src=a, axes=(2, 0, 1))
return out
"""
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    assert np.array_equal(result(body, x), x.transpose(2, 0, 1))


def test_load_and_store_of_the_first_generation_with_masks_and_casts() -> None:
    body = """
i_p, i_f = nl.mgrid[0:4, 0:4]
t = nl.load(a[i_p, i_f], mask=(i_f < 3), dtype=nl.bfloat16)
out = nl.zeros((4, 3), dtype=nl.float32, buffer=nl.shared_hbm)
nl.store(out[i_p, i_f], t[i_p, i_f], mask=(i_f < 3) & (i_p > 0))
return out
"""
    expected = X.copy()
    expected[0] = 0
    assert np.array_equal(result(body, X, head=FIRST), expected)


def test_load_transpose2d_and_store_of_a_number() -> None:
    body = """
out = nl.ndarray((3, 4), dtype=nl.float32, buffer=nl.shared_hbm)
nl.store(out, nl.load_transpose2d(a))
nl.store(out[0:1, 0:1], 9.0)
return out
"""
    expected = X.T.copy()
    expected[0, 0] = 9
    assert np.array_equal(result(body, X, head=FIRST), expected)


def test_atomic_additions_to_equal_rows_all_count() -> None:
    body = """
v, i = nl.load(a), nl.load(b)
out = nl.zeros((4, 2), dtype=nl.float32, buffer=nl.shared_hbm)
i_f = nl.arange(2)[None, :]
nl.atomic_rmw(out[i[:, 0], i_f], value=v, op=np.add)
return out
"""
    found = result(body, f32([1, 2], [10, 20], [100, 200]), np.array([[3], [1], [3]], np.int32), head=FIRST)
    assert found.tolist() == [[0, 0], [10, 20], [0, 0], [101, 202]]


def test_an_accumulating_scatter_with_equal_indices_is_noted() -> None:
    body = """
index = nl.ndarray((3, 1), nl.int32, buffer=nl.sbuf)
nisa.dma_copy(dst=index, src=b)
d = nl.ndarray((3, 3), nl.float32, buffer=nl.sbuf)
nisa.dma_copy(dst=d, src=a[0:3, :])
out = nl.zeros((6, 3), nl.float32, buffer=nl.shared_hbm)
nisa.dma_copy(dst=out.ap([[3, 3], [1, 3]], vector_offset=index, indirect_dim=0), src=d, dst_rmw_op=nl.add)
return out
"""
    notes = run(body, X, np.array([[1], [1], [0]], np.int32)).notes
    assert [note.code for note in notes] == ["duplicate-indices"]


def test_constants_and_filled_tensors() -> None:
    body = """
d = nl.shared_constant(np.arange(6, dtype=np.float32).reshape(2, 3))
eye = nl.shared_identity_matrix(2, dtype=nl.float32)
outs = [nl.ndarray((2, 3), nl.float32, buffer=nl.shared_hbm) for i in range(6)]
nisa.dma_copy(dst=outs[0], src=d)
nisa.dma_copy(dst=outs[1][:, 0:2], src=eye)
for out, tile in zip(outs[2:], (
    nl.zeros((2, 3), nl.float32, buffer=nl.sbuf), nl.ones((2, 3), nl.float32, buffer=nl.sbuf),
    nl.full((2, 3), 2.5, nl.float32, buffer=nl.sbuf),
    nl.zeros_like(nl.ones((2, 3), nl.float32, buffer=nl.sbuf)),
)):
    nisa.dma_copy(dst=out, src=tile)
return outs
"""
    found = [output.array for output in run(body).outputs[0]]
    assert found[0].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found[1][:, :2].tolist() == [[1, 0], [0, 1]]
    assert [array.tolist() for array in found[2:]] == [[[value] * 3] * 2 for value in (0, 1, 2.5, 0)]


def test_tensors_of_no_contents_are_missing_until_written() -> None:
    for call in ("nl.ndarray((2, 3), nl.float32, buffer=nl.shared_hbm)", "nl.empty((2, 3), nl.float32, buffer=nl.shared_hbm)",
                 "nl.empty_like(a)"):  # fmt: skip
        output = run(f"out = {call}\nreturn out", np.zeros((2, 3), np.float32)).outputs[0][0]
        assert (output.missing_count, bool(np.isnan(output.array).all())) == (6, True)


# Loops and registers of the device


def test_a_loop_whose_bounds_are_in_registers() -> None:
    body = """
bounds = nl.ndarray((1, 2), nl.int32, buffer=nl.sbuf)
nisa.dma_copy(dst=bounds, src=b)
first, last = nisa.register_alloc(), nisa.register_alloc(0)
nisa.register_load(first, bounds[0:1, 0:1])
nisa.register_load(last, bounds[0:1, 1:2])
total = nl.ndarray((1, 3), nl.float32, buffer=nl.sbuf)
row = nl.ndarray((1, 3), nl.float32, buffer=nl.sbuf)
nisa.memset(dst=total, value=0.0)
for i in nl.dynamic_range(first, last):
    nisa.dma_copy(dst=row, src=a.ap([[3, 1], [1, 3]], scalar_offset=i, indirect_dim=0))
    nisa.tensor_tensor(dst=total, data1=total, data2=row, op=nl.add)
out = nl.ndarray((1, 3), nl.float32, buffer=nl.shared_hbm)
nisa.dma_copy(dst=out, src=total)
return out
"""
    assert np.array_equal(result(body, X, np.array([[1, 4]], np.int32)), X[1:4].sum(0, keepdims=True))
    assert not result(body, X, np.array([[2, 2]], np.int32)).any()


def test_a_while_loop_of_the_device_and_stored_registers() -> None:
    body = """
left = nisa.register_alloc(3)
count = nisa.register_alloc(0)
d = nl.ndarray((1, 1), nl.int32, buffer=nl.sbuf)
v = nl.ndarray((1, 1), nl.int32, buffer=nl.sbuf)
nisa.dma_copy(dst=v, src=a)
nisa.register_load(left, v)
def body(reg):
    nisa.tensor_scalar(dst=v, data=v, op0=nl.subtract, operand0=1)
    nisa.register_load(left, v)
    nisa.register_load(count, v)
    return left
nl.while_loop(left, body)
nisa.register_store(d, count)
moved = nisa.register_alloc()
nisa.register_move(moved, imm=41)
e = nl.ndarray((1, 1), nl.int32, buffer=nl.sbuf)
nisa.register_store(e, moved)
outs = [nl.ndarray((1, 1), nl.int32, buffer=nl.shared_hbm) for _ in range(2)]
nisa.dma_copy(dst=outs[0], src=d)
nisa.dma_copy(dst=outs[1], src=e)
return outs
"""
    found = [int(output.array[0, 0]) for output in run(body, np.array([[5]], np.int32)).outputs[0]]
    assert found == [0, 41]


# Errors name the line


@pytest.mark.parametrize(
    ("line", "reason", "text"),
    [
        ("nisa.dma_copy(dst=d, src=a[0:3, :])", "shape-mismatch", "9 elements to 12"),
        ("nisa.dma_copy(dst=d, src=a.ap([[3, 5], [1, 3]]))", "out-of-bounds", "has 12"),
        ("nisa.tensor_copy(dst=d, src=a)", "hardware-limit", "HBM"),
        ("nisa.tensor_copy(dst=d[0:2, :], src=d)", "hardware-limit", "partitions"),
        ("nisa.tensor_tensor(dst=d, data1=d, data2=d[:, 0:2], op=nl.add)", "shape-mismatch", "do not fit"),
        ("nisa.tensor_copy(dst=d[1:3, :], src=d[0:2, :])", "hardware-limit", "starts at"),
        ("nl.ndarray((129, 2), nl.float32, buffer=nl.sbuf)", "hardware-limit", "128"),
        ("nisa.builtin_custom_op('f', 'f.so', [1], [1], [d], [d])", "unsupported", "the device can"),
        ("nisa.frobnicate(dst=d, src=d)", "unsupported", "frobnicate"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_one_line_with_the_kernels_line(line: str, reason: str, text: str) -> None:
    error = refusal(f"d = nl.ndarray((4, 3), nl.float32, buffer=nl.sbuf)\nnisa.memset(dst=d, value=0.0)\n{line}", X)
    assert error.site is not None
    assert error.site.frames[0].line == 7
    assert text in str(error)
    assert "\n" not in str(error)
    assert error.reason == reason


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("nisa.dma_copy(dst=d, src=a[0:3, :])", "as many"),
        ("nisa.dma_copy(dst=d, src=a[:, 3:6])", "behind its tensor's end"),
        ("nisa.tensor_tensor(dst=d, data1=d, data2=d[:, 0:2], op=nl.add)", "cut the larger"),
        ("nisa.dma_copy(dst=d, src=a.ap([[3, 5], [1, 3]]))", "reduce a count"),
        ("nisa.dma_copy(dst=d, src=a.ap([[3, 4], [1, 3]], vector_offset=i, indirect_dim=0))", "oob_mode.skip"),
        ("nl.ndarray((129, 2), nl.float32, buffer=nl.sbuf)", "put more into the others"),
        ("nl.ndarray((128, 2**20), nl.float32, buffer=nl.sbuf)", "a part of the free dimensions"),
        ("nisa.nc_matmul(dst=p, stationary=d, moving=w)", "fewer columns of moving"),
        ("nisa.tensor_copy(dst=d, src=a)", "with a DMA"),
        ("nisa.frobnicate(dst=d, src=d)", "check the name"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_says_what_to_do(line: str, advice: str) -> None:
    body = """d, i = nl.ndarray((4, 3), nl.float32, buffer=nl.sbuf), nl.ndarray((4, 1), nl.int32, buffer=nl.sbuf)
w, p = nl.ndarray((4, 600), nl.float32, buffer=nl.sbuf), nl.ndarray((3, 600), nl.float32, buffer=nl.psum)
nisa.memset(dst=d, value=0.0)
nisa.memset(dst=i, value=9)
nisa.memset(dst=w, value=1.0)
"""
    error = refusal(body + line, X)
    assert error.site is not None
    assert error.site.frames[0].line == 10
    assert advice in str(error)

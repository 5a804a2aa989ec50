"""Largest elements and their places, gathers and shuffles, random numbers. Expected values are worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tests.nki.values.running import FIRST, f32, instruction, refusal, result, run

ROW = f32([5, 1, 9, 9, 2, 7, 3, 8, 0, 6])
EIGHT = {"d": ((1, 8), "float32")}


def test_max8_gives_the_eight_largest_largest_first() -> None:
    assert instruction("max8(dst=d, src=x)", EIGHT, x=ROW).tolist() == [[9, 9, 8, 7, 6, 5, 3, 2]]


def test_nc_find_index8_takes_the_next_place_for_an_equal_value() -> None:
    wanted = f32([9, 9, 8, 7, 6, 5, 3, 100])
    found = instruction("nc_find_index8(dst=d, data=x, vals=v)", {"d": ((1, 8), "uint32")}, x=ROW, v=wanted)
    assert found.tolist() == [[2, 3, 7, 5, 9, 0, 6, 2**32 - 1]]  # 100 is nowhere: all ones


def test_nc_match_replace8_replaces_the_first_of_each() -> None:
    wanted = f32([9, 8, 7, 6, 5, 3, 2, 1])
    replaced, places = instruction(
        "nc_match_replace8(dst=d, data=x, vals=v, imm=-1.0, dst_idx=i8)",
        {"d": ((1, 10), "float32"), "i8": ((1, 8), "uint32")},
        x=ROW,
        v=wanted,
    )
    assert replaced.tolist() == [[-1, -1, -1, 9, -1, -1, -1, -1, 0, -1]]
    assert places.tolist() == [[2, 7, 5, 9, 0, 6, 4, 1]]


def test_the_sixteen_largest_by_two_rounds() -> None:
    body = """
x = nl.ndarray((1, 20), nl.float32, buffer=nl.sbuf)
nisa.dma_copy(dst=x, src=a)
top = nl.ndarray((1, 16), nl.float32, buffer=nl.sbuf)
for i in range(2):
    eight = top[:, nl.ds(8 * i, 8)]
    nisa.max8(dst=eight, src=x)
    nisa.nc_match_replace8(dst=x, data=x, vals=eight, imm=-1e9)
out = nl.ndarray((1, 16), nl.float32, buffer=nl.shared_hbm)
nisa.dma_copy(dst=out, src=top)
return out
"""
    x = np.random.default_rng(1).permutation(20).astype(np.float32)[None]
    assert result(body, x).tolist() == [list(range(19, 3, -1))]


def test_topk_of_the_snake_of_sixteen_partitions() -> None:
    # Element i of a group lies in partition i % 16, column i // 16. The largest three of the first 18, smallest first.
    snake = np.zeros(32, np.float32)
    snake[[3, 17, 10]] = [5, 9, 7]
    snake[20] = 100  # beyond n
    x = snake.reshape(2, 16).T.copy()
    values, places = instruction(
        "topk(val_dst=v, idx_dst=i, src=x, n=18)",
        {"v": ((16, 3), "float32"), "i": ((16, 3), "uint32")},
        x=x,
        TARGET="trn3",
    )
    assert values[0].tolist() == [5, 7, 9]
    assert places[0].tolist() == [3, 10, 17]
    assert (values == values[0]).all()


def test_nonzero_with_count() -> None:
    x = np.zeros((16, 5), np.float32)
    x[0] = [0, 3, 0, -1, 2]
    x[1] = 1  # other partitions of a group of 16 are not looked at
    found = instruction(
        "nonzero_with_count(dst=d, src=x, index_offset=10, padding_val=-7)", {"d": np.full((16, 6), 99, np.int32)}, x=x
    )
    assert found[0].tolist() == [11, 13, 14, -7, -7, 3]
    assert (found[1:] == 99).all()


def test_nc_n_gather_within_partitions() -> None:
    x, places = f32([10, 11, 12], [20, 21, 22]), np.array([[2, 0], [1, 1]], np.uint32)
    found = instruction("nc_n_gather(dst=d, data=x, indices=i)", {"d": ((2, 2), "float32")}, x=x, i=places)
    assert found.tolist() == [[12, 10], [21, 21]]


def test_nc_n_gather_beyond_the_end_is_refused_with_its_line() -> None:
    error = refusal("""
x = nl.ndarray((1, 4), nl.float32, buffer=nl.sbuf)
i = nl.ndarray((1, 2), nl.uint32, buffer=nl.sbuf)
nisa.memset(dst=x, value=0.0)
nisa.memset(dst=i, value=4)
nisa.nc_n_gather(dst=x[:, 0:2], data=x, indices=i)
""")
    assert "4..4" in str(error)
    assert error.site is not None
    assert error.site.frames[0].line == 9


def test_local_gather_uses_the_indices_of_sixteen_partitions_in_turn() -> None:
    x = np.arange(16 * 32, dtype=np.float32).reshape(16, 32)
    index = np.arange(16, dtype=np.uint16)[:, None][::-1].copy()  # index i of the group: 15 - i
    found = instruction(
        "local_gather(dst=d, src_buffer=x, index=i, num_elem_per_idx=1, num_valid_indices=4)",
        {"d": ((16, 4), "float32")},
        x=x,
        i=index,
    )
    assert found.tolist() == [[32 * p + 15 - i for i in range(4)] for p in range(16)]


def test_nc_stream_shuffle_within_quadrants() -> None:
    x = np.arange(64, dtype=np.float32)[:, None]
    mask = [(i + 1) % 32 for i in range(32)]
    mask[5] = 255
    found = instruction(
        f"nc_stream_shuffle(dst=d, src=x, shuffle_mask={mask})", {"d": np.full((64, 1), -1, np.float32)}, x=x
    )
    expected = [float(p // 32 * 32 + (p + 1) % 32) for p in range(64)]
    expected[5] = expected[37] = -1
    assert found[:, 0].tolist() == expected


def test_sequence_bounds() -> None:
    # Runs 3 3 | 1 | 0 | 2 2: starts and ends; id 0: the length and -1.
    ids = f32([3, 3, 1, 0, 2, 2])
    found = instruction("sequence_bounds(dst=d, segment_ids=x)", {"d": ((1, 2, 6), "float32")}, x=ids)
    assert found[0].tolist() == [[0, 0, 2, 6, 4, 4], [2, 2, 3, -1, 6, 6]]


def test_gather_flattened() -> None:
    body = """
x, i = nl.load(a), nl.load(b)
out = nl.ndarray((2, 2), dtype=nl.float32, buffer=nl.shared_hbm)
nl.store(out, nl.gather_flattened(x, i))
return out
"""
    x, places = np.arange(8, dtype=np.float32).reshape(2, 2, 2), np.array([[3, 0], [1, 2]], np.uint32)
    assert result(body, x, places, head=FIRST).tolist() == [[3, 0], [5, 6]]


# Random numbers


UNIFORM = """
d = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
{call}
out = nl.ndarray((128, 64), nl.float32, buffer=nl.shared_hbm)
nisa.dma_copy(dst=out, src=d)
return out
"""


def test_rand2_is_uniform_between_its_bounds_seeded_and_said_not_to_be_the_devices() -> None:
    body = UNIFORM.replace("{call}", "nisa.rand2(dst=d, min=2.0, max=4.0)")
    first, again, other = (run(body, seed=seed, target="trn3") for seed in (1, 1, 2))
    values = first.outputs[0][0].array
    assert np.array_equal(values, again.outputs[0][0].array)
    assert not np.array_equal(values, other.outputs[0][0].array)
    # 8192 numbers: the mean of a uniform distribution on [2, 4] is 3 with a deviation of 2/sqrt(12 * 8192) = 0.0064.
    assert 2 <= values.min() < values.max() < 4
    assert abs(values.mean() - 3) < 5 * 0.0064
    assert {note.code for note in first.notes} == {"random"}


def test_dropout_drops_with_its_probability() -> None:
    call = """
nisa.memset(dst=d, value=3.0)
nisa.dropout(dst=d, data=d, prob=0.25)
"""
    values = result(UNIFORM.replace("{call}", call))
    assert set(np.unique(values).tolist()) == {0.0, 3.0}
    # Deviation of the share: sqrt(0.25 * 0.75 / 8192) = 0.0048.
    assert abs((values == 0).mean() - 0.25) < 5 * 0.0048


def test_rng_bits_are_balanced() -> None:
    found = instruction("rng(dst=d)", {"d": ((128, 64), "uint32")}).astype(np.uint32)
    ones = np.unpackbits(found.view(np.uint8)).mean()
    assert abs(ones - 0.5) < 0.005


@pytest.mark.parametrize("setter", ["set_rng_seed", "rand_set_state"])
def test_the_same_seeds_give_the_same_numbers_again(setter: str) -> None:
    body = f"""
seeds = nl.ndarray((128, 1 if "{setter}" == "set_rng_seed" else 6), nl.uint32, buffer=nl.sbuf)
nisa.memset(dst=seeds, value=7)
out = nl.ndarray((2, 128, 8), nl.float32, buffer=nl.shared_hbm)
for i in range(2):
    nisa.{setter}(src_seeds=seeds)
    d = nl.ndarray((128, 8), nl.float32, buffer=nl.sbuf)
    nisa.rand2(dst=d, min=0.0, max=1.0)
    nisa.dma_copy(dst=out[i], src=d)
return out
"""
    found = result(body, target="trn3")
    assert np.array_equal(found[0], found[1])


def test_a_saved_state_continues_where_it_was_saved() -> None:
    body = """
state = nl.ndarray((128, 6), nl.uint32, buffer=nl.sbuf)
nisa.rand_get_state(dst=state)
out = nl.ndarray((2, 128, 8), nl.float32, buffer=nl.shared_hbm)
for i in range(2):
    if i == 1:
        nisa.rand_set_state(src_seeds=state)
    d = nl.ndarray((128, 8), nl.float32, buffer=nl.sbuf)
    nisa.rand2(dst=d, min=0.0, max=1.0)
    nisa.dma_copy(dst=out[i], src=d)
return out
"""
    found = result(body, target="trn3")
    assert np.array_equal(found[0], found[1])


def test_random_tensors_of_the_language() -> None:
    body = """
out = nl.ndarray((2, 16, 8), dtype=nl.float32, buffer=nl.shared_hbm)
for i in range(2):
    nl.random_seed(5)
    nl.store(out[i], nl.rand((16, 8), dtype=nl.float32))
dropped = nl.ndarray((16, 8), dtype=nl.float32, buffer=nl.shared_hbm)
nl.store(dropped, nl.dropout(nl.ones((16, 8), dtype=nl.float32), rate=1.0))
return out, dropped
"""
    found, dropped = (output.array for output in run(body, head=FIRST).outputs[0])
    assert np.array_equal(found[0], found[1])
    assert 0 <= found.min() < found.max() < 1
    assert not dropped.any()

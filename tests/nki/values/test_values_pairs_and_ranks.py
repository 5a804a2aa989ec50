"""What passes between programs: barriers and exchanges of a pair, collectives over simulated ranks."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from tests.nki.values.running import f32, refusal, run

X = np.arange(8, dtype=np.float32).reshape(2, 4)

EXCHANGE = """
me = nl.program_id(0)
t = nl.ndarray((2, 2), nl.float32, buffer=nl.sbuf)
o = nl.ndarray((2, 2), nl.float32, buffer=nl.sbuf)
nisa.dma_copy(dst=t, src=a[:, nl.ds(2 * me, 2)])
nisa.sendrecv(src=t, dst=o, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=0)
nisa.tensor_tensor(dst=o, data1=o, data2=t, op=nl.subtract)
out = nl.ndarray((2, 4), nl.float32, buffer=nl.shared_hbm)
nisa.dma_copy(dst=out[:, nl.ds(2 * me, 2)], src=o)
return out
"""


def test_a_pair_exchanges_tiles_and_writes_one_tensor() -> None:
    found = run(EXCHANGE, X, lnc=2)
    assert found.program_count == 2
    # Columns 2-3 minus columns 0-1 is 2; the other way round -2.
    assert found.outputs[0][0].array.tolist() == [[2, 2, -2, -2]] * 2


BARRIER = """
me = nl.program_id(0)
shared = nl.ndarray((2, 4), nl.float32, buffer=nl.shared_hbm, name="shared")
t = nl.ndarray((2, 4), nl.float32, buffer=nl.sbuf)
if me == 1:
    nisa.dma_copy(dst=t, src=a)
    nisa.dma_copy(dst=shared, src=t)
{barrier}
out = nl.ndarray((2, 4), nl.float32, buffer=nl.shared_hbm)
if me == 0:
    nisa.dma_copy(dst=out, src=shared)
return out
"""


def test_after_a_barrier_each_program_sees_what_the_other_wrote() -> None:
    body = BARRIER.replace("{barrier}", "nisa.core_barrier(shared, (0, 1))")
    found = run(body, X, lnc=2)
    assert np.array_equal(found.outputs[0][0].array, X)
    assert found.notes == ()


def test_without_the_barrier_program_0_reads_what_nothing_wrote() -> None:
    found = run(BARRIER.replace("{barrier}", "pass"), X, lnc=2)
    assert np.isnan(found.outputs[0][0].array).all()
    (note,) = found.notes
    assert (note.code, note.site.frames[0].line) == ("unwritten-read", 14)


@pytest.mark.parametrize(
    ("body", "texts", "line"),
    [
        ("if nl.program_id(0) == 0:\n    nisa.core_barrier(a, (0, 1))", ["program 1 has ended", "core_barrier"], 6),
        (
            """
me = nl.program_id(0)
t = nl.ndarray((2, 4), nl.float32, buffer=nl.sbuf)
nisa.memset(dst=t, value=0.0)
if me == 0:
    nisa.core_barrier(a, (0, 1))
else:
    nisa.sendrecv(src=t, dst=t, send_to_rank=0, recv_from_rank=0, pipe_id=3)
    nisa.tensor_copy(dst=t, src=t)
""",
            ["core_barrier", "sendrecv from program 0 (pipe 3)"],
            None,
        ),
    ],
)  # fmt: skip
def test_a_pair_that_waits_for_ever_is_told_so_at_once(body: str, texts: list[str], line: int | None) -> None:
    started = time.monotonic()
    error = refusal(body, X, lnc=2)
    assert time.monotonic() - started < 5
    assert error.reason == "deadlock"
    assert all(text in str(error) for text in texts)
    assert "same order" in str(error)
    if line is not None:
        assert error.site is not None
        assert error.site.frames[0].line == line


def test_one_programs_mistake_ends_the_other_one_too() -> None:
    error = refusal("if nl.program_id(0) == 1:\n    raise ValueError('mine')\nnisa.core_barrier(a, (0, 1))", X, lnc=2)
    assert "mine" in str(error)


def test_exchanged_tiles_must_be_alike() -> None:
    error = refusal(EXCHANGE.replace("o = nl.ndarray((2, 2)", "o = nl.ndarray((2, 1)"), X, lnc=2)
    assert error.reason == "shape-mismatch"


# Ranks: rank r has the array X + 10 r.

COLLECTIVE = """
src = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm, name="src")
dst = nl.ndarray({shape}, a.dtype, buffer=nl.shared_hbm, name="dst")
nisa.dma_copy(dst=src, src=a)
{call}
return dst
"""
GROUP = "replica_group=ncc.ReplicaGroup([[0, 1]])"


def ranks(call: str, shape: tuple[int, ...], count: int = 2, dtype: Any = np.float32, extra: Any = None) -> list[list]:
    body = COLLECTIVE.replace("{shape}", str(shape)).replace("{call}", call)

    def arguments(rank: int) -> tuple[list[np.ndarray], dict[str, Any]]:
        given = [(X + 10 * rank).astype(dtype)]
        return ([*given, extra(rank)] if extra is not None else given), {}

    found = run(body, *arguments(0)[0], ranks=count, arguments_of_rank=arguments)
    return [outputs[0].array.tolist() for outputs in found.outputs]


def test_all_reduce() -> None:
    call = f"ncc.all_reduce(srcs=[src], dsts=[dst], {GROUP}, op=nl.add)"
    assert ranks(call, (2, 4)) == [(2 * X + 10).tolist()] * 2
    assert ranks(call.replace("nl.add", "nl.maximum"), (2, 4)) == [(X + 10).tolist()] * 2


def test_integers_are_reduced_exactly() -> None:
    big = np.full((2, 4), 2**24 + 1, np.int32)
    body = COLLECTIVE.replace("{shape}", "(2, 4)").replace(
        "{call}", f"ncc.all_reduce(srcs=[src], dsts=[dst], {GROUP}, op=nl.add)"
    )
    found = run(body, big, ranks=2, arguments_of_rank=lambda rank: ([big], {}))
    assert found.outputs[1][0].array.tolist() == [[2**25 + 2] * 4] * 2


def test_all_gather_along_either_dimension() -> None:
    call = f"ncc.all_gather(srcs=[src], dsts=[dst], {GROUP}, collective_dim=DIM)"
    both = [X, X + 10]
    for dim, shape in ((0, (4, 4)), (1, (2, 8))):
        assert ranks(call.replace("DIM", str(dim)), shape) == [np.concatenate(both, dim).tolist()] * 2


def test_reduce_scatter_gives_each_rank_its_part_of_the_sum() -> None:
    call = f"ncc.reduce_scatter(srcs=[src], dsts=[dst], {GROUP}, collective_dim=0, op=nl.add)"
    assert ranks(call, (1, 4)) == [(2 * X + 10)[0:1].tolist(), (2 * X + 10)[1:2].tolist()]


def test_all_to_all_exchanges_parts() -> None:
    call = f"ncc.all_to_all(srcs=[src], dsts=[dst], {GROUP}, collective_dim=0)"
    assert ranks(call, (2, 4)) == [
        [X[0].tolist(), (X + 10)[0].tolist()],
        [X[1].tolist(), (X + 10)[1].tolist()],
    ]


def test_collective_permute_sends_along_pairs_and_rings() -> None:
    call = "ncc.collective_permute(srcs=[src], dsts=[dst], source_target_pairs=[(0, 1), (1, 2), (2, 0)])"
    expected = [(X + 20).tolist(), X.tolist(), (X + 10).tolist()]
    assert ranks(call, (2, 4), count=3) == expected
    ring = "replica_group=ncc.ReplicaGroup([[0, 1, 2]]), channel_ids=[0], num_channels=1"
    call = f"ncc.collective_permute_implicit(srcs_by_channel=[[src]], dsts_by_channel=[[dst]], {ring})"
    assert ranks(call, (2, 4), count=3) == expected
    call = (
        f"ncc.collective_permute_implicit_reduce(srcs0_by_channel=[[src]], srcs1_by_channel=[[src]], dsts_by_channel=[[dst]], {ring}, "
        "op=nl.add)"
    )
    doubled = [[[2 * value for value in row] for row in rank] for rank in expected]
    assert ranks(call, (2, 4), count=3) == doubled


def test_ranks_know_who_they_are_and_whose_data_a_ring_step_brings() -> None:
    call = """
t = nl.ndarray((1, 4), nl.float32, buffer=nl.sbuf)
me = ncc.rank_id()
for step in range(3):
    other = ncc.collective_permute_implicit_current_processing_rank_id(
        iteration_id=step, replica_group=ncc.ReplicaGroup([[0, 1, 2]]), channel_id=0)
    v = nl.ndarray((1, 1), nl.int32, buffer=nl.sbuf)
    nisa.register_store(v, other)
    nisa.tensor_copy(dst=t[:, step:step + 1], src=v)
v = nl.ndarray((1, 1), nl.int32, buffer=nl.sbuf)
nisa.register_store(v, me)
nisa.tensor_copy(dst=t[:, 3:4], src=v)
nisa.dma_copy(dst=dst, src=t)
"""
    assert ranks(call, (1, 4), count=3) == [[[0, 2, 1, 0]], [[1, 0, 2, 1]], [[2, 1, 0, 2]]]


def test_collectives_of_varying_lengths() -> None:
    # Rows: send counts, send places, receive counts, receive places; rank 0 sends 3 elements, rank 1 sends 2.
    def table(rank: int) -> np.ndarray:
        sent = [3, 2][rank]
        return np.array([[sent, sent], [0, 0], [0, 0], [0, 3]], np.int32)

    call = (
        "meta = nl.ndarray(b.shape, b.dtype, buffer=nl.shared_hbm, name='meta')\nnisa.dma_copy(dst=meta, src=b)\n"
        "nisa.dma_copy(dst=dst, src=a)\n"
        f"ncc.all_gather_v(srcs=[src], dsts=[dst], {GROUP}, metadata_tensor=meta, has_rdispls=True)"
    )
    for rank, found in enumerate(ranks(call, (2, 4), extra=table)):
        own = (X + 10 * rank).reshape(-1)
        assert found == np.concatenate([X.reshape(-1)[:3], (X + 10).reshape(-1)[:2], own[5:]]).reshape(2, 4).tolist()

    # To rank 0 go the elements 0.., to rank 1 the elements 4..; one each from rank 0, two each from rank 1.
    def exchange(rank: int) -> np.ndarray:
        count = rank + 1
        return np.array([[count, count], [0, 4], [0, 0], [0, 1]], np.int32)

    call = call.replace("all_gather_v", "all_to_all_v")
    first, second = ranks(call, (2, 4), extra=exchange)
    assert first[0][:3] == [0, 10, 11]
    assert second[0][:3] == [4, 14, 15]


def test_a_rank_that_does_not_take_part_is_a_deadlock() -> None:
    body = COLLECTIVE.replace("{shape}", "(2, 4)").replace(
        "{call}", f"if b is not None:\n    ncc.all_reduce(srcs=[src], dsts=[dst], {GROUP}, op=nl.add)"
    )
    error = refusal(body, X, 1, ranks=2, arguments_of_rank=lambda rank: ([X, 1 if rank == 0 else None], {}))
    assert error.reason == "deadlock"
    assert "rank 1 program 0 has ended" in str(error)


def test_different_collectives_at_the_same_time() -> None:
    call = (
        f"if b:\n    ncc.all_reduce(srcs=[src], dsts=[dst], {GROUP}, op=nl.add)\n"
        f"else:\n    ncc.all_to_all(srcs=[src], dsts=[dst], {GROUP}, collective_dim=0)"
    )
    body = COLLECTIVE.replace("{shape}", "(2, 4)").replace("{call}", call)
    error = refusal(body, X, 1, ranks=2, arguments_of_rank=lambda rank: ([X, 1 - rank], {}))
    assert "all_reduce and others all_to_all" in str(error)


def test_one_argument_given_to_every_rank_is_each_ones_own() -> None:
    body = """
out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
t = nl.ndarray((1, 2), nl.float32, buffer=nl.sbuf)
nisa.dma_copy(dst=t, src=a)
nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=1.0)
nisa.dma_copy(dst=out, src=t)
return out
"""
    found = run(body, f32([1, 2]), ranks=2)
    assert [rank[0].array.tolist() for rank in found.outputs] == [[[2, 3]]] * 2

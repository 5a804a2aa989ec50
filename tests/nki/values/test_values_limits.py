"""Limits of the hardware that values are checked against: each one at its edge and beyond."""

from __future__ import annotations

import pytest

from tests.nki.values.running import refusal, run
from trnprof.hardware import load_hardware
from trnprof.nki.values.limits import PARTITION_BYTES


def test_sizes_are_those_of_the_hardware_tables() -> None:
    for target, sizes in PARTITION_BYTES.items():
        table = load_hardware(target)
        assert {memory: table[f"{memory.value}.partition_bytes"].value for memory in sizes} == sizes


TILE = """
t = nl.ndarray({shape}, nl.{dtype}, buffer=nl.{buffer})
nisa.memset(dst=t, value=1.0)
"""


def tile(shape: str, dtype: str = "float32", buffer: str = "sbuf") -> str:
    return TILE.format(shape=shape, dtype=dtype, buffer=buffer)


@pytest.mark.parametrize(
    ("inside", "beyond", "text"),
    [
        (tile("(128, 8)"), tile("(129, 8)"), "129 partitions"),
        (tile("(128, 57344)"), tile("(128, 57345)"), "229,376 B"),
        (tile("(128, 4096)", buffer="psum"), tile("(128, 4097)", buffer="psum"), "16,384 B"),
        # 64 partitions start at 0 or 64, 32 at each quadrant.
        (tile("(128, 8)") + "nisa.memset(dst=t[64:128, :], value=0.0)", tile("(128, 8)") + "nisa.memset(dst=t[32:96, :], value=0.0)", "starts at"),
        (tile("(128, 8)") + "nisa.memset(dst=t[96:128, :], value=0.0)", tile("(128, 8)") + "nisa.memset(dst=t[97:128, :], value=0.0)", "starts at"),
        # 512 elements of bn_stats; 8 to 16384 of max8
        (
            tile("(128, 512)") + "s = nl.ndarray((128, 6), nl.float32, buffer=nl.sbuf)\nnisa.bn_stats(dst=s, data=t)",
            tile("(128, 513)") + "s = nl.ndarray((128, 6), nl.float32, buffer=nl.sbuf)\nnisa.bn_stats(dst=s, data=t)",
            "512",
        ),
        (
            tile("(128, 8)") + "s = nl.ndarray((128, 8), nl.float32, buffer=nl.sbuf)\nnisa.max8(dst=s, src=t)",
            tile("(128, 7)") + "s = nl.ndarray((128, 8), nl.float32, buffer=nl.sbuf)\nnisa.max8(dst=s, src=t)",
            "8 to 16,384",
        ),
        # A pattern inside its partition and one that runs on into the next
        (
            tile("(128, 8)") + "nisa.memset(dst=t.ap([[8, 128], [2, 4]], offset=1), value=0.0)",
            tile("(128, 8)") + "nisa.memset(dst=t.ap([[8, 127], [2, 4]], offset=2), value=0.0)",
            "next partition",
        ),
        # Two operands in PSUM
        (
            tile("(128, 8)") + tile("(128, 8)", buffer="psum").replace("t =", "p =").replace("dst=t", "dst=p") + "nisa.tensor_tensor(dst=t, data1=t, data2=p, op=nl.add)",
            tile("(128, 8)", buffer="psum") + "s = nl.ndarray((128, 8), nl.float32, buffer=nl.sbuf)\nnisa.tensor_tensor(dst=s, data1=t, data2=t, op=nl.add)",
            "both in PSUM",
        ),
        # The types of a product
        (
            tile("(128, 8)", "bfloat16") + "p = nl.ndarray((8, 8), nl.float32, buffer=nl.psum)\nnisa.nc_matmul(dst=p, stationary=t, moving=t)",
            tile("(128, 8)", "int32") + "p = nl.ndarray((8, 8), nl.float32, buffer=nl.psum)\nnisa.nc_matmul(dst=p, stationary=t, moving=t)",
            "int32",
        ),
        # Bits of integers only
        (
            tile("(128, 8)", "int32") + "nisa.tensor_scalar(dst=t, data=t, op0=nl.bitwise_and, operand0=1)",
            tile("(128, 8)") + "nisa.tensor_scalar(dst=t, data=t, op0=nl.bitwise_and, operand0=1)",
            "bit patterns",
        ),
        # DMAs do not reach PSUM
        (
            tile("(128, 8)") + "o = nl.ndarray((128, 8), nl.float32, buffer=nl.hbm)\nnisa.dma_copy(dst=o, src=t)",
            tile("(128, 8)", buffer="psum") + "o = nl.ndarray((128, 8), nl.float32, buffer=nl.hbm)\nnisa.dma_copy(dst=o, src=t)",
            "PSUM",
        ),
    ],
)  # fmt: skip
def test_at_the_edge_and_beyond(inside: str, beyond: str, text: str) -> None:
    run(inside)
    error = refusal(beyond)
    assert text in str(error)
    assert error.reason == "hardware-limit"
    assert error.site is not None


def test_memory_of_the_other_generations() -> None:
    run(tile("(128, 65536)"), target="trn3")
    assert "262,144 B" in str(refusal(tile("(128, 65537)"), target="trn3"))
    assert "196,608 B" in str(refusal(tile("(128, 49153)"), target="trn1"))

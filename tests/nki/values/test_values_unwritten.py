"""Memory that nothing has written: NaN, and a note with the line that reads it; outputs say which elements are missing."""

from __future__ import annotations

import numpy as np

from tests.nki.values.running import run

BODY = """
t = nl.ndarray((4, 8), nl.{dtype}, buffer=nl.{buffer})
nisa.memset(dst=t[:, 0:6], value=1)
d = nl.ndarray((4, 8), nl.{dtype}, buffer=nl.sbuf)
nisa.tensor_copy(dst=d, src=t)
out = nl.ndarray((4, 8), nl.{dtype}, buffer=nl.shared_hbm)
nisa.dma_copy(dst=out, src=d)
return out
"""


def body(dtype: str = "float32", buffer: str = "sbuf") -> str:
    return BODY.replace("{dtype}", dtype).replace("{buffer}", buffer)


def test_a_read_of_unwritten_memory_is_nan_and_noted_once_with_its_line() -> None:
    for buffer in ("sbuf", "psum"):
        found = run(body(buffer=buffer))
        values = found.outputs[0][0].array
        assert np.isnan(values[:, 6:]).all()
        assert (values[:, :6] == 1).all()
        (note,) = found.notes
        assert (note.code, note.site.frames[0].line) == ("unwritten-read", 8)
        assert "8 of 32" in note.message
        # What was computed from them has been written.
        assert found.outputs[0][0].missing_count == 0


def test_unwritten_integers_are_a_pattern_and_noted_too() -> None:
    found = run(body("int32"))
    assert (found.outputs[0][0].array[:, 6:] == 0x55555555).all()
    assert [note.code for note in found.notes] == ["unwritten-read"]


def test_outputs_know_their_missing_elements() -> None:
    output = run("""
out = nl.ndarray((2, 4), nl.bfloat16, buffer=nl.shared_hbm)
t = nl.ndarray((2, 2), nl.bfloat16, buffer=nl.sbuf)
nisa.memset(dst=t, value=1.0)
nisa.dma_copy(dst=out[:, 1:3], src=t)
return out
""").outputs[0][0]
    assert output.missing_count == 4
    assert output.missing is not None
    assert output.missing.tolist() == [[True, False, False, True]] * 2


def test_what_is_written_is_never_noted() -> None:
    found = run("""
t = nl.ndarray((4, 8), nl.float32, buffer=nl.sbuf)
for i in range(8):
    nisa.memset(dst=t[:, i:i + 1], value=i)
out = nl.ndarray((4, 8), nl.float32, buffer=nl.shared_hbm)
nisa.dma_copy(dst=out, src=t)
return out
""")
    assert found.notes == ()
    assert found.outputs[0][0].array.tolist() == [list(range(8))] * 4


def test_an_argument_that_the_kernel_writes_is_an_output() -> None:
    x = np.zeros((2, 2), np.float32)
    found = run(
        "t = nl.ndarray((2, 2), nl.float32, buffer=nl.sbuf)\nnisa.memset(dst=t, value=3.0)\nnisa.dma_copy(dst=a, src=t)",
        x,
    )
    (output,) = found.outputs[0]
    assert output.is_argument
    assert output.name == "a"
    assert output.array.tolist() == [[3, 3]] * 2  # in the argument's shape

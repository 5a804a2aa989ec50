"""Waits and updates in operand text: the forms that the vendor prints, and hostile text in bounded time."""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnprof.readers.operands import PREFIX_CHARS, _parse, _parse_one, semaphore_numbers, wait_columns


def parse(text: str | None) -> tuple[object, object, object, object]:
    """(semaphore waited for, condition, value, semaphore updated) of one operand text."""
    columns = wait_columns(pa.array([text, text], pa.string()).dictionary_encode())
    rows = [
        tuple(columns[name].to_pylist())
        for name in ("wait_semaphore_idx", "wait_condition", "wait_value", "update_semaphore_idx")
    ]
    assert all(first == second for first, second in rows)
    return tuple(first for first, _ in rows)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("S[5] (Tensor)++@complete acc_flags=3 src=bfloat16@0x37e00[1,0,0][128,1,1] 128*128 ", (None, None, None, 5)),
        ("S[5] (Tensor)>=4 S[4] (Scalar)++@complete src=bfloat16@0x2000000[1,1,1,1]", (5, ">=", 4, 4)),
        (" setter=0 $S[2]==8 $S[2]=0@complete ", (2, "==", 8, 2)),
        (" setter=0  $S[2]+=1@complete ", (None, None, None, 2)),
        (" setter=0 $S[45]>=16 $S[45]--@complete ", (45, ">=", 16, 45)),
        ("S[8] (qSyncDynamicHW)>=16 setter=0 S[27] (qGpSimdDynamic)>=32 ", (8, ">=", 16, None)),
        (" $E[4]==1- cycle=1 ", (4, "event", None, None)),
        (" $E[1]+@complete cycle=1 ", (None, None, None, None)),
        ("S[6] (Vector)>=3 semaphore=8 sem_increment=16  src_elem_size=256 ", (6, ">=", 3, 8)),
        (" semaphore=9 sem_increment=16  src_elem_size=512 dst_elem_size=512 ", (None, None, None, 9)),
        (" semaphore=9 sem_increment=0  src_elem_size=512 ", (None, None, None, None)),
        (" mode=SEMAPHORE_ZERO first=207 last=255 ", (None, None, None, None)),
        (" addr=uint32@0x8005c035e000[0,0][1,1] data=$R[0] ", (None, None, None, None)),
        ("", (None, None, None, None)),
        (None, (None, None, None, None)),
        ("S[99999] (x)>=1", (None, None, None, None)),
        ("S[1] (x)>=" + "9" * 40, (1, ">=", 999_999_999_999_999_999, None)),
    ],
)
def test_the_forms_that_the_vendor_prints(text: str | None, expected: tuple[object, ...]) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2", 2),
        ("S[8] (qSyncDynamicHW)", 8),
        ("$S[255]", 255),
        ("", None),
        ("x", None),
        ("123456", None),
        ("12 34", None),
        (None, None),
    ],
)
def test_the_number_inside_a_semaphores_id(text: str | None, number: int | None) -> None:
    assert semaphore_numbers(pa.array([text], pa.string()).dictionary_encode()).to_pylist() == [number]


@given(
    st.integers(0, 255),
    st.integers(0, 2**32 - 1),
    st.text("abcXYZ019_", max_size=20),
    st.sampled_from(["==", ">=", ">"]),
)
def test_any_wait_comes_back(number: int, value: int, name: str, condition: str) -> None:
    assert parse(f"S[{number}] ({name}){condition}{value} S[7] ({name})++@complete src=1") == (
        number,
        condition,
        value,
        7,
    )


@given(st.text("S[E]()$=<>+-@0123456789 ab", max_size=200))
def test_any_text_gives_numbers_that_fit_or_none(text: str) -> None:
    wait, condition, value, update = parse(text)
    assert (wait is None) == (condition is None)
    assert value is None or condition != "event"
    assert all(number is None or 0 <= number < 10_000 for number in (wait, update))  # type: ignore[operator]


def test_long_hostile_text_takes_no_time() -> None:
    texts = ["S[1] (" * 500_000, "S[" + "1" * 3_000_000, "S[1]" * 500_000, "semaphore=1 " * 300_000]
    started = time.process_time()
    for text in texts:
        parse(text)
    assert time.process_time() - started < 1


PIECES = st.sampled_from(
    [
        *("S[", "E[", "$S[45]", "]", " (Tensor)", " (a b)", "(", ")", " ", "==", ">=", "<=", "!=", ">", "<", "=", "4"),
        *(
            "17",
            "1" * 18,
            "1" * 19,
            "++@",
            "--@",
            "+=",
            "-=",
            "@complete",
            "++",
            "semaphore=8",
            " sem_increment=16",
            "x",
        ),
        *(
            "é",
            "sem_increment=0",
            "12345",
            "0",
            "S",
            "E",
            "[",
            f" ({'n' * 100})",
            f" ({'n' * 101})",
            "é" * 60,
            "z" * 200,
        ),
    ]
)


@given(texts=st.lists(st.lists(PIECES, max_size=9).map("".join), min_size=1, max_size=40))
@settings(max_examples=150, deadline=None)
def test_the_arithmetic_is_the_regular_expressions(texts: list[str]) -> None:
    """Texts are parsed on their bytes; what they mean is what the expressions find, one text after the other."""
    column = pa.array(texts, pa.string()).dictionary_encode()
    parsed = _parse(column.dictionary)
    one_by_one = type(parsed)(*(np.full(len(column.dictionary), -1) for _ in range(4)))
    for place, text in enumerate(column.dictionary.to_pylist()):
        _parse_one(text[:PREFIX_CHARS], place, one_by_one)
    for name in ("wait", "condition", "value", "update"):
        assert getattr(parsed, name).tolist() == getattr(one_by_one, name).tolist()

"""Semaphore waits and updates out of the operand text that the vendor's profiler prints for an instruction.

The text begins with what the instruction waits for and what it updates, for example:

    S[5] (Tensor)>=4 S[4] (Scalar)++@complete src=...   wait until semaphore 5 is at least 4; then add 1 to semaphore 4
    setter=0 $S[2]==8 $S[2]=0@complete                  wait until semaphore 2 is 8; then set it to 0
    $E[4]==1- cycle=1                                   wait for event 4, then clear it
    semaphore=8 sem_increment=16 src_elem_size=...      the DMA that it starts adds 16 to semaphore 8

A dollar sign stands where the profiler knows no name for the semaphore. An EVENT_SEMAPHORE may wait for two semaphores;
the first one printed is kept. An event is waited for until it is set, so the wait has no value; setting an event
(`$E[1]+@complete`) updates no semaphore.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

PREFIX_CHARS = 400
"""How much of the text is looked at: waits and updates stand at its beginning (the longest seen is 60 characters)."""

CONDITIONS = ("==", ">=", "<=", "!=", ">", "<", "event")

_BLOCK_TEXTS = 1 << 12
"""Texts parsed at once: their bytes fit the processor's caches."""

_MAX_HELD_TEXTS = 1 << 18
_MAX_NAME_CHARS = 100
_MAX_INDEX_DIGITS = 4
_MAX_VALUE_DIGITS = 18

_NAME = r"(?: \([^()]{0,100}\))?"
_WAIT = re.compile(rf"([SE])\[(\d{{1,4}})\]{_NAME}(==|>=|<=|!=|>|<)(\d{{1,18}})", re.ASCII)
_UPDATE = re.compile(rf"S\[(\d{{1,4}})\]{_NAME}(?:\+\+|--|[+-]?=\d{{1,18}})@", re.ASCII)
_DMA_UPDATE = re.compile(r"\bsemaphore=(\d{1,4}) sem_increment=0{0,6}[1-9]", re.ASCII)
_DMA_SIGN = b"sem_increment="
_SEMAPHORE = re.compile(r"\$?S\[(\d{1,4})\]|(\d{1,4})$", re.ASCII)

Int64Array = npt.NDArray[np.int64]


def wait_columns(operands: pa.DictionaryArray) -> dict[str, pa.Array]:
    """wait_semaphore_idx, wait_condition, wait_value and update_semaphore_idx of each row; null: none.

    Each distinct text is parsed once; in an unrolled program nearly every instruction's text is a distinct one.
    """
    found = _parsed(operands.dictionary)
    rows = operands.indices
    none = found.wait < 0
    condition = pa.DictionaryArray.from_arrays(
        pa.array(found.condition, pa.int32(), mask=none).take(rows), pa.array(CONDITIONS, pa.string())
    )
    return {
        "wait_semaphore_idx": pa.array(found.wait, pa.int16(), mask=none).take(rows),
        "wait_condition": condition,
        "wait_value": pa.array(found.value, pa.int64(), mask=found.value < 0).take(rows),
        "update_semaphore_idx": pa.array(found.update, pa.int16(), mask=found.update < 0).take(rows),
    }


@dataclass(frozen=True, eq=False)
class _Parsed:
    """What each text says; -1: nothing. All of shape [texts]."""

    wait: Int64Array
    """The semaphore or event waited for."""
    condition: Int64Array
    """Index into CONDITIONS."""
    value: Int64Array
    update: Int64Array
    """The semaphore updated."""


_last: tuple[pa.Array, _Parsed] | None = None
"""What was parsed last: parts of one table often share their dictionary."""


def _parsed(texts: pa.Array) -> _Parsed:
    global _last
    held = _last
    if held is not None and held[0].equals(texts):
        return held[1]
    found = _parse(texts)
    _last = (texts, found) if len(texts) <= _MAX_HELD_TEXTS else None
    return found


def _parse(texts: pa.Array) -> _Parsed:
    """The regular expressions above, for all texts at once: plain ASCII by arithmetic on its bytes, the rest one by one."""
    heads = texts.cast(pa.string())
    heads = heads.fill_null("") if heads.null_count else heads
    if len(heads) and pc.max(pc.binary_length(heads)).as_py() > PREFIX_CHARS:
        heads = pc.utf8_slice_codeunits(heads, 0, PREFIX_CHARS)
    found = _Parsed(*(np.full(len(heads), -1, np.int64) for _ in range(4)))
    for first in range(0, len(heads), _BLOCK_TEXTS):
        _parse_block(heads.slice(first, _BLOCK_TEXTS), first, found)
    return found


def _parse_block(heads: pa.Array, first: int, found: _Parsed) -> None:
    held = _Bytes(heads)
    _parse_bytes(held, first, found)
    is_ascii = held.data.max() < 128
    if not is_ascii or _DMA_SIGN in held.data.tobytes():
        for place, head in enumerate(heads.to_pylist(), first):
            if not head.isascii():
                _parse_one(head, place, found)
            elif found.update[place] < 0 and "sem_increment=" in head:
                update = _DMA_UPDATE.search(head)
                found.update[place] = int(update[1]) if update else -1


def _parse_one(head: str, place: int, found: _Parsed) -> None:
    wait, update = _WAIT.search(head), _UPDATE.search(head) or _DMA_UPDATE.search(head)
    found.wait[place] = found.condition[place] = found.value[place] = -1
    if wait is not None:
        is_event = wait[1] == "E"
        found.wait[place] = int(wait[2])
        found.condition[place] = CONDITIONS.index("event" if is_event else wait[3])
        found.value[place] = -1 if is_event else int(wait[4])
    found.update[place] = int(update[1]) if update else -1


class _Bytes:
    """The bytes of all texts, one after the other, and where each text ends."""

    def __init__(self, texts: pa.Array) -> None:
        _, offsets, data = texts.buffers()
        held = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
        whole = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
        # A zero byte after the last text, so that looking one byte too far finds nothing.
        self.data = np.append(whole[held[0] : held[-1]], np.uint8(0))
        self.offsets = (held - held[0]).astype(np.int64)

    def at(self, place: Int64Array, end: Int64Array) -> npt.NDArray[np.uint8]:
        """The byte at each place; 0 where the text has ended."""
        return np.where(place < end, self.data[np.minimum(place, len(self.data) - 1)], np.uint8(0))

    def number(self, place: Int64Array, end: Int64Array, most: int) -> tuple[Int64Array, Int64Array]:
        """(the number whose digits, at most `most`, stand there, the place after it); -1 where there is no digit."""
        value, after, open_ = np.zeros(len(place), np.int64), place.copy(), np.ones(len(place), bool)
        for _ in range(most):
            digit = self.at(after, end).astype(np.int64) - ord("0")
            open_ = open_ & (digit >= 0) & (digit <= 9)
            if not open_.any():
                break
            value = np.where(open_, value * 10 + digit, value)
            after = after + open_
        return np.where(after > place, value, -1), after


def _parse_bytes(held: _Bytes, first: int, found: _Parsed) -> None:
    """Every `S[` and `E[` is looked at; of a text the first wait and the first update count."""
    data = held.data
    start = np.flatnonzero(data[1:] == ord("["))
    start = start[(data[start] == ord("S")) | (data[start] == ord("E"))]
    if not len(start):
        return
    row = np.searchsorted(held.offsets, start, side="right") - 1
    end = held.offsets[row + 1]
    row += first
    index, place = held.number(start + 2, end, _MAX_INDEX_DIGITS)
    whole = (index >= 0) & (held.at(place, end) == ord("]"))
    start, row, end, index, place = (values[whole] for values in (start, row, end, index, place + 1))
    place = _after_name(held, place, end)
    condition, at_value = _condition(held, place, end)
    value, _ = held.number(at_value, end, _MAX_VALUE_DIGITS)
    is_event = data[start] == ord("E")
    _first(
        row,
        (condition >= 0) & (value >= 0),
        {
            "wait": index,
            "condition": np.where(is_event, CONDITIONS.index("event"), condition),
            "value": np.where(is_event, -1, value),
        },
        found,
    )
    _first(row, ~is_event & _is_update(held, place, end), {"update": index}, found)


def _after_name(held: _Bytes, place: Int64Array, end: Int64Array) -> Int64Array:
    """The place after ` (name)` where one stands there, else the same."""
    opens = (held.at(place, end) == ord(" ")) & (held.at(place + 1, end) == ord("("))
    if not opens.any():
        return place
    parens = np.flatnonzero((held.data == ord("(")) | (held.data == ord(")")))
    following = parens[np.minimum(np.searchsorted(parens, place + 2), len(parens) - 1)]
    closes = (following >= place + 2) & (held.at(following, end) == ord(")"))
    return np.where(opens & closes & (following - place - 2 <= _MAX_NAME_CHARS), following + 1, place)


def _condition(held: _Bytes, place: Int64Array, end: Int64Array) -> tuple[Int64Array, Int64Array]:
    """(index of the condition that stands there or -1, the place after it)."""
    first, second = held.at(place, end), held.at(place + 1, end)
    found = np.full(len(place), -1, np.int64)
    for number, text in enumerate(CONDITIONS[:6]):
        one, two = ord(text[0]), ord(text[1]) if len(text) > 1 else None
        found[(found < 0) & (first == one) & (True if two is None else second == two)] = number
    return found, place + np.array([2, 2, 2, 2, 1, 1, 0])[found]


def _is_update(held: _Bytes, place: Int64Array, end: Int64Array) -> npt.NDArray[np.bool_]:
    """Does `++@`, `--@`, `=N@`, `+=N@` or `-=N@` stand there?"""
    first, second, third = (held.at(place + step, end) for step in range(3))
    signed = (first == ord("+")) | (first == ord("-"))
    counts = signed & (first == second) & (third == ord("@"))
    sets = (first == ord("=")) | (signed & (second == ord("=")))
    value, after = held.number(place + 1 + signed, end, _MAX_VALUE_DIGITS)
    return counts | (sets & (value >= 0) & (held.at(after, end) == ord("@")))


def _first(row: Int64Array, chosen: npt.NDArray[np.bool_], values: dict[str, Int64Array], found: _Parsed) -> None:
    """Put each row's first chosen values in place."""
    places = np.flatnonzero(chosen)
    rows = row[places]
    places = places[np.diff(rows, prepend=-1) != 0]
    for name, column in values.items():
        getattr(found, name)[row[places]] = column[places]


def semaphore_numbers(ids: pa.DictionaryArray) -> pa.Array:
    """The number inside a semaphore's printed id: 2 of "2", 8 of "S[8] (qSyncDynamicHW)"; null where there is none."""
    matches = [_SEMAPHORE.match(text or "") for text in ids.dictionary.to_pylist()]
    numbers = [int(match[1] or match[2]) if match else None for match in matches]
    return pa.array(numbers, pa.int16()).take(ids.indices)

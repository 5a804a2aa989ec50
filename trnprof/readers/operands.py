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

import pyarrow as pa

PREFIX_CHARS = 400
"""How much of the text is looked at: waits and updates stand at its beginning (the longest seen is 60 characters)."""

_NAME = r"(?: \([^()]{0,100}\))?"
_WAIT = re.compile(rf"([SE])\[(\d{{1,4}})\]{_NAME}(==|>=|<=|!=|>|<)(\d{{1,18}})", re.ASCII)
_UPDATE = re.compile(rf"S\[(\d{{1,4}})\]{_NAME}(?:\+\+|--|[+-]?=\d{{1,18}})@", re.ASCII)
_DMA_UPDATE = re.compile(r"\bsemaphore=(\d{1,4}) sem_increment=0{0,6}[1-9]", re.ASCII)
_SEMAPHORE = re.compile(r"\$?S\[(\d{1,4})\]|(\d{1,4})$", re.ASCII)


def wait_columns(operands: pa.DictionaryArray) -> dict[str, pa.Array]:
    """wait_semaphore_idx, wait_condition, wait_value and update_semaphore_idx of each row; null: none.

    Each distinct text is parsed once.
    """
    waits: list[tuple[int | None, str | None, int | None]] = []
    updates: list[int | None] = []
    for text in operands.dictionary.to_pylist():
        head = (text or "")[:PREFIX_CHARS]
        wait, update = _WAIT.search(head), _UPDATE.search(head) or _DMA_UPDATE.search(head)
        if wait is None:
            waits.append((None, None, None))
        else:
            is_event = wait[1] == "E"
            waits.append((int(wait[2]), "event" if is_event else wait[3], None if is_event else int(wait[4])))
        updates.append(int(update[1]) if update else None)
    rows = operands.indices
    return {
        "wait_semaphore_idx": pa.array([wait[0] for wait in waits], pa.int16()).take(rows),
        "wait_condition": pa.array([wait[1] for wait in waits], pa.string()).take(rows).dictionary_encode(),
        "wait_value": pa.array([wait[2] for wait in waits], pa.int64()).take(rows),
        "update_semaphore_idx": pa.array(updates, pa.int16()).take(rows),
    }


def semaphore_numbers(ids: pa.DictionaryArray) -> pa.Array:
    """The number inside a semaphore's printed id: 2 of "2", 8 of "S[8] (qSyncDynamicHW)"; null where there is none."""
    matches = [_SEMAPHORE.match(text or "") for text in ids.dictionary.to_pylist()]
    numbers = [int(match[1] or match[2]) if match else None for match in matches]
    return pa.array(numbers, pa.int16()).take(ids.indices)

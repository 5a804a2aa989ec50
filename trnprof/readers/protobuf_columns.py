"""Many protobuf messages of one kind at once: fields of all of them as numpy columns, for tables of millions of rows.

readers/protobuf.py reads one message field by field; here all messages advance together, one field a pass, so that the
cost in Python is the number of fields in the longest message and not the number of messages. Everything is checked
against the message that holds it, as there.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trnprof.readers.protobuf import WireError

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

MAX_FIELDS = 4096
"""Fields in one message: a pass over the columns each, so it bounds the time. Real entries have about a dozen."""


@dataclass(frozen=True, eq=False)
class Spans:
    """Pieces of one byte array: messages, strings or packed lists. Shape [n] each."""

    data: Bytes
    start: Ints
    end: Ints

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, eq=False)
class FieldColumns:
    """Every field of n messages, sorted by message and then in the order of the wire. Shape [fields] each."""

    message_count: int
    row: Ints
    """Which message the field is of."""
    number: Ints
    is_varint: npt.NDArray[np.bool_]
    spans: Spans
    """The payload; of a varint its own bytes."""

    def integers(self, number: int) -> Ints:
        """The value of a varint field in each message, shape [n]; 0 where it is absent, the last one where it repeats.

        Raises: WireError for a value beyond int64 or a field that is no varint.
        """
        found = np.flatnonzero(self.number == number)
        if not self.is_varint[found].all():
            raise WireError(f"field {number} is no number")
        values, _ = _varints(self.spans.data, self.spans.start[found], self.spans.end[found])
        column = np.zeros(self.message_count, np.int64)
        column[self.row[found]] = values
        return column

    def strings(self, number: int) -> pa.Array:
        """A text field of each message, shape [n]; empty where it is absent, the last one where it repeats."""
        found = self._lengthed(number)
        start = np.zeros(self.message_count, np.int64)
        end = np.zeros(self.message_count, np.int64)
        start[self.row[found]] = self.spans.start[found]
        end[self.row[found]] = self.spans.end[found]
        return decode_strings(Spans(self.spans.data, start, end))

    def integer_lists(self, number: int) -> pa.Array:
        """A repeated varint field, packed or not, as one list per message, shape [n]."""
        found = np.flatnonzero(self.number == number)
        values, counts = _packed_varints(Spans(self.spans.data, self.spans.start[found], self.spans.end[found]))
        return pa.ListArray.from_arrays(self._offsets(found, counts), pa.array(values))

    def messages(self, number: int) -> tuple[pa.Array, Spans]:
        """(offsets, spans) of a repeated message field: message i's are spans[offsets[i]:offsets[i + 1]]."""
        found = self._lengthed(number)
        spans = Spans(self.spans.data, self.spans.start[found], self.spans.end[found])
        return self._offsets(found, np.ones(len(found), np.int64)), spans

    def _lengthed(self, number: int) -> Ints:
        found = np.flatnonzero(self.number == number)
        if self.is_varint[found].any():
            raise WireError(f"field {number} is a number where text or a message belongs")
        return found

    def _offsets(self, found: Ints, counts: Ints) -> pa.Array:
        per_message = np.bincount(self.row[found], weights=counts, minlength=self.message_count).astype(np.int64)
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(per_message)))
        if offsets[-1] > np.iinfo(np.int32).max:
            raise WireError(f"{offsets[-1]} values in one column")
        return pa.array(offsets.astype(np.int32))


def decode_columns(messages: Spans) -> FieldColumns:
    """All fields of all messages.

    Raises: WireError for a varint over 64 bits, a length beyond the message, an unknown wire type, or more than
            MAX_FIELDS fields in one message.
    """
    data = messages.data
    at = messages.start.copy()
    active = np.flatnonzero(at < messages.end)
    rows, numbers, varints, starts, ends = [], [], [], [], []
    for _ in range(MAX_FIELDS + 1):
        if not len(active):
            break
        key, start = _varints(data, at[active], messages.end[active])
        wire_type = key & 7
        limit = messages.end[active]
        is_varint = wire_type == 0
        end = start.copy()
        _, end[is_varint] = _varints(data, start[is_varint], limit[is_varint])
        lengthed = wire_type == 2
        length, start[lengthed] = _varints(data, start[lengthed], limit[lengthed])
        end[lengthed] = start[lengthed] + length
        end[wire_type == 1] += 8
        end[wire_type == 5] += 4
        if ((wire_type == 3) | (wire_type == 4) | (wire_type > 5) | (key >> 3 == 0)).any():
            raise WireError("an unknown wire type or a field number 0")
        if ((end > limit) | (end < start)).any():
            raise WireError("a field is longer than the message that holds it")
        rows.append(active)
        numbers.append(key >> 3)
        varints.append(is_varint)
        starts.append(start)
        ends.append(end)
        at[active] = end
        active = active[end < limit]
    else:
        raise WireError(f"more than {MAX_FIELDS} fields in one message")
    row = np.concatenate(rows) if rows else np.zeros(0, np.int64)
    order = np.argsort(row, kind="stable")

    def sorted_column(parts: list[Any], dtype: type) -> npt.NDArray[Any]:
        return np.concatenate(parts)[order] if parts else np.zeros(0, dtype)

    return FieldColumns(
        message_count=len(messages),
        row=row[order],
        number=sorted_column(numbers, np.int64),
        is_varint=sorted_column(varints, np.bool_),
        spans=Spans(data, sorted_column(starts, np.int64), sorted_column(ends, np.int64)),
    )


def decode_strings(spans: Spans) -> pa.Array:
    """The spans as text, shape [n]; bytes that are not UTF-8 are kept as escapes, since names are only printed."""
    length = spans.end - spans.start
    total = int(length.sum())
    if total > np.iinfo(np.int32).max:
        raise WireError(f"{total} bytes of text in one column")
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(length))).astype(np.int32)
    content = _gather(spans)
    strings = pa.StringArray.from_buffers(len(spans), pa.py_buffer(offsets), pa.py_buffer(content))
    try:
        strings.validate(full=True)
    except pa.ArrowInvalid:
        raw = content.tobytes()
        pieces = [raw[first:last] for first, last in pairwise(offsets.tolist())]
        return pa.array([piece.decode("utf-8", "backslashreplace") for piece in pieces], pa.string())
    return strings


def _gather(spans: Spans) -> Bytes:
    """The bytes of all spans, one after the other."""
    length = spans.end - spans.start
    first = np.cumsum(length) - length
    return spans.data[np.repeat(spans.start - first, length) + np.arange(int(length.sum()))]


def _varints(data: Bytes, at: Ints, end: Ints) -> tuple[Ints, Ints]:
    """(values, first bytes after them) of the varints at `at`, each of which must end before `end`."""
    value = np.zeros(len(at), np.int64)
    after = at.copy()
    pending = np.arange(len(at))
    for shift in range(0, 70, 7):
        if not len(pending):
            return value, after
        if (after[pending] >= end[pending]).any():
            raise WireError("a number runs beyond the message that holds it")
        byte = data[after[pending]].astype(np.int64)
        if shift == 63:
            raise WireError("a number beyond 63 bits")
        value[pending] |= (byte & 0x7F) << shift
        after[pending] += 1
        pending = pending[byte >= 0x80]
    return value, after


def _packed_varints(spans: Spans) -> tuple[Ints, Ints]:
    """(values of all spans, number of values in each span)."""
    content = _gather(spans)
    is_last = content < 0x80
    length = spans.end - spans.start
    span_end = np.cumsum(length)
    if len(content) and not is_last[span_end[length > 0] - 1].all():
        raise WireError("a packed list ends in the middle of a number")
    value_end = np.flatnonzero(is_last) + 1
    value_start = np.concatenate((np.zeros(1, np.int64), value_end[:-1])) if len(value_end) else value_end
    size = value_end - value_start
    if (size > 9).any():
        raise WireError("a number beyond 63 bits")
    values = np.zeros(len(value_end), np.int64)
    for index in range(int(size.max(initial=0))):
        more = size > index
        values[more] |= (content[value_start[more] + index].astype(np.int64) & 0x7F) << (7 * index)
    before = np.concatenate((np.zeros(1, np.int64), np.cumsum(is_last)))
    return values, before[span_end] - before[span_end - length]

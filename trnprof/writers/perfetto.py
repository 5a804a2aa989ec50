"""A profile as a Perfetto trace (protobuf): each core a process, each engine a track, each event a slice.

A trace is a sequence of TracePackets. A slice is two of them, its begin and its end; names are sent once and referred
to by number. All packets of a batch of slices are made at once: their bytes are the columns of a matrix in which each
row is one slice, and a second matrix says which bytes a row has (writers/protobuf.py writes the few others).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trnprof.profile import Profile, codes_of, int64_of
from trnprof.writers.output import replaced_file
from trnprof.writers.protobuf import field, varint
from trnprof.writers.tracks import Track, tracks_of

BATCH_ROWS = 1 << 15

# Field numbers of perfetto's trace protos.
_PACKET = 1
_TIMESTAMP, _SEQUENCE, _TRACK_EVENT, _INTERNED, _FLAGS, _DESCRIPTOR = 8, 10, 11, 12, 13, 60
_EVENT_DETAIL, _EVENT_TYPE, _EVENT_NAME, _EVENT_TRACK = 4, 9, 10, 11
_DETAIL_NAME, _DETAIL_INT, _DETAIL_TEXT = 1, 4, 17
_NAMES, _DETAIL_NAMES, _DETAIL_TEXTS = 2, 3, 29
_BEGIN, _END = 1, 2
_CLEARED, _NEEDED = 1, 2
_SEQUENCE_ID = 1
_EXPLICIT_ORDER = 3


def write_perfetto_trace(profiles: list[tuple[str, Profile]], path: Path, *, overwrite: bool = False) -> int:
    """Write one trace of all profiles; returns how many events no lane was left for.

    profiles: (name, profile) each; the names are untrusted. Perfetto's clock is unsigned: times are shifted so that none
    is negative, and each slice carries its start on the capture's clock as a detail.

    Raises: UsageError if `path` cannot or must not be written.
    """
    left_out = 0
    with replaced_file(path, overwrite=overwrite) as new, new.open("wb") as file:
        interned = _Interned()
        file.write(_packet(field(_FLAGS, _CLEARED | _NEEDED)))
        process = track_id = 0
        for name, profile in profiles:
            tracks = tracks_of(profile)
            left_out += tracks.left_out_count
            processes = []
            for core in profile.metadata.cores:
                process, track_id = process + 1, track_id + 1
                processes.append(track_id)
                title = f"{name}: core {core.core} ({core.subgraph}), {profile.metadata.provenance}"
                about = field(1, process) + field(6, title)
                descriptor = field(1, track_id) + field(3, about) + field(11, _EXPLICIT_ORDER) + field(12, process)
                file.write(_packet(field(_DESCRIPTOR, descriptor)))
            for track in tracks.tracks:
                track_id += 1
                descriptor = field(1, track_id) + field(2, track.name) + field(5, processes[track.core])
                file.write(_packet(field(_DESCRIPTOR, descriptor + field(12, track_id))))
                for packets in _slices(track, track_id, -tracks.earliest_ts(), interned):
                    file.write(packets)
    return left_out


def _packet(content: bytes) -> bytes:
    return field(_PACKET, content + field(_SEQUENCE, _SEQUENCE_ID))


class _Interned:
    """Strings that were sent, by kind; a kind is a field of InternedData."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, str], int] = {}

    def numbers(self, kind: int, texts: Iterable[str]) -> tuple[npt.NDArray[np.int64], bytes]:
        """(the number of each text, the packet that sends the new ones)."""
        numbers, new = [], b""
        for text in texts:
            number = self._numbers.get((kind, text))
            if number is None:
                number = self._numbers[kind, text] = len(self._numbers) + 1
                new += field(kind, field(1, number) + field(2, text))
            numbers.append(number)
        packet = _packet(field(_INTERNED, new) + field(_FLAGS, _NEEDED)) if new else b""
        return np.array(numbers, np.int64), packet


def _slices(track: Track, track_id: int, shift_ns: int, interned: _Interned) -> Iterator[bytes]:
    label_numbers, packet = interned.numbers(_NAMES, track.labels)
    yield packet
    # (number of the name, field of the value, values, which rows have one)
    start = pa.chunked_array([pa.array(track.start_ts)])
    details: list[tuple[int, int, npt.NDArray[np.int64], npt.NDArray[np.bool_]]] = []
    for name, values in {"start_ns": start, **track.details}.items():
        numbers, packet = interned.numbers(_DETAIL_NAMES, [name])
        yield packet
        if pa.types.is_dictionary(values.type):
            codes, texts = codes_of(values)
            texts_numbers, packet = interned.numbers(_DETAIL_TEXTS, texts)
            yield packet
            present = codes >= 0
            details.append((int(numbers[0]), _DETAIL_TEXT, np.append(texts_numbers, 0)[codes], present))
        else:
            present = values.is_valid().to_numpy()
            details.append((int(numbers[0]), _DETAIL_INT, int64_of(values), present))
    for first in range(0, len(track.start_ts), BATCH_ROWS):
        rows = slice(first, first + BATCH_ROWS)
        count = len(track.start_ts[rows])
        event = [
            _constant(varint(_EVENT_TYPE << 3) + varint(_BEGIN) + varint(_EVENT_TRACK << 3) + varint(track_id), count),
            _numbers(_EVENT_NAME, label_numbers[track.label[rows]]),
        ]
        for number, kind, values, present in details:
            detail = _joined([_constant(field(_DETAIL_NAME, number), count), _numbers(kind, values[rows])])
            event.append(_where(_message(_EVENT_DETAIL, detail), present[rows]))
        ending = _constant(field(_EVENT_TYPE, _END) + field(_EVENT_TRACK, track_id), count)
        pairs = [
            _packet_rows(track.start_ts[rows] + shift_ns, _joined(event)),
            _packet_rows(track.end_ts[rows] + shift_ns, ending),
        ]
        yield _joined(pairs).flat()


@dataclass(frozen=True, eq=False)
class _Bytes:
    """A byte string a row: the bytes of `data` that `kept` marks, in order. Both of shape [rows, width]."""

    data: npt.NDArray[np.uint8]
    kept: npt.NDArray[np.bool_]

    def lengths(self) -> npt.NDArray[np.int64]:
        return self.kept.sum(axis=1)

    def flat(self) -> bytes:
        """All rows one after another."""
        return self.data[self.kept].tobytes()


def _constant(data: bytes, count: int) -> _Bytes:
    row = np.frombuffer(data, np.uint8)
    return _Bytes(np.broadcast_to(row, (count, len(row))), np.ones((count, len(row)), np.bool_))


def _varints(values: npt.NDArray[np.int64]) -> _Bytes:
    """Each value as a varint; negative ones as their 64-bit two's complement."""
    unsigned = values.astype(np.int64).view(np.uint64)
    width = max(1, -(-int(unsigned.max(initial=0)).bit_length() // 7))
    left = unsigned[:, None] >> (7 * np.arange(width, dtype=np.uint64))
    data = (left & np.uint64(0x7F)).astype(np.uint8)
    kept = left > 0
    kept[:, 0] = True
    data[:, :-1] |= kept[:, 1:].astype(np.uint8) << 7
    return _Bytes(data, kept)


def _joined(parts: list[_Bytes]) -> _Bytes:
    return _Bytes(np.hstack([part.data for part in parts]), np.hstack([part.kept for part in parts]))


def _where(part: _Bytes, rows: npt.NDArray[np.bool_]) -> _Bytes:
    return _Bytes(part.data, part.kept & rows[:, None])


def _numbers(number: int, values: npt.NDArray[np.int64]) -> _Bytes:
    """A varint field."""
    return _joined([_constant(varint(number << 3), len(values)), _varints(values)])


def _message(number: int, content: _Bytes) -> _Bytes:
    """A field with a length."""
    tag = _constant(varint(number << 3 | 2), len(content.data))
    return _joined([tag, _varints(content.lengths()), content])


def _packet_rows(timestamps: npt.NDArray[np.int64], event: _Bytes) -> _Bytes:
    around = _constant(field(_SEQUENCE, _SEQUENCE_ID) + field(_FLAGS, _NEEDED), len(timestamps))
    return _message(_PACKET, _joined([_numbers(_TIMESTAMP, timestamps), around, _message(_TRACK_EVENT, event)]))

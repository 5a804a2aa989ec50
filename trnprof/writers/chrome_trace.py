"""A profile as Chrome trace event JSON, which ui.perfetto.dev and chrome://tracing open.

Times there are microseconds in decimal; three digits after the point keep every nanosecond. Lines are put together
column by column and written in batches, so that memory does not grow with the capture.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trnprof.intervals import Int64Array
from trnprof.profile import Profile, codes_of
from trnprof.version import __version__
from trnprof.writers.output import replaced_file
from trnprof.writers.tracks import Track, tracks_of

BATCH_ROWS = 1 << 16


def write_chrome_trace(profiles: list[tuple[str, Profile]], path: Path, *, overwrite: bool = False) -> int:
    """Write one trace of all profiles, each core a process; returns how many events no lane was left for.

    profiles: (name, profile) each; the names are untrusted. Times are shifted so that none is negative; the shift is in
    otherData.

    Raises: UsageError if `path` cannot or must not be written.
    """
    left_out = 0
    with replaced_file(path, overwrite=overwrite) as new, new.open("wb") as file:
        laid_out = [(name, profile, tracks_of(profile)) for name, profile in profiles]
        other = {
            "tool": f"trnprof {__version__}",
            "provenance": sorted({str(profile.metadata.provenance) for profile in (p for _, p in profiles)}),
            "shift_ns": [-tracks.earliest_ts() for _, _, tracks in laid_out],
        }
        file.write(b'{"displayTimeUnit":"ns","otherData":' + _json(other) + b',"traceEvents":[\n')
        process = thread = 0
        for name, profile, tracks in laid_out:
            left_out += tracks.left_out_count
            first_process = process + 1
            for core in profile.metadata.cores:
                process += 1
                title = f"{name}: core {core.core} ({core.subgraph}), {profile.metadata.provenance}"
                file.write(_meta("process_name", process, 0, name=title))
                file.write(_meta("process_sort_index", process, 0, sort_index=process))
            for track in tracks.tracks:
                thread += 1
                of = first_process + track.core
                title = track.name if not track.lane else f"{track.name} (lane {track.lane + 1})"
                file.write(_meta("thread_name", of, thread, name=title))
                file.write(_meta("thread_sort_index", of, thread, sort_index=thread))
                for lines in _slices(track, of, thread, -tracks.earliest_ts()):
                    file.write(lines)
        # The last element has no comma after it.
        file.write(_json({"ph": "M", "name": "trace_end", "pid": process, "tid": 0, "args": {}}) + b"\n]}\n")
    return left_out


def microseconds(ns: Int64Array) -> pa.Array:
    """Non-negative nanoseconds as decimal microseconds, exact: 1234567 is "1234.567"; shape [n]."""
    whole = pa.array(ns // 1000).cast(pa.string())
    rest = pc.utf8_lpad(pa.array(ns % 1000).cast(pa.string()), width=3, padding="0")
    return pc.binary_join_element_wise(whole, rest, ".")


def _slices(track: Track, process: int, thread: int, shift_ns: int) -> Iterator[bytes]:
    """The track's complete events ("X"), a batch of lines at a time, each line ended by a comma."""
    heads = pa.array(
        [f'{{"ph":"X","pid":{process},"tid":{thread},"name":{json.dumps(label)},"ts":' for label in track.labels]
    )
    details = [(f",{json.dumps(name)}:", _json_values(values)) for name, values in track.details.items()]
    for first in range(0, len(track.start_ts), BATCH_ROWS):
        rows = slice(first, first + BATCH_ROWS)
        start, end = track.start_ts[rows], track.end_ts[rows]
        parts: list[object] = [heads.take(pa.array(track.label[rows])), microseconds(start + shift_ns), ',"dur":']
        parts += [microseconds(end - start), ',"args":{"start_ns":', pa.array(start).cast(pa.string())]
        for key, values in details:
            parts += [key, values[rows]]
        parts.append("}},\n")
        lines = pc.binary_join_element_wise(*parts, "")
        yield _text_of(lines)


def _json_values(values: pa.ChunkedArray) -> pa.Array:
    """A detail column as JSON texts, null where the capture has none."""
    if pa.types.is_dictionary(values.type):
        codes, names = codes_of(values)
        return pa.array(["null", *map(json.dumps, names)]).take(pa.array(codes + 1))
    return values.combine_chunks().cast(pa.string()).fill_null("null")


def _text_of(lines: pa.Array) -> bytes:
    """All strings of an array one after another."""
    offsets = np.frombuffer(lines.buffers()[1], np.int32)[lines.offset : lines.offset + len(lines) + 1]
    return bytes(memoryview(lines.buffers()[2])[offsets[0] : offsets[-1]]) if len(lines) else b""


def _meta(kind: str, process: int, thread: int, **arguments: object) -> bytes:
    return _json({"ph": "M", "name": kind, "pid": process, "tid": thread, "args": arguments}) + b",\n"


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")

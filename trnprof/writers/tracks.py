"""A profile as the tracks of a trace viewer: per core one for each engine, DMA engine, collectives, kernels, throttling.

A viewer's track holds slices that do not overlap, and it drops or distorts those that do (perfetto issues 4280, 6277).
Instructions of one engine do overlap (up to four matmuls are in flight), so a track is split into as many lanes as run
at once: each event goes to the first lane that is free.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trnprof.intervals import Int64Array
from trnprof.profile import ENGINES, Profile, codes_of, int64_of

MAX_LANES = 64
"""More than any engine has in flight; bounds the time that a hostile capture can cost."""

_INSTRUCTION_DETAILS = (
    "compiler_pc",
    "compiler_opcode",
    "operands",
    "nki_source_location",
    "hlo_name",
    "layer",
    "wait_semaphore_idx",
    "hbm_read_bytes",
    "hbm_write_bytes",
)
_DMA_DETAILS = ("transfer_bytes", "queue_type", "variable", "queue_idx")
_COLLECTIVE_DETAILS = ("op_id", "algorithm", "num_elements", "dtype", "input_size", "output_size", "replica_group")


@dataclass(frozen=True, eq=False)
class Track:
    """One lane of one track; its slices are sorted by start and do not overlap."""

    core: int
    """Index of the core in the profile's metadata."""
    name: str
    """Untrusted where it holds a queue's or an engine's name."""
    lane: int
    """0, 1, ...: lanes of one track share its name."""
    start_ts: Int64Array
    """ns on the capture's clock; shape [n]."""
    end_ts: Int64Array
    label: npt.NDArray[np.int32]
    """Index into labels; shape [n]."""
    labels: list[str]
    """Untrusted."""
    details: dict[str, pa.ChunkedArray]
    """Integer and name columns of the same rows, null where the capture has no value."""


@dataclass(frozen=True, eq=False)
class Tracks:
    """All tracks of a profile."""

    tracks: tuple[Track, ...]
    left_out_count: int
    """Events for which MAX_LANES lanes were not enough."""

    def earliest_ts(self) -> int:
        """First instant of any slice, or 0 if that is earlier: what is before the execution has negative times."""
        return min([0, *(int(track.start_ts[0]) for track in self.tracks)])


def tracks_of(profile: Profile) -> Tracks:
    """Split a profile's events into tracks and lanes; nothing is clipped, nothing rounded."""
    found: list[Track] = []
    left_out = 0
    for index, core in enumerate(profile.metadata.cores):
        for name, table, label_column, details in _groups(profile, core.core):
            start, end = _times(table)
            order = np.argsort(start, kind="stable")
            start, end = start[order], np.maximum(end, start)[order]
            label, labels = _labels(table, label_column, name)
            lane = first_free_lane(start, end)
            left_out += int((lane < 0).sum())
            for number in range(int(lane.max(initial=-1)) + 1):
                inside = np.flatnonzero(lane == number)
                rows = pa.array(order[inside])
                columns = {column: table[column].take(rows) for column in details if column in table.column_names}
                used, label_of_row = np.unique(label[order[inside]], return_inverse=True)
                found.append(
                    Track(
                        core=index,
                        name=name,
                        lane=number,
                        start_ts=start[inside],
                        end_ts=end[inside],
                        label=label_of_row.astype(np.int32),
                        labels=[labels[code] for code in used.tolist()],
                        details={
                            column: _compact(values)
                            for column, values in columns.items()
                            if values.null_count < len(values)
                        },
                    )
                )
    return Tracks(tuple(found), left_out)


def first_free_lane(start: Int64Array, end: Int64Array) -> npt.NDArray[np.int32]:
    """The lane of each interval [start[i], end[i]), in the order of their starts: the first in which nothing runs.

    That needs no more lanes than intervals ever overlap. -1 where MAX_LANES are taken. start: ascending; shape [n].
    """
    lane = np.full(len(start), -1, np.int32)
    rest = np.arange(len(start))
    for number in range(MAX_LANES):
        if not len(rest):
            break
        # A lane's slices are a chain: after each comes the first interval that starts when it has ended, or later.
        after = np.searchsorted(start[rest], end[rest], side="left")
        taken = _chain(np.maximum(after, np.arange(1, len(rest) + 1)))
        lane[rest[taken]] = number
        rest = np.delete(rest, taken)
    return lane


def _chain(following: Int64Array) -> Int64Array:
    """0, following[0], following[following[0]], ... below n, found by doubling in log2 n steps. following[i] > i."""
    jump = np.append(following, len(following))
    chain = np.zeros(1, np.int64)
    while True:
        more = jump[chain]
        more = more[more < len(following)]
        if not len(more):
            return chain
        chain = np.concatenate((chain, more))
        jump = jump[jump]


def _groups(profile: Profile, core: int) -> Iterator[tuple[str, pa.Table, str | None, tuple[str, ...]]]:
    """(track name, its rows, the column that names a slice, detail columns) of one core, in the order shown."""
    instructions = profile.core_rows("instructions", core)
    if instructions is not None and len(instructions):
        codes, names = codes_of(instructions["engine"])
        ranked = [*(name for name in ENGINES if name in names), *sorted(set(names) - set(ENGINES))]
        for name in ranked:
            rows = instructions.filter(pa.array(codes == names.index(name)))
            if len(rows):
                yield name, rows, "opcode", _INSTRUCTION_DETAILS
    packets = profile.core_rows("dma_packets", core)
    if packets is None:
        packets = profile.core_rows("dma_transfers", core)
    if packets is not None and len(packets):
        name_column = "queue_name" if "queue_name" in packets.column_names else None
        if "engine_idx" in packets.column_names:
            engine = int64_of(packets["engine_idx"], null=-1)
            for number in np.unique(engine).tolist():
                name = "dma" if number < 0 else f"dma {number}"
                yield name, packets.filter(pa.array(engine == number)), name_column, _DMA_DETAILS
        else:
            yield "dma", packets, name_column, _DMA_DETAILS
    for table_name, track_name, label_column, details in (
        ("collectives", "collectives", "operation", _COLLECTIVE_DETAILS),
        ("kernels", "kernels", "name", ()),
        ("throttle", "throttle", "type", ("k", "n")),
    ):
        rows = profile.core_rows(table_name, core)
        if rows is not None and len(rows):
            yield track_name, rows, label_column if label_column in rows.column_names else None, details


def _compact(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """A name column whose dictionary holds only the names that occur: writers spend time on each name."""
    return values.cast(pa.string()).dictionary_encode() if pa.types.is_dictionary(values.type) else values


def _times(table: pa.Table) -> tuple[Int64Array, Int64Array]:
    if "start_ts" in table.column_names:
        return int64_of(table["start_ts"]), int64_of(table["end_ts"])
    start = int64_of(table["timestamp"])
    return start, start + int64_of(table["duration"])


def _labels(table: pa.Table, column: str | None, name: str) -> tuple[npt.NDArray[np.int32], list[str]]:
    """(code of each row, names); rows without a name carry the track's."""
    if column is None:
        return np.zeros(len(table), np.int32), [name]
    codes, names = codes_of(table[column])
    return np.where(codes < 0, len(names), codes).astype(np.int32), [*names, name]

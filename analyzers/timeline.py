"""A core's window cut into columns of equal length, and how much of each column every set of its account covers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trnprof.analyzers.account_sets import account_sets, data_packet_mask, intervals_of, packets_of
from trnprof.intervals import EMPTY, Int64Array, Intervals, union
from trnprof.profile import ENGINES, Core, Profile, int64_of

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Lane:
    """One row of the picture."""

    name: str
    """An engine, `dma`, `collective`, `kernel`, `throttle`, or a part of the account: `work`, `idle`, ..."""
    kind: str
    """account (the lanes of this kind share each column out between them), busy, or blocked."""
    covered_ns: Int64Array
    """How much of each column the set covers; sums to the set's length; shape [columns]."""


@dataclass(frozen=True, eq=False)
class Timeline:
    """What one core did, column by column."""

    core: int
    edge_ts: Int64Array
    """Column i is [edge_ts[i], edge_ts[i + 1]), ns; the first edge is the window's start, the last its end."""
    lanes: tuple[Lane, ...]
    data_bytes: Float64Array | None
    """Tensor data moved by DMA in each column, a packet's bytes spread evenly over its time; None: not captured."""
    event_count: int
    """Instructions, packets and collectives that the columns sum up."""


def draw_timeline(profile: Profile, core: Core, column_count: int) -> Timeline:
    """Sum one core's events up in `column_count` columns, or one a nanosecond where the window is shorter than that.

    Reads: what trnprof.analyzers.account_sets reads, and profile.throttle; times in ns.
    """
    window = (core.window_start_ts, core.window_end_ts)
    length = window[1] - window[0]
    column_count = max(1, min(column_count, length))
    edges = np.array([window[0] + length * i // column_count for i in range(column_count + 1)], np.int64)
    sets = account_sets(profile, core)
    body = union(np.array([sets.body[0]]), np.array([sets.body[1]]))
    lanes = [
        ("work", "account", sets.work),
        ("exposed_collective", "account", sets.exposed),
        ("in_kernel_wait", "account", sets.wait),
        ("idle", "account", sets.idle),
        ("runtime_overhead", "account", body.complement(*window)),
    ]
    for name in ENGINES:
        lanes += [(name, "busy", sets.busy[name]), (name, "blocked", sets.blocked[name])]
    lanes += [("dma", "busy", sets.data), ("collective", "busy", sets.collective)]
    lanes.append(("kernel", "busy", intervals_of(profile.core_rows("kernels", core.core), window)))
    lanes.append(("throttle", "busy", _throttled(profile.core_rows("throttle", core.core)).clip(*window)))
    tables = [profile.core_rows("instructions", core.core), packets_of(profile, core.core)]
    tables.append(profile.core_rows("collectives", core.core))
    return Timeline(
        core=core.core,
        edge_ts=edges,
        lanes=tuple(Lane(name, kind, covered.overlap_lengths(edges[:-1], edges[1:])) for name, kind, covered in lanes),
        data_bytes=_bytes_by_column(tables[1], edges),
        event_count=sum(len(table) for table in tables if table is not None),
    )


def _throttled(throttle: pa.Table | None) -> Intervals:
    if throttle is None or not len(throttle):
        return EMPTY
    slow = int64_of(throttle["k"]) < int64_of(throttle["n"])
    start = int64_of(throttle["timestamp"])[slow]
    return union(start, start + int64_of(throttle["duration"])[slow])


def _bytes_by_column(packets: pa.Table | None, edges: Int64Array) -> Float64Array | None:
    """Bytes of the data packets in each column; what a packet moves outside the window is left out."""
    if packets is None:
        return None
    moves_data = data_packet_mask(packets)
    start, end = int64_of(packets["start_ts"])[moves_data], int64_of(packets["end_ts"])[moves_data]
    size = int64_of(packets["transfer_bytes"])[moves_data].astype(np.float64)
    # A packet without a duration moves its bytes at one instant; give it one nanosecond.
    rate = size / np.maximum(end - start, 1)
    at = np.concatenate((start, np.maximum(end, start + 1)))
    order = np.argsort(at, kind="stable")
    at = at[order]
    slope = np.cumsum(np.concatenate((rate, -rate))[order])
    moved = np.concatenate((np.zeros(1), np.cumsum(slope[:-1] * np.diff(at)))) if len(at) else np.zeros(0)
    return np.diff(np.interp(edges, at, moved)) if len(at) else np.zeros(len(edges) - 1)

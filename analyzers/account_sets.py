"""The sets of instants that a core's account measures: what each part is the length of (DESIGN.md section 4)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from trnprof.analyzers.state_sweep import (
    BLOCKED,
    BODY,
    BUSY,
    COLLECTIVE,
    DATA,
    EXPOSED,
    IDLE,
    KERNEL,
    OUTSIDE,
    WAIT,
    StateSweep,
)
from trnprof.events import SEMAPHORE_WRITE_BYTES, data_packet_mask
from trnprof.intervals import EMPTY, Intervals, union
from trnprof.profile import ENGINES, WAIT_OPCODES, Core, Profile, codes_of, int64_of

__all__ = ["SEMAPHORE_WRITE_BYTES", "data_packet_mask"]

NOT_ATTRIBUTED = "not attributed"
"""The row of a table that holds what a capture does not tell apart: shown with its share, never dropped."""


@dataclass(frozen=True, eq=False)
class AccountSets:
    """The sets of one core's window that the parts are lengths of (DESIGN.md section 4); all clipped to the window."""

    window: tuple[int, int]
    body: tuple[int, int]
    busy: dict[str, Intervals]
    """Per engine, without wait opcodes, over the whole window."""
    blocked: dict[str, Intervals]
    """Per engine, its wait opcodes, over the whole window."""
    data: Intervals
    """Packets that move tensor data, over the whole window."""
    collective: Intervals
    """Collective operations, over the whole window."""
    work: Intervals
    """Compute or data, in the body; the next three and this one are disjoint and fill the body."""
    exposed: Intervals
    """Collectives without work."""
    wait: Intervals
    """No work and no collective, and an engine is blocked or a kernel is open."""
    idle: Intervals
    """The rest of the body."""


def account_sets(profile: Profile, core: Core) -> AccountSets:
    """The sets that one core's account measures, for those who draw or cut them; times in ns, half-open."""
    window = (core.window_start_ts, core.window_end_ts)
    rows = InstructionRows(profile.core_rows("instructions", core.core), window)
    return sets_of(profile, core, rows, data_of(packets_of(profile, core.core), window))


def sets_of(profile: Profile, core: Core, rows: InstructionRows, data: Intervals) -> AccountSets:
    """The same from rows and data sets that the caller has already."""
    window, body = rows.window, rows.body()
    busy = {name: rows.busy(name) for name in ENGINES}
    blocked = {name: rows.blocked(name) for name in ENGINES}
    collective = intervals_of(profile.core_rows("collectives", core.core), window)
    kernels = intervals_of(profile.core_rows("kernels", core.core), window)
    whole_body = Intervals(np.array([body[0]], np.int64), np.array([body[1]], np.int64))
    covering = dict(zip((*BUSY, *BLOCKED), (*busy.values(), *blocked.values()), strict=True))
    covering |= {DATA: data, COLLECTIVE: collective, KERNEL: kernels, BODY: whole_body}
    segments = StateSweep(window[0]).advance(
        window[1], {number: [(found.start, found.end)] for number, found in covering.items()}
    )
    part = segments.part()
    return AccountSets(
        window,
        body,
        busy,
        blocked,
        data,
        collective,
        work=segments.where((part > OUTSIDE) & (part < EXPOSED)),
        exposed=segments.where(part == EXPOSED),
        wait=segments.where(part == WAIT),
        idle=segments.where(part == IDLE),
    )


class InstructionRows:
    """One core's instruction columns as arrays, clipped to the window."""

    def __init__(self, table: pa.Table | None, window: tuple[int, int]) -> None:
        self.window = window
        self.table = table
        if table is None or not len(table):
            self.start = self.end = np.zeros(0, np.int64)
            self.engine = self.opcode = np.zeros(0, np.int32)
            self.engines: list[str] = []
            self.opcodes: list[str] = []
        else:
            self.start = np.clip(int64_of(table["start_ts"]), *window)
            self.end = np.clip(int64_of(table["end_ts"]), *window)
            self.engine, self.engines = codes_of(table["engine"])
            self.opcode, self.opcodes = codes_of(table["opcode"])
        self.waits = np.array([*(name in WAIT_OPCODES for name in self.opcodes), False])[self.opcode]

    def of(self, engine: str) -> np.ndarray:
        """Which rows are this engine's."""
        # The last entry is what code -1, no name, reads.
        own: np.ndarray = np.array([*(name == engine for name in self.engines), False])[self.engine]
        return own

    def busy(self, engine: str) -> Intervals:
        """Where the engine works: its rows without wait opcodes."""
        rows = self.of(engine) & ~self.waits
        return union(self.start[rows], self.end[rows])

    def blocked(self, engine: str) -> Intervals:
        """Where the engine only waits."""
        rows = self.of(engine) & self.waits
        return union(self.start[rows], self.end[rows])

    def body(self) -> tuple[int, int]:
        """First start to last end of what the compiler emitted; an empty one at the window's start if there is none."""
        start, end = self.start, self.end
        if self.table is not None and "compiler_pc" in self.table.column_names:
            column = self.table["compiler_pc"]
            if column.null_count:
                emitted = column.is_valid().to_numpy()
                start, end = start[emitted], end[emitted]
        if not len(start):
            return self.window[0], self.window[0]
        return int(start.min()), int(end.max())

    def label(self, row: int) -> str:
        """Engine and opcode of a row; untrusted."""
        return f"{self.engines[self.engine[row]]} {self.opcodes[self.opcode[row]]}"


def packets_of(profile: Profile, core: int) -> pa.Table | None:
    """One core's packets, or its transfers where packets were not captured."""
    packets = profile.core_rows("dma_packets", core)
    return profile.core_rows("dma_transfers", core) if packets is None else packets


def union_all(sets: Iterable[Intervals]) -> Intervals:
    """Union of any number of canonical sets."""
    parts = [part for part in sets if len(part)]
    if not parts:
        return EMPTY
    return union(np.concatenate([part.start for part in parts]), np.concatenate([part.end for part in parts]))


def data_of(packets: pa.Table | None, window: tuple[int, int]) -> Intervals:
    """Where packets move tensor data for the core."""
    return EMPTY if packets is None else intervals_of(packets.filter(pa.array(data_packet_mask(packets))), window)


def intervals_of(table: pa.Table | None, window: tuple[int, int]) -> Intervals:
    """Union of a table's [start_ts, end_ts), clipped to the window."""
    if table is None or not len(table):
        return EMPTY
    return union(np.clip(int64_of(table["start_ts"]), *window), np.clip(int64_of(table["end_ts"]), *window))

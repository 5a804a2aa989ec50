"""What a core's account sums over rows rather than over time: counts and bytes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from trnprof.events import OTHER_ENGINE, Events
from trnprof.profile import ENGINES

SHORT_INSTRUCTION_NS = 200
"""Below this an instruction's fixed cost (64 to 147 cycles, 53 to 153 ns on trn2) is most of its time."""

_SPANS = ("instructions", "packets", "collectives")
"""The tables whose rows are events of the core."""


class RowSums:
    """Sums over the rows of one window; None where a table or its columns were not captured."""

    def __init__(self, window: tuple[int, int], body: tuple[int, int]) -> None:
        self._window, self._body = window, body
        self.event_count = 0
        """Rows that overlap the window."""
        self.clipped_count = 0
        """Of these, the ones that reach beyond it."""
        self._instructions = np.zeros((3, OTHER_ENGINE + 1), np.int64)
        self.packet_count = self.packet_bytes = self.data_packet_count = self.data_packet_bytes = 0
        self.static_packet_bytes: int | None = None
        """Of data packets that no dynamic queue moved; None: queue types are not captured."""
        self.hbm_bytes: tuple[int, int] | None = None
        """Read and written by instructions that lie in the body."""
        self.instruction_row_count = self.collective_count = 0
        self.semaphore_update_count: int | None = None
        self.throttle_count = 0
        self.lowest_throttle: tuple[float, int, int] | None = None
        """(k / n, k, n) of the lowest level; None: never below full rate."""

    @property
    def instruction_count(self) -> dict[str, int]:
        """By engine, wait opcodes included."""
        return self._by_engine(0)

    @property
    def working_count(self) -> dict[str, int]:
        """By engine, without wait opcodes."""
        return self._by_engine(1)

    @property
    def short_count(self) -> dict[str, int]:
        """By engine, without wait opcodes, below SHORT_INSTRUCTION_NS."""
        return self._by_engine(2)

    def see(self, tables: Mapping[str, Events]) -> None:
        """Rows that overlap the window."""
        for name in _SPANS:
            if name in tables:
                rows = tables[name]
                self.event_count += len(rows)
                self.clipped_count += int(((rows.start < self._window[0]) | (rows.end > self._window[1])).sum())

    def add(self, tables: Mapping[str, Events]) -> None:
        """Rows that count in the window."""
        if "instructions" in tables:
            self._add_instructions(tables["instructions"])
        if "packets" in tables:
            self._add_packets(tables["packets"])
        if "collectives" in tables:
            self.collective_count += len(tables["collectives"])
        if "semaphores" in tables:
            self.semaphore_update_count = (self.semaphore_update_count or 0) + len(tables["semaphores"])
        if "throttle" in tables:
            self._add_throttle(tables["throttle"])

    def _by_engine(self, row: int) -> dict[str, int]:
        return dict(zip(ENGINES, self._instructions[row].tolist(), strict=False))

    def _add_instructions(self, rows: Events) -> None:
        if not len(rows):
            self.hbm_bytes = self.hbm_bytes or ((0, 0) if "hbm_read_bytes" in rows else None)
            return
        self.instruction_row_count += len(rows)
        start, end = rows.start, rows.end
        if start.min() < self._window[0] or end.max() > self._window[1]:
            start, end = (np.clip(bound, *self._window) for bound in (start, end))
        # Engines that work and engines that wait, counted in one go: the second half of the codes waits.
        engines = OTHER_ENGINE + 1
        kind = rows["engine"] + engines * rows["waits"].view(np.uint8)
        works, waits = np.bincount(kind, minlength=2 * engines).reshape(2, engines)
        short = np.bincount(kind[end - start < SHORT_INSTRUCTION_NS], minlength=2 * engines)[:engines]
        self._instructions += np.stack((works + waits, works, short))
        if "hbm_read_bytes" in rows:
            moved = [rows["hbm_read_bytes"], rows["hbm_write_bytes"]]
            if start.min() < self._body[0] or end.max() > self._body[1]:
                inside = (start >= self._body[0]) & (end <= self._body[1])
                moved = [column[inside] for column in moved]
            held = self.hbm_bytes or (0, 0)
            self.hbm_bytes = (held[0] + int(moved[0].sum()), held[1] + int(moved[1].sum()))

    def _add_packets(self, rows: Events) -> None:
        size, data = rows["bytes"], rows["moves_data"]
        moved = size * data
        self.packet_count += len(rows)
        self.packet_bytes += int(size.sum())
        self.data_packet_count += int(np.count_nonzero(data))
        self.data_packet_bytes += int(moved.sum())
        if "dynamic" in rows:
            self.static_packet_bytes = (self.static_packet_bytes or 0) + int((moved * ~rows["dynamic"]).sum())

    def _add_throttle(self, rows: Events) -> None:
        slow = rows.rows(rows["k"] < rows["n"])
        self.throttle_count += len(slow)
        levels = np.unique(np.stack((slow["k"], slow["n"])), axis=1).T.tolist()
        found = [(k / max(n, 1), k, n) for k, n in levels]
        if self.lowest_throttle is not None:
            found.append(self.lowest_throttle)
        self.lowest_throttle = min(found, default=None)

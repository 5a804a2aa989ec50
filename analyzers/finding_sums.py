"""What findings need to know of a core's rows beyond its account, summed over batches in order of time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trnprof.analyzers.hbm_traffic import Spill
from trnprof.analyzers.opcodes import IssueCost
from trnprof.analyzers.roofline import MatrixFlops
from trnprof.analyzers.row_sums import SHORT_INSTRUCTION_NS
from trnprof.events import Events, NameList
from trnprof.intervals import charged_lengths
from trnprof.profile import ENGINES

SMALL_PACKET_BYTES = 512
"""Below it a packet's fixed cost is more than its transfer (8 ns against 19 ns), and a transfer reaches 20 % of the peak."""

CHAIN_ENGINES = ("vector", "scalar")
"""The engines whose chains of short instructions are a finding."""


@dataclass(frozen=True)
class ShortInstructions:
    """One engine's instructions below SHORT_INSTRUCTION_NS, wait opcodes excluded."""

    total_ns: int
    """Sum of their durations."""
    low_ns: int
    """Their fixed cost as analyzers.opcodes.FixedCost has it."""
    high_ns: int
    most_in: str
    """The opcode that most of the time is in; untrusted."""


@dataclass(frozen=True)
class DataPackets:
    """Packets that move tensor data, and those of them below SMALL_PACKET_BYTES."""

    packet_count: int
    bytes: int
    engine_ns: int
    """Sum of their durations: how long DMA engines were held."""
    small_packet_count: int
    small_bytes: int
    small_charged_ns: int
    """Share of the core's data time; where packets overlap the one that began first is charged."""


@dataclass(frozen=True)
class FindingSums:
    """One core's sums. None is what the capture does not tell."""

    short: Mapping[str, ShortInstructions]
    """By engine of CHAIN_ENGINES, those that have short instructions and a published issue cost."""
    packets: DataPackets | None
    """None also where only transfers were captured."""
    flops: MatrixFlops | None
    spill: Spill | None
    """From the instructions' spill columns."""


class FindingFold:
    """One core's sums so far."""

    def __init__(
        self,
        window: tuple[int, int],
        body: tuple[int, int],
        names: NameList,
        costs: Mapping[str, IssueCost],
        *,
        has_packets: bool,
    ) -> None:
        """costs: by engine, as analyzers.opcodes.issue_costs gives them. has_packets: packets, and not only transfers."""
        self._window, self._body, self._names = window, body, names
        self._costs = {engine: costs[engine] for engine in CHAIN_ENGINES if engine in costs}
        self._by_opcode = {engine: np.zeros((3, 0)) for engine in self._costs}
        self._has_packets = has_packets
        self._packets = np.zeros(6, np.int64)
        self._reach = window[0]
        """Up to when data packets that have begun last."""
        self._has_flops = self._marks_transposes = self._some_flops = self._some_matmul = False
        self._flops = np.zeros(2, np.int64)
        self._spill: np.ndarray | None = None

    def add(self, tables: Mapping[str, Events | None]) -> None:
        """One batch, as AnatomyFold.add takes it."""
        instructions, packets = tables["instructions"], tables["packets"]
        if instructions is not None:
            start, end = (np.clip(bound, *self._window) for bound in (instructions.start, instructions.end))
            self._add_short(instructions, end - start)
            self._add_flops(instructions)
            if "spill_save_bytes" in instructions:
                self._add_spill(instructions, (start >= self._body[0]) & (end <= self._body[1]))
        if packets is not None and self._has_packets:
            self._add_packets(packets)

    def sums(self) -> FindingSums:
        """After the last batch."""
        return FindingSums(
            {engine: found for engine in self._costs if (found := self._short(engine)) is not None},
            DataPackets(*self._packets.tolist()) if self._has_packets else None,
            self._matrix_flops(),
            self._spilled(),
        )

    def _add_short(self, rows: Events, length: np.ndarray) -> None:
        short = ~rows["waits"] & (length < SHORT_INSTRUCTION_NS)
        for engine, cost in self._costs.items():
            own = np.flatnonzero(short & (rows["engine"] == ENGINES.index(engine)))
            if not len(own):
                continue
            # An opcode that is not captured has the code -1.
            codes, ns = rows["opcode"][own] + 1, length[own]
            parts = (ns, np.minimum(ns, cost.low_ns), np.minimum(ns, cost.high_ns))
            added = np.stack([np.bincount(codes, weights=part) for part in parts])
            held = self._by_opcode[engine]
            wider = np.zeros((3, max(held.shape[1], added.shape[1])))
            wider[:, : held.shape[1]] = held
            wider[:, : added.shape[1]] += added
            self._by_opcode[engine] = wider

    def _short(self, engine: str) -> ShortInstructions | None:
        found = self._by_opcode[engine]
        total, low, high = (int(part.round().sum()) for part in found)
        if not found.shape[1]:
            return None
        named = ["", *self._names.names]
        most = max(range(found.shape[1]), key=lambda code: (found[0, code], named[code]))
        return ShortInstructions(total, low, high, named[most])

    def _add_flops(self, rows: Events) -> None:
        self._some_matmul |= bool((rows["engine"] == ENGINES.index("tensor")).any())
        if "flops" not in rows:
            return
        self._has_flops = True
        flops = rows["flops"]
        known = flops >= 0
        self._some_flops |= bool(known.any())
        self._flops[0] += flops[known].sum()
        if "transposes" in rows:
            self._marks_transposes = True
            self._flops[1] += flops[known & rows["transposes"]].sum()

    def _matrix_flops(self) -> MatrixFlops | None:
        if not self._has_flops or (self._some_matmul and not self._some_flops):
            return None
        flops, transposes = self._flops.tolist()
        return MatrixFlops(flops, transposes if self._marks_transposes else None if flops else 0)

    def _add_spill(self, rows: Events, inside: np.ndarray) -> None:
        moved = [rows[f"spill_{side}_bytes"][inside].sum() for side in ("save", "reload")]
        self._spill = np.array(moved, np.int64) + (0 if self._spill is None else self._spill)

    def _spilled(self) -> Spill | None:
        if self._spill is None:
            return None
        save, reload = self._spill.tolist()
        return Spill(save, reload, "spill bytes of the instructions", "measured")

    def _add_packets(self, rows: Events) -> None:
        data = np.flatnonzero(rows["moves_data"])
        start = np.clip(rows.start[data], *self._window)
        end = np.clip(rows.end[data], *self._window)
        size = rows["bytes"][data]
        # What packets of earlier batches cover is charged to them.
        charged = charged_lengths(np.maximum(start, self._reach), np.maximum(end, self._reach))
        if len(end):
            self._reach = max(self._reach, int(end.max()))
        small = size < SMALL_PACKET_BYTES
        self._packets += (
            *(len(data), size.sum(), np.maximum(end - start, 0).sum()),
            *(small.sum(), size[small].sum(), charged[small].sum()),
        )

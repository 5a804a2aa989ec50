"""What a wait waited for, in words: the update that ended it, and where that is not recorded who the stream says it was."""

from __future__ import annotations

import re

import numpy as np

from trnprof.events import OTHER_ENGINE, Events, NameList
from trnprof.intervals import Int64Array
from trnprof.profile import ENGINES

UNRECORDED = "not recorded"
"""The capture does not say which semaphore the engine waited for, or who updated it."""

KERNEL_OPEN = "kernel open, no engine blocked"
"""A kernel span covers the time, but no engine is seen to wait."""

BARRIER = "barrier of this core's engines"
"""Several engines update the semaphore: none of them alone ended the wait."""

OUTSIDE = "over the bus (a DMA, the other core or the host)"
"""The update came over the bus, and no DMA instruction of this core is known to signal that semaphore."""

UNTRACED = "not traced: instructions wait longer than a sweep in batches can look back"
"""The capture is read in batches, and too many waits were open at once to keep them all."""

_SEMAPHORE_COUNT = 1024
"""More than any NeuronCore has (the fields are 8 bits wide); bounds a hostile index."""

_BUS = ("axi", "dma")


class WaitKeys:
    """Sums of wait by what ended it: (semaphore, id text, source) of the update, named when the whole stream was seen."""

    def __init__(self, names: NameList) -> None:
        self._names = names
        self._number_of: dict[tuple[int, int, int], int] = {}
        self._wait_ns = np.zeros(0, np.int64)
        self._count = np.zeros(0, np.int64)
        # The last update of each semaphore so far: (id, source), -2 where there was none.
        self._last = np.full((2, _SEMAPHORE_COUNT), -2, np.int64)
        self._updaters: set[tuple[int, int, bool]] = set()
        self._is_dma: dict[int, bool] = {}

    def see_instructions(self, instructions: Events) -> None:
        """Note which engines' instructions, and which DMAs, update each semaphore."""
        if "updates" not in instructions:
            return
        semaphore = instructions["updates"]
        rows = np.flatnonzero((semaphore >= 0) & (semaphore < _SEMAPHORE_COUNT))
        packed = (
            semaphore[rows].astype(np.int64) << 40
            | instructions["engine"][rows].astype(np.int64) << 36
            | (instructions["opcode"][rows].astype(np.int64) + 1)
        )
        for entry in np.unique(packed).tolist():
            opcode = (entry & ((1 << 36) - 1)) - 1
            is_dma = opcode >= 0 and "DMA" in self._names.names[opcode]
            self._updaters.add((entry >> 40, entry >> 36 & 15, is_dma))

    def resolve(
        self,
        key: Int64Array,
        end: Int64Array,
        semaphore: np.ndarray,
        updates: Events | None,
        until: int,
        *,
        final: bool,
    ) -> None:
        """Fill `key` of every blocked row whose end is before `until`: the last update of its semaphore by then.

        updates: those since the last call, in order of time; the capture's order among equals is the device's.
        """
        rows = np.flatnonzero((key < 0) & (final | (end < until)))
        wanted = semaphore[rows].astype(np.int64)
        wanted[(wanted < 0) | (wanted >= _SEMAPHORE_COUNT)] = -1
        by = np.full((2, len(rows)), -2, np.int64)
        by[:, wanted >= 0] = self._last[:, wanted[wanted >= 0]]
        if updates is not None and len(updates) and "semaphore" in updates:
            index = updates["semaphore"]
            order = np.argsort(index, kind="stable")
            sorted_index = index[order]
            found = np.flatnonzero((index[order] >= 0) & (sorted_index < _SEMAPHORE_COUNT))
            for number in np.unique(sorted_index[found]).tolist():
                first, last = np.searchsorted(sorted_index, [number, number + 1])
                own = order[first:last]
                mine = np.flatnonzero(wanted == number)
                position = np.searchsorted(updates.start[own], end[rows[mine]], side="right") - 1
                hit = position >= 0
                at = own[position[hit]]
                by[:, mine[hit]] = updates["id"][at], updates["source"][at]
                self._last[:, number] = updates["id"][own[-1]], updates["source"][own[-1]]
        key[rows] = self._numbers(wanted, by)

    def add(self, key: Int64Array, wait_ns: Int64Array) -> None:
        """Charge blocked rows' waits to what ended them (-1: not known); a row counts once."""
        key = np.where(key < 0, self._number(-1, -2, -2), key)
        size = len(self._number_of)
        self._wait_ns = np.pad(self._wait_ns, (0, size - len(self._wait_ns)))
        self._count = np.pad(self._count, (0, size - len(self._count)))
        np.add.at(self._wait_ns, key, wait_ns)
        np.add.at(self._count, key, 1)

    def sums(self) -> dict[str, tuple[int, int]]:
        """Label -> (wait in ns, blocked instructions)."""
        by_stream = self._stream_labels()
        sums: dict[str, tuple[int, int]] = {}
        for (semaphore, identity, source), number in self._number_of.items():
            if number >= len(self._count) or not self._count[number]:
                continue
            label = self._label(by_stream.get(semaphore), identity, source)
            wait_ns, count = sums.get(label, (0, 0))
            sums[label] = (wait_ns + int(self._wait_ns[number]), count + int(self._count[number]))
        return sums

    def _numbers(self, semaphore: Int64Array, by: Int64Array) -> Int64Array:
        sources, source = np.unique(by[1], return_inverse=True)
        packed = ((semaphore + 1) * max(len(sources), 1) + source) << 32 | (by[0] + 2)
        distinct, first, inverse = np.unique(packed, return_index=True, return_inverse=True)
        numbers = [
            self._number(*entry)
            for entry in zip(semaphore[first].tolist(), by[0][first].tolist(), by[1][first].tolist(), strict=True)
        ]
        return np.array(numbers, np.int64)[inverse] if len(distinct) else np.zeros(0, np.int64)

    def _number(self, semaphore: int, identity: int, source: int) -> int:
        return self._number_of.setdefault((semaphore, identity, source), len(self._number_of))

    def _stream_labels(self) -> dict[int, str]:
        """Semaphore -> the one producer that updates it as the instructions say, or BARRIER."""
        labels: dict[int, set[str]] = {}
        for semaphore, engine, is_dma in self._updaters:
            name = ENGINES[engine] if engine < OTHER_ENGINE else "other"
            labels.setdefault(semaphore, set()).add(f"dma issued by {name}" if is_dma else f"engine {name}")
        return {semaphore: next(iter(found)) if len(found) == 1 else BARRIER for semaphore, found in labels.items()}

    def _label(self, by_stream: str | None, identity: int, source: int) -> str:
        """The vendor's text for the semaphore names its owner best; else the update's source; else the stream."""
        label = by_stream
        if identity >= 0:
            label = _label_of_id(self._names.names[identity]) or label
        if source >= 0:
            name = self._names.names[source].lower()
            if name in ENGINES and by_stream != BARRIER:
                label = f"engine {name}"
            elif name in _BUS and label is None:
                label = OUTSIDE
        return label or UNRECORDED


def _label_of_id(text: str) -> str | None:
    """The vendor prints a semaphore with what owns it: `S[8] (qSyncDynamicHW)`, `S[5] (Tensor)`."""
    match = re.search(r"\(([^()]{1,80})\)\s*$", text)
    if match is None:
        return None
    owner = match.group(1)
    if owner.lower() in ENGINES:
        return f"engine {owner.lower()}"
    return f"dma {owner}" if owner.startswith("q") else None

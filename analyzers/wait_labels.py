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

NO_UPDATE = -1
"""No update of the semaphore is recorded."""

UNRESOLVED = -2
"""Updates that may have ended the wait are still to come."""


class WaitLabels:
    """Sums of wait by what ended it: (semaphore, id text, source) of the update, named when the whole stream was seen."""

    def __init__(self, names: NameList) -> None:
        self._names = names
        self._sums: dict[tuple[int, int], tuple[int, int]] = {}
        self._last = np.full(_SEMAPHORE_COUNT, NO_UPDATE, np.int64)
        """The last update of each semaphore so far, as `update_of` packs it."""
        self._updates = np.zeros((_SEMAPHORE_COUNT, OTHER_ENGINE + 1, 2), bool)
        """Is the semaphore updated by an instruction of the engine; by one that is no DMA, by one that is."""

    def see_instructions(self, instructions: Events) -> None:
        """Note which engines' instructions, and which DMAs, update each semaphore."""
        if "updates" not in instructions:
            return
        semaphore = instructions["updates"]
        rows = np.flatnonzero((semaphore >= 0) & (semaphore < _SEMAPHORE_COUNT))
        is_dma = np.array([*("DMA" in name for name in self._names.names), False]).view(np.uint8)
        place = (semaphore[rows].astype(np.intp) * (OTHER_ENGINE + 1) + instructions["engine"][rows]) * 2
        self._updates.reshape(-1)[place + is_dma[instructions["opcode"][rows]]] = True

    def resolve(self, semaphore: np.ndarray, end: Int64Array, updates: Events | None) -> Int64Array:
        """What ended waits for `semaphore` at `end`: the last update of it by then, packed, or NO_UPDATE; shape [n].

        updates: those since the last call, in order of time (the capture's order among equals is the device's); all that
                 there are up to the last `end`, which is after the last call's updates.
        """
        wanted = np.where((semaphore >= 0) & (semaphore < _SEMAPHORE_COUNT), semaphore, -1)
        found = np.where(wanted < 0, NO_UPDATE, self._last[wanted])
        if updates is None or not len(updates) or "semaphore" not in updates:
            return found
        index = updates["semaphore"]
        order = np.argsort(index, kind="stable")
        in_order = index[order]
        waits = np.argsort(wanted, kind="stable")
        waited = wanted[waits]
        packed = (updates["id"].astype(np.int64) + 1) << 32 | (updates["source"] + 1)
        known = in_order[slice(*np.searchsorted(in_order, [0, _SEMAPHORE_COUNT]))]
        for number in np.flatnonzero(np.bincount(known)).tolist():
            own = order[slice(*np.searchsorted(in_order, [number, number + 1]))]
            mine = waits[slice(*np.searchsorted(waited, [number, number + 1]))]
            position = np.searchsorted(updates.start[own], end[mine], side="right") - 1
            hit = position >= 0
            found[mine[hit]] = packed[own[position[hit]]]
            self._last[number] = packed[own[-1]]
        return found

    def add(self, semaphore: np.ndarray, update: Int64Array, wait_ns: Int64Array) -> None:
        """Charge blocked rows' waits to what ended them, as `resolve` gave it; a row counts once."""
        in_range = (semaphore >= 0) & (semaphore < _SEMAPHORE_COUNT)
        number_of = np.where(in_range, semaphore, -1).astype(np.int64)
        # Whole numbers instead of pairs: sorting pairs takes ten times as long.
        _, place = np.unique(update, return_inverse=True)
        keys, first, place = np.unique(
            place.reshape(-1) * (_SEMAPHORE_COUNT + 1) + number_of + 1, return_index=True, return_inverse=True
        )
        total = np.zeros(len(keys), np.int64)
        np.add.at(total, place.reshape(-1), wait_ns)
        count = np.bincount(place.reshape(-1), minlength=len(keys))
        distinct = zip(number_of[first].tolist(), update[first].tolist(), strict=True)
        for (number, by), ns, rows in zip(distinct, total.tolist(), count.tolist(), strict=True):
            held_ns, held_rows = self._sums.get((number, by), (0, 0))
            self._sums[number, by] = (held_ns + ns, held_rows + rows)

    def sums(self) -> dict[str, tuple[int, int]]:
        """Label -> (wait in ns, blocked instructions)."""
        by_stream = self._stream_labels()
        sums: dict[str, tuple[int, int]] = {}
        for (semaphore, update), (ns, rows) in self._sums.items():
            label = self._label(by_stream.get(semaphore), update)
            held_ns, held_rows = sums.get(label, (0, 0))
            sums[label] = (held_ns + ns, held_rows + rows)
        return sums

    def _stream_labels(self) -> dict[int, str]:
        """Semaphore -> the one producer that updates it as the instructions say, or BARRIER."""
        labels: dict[int, set[str]] = {}
        for semaphore, engine, is_dma in np.argwhere(self._updates).tolist():
            name = ENGINES[engine] if engine < OTHER_ENGINE else "other"
            labels.setdefault(semaphore, set()).add(f"dma issued by {name}" if is_dma else f"engine {name}")
        return {semaphore: next(iter(found)) if len(found) == 1 else BARRIER for semaphore, found in labels.items()}

    def _label(self, by_stream: str | None, update: int) -> str:
        """The update's source names who ended the wait best, then the vendor's text for the semaphore, then the stream."""
        label = by_stream
        identity, source = (update >> 32) - 1, (update & 0xFFFFFFFF) - 1
        if update >= 0 and identity >= 0:
            label = _label_of_id(self._names.names[identity]) or label
        if update >= 0 and source >= 0:
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

"""Each collective call of a core, kept while a capture is read in batches: what comparing ranks needs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trnprof.events import Events, NameList

MAX_CALLS = 20_000
"""Calls of one core up to which each is kept; a decode step has about a hundred."""


@dataclass(frozen=True)
class CollectiveCalls:
    """The calls of one core, in order of start; tuples of one length."""

    operation: tuple[str, ...]
    """Untrusted."""
    start_ts: tuple[int, ...]
    end_ts: tuple[int, ...]
    group: tuple[str, ...]
    """The replica groups as the capture prints them; untrusted; "": not captured."""

    def __len__(self) -> int:
        return len(self.operation)


class CallList:
    """The calls so far."""

    def __init__(self, names: NameList) -> None:
        self._names = names
        self._parts: list[Events] = []
        self._count = 0

    def add(self, rows: Events) -> None:
        """More calls, in order of start."""
        self._count += len(rows)
        if len(rows) and self._count <= MAX_CALLS:
            self._parts.append(rows)

    def calls(self) -> CollectiveCalls | None:
        """All of them; None if there were more than MAX_CALLS."""
        if self._count > MAX_CALLS:
            return None
        if not self._parts:
            return CollectiveCalls((), (), (), ())
        rows = Events.joined(self._parts)
        # Calls that begin at once in an order of their own, so that the order of a capture's rows never shows.
        texts = [(*self._names.names, "")[code] for code in rows["operation"].tolist()]
        groups = [(*self._names.names, "")[code] for code in rows["group"].tolist()]
        rank = np.array(
            sorted(range(len(texts)), key=lambda row: (rows.start[row], rows.end[row], texts[row], groups[row]))
        )
        return CollectiveCalls(
            tuple(texts[row] for row in rank),
            tuple(rows.start[rank].tolist()),
            tuple(rows.end[rank].tolist()),
            tuple(groups[row] for row in rank),
        )

"""Which earlier operations an operation must wait for: data it reads or overwrites, and memory that is used again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from trnprof.nki.timing.regions import Region

MAX_CELLS = 64
"""Grid cells that one region may cover; a larger one is compared with everything."""
MAX_AWAITED = 32
"""Accesses of one kind that an access waits for one by one; more are joined to one for all that come later."""


@dataclass(slots=True)
class _Entry:
    """One access that later ones may have to wait for."""

    region: Region
    operation: int
    is_alive: bool = True


class StorageHistory:
    """The accesses of one storage so far, found by where they are: near-linear in their number.

    A grid as coarse as the storage's first access holds them, so that a tile meets the few tiles around it. Parts that are
    written again while the whole is read never cover it: such accesses are joined before they pile up.
    """

    def __init__(self, join: Callable[[list[int]], int]) -> None:
        """join: makes an operation that ends when all of those given have ended, and returns its number."""
        self._join = join
        self._pitch = self._cell_rows = self._cell_columns = 0
        self._writes = _Kind()
        self._reads = _Kind()

    def read(self, region: Region, operation: int) -> list[int]:
        """Note a read; returns the writes that it must wait for."""
        cells = self._cells(region)
        found = self._awaited(self._writes, region, cells, operation)
        self._reads.add(_Entry(region, operation), cells)
        return [entry.operation for entry in found]

    def write(self, region: Region, operation: int) -> tuple[list[int], list[int]]:
        """Note a write; returns (the reads, the writes) that it must wait for. What it covers is forgotten."""
        cells = self._cells(region)
        reads, writes = (self._awaited(kind, region, cells, operation) for kind in (self._reads, self._writes))
        for entry in (*reads, *writes):
            if region.covers(entry.region):
                entry.is_alive = False
        self._writes.add(_Entry(region, operation), cells)
        return [entry.operation for entry in reads], [entry.operation for entry in writes]

    def _awaited(
        self, kind: _Kind, region: Region, cells: list[tuple[int, int]] | None, operation: int
    ) -> list[_Entry]:
        """The living accesses of a kind that meet the region; of too many, one that stands for them from here on."""
        found = kind.meeting(region, cells)
        if len(found) <= MAX_AWAITED:
            return found
        own = [entry for entry in found if entry.operation == operation]
        others = [entry for entry in found if entry.operation != operation]
        joined = _Entry(_around([entry.region for entry in others]), self._join([entry.operation for entry in others]))
        for entry in others:
            entry.is_alive = False
        kind.add(joined, self._cells(joined.region))
        return [*own, joined]

    def _cells(self, region: Region) -> list[tuple[int, int]] | None:
        """The grid cells under a region; None: too many, or it lies on no grid."""
        if not self._cell_rows:
            self._cell_rows = max(region.row1 - region.row0, 1)
            self._cell_columns = max(region.column1 - region.column0, 1)
            self._pitch = region.pitch
        elif region.pitch != self._pitch:
            return None
        row0, row1 = region.row0 // self._cell_rows, (region.row1 - 1) // self._cell_rows + 1
        column0, column1 = region.column0 // self._cell_columns, (region.column1 - 1) // self._cell_columns + 1
        count = (row1 - row0) * (column1 - column0)
        if count == 1:
            return [(row0, column0)]
        if count > MAX_CELLS:
            return None
        return [(row, column) for row in range(row0, row1) for column in range(column0, column1)]


class _Kind:
    """The reads, or the writes, of one storage."""

    def __init__(self) -> None:
        self._grid: dict[tuple[int, int], list[_Entry]] = {}
        self._wide: list[_Entry] = []

    def add(self, entry: _Entry, cells: list[tuple[int, int]] | None) -> None:
        """Put an entry where later accesses find it."""
        if cells is None:
            self._wide.append(entry)
            return
        for cell in cells:
            self._grid.setdefault(cell, []).append(entry)

    def meeting(self, region: Region, cells: list[tuple[int, int]] | None) -> list[_Entry]:
        """Living entries that overlap the region, each once."""
        grid = self._grid
        if cells is not None and len(cells) == 1 and not self._wide:
            entries = grid.get(cells[0])
            return self._living(entries, region) if entries else []
        found: dict[int, _Entry] = {}
        for cell in grid if cells is None else cells:
            entries = grid.get(cell)
            if entries:
                found |= {id(entry): entry for entry in self._living(entries, region)}
        if self._wide:
            found |= {id(entry): entry for entry in self._living(self._wide, region)}
        return list(found.values())

    @staticmethod
    def _living(entries: list[_Entry], region: Region) -> list[_Entry]:
        """Those that overlap; the dead leave the list."""
        living = [entry for entry in entries if entry.is_alive]
        if len(living) < len(entries):
            entries[:] = living
        return [entry for entry in living if region.overlaps(entry.region)]


def _around(regions: list[Region]) -> Region:
    """The smallest region that holds all."""
    pitches = {region.pitch for region in regions}
    if len(pitches) > 1:
        return Region(0, 0, 1, min(region.first for region in regions), max(region.end for region in regions))
    return Region(
        pitches.pop(),
        min(region.row0 for region in regions),
        max(region.row1 for region in regions),
        min(region.column0 for region in regions),
        max(region.column1 for region in regions),
    )


@dataclass(slots=True)
class Tenant:
    """Memory that is free again once all of its users have ended."""

    byte_count: int
    users: list[int]
    release: int = -1
    """The virtual operation that stands for all users' ends; made when somebody needs it."""


@dataclass(slots=True)
class MemoryReuse:
    """A partition of SBUF or PSUM, given to storages in program order; who gets used memory waits for its users.

    Memory never used goes first, then what has been free the longest. Counted in bytes: where a storage lies does not
    matter here, and neither do bank borders. What never fits waits for nobody (it is another finding's business).
    """

    byte_count: int
    _unused: int = field(init=False)
    _retired: deque[Tenant] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._unused = self.byte_count

    def allocate(self, byte_count: int) -> list[Tenant]:
        """The tenants whose memory a new storage of `byte_count` takes over."""
        fresh = min(self._unused, byte_count)
        self._unused -= fresh
        wanted = byte_count - fresh
        taken = []
        while wanted > 0 and self._retired:
            tenant = self._retired[0]
            taken.append(tenant)
            if tenant.byte_count > wanted:
                tenant.byte_count -= wanted
                break
            wanted -= tenant.byte_count
            self._retired.popleft()
        return taken

    def retire(self, byte_count: int, users: list[int]) -> None:
        """A storage was used for the last time in program order."""
        if byte_count:
            self._retired.append(Tenant(byte_count, users))

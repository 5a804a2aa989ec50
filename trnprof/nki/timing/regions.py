"""The bytes of a storage that an operand touches, as rows of a pitch, and whether two such regions overlap."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from trnprof.nki.recording import Access, Memory

MAX_RUNS = 4096
"""Runs of a row's bytes that are compared one by one; with more, the columns between them count as touched."""

Dimensions = tuple[tuple[int, int], ...]
"""(step in bytes, count) of the runs in a row, outermost first."""


@dataclass(frozen=True, slots=True)
class Region:
    """A block of a storage: rows [row0, row1) of `pitch` bytes each, of which columns [column0, column1) are touched.

    On chip a row is a partition. In HBM a row is the outermost regular stride of the access, so that tiles of a matrix side
    by side do not overlap; an access without one is a single row. The region holds every byte touched, and may hold more.
    In each row it is one run of bytes, or `dims` of runs with other data between them.
    """

    pitch: int
    """0: one row, its columns are byte addresses."""
    row0: int
    row1: int
    column0: int
    column1: int
    dims: Dimensions = ()
    """Empty: every byte from column0 to column1."""
    run: int = 0
    """Bytes of one of the runs."""

    @property
    def first(self) -> int:
        """First byte address."""
        return self.row0 * self.pitch + self.column0

    @property
    def end(self) -> int:
        """Byte address after the last."""
        return (self.row1 - 1) * self.pitch + self.column1

    def overlaps(self, other: Region) -> bool:
        """May the two share a byte? Exact for regions of one pitch; else whether their address ranges meet."""
        if self.pitch != other.pitch:
            return self.first < other.end and other.first < self.end
        if (
            self.row0 >= other.row1
            or other.row0 >= self.row1
            or self.column0 >= other.column1
            or other.column0 >= self.column1
        ):
            return False
        if not self.dims and not other.dims:
            return True
        # Equal geometry lies at other places by the thousand: only the distance counts.
        left, right = self._runs(), other._runs()
        return _runs_meet(*left, *right, other.column0 - self.column0)

    def _runs(self) -> tuple[Dimensions, int]:
        return (self.dims, self.run) if self.dims else ((), self.column1 - self.column0)

    def covers(self, other: Region) -> bool:
        """Does it hold every byte of `other`? False where that cannot be told."""
        return (
            self.pitch == other.pitch
            and self.row0 <= other.row0
            and self.row1 >= other.row1
            and self.column0 <= other.column0
            and self.column1 >= other.column1
            and (not self.dims or (self.dims == other.dims and self.column0 == other.column0))
        )


@lru_cache(maxsize=65536)
def _runs_meet(left: Dimensions, left_run: int, right: Dimensions, right_run: int, distance: int) -> bool:
    """Does a run of `left`, which begins at 0, share a byte with one of `right`, which begins at `distance`?"""
    starts, others = _starts(left), _starts(right)
    if starts is None or others is None:
        return True
    others = others + distance
    # The last run of `right` that begins before each of left's ends must not reach into it.
    place = np.searchsorted(others, starts + left_run) - 1
    return bool(np.any((place >= 0) & (others[place] + right_run > starts)))


def _starts(dims: Dimensions) -> np.ndarray | None:
    """Where the runs begin, ascending; None: too many."""
    starts = np.zeros(1, np.int64)
    for step, count in dims:
        if len(starts) * count > MAX_RUNS:
            return None
        starts = (starts[:, None] + np.arange(count) * step).reshape(-1)
    return np.unique(starts)


def region_of(access: Access) -> Region:
    """The region of one operand, at the first iteration that its record stands for."""
    size, offsets = access.itemsize, access.offsets
    elements = max(access.partition_elements, 1) if access.memory is not Memory.HBM else _hbm_pitch(access)
    if offsets is not None:
        if not len(offsets):
            return Region(0, 0, 1, 0, 0)
        low, high = int(offsets.min()), int(offsets.max()) + 1
        if access.memory is Memory.HBM:
            return Region(0, 0, 1, low * size, high * size)
        columns = offsets % elements
        return Region(
            elements * size,
            low // elements,
            (high - 1) // elements + 1,
            int(columns.min()) * size,
            (int(columns.max()) + 1) * size,
        )
    rows = width = below = above = 0
    for step, count in access.pattern:
        if count == 1:
            continue
        if step < 0:
            below += step * (count - 1)
            continue
        above += step * (count - 1)
        if elements and step >= elements:
            rows += step // elements * (count - 1)
        else:
            width += step * (count - 1)
    start = access.offset
    if elements and not below:
        row, column = divmod(start, elements)
        if column + width < elements:
            dims, run = _holes([one for one in access.pattern if 0 < one[0] < elements and one[1] > 1], size)
            last = (column + width + 1) * size
            return Region(elements * size, row, row + rows + 1, column * size, last, dims, run)
    low, high = start + below, start + above + 1
    if access.memory is Memory.HBM:
        return Region(0, 0, 1, low * size, high * size)
    return Region(elements * size, low // elements, (high - 1) // elements + 1, 0, elements * size)


def _holes(pattern: list[tuple[int, int]], size: int) -> tuple[Dimensions, int]:
    """(dimensions that leave bytes out, bytes of a run) of steps in elements; ((), 0): every byte is touched."""
    run = size
    dims: list[tuple[int, int]] = []
    for step, count in sorted(pattern):
        if not dims and step * size <= run:
            run += step * size * (count - 1)
        else:
            dims.append((step * size, count))
    return (tuple(reversed(dims)), run) if dims else ((), 0)


def _hbm_pitch(access: Access) -> int:
    """The stride of the rows: the smallest step beyond what is contiguous inside; 0: there is none."""
    span = pitch = 1
    for step, count in sorted(access.pattern):
        if count == 1 or step <= 0:
            continue
        if pitch > 1:
            if step % pitch:
                return 0
        elif step > span:
            pitch = step
        else:
            span = step * count
    return pitch if pitch > 1 else 0

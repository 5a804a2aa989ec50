"""The bytes of a storage that an operand touches, as rows of a pitch, and whether two such regions overlap."""

from __future__ import annotations

from dataclasses import dataclass

from trnprof.nki.recording import Access, Memory


@dataclass(frozen=True, slots=True)
class Region:
    """A block of a storage: rows [row0, row1) of `pitch` bytes each, of which columns [column0, column1) are touched.

    On chip a row is a partition. In HBM a row is the outermost regular stride of the access, so that tiles of a matrix side
    by side do not overlap; an access without one is a single row. The region holds every byte touched, and may hold more.
    """

    pitch: int
    """0: one row, its columns are byte addresses."""
    row0: int
    row1: int
    column0: int
    column1: int

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
        if self.pitch == other.pitch:
            return (
                self.row0 < other.row1
                and other.row0 < self.row1
                and self.column0 < other.column1
                and other.column0 < self.column1
            )
        return self.first < other.end and other.first < self.end

    def covers(self, other: Region) -> bool:
        """Does it hold every byte of `other`? False where that cannot be told."""
        return (
            self.pitch == other.pitch
            and self.row0 <= other.row0
            and self.row1 >= other.row1
            and self.column0 <= other.column0
            and self.column1 >= other.column1
        )


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
            return Region(elements * size, row, row + rows + 1, column * size, (column + width + 1) * size)
    low, high = start + below, start + above + 1
    if access.memory is Memory.HBM:
        return Region(0, 0, 1, low * size, high * size)
    return Region(elements * size, low // elements, (high - 1) // elements + 1, 0, elements * size)


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

"""Storage: one block of one memory, what it is called, where it lies, when it is in use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trnprof.nki.dtypes import DType
from trnprof.nki.objects import MemoryRegion
from trnprof.nki.recording import Allocation, Memory, Site
from trnprof.nki.strides import product, row_major

if TYPE_CHECKING:
    import numpy as np

    from trnprof.nki.values.cells import Cells


class Storage:
    """One block of one memory; a Tensor is a view of it."""

    __slots__ = (
        "__weakref__",
        "address",
        "cells",
        "dtype",
        "kind",
        "memory",
        "name",
        "number",
        "partition_axis",
        "partition_elements",
        "producer",
        "region",
        "reserved_bytes",
        "shape",
        "site",
        "skipped_uses",
        "uses",
        "values",
        "writer",
        "written",
    )

    def __init__(
        self,
        number: int,
        shape: tuple[int, ...],
        dtype: DType,
        region: MemoryRegion,
        *,
        name: str,
        site: Site | None,
        kind: str,
        partition_axis: int = 0,
        address: tuple[int, int] | None = None,
    ) -> None:
        self.number = number
        self.shape = shape
        self.dtype = dtype
        self.region = region
        self.memory = region.memory
        self.name = name
        self.site = site
        self.kind = kind
        self.partition_axis = partition_axis
        self.address = address
        self.partition_elements = 0
        if self.memory is not Memory.HBM:
            self.partition_elements = product(shape) // max(shape[partition_axis], 1) if shape else 1
        self.uses: dict[int, tuple[int, int]] = {}
        """Block -> (first, last) event that touches it. The first generation's leading dimensions are blocks, each live
        on its own; everything else is one block, 0."""
        self.skipped_uses: dict[int, tuple[int, int]] = {}
        self.written = kind in ("argument", "constant")
        self.producer: tuple[dict[str, Any], Any] | None = None
        """(the record whose result this is, its loop nest) until something reads it: an assignment redirects the result."""
        self.writer: str | None = None
        """Name of the operation that wrote it last."""
        self.values: np.ndarray | None = None
        """Contents that are known before the run: of integer arguments, for offsets and loops."""
        self.cells: Cells | None = None
        """Contents while values are computed (values/cells.py)."""
        self.reserved_bytes: int | None = None
        """Bytes of a partition that a placed tensor's tiles share, where they take turns (mod_alloc)."""

    @property
    def strides(self) -> tuple[int, ...]:
        """Row major in HBM; on chip the partition axis outermost, the rest row major inside a partition."""
        if self.memory is Memory.HBM:
            return row_major(self.shape)
        axis = self.partition_axis
        free = self.shape[:axis] + self.shape[axis + 1 :]
        inner = row_major(free)
        return (*inner[:axis], self.partition_elements, *inner[axis:])

    @property
    def block_count(self) -> int:
        """Blocks of tiles: the product of the dimensions before the partition dimension."""
        return product(self.shape[: self.partition_axis])

    def use(self, now: int, first: int, last: int, *, skipped: bool = False) -> None:
        """Event `now` touches elements first..last of a partition (in the storage's dtype).

        skipped: by iterations that another one stands for; a block that only one loop touches so is as live as the
        block of the iteration that ran, and no further.
        """
        blocks = range(1)
        if self.partition_axis and self.memory is not Memory.HBM:
            size = max(self.partition_elements // max(self.block_count, 1), 1)
            blocks = range(max(first // size, 0), min(last // size + 1, self.block_count))
        uses = self.skipped_uses if skipped else self.uses
        for block in blocks:
            known = uses.get(block)
            uses[block] = (now, now) if known is None else (known[0], now)

    def lifetimes(self) -> Iterator[tuple[int, int]]:
        """(first, last) event of each block that was used."""
        for block in self.uses.keys() | self.skipped_uses.keys():
            ran, skipped = self.uses.get(block), self.skipped_uses.get(block)
            if ran is None and skipped is not None and skipped[0] == skipped[1]:
                continue
            spans = [span for span in (ran, skipped) if span is not None]
            yield min(span[0] for span in spans), max(span[1] for span in spans)

    @property
    def bytes_per_partition(self) -> int:
        """0 in HBM."""
        if self.reserved_bytes is not None:
            return self.reserved_bytes
        return self.partition_elements * self.dtype.itemsize

    def as_allocation(self, returned: bool) -> Allocation:
        """The frozen form."""
        on_chip = self.memory is not Memory.HBM
        return Allocation(
            storage=self.number,
            name=self.name,
            memory=self.memory,
            dtype=str(self.dtype),
            shape=self.shape,
            site=self.site,
            kind=self.kind,
            partition_count=self.shape[self.partition_axis] if on_chip and self.shape else 0,
            bytes_per_partition=self.bytes_per_partition,
            byte_count=product(self.shape) * self.dtype.itemsize,
            address=self.address,
            shared=self.region is MemoryRegion.shared_hbm,
            returned=returned,
        )

"""What a storage holds: its elements as one flat array, and which of them nothing has written yet.

A view reads and writes through its strides on that array; NumPy checks that it stays inside. Elements that were never
written read as NaN (integers as 0x55...), and are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from trnprof.nki.dtypes import DType
from trnprof.nki.values.kinds import NUMPY, UNWRITTEN_INTEGER, dtype_of, is_real_float, rounded


class OutOfBoundsError(IndexError):
    """An access reaches beyond its storage."""

    reason = "out-of-bounds"


class Cells:
    """The elements of one storage, row major as Storage.strides counts them.

    `loose`: float types are held in float64 whatever their name says (`--precise off`); other types as they are.
    `zeroed`: what nothing has written reads as 0, though it still counts as missing (`--unwritten zero`).
    """

    __slots__ = (
        "_filled",
        "_left",
        "_unit",
        "array",
        "count",
        "dtype",
        "is_changed",
        "loose",
        "missing",
        "name",
        "pending",
        "zeroed",
    )

    def __init__(self, count: int, dtype: DType, name: str, *, loose: bool = False, zeroed: bool = False) -> None:
        self.count = count
        self.dtype = dtype
        self.name = name
        self.loose = loose and is_real_float(dtype)
        self.zeroed = zeroed
        self.array = np.empty(count, np.float64 if self.loose else NUMPY[dtype])
        self._filled = False
        self.missing: np.ndarray | None = None
        """True where nothing has written; None: nothing is missing (or, before the first access, everything)."""
        self._unit = dtype.itemsize
        """Bytes of the storage that one entry of `missing` stands for."""
        self._left = 0
        self.is_changed = False
        """Has anything been written since the contents were given?"""
        self.pending: Callable[[], None] | None = None
        """Called before the next access: what a send from the other program of a pair will put here."""

    @classmethod
    def of(cls, array: np.ndarray, dtype: DType, name: str, *, loose: bool = False) -> Cells:
        """Cells with the contents of `array`; without a copy where the layout allows it, so that writes reach the array."""
        self = cls.__new__(cls)
        self.count, self.dtype, self.name = array.size, dtype, name
        self.loose = loose and is_real_float(dtype)
        self.zeroed = False
        plain = array.view(np.uint8) if array.dtype == np.bool_ else array
        if plain.dtype.names:
            plain = plain.view(NUMPY[dtype])
        kind = np.dtype(np.float64) if self.loose else NUMPY[dtype]
        if plain.dtype != kind:
            plain = rounded(plain.astype(np.float32), dtype) if dtype_of(array) != dtype else plain.astype(kind)
        if not (plain.flags.c_contiguous and plain.flags.writeable):
            plain = np.array(plain, order="C")
        self.array = plain.reshape(-1)
        self._filled, self.missing, self._unit, self._left, self.pending = True, None, dtype.itemsize, 0, None
        self.is_changed = False
        return self

    @property
    def is_untouched(self) -> bool:
        """Has nothing been read or written?"""
        return not self._filled

    @property
    def missing_count(self) -> int:
        """Elements that nothing has written."""
        if not self._filled:
            return self.count
        return self._left * self._unit // self.dtype.itemsize if self.missing is not None else 0

    # Access by a pattern

    def load(self, dtype: DType, shape: Sequence[int], strides: Sequence[int], offset: int) -> np.ndarray:
        """The elements of a pattern: a view of the array where its representation is the view's, else a copy.

        Strides and offset count elements of `dtype`. Raises OutOfBoundsError.
        """
        if not self._filled:
            self._fill()
        return self._window(dtype, shape, strides, offset)

    def store(
        self, dtype: DType, shape: Sequence[int], strides: Sequence[int], offset: int, values: Any, where: Any = None
    ) -> None:
        """Write `values` (already of the view's representation; they broadcast) to a pattern, where `where` holds."""
        self.is_changed = True
        if not self._filled:
            whole = where is None and self._is_whole(dtype, shape, strides, offset)
            if whole:
                self._filled = True
            else:
                self._fill()
        if self.loose and dtype != self.dtype:
            everywhere = True if where is None else where

            def change(raw: np.ndarray) -> None:
                np.copyto(_pattern(raw, dtype, shape, strides, offset, self), values, where=everywhere)

            self._change_bits(change)
        else:
            window = self._window(dtype, shape, strides, offset)
            if where is None:
                window[...] = values
            else:
                np.copyto(window, values, where=where)
        if self.missing is not None:
            self._wrote(self.missing_at(dtype, shape, strides, offset), where)

    def missing_at(self, dtype: DType, shape: Sequence[int], strides: Sequence[int], offset: int) -> np.ndarray:
        """The part of `missing` under a pattern, shape [*shape, k]: k entries an element."""
        assert self.missing is not None
        if dtype.itemsize % self._unit:
            factor = self._unit // dtype.itemsize
            self.missing, self._left, self._unit = np.repeat(self.missing, factor), self._left * factor, dtype.itemsize
        k = dtype.itemsize // self._unit
        return np.ndarray((*shape, k), bool, self.missing, offset * k, (*(step * k for step in strides), 1))

    def _wrote(self, part: np.ndarray, where: Any) -> None:
        if where is None:
            self._left -= int(np.count_nonzero(part))
            part[...] = False
        else:
            hit = part & np.asarray(where, bool)[..., None]
            self._left -= int(np.count_nonzero(hit))
            part[hit] = False
        if self._left <= 0:
            self.missing = None

    def _fill(self) -> None:
        self._filled = True
        if self.zeroed:
            self.array.view(np.uint8)[...] = 0
        elif self.array.dtype.kind in "iu":
            self.array.view(np.uint8)[...] = UNWRITTEN_INTEGER
        else:
            self.array[...] = np.nan
        self.missing = np.ones(self.count * self.dtype.itemsize // self._unit, bool)
        self._left = self.missing.size
        if not self._left:
            self.missing = None

    def _is_whole(self, dtype: DType, shape: Sequence[int], strides: Sequence[int], offset: int) -> bool:
        """Does the pattern name every element of the storage once?"""
        if offset or prod(shape) * dtype.itemsize != self.count * self.dtype.itemsize:
            return False
        span = 1
        for step, size in sorted(zip(strides, shape, strict=True)):
            if size != 1:
                if step != span:
                    return False
                span *= size
        return True

    def _window(self, dtype: DType, shape: Sequence[int], strides: Sequence[int], offset: int) -> np.ndarray:
        if self.loose and dtype != self.dtype:
            return _pattern(self._bits(), dtype, shape, strides, offset, self)
        array = self.array
        if self.loose:
            size = 8
            kind: np.dtype[Any] = array.dtype
        else:
            size, kind = dtype.itemsize, NUMPY[dtype]
        try:
            return np.ndarray(
                tuple(shape), kind, array.view(np.uint8), offset * size, tuple([step * size for step in strides])
            )
        except (ValueError, TypeError):
            raise self._outside(dtype, shape, strides, offset) from None

    def _outside(self, dtype: DType, shape: Sequence[int], strides: Sequence[int], offset: int) -> OutOfBoundsError:
        first = offset + sum(min(step, 0) * (size - 1) for size, step in zip(shape, strides, strict=True))
        last = offset + sum(max(step, 0) * (size - 1) for size, step in zip(shape, strides, strict=True))
        total = self.count * self.dtype.itemsize // dtype.itemsize
        return OutOfBoundsError(
            f"a pattern {[[step, size] for size, step in zip(shape, strides, strict=True)]} at {offset} reaches elements "
            f"{first}..{last} of {self.name!r}, which has {total}; its last element is at offset + sum of step x (count - 1): reduce a count or "
            "the offset"
        )

    # Loose cells under another type: through the bits that the elements would have.

    def _bits(self) -> np.ndarray:
        return rounded(self.array, self.dtype).view(np.uint8)

    def _change_bits(self, change: Callable[[np.ndarray], None]) -> None:
        """Let `change` write to the bytes; elements whose bits it changed take the value that those mean."""
        before = rounded(self.array, self.dtype)
        after = before.copy()
        change(after.view(np.uint8))
        changed = (before.view(np.uint8) != after.view(np.uint8)).reshape(self.count, -1).any(axis=1)
        self.array[changed] = after[changed].astype(np.float64)

    # Access by a list of addresses

    def load_at(self, dtype: DType, addresses: np.ndarray) -> np.ndarray:
        """The elements at `addresses` (in elements of `dtype`), a copy of the same shape. Raises OutOfBoundsError."""
        if not self._filled:
            self._fill()
        flat = self._flat(dtype)
        self._check(addresses, flat.size)
        return flat[addresses]

    def store_at(self, dtype: DType, addresses: np.ndarray, values: Any) -> None:
        """Write `values` to `addresses`; of equal addresses the last one stays."""
        self.is_changed = True
        if not self._filled:
            self._fill()
        total = self.count * self.dtype.itemsize // dtype.itemsize
        self._check(addresses, total)
        if self.loose and dtype != self.dtype:

            def change(raw: np.ndarray) -> None:
                raw.view(NUMPY[dtype])[addresses] = values

            self._change_bits(change)
        else:
            self._flat(dtype)[addresses] = values
        if self.missing is not None:
            hit = np.zeros(total, bool)
            hit[addresses] = True
            self._wrote(self.missing_at(dtype, (total,), (1,), 0), hit)

    def missing_count_at(self, dtype: DType, addresses: np.ndarray) -> int:
        """How many of the elements at `addresses` nothing has written."""
        if self.missing is None:
            return 0
        total = self.count * self.dtype.itemsize // dtype.itemsize
        missing = np.asarray(self.missing_at(dtype, (total,), (1,), 0).any(axis=1))
        return int(np.count_nonzero(missing[addresses]))

    def _flat(self, dtype: DType) -> np.ndarray:
        if dtype == self.dtype:
            return self.array
        if self.loose:
            return self._bits().view(NUMPY[dtype])
        return self.array.view(np.uint8).view(NUMPY[dtype])

    def _check(self, addresses: np.ndarray, total: int) -> None:
        if addresses.size and (addresses.min() < 0 or addresses.max() >= total):
            raise OutOfBoundsError(
                f"addresses {int(addresses.min())}..{int(addresses.max())} of {self.name!r}, which has {total} elements"
            )


def _pattern(
    raw: np.ndarray, dtype: DType, shape: Sequence[int], strides: Sequence[int], offset: int, cells: Cells
) -> np.ndarray:
    size = dtype.itemsize
    try:
        return np.ndarray(tuple(shape), NUMPY[dtype], raw, offset * size, tuple([step * size for step in strides]))
    except (ValueError, TypeError):
        raise cells._outside(dtype, shape, strides, offset) from None

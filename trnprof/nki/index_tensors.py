"""The first generation's index tensors and masks (nl.arange, nl.mgrid, comparisons of them).

An index tensor is an affine expression start + sum(step_d * iota_d) over its own dimensions, and stays one through sums
and products with integers; start may be a loop index. Only what is not affine (i // 2, i % 4, i * j) is enumerated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trnprof.nki.loop_index import LoopIndex
from trnprof.nki.tensor import Ds

if TYPE_CHECKING:
    from trnprof.nki.state import _Walker

ENUMERATION_LIMIT = 1 << 22
"""Most addresses that one access may enumerate (32 MiB of int64)."""


class IndexTensor:
    """Integers start + sum(steps[d] * i_d) over `shape`, or any integers as an array (`dense`)."""

    __slots__ = ("dense", "shape", "start", "steps")
    __array_priority__ = 1000
    __hash__ = object.__hash__

    def __init__(
        self, shape: tuple[int, ...], steps: tuple[int, ...], start: Any, dense: np.ndarray | None = None
    ) -> None:
        self.shape = shape
        self.steps = steps
        self.start = start
        """int or LoopIndex."""
        self.dense = dense

    ndim = property(lambda self: len(self.shape))

    def __len__(self) -> int:
        return self.shape[0]

    def __nki_state__(self, walker: _Walker) -> Any:
        dense = None if self.dense is None else self.dense.tobytes()
        return (self.shape, self.steps, walker.number_token(self.start), dense)

    def values(self) -> np.ndarray:
        """The integers, shape `shape`; pins loop indices."""
        if self.dense is not None:
            return self.dense
        if _size(self.shape) > ENUMERATION_LIMIT:
            raise ValueError(f"index arithmetic over {self.shape} needs more than {ENUMERATION_LIMIT:,} addresses")
        total = np.full(self.shape, int(self.start), np.int64)
        for axis, (size, step) in enumerate(zip(self.shape, self.steps, strict=True)):
            if step:
                line = np.arange(size, dtype=np.int64) * step
                total += line.reshape([-1 if d == axis else 1 for d in range(len(self.shape))])
        return total

    def __getitem__(self, key: Any) -> IndexTensor:
        keys = key if isinstance(key, tuple) else (key,)
        if Ellipsis in keys:
            at = keys.index(Ellipsis)
            used = sum(item is not None and item is not Ellipsis for item in keys)
            keys = keys[:at] + (slice(None),) * (len(self.shape) - used) + keys[at + 1 :]
        if self.dense is not None:
            return dense_index(self.dense[tuple(int(k) if isinstance(k, LoopIndex) else k for k in keys)])
        shape: list[int] = []
        steps: list[int] = []
        start, dim = self.start, 0
        for item in keys:
            if item is None:
                shape.append(1)
                steps.append(0)
                continue
            if isinstance(item, int):
                start = start + item * self.steps[dim]
            else:
                first, count, step = resolve_slice(item, self.shape[dim])
                start = start + first * self.steps[dim]
                shape.append(count)
                steps.append(self.steps[dim] * step)
            dim += 1
        shape.extend(self.shape[dim:])
        steps.extend(self.steps[dim:])
        return IndexTensor(tuple(shape), tuple(steps), start)

    def expand_dims(self, axis: int) -> IndexTensor:
        """A new dimension of size 1."""
        axis %= len(self.shape) + 1
        return self[(slice(None),) * axis + (None,)]

    def reshape(self, *shape: Any) -> IndexTensor:
        """As numpy's."""
        return dense_index(self.values().reshape(*shape))

    def broadcast_to(self, shape: tuple[int, ...]) -> IndexTensor:
        """As numpy's."""
        if self.dense is not None:
            return dense_index(np.broadcast_to(self.dense, shape))
        missing = len(shape) - len(self.shape)
        steps = [0] * missing + list(self.steps)
        for axis, size in enumerate((1,) * missing + self.shape):
            if size != shape[axis] and size != 1:
                raise ValueError(f"index tensors of shapes {self.shape} and {shape} do not broadcast")
        return IndexTensor(shape, tuple(steps), self.start)

    # Arithmetic

    def __add__(self, other: Any) -> IndexTensor:
        return _affine(self, other, 1, 1)

    __radd__ = __add__

    def __sub__(self, other: Any) -> IndexTensor:
        return _affine(self, other, 1, -1)

    def __rsub__(self, other: Any) -> IndexTensor:
        return _affine(self, other, -1, 1)

    def __neg__(self) -> IndexTensor:
        return _affine(self, 0, -1, 1)

    def __mul__(self, other: Any) -> IndexTensor:
        if isinstance(other, IndexTensor):
            return dense_index(self.values() * other.values())
        if self.dense is not None:
            return dense_index(self.dense * int(other))
        if isinstance(other, LoopIndex) and any(self.steps):
            other = int(other)
        return IndexTensor(self.shape, tuple(step * other for step in self.steps), self.start * other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> IndexTensor:
        return dense_index(self.values() // _values(other))

    def __mod__(self, other: Any) -> IndexTensor:
        return dense_index(self.values() % _values(other))

    # Comparisons make masks: `a <= b` is `a - b <= 0`.

    def __le__(self, other: Any) -> Mask:
        return Mask((_affine(self, other, 1, -1),))

    def __lt__(self, other: Any) -> Mask:
        return Mask((_affine(self, other, 1, -1) + 1,))

    def __ge__(self, other: Any) -> Mask:
        return Mask((_affine(self, other, -1, 1),))

    def __gt__(self, other: Any) -> Mask:
        return Mask((_affine(self, other, -1, 1) + 1,))

    def __eq__(self, other: Any) -> Any:
        if not isinstance(other, int | IndexTensor):
            return NotImplemented
        return Mask((_affine(self, other, 1, -1), _affine(self, other, -1, 1)))

    def __ne__(self, other: Any) -> Any:
        if not isinstance(other, int | IndexTensor):
            return NotImplemented
        return Mask((), self.values() != _values(other))


class Mask:
    """Where all of `terms` (index tensors) are <= 0 and `dense` is true."""

    __slots__ = ("dense", "terms")

    def __init__(self, terms: tuple[IndexTensor, ...], dense: np.ndarray | None = None) -> None:
        self.terms = terms
        self.dense = dense

    def __nki_state__(self, walker: _Walker) -> Any:
        dense = None if self.dense is None else self.dense.tobytes()
        return (tuple(term.__nki_state__(walker) for term in self.terms), dense)

    def __and__(self, other: Any) -> Mask:
        if isinstance(other, bool):
            return self if other else Mask((), np.zeros((1,), bool))
        dense = self.dense if other.dense is None else other.dense if self.dense is None else self.dense & other.dense
        return Mask(self.terms + other.terms, dense)

    __rand__ = __and__

    def __or__(self, other: Any) -> Mask:
        return Mask((), self.values() | other.values())

    def __invert__(self) -> Mask:
        return Mask((), ~self.values())

    def values(self) -> np.ndarray:
        """The booleans; pins loop indices."""
        result: np.ndarray = np.ones((1,), bool) if self.dense is None else self.dense
        for term in self.terms:
            result = result & (term.values() <= 0)
        return result

    def box(self, shape: tuple[int, ...]) -> list[tuple[int, int]] | None:
        """[(first, count)] per dimension where the mask is one box of `shape`; None: it is not."""
        if self.dense is not None:
            return None
        box = [(0, size) for size in shape]
        for term in self.terms:
            if term.dense is not None:
                return None
            term = term.broadcast_to(shape) if len(term.shape) <= len(shape) else term
            largest = term.start
            for step, size in zip(term.steps, shape, strict=True):
                largest = largest + (step * (size - 1) if step > 0 else 0)
            if largest <= 0:  # true everywhere, and a loop index notes until when
                continue
            moving = [axis for axis, step in enumerate(term.steps) if step and shape[axis] > 1]
            if len(moving) > 1:
                return None
            start = int(term.start)
            if not moving:
                return [(0, 0)] * len(shape) if start > 0 else box
            axis, step = moving[0], term.steps[moving[0]]
            first, count = box[axis]
            last = first + count - 1
            if step > 0:
                last = min(last, -start // step)
            else:
                first = max(first, -(start // step))
            box[axis] = (first, max(0, last - first + 1))
        return box


class Grid(tuple):
    """nl.mgrid[a:b, c:d]: one index tensor a dimension, also by name (p, x, y, z)."""

    __slots__ = ()
    p = property(lambda self: self[0])
    x = property(lambda self: self[1])
    y = property(lambda self: self[2])
    z = property(lambda self: self[3])
    w = property(lambda self: self[4])


class MeshGrid:
    """nl.mgrid."""

    def __getitem__(self, key: Any) -> Grid:
        keys = key if isinstance(key, tuple) else (key,)
        spans = [(item.start or 0, item.stop, item.step or 1) for item in keys]
        shape = tuple(max(0, -(-int(stop - start) // int(step))) for start, stop, step in spans)
        return Grid(
            IndexTensor(shape, tuple(int(step) if d == axis else 0 for d in range(len(shape))), start)
            for axis, (start, _, step) in enumerate(spans)
        )


def arange(*bounds: Any) -> IndexTensor:
    """nl.arange(stop), (start, stop) or (start, stop, step)."""
    start, stop, step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    count = max(0, -(-int(stop - start) // int(step)))
    return IndexTensor((count,), (int(step),), start)


def resolve_slice(item: Any, size: int) -> tuple[Any, int, int]:
    """(start, count, step) of a slice or nl.ds of a dimension of `size`, clipped as Python does; start may be symbolic."""
    if isinstance(item, Ds):
        return item.start, int(item.size), 1
    step = 1 if item.step is None else int(item.step)
    if step < 0:
        first, last, step = item.indices(size)
        return first, len(range(first, last, step)), step
    start = 0 if item.start is None else item.start
    stop = size if item.stop is None else item.stop
    if not isinstance(start, int) or not isinstance(stop, int):
        # A register or tensor: the length is what cancels out, or what the kernel says with nl.ds.
        return start, _length(start, stop, size), step
    if start < 0:
        start = max(start + size, 0)
    if stop < 0:
        stop = stop + size
    if stop > size:
        stop = size
    length = stop - start
    if length <= 0:
        return start, 0, step
    return start, -(-int(length) // step) if step != 1 else int(length), step


def _length(start: Any, stop: Any, size: int) -> int:
    """stop - start of device values."""
    difference = stop - start if stop is not None else size
    return int(difference)


def dense_index(values: np.ndarray) -> IndexTensor:
    """An index tensor of any integers."""
    if values.size > ENUMERATION_LIMIT:
        raise ValueError(f"index arithmetic over {values.shape} needs more than {ENUMERATION_LIMIT:,} addresses")
    return IndexTensor(values.shape, (0,) * values.ndim, 0, np.asarray(values, np.int64))


def _affine(left: IndexTensor, right: Any, left_sign: int, right_sign: int) -> IndexTensor:
    """left_sign * left + right_sign * right."""
    if not isinstance(right, IndexTensor):
        if not isinstance(right, int):
            if not hasattr(right, "__index__"):
                raise TypeError(f"an index tensor and {type(right).__name__} do not combine")
            right = int(right)
        if left.dense is not None:
            return dense_index(left_sign * left.dense + right_sign * int(right))
        return IndexTensor(
            left.shape, tuple(left_sign * step for step in left.steps), left_sign * left.start + right_sign * right
        )
    shape = tuple(int(size) for size in np.broadcast_shapes(left.shape, right.shape))
    if left.dense is not None or right.dense is not None:
        return dense_index(left_sign * left.values() + right_sign * right.values())
    first, second = left.broadcast_to(shape), right.broadcast_to(shape)
    steps = tuple(left_sign * a + right_sign * b for a, b in zip(first.steps, second.steps, strict=True))
    return IndexTensor(shape, steps, left_sign * first.start + right_sign * second.start)


def _values(other: Any) -> Any:
    return other.values() if isinstance(other, IndexTensor) else int(other)


def _size(shape: Sequence[int]) -> int:
    return int(np.prod(shape, dtype=np.int64)) if shape else 1

"""Subscripts: t[...] of both generations, and the first generation's index tensors and masks.

An index tensor (nl.arange, nl.mgrid) is an affine expression start + sum(step_d * iota_d) over its own dimensions, so a
tensor indexed by some is again a strided view: the view's stride along d is the sum over the tensor's dimensions of
stride_k * step_kd. Only what is not affine (i // 2, i % 4, products) is enumerated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trnprof.nki.loops import LoopIndex, value_of
from trnprof.nki.recording import Indirection
from trnprof.nki.tensor import Ds, Indirect, Tensor, row_major

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
            return _dense(self.dense[tuple(int(k) if isinstance(k, LoopIndex) else k for k in keys)])
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
        return _dense(self.values().reshape(*shape))

    def broadcast_to(self, shape: tuple[int, ...]) -> IndexTensor:
        """As numpy's."""
        if self.dense is not None:
            return _dense(np.broadcast_to(self.dense, shape))
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
            return _dense(self.values() * other.values())
        if self.dense is not None:
            return _dense(self.dense * int(other))
        if isinstance(other, LoopIndex) and any(self.steps):
            other = int(other)
        return IndexTensor(self.shape, tuple(step * other for step in self.steps), self.start * other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> IndexTensor:
        return _dense(self.values() // _values(other))

    def __mod__(self, other: Any) -> IndexTensor:
        return _dense(self.values() % _values(other))

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


def masked(tensor: Tensor, mask: Any) -> Tensor:
    """The part of a view where the mask holds."""
    if mask is None or mask is True or not isinstance(mask, Mask):
        return tensor
    box = mask.box(tensor.shape)
    if box is not None:
        offset = tensor.offset
        for (first, _), stride in zip(box, tensor.strides, strict=True):
            if first:
                offset = offset + first * stride
        return tensor._view([count for _, count in box], tensor.strides, offset)
    keep = np.broadcast_to(mask.values(), tensor.shape)
    offsets = _addresses(tensor)[keep.reshape(-1)]
    return Tensor(tensor.storage, (len(offsets),), (1,), 0, tensor.dtype, indirect=tensor.indirection, offsets=offsets)


def _addresses(tensor: Tensor) -> np.ndarray:
    """Address of every element of a view, in element order."""
    if tensor.offsets is not None:
        return tensor.offsets
    return IndexTensor(tensor.shape, tensor.strides, tensor.offset).values().reshape(-1)


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


def index_tensor(tensor: Tensor, key: Any) -> Tensor:
    """tensor[key]: integers, slices, nl.ds, `...`, None, index tensors, device values."""
    keys = list(key) if isinstance(key, tuple) else [key]
    keys = [_as_index(item) for item in keys]
    ndim = len(tensor.shape)
    used = sum(1 for item in keys if item is not None and item is not Ellipsis)
    if used > ndim:
        raise IndexError(f"{used} indices for {tensor!r}, which has {ndim} dimensions")
    dots = [position for position, item in enumerate(keys) if item is Ellipsis]
    if dots:
        at = dots[0]
        keys[at : at + 1] = [slice(None)] * (ndim - used)
        keys = [slice(None) if item is Ellipsis else item for item in keys]
    else:
        keys += [slice(None)] * (ndim - used)
    if any(isinstance(item, IndexTensor) for item in keys) or any(_is_index_vector(item) for item in keys):
        return _advanced(tensor, keys)
    return _basic(tensor, keys)


def _basic(tensor: Tensor, keys: list[Any]) -> Tensor:
    shape: list[int] = []
    strides: list[Any] = []
    offset = tensor.offset
    indirect = tensor.indirection
    on_chip = tensor.on_chip
    partition = partition_dim(tensor) if on_chip else -1
    dim = 0
    for item in keys:
        if item is None:
            shape.append(1)
            strides.append(0)
            continue
        size, stride = tensor.shape[dim], tensor.strides[dim]
        if isinstance(item, int):
            if item < 0:
                item = item + size
            if not 0 <= item < size:
                raise IndexError(f"index {item} is outside dimension {dim} of {tensor!r}")
            offset = offset + item * stride
            if dim == partition:
                shape.append(1)
                strides.append(stride)
        elif isinstance(item, slice | Ds):
            start, count, step = resolve_slice(item, size)
            if isinstance(start, int):
                if start != 0:
                    offset = offset + start * stride
                if isinstance(item, Ds) and not start + count <= size:
                    note_out_of_bounds(tensor, dim)
            else:
                indirect = Indirect(Indirection.DYNAMIC_START, start)
            shape.append(count)
            strides.append(stride * step)
        else:
            indirect = Indirect(Indirection.DYNAMIC_START, item)
            if dim == partition:
                shape.append(1)
                strides.append(stride)
        dim += 1
    if on_chip:
        while len(shape) < 2:
            shape.append(1)
            strides.append(1)
    elif not shape:
        shape, strides = [1], [1]
    return Tensor(tensor.storage, tuple(shape), tuple(strides), offset, tensor.dtype, indirect=indirect)


def _advanced(tensor: Tensor, keys: list[Any]) -> Tensor:
    """Some keys are index tensors (or index vectors in SBUF): they broadcast to one group of dimensions."""
    group: tuple[int, ...] = ()
    positions: list[int] = []
    dim = 0
    for position, item in enumerate(keys):
        if isinstance(item, IndexTensor) or _is_index_vector(item):
            group = tuple(np.broadcast_shapes(group, item.shape))
            positions.append(position)
    adjacent = positions == list(range(positions[0], positions[-1] + 1))
    steps = [0] * len(group)
    dense: np.ndarray | None = None
    offset = tensor.offset
    indirect = tensor.indirection
    gather_axis: int | None = None
    before: list[tuple[int, Any]] = []
    after: list[tuple[int, Any]] = []
    for position, item in enumerate(keys):
        side = before if adjacent and position < positions[0] else after
        if item is None:
            side.append((1, 0))
            continue
        size, stride = tensor.shape[dim], tensor.strides[dim]
        dim += 1
        if isinstance(item, IndexTensor):
            if item.dense is not None:
                part = np.broadcast_to(item.dense, group) * stride
                dense = part if dense is None else dense + part
            else:
                wide = item.broadcast_to(group)
                offset = offset + wide.start * stride
                steps = [old + new * stride for old, new in zip(steps, wide.steps, strict=True)]
        elif isinstance(item, int):
            offset = offset + (item + size if item < 0 else item) * stride
        elif isinstance(item, slice | Ds):
            start, count, step = resolve_slice(item, size)
            offset = offset + start * stride
            side.append((count, stride * step))
        elif _is_index_vector(item):
            # Rows placed by device indices: the group's first dimension with more than one index.
            sizes = (1,) * (len(group) - len(item.shape)) + item.shape
            gather_axis = next((axis for axis, count in enumerate(sizes) if count > 1), 0)
            indirect = Indirect(Indirection.GATHER, item, axis=gather_axis)
            steps[gather_axis] += stride
        else:
            indirect = Indirect(Indirection.DYNAMIC_START, item)
    dims = [*before, *zip(group, steps, strict=True), *after]
    if gather_axis is not None and indirect is not None:
        indirect = Indirect(indirect.kind, indirect.index, axis=gather_axis + len(before))
    if tensor.on_chip:
        while len(dims) < 2:
            dims.append((1, 1))
    shape = tuple(size for size, _ in dims)
    strides = tuple(stride for _, stride in dims)
    view = Tensor(tensor.storage, shape, strides, offset, tensor.dtype, indirect=indirect)
    if dense is not None:
        placed = dense.reshape([1] * len(before) + list(group) + [1] * (len(dims) - len(before) - len(group)))
        base = IndexTensor(shape, strides, offset).values()
        view = Tensor(
            tensor.storage,
            shape,
            row_major(shape),
            0,
            tensor.dtype,
            offsets=(base + placed).reshape(-1).astype(np.int64),
        )
    return view


def partition_dim(tensor: Tensor) -> int:
    """The view's dimension that runs over partitions; 0 where it is not plain."""
    storage = tensor.storage
    if tensor.shape == storage.shape and tensor.strides == storage.strides:
        return storage.partition_axis
    elements = storage.partition_elements * storage.dtype.itemsize // max(tensor.dtype.itemsize, 1)
    for dim, stride in enumerate(tensor.strides):
        if stride == elements:
            return dim
    return 0


def note_out_of_bounds(tensor: Tensor, dim: int) -> None:
    """Keep a note with the line."""
    from trnprof.nki.recorder import current_recorder

    recorder = current_recorder()
    if recorder is not None:
        recorder.note("out-of-bounds", f"a slice reaches beyond dimension {dim} of {tensor!r}")


def _as_index(item: Any) -> Any:
    if isinstance(item, np.integer):
        return int(item)
    if isinstance(item, list | np.ndarray | range):
        return _dense(np.asarray(item, np.int64))
    return item


def _is_index_vector(item: Any) -> bool:
    """A tensor of several indices; one index is a dynamic start."""
    return isinstance(item, Tensor) and item.size > 1


def _dense(values: np.ndarray) -> IndexTensor:
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
            return _dense(left_sign * left.dense + right_sign * int(right))
        return IndexTensor(
            left.shape, tuple(left_sign * step for step in left.steps), left_sign * left.start + right_sign * right
        )
    shape = tuple(int(size) for size in np.broadcast_shapes(left.shape, right.shape))
    if left.dense is not None or right.dense is not None:
        return _dense(left_sign * left.values() + right_sign * right.values())
    first, second = left.broadcast_to(shape), right.broadcast_to(shape)
    steps = tuple(left_sign * a + right_sign * b for a, b in zip(first.steps, second.steps, strict=True))
    return IndexTensor(shape, steps, left_sign * first.start + right_sign * second.start)


def _values(other: Any) -> Any:
    return other.values() if isinstance(other, IndexTensor) else int(other)


def _size(shape: Sequence[int]) -> int:
    return int(np.prod(shape, dtype=np.int64)) if shape else 1


Indexer = Callable[[Tensor, Any], Tensor]
__all__ = ["Grid", "IndexTensor", "Mask", "MeshGrid", "arange", "index_tensor", "masked", "value_of"]

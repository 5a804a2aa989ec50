"""Subscripts of both generations: t[...] with integers, slices, nl.ds, None, index tensors, device values; and masks.

A tensor indexed by index tensors is again a strided view: the view's stride along d is the sum over the tensor's
dimensions of stride_k * step_kd. Only index arithmetic that is not affine is enumerated.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trnprof.nki.index_tensors import IndexTensor, Mask, dense_index, resolve_slice
from trnprof.nki.recording import Indirection
from trnprof.nki.strides import row_major
from trnprof.nki.tensor import Ds, Indirect, Tensor


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
                indirect = Indirect(Indirection.DYNAMIC_START, start, step=stride, inner=indirect)
            shape.append(count)
            strides.append(stride * step)
        else:
            indirect = Indirect(Indirection.DYNAMIC_START, item, step=stride, inner=indirect)
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
            own = tuple(range(len(group) - len(item.shape), len(group)))
            indirect = Indirect(
                Indirection.GATHER,
                item,
                axis=gather_axis + len(before),
                step=stride,
                replaced_step=stride,
                dims=tuple(dim + len(before) for dim in own),
                inner=indirect,
            )
            steps[gather_axis] += stride
        else:
            indirect = Indirect(Indirection.DYNAMIC_START, item, step=stride, inner=indirect)
    dims = [*before, *zip(group, steps, strict=True), *after]
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
            indirect=indirect,
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
        return dense_index(np.asarray(item, np.int64))
    return item


def _is_index_vector(item: Any) -> bool:
    """A tensor of several indices; one index is a dynamic start."""
    return isinstance(item, Tensor) and item.size > 1

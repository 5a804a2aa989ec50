"""Views and subscripts against numpy: a tensor's element addresses are what the same operation makes of an address array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnprof.nki.dtypes import DTYPES
from trnprof.nki.index_tensors import MeshGrid, arange
from trnprof.nki.indexing import masked
from trnprof.nki.objects import MemoryRegion
from trnprof.nki.storage import Storage
from trnprof.nki.tensor import DeviceValueError, Ds, Tensor


def tensor(*shape: int, dtype: str = "float32", region: MemoryRegion = MemoryRegion.hbm, axis: int = 0) -> Tensor:
    """A tensor that is a whole storage."""
    storage = Storage(0, shape, DTYPES[dtype], region, name="t", site=None, kind="tensor", partition_axis=axis)
    return Tensor(storage, shape, storage.strides)


def addresses(view: Tensor) -> np.ndarray:
    """Address of every element, in the view's shape."""
    if view.offsets is not None:
        return view.offsets.reshape(view.shape)
    result = np.full(view.shape, int(view.offset), np.int64)
    for axis, (stride, size) in enumerate(zip(view.strides, view.shape, strict=True)):
        result = result + (np.arange(size) * stride).reshape([-1 if a == axis else 1 for a in range(view.ndim)])
    return result


SHAPES = st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4).map(tuple)


@st.composite
def chains(draw: st.DrawFn) -> tuple[tuple[int, ...], list[tuple[str, Any]]]:
    """A shape and view operations that are valid on it, with numpy's address array carried along."""
    shape = draw(SHAPES)
    array = np.arange(int(np.prod(shape))).reshape(shape)
    steps: list[tuple[str, Any]] = []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(
            st.sampled_from(
                ["index", "permute", "expand_dim", "squeeze_dim", "broadcast", "reshape", "flatten_dims", "select"]
            )
        )
        ndim = array.ndim
        argument: Any
        if kind == "index":
            key: list[Any] = []
            for size in array.shape:
                choice = draw(st.integers(0, 3))
                if choice == 0 and array.ndim > 1 and size:
                    key.append(draw(st.integers(-size, size - 1)))
                elif choice == 1:
                    first = draw(st.integers(0, max(size - 1, 0)))
                    key.append(slice(first, draw(st.integers(first, size)), draw(st.integers(1, 3))))
                else:
                    key.append(slice(None))
            if all(isinstance(item, int) for item in key):
                key[-1] = slice(None)
            if draw(st.booleans()):
                key.insert(draw(st.integers(0, len(key))), None)
            argument = tuple(key)
        elif kind == "permute":
            argument = tuple(draw(st.permutations(range(ndim))))
        elif kind == "expand_dim":
            argument = draw(st.integers(0, ndim))
        elif kind in ("squeeze_dim", "broadcast"):
            ones = [axis for axis, size in enumerate(array.shape) if size == 1]
            if not ones or (kind == "squeeze_dim" and ndim == 1):
                continue
            argument = draw(st.sampled_from(ones)) if kind == "squeeze_dim" else (draw(st.sampled_from(ones)), 3)
        elif kind == "select":
            if ndim < 2:
                continue
            axis = draw(st.integers(0, ndim - 1))
            if not array.shape[axis]:
                continue
            argument = (axis, draw(st.integers(0, array.shape[axis] - 1)))
        elif kind == "flatten_dims":
            first = draw(st.integers(0, ndim - 1))
            argument = (first, draw(st.integers(first, ndim - 1)))
        else:
            argument = (array.shape[0] * (array.shape[1] if ndim > 1 else 1), *array.shape[2:])
        changed = numpy_step(array, kind, argument)
        if changed is None or changed.size == 0:
            continue
        array = changed
        steps.append((kind, argument))
    return shape, steps


def numpy_step(array: np.ndarray, kind: str, argument: Any) -> np.ndarray | None:
    """The same operation on numpy; None where only a copy could do it."""
    if kind == "index":
        return array[argument]
    if kind == "permute":
        return array.transpose(argument)
    if kind == "expand_dim":
        return np.expand_dims(array, argument)
    if kind == "squeeze_dim":
        return array.squeeze(argument)
    if kind == "select":
        return array[(slice(None),) * argument[0] + (argument[1],)]
    if kind == "broadcast":
        shape = list(array.shape)
        shape[argument[0]] = argument[1]
        return np.broadcast_to(array, shape)
    if kind == "flatten_dims":
        first, last = argument
        argument = (*array.shape[:first], int(np.prod(array.shape[first : last + 1])), *array.shape[last + 1 :])
    return array.reshape(argument)


def tensor_step(view: Tensor, kind: str, argument: Any) -> Tensor:
    if kind == "index":
        return view[argument]
    if kind in ("broadcast", "flatten_dims", "select"):
        return getattr(view, kind)(*argument)
    return getattr(view, kind)(argument)


@given(chains())
def test_views_are_numpys(chain: tuple[tuple[int, ...], list[tuple[str, Any]]]) -> None:
    shape, steps = chain
    view, array = tensor(*shape), np.arange(int(np.prod(shape))).reshape(shape)
    for kind, argument in steps:
        changed = numpy_step(array, kind, argument)
        assert changed is not None
        try:
            view = tensor_step(view, kind, argument)
        except ValueError:
            # Only where no strides can show it: numpy copies there too.
            assert kind in ("reshape", "flatten_dims") and not np.shares_memory(changed, array)
            return
        array = changed
        assert view.shape == array.shape
        assert (addresses(view) == array).all(), (kind, argument)


@given(st.data())
def test_index_tensors_are_numpys(data: st.DataObject) -> None:
    """t[i + 1, :, 2 * j] with i and j from arange: affine stays a pattern; // and % are enumerated."""
    rows, columns, depth = data.draw(st.tuples(*[st.integers(2, 9)] * 3))
    view, array = tensor(16, 4, 32), np.arange(16 * 4 * 32).reshape(16, 4, 32)
    shift, factor = data.draw(st.integers(0, 4)), data.draw(st.integers(1, 3))
    i, j = arange(rows)[:, None], arange(min(depth, 8))[None, :]
    ni, nj = np.arange(rows)[:, None], np.arange(min(depth, 8))[None, :]
    kind = data.draw(st.sampled_from(["affine", "divided", "modulo", "slice between", "integer between"]))
    middle: Any = columns % 4
    if kind == "affine":
        first, last, nfirst, nlast = i + shift, factor * j + i, ni + shift, factor * nj + ni
    elif kind == "divided":
        first, last, nfirst, nlast = i // 2, j * factor, ni // 2, nj * factor
    elif kind == "modulo":
        first, last, nfirst, nlast = i % 3, j + i % 2, ni % 3, nj + ni % 2
    else:
        first, last, nfirst, nlast = i, j, ni, nj
        middle = slice(1, 3) if kind == "slice between" else 2
    got, wanted = view[first, middle, last], array[nfirst, middle, nlast]
    assert got.shape == wanted.shape
    assert (addresses(got) == wanted).all()
    assert (got.offsets is None) == (kind not in ("divided", "modulo"))


@given(
    st.integers(1, 12),
    st.integers(1, 12),
    st.sampled_from(
        ["p < b", "x >= b", "p + x < b", "p < b and x < c", "p * 3 - x < b", "p == b", "not p < b", "p < b or x < c"]
    ),
    st.integers(-2, 14),
    st.integers(-2, 14),
)
def test_masks_keep_what_numpy_keeps(rows: int, columns: int, form: str, b: int, c: int) -> None:
    view, array = tensor(12, 12), np.arange(144).reshape(12, 12)
    grid = MeshGrid()[0:rows, 0:columns]
    p, x = np.mgrid[0:rows, 0:columns]
    forms = {
        "p < b": (grid.p < b, p < b),
        "x >= b": (grid.x >= b, x >= b),
        "p + x < b": (grid.p + grid.x < b, p + x < b),
        "p < b and x < c": ((grid.p < b) & (grid.x < c), (p < b) & (x < c)),
        "p * 3 - x < b": (grid.p * 3 - grid.x < b, p * 3 - x < b),
        "p == b": (grid.p == b, p == b),
        "not p < b": (~(grid.p < b), ~(p < b)),
        "p < b or x < c": ((grid.p < b) | (grid.x < c), (p < b) | (x < c)),
    }
    mask, keep = forms[form]
    part = masked(view[grid.p, grid.x], mask)
    assert sorted(addresses(part).reshape(-1)) == sorted(array[:rows, :columns][keep])


def test_on_chip_integers_keep_the_partition_dimension() -> None:
    tile = tensor(128, 4, 8, region=MemoryRegion.sbuf)
    assert tile[3].shape == (1, 4, 8) and tile[3].offset == 3 * 32
    assert tile[:, 1].shape == (128, 8)
    assert tile[:, 1, 2].shape == (128, 1)


def test_block_dimensions_lie_side_by_side_in_a_partition() -> None:
    # First generation: (blocks, par_dim(128), 16): block 2 starts 32 elements into each partition.
    tile = tensor(4, 128, 16, region=MemoryRegion.sbuf, axis=1)
    assert tile.storage.partition_elements == 64
    assert tile[2].shape == (128, 16) and tile[2].strides == (64, 1) and tile[2].offset == 32


def test_ap_addresses_the_storage_whatever_the_view() -> None:
    # Vendor's access-pattern page: an inner pattern has no effect on an outer one.
    tile = tensor(128, 256, region=MemoryRegion.sbuf)
    outer = tile.ap([[256, 128], [2, 128]]).ap([[256, 128], [1, 64]])
    assert (outer.shape, outer.strides, outer.offset) == ((128, 64), (256, 1), 0)
    sliced = tile.slice(1, 8, 24)
    assert sliced.get_pattern() == [[256, 128], [1, 16]] and sliced.offset == 8
    assert tile.ap([[512, 128], [1, 512]], dtype="bfloat16").dtype == "bfloat16"


def test_view_scales_the_last_dimension_with_the_type() -> None:
    wide = tensor(128, 64, region=MemoryRegion.sbuf)
    assert wide.view("uint8").shape == (128, 256)
    assert wide.view("int32").shape == (128, 64)
    assert tensor(128, 256, dtype="uint8").view("float32").shape == (128, 64)
    assert wide[:, 8:16].view("bfloat16").offset == 16


def test_rearrange_splits_orders_and_merges() -> None:
    view = tensor(128, 24).rearrange(("b", ("h", "w")), ("b", "w", "h"), {"h": 4})
    array = np.arange(128 * 24).reshape(128, 4, 6).transpose(0, 2, 1)
    assert view.shape == (128, 6, 4) and (addresses(view) == array).all()


def test_ds_is_a_slice_by_length() -> None:
    assert (addresses(tensor(64)[Ds(8, 16)]) == np.arange(8, 24)).all()


@pytest.mark.parametrize("use", [int, float, lambda t: [1, 2][t], np.asarray, lambda t: t.item()])
def test_a_value_is_known_on_the_device_only(use: Any) -> None:
    with pytest.raises(DeviceValueError):
        use(tensor(1))

"""Storage and Tensor: views without values. Every view operation is arithmetic on shape, strides and offset.

Strides and offsets count elements of the view's dtype, linear in the storage. An on-chip storage holds `partition_elements`
elements a partition, so a stride of that many steps to the next partition. offset and strides may be loop indices
(loops.py) and stay symbolic through every operation here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from trnprof.nki.dtypes import DType, as_dtype
from trnprof.nki.recording import Indirection, Memory
from trnprof.nki.storage import Storage
from trnprof.nki.strides import inferred, product, replaced, reshaped_strides, row_major

if TYPE_CHECKING:
    import numpy as np

    from trnprof.nki.state import _Walker


class DeviceValueError(TypeError):
    """The kernel's Python needs a value that only the device will have."""


@dataclass(frozen=True, slots=True)
class Indirect:
    """What only the device knows of a view's addresses."""

    kind: Indirection
    index: Any
    """The Tensor or register that holds the index or indices."""
    axis: int | None = None
    """GATHER: the view's dimension whose rows the indices place."""
    free: bool = False
    """Tensor indirection on chip (NeuronCore-v4): offsets along the free dimension."""
    step: Any = 0
    """Elements of the storage that one unit of the index moves by."""
    replaced_step: Any = 0
    """GATHER: the part of the view's stride along `axis` that stands for the index and that the index replaces."""
    dims: tuple[int, ...] = ()
    """GATHER: the view's dimensions along which the index tensor's own lie; (): its elements in order along `axis`."""
    inner: Indirect | None = None
    """Another indirection of the same view."""


class Ds:
    """nl.ds(start, size): a slice by its length."""

    __slots__ = ("size", "start")

    def __init__(self, start: Any, size: Any) -> None:
        self.start = start
        self.size = size


class Tensor:
    """A strided view of a storage, without values (the language's NkiTensor)."""

    __slots__ = ("dtype", "indirection", "offset", "offsets", "predicate", "shape", "storage", "strides")
    __array_priority__: ClassVar[int] = 1000
    __hash__ = object.__hash__

    def __init__(
        self,
        storage: Storage,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        offset: Any = 0,
        dtype: DType | None = None,
        *,
        indirect: Indirect | None = None,
        offsets: np.ndarray | None = None,
        predicate: bool = False,
    ) -> None:
        self.storage = storage
        self.shape = shape
        self.strides = strides
        self.offset = offset
        self.dtype = storage.dtype if dtype is None else dtype
        self.indirection = indirect
        self.offsets = offsets
        """Element addresses where no pattern gives them (masks, index arithmetic): int64, in element order."""
        self.predicate = predicate
        """The result of a comparison: its truth is not known before the run."""

    # What kernels read

    ndim = property(lambda self: len(self.shape))
    size = property(lambda self: product(self.shape))
    name = property(lambda self: self.storage.name)
    buffer = property(lambda self: self.storage.region)
    base_tensor = property(lambda self: self)
    itemsize = property(lambda self: self.dtype.itemsize)

    @property
    def on_chip(self) -> bool:
        """In SBUF or PSUM."""
        return self.storage.memory is not Memory.HBM

    @property
    def address(self) -> tuple[int, int] | None:
        """Where the kernel placed the storage."""
        return self.storage.address

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a tensor without dimensions")
        return self.shape[0]

    def __bool__(self) -> bool:
        if self.predicate:
            raise DeviceValueError("a Python condition needs the result of a comparison")
        return True

    def _no_value(self, *_: Any) -> Any:
        raise DeviceValueError(f"the kernel's Python needs the value of tensor {self.name!r}")

    __int__ = __float__ = __index__ = __complex__ = item = tolist = numpy = __array__ = _no_value

    def __iter__(self) -> Any:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return f"{self.storage.memory}:{self.name}{list(self.shape)}:{self.dtype}"

    def __nki_state__(self, walker: _Walker) -> Any:
        """For state.py: what later records could see of this view."""
        storage = self.storage
        strides = tuple(walker.number_token(stride) for stride in self.strides)
        shape = tuple(walker.number_token(size) for size in self.shape)
        place = walker.storage_token(storage.number)
        index = (
            None
            if self.indirection is None
            else (self.indirection.kind, self.indirection.axis, walker.token(self.indirection.index))
        )
        exact = None if self.offsets is None else self.offsets.tobytes()
        fresh = storage.producer is not None
        return (
            place,
            (storage.written, storage.writer, id(storage.values)),
            fresh,
            str(self.dtype),
            shape,
            strides,
            walker.number_token(self.offset),
            index,
            exact,
        )

    # Views

    def _view(
        self,
        shape: Sequence[int],
        strides: Sequence[int],
        offset: Any = None,
        dtype: DType | None = None,
        indirect: Indirect | None = None,
    ) -> Tensor:
        return Tensor(
            self.storage,
            tuple(shape),
            tuple(strides),
            self.offset if offset is None else offset,
            self.dtype if dtype is None else dtype,
            indirect=self.indirection if indirect is None else indirect,
        )

    def is_contiguous(self) -> bool:
        """Row major without gaps; on chip per partition, the partition dimension left out."""
        expected = 1
        for stride, size in list(zip(self.strides, self.shape, strict=True))[: 0 if self.on_chip else None : -1]:
            if size != 1:
                if stride != expected:
                    return False
                expected *= size
        return self.offsets is None

    def get_pattern(self) -> list[list[int]]:
        """[[stride, count], ...]."""
        return [[stride, size] for stride, size in zip(self.strides, self.shape, strict=True)]

    def is_indirect(self) -> bool:
        """Does a register or an index tensor place it?"""
        return self.indirection is not None

    def permute(self, dims: Sequence[int]) -> Tensor:
        """Dimensions in another order."""
        order = [dim % self.ndim for dim in dims]
        if sorted(order) != list(range(self.ndim)):
            raise ValueError(f"permute({tuple(dims)}) is not a permutation of {self.ndim} dimensions")
        return self._view([self.shape[d] for d in order], [self.strides[d] for d in order])

    def broadcast(self, dim: int, size: int) -> Tensor:
        """A dimension of size 1 repeated."""
        dim %= self.ndim
        if self.shape[dim] != 1:
            raise ValueError(f"broadcast: dimension {dim} has size {self.shape[dim]}, not 1")
        return self._view(replaced(self.shape, dim, int(size)), replaced(self.strides, dim, 0))

    def broadcast_to(self, shape: Sequence[int]) -> Tensor:
        """NumPy's rule: sizes of 1 stretch, missing dimensions come first."""
        wanted = tuple(int(size) for size in shape)
        missing = len(wanted) - self.ndim
        if missing < 0:
            raise ValueError(f"cannot broadcast {self.shape} to {wanted}")
        sizes, strides = (1,) * missing + self.shape, (0,) * missing + self.strides
        new = []
        for have, want, stride in zip(sizes, wanted, strides, strict=True):
            if have != want and have != 1:
                raise ValueError(f"cannot broadcast {self.shape} to {wanted}")
            new.append(stride if have == want else 0)
        return self._view(wanted, new)

    def expand_dim(self, dim: int) -> Tensor:
        """A new dimension of size 1."""
        dim = dim % (self.ndim + 1)
        shape, strides = list(self.shape), list(self.strides)
        shape.insert(dim, 1)
        strides.insert(dim, strides[dim] * self.shape[dim] if dim < self.ndim else 1)
        return self._view(shape, strides)

    def squeeze_dim(self, dim: int) -> Tensor:
        """A dimension of size 1 removed."""
        dim %= self.ndim
        if self.shape[dim] != 1:
            raise ValueError(f"squeeze_dim: dimension {dim} has size {self.shape[dim]}, not 1")
        return self._view(self.shape[:dim] + self.shape[dim + 1 :], self.strides[:dim] + self.strides[dim + 1 :])

    def reshape_dim(self, dim: int, shape: Sequence[int]) -> Tensor:
        """One dimension split."""
        dim %= self.ndim
        sizes = inferred(shape, self.shape[dim])
        inner = [stride * self.strides[dim] for stride in row_major(sizes)]
        return self._view(
            self.shape[:dim] + sizes + self.shape[dim + 1 :],
            (*self.strides[:dim], *inner, *self.strides[dim + 1 :]),
        )

    def flatten_dims(self, start_dim: int, end_dim: int) -> Tensor:
        """Dimensions start_dim..end_dim merged."""
        start, end = start_dim % self.ndim, end_dim % self.ndim
        merged = product(self.shape[start : end + 1])
        return self.reshape((*self.shape[:start], merged, *self.shape[end + 1 :]))

    def reshape(self, *shape: Any) -> Tensor:
        """Another shape of the same elements; fails where no strides give it."""
        flat = shape[0] if len(shape) == 1 and isinstance(shape[0], list | tuple) else shape
        sizes = inferred(flat, self.size)
        strides = reshaped_strides(self.shape, self.strides, sizes)
        if strides is None:
            raise ValueError(f"cannot reshape {self!r} with strides {self.strides} to {sizes} without a copy")
        return self._view(sizes, strides)

    def rearrange(self, source: Any, target: Any, fixed_sizes: dict[str, int] | None = None) -> Tensor:
        """Split, reorder and merge by names: (("b", ("h", "w")), ("b", "w", "h"), {"h": 4})."""
        sizes = dict(fixed_sizes or {})
        view = self
        names: list[str] = []
        for group in source:
            group = (group,) if isinstance(group, str) else tuple(group)
            dim = len(names)
            parts = [sizes.get(name, -1) for name in group]
            split = inferred(parts, view.shape[dim])
            sizes.update(zip(group, split, strict=True))
            view = view.reshape_dim(dim, split)
            names.extend(group)
        groups = [(group,) if isinstance(group, str) else tuple(group) for group in target]
        view = view.permute([names.index(name) for group in groups for name in group])
        return view.reshape([product([sizes[name] for name in group]) for group in groups])

    def slice(self, dim: int, start: Any, end: Any, step: Any = 1) -> Tensor:
        """[start, end) of one dimension."""
        dim %= self.ndim
        return self[(slice(None),) * dim + (slice(start, end, step),)]

    def select(self, dim: int, index: Any) -> Tensor:
        """One element of a dimension, which goes; a tensor or register as index is known on the device only."""
        dim %= self.ndim
        if not isinstance(index, int):
            view = self._view(self.shape[:dim] + self.shape[dim + 1 :], self.strides[:dim] + self.strides[dim + 1 :])
            view.indirection = Indirect(
                Indirection.DYNAMIC_START, index, step=self.strides[dim], inner=self.indirection
            )
            return view
        size = self.shape[dim]
        if not -size <= index < size:
            raise IndexError(f"index {index} is outside dimension {dim} of {self!r}")
        start = index + size if index < 0 else index
        return self._view(
            self.shape[:dim] + self.shape[dim + 1 :],
            self.strides[:dim] + self.strides[dim + 1 :],
            self.offset + start * self.strides[dim],
        )

    def vector_select(self, dim: int, vector_offset: Tensor) -> Tensor:
        """Each partition reads the row that its index names."""
        rows = vector_offset.shape[0]
        step = self.strides[dim]
        gather = Indirect(Indirection.GATHER, vector_offset, axis=dim, step=step, replaced_step=step)
        return self._view((rows, *self.shape[1:]), self.strides, indirect=gather)

    def indirect(self, index: Tensor, num_elem: int | None = None) -> Tensor:
        """Columns of each partition picked by offsets (NeuronCore-v4)."""
        count = index.size if num_elem is None else int(num_elem)
        view = self._view((self.shape[0], count), (self.strides[0], 1))
        view.indirection = Indirect(Indirection.GATHER, index, axis=1, free=True, step=1, replaced_step=1)
        return view

    def ap(
        self,
        pattern: Any,
        offset: Any = None,
        scalar_offset: Any = None,
        vector_offset: Any = None,
        indirect_dim: int = 0,
        dtype: Any = None,
        **_: Any,
    ) -> Tensor:
        """Any pattern of [step, count] on the storage, whatever the view; offset None keeps the view's."""
        kind = self.dtype if dtype is None else as_dtype(dtype)
        shape = tuple(int(count) for _, count in pattern)
        strides = tuple(int(step) for step, _ in pattern)
        view = Tensor(self.storage, shape, strides, self.offset if offset is None else offset, kind)
        if vector_offset is None and scalar_offset is None:
            return view
        # One unit of the index is one step of that dimension of the tensor that .ap was called on.
        rows = product(self.shape[int(indirect_dim) + 1 :]) if self.shape else strides[0]
        step = rows * self.dtype.itemsize // kind.itemsize
        if vector_offset is not None:
            axis = 0
            if indirect_dim and rows in strides:
                axis = strides.index(rows)
            view.indirection = Indirect(
                Indirection.GATHER, vector_offset, axis=axis, step=step, replaced_step=strides[axis]
            )
        elif not isinstance(scalar_offset, int):
            view.indirection = Indirect(Indirection.DYNAMIC_START, scalar_offset, step=step)
        else:
            view.offset = view.offset + scalar_offset * step
        return view

    def view(self, dtype: Any) -> Tensor:
        """The same bits as another type; the last dimension grows or shrinks with the size of an element."""
        kind = as_dtype(dtype)
        old, new = self.dtype.itemsize, kind.itemsize
        if old == new:
            return self._view(self.shape, self.strides, dtype=kind)
        if self.shape and self.shape[-1] != 1 and self.strides[-1] != 1:
            raise ValueError(f"view({kind}) of {self!r}: the last dimension is not contiguous")
        if new > old:
            ratio = new // old
            if self.shape[-1] % ratio:
                raise ValueError(f"view({kind}) of {self!r}: the last dimension is not a multiple of {ratio}")
            strides = [stride // ratio for stride in self.strides[:-1]] + [1]
            return self._view((*self.shape[:-1], self.shape[-1] // ratio), strides, self.offset // ratio, kind)
        ratio = old // new
        strides = [stride * ratio for stride in self.strides[:-1]] + [1]
        return self._view((*self.shape[:-1], self.shape[-1] * ratio), strides, self.offset * ratio, kind)

    reinterpret_cast = view

    def astype(self, dtype: Any) -> Tensor:
        """A copy in another type (first generation)."""
        from trnprof.nki.operations.table import call

        return call("language", "copy", self, dtype=as_dtype(dtype))

    # Subscripts: indexing.py

    def __getitem__(self, key: Any) -> Tensor:
        from trnprof.nki.indexing import index_tensor

        return index_tensor(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        from trnprof.nki.operations.assignment import assign

        assign(self[key], value)

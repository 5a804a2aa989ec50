"""One program's core while its values are computed: memories, accumulator registers, random numbers, and what it met.

Engines compute in float32 whatever the operands' types: operands are widened when they are read and results rounded to
the destination's type when they are written. `precise` off keeps float64 everywhere instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from trnprof.nki.dtypes import DType
from trnprof.nki.index_tensors import IndexTensor, Mask
from trnprof.nki.operations.table import Bound, Operation, result_tensor, tensors_in
from trnprof.nki.recording import Indirection, Memory
from trnprof.nki.registers import VirtualRegister
from trnprof.nki.tensor import DeviceValueError, Indirect, Storage, Tensor
from trnprof.nki.values import kinds
from trnprof.nki.values.cells import Cells, OutOfBoundsError
from trnprof.nki.values.limits import Limits
from trnprof.nki.values.registry import EVALUATIONS, NOT_EVALUATED, NoValuesError

if TYPE_CHECKING:
    from trnprof.nki.recorder import Recorder
    from trnprof.nki.recording import Site
    from trnprof.nki.values.reductions import LoopReduction
    from trnprof.nki.values.world import World

VECTOR, SCALAR = "vector", "scalar"


class ShapeMismatchError(ValueError):
    """Operands whose element counts do not fit each other."""

    reason = "shape-mismatch"


class Machine:
    """The values of one program."""

    def __init__(
        self, recorder: Recorder, world: World, *, precise: bool, seed: int, place: tuple[int, int] = (0, 0)
    ) -> None:
        self.recorder = recorder
        self.world = world
        self.precise = precise
        self.work = np.dtype(np.float32 if precise else np.float64)
        """What the engines compute in."""
        self.limits = Limits(recorder)
        self.registers: dict[str, np.ndarray] = {}
        """Accumulator registers of the vector and the scalar engine, shape [partitions, 1]."""
        self.generator = np.random.default_rng((seed, *recorder.program_id))
        self.rank, self.program = place
        """Which of the run's ranks, and which of the rank's programs."""
        self._receives: list[Cells] = []
        self.loop_reductions: dict[Site, LoopReduction] = {}

    def perform(self, operation: Operation, bound: Bound) -> Any:
        """Compute one operation; returns what the language returns."""
        key = (operation.module, operation.name)
        function = EVALUATIONS.get(key)
        if function is None:
            reason = NOT_EVALUATED.get(key, "nothing here computes it")
            raise NoValuesError(
                f"nki.{operation.module}.{operation.name} has no values here: {reason}; take it out, or compare on a device"
            )
        for name, value in bound.items():
            if type(value) is not Tensor and hasattr(value, "get_view") and not isinstance(value, type):
                bound[name] = value.get_view()
        return function(self, operation, bound)

    def destination(self, operation: Operation, bound: Bound) -> tuple[Tensor, Tensor | None]:
        """(where the call writes, the tile it returns or None)."""
        given = bound.get("dst")
        if given is not None:
            views = tensors_in(given)
            if not views:
                raise TypeError(f"{operation.name}: dst is no tensor but {type(given).__name__}")
            return views[0], None
        if operation.result is None:
            raise TypeError(f"{operation.name}() needs dst")
        made = result_tensor(self.recorder, operation, bound)
        return made, made

    def note(self, code: str, message: str) -> None:
        """Keep what the reader of the values must know, once a line."""
        self.recorder.note(code, message)

    # Storages

    def cells(self, storage: Storage) -> Cells:
        """The contents of a storage."""
        cells = storage.cells
        if cells is None:
            count = 1
            for size in storage.shape:
                count *= size
            cells = self.world.cells_of(self.recorder, storage, count, loose=not self.precise)
            storage.cells = cells
        if cells.pending is not None:
            receive, cells.pending = cells.pending, None
            receive()
        return cells

    def receive_later(self, tensor: Tensor, receive: Callable[[], None]) -> None:
        """Call `receive` before the tensor's storage is next used, after what it already waits for."""
        cells = tensor.storage.cells or self.cells(tensor.storage)
        earlier = cells.pending

        def both() -> None:
            if earlier is not None:
                earlier()
            receive()

        cells.pending = both
        self._receives.append(cells)

    def finish(self) -> None:
        """The program has ended: nothing that was to be received may be left."""
        for cells in self._receives:
            if cells.pending is not None:
                receive, cells.pending = cells.pending, None
                receive()

    # Reading

    def bits(self, tensor: Tensor) -> np.ndarray:
        """The elements as they are held, shape tensor.shape: a view or a copy; float64 for floats when not precise."""
        values, valid = self.gathered(tensor)
        if valid is not None:
            raise OutOfBoundsError(self._outside(tensor))
        return values

    def gathered(self, tensor: Tensor) -> tuple[np.ndarray, np.ndarray | None]:
        """(elements, None), or where indices are out of bounds (elements, bool array of the elements that are not)."""
        cells = self.cells(tensor.storage)
        dtype = tensor.dtype
        if tensor.indirection is None and tensor.offsets is None:
            offset = tensor.offset
            values = cells.load(dtype, tensor.shape, tensor.strides, offset)
            if cells.missing is not None:
                self._report_missing(
                    tensor, int(cells.missing_at(dtype, tensor.shape, tensor.strides, offset).any(-1).sum())
                )
            return values, None
        shift, gathers = self.dynamic_offset(tensor)
        if not gathers and tensor.offsets is None:
            values = cells.load(dtype, tensor.shape, tensor.strides, tensor.offset + shift)
            if cells.missing is not None:
                part = cells.missing_at(dtype, tensor.shape, tensor.strides, tensor.offset + shift)
                self._report_missing(tensor, int(part.any(-1).sum()))
            return values, None
        addresses, valid = self.addresses(tensor, cells, shift, gathers)
        values = cells.load_at(dtype, addresses)
        if cells.missing is not None:
            self._report_missing(tensor, cells.missing_count_at(dtype, addresses))
        return values, valid

    def number(self, value: Any) -> Any:
        """A tensor's elements as the engine computes with them (float32, an own copy or converted); a number as it is."""
        if type(value) is not Tensor:
            return self.work.type(self._plain(value))
        return self.widened(self.bits(value), value.dtype)

    def widened(self, bits: np.ndarray, dtype: DType) -> np.ndarray:
        """Held elements in the type that the engines compute in."""
        if dtype in kinds.PACKED:
            raise TypeError(f"{dtype} elements are for the tensor engine's mx products only; view them as their parts")
        return bits.astype(self.work, copy=False)

    def operand(self, value: Any, data: np.ndarray) -> Any:
        """A scalar, or one value a partition, to broadcast over `data` [partitions, ...]; else elements for each of it."""
        if type(value) is not Tensor:
            return self.work.type(self._plain(value))
        numbers = self.number(value)
        if numbers.size == 1:
            return numbers.reshape(())
        if data.ndim and numbers.size == data.shape[0]:
            return numbers.reshape(data.shape[0], *([1] * (data.ndim - 1)))
        return self.fitted(numbers, data.shape)

    def fitted(self, values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """`values` in `shape`: the same element count in element order, or NumPy's broadcast."""
        if values.shape == shape:
            return values
        size = 1
        for extent in shape:
            size *= extent
        if values.size == size:
            return values.reshape(shape)
        try:
            return np.broadcast_to(values, shape)
        except ValueError:
            if values.ndim != len(shape) and shape and values.size * shape[-1] == size:
                return np.broadcast_to(values.reshape(*shape[:-1], 1), shape)
            raise ShapeMismatchError(
                f"operands of shapes {values.shape} and {shape} do not fit: {values.size} elements against {size}; cut "
                "the larger, or make the smaller one column wide to use it for a whole row"
            ) from None

    def integer(self, value: Any) -> int:
        """The integer that an index, a register or a tensor of one element holds now."""
        plain = self._plain(value)
        if isinstance(plain, Tensor):
            bits = self.bits(plain)
            if bits.size != 1:
                raise ShapeMismatchError(f"{plain!r} stands where one value is needed")
            return int(bits.reshape(-1)[0])
        return int(plain)

    @staticmethod
    def _plain(value: Any) -> Any:
        if isinstance(value, VirtualRegister):
            if value.value is None:
                raise DeviceValueError("a register that nothing has loaded is read")
            return value.value
        return value

    # Writing

    def write(self, tensor: Tensor, values: Any, mask: Any = None) -> None:
        """Round `values` (in the engine's type; they broadcast to the tensor) to the tensor's type and write them.

        mask: a Mask or bool array; elements where it is false stay as they are.
        """
        array = np.asarray(values)
        dtype = tensor.dtype
        if array.dtype.kind == "f" or array.dtype.kind == "b":
            if kinds.is_integer(dtype) or dtype == "tfloat32":
                array = kinds.rounded(array.astype(self.work, copy=False), dtype)
        elif kinds.is_real_float(dtype):
            array = array.astype(self.work)
        self.put(tensor, array, mask)

    def deliver(self, dst: Tensor, product: np.ndarray, accumulate: bool | None, mask: Any = None) -> None:
        """A product to PSUM: over what is there, onto it, or (None) onto what earlier instructions have written."""
        product = self.fitted(product, dst.shape)
        if accumulate is None:
            accumulate, product = self._onto_written(dst, product)
        if accumulate:
            product = self.number(dst) + product
        self.write(dst, product, mask)

    def _onto_written(self, dst: Tensor, product: np.ndarray) -> tuple[bool, np.ndarray]:
        """(is what remains an addition?, the product with what is already added where only some elements were written)."""
        cells = self.cells(dst.storage)
        if cells.is_untouched:
            return False, product
        if cells.missing is None or dst.offsets is not None or dst.indirection is not None:
            return True, product
        missing = np.asarray(cells.missing_at(dst.dtype, dst.shape, dst.strides, dst.offset).any(-1))
        if not missing.any():
            return True, product
        if not missing.all():
            before = self.widened(cells.load(dst.dtype, dst.shape, dst.strides, dst.offset), dst.dtype)
            product = np.where(missing, product, before + product)
        return False, product

    def add_to(self, target: Tensor, value: Any) -> None:
        """target += value; PSUM that nothing has written takes the value as it is."""
        numbers = self.fitted(self.number(value), target.shape) if isinstance(value, Tensor) else self.number(value)
        if target.storage.memory is Memory.PSUM:
            self.deliver(target, np.asarray(numbers), None)
        else:
            self.write(target, self.number(target) + numbers)

    def put(self, tensor: Tensor, values: np.ndarray, mask: Any = None, valid: np.ndarray | None = None) -> None:
        """Write elements as they are held; NumPy converts floats to the tensor's type, rounding to nearest even.

        valid: bool array of the tensor's shape: elements that a source out of bounds leaves as they are.
        """
        cells = self.cells(tensor.storage)
        if not self.precise and kinds.is_real_float(tensor.dtype) and tensor.dtype != cells.dtype:
            values = kinds.rounded(np.asarray(values), tensor.dtype)
        where = None if mask is None else self.where(mask, tensor.shape)
        if valid is not None:
            where = valid if where is None else where & valid
        if values.shape != tensor.shape:
            values = self.fitted(values, tensor.shape)
        dtype = tensor.dtype
        if tensor.indirection is None and tensor.offsets is None:
            cells.store(dtype, tensor.shape, tensor.strides, tensor.offset, values, where)
            return
        shift, gathers = self.dynamic_offset(tensor)
        if not gathers and tensor.offsets is None:
            cells.store(dtype, tensor.shape, tensor.strides, tensor.offset + shift, values, where)
            return
        addresses, inside = self.addresses(tensor, cells, shift, gathers)
        if inside is not None:
            where = inside if where is None else where & inside
        if where is not None:
            values, addresses = values[where], addresses[where]
        cells.store_at(dtype, addresses, values)

    def where(self, mask: Any, shape: tuple[int, ...]) -> np.ndarray | None:
        """A mask as booleans over `shape`; None: everywhere."""
        if mask is None or mask is True:
            return None
        values = mask.values() if isinstance(mask, Mask) else np.asarray(mask, bool)
        if values.ndim > len(shape):
            values = values.reshape(values.shape[-len(shape) :]) if values.size else values
        return np.broadcast_to(values, shape)

    # Addresses that only a run knows

    def dynamic_offset(self, tensor: Tensor) -> tuple[int, list[Indirect]]:
        """(elements that registers and scalars in memory add to the offset, the gathers among the indirections)."""
        shift, gathers = 0, []
        indirect = tensor.indirection
        while indirect is not None:
            if indirect.kind is Indirection.GATHER:
                gathers.append(indirect)
            else:
                shift += indirect.step * self.integer(indirect.index)
            indirect = indirect.inner
        return shift, gathers

    def addresses(
        self, tensor: Tensor, cells: Cells, shift: int, gathers: list[Indirect]
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """(address of every element, shape tensor.shape; None or which of them lie inside the storage; others are 0)."""
        if tensor.offsets is not None:
            base = np.asarray(tensor.offsets).reshape(tensor.shape) + shift
            for gather in gathers:
                if gather.axis is None or gather.axis >= len(tensor.shape) or tensor.ndim == 1:
                    raise NoValuesError("a mask that is no box together with an index vector has no values here")
                line = np.arange(tensor.shape[gather.axis]) * gather.replaced_step
                base = base - line.reshape([-1 if axis == gather.axis else 1 for axis in range(tensor.ndim)])
        else:
            strides = list(tensor.strides)
            for gather in gathers:
                if gather.axis is not None:
                    strides[gather.axis] -= gather.replaced_step
            base = IndexTensor(tensor.shape, tuple(strides), tensor.offset + shift).values()
        for gather in gathers:
            base = base + self._index(gather, tensor) * gather.step
        total = cells.count * cells.dtype.itemsize // tensor.dtype.itemsize
        if base.size and (base.min() < 0 or base.max() >= total):
            inside = (base >= 0) & (base < total)
            return np.where(inside, base, 0), inside
        return base, None

    def _index(self, gather: Indirect, tensor: Tensor) -> np.ndarray:
        """The indices of a gather, broadcast over the view's dimensions that they place."""
        index = self.bits(gather.index).astype(np.int64)
        shape = tensor.shape
        if gather.free:
            return self._snaked(index, shape)
        assert gather.axis is not None
        if gather.dims:  # an index tile of several dimensions, each along one of the view's
            aligned = [1] * len(shape)
            for dim, size in zip(gather.dims, index.shape, strict=True):
                aligned[dim] = size
            return index.reshape(aligned)
        rows = index.reshape(-1)
        count = shape[gather.axis]
        if rows.size < count:
            raise ShapeMismatchError(f"{rows.size} indices place {count} rows of {tensor!r}")
        # Indices of several columns count column by column (indices.T.flatten()).
        if index.ndim >= 2 and index.shape[0] > 1 and rows.size > index.shape[0]:
            rows = index.reshape(index.shape[0], -1).T.reshape(-1)
        return rows[:count].reshape([-1 if axis == gather.axis else 1 for axis in range(len(shape))])

    @staticmethod
    def _snaked(index: np.ndarray, shape: tuple[int, ...], group: int = 16) -> np.ndarray:
        """Tensor indirection: offset i of a group of partitions lies at index[i % 16, i // 16] of that group."""
        partitions, count = shape[0], shape[1]
        flat = index.reshape(index.shape[0], -1)
        result = np.empty((partitions, count), np.int64)
        for first in range(0, partitions, group):
            part = flat[first : first + group]
            result[first : first + group] = part.T.reshape(-1)[:count]
        return result

    # What was met

    def _report_missing(self, tensor: Tensor, count: int) -> None:
        if count:
            self.note(
                "unwritten-read",
                f"{count:,} of {tensor.size:,} elements read of {tensor.name!r} were never written (they read as "
                f"{'0' if self.world.zeroed else 'NaN, integers as 0x55...'})",
            )

    def _outside(self, tensor: Tensor) -> str:
        _, gathers = self.dynamic_offset(tensor)
        for gather in gathers:
            index = self.bits(gather.index).astype(np.int64)
            return (
                f"an index of {gather.index.name!r} (values {int(index.min())}..{int(index.max())}, times {gather.step}) is "
                f"outside {tensor.name!r} of shape {tensor.storage.shape}; clamp the indices, or give "
                "oob_mode=nisa.oob_mode.skip to the DMA to leave such rows as they are"
            )
        return f"an address of {tensor!r} is outside its storage; check the offset that is computed on the device"

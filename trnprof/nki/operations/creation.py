"""Tensors come into being: nl.ndarray and its like, constants, and the first generation's placed allocations."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from trnprof.nki.dtypes import as_dtype
from trnprof.nki.objects import MemoryRegion, as_region
from trnprof.nki.operations.table import Bound, Operation, compute, define, new_tensor, unmodelled
from trnprof.nki.recorder import Recorder, source_line
from trnprof.nki.recording import Memory, Site
from trnprof.nki.tensor import Tensor


class ParDim(int):
    """nl.par_dim(n): the size of the dimension that runs over partitions."""

    __slots__ = ()


class Placement:
    """What nki.compiler's allocators return: a memory, and where in it a tensor goes (first generation)."""

    def __init__(
        self,
        region: MemoryRegion,
        *,
        base_addr: int = 0,
        base_partition: int = 0,
        num_par_tiles: Any = (),
        num_free_tiles: Any = (),
        place: Callable[..., tuple[int, int]] | None = None,
    ) -> None:
        self.region = region
        self.base_addr = base_addr
        self.base_partition = base_partition
        self.num_par_tiles = num_par_tiles
        self.num_free_tiles = num_free_tiles
        self.place = place

    def address(self, tile: tuple[int, ...], itemsize: int, blocks: tuple[int, ...]) -> tuple[tuple[int, int], int]:
        """((partition, byte), bytes of a partition) of a tensor of `blocks` tiles."""
        tile_bytes = itemsize * prod(tile[1:])
        if self.place is not None:
            last = tuple(size - 1 for size in blocks)
            first = self.place((0,) * len(blocks), tile, itemsize)
            end = self.place(last, tile, itemsize)
            return (int(first[0]), int(first[1])), int(end[1]) - int(first[1]) + tile_bytes
        tiles = self.num_free_tiles if isinstance(self.num_free_tiles, list | tuple) else (self.num_free_tiles,)
        count = min(prod(int(size) for size in tiles), prod(blocks))  # without block dimensions there is one tile
        return (int(self.base_partition), int(self.base_addr)), max(count, 1) * tile_bytes


class Allocator:
    """nki.compiler.sbuf and nki.compiler.psum: alloc(function), mod_alloc(...), auto_alloc()."""

    def __init__(self, region: MemoryRegion) -> None:
        self.region = region

    def alloc(self, place: Any) -> Placement:
        """`place`(block index, tile shape, itemsize) gives (partition, byte)."""
        return Placement(self.region, place=place)

    def mod_alloc(
        self, *, base_addr: Any = 0, base_bank: Any = 0, base_partition: Any = 0, num_par_tiles: Any = (), **more: Any
    ) -> Placement:
        """Tiles at base_addr, base_addr + one tile, ..., modulo num_free_tiles (num_bank_tiles in PSUM)."""
        tiles = more.get("num_free_tiles", more.get("num_bank_tiles", ()))
        return Placement(
            self.region,
            base_addr=int(base_addr) + int(base_bank) * 2048,
            base_partition=int(base_partition),
            num_par_tiles=num_par_tiles,
            num_free_tiles=tiles,
        )

    def auto_alloc(self) -> Placement:
        """The compiler places it."""
        return Placement(self.region, place=None)


_ASSIGNED = re.compile(r"^\s*([A-Za-z_][\w.\[\]]*)\s*(?::[^=]+)?=(?!=)")


def variable_name(site: Site) -> str:
    """The variable that the call's line assigns to, '' where the line does not say."""
    match = _ASSIGNED.match(source_line(site.file, site.line))
    return match.group(1) if match else ""


def _region(bound: Bound, default: MemoryRegion = MemoryRegion.sbuf) -> tuple[MemoryRegion, Any]:
    buffer = bound.get("buffer")
    return (default, None) if buffer is None else as_region(buffer)


def allocate(recorder: Recorder, bound: Bound, shape: Any, dtype: Any) -> Tensor:
    """A storage of the kernel's own."""
    region, placement = _region(bound)
    sizes = tuple(shape) if isinstance(shape, list | tuple) else (shape,)
    on_chip = region.memory is not Memory.HBM
    axis = next((position for position, size in enumerate(sizes) if type(size) is ParDim), 0) if on_chip else 0
    plain = tuple(int(size) for size in sizes)
    if on_chip and not plain:
        plain = (1, 1)
    address = bound.get("address")
    reserved = None
    if isinstance(placement, Placement) and (placement.place or placement.num_free_tiles or placement.base_addr):
        address, reserved = placement.address(plain[axis:], as_dtype(dtype).itemsize, plain[:axis])
    if address is not None:
        address = (int(address[0]), int(address[1]))
    name = bound.get("name") or variable_name(recorder.site()) or region.memory.value
    tensor = new_tensor(recorder, plain, dtype, region, name=str(name), partition_axis=axis, address=address)
    tensor.storage.reserved_bytes = reserved
    if on_chip and plain and plain[axis] > 128:
        recorder.note("partition-limit", f"{name} has {plain[axis]} partitions; the memory has 128")
    return tensor


def _ndarray(recorder: Recorder, operation: Operation, bound: Bound) -> Tensor:
    return allocate(recorder, bound, bound["shape"], bound.get("dtype") or "float32")


def _filled(recorder: Recorder, operation: Operation, bound: Bound) -> Tensor:
    """Zeros and constants: a memset in SBUF; in PSUM zeros are the first product's overwrite, no instruction."""
    tensor = allocate(recorder, bound, bound["shape"], bound.get("dtype") or "float32")
    return _fill(recorder, operation, tensor, bound.get("fill_value", 1 if operation.name == "ones" else 0))


def _fill(recorder: Recorder, operation: Operation, tensor: Tensor, value: Any) -> Tensor:
    memory = tensor.storage.memory
    if memory is Memory.HBM:
        unmodelled("language", operation.name, (tensor,), {"dst": tensor}, "fills HBM: how is the compiler's choice")
    elif memory is Memory.SBUF or value != 0:
        compute(recorder, operation, {"dst": tensor, "value": value})
    return tensor


def _like(recorder: Recorder, operation: Operation, bound: Bound) -> Tensor:
    x = bound["x"]
    given = {**bound, "buffer": bound.get("buffer") or x.buffer}
    tensor = allocate(recorder, given, x.shape, bound.get("dtype") or x.dtype)
    return tensor if operation.name == "empty_like" else _fill(recorder, operation, tensor, 0)


def _random(recorder: Recorder, operation: Operation, bound: Bound) -> Tensor:
    tensor = allocate(recorder, bound, bound["shape"], bound.get("dtype") or "float32")
    compute(recorder, operation, {"dst": tensor})
    return tensor


def _constant(recorder: Recorder, operation: Operation, bound: Bound) -> Tensor:
    """Data of the compiled file, in HBM: loading it is the kernel's own DMA."""
    data = bound["constant"]
    if isinstance(data, str):
        data = np.load(data, mmap_mode="r", allow_pickle=False)
    dtype = bound.get("dtype") or data.dtype
    return new_tensor(recorder, data.shape, dtype, MemoryRegion.shared_hbm, name="constant", kind="constant")


def _identity(recorder: Recorder, operation: Operation, bound: Bound) -> Tensor:
    """An identity matrix in SBUF: a constant in HBM and one DMA that brings it in."""
    n, dtype = int(bound["n"]), as_dtype(bound.get("dtype") or "uint8")
    source = new_tensor(recorder, (n, n), dtype, MemoryRegion.shared_hbm, name=f"identity_{dtype}", kind="constant")
    target = bound.get("dst")
    if target is None:
        target = new_tensor(recorder, (n, n), dtype, name="identity", kind="tensor")
    from trnprof.nki.operations.table import TABLE, perform

    perform(TABLE["isa", "dma_copy"], 2, (), {"dst": target, "src": source})
    return target


define("language", "ndarray", "shape, dtype=, buffer=, name=, address=, init_value=", run=_ndarray)
define("language", "empty", "shape, dtype=, buffer=, name=", run=_ndarray)
define("language", "zeros", "shape, dtype=, buffer=, name=", run=_filled, writes="dst", engines="vector gpsimd")
define("language", "ones", "shape, dtype=, buffer=, name=", run=_filled, writes="dst", engines="vector gpsimd")
define(
    "language", "full", "shape, fill_value, dtype=, buffer=, name=", run=_filled, writes="dst", engines="vector gpsimd"
)
define("language", "zeros_like", "x, dtype=, buffer=, name=", run=_like, writes="dst", engines="vector gpsimd")
define("language", "empty_like", "x, dtype=, buffer=, name=", run=_like)
define("language", "rand", "shape, dtype=, buffer=, name=", run=_random, writes="dst", engines="vector gpsimd")
define("language", "random_seed", "seed, mask=", reads="seed", engines="vector")
define("language", "shared_constant", "constant, dtype=", run=_constant)
define("language", "shared_identity_matrix", "n, dtype=, dst=", run=_identity)

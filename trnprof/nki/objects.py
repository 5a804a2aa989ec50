"""The small things a kernel names: memories, enums, tile sizes, registers, NKIObject."""

from __future__ import annotations

import dataclasses
import inspect
from enum import Enum
from typing import Any, ClassVar

from trnprof.nki.recording import Memory


class MemoryRegion(Enum):
    """What `buffer=` takes. Compares equal to its name too: kernels write buffer="sbuf" as well."""

    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"
    hbm = "hbm"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, MemoryRegion):
            return self is other
        return isinstance(other, str) and other == self.value

    def __hash__(self) -> int:
        return hash(self.value)

    @property
    def memory(self) -> Memory:
        """HBM, SBUF or PSUM."""
        return Memory.HBM if "hbm" in self.value else Memory(self.value)


def as_region(buffer: Any) -> tuple[MemoryRegion, Any]:
    """(region, placement): `buffer` is a region, its name, None (SBUF), or what an allocator function returned."""
    if isinstance(buffer, MemoryRegion):
        return buffer, None
    if buffer is None:
        return MemoryRegion.sbuf, None
    if isinstance(buffer, str):
        return MemoryRegion(buffer), None
    region = getattr(buffer, "region", None)
    if isinstance(region, MemoryRegion):
        return region, buffer
    raise TypeError(f"{buffer!r} is not a memory: use nl.sbuf, nl.psum, nl.hbm, nl.shared_hbm or nl.private_hbm")


class _Constant(Enum):
    """An enum whose members compare with their integer or name too: older kernels write dge_mode=3."""

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Enum):
            return self.__class__.__name__ == other.__class__.__name__ and self.value == other.value
        return self.value == other

    def __hash__(self) -> int:
        return hash((self.__class__.__name__, self.name))


class engine(_Constant):
    """The engines of a core."""

    unknown = 0
    tensor = 1
    scalar = 2
    gpsimd = 3
    dma = 4
    vector = 5
    sync = 6
    activation = 2
    pool = 3


class reduce_cmd(_Constant):
    """What an instruction does with its engine's accumulator registers."""

    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4


class dge_mode(_Constant):
    """Who makes a DMA's descriptors."""

    unknown = 0
    swdge = 1
    hwdge = 2
    none = 3


class oob_mode(_Constant):
    """What an out-of-bounds dynamic address does."""

    error = 0
    skip = 1


class matmul_perf_mode(_Constant):
    """Double-rate FP8 modes of the tensor engine."""

    none = "none"
    double_row = "double_row"
    double_column = "double_column"
    double_pixel = "double_pixel"
    double_row_gen3 = "double_row_gen3"
    double_row_swi = "double_row_swi"


class nc_version(_Constant):
    """Generations of the NeuronCore; ordered."""

    gen1 = 1
    gen2 = 2
    gen3 = 3
    gen4 = 4

    def __lt__(self, other: Any) -> bool:
        return int(self.value) < int(getattr(other, "value", other))

    def __le__(self, other: Any) -> bool:
        return int(self.value) <= int(getattr(other, "value", other))

    def __gt__(self, other: Any) -> bool:
        return int(self.value) > int(getattr(other, "value", other))

    def __ge__(self, other: Any) -> bool:
        return int(self.value) >= int(getattr(other, "value", other))


class dma_engine(_Constant):
    """Which DMA engines carry a sendrecv."""

    dma = 1
    gpsimd_dma = 2


NC_VERSION = {"trn1": nc_version.gen2, "trn2": nc_version.gen3, "trn3": nc_version.gen4}
"""Target to generation."""

SBUF_BYTES_PER_PARTITION = {"trn1": 192 * 1024, "trn2": 224 * 1024, "trn3": 256 * 1024}
"""SBUF of one partition (24, 28 and 32 MiB over 128 partitions)."""
SBUF_RESERVED_BYTES = 16 * 1024 + 8
"""What the compiler keeps of a partition, after the limits that the vendor's own kernels state (224 KiB - 16 KiB - 8)."""
PSUM_BYTES_PER_PARTITION = 16 * 1024
"""PSUM of one partition: 8 banks of 2 KiB, all generations."""
PSUM_BANK_BYTES = 2048
PARTITIONS = 128


class TileSize:
    """nl.tile_size: limits of one tile on the traced target."""

    pmax = PARTITIONS
    psum_fmax = PSUM_BANK_BYTES // 4
    psum_bank_fmax = PSUM_BANK_BYTES // 4
    psum_bank_fmax_bytes = PSUM_BANK_BYTES
    psum_num_banks = PSUM_BYTES_PER_PARTITION // PSUM_BANK_BYTES
    gemm_stationary_fmax = 128
    gemm_moving_fmax = 512
    bn_stats_fmax = 512
    psum_min_align = 4
    sbuf_min_align = 1

    def __init__(self, target: str) -> None:
        """`target` is trn1, trn2 or trn3."""
        self.total_available_sbuf_size = SBUF_BYTES_PER_PARTITION[target] - SBUF_RESERVED_BYTES
        self.sbuf_fmax_bytes = self.total_available_sbuf_size
        self.sbuf_fmax = self.sbuf_fmax_bytes // 4
        self.sbuf_size_bytes = SBUF_BYTES_PER_PARTITION[target] * PARTITIONS


_MISSING = object()


class NKIObject:
    """Base of a kernel's own classes. NKI builds their constructor: every annotated field is an argument; a field that
    is not given and has no default is None; __post_init__ runs last.

    A class that writes its own __init__ keeps it. Equality is by fields.
    """

    __nki_fields__: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        names = list(cls.__nki_fields__)
        for name, annotation in inspect.get_annotations(cls).items():
            if "ClassVar" not in str(annotation) and name not in names:
                names.append(name)
        cls.__nki_fields__ = tuple(names)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        fields = self.__nki_fields__
        if len(args) > len(fields):
            raise TypeError(f"{type(self).__name__} takes {len(fields)} fields, got {len(args)} values")
        given = dict(zip(fields, args, strict=False))
        given.update(kwargs)
        for name in fields:
            value = given.pop(name, _MISSING)
            object.__setattr__(self, name, _default(type(self), name) if value is _MISSING else value)
        for name, value in given.items():
            object.__setattr__(self, name, value)
        post_init = getattr(self, "__post_init__", None)
        if post_init is not None:
            post_init()

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return type(self) is type(other) and bool(self.__dict__ == other.__dict__)

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={getattr(self, name, None)!r}" for name in self.__nki_fields__)
        return f"{type(self).__name__}({inside})"


def _default(cls: type, name: str) -> Any:
    """The default of a field of an NKIObject: a plain value, a dataclasses.field, or None."""
    value = getattr(cls, "__dataclass_fields__", {}).get(name) or getattr(cls, name, None)
    if isinstance(value, dataclasses.Field):
        if value.default is not dataclasses.MISSING:
            return value.default
        if value.default_factory is not dataclasses.MISSING:
            return value.default_factory()
        return None
    if isinstance(value, property) or (callable(value) and not isinstance(value, type)):
        return value if not isinstance(value, property) else None
    if isinstance(value, list | dict | set):
        return type(value)(value)
    return value

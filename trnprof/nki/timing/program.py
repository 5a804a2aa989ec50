"""MachineProgram: the instructions of a kernel's programs with what each must wait for; plain arrays, no tensors."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from trnprof.nki.timing.work import Work

Ints = npt.NDArray[np.int64]

VIRTUAL, COMPUTE, DMA, BARRIER, EXCHANGE, COLLECTIVE = range(6)
"""Kinds of operations. VIRTUAL takes no time on no engine: all of its dependencies have ended."""

ORDER, RESULT = 0, 1
"""Kinds of dependencies: after the other was issued on the same engine; after the other's result is there."""

HWDGE, SWDGE, STATIC = range(3)
"""Who makes a DMA's descriptors."""

MODES = {"hwdge": HWDGE, "swdge": SWDGE, "none": STATIC}

DMA_ENGINE_COUNT = 16


@dataclass(frozen=True, eq=False)
class DmaTable:
    """One row a DMA instruction."""

    mode: Ints
    """HWDGE, SWDGE or STATIC; shape [n]."""
    is_assumed: npt.NDArray[np.bool_]
    """The kernel leaves the mode to the compiler; `mode` is what the public captures show for such a copy. Shape [n]."""
    packets: Ints
    """Data packets on each of the 16 DMA engines; shape [n, 16]."""
    engine_bytes: Ints
    """Bytes on each engine; shape [n, 16]."""
    hbm_bytes: Ints
    """Bytes of HBM read and written; shape [n]."""
    slowness: npt.NDArray[np.float64]
    """Factor on the packets' time: casts, transposes, reductions; shape [n]."""
    semaphore_packets: Ints
    """4-byte packets at the end; shape [n]."""
    is_dynamic: npt.NDArray[np.bool_]
    """Its address is computed on the device, by the engine that triggers it. Shape [n]."""


@dataclass(frozen=True)
class RepeatedLoop:
    """A loop of which not every iteration was recorded."""

    source: str
    """file:line of the loop."""
    recorded_count: int
    total_count: int


@dataclass(frozen=True)
class HbmTensor:
    """A tensor that the kernel is given or returns."""

    name: str
    kind: str
    """input or output."""
    size_bytes: int
    read_bytes: int
    """Moved from it by the kernel's DMAs, every time counted."""
    written_bytes: int


@dataclass(frozen=True)
class KernelSpan:
    """One program: a kernel on a core, or one of a grid."""

    name: str
    core: int
    first: int
    end: int
    """Operations [first, end)."""
    stands_for: int = 1


@dataclass(frozen=True, eq=False)
class MachineProgram:
    """All operations of all programs, in program order; a core's programs follow each other."""

    generation: str
    core_count: int
    kind: npt.NDArray[np.int8]
    """VIRTUAL ... COLLECTIVE; shape [n]."""
    core: npt.NDArray[np.int8]
    engine: npt.NDArray[np.int8]
    """Index into trnprof.profile.ENGINES; -1: none. Of a DMA: the engine that triggers it."""
    work: npt.NDArray[np.int32]
    """Index into `works`."""
    works: tuple[Work, ...]
    opcode: npt.NDArray[np.int16]
    opcodes: tuple[str, ...]
    source: npt.NDArray[np.int32]
    """Index into `sources`."""
    sources: tuple[str, ...]
    """Call sites: file:line, innermost first, comma separated."""
    functions: tuple[str, ...]
    """The functions of each source's frames, innermost first, comma separated."""
    dma: npt.NDArray[np.int32]
    """Row in `dmas`; -1: no DMA."""
    dmas: DmaTable
    hbm_read_bytes: Ints
    hbm_write_bytes: Ints
    sbuf_bytes: Ints
    """SBUF bytes read and written by a DMA; of a collective: its payload."""
    macs: Ints
    is_transpose: npt.NDArray[np.bool_]
    table: npt.NDArray[np.int16]
    """Activation table that it needs, an index into `tables`; -1: none."""
    tables: tuple[str, ...]
    times: Ints
    """How often it runs: more than once where it stands for iterations that were not recorded."""
    nest: npt.NDArray[np.int32]
    """Which outermost loop nest of its program it stands in, counted in program order; what stands between two counts too."""
    partner: npt.NDArray[np.int32]
    """The operation of the other core that a barrier or an exchange meets; -1: none."""
    dependency_first: Ints
    """Shape [n + 1]: operation i waits for dependencies [first[i], first[i + 1])."""
    dependency: npt.NDArray[np.int32]
    dependency_kind: npt.NDArray[np.int8]
    kernels: tuple[KernelSpan, ...]
    loops: tuple[RepeatedLoop, ...] = ()
    tensors: tuple[HbmTensor, ...] = ()
    """Of all programs; one that several programs share stands once, its traffic added."""
    unknown: dict[str, int] = field(default_factory=dict)
    """Operations whose cost no source gives, by name, with how often they run."""
    notes: tuple[str, ...] = ()
    """What the reader of the times must know."""
    written_count: int = 0
    """Operations as written, before copies and DMAs were joined, repeated ones counted each time."""

    def __len__(self) -> int:
        return len(self.kind)

"""What running a kernel recorded: every DMA, compute, synchronisation and unknown call, in program order, per program.

A record stands for one call in the source, executed `execution_count` times: a repeated loop body is stored once, with
the loops it stands for (`loops`, outermost first) and how its addresses move per iteration (`Access.loop_steps`).

Addresses are in elements of the access's own dtype, linear in the storage. On-chip storages are [partitions][free]:
`partition_elements` is the distance between neighbouring partitions, so address // partition_elements is the partition
and address % partition_elements the place in it. HBM storages have partition_elements 0 and are flat.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Memory(StrEnum):
    """Where a storage lives."""

    HBM = "hbm"
    SBUF = "sbuf"
    PSUM = "psum"
    REGISTER = "register"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A kernel argument that is a tensor in HBM: what trace() takes wherever the kernel expects a tensor."""

    shape: tuple[int, ...]
    dtype: str
    """An NKI dtype name: float32, bfloat16, float8_e4m3, int32, ... (trnprof.nki.dtypes)."""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of user code on the call stack."""

    file: str
    """As the loader compiled it (code.co_filename)."""
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class Site:
    """Where a call stands in the user's code."""

    frames: tuple[Frame, ...]
    """Innermost first, without trnprof's own frames; at least one."""

    @property
    def file(self) -> str:
        """File of the innermost user line."""
        return self.frames[0].file

    @property
    def line(self) -> int:
        """Line of the innermost user line."""
        return self.frames[0].line

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Loop:
    """One run of a loop statement."""

    id: int
    """Distinct for each run of a loop within a program, so that two records can tell whether they share an iteration."""
    kind: str
    """affine_range, sequential_range, static_range, range, dynamic_range, fori_loop, while."""
    site: Site
    trip_count: int | None
    """How often the body runs; None: known only on the device (a register), see `bound`."""
    bound: str = ""
    """For a loop of unknown length: the source text of its bound (`n_reg`), the NAME of trace(trips={NAME: N})."""


@dataclass(frozen=True, slots=True)
class LoopSpan:
    """The iterations of one loop that one record stands for: first, first+1, ..., first+count-1 (0-based)."""

    loop: Loop
    first: int
    count: int | None
    """None: as many as the loop turns out to run on the device; the record then gives the cost of one iteration."""


class Indirection(StrEnum):
    """How much of an access's addresses is known before the run."""

    NONE = "none"
    """All of it."""
    DYNAMIC_START = "dynamic-start"
    """The geometry; the start comes from a register or a scalar in SBUF."""
    GATHER = "gather"
    """The geometry of one row; each row's place comes from an index vector."""


@dataclass(frozen=True, slots=True)
class Access:
    """The elements of one storage that one operand touches.

    Element (i0, i1, ...) has the address offset + sum(step_k * i_k). A step of 0 reads the same element again (broadcast).
    """

    storage: int
    """Number of the storage in its program: Recording.programs[p].allocations[storage]."""
    name: str
    """The tensor's name: the parameter's, the one given at allocation, or that of the variable's line."""
    memory: Memory
    dtype: str
    itemsize: int
    """Bytes of one element of `dtype`."""
    shape: tuple[int, ...]
    offset: int
    """At the first iteration that the record stands for; where `indirection` is not none, without the unknown part."""
    pattern: tuple[tuple[int, int], ...]
    """(step, count) per dimension, outermost first, steps in elements; the counts are `shape`."""
    partition_elements: int = 0
    """Elements from one partition to the next; 0 in HBM."""
    loop_steps: tuple[int, ...] = ()
    """For each of the record's `loops`: elements that the offset moves per iteration."""
    indirection: Indirection = Indirection.NONE
    indirect_axis: int | None = None
    """GATHER: the dimension of `pattern` whose rows are placed by indices."""
    offsets: Any = None
    """Where masks or index tensors leave no pattern: int64 array of the touched elements' addresses, shape [n], sorted
    by element order; `pattern` then only bounds it. None: the pattern is exact."""

    @property
    def element_count(self) -> int:
        """Elements moved by one execution, broadcasts counted each time."""
        if self.offsets is not None:
            return len(self.offsets)
        count = 1
        for _, size in self.pattern:
            count *= size
        return count

    @property
    def byte_count(self) -> int:
        """Bytes of one execution in this side's dtype."""
        return self.element_count * self.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What every record has. `loops` is outermost first and holds every loop around the call."""

    sequence: int
    """Program order within the program."""
    op: str
    """The name as written, without its module: dma_copy, load, nc_matmul, add, all_reduce, ..."""
    module: str
    """isa, language, collectives, compiler: where the name lives."""
    site: Site
    loops: tuple[LoopSpan, ...] = ()
    name: str | None = None
    """The `name=` the kernel gave the instruction."""

    @property
    def execution_count(self) -> int:
        """How often it runs per program; loops of unknown length count once (see `unknown_trips`)."""
        count = 1
        for span in self.loops:
            if span.count is not None:
                count *= span.count
        return count

    @property
    def unknown_trips(self) -> tuple[str, ...]:
        """Bounds of the loops of unknown length around it: the true count is execution_count times each of them."""
        return tuple(span.loop.bound for span in self.loops if span.count is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DmaRecord(Event):
    """One DMA instruction as written."""

    reads: tuple[Access, ...]
    """One source, or up to 16 for dma_compute. A read-modify-write destination is a read too."""
    write: Access
    dge_mode: str = "unknown"
    """As written: none, swdge, hwdge, or unknown (the compiler decides)."""
    assumed_mode: str = "unknown"
    """What counting uses: `dge_mode`, or where that is unknown what the public captures show (recorder.assumed_mode)."""
    engine: str = "unknown"
    """The engine that triggers it, where the kernel says so: sync, scalar, gpsimd, ..."""
    transpose: bool = False
    """Elements are placed one by one (dma_transpose, load_transpose2d)."""
    reduce_op: str | None = None
    """The operation done on the way (dma_compute); None: a copy."""
    cast_before: bool = False
    """The tile that is stored was written by a plain copy: the compiler lets that copy cast, and the DMA does not (seen in
    both public captures with such a store)."""
    implicit: str | None = None
    """Not in the source: why the compiler adds it (the identity matrix of tensor-engine transposes)."""
    index: Access | None = None
    """GATHER: the index vector, in SBUF; DYNAMIC_START: the scalar in SBUF, where the start comes from one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeRecord(Event):
    """One compute instruction as written."""

    engine: str
    """tensor, vector, scalar, gpsimd, sync; 'unknown' where the compiler chooses (then `engines` lists where it can)."""
    engines: tuple[str, ...] = ()
    reads: tuple[Access, ...] = ()
    writes: tuple[Access, ...] = ()
    attributes: tuple[tuple[str, Any], ...] = ()
    """Other arguments that matter to time or value: (("op", "add"), ("perf_mode", "double_row"), ("accumulate", True))."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRecord(Event):
    """A collective, a barrier, or an exchange between the programs of a pair."""

    kind: str
    """collective, barrier, sendrecv."""
    reads: tuple[Access, ...] = ()
    writes: tuple[Access, ...] = ()
    attributes: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmodelled(Event):
    """A call that the operation table does not have: its cost is not in any sum."""

    reason: str
    tensors: tuple[Access, ...] = ()
    """Tensors among its arguments: it may move their data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """One storage."""

    storage: int
    name: str
    memory: Memory
    dtype: str
    shape: tuple[int, ...]
    site: Site | None
    """None for kernel arguments."""
    kind: str
    """argument, tensor (the kernel allocated it), result (an operation returned it), constant."""
    partition_count: int = 0
    """0 in HBM."""
    bytes_per_partition: int = 0
    """0 in HBM."""
    byte_count: int = 0
    address: tuple[int, int] | None = None
    """(start partition, byte in the partition) where the kernel places it."""
    shared: bool = False
    """shared_hbm: both programs of a pair see it."""
    returned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramTrace:
    """One program of a launch: a NeuronCore of a pair (LNC), or one index of a first-generation grid."""

    kernel: str
    program_id: tuple[int, ...]
    grid: tuple[int, ...]
    events: tuple[Event, ...]
    """In program order."""
    allocations: tuple[Allocation, ...]
    """allocations[n].storage == n."""
    sbuf_peak_bytes_per_partition: int
    """Most bytes of a partition live at once, a storage living from its first to its last use: what the kernel needs
    as written; the compiler may need more (double buffers) or less (fusion). Placed tensors: the highest end address."""
    psum_peak_bytes_per_partition: int
    stands_for: int = 1
    """Grids beyond the cap: how many programs this one was run for."""

    @property
    def dma(self) -> tuple[DmaRecord, ...]:
        """The DMA records."""
        return tuple(event for event in self.events if isinstance(event, DmaRecord))

    @property
    def sync(self) -> tuple[SyncRecord, ...]:
        """Barriers, collectives and exchanges in order: what the programs of a pair must agree on."""
        return tuple(event for event in self.events if isinstance(event, SyncRecord))

    @property
    def unmodelled(self) -> tuple[Unmodelled, ...]:
        """Calls outside the table."""
        return tuple(event for event in self.events if isinstance(event, Unmodelled))


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something the reader of the numbers must know: an assumption made, a rule of the language broken."""

    code: str
    """Stable word: trip-count-unknown, grid-sampled, out-of-bounds, dtype-mismatch-hwdge, partition-limit, ..."""
    message: str
    site: Site | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """All programs of all launches of one trace."""

    programs: tuple[ProgramTrace, ...]
    target: str
    lnc: int
    exact: bool
    notes: tuple[Note, ...] = ()
    outputs: tuple[tuple[str, tuple[int, ...], str], ...] = field(default=())
    """(name, shape, dtype) of what the kernel returned."""

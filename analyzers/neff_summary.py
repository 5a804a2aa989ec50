"""What a NEFF holds, before anything runs: instructions by engine and opcode, tensors, DMA queues and their bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trnprof.profile import ENGINES, CaptureIssue
from trnprof.readers.isa import OPCODE_NAMES, is_dma_direct2d
from trnprof.readers.neff import Neff, NeffCore
from trnprof.readers.neff_dma import DMA_TRIGGER, DmaQueueSet, dma_hbm_bytes

_TENSOR_KINDS = {"input": "input", "output": "output", "file": "weight"}
"""Variable types that are the program's tensors, and what the vendor's profiler calls their kind."""


@dataclass(frozen=True, kw_only=True)
class EngineProgram:
    """One engine's stream in one core."""

    instruction_count: int
    """Instructions in the stream; a loop's body counts once, however often it runs."""
    opcode_counts: tuple[tuple[str, int], ...]
    """(mnemonic, instructions), most frequent first, then by name."""


@dataclass(frozen=True, kw_only=True)
class QueueProgram:
    """One queue set of one core, and the static rings on it."""

    name: str
    type: str
    """in, out, data, embedding_update, dynamic."""
    owner: str | None
    """Engine that triggers it: pe, act, pool, dve, sp."""
    queue_count: int
    """Hardware queues, one DMA engine each."""
    static_ring_count: int
    descriptor_count: int
    """Descriptors in the NEFF; the runtime splits each over the hardware queues and into elements."""
    read_bytes: int
    write_bytes: int
    hbm_read_bytes: int | None
    """None: the memory of a variable is not known."""
    hbm_write_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class CoreProgram:
    """One physical core's program."""

    core: int
    subgraph: str
    engines: dict[str, EngineProgram]
    """By engine, in the order of trnprof.profile.ENGINES."""
    queues: tuple[QueueProgram, ...]
    dynamic_dma_count: int
    """Instructions that are a dynamic DMA themselves, without a ring."""
    hbm_read_bytes: int
    """By all DMAs, static and dynamic, each started once; those of `unsized_dma_count` are not in it."""
    hbm_write_bytes: int
    unsized_dma_count: int
    """DMAs whose source or destination is in a memory that is not known."""
    activation_functions: tuple[str, ...]

    @property
    def instruction_count(self) -> int:
        """Instructions of all engines."""
        return sum(engine.instruction_count for engine in self.engines.values())

    @property
    def static_ring_count(self) -> int:
        """Static rings on all queues."""
        return sum(queue.static_ring_count for queue in self.queues)


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One input, output or constant of the program."""

    name: str
    kind: str
    """input, output, weight."""
    dtype: str | None
    shape: tuple[int, ...] | None
    size_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class NeffSummary:
    """What `trnprof info` says of a NEFF."""

    name: str
    uuid: str
    compiler_version: str | None
    target: str | None
    """The compiler's name of the chip: sunda, cayman."""
    hardware: str | None
    """trn1, trn2; None: the target is not known."""
    lnc_size: int
    """Physical cores in the logical core."""
    features: tuple[str, ...]
    """Set feature bits; `bit-N` where no name is known."""
    modelled: bool
    """Written by trnprof, not by the compiler."""
    cores: tuple[CoreProgram, ...]
    tensors: tuple[Tensor, ...]
    """Inputs, outputs, weights, in that order, each in the program's own."""
    unknown_opcode_count: int
    """Instructions whose opcode nothing names (OP_0xNN)."""
    kernels: tuple[str, ...]
    """NKI kernels with their own debug info."""
    hlo_stats: dict[str, float]
    issues: tuple[CaptureIssue, ...] = ()

    def tensor_bytes(self, kind: str) -> int:
        """Bytes of all tensors of one kind whose size is known."""
        return sum(tensor.size_bytes or 0 for tensor in self.tensors if tensor.kind == kind)


def summarize_neff(neff: Neff) -> NeffSummary:
    """Count what `neff` holds. Bytes are those that each static ring moves when it is triggered once."""
    cores = tuple(_core_program(core) for core in neff.cores)
    unknown = sum(
        count
        for core in cores
        for engine in core.engines.values()
        for opcode, count in engine.opcode_counts
        if opcode.startswith("OP_0x")
    )
    return NeffSummary(
        name=neff.header.name,
        uuid=neff.header.uuid,
        compiler_version=neff.compiler_version,
        target=neff.target,
        hardware=neff.hardware,
        lnc_size=neff.header.lnc_size,
        features=neff.header.features,
        modelled=neff.modelled,
        cores=cores,
        tensors=_tensors(neff),
        unknown_opcode_count=unknown,
        kernels=tuple(kernel.kernel_name for kernel in neff.kernels),
        hlo_stats=neff.hlo_stats,
        issues=neff.issues,
    )


def _core_program(core: NeffCore) -> CoreProgram:
    engines = {}
    dynamic = unsized = hbm_read = hbm_write = 0
    for engine in ENGINES:
        words = core.streams[engine].words
        counts = np.bincount(words[:, 0], minlength=256)
        named = [(OPCODE_NAMES[opcode], int(counts[opcode])) for opcode in np.flatnonzero(counts)]
        engines[engine] = EngineProgram(
            instruction_count=len(words),
            opcode_counts=tuple(sorted(named, key=lambda pair: (-pair[1], pair[0]))),
        )
        is_dynamic = is_dma_direct2d(words)
        is_dma = is_dynamic | (words[:, 0] == DMA_TRIGGER)
        read, write = dma_hbm_bytes(words, engine, core.variables, core.static_dma.rings)
        dynamic += int(np.count_nonzero(is_dynamic))
        unsized += int(np.count_nonzero(is_dma & ((read < 0) | (write < 0))))
        hbm_read += int(np.maximum(read, 0).sum())
        hbm_write += int(np.maximum(write, 0).sum())
    return CoreProgram(
        core=core.core,
        subgraph=core.subgraph,
        engines=engines,
        queues=tuple(_queue_program(core, queue) for queue in _all_queues(core)),
        dynamic_dma_count=dynamic,
        hbm_read_bytes=hbm_read,
        hbm_write_bytes=hbm_write,
        unsized_dma_count=unsized,
        activation_functions=core.activation_functions,
    )


def _all_queues(core: NeffCore) -> list[DmaQueueSet]:
    """The core's queue sets, then queues that only a ring names."""
    known = {queue.name for queue in core.queue_sets}
    used = pc.unique(_ring_queue(core.static_dma.rings)).to_pylist()
    return [*core.queue_sets, *(DmaQueueSet(name=name, type="unknown") for name in used if name not in known)]


def _ring_queue(rings: pa.Table) -> pa.ChunkedArray:
    return pc.coalesce(rings["queue"], rings["queue_instance"], "")


def _queue_program(core: NeffCore, queue: DmaQueueSet) -> QueueProgram:
    rings = core.static_dma.rings
    mine = rings.filter(pc.equal(_ring_queue(rings), queue.name))

    def total(column: str) -> int | None:
        values = mine[column].to_pylist()
        return None if None in values else sum(values)

    return QueueProgram(
        name=queue.name,
        type=queue.type,
        owner=queue.owner,
        queue_count=queue.queue_count,
        static_ring_count=mine.num_rows,
        descriptor_count=total("descriptor_count") or 0,
        read_bytes=total("read_bytes") or 0,
        write_bytes=total("write_bytes") or 0,
        hbm_read_bytes=total("hbm_read_bytes"),
        hbm_write_bytes=total("hbm_write_bytes"),
    )


def _tensors(neff: Neff) -> tuple[Tensor, ...]:
    """Each tensor once, although every core lists it."""
    found: dict[str, Tensor] = {}
    for core in neff.cores:
        for row in core.variables.to_pylist():
            kind = _TENSOR_KINDS.get(row["type"])
            if kind is not None and row["name"] not in found:
                shape = None if row["shape"] is None else tuple(row["shape"])
                found[row["name"]] = Tensor(
                    name=row["name"], kind=kind, dtype=row["dtype"], shape=shape, size_bytes=row["size_bytes"]
                )
    kinds = list(_TENSOR_KINDS.values())
    return tuple(sorted(found.values(), key=lambda tensor: kinds.index(tensor.kind)))

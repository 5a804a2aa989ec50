"""What a DMA prediction is: frozen results with units in their names; times are always ranges."""

from __future__ import annotations

from dataclasses import dataclass

from trnprof.hardware.dma_model import Constant

MAX_CALLERS = 3
"""Callers of a helper's line that are named."""


@dataclass(frozen=True)
class TimeRange:
    """A predicted time in ns: a bound from below, the estimate, and the time without any overlap."""

    low: int
    mid: int
    high: int


@dataclass(frozen=True)
class ElementBytes:
    """Sizes of the descriptors' elements, weighted by how many there are."""

    min: int
    median: int
    max: int


@dataclass(frozen=True)
class Traffic:
    """Sums over DMA instructions as written."""

    dma_count: int
    descriptor_count: int
    hbm_read_bytes: int
    hbm_write_bytes: int
    sbuf_read_bytes: int
    sbuf_write_bytes: int
    time_ns: TimeRange


@dataclass(frozen=True)
class Term:
    """The traffic of loops whose length is known only on the device: `traffic` times each name in `times`."""

    times: tuple[str, ...]
    """Bounds of the loops, as the source spells them; empty: what runs a known number of times."""
    traffic: Traffic


@dataclass(frozen=True)
class PredictedLine:
    """What one source line moves. Sums are over all programs; times are one core's."""

    source: str
    """file:line of the innermost user line."""
    function: str
    code: str
    """The line's text, where known."""
    called_from: tuple[str, ...]
    """file:line of the callers one level up, where the line is in a helper; at most MAX_CALLERS."""
    tensors: tuple[str, ...]
    """Names of the HBM tensors it moves."""
    operation: str
    direction: str
    """hbm->sbuf, sbuf->hbm, hbm->hbm, sbuf->sbuf, ..."""
    mode: str
    """hwdge, swdge, none; see mode_is_assumed."""
    mode_is_assumed: bool
    times: tuple[str, ...]
    """Loops of unknown length around it; then every sum is per iteration of each of them."""
    dma_count: int
    descriptor_count: int
    element_bytes: ElementBytes
    bytes: int
    """Bytes on the HBM side (of the source where both or neither side is HBM)."""
    read_bytes: int
    write_bytes: int
    hbm_read_bytes: int
    hbm_write_bytes: int
    reload_factor: float | None
    """How often each distinct HBM byte that it reads is read; None: reads none, or places known only on the device."""
    partition_count: int
    """Most partitions that one DMA of the line touches; 0 for HBM to HBM."""
    engine_count: int
    """Most DMA engines that one of them uses."""
    cast: bool
    transpose: bool
    strided: bool
    is_exact: bool
    """False: descriptors are a bound (index vectors, elements no capture shows)."""
    implicit: str | None
    """Why the compiler adds it, where it is not in the source."""
    time_ns: TimeRange
    efficiency: float | None
    """Bytes at the engines' peak rate ÷ mid time."""


@dataclass(frozen=True)
class PredictedProgram:
    """One program of a launch."""

    kernel: str
    program_id: tuple[int, ...]
    stands_for: int
    """Programs of a large grid that this one was run for; its numbers are one program's."""
    core: int
    terms: tuple[Term, ...]
    hbm_time_ns: int
    """HBM bytes ÷ the bandwidth of this core (not of the chip); known trips only."""
    sbuf_peak_bytes_per_partition: int
    psum_peak_bytes_per_partition: int


@dataclass(frozen=True)
class OnChip:
    """Peak use of an on-chip memory and its size."""

    peak_bytes_per_partition: int
    capacity_bytes_per_partition: int

    @property
    def overflows(self) -> bool:
        """More is live at once than a partition holds."""
        return self.peak_bytes_per_partition > self.capacity_bytes_per_partition


@dataclass(frozen=True)
class TensorReload:
    """HBM traffic of one tensor over all programs."""

    name: str
    read_bytes: int
    write_bytes: int
    reload_factor: float | None


@dataclass(frozen=True)
class PacketCount:
    """Packets of one size that the DMA queues of one mode will move, 4-byte semaphore writes included."""

    mode: str
    bytes: int
    count: int


@dataclass(frozen=True)
class UnmodelledCall:
    """A call that is in no sum."""

    source: str
    operation: str
    reason: str
    count: int


@dataclass(frozen=True)
class Assumption:
    """Something the numbers rest on."""

    code: str
    text: str
    source: str | None = None


@dataclass(frozen=True, kw_only=True)
class PredictedDma:
    """The prediction of one kernel with one set of inputs."""

    target: str
    lnc: int
    programs: tuple[PredictedProgram, ...]
    terms: tuple[Term, ...]
    """All programs; time is the slowest core's. One term with empty `times` where every trip count is known."""
    lines: tuple[PredictedLine, ...]
    """Longest mid time first."""
    tensors: tuple[TensorReload, ...]
    packets: tuple[PacketCount, ...]
    hbm_time_ns: int
    """The slowest core's HBM bytes ÷ its bandwidth."""
    sbuf: OnChip
    psum: OnChip
    unmodelled: tuple[UnmodelledCall, ...]
    sync_counts: tuple[tuple[str, int], ...]
    """(operation, count) of collectives, barriers and exchanges: not in the DMA time."""
    assumptions: tuple[Assumption, ...]
    constants: tuple[Constant, ...]
    stand_ins: tuple[str, ...] = ()
    """Frameworks that were replaced by stand-ins while the kernel ran."""

    @property
    def total(self) -> Traffic | None:
        """The whole traffic; None where a loop's length is unknown (then see `terms`)."""
        return self.terms[0].traffic if len(self.terms) == 1 and not self.terms[0].times else None

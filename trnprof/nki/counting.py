"""What one DMA instruction costs the DMA engines: descriptors, packets, bytes, partitions, engines; reload factors."""

from __future__ import annotations

from dataclasses import dataclass

from trnprof.nki.recording import DmaRecord, ProgramTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class DmaCount:
    """One execution of one DMA instruction."""

    mode: str
    """hwdge, swdge or none: the record's, or where that is unknown what the public captures show (see count_dma)."""
    mode_is_assumed: bool
    descriptor_count: int
    element_bytes: int
    """Bytes of one descriptor's element on the wider side."""
    read_bytes: int
    """All sides that are read, each in its own dtype; broadcasts count what is moved."""
    write_bytes: int
    hbm_read_bytes: int
    hbm_write_bytes: int
    sbuf_read_bytes: int
    sbuf_write_bytes: int
    partition_count: int
    """Partitions on the on-chip side; 0 for HBM to HBM."""
    engine_bytes: tuple[int, ...]
    """Bytes that each DMA engine in use moves (16 at most); len() is the number of engines."""
    engine_packets: tuple[int, ...]
    """Packets of each of those engines."""
    packets: tuple[tuple[int, int], ...]
    """(bytes, count) of the data packets, largest first, after the mode's merging; sizes are those written."""
    semaphore_packet_count: int
    """4-byte packets at the end of the DMA: one an engine, 16."""
    cast: bool
    """The sides' dtypes differ."""
    transpose: bool
    strided: bool
    """The HBM side is not one contiguous run although it could be one descriptor a partition otherwise."""
    is_exact: bool
    """False where the count is a bound: index vectors, elements above 4,096 B under hardware DGE."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorTraffic:
    """One HBM tensor of one program over the whole trace."""

    storage: int
    name: str
    read_bytes: int
    write_bytes: int
    distinct_read_bytes: int | None
    """Bytes of the storage that are read at least once; None: addresses are not known before the run."""
    distinct_write_bytes: int | None

    @property
    def reload_factor(self) -> float | None:
        """How often each byte that is read is read."""
        return self.read_bytes / self.distinct_read_bytes if self.distinct_read_bytes else None


def count_dma(record: DmaRecord) -> DmaCount:
    """Count one execution of `record` (multiply by record.execution_count)."""
    raise NotImplementedError


def tensor_traffic(program: ProgramTrace) -> tuple[TensorTraffic, ...]:
    """HBM traffic per tensor, in the order of allocation; implicit loads are tensors of their own."""
    raise NotImplementedError


def packet_histogram(program: ProgramTrace) -> dict[str, dict[int, int]]:
    """{mode: {packet bytes: count}} of a program, semaphore packets under 4 bytes included."""
    raise NotImplementedError

"""Where one step's time goes: an exact account of each physical core's window (DESIGN.md section 4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trnprof.analyzers.account_fold import TABLES, CoreFold, CoreTotals, Tables, body_of
from trnprof.analyzers.collective_calls import CollectiveCalls
from trnprof.analyzers.gaps import LONGEST_GAP_COUNT, Gap
from trnprof.analyzers.row_sums import SHORT_INSTRUCTION_NS
from trnprof.analyzers.state_sweep import (
    BLOCKED,
    BODY,
    BUSY,
    COLLECTIVE,
    COMPUTE_ONLY,
    DATA,
    DATA_AND_COMPUTE,
    DATA_ONLY,
    DMA,
    EXPOSED,
    IDLE,
    OUTSIDE,
    PART_OF_STATE,
    THROTTLED,
    WAIT,
    covered,
)
from trnprof.analyzers.waits import WaitProducer
from trnprof.errors import InconsistencyError, InputDataError
from trnprof.events import Events, NameList, events_of
from trnprof.hardware import Bandwidth
from trnprof.ordering import END_OF_TIME
from trnprof.profile import ENGINES, Core, Metadata, Profile, Provenance

__all__ = ["LONGEST_GAP_COUNT", "SHORT_INSTRUCTION_NS", "Gap", "WaitProducer"]


@dataclass(frozen=True)
class Parts:
    """The six parts of one window; what is not None sums to the window exactly."""

    runtime_overhead_ns: int
    memory_floor_ns: int | None
    """None where HBM bytes are not known or the floor would exceed the work; busy_beyond_floor then holds all work."""
    busy_beyond_floor_ns: int
    in_kernel_wait_ns: int
    exposed_collective_ns: int
    idle_ns: int

    def total_ns(self) -> int:
        """The sum, which must be the window."""
        return (
            self.runtime_overhead_ns
            + (self.memory_floor_ns or 0)
            + self.busy_beyond_floor_ns
            + self.in_kernel_wait_ns
            + self.exposed_collective_ns
            + self.idle_ns
        )


@dataclass(frozen=True)
class WorkSplit:
    """The body's work by what ran; sums to the work."""

    data_only_ns: int
    compute_only_ns: int
    both_ns: int

    def total_ns(self) -> int:
        """The work."""
        return self.data_only_ns + self.compute_only_ns + self.both_ns


@dataclass(frozen=True)
class EngineAccount:
    """One engine over the whole window."""

    active_ns: int
    """Union of its instructions without wait opcodes: the vendor's <engine>_active_time."""
    instruction_count: int
    """All its instructions, wait opcodes included."""
    alone_ns: int
    """Body time in which it is the only thing that works: no other engine, no data movement."""
    short_instruction_count: int
    """Instructions below SHORT_INSTRUCTION_NS, wait opcodes excluded."""
    working_instruction_count: int
    """Instructions without wait opcodes."""
    blocked_ns: int
    """Union of its wait opcodes."""


@dataclass(frozen=True)
class DmaAccount:
    """The DMA packets that belong to this core, over the window."""

    packet_count: int
    bytes: int
    """Sum of packet sizes."""
    active_ns: int
    """Union of all its packets: the vendor's dma_active_time."""
    data_packet_count: int
    data_bytes: int
    data_ns: int
    """Union of the packets that move tensor data."""


@dataclass(frozen=True)
class HbmAccount:
    """HBM bytes that the core's program moved."""

    read_bytes: int
    write_bytes: int
    undirected_bytes: int
    """Bytes of tensor-data packets whose direction the capture does not tell; each counted once."""
    source: str
    kind: str
    """measured, or lower-bound where bytes are missing."""

    def total_bytes(self) -> int:
        """All bytes that the floor is computed from."""
        return self.read_bytes + self.write_bytes + self.undirected_bytes


@dataclass(frozen=True)
class CollectiveAccount:
    """Collective operations on this core."""

    count: int
    total_ns: int
    """Union."""
    exposed_ns: int

    def exposed_per_call_ns(self) -> int | None:
        """Mean exposed time of one operation; None without any."""
        return None if not self.count else round(self.exposed_ns / self.count)


@dataclass(frozen=True)
class ThrottleAccount:
    """Intervals in which the chip held its engines below full rate."""

    throttled_ns: int
    interval_count: int
    lowest_k: int
    n: int


@dataclass(frozen=True)
class CoreAnatomy:
    """One physical core's account."""

    core: int
    subgraph: str
    neuroncore_idx: int | None
    window_start_ts: int
    window_end_ts: int
    body_start_ts: int
    body_end_ts: int
    parts: Parts
    work: WorkSplit
    engines: dict[str, EngineAccount]
    dma: DmaAccount | None
    hbm: HbmAccount | None
    collectives: CollectiveAccount | None
    throttle: ThrottleAccount | None
    wait_producers: tuple[WaitProducer, ...]
    longest_gaps: tuple[Gap, ...]
    gap_count: int
    semaphore_update_count: int | None
    event_count: int
    """Instructions, packets and collectives; 0 is an empty core, which no mean may include."""
    clipped_count: int
    """Intervals that reach beyond the window and were counted only inside it."""
    floor_above_work_ns: int
    """By how much bytes ÷ bandwidth exceeds the work; more than 0 is an error (DQ009)."""
    collective_calls: CollectiveCalls | None = None
    """None: not captured, or too many to keep."""

    @property
    def window_ns(self) -> int:
        """Length of the window."""
        return self.window_end_ts - self.window_start_ts


@dataclass(frozen=True)
class PairAnatomy:
    """Two physical cores of one logical core, as information: their accounts are never merged."""

    either_works_ns: int
    both_work_ns: int


@dataclass(frozen=True)
class NeededTraffic:
    """The algorithmic floor of the whole program: each needed byte once."""

    needed_bytes: int
    """Inputs, outputs and weights of the program, as the capture states them."""
    moved_bytes: int
    """HBM bytes that all cores moved: the as-built traffic."""
    floor_ns: int
    """Needed bytes of the busiest core (in proportion to the bytes it moved) ÷ the bandwidth used."""


@dataclass(frozen=True)
class Anatomy:
    """The account of one capture."""

    provenance: Provenance
    hardware: str
    bandwidth: Bandwidth
    cores: tuple[CoreAnatomy, ...]
    pair: PairAnatomy | None
    needed: NeededTraffic | None
    """None where the capture does not state what the program needs."""


def measure_anatomy(profile: Profile, hardware: str, bandwidth: Bandwidth) -> Anatomy:
    """Split each core's window into overhead, memory floor, busy beyond floor, waits, exposed collectives and idle.

    Reads:  profile.instructions (start_ts, end_ts, engine, opcode, compiler_pc, hbm_*_bytes, wait_semaphore_idx),
            dma_packets (or dma_transfers where packets are absent), collectives, kernels, semaphores, throttle; ns.
    Raises: InputDataError if the capture has no execution window, or no instructions (a summary has none);
            InconsistencyError if the parts do not add up to the window (checked on every core).
    Source: the published decode-step anatomy of TrnRT on GLM-5.3-Flash; the definitions are DESIGN.md section 4.
    """
    names = NameList()
    rows = {core.core: core_events(profile, core.core, names) for core in profile.metadata.cores}
    bodies = {
        core.core: body_of(rows[core.core]["instructions"], (core.window_start_ts, core.window_end_ts))
        for core in profile.metadata.cores
    }
    fold = AnatomyFold(profile.metadata, hardware, bandwidth, names, bodies)
    fold.add(rows, END_OF_TIME, final=True)
    return fold.anatomy()


class AnatomyFold:
    """The account of one window of a capture, from batches of its events in order of time."""

    def __init__(
        self,
        metadata: Metadata,
        hardware: str,
        bandwidth: Bandwidth,
        names: NameList,
        bodies: Mapping[int, tuple[int, int]],
        *,
        is_step: bool = False,
        reach_back_ns: int | None = None,
    ) -> None:
        """metadata: of the capture; its cores' windows are what is accounted. bodies: as `body_of` gives them, by core.

        is_step, reach_back_ns: see CoreFold.

        Raises: InputDataError if a core has no window.
        """
        for core in metadata.cores:
            if core.window_end_ts <= core.window_start_ts:
                raise InputDataError(
                    f"core {core.core} has no execution window ({core.window_start_ts} to {core.window_end_ts} ns)"
                )
        self._metadata, self._hardware, self._bandwidth = metadata, hardware, bandwidth
        self._folds = [
            CoreFold(
                (core.window_start_ts, core.window_end_ts),
                bodies[core.core],
                names,
                is_step=is_step,
                reach_back_ns=reach_back_ns,
            )
            for core in metadata.cores
        ]
        self._either_ns = self._both_ns = 0

    def add(self, rows: Mapping[int, Tables], until: int, *, final: bool = False) -> None:
        """One batch: each core's rows that begin before `until` and were not in an earlier batch, in order of start.

        Raises: InputDataError if instructions were not captured.
        """
        if any(tables["instructions"] is None for tables in rows.values()):
            raise InputDataError(
                f"a capture of format {self._metadata.format} without a table of instructions: the step cannot be split "
                "into parts; `trnprof info` prints what it holds"
            )
        works = [
            fold.add(rows[core.core], until, final=final)
            for core, fold in zip(self._metadata.cores, self._folds, strict=True)
        ]
        if len(works) == 2:
            both_ns = int(works[0].overlap_lengths(works[1].start, works[1].end).sum())
            self._both_ns += both_ns
            self._either_ns += works[0].length() + works[1].length() - both_ns

    def anatomy(self) -> Anatomy:
        """The account, after the final batch.

        Raises: InconsistencyError if the parts of a core do not add up to its window.
        """
        accounts = tuple(
            _core_anatomy(self._metadata, core, fold.totals(), self._bandwidth)
            for core, fold in zip(self._metadata.cores, self._folds, strict=True)
        )
        return Anatomy(
            self._metadata.provenance,
            self._hardware,
            self._bandwidth,
            accounts,
            PairAnatomy(self._either_ns, self._both_ns) if len(accounts) == 2 else None,
            _measure_needed(self._metadata, accounts, self._bandwidth),
        )


def core_events(profile: Profile, core: int, names: NameList) -> dict[str, Events | None]:
    """What an account reads of one core, in order of start."""
    packets = "dma_transfers" if profile.dma_packets is None else "dma_packets"
    found: dict[str, Events | None] = {}
    for name, source in zip(TABLES, ("instructions", packets, *TABLES[2:]), strict=True):
        table = profile.core_rows(source, core)
        found[name] = None if table is None else events_of(source, table, names).in_order()
    return found


def _core_anatomy(metadata: Metadata, core: Core, totals: CoreTotals, bandwidth: Bandwidth) -> CoreAnatomy:
    rows, window, body = totals.rows, totals.window, totals.body
    part = {number: totals.time_where(np.equal(PART_OF_STATE, number)) for number in range(IDLE + 1)}
    split = WorkSplit(part[DATA_ONLY], part[COMPUTE_ONLY], part[DATA_AND_COMPUTE])
    hbm = _measure_hbm(metadata, core, totals)
    floor_ns = None if hbm is None else duration_ns(hbm.total_bytes(), bandwidth.bytes_per_s)
    above_ns = 0 if floor_ns is None else max(0, floor_ns - split.total_ns())
    if above_ns:
        floor_ns = None
    parts = Parts(
        runtime_overhead_ns=part[OUTSIDE],
        memory_floor_ns=floor_ns,
        busy_beyond_floor_ns=split.total_ns() - (floor_ns or 0),
        in_kernel_wait_ns=part[WAIT],
        exposed_collective_ns=part[EXPOSED],
        idle_ns=part[IDLE],
    )
    _check(core, parts, totals)
    collectives = None
    if "collectives" in totals.captured:
        total_ns = totals.time_where(covered(COLLECTIVE))
        collectives = CollectiveAccount(rows.collective_count, total_ns, part[EXPOSED])
    throttle = None
    if "throttle" in totals.captured:
        _, k, n = rows.lowest_throttle or (0, 0, 0)
        throttle = ThrottleAccount(totals.time_where(covered(THROTTLED)), rows.throttle_count, k, n)
    return CoreAnatomy(
        core=core.core,
        subgraph=core.subgraph,
        neuroncore_idx=core.neuroncore_idx,
        window_start_ts=window[0],
        window_end_ts=window[1],
        body_start_ts=body[0],
        body_end_ts=body[1],
        parts=parts,
        work=split,
        engines={name: _measure_engine(totals, number, name) for number, name in enumerate(ENGINES)},
        dma=_measure_dma(totals) if "packets" in totals.captured else None,
        hbm=hbm,
        collectives=collectives,
        throttle=throttle,
        wait_producers=totals.wait_producers,
        longest_gaps=totals.longest_gaps,
        gap_count=totals.gap_count,
        semaphore_update_count=rows.semaphore_update_count,
        event_count=rows.event_count,
        clipped_count=rows.clipped_count,
        floor_above_work_ns=above_ns,
        collective_calls=totals.calls if "collectives" in totals.captured else None,
    )


def duration_ns(byte_count: int, bytes_per_s: int) -> int:
    """byte_count ÷ bytes_per_s in whole nanoseconds, rounded to nearest: 2,038 MB at 336 GB/s is 6,065,476 ns."""
    return (byte_count * 10**9 + bytes_per_s // 2) // bytes_per_s


def _measure_engine(totals: CoreTotals, number: int, name: str) -> EngineAccount:
    others = covered(DATA, *(other for other in BUSY if other != number))
    return EngineAccount(
        active_ns=totals.time_where(covered(BUSY[number])),
        instruction_count=totals.rows.instruction_count[name],
        alone_ns=totals.time_where(covered(BUSY[number]) & covered(BODY) & ~others),
        short_instruction_count=totals.rows.short_count[name],
        working_instruction_count=totals.rows.working_count[name],
        blocked_ns=totals.time_where(covered(BLOCKED[number])),
    )


def _measure_dma(totals: CoreTotals) -> DmaAccount:
    rows = totals.rows
    return DmaAccount(
        packet_count=rows.packet_count,
        bytes=rows.packet_bytes,
        active_ns=totals.time_where(covered(DMA)),
        data_packet_count=rows.data_packet_count,
        data_bytes=rows.data_packet_bytes,
        data_ns=totals.time_where(covered(DATA)),
    )


def _measure_hbm(metadata: Metadata, core: Core, totals: CoreTotals) -> HbmAccount | None:
    """HBM bytes that the body moved: from DMA instructions' operands, else the capture's totals, else its packets."""
    rows = totals.rows
    has_packets = "packets" in totals.captured
    if rows.hbm_bytes is not None and rows.instruction_row_count:
        read, write = rows.hbm_bytes
        undirected = 0 if metadata.static_dma_attributed else rows.static_packet_bytes or 0
        if read or write or undirected or not has_packets or not rows.data_packet_bytes:
            source = "operands of the DMA instructions"
            if undirected:
                source += ", and packets of static rings counted once each"
            return HbmAccount(read, write, undirected, source, "lower-bound" if undirected else "measured")
    if core.hbm_read_bytes is not None and core.hbm_write_bytes is not None:
        return HbmAccount(core.hbm_read_bytes, core.hbm_write_bytes, 0, "the capture's own totals", "measured")
    if has_packets:
        # Tensor data has HBM on one side at least, so each byte counted once is a lower bound of HBM traffic.
        return HbmAccount(0, 0, rows.data_packet_bytes, "DMA packets, each counted once", "lower-bound")
    return None


def _measure_needed(metadata: Metadata, cores: tuple[CoreAnatomy, ...], bandwidth: Bandwidth) -> NeededTraffic | None:
    # The vendor's total is the sum over the program's tensors.
    listed = sum(tensor.size_bytes for tensor in metadata.tensors)
    needed = metadata.summary.get("inputs_outputs_weights_size_bytes", listed)
    moved = [account.hbm.total_bytes() for account in cores if account.hbm is not None]
    if not isinstance(needed, int) or needed <= 0 or not sum(moved):
        return None
    # The busiest core carries the step; it is charged the needed bytes in the proportion in which bytes were moved.
    share = (needed * max(moved) + sum(moved) // 2) // sum(moved)
    return NeededTraffic(needed, sum(moved), duration_ns(share, bandwidth.bytes_per_s))


def _check(core: Core, parts: Parts, totals: CoreTotals) -> None:
    """The account must add up, whatever the capture: anything else is our bug and must not be printed."""
    values = [value for value in vars(parts).values() if value is not None]
    window_ns = totals.window[1] - totals.window[0]
    outside_ns = window_ns - (totals.body[1] - totals.body[0])
    if parts.total_ns() != window_ns or min(values) < 0 or parts.runtime_overhead_ns != outside_ns:
        raise InconsistencyError(
            f"core {core.core}: parts {parts} do not add up to the window {window_ns} ns with {outside_ns} ns outside the "
            "body; please report this with the capture"
        )

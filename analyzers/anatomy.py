"""Where one step's time goes: an exact account of each physical core's window (DESIGN.md section 4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from trnprof.analyzers.account_sets import InstructionRows, data_packet_mask, packets_of, sets_of, union_all
from trnprof.analyzers.waits import WaitProducer, attribute_waits
from trnprof.errors import InconsistencyError, InputDataError
from trnprof.hardware import Bandwidth
from trnprof.intervals import EMPTY, Int64Array, Intervals, union
from trnprof.profile import ENGINES, Core, Profile, Provenance, codes_of, int64_of

SHORT_INSTRUCTION_NS = 200
"""Below this an instruction's fixed cost (64 to 147 cycles, 53 to 153 ns on trn2) is most of its time."""

LONGEST_GAP_COUNT = 5


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
class Gap:
    """A stretch of the body with no work and no collective."""

    start_ts: int
    end_ts: int
    wait_ns: int
    """The part of it in which an engine is blocked or a kernel is open; the rest is idle."""
    before: str
    """What ended last before it: engine and opcode, or "dma"."""
    after: str
    """What started first after it."""


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
    if profile.instructions is None:
        raise InputDataError(
            f"a capture of format {profile.metadata.format} without a table of instructions: the step cannot be split "
            "into parts; `trnprof info` prints what it holds"
        )
    accounts, works = [], []
    for core in profile.metadata.cores:
        if core.window_end_ts <= core.window_start_ts:
            raise InputDataError(
                f"core {core.core} has no execution window ({core.window_start_ts} to {core.window_end_ts} ns)"
            )
        account, work = _measure_core(profile, core, bandwidth)
        accounts.append(account)
        works.append(work)
    pair = None
    if len(works) == 2:
        pair = PairAnatomy((works[0] | works[1]).length(), (works[0] & works[1]).length())
    needed = _measure_needed(profile, tuple(accounts), bandwidth)
    return Anatomy(profile.metadata.provenance, hardware, bandwidth, tuple(accounts), pair, needed)


def _measure_core(profile: Profile, core: Core, bandwidth: Bandwidth) -> tuple[CoreAnatomy, Intervals]:
    window = (core.window_start_ts, core.window_end_ts)
    instructions = profile.core_rows("instructions", core.core)
    packets = packets_of(profile, core.core)
    collectives = profile.core_rows("collectives", core.core)
    semaphores = profile.core_rows("semaphores", core.core)

    rows = InstructionRows(instructions, window)
    data, dma = _measure_dma(packets, window)
    sets = sets_of(profile, core, rows, data)
    body, work = sets.body, sets.work
    compute_in_body = union_all(sets.busy.values()).clip(*body)
    data_in_body = data.clip(*body)

    both_ns = (compute_in_body & data_in_body).length()
    split = WorkSplit(data_in_body.length() - both_ns, compute_in_body.length() - both_ns, both_ns)
    hbm = _measure_hbm(profile, core, rows, body, dma)
    floor_ns = None if hbm is None else duration_ns(hbm.total_bytes(), bandwidth.bytes_per_s)
    above_ns = 0 if floor_ns is None else max(0, floor_ns - work.length())
    if above_ns:
        floor_ns = None
    parts = Parts(
        runtime_overhead_ns=(window[1] - window[0]) - (body[1] - body[0]),
        memory_floor_ns=floor_ns,
        busy_beyond_floor_ns=work.length() - (floor_ns or 0),
        in_kernel_wait_ns=sets.wait.length(),
        exposed_collective_ns=sets.exposed.length(),
        idle_ns=sets.idle.length(),
    )
    _check(core, parts, split, work, window)
    quiet = sets.wait | sets.idle
    account = CoreAnatomy(
        core=core.core,
        subgraph=core.subgraph,
        neuroncore_idx=core.neuroncore_idx,
        window_start_ts=window[0],
        window_end_ts=window[1],
        body_start_ts=body[0],
        body_end_ts=body[1],
        parts=parts,
        work=split,
        engines={name: _measure_engine(rows, name, sets.busy, data, body) for name in ENGINES},
        dma=dma,
        hbm=hbm,
        collectives=_measure_collectives(collectives, sets.collective, sets.exposed),
        throttle=_measure_throttle(profile.core_rows("throttle", core.core), window),
        wait_producers=attribute_waits(sets.wait, instructions, semaphores),
        longest_gaps=_longest_gaps(quiet, sets.wait, rows, packets),
        gap_count=len(quiet),
        semaphore_update_count=None if semaphores is None else len(semaphores),
        event_count=sum(len(table) for table in (instructions, packets, collectives) if table is not None),
        clipped_count=sum(_clipped_count(table, window) for table in (instructions, packets, collectives)),
        floor_above_work_ns=above_ns,
    )
    return account, work


def duration_ns(byte_count: int, bytes_per_s: int) -> int:
    """byte_count ÷ bytes_per_s in whole nanoseconds, rounded to nearest: 2,038 MB at 336 GB/s is 6,065,476 ns."""
    return (byte_count * 10**9 + bytes_per_s // 2) // bytes_per_s


def _measure_engine(
    rows: InstructionRows, engine: str, busy: dict[str, Intervals], data: Intervals, body: tuple[int, int]
) -> EngineAccount:
    own = rows.of(engine)
    working = own & ~rows.waits
    others = union_all(intervals for name, intervals in busy.items() if name != engine) | data
    return EngineAccount(
        active_ns=busy[engine].length(),
        instruction_count=int(own.sum()),
        alone_ns=(busy[engine] - others).clip(*body).length(),
        short_instruction_count=int(((rows.end - rows.start)[working] < SHORT_INSTRUCTION_NS).sum()),
        working_instruction_count=int(working.sum()),
        blocked_ns=rows.blocked(engine).length(),
    )


def _clipped_count(table: pa.Table | None, window: tuple[int, int]) -> int:
    if table is None or not len(table):
        return 0
    return int(((int64_of(table["start_ts"]) < window[0]) | (int64_of(table["end_ts"]) > window[1])).sum())


def _measure_dma(packets: pa.Table | None, window: tuple[int, int]) -> tuple[Intervals, DmaAccount | None]:
    """(where tensor data moves, the account) of one core's packets."""
    if packets is None:
        return EMPTY, None
    start = np.clip(int64_of(packets["start_ts"]), *window)
    end = np.clip(int64_of(packets["end_ts"]), *window)
    size = int64_of(packets["transfer_bytes"])
    moves_data = data_packet_mask(packets)
    data = union(start[moves_data], end[moves_data])
    return data, DmaAccount(
        packet_count=len(packets),
        bytes=int(size.sum()),
        active_ns=union(start, end).length(),
        data_packet_count=int(moves_data.sum()),
        data_bytes=int(size[moves_data].sum()),
        data_ns=data.length(),
    )


_DYNAMIC_QUEUE_TYPES = ("software_dynamic", "hardware_dynamic")


def _measure_hbm(
    profile: Profile, core: Core, rows: InstructionRows, body: tuple[int, int], dma: DmaAccount | None
) -> HbmAccount | None:
    """HBM bytes that the body moved: from DMA instructions' operands, else the capture's totals, else its packets."""
    table = rows.table
    if table is not None and len(table) and {"hbm_read_bytes", "hbm_write_bytes"} <= set(table.column_names):
        inside = (rows.start >= body[0]) & (rows.end <= body[1])
        read = int(int64_of(table["hbm_read_bytes"])[inside].sum())
        write = int(int64_of(table["hbm_write_bytes"])[inside].sum())
        undirected = 0 if profile.metadata.static_dma_attributed else _static_packet_bytes(profile, core)
        if read or write or undirected or dma is None or not dma.data_bytes:
            source = "operands of the DMA instructions"
            if undirected:
                source += ", and packets of static rings counted once each"
            return HbmAccount(read, write, undirected, source, "lower-bound" if undirected else "measured")
    if core.hbm_read_bytes is not None and core.hbm_write_bytes is not None:
        return HbmAccount(core.hbm_read_bytes, core.hbm_write_bytes, 0, "the capture's own totals", "measured")
    if dma is not None:
        # Tensor data has HBM on one side at least, so each byte counted once is a lower bound of HBM traffic.
        return HbmAccount(0, 0, dma.data_bytes, "DMA packets, each counted once", "lower-bound")
    return None


def _static_packet_bytes(profile: Profile, core: Core) -> int:
    packets = profile.core_rows("dma_packets", core.core)
    if packets is None or "queue_type" not in packets.column_names:
        return 0
    codes, names = codes_of(packets["queue_type"])
    dynamic = np.isin(codes, [code for code, name in enumerate(names) if name in _DYNAMIC_QUEUE_TYPES])
    return int(int64_of(packets["transfer_bytes"])[data_packet_mask(packets) & ~dynamic].sum())


def _measure_needed(profile: Profile, cores: tuple[CoreAnatomy, ...], bandwidth: Bandwidth) -> NeededTraffic | None:
    needed = profile.metadata.summary.get("inputs_outputs_weights_size_bytes")
    moved = [account.hbm.total_bytes() for account in cores if account.hbm is not None]
    if not isinstance(needed, int) or needed <= 0 or not sum(moved):
        return None
    # The busiest core carries the step; it is charged the needed bytes in the proportion in which bytes were moved.
    share = (needed * max(moved) + sum(moved) // 2) // sum(moved)
    return NeededTraffic(needed, sum(moved), duration_ns(share, bandwidth.bytes_per_s))


def _measure_collectives(table: pa.Table | None, collective: Intervals, exposed: Intervals) -> CollectiveAccount | None:
    if table is None:
        return None
    return CollectiveAccount(len(table), collective.length(), exposed.length())


def _measure_throttle(table: pa.Table | None, window: tuple[int, int]) -> ThrottleAccount | None:
    if table is None:
        return None
    k, n = int64_of(table["k"]), int64_of(table["n"])
    start = int64_of(table["timestamp"])
    slow = k < n
    throttled = union(start[slow], (start + int64_of(table["duration"]))[slow]).clip(*window)
    lowest = int(np.argmin(np.where(slow, k / np.maximum(n, 1), 2.0))) if slow.any() else None
    return ThrottleAccount(
        throttled_ns=throttled.length(),
        interval_count=int(slow.sum()),
        lowest_k=int(k[lowest]) if lowest is not None else 0,
        n=int(n[lowest]) if lowest is not None else 0,
    )


def _longest_gaps(
    quiet: Intervals, wait: Intervals, rows: InstructionRows, packets: pa.Table | None
) -> tuple[Gap, ...]:
    order = np.lexsort((quiet.start, quiet.start - quiet.end))[:LONGEST_GAP_COUNT]
    if not len(order):
        return ()
    waits = wait.overlap_lengths(quiet.start[order], quiet.end[order])
    packet_end, packet_start = np.zeros(0, np.int64), np.zeros(0, np.int64)
    if packets is not None:
        moves_data = data_packet_mask(packets)
        packet_start, packet_end = int64_of(packets["start_ts"])[moves_data], int64_of(packets["end_ts"])[moves_data]
    gaps = []
    for index, wait_ns in zip(order.tolist(), waits.tolist(), strict=True):
        start, end = int(quiet.start[index]), int(quiet.end[index])
        before = _edge_label(rows, np.flatnonzero((rows.end == start) & ~rows.waits), bool((packet_end == start).any()))
        after = _edge_label(rows, np.flatnonzero((rows.start == end) & ~rows.waits), bool((packet_start == end).any()))
        gaps.append(Gap(start, end, wait_ns, before, after))
    return tuple(gaps)


def _edge_label(rows: InstructionRows, candidates: Int64Array, is_packet: bool) -> str:
    if len(candidates):
        return rows.label(int(candidates[0]))
    return "dma" if is_packet else "edge of the body or a collective"


def _check(core: Core, parts: Parts, split: WorkSplit, work: Intervals, window: tuple[int, int]) -> None:
    """The account must add up, whatever the capture: anything else is our bug and must not be printed."""
    values = [value for value in vars(parts).values() if value is not None]
    if parts.total_ns() != window[1] - window[0] or min(values) < 0 or split.total_ns() != work.length():
        raise InconsistencyError(
            f"core {core.core}: parts {parts} and {split} do not add up to the window {window[1] - window[0]} ns "
            f"and the work {work.length()} ns; please report this with the capture"
        )

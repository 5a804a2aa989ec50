"""DMA traffic and time of a kernel that was recorded, not run: per source line, per program, and in total, as ranges."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from trnprof.analyzers.dma_time import CountedDma, DmaTimer, DmaTimes
from trnprof.analyzers.predicted_dma import (
    MAX_CALLERS,
    Assumption,
    ElementBytes,
    OnChip,
    PacketCount,
    PredictedDma,
    PredictedLine,
    PredictedProgram,
    TensorReload,
    Term,
    TimeRange,
    Traffic,
    UnmodelledCall,
)
from trnprof.hardware.dma_model import DmaModel
from trnprof.nki.counting import DmaCount, packet_histogram
from trnprof.nki.recording import Access, DmaRecord, Memory, ProgramTrace, Recording
from trnprof.nki.traffic import distinct_bytes, tensor_traffic

LIMIT_NOTES = frozenset(
    {"out-of-bounds", "tile-limit", "partition-limit", "source-limit", "contraction-mismatch", "size-mismatch"}
)
"""Notes of a recording that are findings (HAZ009) and no assumptions."""
_SAID_OTHERWISE = LIMIT_NOTES | {"trip-count-unknown", "dtype-mismatch-hwdge"}


def predict_dma(
    recording: Recording,
    model: DmaModel,
    *,
    sbuf_bytes_per_partition: int,
    psum_bytes_per_partition: int,
    source_line: Callable[[str, int], str] = lambda file, line: "",
) -> PredictedDma:
    """Count a recording's DMAs and predict their time as low, mid, high.

    Time of a DMA: the slowest of its engines, each `packet_overhead_ns` a packet plus bytes ÷ packet rate; casts,
    transposes and reductions are slower by their factor.
    low:  no overlap is missed: the larger of all engines' work spread evenly, the longest single DMA, and each distinct
          HBM byte once at the engines' peak.
    mid:  one after the other with `issue_ns` each; not below HBM bytes ÷ the core's HBM bandwidth.
    high: each alone: `start_ns`, the data at the sustained rate, the semaphore packet.
    Where the DGE mode is the compiler's choice, low and high take the mode that is fastest and slowest.

    Source: the packet law is read off real trn2 profiles, issue_ns fits three published matmuls (dma_model.toml).
    """
    timer = DmaTimer(recording.target, model)
    accounts = [_Account(program, recording, timer) for program in recording.programs]
    cores = _cores_of(recording)
    lines = _merge_lines(accounts, cores, recording, model, source_line)
    programs = tuple(
        PredictedProgram(
            kernel=account.program.kernel,
            program_id=account.program.program_id,
            stands_for=account.program.stands_for,
            core=core,
            terms=account.terms(),
            hbm_time_ns=account.hbm_time_ns(),
            sbuf_peak_bytes_per_partition=account.program.sbuf_peak_bytes_per_partition,
            psum_peak_bytes_per_partition=account.program.psum_peak_bytes_per_partition,
        )
        for account, core in zip(accounts, cores, strict=True)
    )
    return PredictedDma(
        target=recording.target,
        lnc=recording.lnc,
        programs=programs,
        terms=_sum_terms(programs),
        lines=lines,
        tensors=_tensors(accounts),
        packets=_packets(recording),
        hbm_time_ns=_slowest_core((program.core, program.hbm_time_ns * program.stands_for) for program in programs),
        sbuf=OnChip(max((p.sbuf_peak_bytes_per_partition for p in programs), default=0), sbuf_bytes_per_partition),
        psum=OnChip(max((p.psum_peak_bytes_per_partition for p in programs), default=0), psum_bytes_per_partition),
        unmodelled=_unmodelled(recording),
        sync_counts=_sync_counts(recording),
        assumptions=_assumptions(recording, lines, model),
        constants=tuple(model.constants.values()),
    )


@dataclass
class _Sums:
    """Running sums of one line or one program."""

    dma_count: int = 0
    descriptor_count: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    hbm_read_bytes: int = 0
    hbm_write_bytes: int = 0
    sbuf_read_bytes: int = 0
    sbuf_write_bytes: int = 0
    balanced_ns: float = 0.0
    """Low: every DMA's work spread over all engines."""
    longest_ns: float = 0.0
    """Low: the longest single DMA."""
    mid_ns: float = 0.0
    high_ns: float = 0.0

    def add(self, count: DmaCount, times: DmaTimes, executions: int) -> None:
        self.dma_count += executions
        self.descriptor_count += executions * count.descriptor_count
        self.read_bytes += executions * count.read_bytes
        self.write_bytes += executions * count.write_bytes
        self.hbm_read_bytes += executions * count.hbm_read_bytes
        self.hbm_write_bytes += executions * count.hbm_write_bytes
        self.sbuf_read_bytes += executions * count.sbuf_read_bytes
        self.sbuf_write_bytes += executions * count.sbuf_write_bytes
        self.balanced_ns += executions * times.balanced_ns
        self.longest_ns = max(self.longest_ns, times.fastest_ns if executions else 0.0)
        self.mid_ns += executions * times.mid_ns
        self.high_ns += executions * times.high_ns

    def traffic(self, *, floor_ns: float = 0.0, bandwidth_ns: float = 0.0) -> Traffic:
        """`floor_ns` bounds low from below, `bandwidth_ns` mid."""
        return Traffic(
            self.dma_count,
            self.descriptor_count,
            self.hbm_read_bytes,
            self.hbm_write_bytes,
            self.sbuf_read_bytes,
            self.sbuf_write_bytes,
            self.time_ns(floor_ns=floor_ns, bandwidth_ns=bandwidth_ns),
        )

    def time_ns(self, *, floor_ns: float = 0.0, bandwidth_ns: float = 0.0) -> TimeRange:
        low = max(self.balanced_ns, self.longest_ns, floor_ns)
        mid = max(self.mid_ns, bandwidth_ns, low)
        return TimeRange(round(low), round(mid), round(max(self.high_ns, mid)))


class _Account:
    """One program's DMAs, counted."""

    def __init__(self, program: ProgramTrace, recording: Recording, timer: DmaTimer) -> None:
        self.program = program
        self.model = model = timer.model
        self.bandwidth = model["core_in_pair_bytes_per_s" if recording.lnc == 2 else "core_alone_bytes_per_s"]
        self.counted = [timer.time(record) for record in program.dma]
        self._by_times: dict[tuple[str, ...], _Sums] = defaultdict(_Sums)
        for entry in self.counted:
            self._by_times[entry.record.unknown_trips].add(entry.count, entry.times, entry.record.execution_count)
        self.traffic = tensor_traffic(program)
        distinct = [
            part for tensor in self.traffic for part in (tensor.distinct_read_bytes, tensor.distinct_write_bytes)
        ]
        # Unknown addresses may all be the same byte: they add nothing to a lower bound.
        self.distinct_bytes = sum(part for part in distinct if part is not None)

    def hbm_time_ns(self) -> int:
        known = self._by_times.get(())
        return round((known.hbm_read_bytes + known.hbm_write_bytes) / self.bandwidth * 1e9) if known else 0

    def terms(self) -> tuple[Term, ...]:
        result = []
        for times in sorted(self._by_times, key=lambda times: (len(times), times)):
            sums = self._by_times[times]
            moved = sums.hbm_read_bytes + sums.hbm_write_bytes
            distinct = self.distinct_bytes if not times and len(self._by_times) == 1 else 0
            result.append(
                Term(
                    times,
                    sums.traffic(
                        floor_ns=distinct / self.model["core_peak_bytes_per_s"] * 1e9,
                        bandwidth_ns=moved / self.bandwidth * 1e9,
                    ),
                )
            )
        return tuple(result) or (Term((), _Sums().traffic()),)


def _cores_of(recording: Recording) -> tuple[int, ...]:
    """The core each program runs on: the programs of a pair in turn; without a pair all on one."""
    return tuple(index % max(recording.lnc, 1) for index in range(len(recording.programs)))


def _slowest_core(entries: Iterable[tuple[int, int]]) -> int:
    per_core: dict[int, int] = defaultdict(int)
    for core, value in entries:
        per_core[core] += value
    return max(per_core.values(), default=0)


def _sum_terms(programs: tuple[PredictedProgram, ...]) -> tuple[Term, ...]:
    """Counts add over the programs; times add on one core, and the slowest core counts."""
    grouped: dict[tuple[str, ...], list[tuple[int, int, Traffic]]] = defaultdict(list)
    for program in programs:
        for term in program.terms:
            grouped[term.times].append((program.core, program.stands_for, term.traffic))
    if len(grouped) > 1 and () in grouped and not any(traffic.dma_count for _, _, traffic in grouped[()]):
        del grouped[()]
    result = []
    for times in sorted(grouped, key=lambda times: (len(times), times)):
        entries = grouped[times]
        sums = {
            name: sum(stands_for * getattr(traffic, name) for _, stands_for, traffic in entries)
            for name in (
                "dma_count",
                "descriptor_count",
                "hbm_read_bytes",
                "hbm_write_bytes",
                "sbuf_read_bytes",
                "sbuf_write_bytes",
            )
        }
        time = TimeRange(
            *(
                _slowest_core(
                    (core, stands_for * getattr(traffic.time_ns, bound)) for core, stands_for, traffic in entries
                )
                for bound in ("low", "mid", "high")
            )
        )
        result.append(Term(times, Traffic(**sums, time_ns=time)))
    return tuple(result) or (Term((), _Sums().traffic()),)


@dataclass
class _LineSums:
    """What one line moves, over all programs."""

    first: CountedDma
    by_core: dict[int, _Sums] = field(default_factory=lambda: defaultdict(_Sums))
    all: _Sums = field(default_factory=_Sums)
    elements: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    callers: dict[str, None] = field(default_factory=dict)
    tensors: dict[str, None] = field(default_factory=dict)
    reads: dict[tuple[int, int], list[tuple[Access, int, tuple[int | None, ...]]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """HBM accesses that it reads, by (program, storage): access, executions, loop counts."""
    operations: dict[str, None] = field(default_factory=dict)
    partition_count: int = 0
    engine_count: int = 0
    cast: bool = False
    transpose: bool = False
    strided: bool = False
    is_exact: bool = True


def _merge_lines(
    accounts: list[_Account],
    cores: tuple[int, ...],
    recording: Recording,
    model: DmaModel,
    source_line: Callable[[str, int], str],
) -> tuple[PredictedLine, ...]:
    merged: dict[tuple[object, ...], _LineSums] = {}
    for number, (account, core) in enumerate(zip(accounts, cores, strict=True)):
        for entry in account.counted:
            record, count = entry.record, entry.count
            key = (str(record.site), direction_of(record), count.mode, record.unknown_trips, record.implicit)
            line = merged.setdefault(key, _LineSums(entry))
            executions = record.execution_count * account.program.stands_for
            line.all.add(count, entry.times, executions)
            line.by_core[core].add(count, entry.times, executions)
            line.elements[count.element_bytes] += executions * count.descriptor_count
            line.operations.setdefault(record.op)
            if len(record.site.frames) > 1:
                line.callers.setdefault(f"{record.site.frames[1].file}:{record.site.frames[1].line}")
            for access in (*record.reads, record.write):
                if access.memory is Memory.HBM:
                    line.tensors.setdefault(access.name)
            loops = tuple(span.count for span in record.loops)
            for access in record.reads:
                if access.memory is Memory.HBM:
                    line.reads[number, access.storage].append((access, record.execution_count, loops))
            line.partition_count = max(line.partition_count, count.partition_count)
            line.engine_count = max(line.engine_count, len(count.engine_bytes))
            line.cast |= count.cast
            line.transpose |= count.transpose
            line.strided |= count.strided
            line.is_exact &= count.is_exact
    lines = [_line(sums, model, source_line) for sums in merged.values()]
    return tuple(sorted(lines, key=lambda line: (-line.time_ns.mid, line.source, line.direction, line.times)))


def _line(sums: _LineSums, model: DmaModel, source_line: Callable[[str, int], str]) -> PredictedLine:
    record, count = sums.first.record, sums.first.count
    per_core = [core_sums.time_ns() for core_sums in sums.by_core.values()]
    time = TimeRange(*(max(getattr(entry, bound) for entry in per_core) for bound in ("low", "mid", "high")))
    totals = sums.all
    moved = totals.hbm_read_bytes or totals.hbm_write_bytes or totals.read_bytes
    busiest = max(
        (core.hbm_read_bytes or core.hbm_write_bytes or core.read_bytes for core in sums.by_core.values()), default=0
    )
    frame = record.site.frames[0]
    return PredictedLine(
        source=str(record.site),
        function=frame.function,
        code=" ".join(source_line(frame.file, frame.line).split())[:200],
        called_from=tuple(sums.callers)[:MAX_CALLERS],
        tensors=tuple(sums.tensors),
        operation=", ".join(sums.operations),
        direction=direction_of(record),
        mode=count.mode,
        mode_is_assumed=count.mode_is_assumed,
        times=record.unknown_trips,
        dma_count=totals.dma_count,
        descriptor_count=totals.descriptor_count,
        element_bytes=_element_bytes(sums.elements),
        bytes=moved,
        read_bytes=totals.read_bytes,
        write_bytes=totals.write_bytes,
        hbm_read_bytes=totals.hbm_read_bytes,
        hbm_write_bytes=totals.hbm_write_bytes,
        reload_factor=_reload_factor(sums),
        partition_count=sums.partition_count,
        engine_count=sums.engine_count,
        cast=sums.cast,
        transpose=sums.transpose,
        strided=sums.strided,
        is_exact=sums.is_exact,
        implicit=record.implicit,
        time_ns=time,
        efficiency=round(busiest / model["core_peak_bytes_per_s"] * 1e9 / time.mid, 4) if time.mid else None,
    )


def _reload_factor(sums: _LineSums) -> float | None:
    """HBM bytes that the line reads ÷ those of them that are distinct, per program."""
    read = distinct = 0
    for accesses in sums.reads.values():
        touched = distinct_bytes([(access, loops) for access, _, loops in accesses])
        if touched is None:
            return None
        read += sum(access.byte_count * executions for access, executions, _ in accesses)
        distinct += touched
    return round(read / distinct, 4) if distinct else None


def direction_of(record: DmaRecord) -> str:
    """hbm->sbuf, sbuf->hbm, ...: the memories of the (first) source and the destination."""
    source = record.reads[0].memory if record.reads else record.write.memory
    return f"{source}->{record.write.memory}"


def _element_bytes(elements: dict[int, int]) -> ElementBytes:
    """Smallest, weighted median and largest of {bytes: descriptors}."""
    present = sorted((size, number) for size, number in elements.items() if number)
    if not present:
        return ElementBytes(0, 0, 0)
    half, seen, median = math.ceil(sum(number for _, number in present) / 2), 0, 0
    for size, number in present:
        seen += number
        if seen >= half:
            median = size
            break
    return ElementBytes(present[0][0], median, present[-1][0])


def _tensors(accounts: list[_Account]) -> tuple[TensorReload, ...]:
    """Traffic by tensor name over all programs; a shared tensor's distinct bytes are each program's own."""
    read: dict[str, int] = defaultdict(int)
    written: dict[str, int] = defaultdict(int)
    distinct: dict[str, int | None] = defaultdict(int)
    for account in accounts:
        times = account.program.stands_for
        for tensor in account.traffic:
            read[tensor.name] += tensor.read_bytes * times
            written[tensor.name] += tensor.write_bytes * times
            known = distinct[tensor.name]
            more = tensor.distinct_read_bytes
            distinct[tensor.name] = None if known is None or more is None else known + more * times
    tensors = []
    for name in read:
        own = distinct[name]
        tensors.append(TensorReload(name, read[name], written[name], round(read[name] / own, 4) if own else None))
    return tuple(sorted(tensors, key=lambda tensor: (-(tensor.read_bytes + tensor.write_bytes), tensor.name)))


def _packets(recording: Recording) -> tuple[PacketCount, ...]:
    counts: dict[tuple[str, int], int] = defaultdict(int)
    for program in recording.programs:
        for mode, sizes in packet_histogram(program, target=recording.target).items():
            for size, number in sizes.items():
                counts[mode, size] += number * program.stands_for
    return tuple(
        PacketCount(mode, size, counts[mode, size]) for mode, size in sorted(counts, key=lambda k: (k[0], -k[1]))
    )


def _unmodelled(recording: Recording) -> tuple[UnmodelledCall, ...]:
    counts: dict[tuple[str, str, str], int] = defaultdict(int)
    for program in recording.programs:
        for event in program.unmodelled:
            counts[str(event.site), f"{event.module}.{event.op}", event.reason] += (
                event.execution_count * program.stands_for
            )
    return tuple(UnmodelledCall(*key, count) for key, count in sorted(counts.items()))


def _sync_counts(recording: Recording) -> tuple[tuple[str, int], ...]:
    counts: dict[str, int] = defaultdict(int)
    for program in recording.programs:
        for event in program.sync:
            counts[event.op] += event.execution_count * program.stands_for
    return tuple(sorted(counts.items()))


def _assumptions(recording: Recording, lines: tuple[PredictedLine, ...], model: DmaModel) -> tuple[Assumption, ...]:
    """What the numbers rest on, the general ones first, then those of this kernel."""
    found = [
        Assumption(
            "as-written",
            "DMAs are counted as written. The compiler may merge those of neighbouring iterations: dma_count is an upper "
            "bound, bytes and descriptors stay.",
        ),
        Assumption(
            "no-removed-loads",
            "The compiler may drop loads of data that is still in SBUF: bytes are an upper bound where a tensor is reloaded.",
        ),
        Assumption(
            "no-spills",
            "Spills and reloads that the compiler adds when SBUF runs short, and the run's instruction fetch (about 0.2 MB "
            "in small kernels), are not in it.",
        ),
    ]
    if any(line.implicit for line in lines):
        found.append(
            Assumption(
                "identity-constants",
                "Transposes on the tensor engine load an identity matrix from HBM, once per element type (as in real trn2 captures).",
            )
        )
    assumed = sorted({line.mode for line in lines if line.mode_is_assumed})
    if assumed:
        found.append(
            Assumption(
                "dge-mode",
                f"Where the kernel names no DGE mode the compiler decides; counted as {' and '.join(assumed)}, as trn2 captures "
                "show. low and high cover the other mode.",
            )
        )
    if any(not line.is_exact for line in lines):
        found.append(
            Assumption(
                "descriptor-bound",
                "Some descriptor counts are bounds (marked): index vectors, or elements larger than any capture shows.",
            )
        )
    guesses = [constant.name for constant in model.constants.values() if constant.kind == "guess"]
    if guesses:
        found.append(
            Assumption(
                "constants-guessed",
                f"No published {model.generation} figure for {', '.join(guesses)}: trn2's are used.",
            )
        )
    for line in lines:
        for bound in line.times:
            entry = Assumption(
                "trip-count-unknown",
                f"The loop over {bound} runs as often as a device value says: costs are per iteration; set it with --trip {bound}=N.",
            )
            if entry not in found:
                found.append(entry)
    seen: set[tuple[str, str]] = set()
    for note in recording.notes:
        if note.code in _SAID_OTHERWISE or (note.code, note.message) in seen:
            continue
        seen.add((note.code, note.message))
        found.append(Assumption(note.code, note.message, str(note.site) if note.site else None))
    return tuple(found)

"""What holds a step back: each known pattern with its evidence, what it costs, and what removing it can win at most."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from trnprof.analyzers.anatomy import Anatomy, CoreAnatomy, core_events, duration_ns
from trnprof.analyzers.boundaries import Boundaries, measure_boundaries
from trnprof.analyzers.collectives import Collectives, measure_collectives
from trnprof.analyzers.dma_efficiency import DmaEfficiency, PacketLaw, load_packet_law, measure_dma_efficiency
from trnprof.analyzers.finding_sums import DataPackets, FindingFold, FindingSums
from trnprof.analyzers.hbm_traffic import HbmTraffic, Spill, measure_hbm_traffic
from trnprof.analyzers.opcodes import issue_costs
from trnprof.analyzers.roofline import core_peak_flop_per_s
from trnprof.analyzers.throttling import Throttling, measure_throttling
from trnprof.analyzers.wait_labels import KERNEL_OPEN, OUTSIDE, UNRECORDED, UNTRACED
from trnprof.events import NameList
from trnprof.finding_codes import finding
from trnprof.findings import Finding
from trnprof.hardware import Hardware
from trnprof.profile import Metadata, Profile

Raised = tuple[str, int, int, dict[str, object]]
"""(code, cost ns, ceiling ns, evidence)."""


@dataclass(frozen=True)
class _Measured:
    """What the rules look at, measured once."""

    metadata: Metadata
    anatomy: Anatomy
    sums: tuple[FindingSums, ...]
    """By core, as the rest."""
    spill: tuple[Spill | None, ...]
    peak_flop_per_s: int
    plateau_bytes_per_s: int
    packet_law: PacketLaw
    dma: DmaEfficiency | None = None
    hbm: HbmTraffic | None = None
    collectives: Collectives | None = None
    boundaries: Boundaries | None = None
    throttling: Throttling | None = None


NEED_WHOLE_TABLES = ("DMA020", "HBM003", "THR001")
"""Codes that batches do not tell: packets of each DMA engine, transfers between kernels, throttled stretches."""

_NEED_SPILLS = ("HBM001", "HBM002")
"""Codes that batches tell only where the instructions have spill bytes: transfers and queues are not looked at for them."""


def find_findings(profile: Profile, anatomy: Anatomy, hardware: Hardware) -> tuple[Finding, ...]:
    """Every known pattern that the capture shows, the highest ceiling first.

    One finding a code: that of the core where it costs most; `evidence.cores` has the cost on every core that shows it.

    anatomy: the account of the same profile. Thresholds are in trnprof.finding_codes; what a capture does not tell raises
    nothing.
    """
    names = NameList()
    folds = finding_folds(
        profile.metadata,
        {account.core: (account.body_start_ts, account.body_end_ts) for account in anatomy.cores},
        names,
        hardware,
        has_packets=profile.dma_packets is not None,
    )
    for core, fold in folds.items():
        fold.add(core_events(profile, core, names))
    hbm = measure_hbm_traffic(profile, anatomy)
    measured = _Measured(
        profile.metadata,
        anatomy,
        tuple(fold.sums() for fold in folds.values()),
        tuple(core.spill for core in hbm.cores),
        *_ceilings(profile.metadata, hardware),
        dma=measure_dma_efficiency(profile, hardware),
        hbm=hbm,
        collectives=measure_collectives(profile),
        boundaries=measure_boundaries(profile, anatomy),
        throttling=measure_throttling(profile),
    )
    return _by_rules(measured)


def find_in_sums(
    metadata: Metadata, anatomy: Anatomy, sums: Sequence[FindingSums], hardware: Hardware
) -> tuple[Finding, ...]:
    """As find_findings, of a capture that was read in batches: every code but those that left_out names.

    sums: each core's, in the anatomy's order.
    """
    spill = tuple(core.spill for core in sums)
    return _by_rules(_Measured(metadata, anatomy, tuple(sums), spill, *_ceilings(metadata, hardware)))


def left_out(sums: Sequence[FindingSums]) -> tuple[str, ...]:
    """The codes that find_in_sums did not look for."""
    tells_spills = all(core.spill is not None for core in sums)
    return tuple(sorted((*NEED_WHOLE_TABLES, *(() if tells_spills else _NEED_SPILLS))))


def finding_folds(
    metadata: Metadata,
    bodies: Mapping[int, tuple[int, int]],
    names: NameList,
    hardware: Hardware,
    *,
    has_packets: bool,
) -> dict[int, FindingFold]:
    """Where to add each core's rows for find_in_sums; by core, in the metadata's order."""
    costs = issue_costs(hardware, metadata)
    return {
        core.core: FindingFold(
            (core.window_start_ts, core.window_end_ts), bodies[core.core], names, costs, has_packets=has_packets
        )
        for core in metadata.cores
    }


def _ceilings(metadata: Metadata, hardware: Hardware) -> tuple[int, int, PacketLaw]:
    """(FLOPs of the matrix engine and bytes of the DMA engines, each a second, what a packet takes)."""
    plateau = hardware["dma.core_effective_bytes_per_s"].value
    assert isinstance(plateau, int)
    return core_peak_flop_per_s(metadata, hardware)[0], plateau, load_packet_law(hardware)


def _by_rules(measured: _Measured) -> tuple[Finding, ...]:
    raised: dict[str, list[tuple[CoreAnatomy, Raised]]] = {}
    busiest_ns = max((account.work.total_ns() for account in measured.anatomy.cores), default=0)
    for index, account in enumerate(measured.anatomy.cores):
        # A core with next to no work is its partner's finding (LNC002); what it does itself holds nothing back.
        if account.event_count and 10 * account.work.total_ns() >= busiest_ns:
            for rule in _RULES:
                for entry in rule(measured, index, account):
                    raised.setdefault(entry[0], []).append((account, entry))
    found = [_worst(entries) for entries in raised.values()]
    return tuple(sorted(found, key=lambda entry: (-(entry.ceiling_ns or 0), -(entry.cost_ns or 0), entry.code)))


def _worst(entries: list[tuple[CoreAnatomy, Raised]]) -> Finding:
    account, (code, cost, ceiling, evidence) = max(entries, key=lambda pair: (pair[1][2], pair[1][1], -pair[0].core))
    cores = {str(other.core): entry[1] for other, entry in entries}
    return finding(
        code,
        cost_ns=cost,
        ceiling_ns=ceiling,
        window_ns=account.window_ns,
        evidence={"core": account.core, **evidence, "cost_ns_by_core": cores},
    )


def _uncovered_data_ns(account: CoreAnatomy) -> int:
    """Time that cheaper data movement could take off the step: only data moves, or an engine waits for a DMA."""
    waits = sum(entry.wait_ns for entry in account.wait_producers if entry.producer.startswith("dma"))
    return account.work.data_only_ns + waits


def _is(part_ns: float, share: float, account: CoreAnatomy) -> bool:
    """Is it that share of the window, and anything at all?"""
    return part_ns > 0 and part_ns >= share * account.window_ns


def _dma_packets(measured: _Measured, index: int, account: CoreAnatomy) -> Iterator[Raised]:
    packets = measured.sums[index].packets
    if packets is None or account.dma is None or not packets.packet_count:
        return
    uncovered, data_ns = _uncovered_data_ns(account), account.dma.data_ns
    yield from _small_packets(measured, packets, account, uncovered)
    law_ns = measured.packet_law.ns(packets.packet_count, packets.bytes)
    core = None if measured.dma is None else measured.dma.cores[index]
    cost = data_ns * (packets.engine_ns - law_ns) // max(packets.engine_ns, 1)
    if packets.engine_ns > 2 * law_ns and _is(cost, 0.05, account):
        evidence: dict[str, object] = {"engine_time_ns": packets.engine_ns, "packet_law_ns": law_ns}
        if core is not None:
            slowest = max(core.queues, key=lambda group: (group.excess_ns, group.name))
            evidence |= {"slowest_queue": slowest.name, "its_excess_engine_time_ns": slowest.excess_ns}
        yield "DMA021", cost, min(cost, uncovered), evidence
    if core is not None and core.engines:
        busiest = max(core.engines, key=lambda group: (group.active_ns, group.name))
        even = packets.engine_ns // 16
        cost = busiest.active_ns - even
        if busiest.bytes * 16 > 2 * core.data_bytes and _is(cost, 0.02, account):
            yield (
                "DMA020",
                cost,
                min(cost, uncovered),
                {
                    "dma_engines_used": len(core.engines),
                    "busiest_engine": busiest.name,
                    "its_bytes": busiest.bytes,
                    "data_bytes": core.data_bytes,
                },
            )


def _small_packets(measured: _Measured, packets: DataPackets, account: CoreAnatomy, uncovered: int) -> Iterator[Raised]:
    assert account.dma is not None
    count, moved, cost = packets.small_packet_count, packets.small_bytes, packets.small_charged_ns
    many = 4 * count >= packets.packet_count or 4 * cost >= account.dma.data_ns
    if many and _is(cost, 0.02, account):
        saved = max(0, cost - duration_ns(moved, measured.plateau_bytes_per_s))
        yield (
            "DMA001",
            cost,
            min(saved, uncovered),
            {
                "packet_count": count,
                "data_packet_count": packets.packet_count,
                "bytes": moved,
                "mean_bytes": round(moved / count),
                "achieved_bytes_per_s": round(moved * 1e9 / cost),
            },
        )


def _hbm(measured: _Measured, index: int, account: CoreAnatomy) -> Iterator[Raised]:
    spill, bandwidth = measured.spill[index], measured.anatomy.bandwidth.bytes_per_s
    if account.hbm is None or not account.hbm.total_bytes():
        return
    moved, uncovered = account.hbm.total_bytes(), _uncovered_data_ns(account)
    spilled = spill.total_bytes() if spill is not None else 0
    cost = duration_ns(spilled, bandwidth)
    if 20 * spilled >= moved and _is(cost, 0.01, account):
        assert spill is not None
        yield (
            "HBM001",
            cost,
            min(cost, uncovered),
            {
                "save_bytes": spill.save_bytes,
                "reload_bytes": spill.reload_bytes,
                "hbm_bytes": moved,
                "source": spill.source,
                "kind": spill.kind,
            },
        )
    needed = measured.anatomy.needed
    # Without whole tables a spill that only they tell would be taken for a reload.
    tells_spill = measured.hbm is not None or spill is not None
    if needed is not None and tells_spill and 2 * needed.moved_bytes >= 3 * needed.needed_bytes:
        own_need = needed.needed_bytes * moved // needed.moved_bytes
        excess = max(0, moved - own_need - spilled)
        cost = duration_ns(excess, bandwidth)
        if _is(cost, 0.02, account):
            tensors = () if measured.hbm is None else measured.hbm.cores[index].tensors or ()
            worst = [tensor for tensor in tensors if tensor.reloaded_bytes]
            yield (
                "HBM002",
                cost,
                min(cost, uncovered),
                {
                    "moved_bytes": needed.moved_bytes,
                    "needed_bytes": needed.needed_bytes,
                    "reload_factor": round(needed.moved_bytes / needed.needed_bytes, 3),
                    "most_reloaded": [tensor.name for tensor in worst[:3]],
                },
            )
    if measured.boundaries is not None:
        crossing = measured.boundaries.cores[index]
        cost = sum(row.hbm_ns for row in crossing.boundaries)
        if _is(cost, 0.02, account):
            largest = crossing.boundaries[0]
            yield (
                "HBM003",
                cost,
                min(cost, uncovered),
                {
                    "kernel_calls": crossing.call_count,
                    "written_bytes": sum(row.written_bytes for row in crossing.boundaries),
                    "read_back_bytes": sum(row.read_back_bytes for row in crossing.boundaries),
                    "largest": f"{largest.writer} to {largest.reader}",
                    "kind": crossing.kind,
                },
            )


def _pair(measured: _Measured, index: int, account: CoreAnatomy) -> Iterator[Raised]:
    if len(measured.anatomy.cores) != 2:
        return
    other = measured.anatomy.cores[1 - index]
    own_ns, other_ns = account.work.total_ns(), other.work.total_ns()
    difference = own_ns - other_ns
    if difference <= 0 or not _is(difference, 0.04, account):
        return
    evidence: dict[str, object] = {"work_ns": own_ns, "partner": other.core, "partner_work_ns": other_ns}
    if 10 * other_ns < own_ns:
        yield "LNC002", difference, difference // 2, evidence
    elif 5 * difference > own_ns:
        yield "LNC001", difference, difference // 2, evidence


def _collective(measured: _Measured, index: int, account: CoreAnatomy) -> Iterator[Raised]:
    if account.collectives is None or not account.collectives.count:
        return
    exposed = account.collectives.exposed_ns
    lengths = _call_lengths(measured.anatomy)
    if _is(exposed, 0.02, account):
        evidence: dict[str, object] = {
            "calls": account.collectives.count,
            "exposed_per_call_ns": account.collectives.exposed_per_call_ns(),
        }
        # The operation with the most exposed time, or in batches, which do not split that, the most time.
        if measured.collectives is not None:
            operation, engines = measured.collectives.operations[0], measured.collectives.cores[index].engines
            evidence |= {"largest_operation": operation.name, "its_median_ns": operation.median_ns}
            evidence["waiting"] = engines[0].name if engines else None
        elif lengths:
            largest = max(lengths, key=lambda name: (sum(lengths[name]), name))
            evidence |= {"largest_operation": largest, "its_median_ns": _median(lengths[largest])}
        yield "CC001", exposed, exposed, evidence
    yield from _late_calls(account, lengths)


def _call_lengths(anatomy: Anatomy) -> dict[str, list[int]]:
    """How long each operation's calls took, on all cores; empty where there are too many to keep."""
    found: dict[str, list[int]] = {}
    for account in anatomy.cores:
        calls = account.collective_calls
        if calls is None:
            return {}
        for name, start, end in zip(calls.operation, calls.start_ts, calls.end_ts, strict=True):
            length = min(end, account.window_end_ts) - max(start, account.window_start_ts)
            found.setdefault(name, []).append(max(0, length))
    return found


def _median(lengths: list[int]) -> int:
    """The lower one of two."""
    return sorted(lengths)[(len(lengths) - 1) // 2]


def _late_calls(account: CoreAnatomy, lengths: dict[str, list[int]]) -> Iterator[Raised]:
    calls = account.collective_calls
    assert account.collectives is not None
    if calls is None:
        return
    excess, late_count, worst = 0, 0, ("", 0, 0)
    for name, all_lengths in lengths.items():
        if len(all_lengths) < 4:
            continue
        median = _median(all_lengths)
        own = [
            end - start
            for operation, start, end in zip(calls.operation, calls.start_ts, calls.end_ts, strict=True)
            if operation == name and end - start >= 2 * median
        ]
        if own:
            late_count += len(own)
            excess += sum(own) - len(own) * median
            worst = max(worst, (name, median, max(own)), key=lambda entry: entry[2])
    if _is(excess, 0.01, account):
        yield (
            "CC002",
            excess,
            min(excess, account.collectives.exposed_ns),
            {"late_calls": late_count, "operation": worst[0], "median_ns": worst[1], "longest_ns": worst[2]},
        )


def _engines(measured: _Measured, index: int, account: CoreAnatomy) -> Iterator[Raised]:
    for engine, code in (("vector", "VEC001"), ("scalar", "ACT001")):
        own, short = account.engines[engine], measured.sums[index].short.get(engine)
        if short is None or 2 * own.short_instruction_count < max(1, own.working_instruction_count):
            continue
        ceiling = min(short.high_ns, own.alone_ns)
        if _is(short.high_ns, 0.05, account) and _is(ceiling, 0.02, account):
            yield (
                code,
                short.total_ns,
                ceiling,
                {
                    "short_instruction_count": own.short_instruction_count,
                    "instruction_count": own.working_instruction_count,
                    "fixed_cost_ns": [short.low_ns, short.high_ns],
                    "active_ns": own.active_ns,
                    "alone_ns": own.alone_ns,
                    "most_in": short.most_in,
                },
            )
    gpsimd = account.engines["gpsimd"]
    if _is(gpsimd.alone_ns, 0.05, account):
        evidence: dict[str, object] = {"active_ns": gpsimd.active_ns, "alone_ns": gpsimd.alone_ns}
        yield "GPS001", gpsimd.alone_ns, gpsimd.alone_ns, evidence


def _tensor(measured: _Measured, index: int, account: CoreAnatomy) -> Iterator[Raised]:
    tensor, flops = account.engines["tensor"], measured.sums[index].flops
    if measured.throttling is not None:
        core = measured.throttling.cores[index]
        if _is(core.tensor_loss_ns, 0.02, account):
            yield (
                "THR001",
                core.tensor_loss_ns,
                core.tensor_loss_ns,
                {
                    "throttled_ns": core.throttled_ns,
                    "tensor_active_under_it_ns": sum(level.tensor_active_ns for level in core.levels),
                    "lowest_limit": f"{core.levels[0].k}/{core.levels[0].n}",
                },
            )
    if flops is None or not flops.hardware_flops:
        return
    at_peak = flops.hardware_flops * 10**9 // measured.peak_flop_per_s
    if _is(tensor.active_ns, 0.2, account) and 3 * at_peak < tensor.active_ns:
        cost = tensor.active_ns - at_peak
        yield (
            "PE001",
            cost,
            min(cost, tensor.alone_ns),
            {
                "active_ns": tensor.active_ns,
                "at_peak_ns": at_peak,
                "hardware_flops": flops.hardware_flops,
                "alone_ns": tensor.alone_ns,
            },
        )
    if flops.transpose_flops and 10 * flops.transpose_flops >= flops.hardware_flops:
        cost = tensor.active_ns * flops.transpose_flops // flops.hardware_flops
        if _is(cost, 0.02, account):
            yield (
                "PE002",
                cost,
                min(cost, tensor.alone_ns),
                {"transpose_flops": flops.transpose_flops, "hardware_flops": flops.hardware_flops},
            )


def _waits(measured: _Measured, index: int, account: CoreAnatomy) -> Iterator[Raised]:
    groups: dict[str, list[tuple[str, int, int]]] = {}
    for entry in account.wait_producers:
        if entry.producer.startswith("dma"):
            code = "WAIT001"
        elif entry.producer == OUTSIDE:
            code = "WAIT003"
        elif entry.producer in (UNRECORDED, KERNEL_OPEN, UNTRACED):
            code = "WAIT004"
        else:
            code = "WAIT002"
        groups.setdefault(code, []).append((entry.producer, entry.wait_ns, entry.wait_count))
    for code, producers in groups.items():
        cost = sum(wait_ns for _, wait_ns, _ in producers)
        if _is(cost, 0.02, account):
            yield (
                code,
                cost,
                cost,
                {
                    "waits": sum(count for _, _, count in producers),
                    "producers": {name: wait_ns for name, wait_ns, _ in producers[:3]},
                },
            )


def _shape(measured: _Measured, index: int, account: CoreAnatomy) -> Iterator[Raised]:
    work, parts = account.work, account.parts
    data, compute = work.data_only_ns + work.both_ns, work.compute_only_ns + work.both_ns
    shorter = min(data, compute)
    if _is(shorter, 0.1, account) and 2 * work.both_ns < shorter:
        cost = min(work.data_only_ns, work.compute_only_ns)
        evidence: dict[str, object] = {
            "data_only_ns": work.data_only_ns,
            "compute_only_ns": work.compute_only_ns,
            "both_ns": work.both_ns,
        }
        yield "PIPE001", cost, cost, evidence
    if _is(parts.idle_ns, 0.05, account):
        longest = [
            [gap.start_ts, gap.end_ts] for gap in account.longest_gaps if gap.wait_ns < gap.end_ts - gap.start_ts
        ]
        yield "IDLE001", parts.idle_ns, parts.idle_ns, {"longest_gaps": longest[:3]}
    if _is(parts.runtime_overhead_ns, 0.1, account):
        evidence = {
            "before_ns": account.body_start_ts - account.window_start_ts,
            "after_ns": account.window_end_ts - account.body_end_ts,
            "execution_index": measured.metadata.execution_index,
        }
        yield "RUN001", parts.runtime_overhead_ns, parts.runtime_overhead_ns, evidence


_RULES: tuple[Callable[[_Measured, int, CoreAnatomy], Iterator[Raised]], ...] = (
    _dma_packets,
    _hbm,
    _pair,
    _collective,
    _engines,
    _tensor,
    _waits,
    _shape,
)

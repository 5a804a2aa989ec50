"""What holds a step back: each known pattern with its evidence, what it costs, and what removing it can win at most."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trnprof.analyzers.anatomy import Anatomy, CoreAnatomy, duration_ns
from trnprof.analyzers.boundaries import Boundaries, measure_boundaries
from trnprof.analyzers.collectives import Collectives, measure_collectives
from trnprof.analyzers.dma_efficiency import CoreDma, DmaEfficiency, measure_dma_efficiency
from trnprof.analyzers.hbm_traffic import HbmTraffic, measure_hbm_traffic
from trnprof.analyzers.opcodes import Opcodes, measure_opcodes
from trnprof.analyzers.roofline import MatrixFlops, core_peak_flop_per_s, matrix_flops
from trnprof.analyzers.throttling import Throttling, measure_throttling
from trnprof.analyzers.wait_labels import KERNEL_OPEN, OUTSIDE, UNRECORDED, UNTRACED
from trnprof.finding_codes import finding
from trnprof.findings import Finding
from trnprof.hardware import Hardware
from trnprof.profile import Profile, codes_of, int64_of

SMALL_PACKET_BYTES = 512
"""Below it a packet's fixed cost is more than its transfer (8 ns against 19 ns), and a transfer reaches 20 % of the peak."""

Raised = tuple[str, int, int, dict[str, object]]
"""(code, cost ns, ceiling ns, evidence)."""


@dataclass(frozen=True)
class _Measured:
    """What the rules look at, measured once."""

    profile: Profile
    anatomy: Anatomy
    opcodes: Opcodes | None
    dma: DmaEfficiency | None
    hbm: HbmTraffic
    collectives: Collectives | None
    boundaries: Boundaries | None
    throttling: Throttling | None
    flops: dict[int, MatrixFlops | None]
    peak_flop_per_s: int
    plateau_bytes_per_s: int


def find_findings(profile: Profile, anatomy: Anatomy, hardware: Hardware) -> tuple[Finding, ...]:
    """Every known pattern that the capture shows, the highest ceiling first.

    One finding a code: that of the core where it costs most; `evidence.cores` has the cost on every core that shows it.

    anatomy: the account of the same profile. Thresholds are in trnprof.finding_codes; what a capture does not tell raises
    nothing.
    """
    plateau = hardware["dma.core_effective_bytes_per_s"].value
    assert isinstance(plateau, int)
    measured = _Measured(
        profile,
        anatomy,
        measure_opcodes(profile, hardware),
        measure_dma_efficiency(profile, hardware),
        measure_hbm_traffic(profile, anatomy),
        measure_collectives(profile),
        measure_boundaries(profile, anatomy),
        measure_throttling(profile),
        {core.core: matrix_flops(profile, core.core) for core in anatomy.cores},
        core_peak_flop_per_s(profile.metadata, hardware)[0],
        plateau,
    )
    raised: dict[str, list[tuple[CoreAnatomy, Raised]]] = {}
    busiest_ns = max((account.work.total_ns() for account in anatomy.cores), default=0)
    for index, account in enumerate(anatomy.cores):
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
    if measured.dma is None:
        return
    core = measured.dma.cores[index]
    uncovered = _uncovered_data_ns(account)
    yield from _small_packets(measured, core, account, uncovered)
    engine_ns = sum(group.engine_ns for group in core.queues)
    law_ns = sum(group.law_ns for group in core.queues)
    if engine_ns > 2 * law_ns and (cost := core.data_ns * (engine_ns - law_ns) // engine_ns):
        slowest = max(core.queues, key=lambda group: (group.excess_ns, group.name))
        if _is(cost, 0.05, account):
            yield (
                "DMA021",
                cost,
                min(cost, uncovered),
                {
                    "engine_time_ns": engine_ns,
                    "packet_law_ns": law_ns,
                    "slowest_queue": slowest.name,
                    "its_excess_engine_time_ns": slowest.excess_ns,
                },
            )
    if core.engines:
        busiest = max(core.engines, key=lambda group: (group.active_ns, group.name))
        even = engine_ns // 16
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


def _small_packets(measured: _Measured, core: CoreDma, account: CoreAnatomy, uncovered: int) -> Iterator[Raised]:
    small = [
        entry.group for entry in core.sizes if entry.high_bytes is not None and entry.high_bytes <= SMALL_PACKET_BYTES
    ]
    count = sum(group.packet_count for group in small)
    total = sum(entry.group.packet_count for entry in core.sizes)
    cost = sum(group.charged_ns for group in small)
    if (4 * count >= total or 4 * cost >= core.data_ns) and _is(cost, 0.02, account):
        moved = sum(group.bytes for group in small)
        saved = max(0, cost - duration_ns(moved, measured.plateau_bytes_per_s))
        yield (
            "DMA001",
            cost,
            min(saved, uncovered),
            {
                "packet_count": count,
                "data_packet_count": total,
                "bytes": moved,
                "mean_bytes": round(moved / count),
                "achieved_bytes_per_s": round(moved * 1e9 / cost),
            },
        )


def _hbm(measured: _Measured, index: int, account: CoreAnatomy) -> Iterator[Raised]:
    traffic, bandwidth = measured.hbm.cores[index], measured.anatomy.bandwidth.bytes_per_s
    if account.hbm is None or not account.hbm.total_bytes():
        return
    moved, uncovered = account.hbm.total_bytes(), _uncovered_data_ns(account)
    spilled = traffic.spill.total_bytes() if traffic.spill is not None else 0
    cost = duration_ns(spilled, bandwidth)
    if 20 * spilled >= moved and _is(cost, 0.01, account):
        assert traffic.spill is not None
        yield (
            "HBM001",
            cost,
            min(cost, uncovered),
            {
                "save_bytes": traffic.spill.save_bytes,
                "reload_bytes": traffic.spill.reload_bytes,
                "hbm_bytes": moved,
                "source": traffic.spill.source,
                "kind": traffic.spill.kind,
            },
        )
    needed = measured.anatomy.needed
    if needed is not None and 2 * needed.moved_bytes >= 3 * needed.needed_bytes:
        own_need = needed.needed_bytes * moved // needed.moved_bytes
        excess = max(0, moved - own_need - spilled)
        cost = duration_ns(excess, bandwidth)
        if _is(cost, 0.02, account):
            worst = [tensor for tensor in traffic.tensors or () if tensor.reloaded_bytes]
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
    if measured.collectives is None or account.collectives is None or not account.collectives.count:
        return
    exposed = account.collectives.exposed_ns
    if _is(exposed, 0.02, account):
        core = measured.collectives.cores[index]
        largest = measured.collectives.operations[0]
        yield (
            "CC001",
            exposed,
            exposed,
            {
                "calls": account.collectives.count,
                "exposed_per_call_ns": account.collectives.exposed_per_call_ns(),
                "largest_operation": largest.name,
                "its_median_ns": largest.median_ns,
                "waiting": core.engines[0].name if core.engines else None,
            },
        )
    yield from _late_calls(measured, account)


def _late_calls(measured: _Measured, account: CoreAnatomy) -> Iterator[Raised]:
    table = measured.profile.core_rows("collectives", account.core)
    assert table is not None and measured.collectives is not None and account.collectives is not None
    codes, names = codes_of(table["operation"])
    length = int64_of(table["end_ts"]) - int64_of(table["start_ts"])
    excess, late_count, worst = 0, 0, ("", 0, 0)
    for operation in measured.collectives.operations:
        if operation.name not in names or operation.call_count < 4:
            continue
        own = length[codes == names.index(operation.name)]
        late = own[own >= 2 * operation.median_ns] - operation.median_ns
        if len(late):
            late_count += len(late)
            excess += int(late.sum())
            worst = max(
                worst, (operation.name, operation.median_ns, int(late.max()) + operation.median_ns), key=lambda e: e[2]
            )
    if _is(excess, 0.01, account):
        yield (
            "CC002",
            excess,
            min(excess, account.collectives.exposed_ns),
            {"late_calls": late_count, "operation": worst[0], "median_ns": worst[1], "longest_ns": worst[2]},
        )


def _engines(measured: _Measured, index: int, account: CoreAnatomy) -> Iterator[Raised]:
    for engine, code in (("vector", "VEC001"), ("scalar", "ACT001")):
        own = account.engines[engine]
        if measured.opcodes is None or 2 * own.short_instruction_count < max(1, own.working_instruction_count):
            continue
        opcodes = [row for row in measured.opcodes.cores[index].opcodes if row.engine == engine and row.fixed_cost]
        low = sum(row.fixed_cost.low_ns for row in opcodes if row.fixed_cost)
        high = sum(row.fixed_cost.high_ns for row in opcodes if row.fixed_cost)
        ceiling = min(high, own.alone_ns)
        if _is(high, 0.05, account) and _is(ceiling, 0.02, account):
            top = max(opcodes, key=lambda row: (row.short_ns, row.opcode))
            yield (
                code,
                sum(row.short_ns for row in opcodes),
                ceiling,
                {
                    "short_instruction_count": own.short_instruction_count,
                    "instruction_count": own.working_instruction_count,
                    "fixed_cost_ns": [low, high],
                    "active_ns": own.active_ns,
                    "alone_ns": own.alone_ns,
                    "most_in": top.opcode,
                },
            )
    gpsimd = account.engines["gpsimd"]
    if _is(gpsimd.alone_ns, 0.05, account):
        evidence: dict[str, object] = {"active_ns": gpsimd.active_ns, "alone_ns": gpsimd.alone_ns}
        yield "GPS001", gpsimd.alone_ns, gpsimd.alone_ns, evidence


def _tensor(measured: _Measured, index: int, account: CoreAnatomy) -> Iterator[Raised]:
    tensor, flops = account.engines["tensor"], measured.flops[account.core]
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
            "execution_index": measured.profile.metadata.execution_index,
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

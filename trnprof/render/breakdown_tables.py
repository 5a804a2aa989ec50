"""Analyzers' results as the tables of a breakdown: which figures, in which order, and what is said under them."""

from __future__ import annotations

from trnprof.analyzers.anatomy import SHORT_INSTRUCTION_NS
from trnprof.analyzers.boundaries import Boundaries
from trnprof.analyzers.bounds import BOUND_MEANING, Bounds
from trnprof.analyzers.collectives import Collectives, Waiter
from trnprof.analyzers.dma_efficiency import DmaEfficiency, PacketGroup, SizeClass
from trnprof.analyzers.hbm_traffic import HbmTraffic
from trnprof.analyzers.opcodes import Opcodes
from trnprof.analyzers.roofline import Roofline
from trnprof.analyzers.source_cost import SourceCosts
from trnprof.analyzers.throttling import Throttling
from trnprof.render.breakdown import BreakdownTable, Column, Row
from trnprof.render.text import byte_count, duration, rate

_OVERLAP = "charged: where events overlap, the one that began first; so these sum to the account's active time."


def opcode_tables(result: Opcodes) -> list[BreakdownTable]:
    """One table a core."""
    columns = (
        Column("name", "engine and opcode", "text"),
        Column("charged_ns", "charged", "ns", sums=True),
        Column("instruction_count", "instrs", "count", sums=True),
        Column("mean_ns", "mean", "ns"),
        Column("short_instruction_count", "short", "count", sums=True),
        Column("fixed_cost_ns", "fixed cost", "ns_range"),
    )
    costs = ", ".join(f"{engine} {cost.basis}" for engine, cost in result.issue_costs.items())
    notes = (
        _OVERLAP,
        f"short: below {SHORT_INSTRUCTION_NS} ns. Their fixed cost: count x issue cost, at most what they took: {costs}.",
        f"issue costs from {result.issue_cost_source}.",
    )
    return [
        BreakdownTable(
            "instructions by engine and opcode",
            columns,
            tuple(
                {
                    "name": f"{row.engine} {row.opcode}",
                    "charged_ns": row.charged_ns,
                    "instruction_count": row.instruction_count,
                    "mean_ns": row.mean_ns,
                    "short_instruction_count": row.short_instruction_count,
                    "fixed_cost_ns": None
                    if row.fixed_cost is None
                    else [row.fixed_cost.low_ns, row.fixed_cost.high_ns],
                    "total_ns": row.total_ns,
                    "active_ns": row.active_ns,
                    "waits": row.waits,
                }
                for row in core.opcodes
            ),
            core.core,
            notes,
        )
        for core in result.cores
    ]


def source_tables(result: SourceCosts) -> list[BreakdownTable]:
    """One table a core, by line, layer, kernel or compiler instruction."""
    columns = (
        Column("name", result.key, "text"),
        Column("busy_ns", "engine time", "ns", sums=True),
        Column("wait_ns", "waits", "ns", sums=True),
        Column("hbm_bytes", "HBM", "bytes", sums=True),
        Column("instruction_count", "instrs", "count", sums=True),
    )
    tables = []
    for core in result.cores:
        share = core.attributed_share
        note = () if share is None else (f"core {core.core}: {100 * share:.1f} % of engine time and waits has a name.",)
        rows: tuple[Row, ...] = tuple(
            {
                "name": row.name,
                "busy_ns": row.busy_ns,
                "wait_ns": row.wait_ns,
                "hbm_bytes": row.hbm_read_bytes + row.hbm_write_bytes,
                "instruction_count": row.instruction_count,
                "engine_ns": {engine: ns for engine, ns in row.engine_ns.items() if ns},
            }
            for row in core.rows
        )
        tables.append(BreakdownTable(f"cost by {result.key}", columns, rows, core.core, (_OVERLAP, *note)))
    return tables


_PACKETS = (
    Column("charged_ns", "charged", "ns", sums=True),
    Column("bytes", "bytes", "bytes", sums=True),
    Column("packet_count", "packets", "count", sums=True),
    Column("engine_ns", "engine time", "ns", sums=True),
    Column("law_ns", "packet law", "ns", sums=True),
)


def _group_row(group: PacketGroup) -> Row:
    return {
        "name": group.name,
        "charged_ns": group.charged_ns,
        "bytes": group.bytes,
        "packet_count": group.packet_count,
        "mean_bytes": group.mean_bytes,
        "engine_ns": group.engine_ns,
        "law_ns": group.law_ns,
        "active_ns": group.active_ns,
        "dma_engine_count": group.dma_engine_count,
    }


def _law_note(result: DmaEfficiency) -> str:
    return (
        f"packet law: {result.packet_overhead_ns:g} ns + bytes ÷ {result.packet_rate_bytes_per_ns:g} B/ns a packet "
        f"[{result.law_source}]; engine time beyond it is contention, strides, casts or transposes."
    )


def queue_tables(result: DmaEfficiency) -> list[BreakdownTable]:
    """Data packets by queue, one table a core."""
    columns = (Column("name", "queue", "text"), *_PACKETS)
    return [
        BreakdownTable(
            "data packets by queue",
            columns,
            tuple(_group_row(group) for group in core.queues),
            core.core,
            (_OVERLAP, _law_note(result)),
        )
        for core in result.cores
    ]


def dma_engine_tables(result: DmaEfficiency) -> list[BreakdownTable]:
    """Data packets by DMA engine, one table a core that tells them."""
    columns = (Column("name", "DMA engine", "text"), *_PACKETS)
    return [
        BreakdownTable(
            "data packets by DMA engine", columns, tuple(map(_group_row, core.engines)), core.core, (_OVERLAP,)
        )
        for core in result.cores
        if core.engines is not None
    ]


def _size_row(entry: SizeClass) -> Row:
    group, reach = entry.group, entry.achievable
    achieved = None if not group.charged_ns else group.bytes * 1e9 / group.charged_ns
    limits = {"low_bytes": entry.low_bytes, "high_bytes": entry.high_bytes}
    rates = {
        "achieved_bytes_per_s": achieved,
        "achievable_bytes_per_s": [reach.low_bytes_per_s, reach.high_bytes_per_s],
    }
    return _group_row(group) | limits | rates


def size_tables(result: DmaEfficiency) -> list[BreakdownTable]:
    """The packet size histogram, and what all packets are for, per core."""
    columns = (
        Column("name", "packet size", "text"),
        Column("charged_ns", "charged", "ns", sums=True),
        Column("bytes", "bytes", "bytes", sums=True),
        Column("packet_count", "packets", "count", sums=True),
        Column("achieved_bytes_per_s", "achieved", "rate"),
        Column("achievable_bytes_per_s", "achievable", "rate_range"),
    )
    kinds = (
        Column("name", "purpose", "text"),
        Column("packet_count", "packets", "count", sums=True),
        Column("bytes", "bytes", "bytes", sums=True),
        Column("engine_ns", "engine time", "ns", sums=True),
    )
    note = (
        f"achievable: from the vendor's curve by bytes a partition, one stream [{result.curve_source}], to the packet law "
        f"with all DMA engines busy [{result.law_source}]."
    )
    tables = []
    for core in result.cores:
        rows = tuple(map(_size_row, core.sizes))
        tables.append(BreakdownTable("data packets by size", columns, rows, core.core, (_OVERLAP, note)))
        purposes: tuple[Row, ...] = tuple(dict(vars(kind)) for kind in core.kinds if kind.packet_count)
        tables.append(BreakdownTable("all packets by purpose", kinds, purposes, core.core))
    return tables


def tensor_tables(result: HbmTraffic) -> list[BreakdownTable]:
    """HBM traffic by purpose and, where the capture names tensors, by tensor."""
    purposes = (
        Column("name", "HBM traffic", "text"),
        Column("bytes", "bytes", "bytes"),
        Column("source", "source", "text"),
    )
    columns = (
        Column("name", "tensor", "text"),
        Column("kind", "kind", "text"),
        Column("read_bytes", "read", "bytes", sums=True),
        Column("write_bytes", "written", "bytes", sums=True),
        Column("transfer_count", "DMAs", "count", sums=True),
        Column("reloaded_bytes", "again", "bytes", sums=True),
        Column("load_factor", "x", "number"),
    )
    tables = []
    for core in result.cores:
        notes = ["spilled and loaded again are part of the total."]
        if result.needed is not None:
            notes.append(
                f"over all cores: {byte_count(result.needed.moved_bytes)} moved for {byte_count(result.needed.needed_bytes)} "
                f"needed, {result.reload_factor or 0:.2f} times."
            )
        hbm, spill = core.hbm, core.spill
        rows: list[Row] = [
            {"name": name, "bytes": value, "source": "" if hbm is None else f"{hbm.kind}: {hbm.source}"}
            for name, value in (
                ("read", None if hbm is None else hbm.read_bytes),
                ("written", None if hbm is None else hbm.write_bytes),
                ("of unknown direction", None if hbm is None else hbm.undirected_bytes),
                ("total", None if hbm is None else hbm.total_bytes()),
            )
        ]
        origin = "" if spill is None else f"{spill.kind}: {spill.source}"
        rows.append({"name": "spills saved", "bytes": None if spill is None else spill.save_bytes, "source": origin})
        rows.append(
            {"name": "spills reloaded", "bytes": None if spill is None else spill.reload_bytes, "source": origin}
        )
        rows.append({"name": "tensors loaded again", "bytes": core.reloaded_bytes, "source": ""})
        rows.append({"name": "useful", "bytes": core.useful_bytes, "source": "total less the three above"})
        tables.append(BreakdownTable("HBM traffic", purposes, tuple(rows), core.core, tuple(notes)))
        if core.tensors is not None:
            listed = tuple(dict(vars(tensor)) | {"load_factor": tensor.load_factor} for tensor in core.tensors)
            tables.append(BreakdownTable("HBM traffic by tensor", columns, listed, core.core))
    return tables


def collective_tables(result: Collectives) -> list[BreakdownTable]:
    """Operations over all cores, then who waited on each core."""
    columns = (
        Column("name", "operation", "text"),
        Column("call_count", "calls", "count", sums=True),
        Column("median_ns", "median", "ns"),
        Column("longest_ns", "longest", "ns"),
        Column("longest_on", "on", "text"),
        Column("exposed_ns", "exposed", "ns", sums=True),
        Column("total_ns", "in all", "ns", sums=True),
    )
    rows: tuple[Row, ...] = tuple(
        {
            "name": operation.name,
            "call_count": operation.call_count,
            "median_ns": operation.median_ns,
            "longest_ns": operation.longest.duration_ns,
            "longest_on": f"core {operation.longest.core}"
            + ("" if operation.longest.rank is None else f" rank {operation.longest.rank}"),
            "longest_start_ts": operation.longest.start_ts,
            "exposed_ns": operation.exposed_ns,
            "total_ns": operation.total_ns,
            "bytes": operation.bytes,
        }
        for operation in result.operations
    )
    note = "median and longest lead: the mean of a late rank and seven others is nobody's time."
    tables = [BreakdownTable("collectives by operation", columns, rows, None, (note,))]
    for core in result.cores:
        tables.append(_waiting("exposed time by the engine that waited", core.core, core.engines))
        if core.kernels is not None:
            tables.append(_waiting("exposed time by kernel", core.core, core.kernels))
    return tables


def _waiting(title: str, core: int, waiters: tuple[Waiter, ...]) -> BreakdownTable:
    columns = (Column("name", "who", "text"), Column("exposed_ns", "exposed", "ns", sums=True))
    return BreakdownTable(title, columns, tuple(dict(vars(waiter)) for waiter in waiters), core)


def boundary_tables(result: Boundaries) -> list[BreakdownTable]:
    """HBM round trips between kernels, one table a core."""
    columns = (
        Column("name", "from → to", "text"),
        Column("hbm_ns", "both ways", "ns", sums=True),
        Column("written_bytes", "written", "bytes", sums=True),
        Column("read_back_bytes", "read back", "bytes", sums=True),
        Column("crossing_count", "crossings", "count", sums=True),
    )
    tables = []
    for core in result.cores:
        missing = core.not_attributed_bytes
        notes = [
            f"core {core.core}: {core.call_count} kernel calls, {duration(core.between_ns)} of the body between them; bytes "
            f"are {core.kind}"
            + ("" if missing is None else f", {byte_count(missing)} read of tensors without a name")
            + ".",
            f"both ways: bytes ÷ {rate(result.bandwidth.bytes_per_s)}, what the round trip costs where nothing covers it.",
        ]
        rows: tuple[Row, ...] = tuple(
            {"name": f"{row.writer} → {row.reader}"} | dict(vars(row)) for row in core.boundaries
        )
        tables.append(BreakdownTable("HBM between kernels", columns, rows, core.core, tuple(notes)))
    return tables


def throttle_tables(result: Throttling) -> list[BreakdownTable]:
    """Time at each utilisation limit, one table a core."""
    columns = (
        Column("name", "limit", "text"),
        Column("throttled_ns", "throttled", "ns", sums=True),
        Column("tensor_active_ns", "tensor active", "ns", sums=True),
        Column("tensor_loss_ns", "at most lost", "ns", sums=True),
    )
    tables = []
    for core in result.cores:
        rows: tuple[Row, ...] = tuple({"name": f"{level.k}/{level.n}"} | dict(vars(level)) for level in core.levels)
        notes = tuple(
            f"core {core.core} {cause.type}: {cause.interval_count} intervals, {duration(cause.throttled_ns)}, mean limit "
            f"{cause.avg_util_limit:.3f}."
            for cause in core.causes
        )
        tables.append(BreakdownTable("throttling", columns, rows, core.core, notes))
    return tables


_GAPS = {
    "dma_idle": "total_time − memory_bound",
    "dma_inefficiency": "memory_bound − memory_bound_ideal",
    "excess_traffic": "memory_bound_ideal − memory_bound_ideal_no_reloads",
    "tensor_idle": "total_time − compute_bound",
    "tensor_underutilization": "compute_bound − compute_bound_ideal_flops",
    "transposes": "compute_bound_ideal_flops − compute_bound_ideal_useful_flops",
    "serialization": "total_time − perfect_pipeline",
}


def bounds_tables(result: Bounds) -> list[BreakdownTable]:
    """The vendor's ladder and its gaps, two tables a core."""
    columns = (Column("name", "bound", "text"), Column("time_ns", "time", "ns"), Column("meaning", "assumes", "text"))
    tables = []
    for core in result.cores:
        ladder: tuple[Row, ...] = tuple(
            {"name": name, "time_ns": value, "meaning": BOUND_MEANING[name]} for name, value in core.bounds_ns.items()
        )
        notes = (
            f"core {core.core}: perfect_pipeline is set by {core.bottleneck}.",
            f"peaks: DMA {rate(result.dma_peak_bytes_per_s)} ({result.dma_peak_source}); tensor engine "
            f"{result.core_peak_flop_per_s / 1e12:.1f} TFLOP/s bf16 = {result.peak_source}. Bounds and gaps show where time "
            "is, not what a change wins: engines depend on each other.",
        )
        tables.append(BreakdownTable("bounds", columns, ladder, core.core, notes))
        gaps: tuple[Row, ...] = tuple(
            {"name": name, "time_ns": value, "meaning": _GAPS[name]} for name, value in core.gaps_ns().items()
        )
        tables.append(BreakdownTable("gaps between bounds", columns, gaps, core.core))
    return tables


def roofline_tables(result: Roofline) -> list[BreakdownTable]:
    """Each core under its ceilings, then AWS's metrics of the logical core."""
    columns = (Column("name", "metric", "text"), Column("value", "value", "number"), Column("unit", "unit", "text"))
    tables = []
    for core in result.cores:
        flops = core.flops
        figures: list[tuple[str, object, str]] = [
            ("hardware_flops", None if flops is None else flops.hardware_flops, "FLOP"),
            ("transpose_flops", None if flops is None else flops.transpose_flops, "FLOP"),
            ("hbm_bytes", core.hbm_bytes, "B"),
            ("arithmetic_intensity", core.arithmetic_intensity, "FLOP/B"),
            ("achieved_flop_per_s", core.achieved_flop_per_s, "FLOP/s"),
            ("attainable_flop_per_s", core.attainable_flop_per_s, "FLOP/s"),
        ]
        notes = [
            f"core {core.core}: bound by {core.bound}."
            if core.bound
            else f"core {core.core}: n/a (no flops or no HBM bytes)."
        ]
        if core.impossible:
            notes.append(f"core {core.core}: rejected, {core.impossible}.")
        rows: tuple[Row, ...] = tuple({"name": name, "value": value, "unit": unit} for name, value, unit in figures)
        tables.append(BreakdownTable("roofline", columns, rows, core.core, tuple(notes)))
    units = {"mm_arithmetic_intensity": "FLOP/B", "peak_flops_bandwidth_ratio": "FLOP/B"}
    metrics: tuple[Row, ...] = tuple(
        {"name": name, "value": value, "unit": units.get(name, "share")} for name, value in result.metrics.items()
    )
    note = (
        f"ceilings of one core: {result.core_peak_flop_per_s / 1e12:.1f} TFLOP/s bf16 = {result.peak_source}; "
        f"{rate(result.bandwidth.bytes_per_s)} [{result.bandwidth.source}]. AWS's metrics are of the whole logical core; "
        "their percents are shares of 1."
    )
    tables.append(BreakdownTable("AWS's utilisation metrics", columns, metrics, None, (note,)))
    return tables

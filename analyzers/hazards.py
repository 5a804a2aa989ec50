"""What in a kernel costs DMA time or goes wrong on the device: one Finding with a stable code, a line, a cost, an advice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from trnprof.analyzers.dma_prediction import LIMIT_NOTES
from trnprof.analyzers.hazard_costs import HazardCosts, device_finding, finding
from trnprof.analyzers.predicted_dma import PredictedDma, PredictedLine
from trnprof.analyzers.program_order import (
    diverging_programs,
    interleaved_accumulations,
    shared_exchanges,
    unfenced_collectives,
)
from trnprof.analyzers.tensor_hazards import tensor_hazards
from trnprof.findings import Finding
from trnprof.hardware.dma_model import DmaModel
from trnprof.nki.recording import DmaRecord, Indirection, Memory, Recording

SMALL_ELEMENT_BYTES = 512
"""Below this the packet's fixed time is more than 30 % of it: 8 ns of 8 + 512/27.2 = 27 ns."""
RECOMMENDED_ELEMENT_BYTES = 2048
MAX_STATIC_DESCRIPTORS = 1 << 20
"""Descriptors of a static ring above which loading is at risk (a ring of 16 Mi failed to load, aws-neuron-sdk#980)."""
NEGLIGIBLE_SHARE = 0.01
SMALL_GATHER_COUNT = 64
"""Fewer small dynamic transfers than this are not worth a warning."""


def find_hazards(recording: Recording, predicted: PredictedDma, model: DmaModel) -> tuple[Finding, ...]:
    """All findings of one kernel: what fails on the device first, then by cost.

    predicted: what predict_dma made of `recording` with `model`.
    """
    costs = HazardCosts(predicted, model)
    order = (
        ("HAZ002", interleaved_accumulations),
        ("HAZ003", unfenced_collectives),
        ("HAZ004", diverging_programs),
        ("HAZ005", shared_exchanges),
    )
    found = [
        device_finding(code, message=hit.message, source=hit.source, **hit.evidence)
        for code, hits in order
        for hit in hits(recording)
    ]
    found += _overflows(predicted)
    found += _type_mismatches(recording)
    found += _broken_limits(recording)
    for line in predicted.lines:
        found += _line_findings(line, costs)
    found += _gathers(recording, costs)
    found += _static_rings(predicted, costs)
    found += _partition_broadcasts(recording, costs)
    found += _unmodelled(predicted, costs)
    found += tensor_hazards(recording, costs)
    return tuple(sorted(found, key=lambda one: (not one.code.startswith("HAZ"), -(one.cost_ns or 0), one.code)))


def _line_findings(line: PredictedLine, costs: HazardCosts) -> Iterator[Finding]:
    size, cores = line.element_bytes.median, max(costs.predicted.lnc, 1)
    place = {"source": line.source, "direction": line.direction}
    # An implicit load is not the author's to change, and a register or scalar is as small as it is.
    if line.implicit or not line.descriptor_count:
        return
    if size < RECOMMENDED_ELEMENT_BYTES:
        code = "DMA001" if size < SMALL_ELEMENT_BYTES else "DMA013"
        cost = max(0.0, costs.data_ns(line) - costs.ideal_ns(line.bytes // cores))
        if code == "DMA013" and cost < NEGLIGIBLE_SHARE * (costs.total_ns or 0):
            return  # merged packets or few of them
        unit = "B/partition" if line.partition_count else "B"
        yield finding(
            code,
            costs,
            cost,
            message=f"{line.descriptor_count:,} descriptors of {size:,} {unit} < {_size_text(code)}",
            **place,
            descriptor_count=line.descriptor_count,
            element_bytes=size,
            bytes=line.bytes,
        )
    if 0 < line.partition_count < 128:
        idle = 1 - line.engine_count / costs.model["engine_count"]
        yield finding(
            "DMA002",
            costs,
            costs.data_ns(line) * idle,
            message=f"{line.partition_count} of 128 partitions, so {line.engine_count} of "
            f"{costs.model['engine_count']:g} DMA engines work",
            **place,
            partition_count=line.partition_count,
            engine_count=line.engine_count,
            bytes=line.bytes,
        )
    per_partition = line.descriptor_count / max(1, line.dma_count * max(1, line.partition_count))
    if line.strided and per_partition > 1 and line.partition_count:
        yield finding(
            "DMA003",
            costs,
            max(0.0, costs.data_ns(line) - costs.ideal_ns(line.bytes // cores)),
            message=f"{per_partition:,.4g} descriptors of {size:,} B a partition where one would do",
            **place,
            descriptor_count=line.descriptor_count,
            element_bytes=size,
        )
    if line.cast:
        yield finding(
            "DMA004",
            costs,
            costs.data_ns(line) * (1 - 1 / costs.model["cast_factor"]),
            message=f"reads {line.read_bytes:,} B and writes {line.write_bytes:,} B",
            **place,
            read_bytes=line.read_bytes,
            write_bytes=line.write_bytes,
        )
    if line.transpose:
        name = "transpose_hbm_efficiency" if "hbm" in line.direction else "transpose_sbuf_efficiency"
        efficiency = costs.model[name]
        yield finding(
            "DMA005",
            costs,
            costs.data_ns(line) * (1 - efficiency),
            message=f"{line.bytes:,} B placed element by element: at best {efficiency:g} of the copy rate",
            **place,
            bytes=line.bytes,
        )


def _size_text(code: str) -> str:
    return "512 B (and 2 KiB is the recommended minimum)" if code == "DMA001" else "2 KiB"


def _gathers(recording: Recording, costs: HazardCosts) -> Iterator[Finding]:
    """Small transfers whose descriptors the device makes from indices, registers or a DGE mode."""
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    loops: dict[str, str] = {}
    lines: dict[str, PredictedLine] = {line.source: line for line in costs.predicted.lines}
    for program in recording.programs:
        for record in program.dma:
            dynamic = any(side.indirection is not Indirection.NONE for side in (*record.reads, record.write))
            if not (dynamic or record.dge_mode in ("swdge", "hwdge")) or record.implicit:
                continue
            source = str(record.site)
            executions = record.execution_count * program.stands_for
            transfers, moved = _elements(record)
            sums[source][0] += executions * transfers
            sums[source][1] += executions * moved
            if record.loops:
                loops.setdefault(source, str(record.loops[-1].loop.site))
    for source, (transfers, moved) in sorted(sums.items()):
        if transfers < SMALL_GATHER_COUNT or moved / transfers >= SMALL_ELEMENT_BYTES:
            continue
        line = lines.get(source)
        if line is not None and line.partition_count >= 128 and not _is_dynamic(recording, source):
            continue  # a plain DGE copy with short rows: DMA001 says it
        cost = None if line is None else max(0.0, line.time_ns.mid - costs.ideal_ns(line.bytes))
        where = f" (loop at {loops[source]})" if source in loops else ""
        yield finding(
            "DMA010",
            costs,
            cost,
            message=f"{transfers:,} transfers, {moved:,} B, {moved / transfers:,.4g} B on average{where}; coalesce to 4 KiB or more",
            source=source,
            loop=loops.get(source),
            transfer_count=transfers,
            bytes=moved,
            average_bytes=round(moved / transfers, 1),
        )


def _elements(record: DmaRecord) -> tuple[int, int]:
    """(rows that are placed one by one, bytes) of one execution."""
    side = next((side for side in (*record.reads, record.write) if side.indirection is Indirection.GATHER), None)
    moved = record.write.byte_count
    if side is None or side.indirect_axis is None:
        return 1, moved
    return max(1, side.pattern[side.indirect_axis][1]), moved


def _is_dynamic(recording: Recording, source: str) -> bool:
    return any(
        side.indirection is not Indirection.NONE
        for program in recording.programs
        for record in program.dma
        if str(record.site) == source
        for side in (*record.reads, record.write)
    )


def _static_rings(predicted: PredictedDma, costs: HazardCosts) -> Iterator[Finding]:
    static = [line for line in predicted.lines if line.mode == "none" or line.mode_is_assumed]
    total = sum(line.descriptor_count for line in static)
    if total < MAX_STATIC_DESCRIPTORS:
        return
    worst = max(static, key=lambda line: line.descriptor_count)
    yield finding(
        "DMA008",
        costs,
        None,
        message=f"{total:,} static descriptors if no DGE mode is used: ring and HBM cost, and a load that may fail; use DGE or coalesce",
        source=worst.source,
        descriptor_count=total,
    )


def _partition_broadcasts(recording: Recording, costs: HazardCosts) -> Iterator[Finding]:
    seen: set[str] = set()
    for program in recording.programs:
        for record in program.dma:
            source = str(record.site)
            if source in seen or record.write.memory is not Memory.SBUF or not record.reads:
                continue
            read = record.reads[0]
            if read.memory is Memory.HBM and read.pattern and read.pattern[0][0] == 0 and read.pattern[0][1] > 1:
                seen.add(source)
                copies = read.pattern[0][1]
                yield finding(
                    "DMA011",
                    costs,
                    None,
                    message=f"{read.byte_count // copies:,} B of {read.name} go to {copies} partitions: {read.byte_count:,} B moved",
                    source=source,
                    bytes=read.byte_count,
                    distinct_bytes=read.byte_count // copies,
                )


def _type_mismatches(recording: Recording) -> Iterator[Finding]:
    seen: set[str] = set()
    for program in recording.programs:
        for record in program.dma:
            types = {access.dtype for access in (*record.reads, record.write)}
            source = str(record.site)
            if record.dge_mode == "hwdge" and len(types) > 1 and source not in seen:
                seen.add(source)
                sides = f"{record.reads[0].dtype} to {record.write.dtype}"
                yield device_finding("HAZ001", message=f"{sides} with dge_mode hwdge", source=source)


def _overflows(predicted: PredictedDma) -> Iterator[Finding]:
    for code, memory in (("HAZ006", predicted.sbuf), ("HAZ007", predicted.psum)):
        if memory.overflows:
            yield device_finding(
                code,
                message=f"{memory.peak_bytes_per_partition:,} B of a partition live at once, "
                f"{memory.capacity_bytes_per_partition:,} B are there",
                peak_bytes_per_partition=memory.peak_bytes_per_partition,
                capacity_bytes_per_partition=memory.capacity_bytes_per_partition,
            )


def _broken_limits(recording: Recording) -> Iterator[Finding]:
    seen: set[tuple[str, str]] = set()
    for note in recording.notes:
        source = str(note.site) if note.site else None
        if note.code in LIMIT_NOTES and (note.code, str(source)) not in seen:
            seen.add((note.code, str(source)))
            yield device_finding("HAZ009", message=note.message, source=source, limit=note.code)


def _unmodelled(predicted: PredictedDma, costs: HazardCosts) -> Iterator[Finding]:
    for call in predicted.unmodelled:
        yield finding(
            "DMA012",
            costs,
            None,
            message=f"{call.operation} ({call.reason}), {call.count:,} calls: in no sum",
            source=call.source,
            operation=call.operation,
            count=call.count,
        )

"""What in a kernel costs DMA time or goes wrong on the device: one Finding with a stable code, a line, a cost, an advice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from trnprof.analyzers.dma_prediction import LIMIT_NOTES, PredictedDma, PredictedLine, direction_of
from trnprof.analyzers.program_order import (
    Hit,
    diverging_programs,
    interleaved_accumulations,
    shared_exchanges,
    unfenced_collectives,
)
from trnprof.findings import Finding
from trnprof.hardware.dma_model import DmaModel
from trnprof.nki.hazard_codes import HAZARD_CODES
from trnprof.nki.recording import Allocation, DmaRecord, Indirection, Memory, ProgramTrace, Recording
from trnprof.nki.traffic import tensor_traffic

SMALL_ELEMENT_BYTES = 512
"""Below this the packet's fixed time is more than 30 % of it: 8 ns of 8 + 512/27.2 = 27 ns."""
RECOMMENDED_ELEMENT_BYTES = 2048
SATURATING_ELEMENT_BYTES = 4096
MAX_STATIC_DESCRIPTORS = 1 << 20
"""Descriptors of a static ring above which loading is at risk (a ring of 16 Mi failed to load, aws-neuron-sdk#980)."""
NEGLIGIBLE_SHARE = 0.01
SMALL_GATHER_COUNT = 64
"""Fewer small dynamic transfers than this are not worth a warning."""


def find_hazards(recording: Recording, predicted: PredictedDma, model: DmaModel) -> tuple[Finding, ...]:
    """All findings of one kernel: what fails on the device first, then by cost.

    predicted: what predict_dma made of `recording` with `model`.
    """
    costs = _Costs(predicted, model)
    found = [
        *_overflows(predicted),
        *(_order_finding("HAZ002", hit) for hit in interleaved_accumulations(recording)),
        *(_order_finding("HAZ003", hit) for hit in unfenced_collectives(recording)),
        *(_order_finding("HAZ004", hit) for hit in diverging_programs(recording)),
        *(_order_finding("HAZ005", hit) for hit in shared_exchanges(recording)),
        *_type_mismatches(recording, costs),
        *_unwritten_outputs(recording),
        *_broken_limits(recording),
    ]
    found += [
        *(finding for line in predicted.lines for finding in _line_findings(line, costs)),
        *_gathers(recording, costs),
        *_reloads(predicted, costs),
        *_ragged_tails(recording, costs),
        *_static_rings(predicted, costs),
        *_partition_broadcasts(recording, costs),
        *_unmodelled(predicted, costs),
        *_intermediates(recording, costs),
        *_boundary(recording, costs),
    ]
    return tuple(
        sorted(found, key=lambda finding: (not finding.code.startswith("HAZ"), -(finding.cost_ns or 0), finding.code))
    )


@dataclass(frozen=True)
class _Costs:
    """The prediction's total and the model, for costs and shares."""

    predicted: PredictedDma
    model: DmaModel

    @property
    def total_ns(self) -> int | None:
        total = self.predicted.total
        return total.time_ns.mid if total and total.time_ns.mid else None

    def ideal_ns(self, moved: int) -> float:
        """Time of `moved` bytes in elements that saturate, on all engines."""
        packet_ns = self.model["packet_overhead_ns"] + SATURATING_ELEMENT_BYTES / self.model["packet_rate_bytes_per_ns"]
        return moved / (self.model["engine_count"] * SATURATING_ELEMENT_BYTES) * packet_ns

    def data_ns(self, line: PredictedLine) -> float:
        """The line's mid time without what issuing its DMAs costs."""
        cores = max(self.predicted.lnc, 1)
        return max(0.0, line.time_ns.mid - line.dma_count / cores * self.model["issue_ns"])


def _finding(code: str, costs: _Costs, cost_ns: float | None, *, message: str, **evidence: object) -> Finding:
    known = HAZARD_CODES[code]
    cost = None if cost_ns is None else round(cost_ns)
    total = costs.total_ns
    share = round(cost / total, 4) if cost is not None and total else None
    return Finding(code, known.title, cost, share, {**evidence, "message": message}, known.advice)


def _order_finding(code: str, hit: Hit) -> Finding:
    known = HAZARD_CODES[code]
    evidence: dict[str, object] = {"source": hit.source, **hit.evidence, "message": hit.message}
    return Finding(code, known.title, None, None, evidence, known.advice)


def _line_findings(line: PredictedLine, costs: _Costs) -> Iterator[Finding]:
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
        yield _finding(
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
        yield _finding(
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
        yield _finding(
            "DMA003",
            costs,
            max(0.0, costs.data_ns(line) - costs.ideal_ns(line.bytes // cores)),
            message=f"{per_partition:,.4g} descriptors of {size:,} B a partition where one would do",
            **place,
            descriptor_count=line.descriptor_count,
            element_bytes=size,
        )
    if line.cast:
        yield _finding(
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
        yield _finding(
            "DMA005",
            costs,
            costs.data_ns(line) * (1 - efficiency),
            message=f"{line.bytes:,} B placed element by element: at best {efficiency:g} of the copy rate",
            **place,
            bytes=line.bytes,
        )


def _size_text(code: str) -> str:
    return "512 B (and 2 KiB is the recommended minimum)" if code == "DMA001" else "2 KiB"


def _gathers(recording: Recording, costs: _Costs) -> Iterator[Finding]:
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
        yield _finding(
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


def _reloads(predicted: PredictedDma, costs: _Costs) -> Iterator[Finding]:
    for tensor in predicted.tensors:
        factor = tensor.reload_factor
        if factor is None or factor < 1.5 or tensor.write_bytes:
            continue  # what the kernel writes in between is not the same data (DMA014)
        again = round(tensor.read_bytes * (1 - 1 / factor))
        readers = [line for line in predicted.lines if tensor.name in line.tensors and line.hbm_read_bytes]
        worst = max(readers, key=lambda line: line.hbm_read_bytes, default=None)
        yield _finding(
            "DMA006",
            costs,
            again / max(predicted.lnc, 1) / costs.model["core_alone_bytes_per_s"] * 1e9,
            message=f"{tensor.name}: every byte is read {factor:,.4g} times ({tensor.read_bytes:,} B, {again:,} B of them again)",
            source=worst.source if worst else None,
            tensor=tensor.name,
            read_bytes=tensor.read_bytes,
            repeated_bytes=again,
            reload_factor=factor,
        )


def _ragged_tails(recording: Recording, costs: _Costs) -> Iterator[Finding]:
    """Transfers of one tensor in one direction that are alike but for a few smaller ones."""
    seen: set[tuple[str, str]] = set()
    for program in recording.programs:
        shapes: dict[tuple[str, str], dict[tuple[int, int], tuple[int, str]]] = defaultdict(dict)
        for record in program.dma:
            side = next((access for access in (*record.reads, record.write) if access.memory is Memory.HBM), None)
            if side is None or record.implicit or not record.write.shape:
                continue
            chip = record.write if record.write.memory is not Memory.HBM else record.reads[0]
            if chip.memory is Memory.HBM:
                continue
            rows = chip.element_count // max(1, _row_elements(chip.pattern))
            key = (rows, side.byte_count)
            group = shapes[side.name, direction_of(record)]
            count, source = group.get(key, (0, str(record.site)))
            group[key] = (count + record.execution_count, source)
        for (tensor, direction), group in shapes.items():
            if len(group) < 2 or (tensor, direction) in seen:
                continue
            (rows, size), (count, source) = max(group.items(), key=lambda entry: (entry[1][0], entry[0]))
            tails = {
                shape: entry
                for shape, entry in group.items()
                if shape[0] <= rows
                and shape[1] < size
                and entry[0] < count
                and shape[1] * rows % max(1, size) in (0, shape[1])
                and (shape[1] * rows == size * shape[0] or shape[0] == rows)
            }
            if not tails or len(group) - len(tails) != 1:
                continue
            seen.add((tensor, direction))
            total = sum(shape[1] * entry[0] for shape, entry in group.items())
            padding = sum((size - shape[1]) * entry[0] for shape, entry in tails.items())
            smallest = min(tails)
            engines = -(-smallest[0] * int(costs.model["engine_count"]) // 128)
            yield _finding(
                "DMA007",
                costs,
                None,
                message=f"{tensor}: {count:,} full tiles of {rows} rows and {sum(entry[0] for entry in tails.values()):,} of "
                f"{smallest[0]} rows ({engines} engines); padded, bytes go up by {padding:,} ({100 * padding / total:.2f} %) "
                f"and shapes go from {len(group)} to 1",
                source=tails[smallest][1],
                direction=direction,
                full_tile_count=count,
                full_rows=rows,
                tail_rows=smallest[0],
                tail_engine_count=engines,
                bytes=total,
                padding_bytes=padding,
                padded_bytes=total + padding,
                shape_count=len(group),
            )


def _row_elements(pattern: tuple[tuple[int, int], ...]) -> int:
    count = 1
    for _, size in pattern[1:]:
        count *= size
    return count


def _static_rings(predicted: PredictedDma, costs: _Costs) -> Iterator[Finding]:
    static = [line for line in predicted.lines if line.mode == "none" or line.mode_is_assumed]
    total = sum(line.descriptor_count for line in static)
    if total < MAX_STATIC_DESCRIPTORS:
        return
    worst = max(static, key=lambda line: line.descriptor_count)
    yield _finding(
        "DMA008",
        costs,
        None,
        message=f"{total:,} static descriptors if no DGE mode is used: ring and HBM cost, and a load that may fail; use DGE or coalesce",
        source=worst.source,
        descriptor_count=total,
    )


def _partition_broadcasts(recording: Recording, costs: _Costs) -> Iterator[Finding]:
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
                yield _finding(
                    "DMA011",
                    costs,
                    None,
                    message=f"{read.byte_count // copies:,} B of {read.name} go to {copies} partitions: {read.byte_count:,} B moved",
                    source=source,
                    bytes=read.byte_count,
                    distinct_bytes=read.byte_count // copies,
                )


def _type_mismatches(recording: Recording, costs: _Costs) -> Iterator[Finding]:
    seen: set[str] = set()
    for program in recording.programs:
        for record in program.dma:
            types = {access.dtype for access in (*record.reads, record.write)}
            source = str(record.site)
            if record.dge_mode == "hwdge" and len(types) > 1 and source not in seen:
                seen.add(source)
                sides = f"{record.reads[0].dtype} to {record.write.dtype}"
                yield _finding("HAZ001", costs, None, message=f"{sides} with dge_mode hwdge", source=source)


def _overflows(predicted: PredictedDma) -> Iterator[Finding]:
    for code, memory in (("HAZ006", predicted.sbuf), ("HAZ007", predicted.psum)):
        if memory.overflows:
            known = HAZARD_CODES[code]
            evidence: dict[str, object] = {
                "message": f"{memory.peak_bytes_per_partition:,} B of a partition live at once, "
                f"{memory.capacity_bytes_per_partition:,} B are there",
                "peak_bytes_per_partition": memory.peak_bytes_per_partition,
                "capacity_bytes_per_partition": memory.capacity_bytes_per_partition,
            }
            yield Finding(code, known.title, None, None, evidence, known.advice)


def _unwritten_outputs(recording: Recording) -> Iterator[Finding]:
    """Returned tensors of which the programs together write less than all."""
    known = HAZARD_CODES["HAZ008"]
    covered: dict[str, int | None] = {}
    outputs: dict[str, Allocation] = {}
    for program in recording.programs:
        written = {tensor.storage: tensor.distinct_write_bytes for tensor in tensor_traffic(program)}
        dynamic = _dynamically_written(program)
        for allocation in program.allocations:
            if not allocation.returned or allocation.memory is not Memory.HBM or allocation.kind == "argument":
                continue
            key = _tensor_key(allocation)
            outputs[key] = allocation
            more = None if allocation.storage in dynamic else written.get(allocation.storage, 0)
            before = covered.get(key, 0)
            # Programs may write the same bytes: the sum is the most that they can have covered.
            covered[key] = None if more is None or before is None else before + more * program.stands_for
    for key, allocation in outputs.items():
        most = covered[key]
        if most is not None and most < allocation.byte_count:
            evidence: dict[str, object] = {
                "source": str(allocation.site) if allocation.site else None,
                "tensor": allocation.name,
                "written_bytes": most,
                "bytes": allocation.byte_count,
                "message": f"{allocation.name}: at most {most:,} of {allocation.byte_count:,} B are written",
            }
            yield Finding("HAZ008", known.title, None, None, evidence, known.advice)


def _dynamically_written(program: ProgramTrace) -> set[int]:
    """Storages that are also written in ways whose bytes are not known: collectives, and calls outside the table."""
    written = {access.storage for event in program.sync for access in event.writes}
    return written | {access.storage for event in program.unmodelled for access in event.tensors}


def _broken_limits(recording: Recording) -> Iterator[Finding]:
    known = HAZARD_CODES["HAZ009"]
    seen: set[tuple[str, str]] = set()
    for note in recording.notes:
        source = str(note.site) if note.site else None
        if note.code in LIMIT_NOTES and (note.code, str(source)) not in seen:
            seen.add((note.code, str(source)))
            evidence: dict[str, object] = {"source": source, "limit": note.code, "message": note.message}
            yield Finding("HAZ009", known.title, None, None, evidence, known.advice)


def _unmodelled(predicted: PredictedDma, costs: _Costs) -> Iterator[Finding]:
    for call in predicted.unmodelled:
        yield _finding(
            "DMA012",
            costs,
            None,
            message=f"{call.operation} ({call.reason}), {call.count:,} calls: in no sum",
            source=call.source,
            operation=call.operation,
            count=call.count,
        )


def _boundary(recording: Recording, costs: _Costs) -> Iterator[Finding]:
    """What passes the kernel's boundary: arguments it reads and tensors it returns, each once."""
    read: dict[str, int] = {}
    written: dict[str, int] = {}
    for program in recording.programs:
        touched, stored = _touched(program)
        for allocation in program.allocations:
            if allocation.memory is not Memory.HBM:
                continue
            key = _tensor_key(allocation)
            if allocation.kind == "argument" and allocation.storage in touched:
                read[key] = allocation.byte_count
            if (allocation.returned or allocation.kind == "argument") and allocation.storage in stored:
                written[key] = allocation.byte_count
    total = sum(read.values()) + sum(written.values())
    if total:
        rate = costs.model["core_alone_bytes_per_s"] * max(1, costs.predicted.lnc)
        yield _finding(
            "DMA009",
            costs,
            total / rate * 1e9,
            message=f"{_binary(sum(read.values()))} in + {_binary(sum(written.values()))} out that a fused "
            "producer/consumer would not pay",
            input_bytes=sum(read.values()),
            output_bytes=sum(written.values()),
        )


def _intermediates(recording: Recording, costs: _Costs) -> Iterator[Finding]:
    """HBM tensors that the kernel makes, writes and reads back itself."""
    moved: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    places: dict[str, tuple[str, str]] = {}
    for program in recording.programs:
        own = {
            allocation.storage: allocation
            for allocation in program.allocations
            if allocation.memory is Memory.HBM and allocation.kind != "argument" and not allocation.returned
        }
        for record in program.dma:
            if record.implicit:
                continue
            executions = record.execution_count * program.stands_for
            for access, at in (*((read, 0) for read in record.reads), (record.write, 1)):
                allocation = own.get(access.storage) if access.memory is Memory.HBM else None
                if allocation is not None:
                    key = _tensor_key(allocation)
                    moved[key][at] += access.byte_count * executions
                    places.setdefault(key, (allocation.name, str(allocation.site or record.site)))
    for key, (read, written) in moved.items():
        if not (read and written):
            continue
        name, source = places[key]
        yield _finding(
            "DMA014",
            costs,
            (read + written) / max(costs.predicted.lnc, 1) / costs.model["core_alone_bytes_per_s"] * 1e9,
            message=f"{name}: {_binary(written)} written and {_binary(read)} read back",
            source=source,
            tensor=name,
            written_bytes=written,
            read_bytes=read,
        )


def _touched(program: ProgramTrace) -> tuple[set[int], set[int]]:
    read = {access.storage for record in program.dma for access in record.reads if access.memory is Memory.HBM}
    written = {record.write.storage for record in program.dma if record.write.memory is Memory.HBM}
    return read, written


def _tensor_key(allocation: Allocation) -> str:
    return f"{allocation.name} {allocation.site} {allocation.shape}"


def _binary(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"

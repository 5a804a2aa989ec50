"""Hazards of tensors: reloads, ragged tails, outputs left unwritten, traffic that fusing would save."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from trnprof.analyzers.dma_prediction import direction_of
from trnprof.analyzers.hazard_costs import HazardCosts, device_finding, finding
from trnprof.findings import Finding
from trnprof.nki.recording import Allocation, Memory, ProgramTrace, Recording
from trnprof.nki.traffic import tensor_traffic


def tensor_hazards(recording: Recording, costs: HazardCosts) -> Iterator[Finding]:
    """All findings of one kernel that are about a tensor as a whole."""
    yield from _unwritten_outputs(recording)
    yield from _reloads(costs)
    yield from _ragged_tails(recording, costs)
    yield from _intermediates(recording, costs)
    yield from _boundary(recording, costs)


def _reloads(costs: HazardCosts) -> Iterator[Finding]:
    for tensor in costs.predicted.tensors:
        factor = tensor.reload_factor
        if factor is None or factor < 1.5 or tensor.write_bytes:
            continue  # what the kernel writes in between is not the same data (DMA014)
        again = round(tensor.read_bytes * (1 - 1 / factor))
        readers = [line for line in costs.predicted.lines if tensor.name in line.tensors and line.hbm_read_bytes]
        worst = max(readers, key=lambda line: line.hbm_read_bytes, default=None)
        yield finding(
            "DMA006",
            costs,
            again / max(costs.predicted.lnc, 1) / costs.model["core_alone_bytes_per_s"] * 1e9,
            message=f"{tensor.name}: every byte is read {factor:,.4g} times ({tensor.read_bytes:,} B, {again:,} B of them again)",
            source=worst.source if worst else None,
            tensor=tensor.name,
            read_bytes=tensor.read_bytes,
            repeated_bytes=again,
            reload_factor=factor,
        )


def _ragged_tails(recording: Recording, costs: HazardCosts) -> Iterator[Finding]:
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
            # A tail has fewer rows of the same length, or as many shorter rows, and is rarer.
            tails = {
                shape: entry
                for shape, entry in group.items()
                if shape[1] < size and entry[0] < count and (shape[1] * rows == size * shape[0] or shape[0] == rows)
            }
            if not tails or len(group) - len(tails) != 1:
                continue
            seen.add((tensor, direction))
            total = sum(shape[1] * entry[0] for shape, entry in group.items())
            padding = sum((size - shape[1]) * entry[0] for shape, entry in tails.items())
            smallest = min(tails)
            engines = -(-smallest[0] * int(costs.model["engine_count"]) // 128)
            yield finding(
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


def _unwritten_outputs(recording: Recording) -> Iterator[Finding]:
    """Returned tensors of which the programs together write less than all."""
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
            yield device_finding(
                "HAZ008",
                message=f"{allocation.name}: at most {most:,} of {allocation.byte_count:,} B are written",
                source=str(allocation.site) if allocation.site else None,
                tensor=allocation.name,
                written_bytes=most,
                bytes=allocation.byte_count,
            )


def _dynamically_written(program: ProgramTrace) -> set[int]:
    """Storages that are also written in ways whose bytes are not known: collectives, and calls outside the table."""
    written = {access.storage for event in program.sync for access in event.writes}
    return written | {access.storage for event in program.unmodelled for access in event.tensors}


def _boundary(recording: Recording, costs: HazardCosts) -> Iterator[Finding]:
    """What passes the kernel's boundary: the bytes of arguments that it reads and of tensors that it returns, each once.

    Where only the device knows the addresses (a page of a cache, an expert's weights), at most what moves.
    """
    read: dict[str, int] = {}
    written: dict[str, int] = {}
    for program in recording.programs:
        traffic = {tensor.storage: tensor for tensor in tensor_traffic(program)}
        for allocation in program.allocations:
            moved = traffic.get(allocation.storage)
            if moved is None or allocation.memory is not Memory.HBM:
                continue
            key, times = _tensor_key(allocation), program.stands_for
            sides = [(written, moved.write_bytes, moved.distinct_write_bytes)]
            if allocation.kind == "argument":
                sides.append((read, moved.read_bytes, moved.distinct_read_bytes))
            elif not allocation.returned:
                continue
            for found, every, distinct in sides:
                # Programs may touch the same bytes: no more than the tensor has.
                touched = (every if distinct is None else distinct) * times
                found[key] = min(allocation.byte_count, found.get(key, 0) + touched)
    total = sum(read.values()) + sum(written.values())
    if total:
        rate = costs.model["core_alone_bytes_per_s"] * max(1, costs.predicted.lnc)
        yield finding(
            "DMA009",
            costs,
            total / rate * 1e9,
            message=f"{_binary(sum(read.values()))} in + {_binary(sum(written.values()))} out that a fused "
            "producer/consumer would not pay",
            input_bytes=sum(read.values()),
            output_bytes=sum(written.values()),
        )


def _intermediates(recording: Recording, costs: HazardCosts) -> Iterator[Finding]:
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
        yield finding(
            "DMA014",
            costs,
            (read + written) / max(costs.predicted.lnc, 1) / costs.model["core_alone_bytes_per_s"] * 1e9,
            message=f"{name}: {_binary(written)} written and {_binary(read)} read back",
            source=source,
            tensor=name,
            written_bytes=written,
            read_bytes=read,
        )


def _tensor_key(allocation: Allocation) -> str:
    return f"{allocation.name} {allocation.site} {allocation.shape}"


def _binary(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"

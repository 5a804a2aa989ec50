"""Schedule -> the tables of a Profile: instructions, DMA packets, semaphore updates, throttle levels, kernels, sources."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from trnprof.nki.timing.dma_queues import SEMAPHORE_BYTES
from trnprof.nki.timing.instruction_rows import instruction_table, span_columns
from trnprof.nki.timing.program import (
    BARRIER,
    COLLECTIVE,
    COMPUTE,
    DMA,
    DMA_ENGINE_COUNT,
    EXCHANGE,
    HWDGE,
    STATIC,
    SWDGE,
    VIRTUAL,
    Ints,
)
from trnprof.nki.timing.schedule import TENSOR, Schedule
from trnprof.nki.timing.signals import BARRIER_SEMAPHORE, ENGINE_SEMAPHORES, LABELS, queues_of, signals_of
from trnprof.profile import ENGINES, coded_column, make_table

MAX_PACKETS = 2_000_000
"""Data packets drawn one by one; beyond it the packets of one DMA on one engine are drawn as one."""

_QUEUE_TYPES = {HWDGE: "hardware_dynamic", SWDGE: "software_dynamic", STATIC: "data"}
_FIRST_DMA_ENGINE = 64


@dataclass(frozen=True, eq=False)
class EventTables:
    """One schedule's tables, times from the start of its body."""

    instructions: pa.Table
    dma_packets: pa.Table
    semaphores: pa.Table
    collectives: pa.Table
    throttle: pa.Table
    kernels: pa.Table
    sources: pa.Table
    are_packets_joined: bool
    """The packets of one DMA on one engine are drawn as one: there are too many."""


def draw(schedule: Schedule) -> EventTables:
    """Every table of the schedule, rows in order of core and start."""
    drawing = _Drawing(schedule)
    packets, joined = drawing.packets()
    return EventTables(
        instructions=instruction_table(schedule, drawing.signals),
        dma_packets=packets,
        semaphores=drawing.semaphores(),
        collectives=drawing.collectives(),
        throttle=drawing.throttle(),
        kernels=drawing.kernels(),
        sources=drawing.sources(),
        are_packets_joined=joined,
    )


class _Drawing:
    """The tables of one schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.program = schedule.program
        self.engine = schedule.engine
        self.signals = signals_of(schedule)

    def packets(self) -> tuple[pa.Table, bool]:
        """(every packet, were those of one DMA and engine joined?). Data first, then the 4-byte semaphore write."""
        program = self.program
        rows = np.flatnonzero(program.kind == DMA)
        dma = program.dma[rows]
        core = program.core[rows].astype(np.int64)
        count = program.dmas.packets[dma]
        sizes = program.dmas.engine_bytes[dma]
        starts, work, semaphore = (np.zeros_like(count) for _ in range(3))
        for owner, queues in enumerate(self.schedule.queues):
            own = core == owner
            starts[own], work[own] = queues.start_ps[dma[own]], queues.work_ps[dma[own]]
            semaphore[own] = queues.semaphore_ps[dma[own]]
        joined = int(count.sum()) > MAX_PACKETS
        pieces = np.where(joined, np.minimum(count, 1), count)
        which, engine = np.nonzero(pieces)
        number = pieces[which, engine]
        repeated = np.repeat(np.arange(len(which)), number)
        place = np.arange(len(repeated)) - np.repeat(np.cumsum(number) - number, number)
        whole, rest = np.divmod(sizes[which, engine], number)
        size = whole[repeated] + (place < rest[repeated])
        begin, length = starts[which, engine][repeated], work[which, engine][repeated]
        # On whole nanoseconds, so that neighbours meet exactly; the last one ends no earlier than it does.
        start = _down(begin + length * place // number[repeated])
        end = _down(begin + length * (place + 1) // number[repeated])
        end = np.where(place == number[repeated] - 1, -_down(-(begin + length)), end)
        signal, signal_engine = np.nonzero(semaphore)
        after = (starts + work)[signal, signal_engine]
        table = {
            "start": np.concatenate((start, after)),
            "end": np.concatenate((end, after + semaphore[signal, signal_engine])),
            "row": np.concatenate((which[repeated], signal)),
            "engine": np.concatenate((engine[repeated], signal_engine)),
            "size": np.concatenate((size, np.full(len(signal), SEMAPHORE_BYTES))),
        }
        order = np.lexsort((table["engine"], table["start"], core[table["row"]]))
        table = {name: values[order] for name, values in table.items()}
        queue, names = queues_of(self.schedule, rows)
        types = self.schedule.mode[program.dma[rows]]
        kinds = [_QUEUE_TYPES[mode] for mode in (HWDGE, SWDGE, STATIC)]
        of = table["row"]
        return make_table(
            "dma_packets",
            span_columns(table["start"], table["end"])
            | {
                "pcore_idx": core[of].astype(np.int16),
                "engine_idx": (_FIRST_DMA_ENGINE + DMA_ENGINE_COUNT * core[of] + table["engine"]).astype(np.int16),
                "queue_idx": queue[of].astype(np.int16),
                "queue_type": coded_column(types[of].astype(np.int32), kinds),
                "queue_name": coded_column(queue[of].astype(np.int32), names),
                "transfer_bytes": table["size"],
            },
        ), joined

    def semaphores(self) -> pa.Table:
        """One update an operation: of its engine's semaphore, or a DMA's own with all 16 increments at once."""
        program = self.program
        rows = np.flatnonzero(self.signals.semaphore >= 0)
        is_dma = program.kind[rows] == DMA
        time = self.schedule.end_ps[rows]
        core = program.core[rows].astype(np.int64)
        labels = [f"S[{index}] ({LABELS[ENGINES[engine]]})" for engine, index in enumerate(ENGINE_SEMAPHORES)]
        label_of = {index: place for place, index in enumerate(ENGINE_SEMAPHORES)}
        label_of[BARRIER_SEMAPHORE] = len(labels)
        labels.append(str(BARRIER_SEMAPHORE))
        dma_rows = rows[is_dma]
        queue, names = queues_of(self.schedule, dma_rows)
        codes = np.zeros(len(rows), np.int64)
        codes[~is_dma] = [label_of[index] for index in self.signals.semaphore[rows[~is_dma]].tolist()]
        places: dict[tuple[int, int], int] = {}
        for place, key in zip(
            np.flatnonzero(is_dma).tolist(),
            zip(self.signals.semaphore[dma_rows].tolist(), queue.tolist(), strict=True),
            strict=True,
        ):
            if key not in places:
                places[key] = len(labels)
                labels.append(f"S[{key[0]}] ({names[key[1]]})")
            codes[place] = places[key]
        engine = np.where(is_dma, len(ENGINES), self.engine[rows])
        engine = np.where(np.isin(program.kind[rows], (BARRIER, EXCHANGE)), len(ENGINES), engine)
        order = np.lexsort((rows, time, core))
        return make_table(
            "semaphores",
            {
                "timestamp": (time // 1000)[order],
                "timestamp_ps": time[order],
                "pcore_idx": core[order].astype(np.int16),
                "id": coded_column(codes[order].astype(np.int32), labels),
                "semaphore_idx": self.signals.semaphore[rows][order].astype(np.int16),
                "value": self.signals.value[rows][order],
                "update_source": coded_column(engine[order].astype(np.int32), [*ENGINES, "dma"]),
                "update_operation_type": coded_column(is_dma.astype(np.int32)[order], ["sem_inc", "sem_add"]),
            },
        )

    def collectives(self) -> pa.Table:
        """In-kernel collectives."""
        program, schedule = self.program, self.schedule
        rows = np.flatnonzero(program.kind == COLLECTIVE)
        rows = rows[np.lexsort((schedule.start_ps[rows], program.core[rows]))]
        return make_table(
            "collectives",
            {
                "start_ts": schedule.start_ps[rows] // 1000,
                "end_ts": schedule.end_ps[rows] // 1000,
                "operation": coded_column(program.opcode[rows].astype(np.int32), list(program.opcodes) or [""]),
                "pcore_idx": program.core[rows].astype(np.int16),
                "op_id": rows,
                "input_size": program.sbuf_bytes[rows],
            },
        )

    def throttle(self) -> pa.Table:
        """The tensor engine's levels, without gaps, of every core that multiplies."""
        end = self.schedule.end_of_body_ps // 1000
        columns: dict[str, list[object]] = {
            name: [] for name in ("timestamp", "duration", "k", "n", "type", "pcore_idx")
        }
        for core, levels in enumerate(self.schedule.throttle):
            mine = (self.program.core == core) & (self.engine == TENSOR) & (self.program.kind == COMPUTE)
            if len(levels) == 1 and (levels[0][1] or not mine.any()):
                continue
            starts = [at // 1000 for at, _ in levels]
            for place, (start, (_, is_full)) in enumerate(zip(starts, levels, strict=True)):
                until = starts[place + 1] if place + 1 < len(starts) else end
                columns["timestamp"].append(start)
                columns["duration"].append(until - start)
                columns["k"].append(8 if is_full else 4)
                columns["n"].append(8)
                columns["type"].append("activity_0" if is_full else "activity_1")
                columns["pcore_idx"].append(core)
        return make_table("throttle", dict(columns))

    def kernels(self) -> pa.Table:
        """One span a program."""
        schedule = self.schedule
        columns: dict[str, list[object]] = {name: [] for name in ("start_ts", "end_ts", "name", "pcore_idx")}
        for kernel in self.program.kernels:
            rows = np.flatnonzero(self.program.kind[kernel.first : kernel.end] != VIRTUAL) + kernel.first
            if len(rows):
                columns["start_ts"].append(int(schedule.start_ps[rows].min()) // 1000)
                columns["end_ts"].append(-(-int(schedule.end_ps[rows].max()) // 1000))
                columns["name"].append(kernel.name)
                columns["pcore_idx"].append(kernel.core)
        return make_table("kernels", dict(columns))

    def sources(self) -> pa.Table:
        """The stack frames of every call site."""
        names, depths, files, lines, functions = [], [], [], [], []
        for number, (site, called) in enumerate(zip(self.program.sources, self.program.functions, strict=True)):
            for depth, (frame, function) in enumerate(zip(site.split(","), called.split(","), strict=False)):
                file, _, line = frame.rpartition(":")
                names.append(f"I-{number}")
                depths.append(depth)
                files.append(file)
                lines.append(int(line) if line.isdecimal() else 0)
                functions.append(function)
        return make_table(
            "sources",
            {
                "kernel_instruction_name": names,
                "stack_frame_depth": pa.array(depths, pa.int64()),
                "file_path": files,
                "line_number": pa.array(lines, pa.int64()),
                "function_name": functions,
            },
        )


def _down(time_ps: Ints) -> Ints:
    """To whole nanoseconds, in picoseconds."""
    return time_ps // 1000 * 1000

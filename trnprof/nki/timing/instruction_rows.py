"""Schedule -> one row a machine instruction."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trnprof.nki.timing.program import BARRIER, COMPUTE, DMA, EXCHANGE, VIRTUAL, Ints
from trnprof.nki.timing.schedule import SCALAR, SYNC, TENSOR, Schedule
from trnprof.nki.timing.signals import Signals
from trnprof.profile import ENGINES, coded_column, make_table

_PROLOGUE_PS, _EPILOGUE_PS = 24_000, 17_000
"""SET_ORDERING_MODE and the last NOP in the public captures."""


def instruction_table(schedule: Schedule, signals: Signals) -> pa.Table:
    """One row a machine instruction, by core and start: a matmul has one for its weights too, a float32 one two of each.

    Around them stand what begins and ends every captured body, and the load of the activation table.
    """
    return _Rows(schedule, signals).table()


class _Rows:
    """The rows of one schedule."""

    def __init__(self, schedule: Schedule, signals: Signals) -> None:
        self.schedule = schedule
        self.program = schedule.program
        self.signals = signals
        self.engine = schedule.engine
        added = ("LDWEIGHTS", "ACT_TABLE_LOAD", "EVENT_SEMAPHORE", "SET_ORDERING_MODE", "NOP", "TENSOR_LOAD")
        self.opcodes = [*self.program.opcodes, *added]
        self.load_weights, self.load_table, self.event, self.prologue, self.epilogue, self.load_register = (
            len(self.program.opcodes) + place for place in range(len(added))
        )

    def table(self) -> pa.Table:
        """One row a machine instruction: a matmul has one for its weights too, a float32 one two of each."""
        schedule, program = self.schedule, self.program
        waits, values = self.signals.awaited, self.signals.awaited_value
        waited_ps = self._waited_ps(waits)
        plain = np.flatnonzero(np.isin(program.kind, (COMPUTE, DMA)) & (self.engine != TENSOR))
        end = np.where(program.kind == DMA, schedule.issued_ps, schedule.end_ps)
        pieces = [
            {
                "row": plain,
                "start": schedule.array_start_ps[plain],
                "end": end[plain],
                "opcode": program.opcode[plain].astype(np.int64),
                "is_first": schedule.array_start_ps[plain] == schedule.start_ps[plain],
                "is_last": np.ones(len(plain), bool),
                "macs": np.zeros(len(plain), np.int64),
            },
            *self._addresses(),
            *self._matmuls(),
            *self._meetings(),
        ]
        merged = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
        rows = merged["row"]
        known = rows >= 0
        at = np.maximum(rows, 0)
        core = np.where(known, program.core[at], 0)
        engine = np.where(known, self.engine[at], SYNC)
        engine[np.isin(program.kind[at], (BARRIER, EXCHANGE)) & known] = SYNC
        columns: dict[str, npt.NDArray[np.int64]] = {
            "start": merged["start"],
            "end": merged["end"],
            "opcode": merged["opcode"],
            "core": core.astype(np.int64),
            "engine": engine.astype(np.int64),
            "source": program.source[at].astype(np.int64),
            "wait": np.where(merged["is_first"], waits[at], -1),
            "value": np.where(merged["is_first"], values[at], 0),
            "waited": np.where(merged["is_first"], waited_ps[at], 0),
            "update": np.where(merged["is_last"], self.signals.semaphore[at], -1),
            "macs": merged["macs"],
            "read": np.where(merged["is_last"], program.hbm_read_bytes[at], 0),
            "write": np.where(merged["is_last"], program.hbm_write_bytes[at], 0),
            "transpose": program.is_transpose[at].astype(np.int64),
        }
        for extra in (self._frame(), self._table_loads()):
            count = len(extra["start"])
            blank = {name: np.full(count, -1 if name in ("source", "wait", "update") else 0) for name in columns}
            columns = {name: np.concatenate((own, (blank | extra)[name])) for name, own in columns.items()}
        return self._instruction_table(columns)

    def _frame(self) -> dict[str, npt.NDArray[np.int64]]:
        """What begins and ends every captured body, on the sync engine: its prologue, and from its last trigger on the
        wait for the kernel's end, with the instruction after it."""
        columns: dict[str, list[int]] = {name: [] for name in ("start", "end", "opcode", "core", "wait", "value")}
        end = self.schedule.end_of_body_ps
        last = max(end - _EPILOGUE_PS, 0)
        for core in range(self.program.core_count):
            mine = (self.program.core == core) & (self.program.kind != VIRTUAL)
            triggers = mine & (self.engine == SYNC)
            begin = max(int(self.schedule.issued_ps[triggers].max(initial=0)), _PROLOGUE_PS)
            ending = np.flatnonzero(mine & (self.signals.semaphore >= 0))
            waits_for = int(ending[np.argmax(self.schedule.end_ps[ending])]) if len(ending) else -1
            rows = [(0, min(_PROLOGUE_PS, end), self.prologue, -1, 0)]
            if waits_for >= 0 and begin < last:
                rows.append(
                    (
                        begin,
                        last,
                        self.event,
                        int(self.signals.semaphore[waits_for]),
                        int(self.signals.value[waits_for]),
                    )
                )
            rows.append((last, end, self.epilogue, -1, 0))
            for row in rows:
                for name, value in zip(("start", "end", "opcode", "wait", "value"), row, strict=True):
                    columns[name].append(value)
                columns["core"].append(core)
        arrays = {name: np.array(values, np.int64) for name, values in columns.items()}
        return arrays | {"engine": np.full(len(columns["core"]), SYNC)}

    def _table_loads(self) -> dict[str, npt.NDArray[np.int64]]:
        lengths = self.schedule.table_load_ps
        cores = np.array([core for core, length in enumerate(lengths) if length], np.int64)
        return {
            "start": np.zeros(len(cores), np.int64),
            "end": np.array([lengths[core] for core in cores.tolist()], np.int64),
            "opcode": np.full(len(cores), self.load_table),
            "core": cores,
            "engine": np.full(len(cores), SCALAR),
        }

    def _instruction_table(self, columns: dict[str, npt.NDArray[np.int64]]) -> pa.Table:
        order = np.lexsort((columns["opcode"] != self.load_weights, columns["start"], columns["core"]))
        columns = {name: values[order] for name, values in columns.items()}
        count = len(order)
        stream = columns["core"] * len(ENGINES) + columns["engine"]
        place = np.zeros(count, np.int64)
        for number in np.unique(stream).tolist():
            rows = np.flatnonzero(stream == number)
            place[rows] = np.arange(len(rows))
        is_matmul = columns["macs"] > 0
        kinds = np.where(is_matmul, columns["transpose"], -1)
        wait, update = columns["wait"], columns["update"]
        sources = ["", *self.program.sources]
        location = coded_column((columns["source"] + 1).astype(np.int32), sources)
        names = ["", *(f"I-{number}" for number in range(len(self.program.sources)))]
        return make_table(
            "instructions",
            span_columns(columns["start"], columns["end"])
            | {
                "pcore_idx": columns["core"].astype(np.int16),
                "engine": coded_column(columns["engine"].astype(np.int32), list(ENGINES)),
                "opcode": coded_column(columns["opcode"].astype(np.int32), self.opcodes),
                "pc": place.astype(np.int32),
                "compiler_pc": place.astype(np.int32),
                "evt_wait_time_ns": columns["waited"] // 1000,
                "wait_semaphore_idx": pa.array(wait, pa.int16(), mask=wait < 0),
                "wait_condition": _masked_names(wait < 0, ">="),
                "wait_value": pa.array(columns["value"], pa.int64(), mask=wait < 0),
                "update_semaphore_idx": pa.array(update, pa.int16(), mask=update < 0),
                "kernel_instruction_name": coded_column((columns["source"] + 1).astype(np.int32), names),
                "nki_source_location": location,
                "bir_debug_info_source_location": location,
                "hbm_read_bytes": columns["read"],
                "hbm_write_bytes": columns["write"],
                "tensor_instruction_type": pa.DictionaryArray.from_arrays(
                    pa.array(np.maximum(kinds, 0), pa.int32(), mask=kinds < 0), pa.array(["REGULAR", "TRANSPOSE"])
                ),
                "tensor_elements": pa.array(columns["macs"], pa.int64(), mask=~is_matmul),
                "raw_flops": pa.array(2 * columns["macs"], pa.int64(), mask=~is_matmul),
            },
        )

    def _waited_ps(self, waits: Ints) -> Ints:
        """How long each operation's engine stood still for what it waited for."""
        schedule, program = self.schedule, self.program
        waited = np.zeros(len(program), np.int64)
        for core in range(program.core_count):
            for engine in range(len(ENGINES)):
                rows = np.flatnonzero(
                    np.isin(program.kind, (COMPUTE, DMA)) & (program.core == core) & (self.engine == engine)
                )
                rows = rows[np.lexsort((rows, schedule.start_ps[rows]))]
                before = np.concatenate(([0], np.maximum.accumulate(schedule.issued_ps[rows])[:-1]))[: len(rows)]
                waited[rows] = np.maximum(schedule.start_ps[rows] - before, 0)
        return np.where(waits >= 0, waited, 0)

    def _addresses(self) -> list[dict[str, npt.NDArray[np.int64]]]:
        """What computes a DMA's address before it is triggered, as one instruction."""
        schedule = self.schedule
        rows = np.flatnonzero((self.program.kind == DMA) & (schedule.array_start_ps > schedule.start_ps))
        if not len(rows):
            return []
        return [
            {
                "row": rows,
                "start": schedule.start_ps[rows],
                "end": schedule.array_start_ps[rows],
                "opcode": np.full(len(rows), self.load_register),
                "is_first": np.ones(len(rows), bool),
                "is_last": np.zeros(len(rows), bool),
                "macs": np.zeros(len(rows), np.int64),
            }
        ]

    def _matmuls(self) -> list[dict[str, npt.NDArray[np.int64]]]:
        """Weights and products of the tensor engine's operations; a float32 product as two of each."""
        schedule, program = self.schedule, self.program
        rows = np.flatnonzero((program.kind == COMPUTE) & (self.engine == TENSOR))
        if not len(rows):
            return []
        is_split = np.array([work.passes_fp32 and work.instruction == "nc_matmul" for work in program.works], bool)
        parts = np.where(is_split[program.work[rows]], 2, 1)
        begin, done = schedule.array_start_ps[rows], schedule.issued_ps[rows]
        drain = schedule.end_ps[rows] - done
        found = []
        for part in range(2):
            chosen = np.flatnonzero(parts > part)
            row = rows[chosen]
            length = (done - begin)[chosen] // parts[chosen]
            start = begin[chosen] + part * length
            streamed = np.where(part == parts[chosen] - 1, done[chosen], start + length)
            setup = np.minimum(begin[chosen] - schedule.start_ps[row], length) if part == 0 else length // 2
            setup = np.maximum(setup, 1)
            is_last = part == parts[chosen] - 1
            empty = np.zeros(len(row), np.int64)
            found.append(
                {
                    "row": row,
                    "start": start - setup,
                    "end": start,
                    "opcode": np.full(len(row), self.load_weights),
                    "is_first": np.full(len(row), part == 0),
                    "is_last": np.zeros(len(row), bool),
                    "macs": empty,
                }
            )
            found.append(
                {
                    "row": row,
                    "start": start,
                    "end": streamed + drain[chosen],
                    "opcode": program.opcode[row].astype(np.int64),
                    "is_first": np.zeros(len(row), bool),
                    "is_last": is_last,
                    "macs": program.macs[row],
                }
            )
        return found

    def _meetings(self) -> list[dict[str, npt.NDArray[np.int64]]]:
        """Barriers and exchanges: the sync engine waits from when it came until it may go on."""
        rows = np.flatnonzero(np.isin(self.program.kind, (BARRIER, EXCHANGE)))
        if not len(rows):
            return []
        return [
            {
                "row": rows,
                "start": self.schedule.start_ps[rows],
                "end": self.schedule.end_ps[rows],
                "opcode": np.full(len(rows), self.event),
                "is_first": np.ones(len(rows), bool),
                "is_last": np.ones(len(rows), bool),
                "macs": np.zeros(len(rows), np.int64),
            }
        ]


def span_columns(start: Ints, end: Ints) -> dict[str, object]:
    """Picoseconds, and nanoseconds rounded the vendor's way: start and length down."""
    return {
        "start_ts": start // 1000,
        "end_ts": start // 1000 + (end - start) // 1000,
        "start_ps": start,
        "end_ps": end,
    }


def _masked_names(missing: npt.NDArray[np.bool_], name: str) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(len(missing), np.int32), pa.int32(), mask=missing), pa.array([name])
    )

"""The columns of a capture's events that an account reads, as numpy arrays: what a whole Profile and a batch share.

One `Events` holds rows of one table on one core. Its columns are arrays of one length; `start` is always there. Names
are codes into a `NameList` that all batches of a capture share, so that a code means the same in every batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trnprof.intervals import Int64Array
from trnprof.profile import ENGINES, WAIT_OPCODES, codes_of, int64_of

SEMAPHORE_WRITE_BYTES = 4
"""A DMA's completion is one 4-byte semaphore write per DMA engine: signalling, not tensor data."""

OTHER_ENGINE = len(ENGINES)
"""The engine code of rows on none of ENGINES: counted as events, in no engine's time."""

_DYNAMIC_QUEUE_TYPES = ("software_dynamic", "hardware_dynamic")


class NameList:
    """Distinct names in the order in which they were first met."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._code_of: dict[str, int] = {}

    def code(self, name: str) -> int:
        """The name's code, a new one if it is new."""
        code = self._code_of.setdefault(name, len(self.names))
        if code == len(self.names):
            self.names.append(name)
        return code

    def column(self, values: pa.ChunkedArray) -> npt.NDArray[np.int32]:
        """A name column as codes of this list; -1 is null; shape [n]."""
        codes, names = codes_of(values)
        # One more entry for null, which code -1 reads.
        return np.array([*map(self.code, names), -1], np.int32)[codes]


class Events:
    """Rows of one table on one core."""

    __slots__ = ("columns",)

    def __init__(self, columns: dict[str, np.ndarray]) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns["start"])

    def __getitem__(self, column: str) -> np.ndarray:
        return self.columns[column]

    def __contains__(self, column: str) -> bool:
        return column in self.columns

    @property
    def start(self) -> Int64Array:
        """When each row begins, ns; shape [n]."""
        return self.columns["start"]

    @property
    def end(self) -> Int64Array:
        """When each row ends, ns; shape [n]."""
        return self.columns["end"]

    def rows(self, chosen: slice | np.ndarray, columns: Iterable[str] | None = None) -> Events:
        """Some of the rows: a slice (no copy), a mask or indices; of some of the columns, or all."""
        if isinstance(chosen, np.ndarray) and chosen.dtype == bool:
            chosen = np.flatnonzero(chosen)
        return Events({name: self.columns[name][chosen] for name in columns or self.columns})

    def in_order(self) -> Events:
        """The rows in order of start; equal starts stay as they are."""
        start = self.start
        if not np.any(start[1:] < start[:-1]):
            return self
        return self.rows(np.argsort(start, kind="stable"))

    @staticmethod
    def joined(parts: Sequence[Events]) -> Events:
        """Several with the same columns, one after the other; at least one."""
        if len(parts) == 1:
            return parts[0]
        return Events({name: np.concatenate([part[name] for part in parts]) for name in parts[0].columns})


def events_of(name: str, table: pa.Table, names: NameList) -> Events:
    """What an account reads of one Profile table, in the table's order.

    instructions: start, end, engine (index into ENGINES or OTHER_ENGINE), opcode (code), waits; where captured emitted
                  (the compiler's), hbm_read_bytes, hbm_write_bytes, spill_save_bytes, spill_reload_bytes, evt_wait_ns,
                  semaphore and updates (-1: none), flops (-1: not captured) and transposes.
    dma_packets, dma_transfers: start, end, bytes, moves_data; of packets where captured dynamic (of a dynamic queue).
    collectives: start, end, operation and group (codes; group -1: not captured).  kernels: start, end.
    semaphores:  start; where captured semaphore, id (code), source (code; -1: none).
    throttle:    start, end, k, n.
    """
    return _EXTRACT[name](table, names)


def data_packet_mask(packets: pa.Table) -> np.ndarray:
    """Which packets move tensor data: no semaphore writes, instruction fetches or collective traffic; bool [n]."""
    mask = int64_of(packets["transfer_bytes"]) != SEMAPHORE_WRITE_BYTES
    if "queue_type" in packets.column_names:
        codes, names = codes_of(packets["queue_type"])
        mask &= ~np.array([*(name == "instruction" for name in names), False])[codes]
    if "is_cc_dma" in packets.column_names:
        mask &= ~packets["is_cc_dma"].fill_null(False).to_numpy()
    return mask


def _spans(table: pa.Table) -> dict[str, np.ndarray]:
    return {"start": int64_of(table["start_ts"]), "end": int64_of(table["end_ts"])}


def _instructions(table: pa.Table, names: NameList) -> Events:
    columns = _spans(table)
    codes, engines = codes_of(table["engine"])
    known = [ENGINES.index(name) if name in ENGINES else OTHER_ENGINE for name in engines]
    columns["engine"] = np.array([*known, OTHER_ENGINE], np.uint8)[codes]
    codes, opcodes = codes_of(table["opcode"])
    columns["opcode"] = np.array([*map(names.code, opcodes), -1], np.int32)[codes]
    columns["waits"] = np.array([*(name in WAIT_OPCODES for name in opcodes), False])[codes]
    present = set(table.column_names)
    if "compiler_pc" in present:
        columns["emitted"] = table["compiler_pc"].is_valid().to_numpy()
    for pair in (("hbm_read_bytes", "hbm_write_bytes"), ("spill_save_bytes", "spill_reload_bytes")):
        if set(pair) <= present:
            columns |= {column: int64_of(table[column]) for column in pair}
    if "raw_flops" in present:
        columns["flops"] = int64_of(table["raw_flops"], null=-1)
        if "tensor_instruction_type" in present:
            codes, kinds = codes_of(table["tensor_instruction_type"])
            columns["transposes"] = np.array([*(kind.upper() == "TRANSPOSE" for kind in kinds), False])[codes]
    if "wait_semaphore_idx" in present:
        columns["semaphore"] = int64_of(table["wait_semaphore_idx"], null=-1).astype(np.int16, copy=False)
        if "evt_wait_time_ns" in present:
            columns["evt_wait_ns"] = int64_of(table["evt_wait_time_ns"])
    if "update_semaphore_idx" in present:
        columns["updates"] = int64_of(table["update_semaphore_idx"], null=-1).astype(np.int16, copy=False)
    return Events(columns)


def _transfers(table: pa.Table, names: NameList) -> Events:
    sizes = {"bytes": int64_of(table["transfer_bytes"]), "moves_data": data_packet_mask(table)}
    return Events(_spans(table) | sizes)


def _packets(table: pa.Table, names: NameList) -> Events:
    columns = _transfers(table, names).columns
    if "queue_type" in table.column_names:
        codes, kinds = codes_of(table["queue_type"])
        columns["dynamic"] = np.array([*(kind in _DYNAMIC_QUEUE_TYPES for kind in kinds), False])[codes]
    return Events(columns)


def _collectives(table: pa.Table, names: NameList) -> Events:
    group = np.full(len(table), -1, np.int32)
    if "replica_group" in table.column_names:
        group = names.column(table["replica_group"])
    return Events(_spans(table) | {"operation": names.column(table["operation"]), "group": group})


def _kernels(table: pa.Table, names: NameList) -> Events:
    return Events(_spans(table))


def _semaphores(table: pa.Table, names: NameList) -> Events:
    columns: dict[str, np.ndarray] = {"start": int64_of(table["timestamp"])}
    if "semaphore_idx" in table.column_names:
        columns["semaphore"] = int64_of(table["semaphore_idx"], null=-1).astype(np.int16, copy=False)
        columns["id"] = names.column(table["id"])
        columns["source"] = (
            names.column(table["update_source"])
            if "update_source" in table.column_names
            else np.full(len(table), -1, np.int32)
        )
    return Events(columns)


def _throttle(table: pa.Table, names: NameList) -> Events:
    start = int64_of(table["timestamp"])
    return Events(
        {
            "start": start,
            "end": start + int64_of(table["duration"]),
            "k": int64_of(table["k"]),
            "n": int64_of(table["n"]),
        }
    )


_EXTRACT = {
    "instructions": _instructions,
    "dma_packets": _packets,
    "dma_transfers": _transfers,
    "collectives": _collectives,
    "kernels": _kernels,
    "semaphores": _semaphores,
    "throttle": _throttle,
}

"""Do a converted profile's tables agree with the totals in its own summary?

The vendor's tools can leave events out of a table (DmaPacket is sampled in large Parquet profiles, `--ignore-dma-trace`
drops it) while the summary still counts them all. A table that falls short must not pass for the whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from trnprof.profile import ENGINES, codes_of, int64_of
from trnprof.readers.issue_log import IssueLog
from trnprof.readers.vendor_metadata import VendorFacts

_DMA_KINDS = ("static", "software_dynamic", "hardware_dynamic")
_PACKET_COUNTS = tuple(f"{kind}_dma_packet_count" for kind in _DMA_KINDS)
_PACKET_SIZES = tuple(f"{kind}_dma_size" for kind in _DMA_KINDS)
_COUNTS = {
    "instructions": tuple(f"{engine}_engine_instruction_count" for engine in ENGINES),
    "dma_packets": _PACKET_COUNTS,
    "collectives": ("cc_op_count",),
}


def is_known_empty(name: str, facts: VendorFacts, log: IssueLog) -> bool | None:
    """For a table that the file lacks or has without rows: does the summary say that nothing happened?

    False where the summary counts events (then the table was not captured, and `log` says so); None where it does not
    count this table's events.
    """
    counted = facts.count_of(_COUNTS[name]) if name in _COUNTS else None
    if counted is None:
        return None
    log.add("DQ025", counted, f"{name}: no rows, though the summary counts {counted:,}")
    return not counted


@dataclass(frozen=True)
class TableTotals:
    """What of a table can be compared with the summary."""

    row_count: int
    bytes: int = 0
    """Of transfers and packets."""
    engine_row_count: dict[str, int] = field(default_factory=dict)
    """Of instructions."""

    def __add__(self, other: TableTotals) -> TableTotals:
        engines = {
            name: self.engine_row_count.get(name, 0) + other.engine_row_count.get(name, 0)
            for name in (*self.engine_row_count, *other.engine_row_count)
        }
        return TableTotals(self.row_count + other.row_count, self.bytes + other.bytes, engines)


def table_totals(tables: Mapping[str, pa.Table]) -> dict[str, TableTotals]:
    """The totals of each table."""
    return {name: totals_of(table) for name, table in tables.items()}


def totals_of(table: pa.Table) -> TableTotals:
    """The totals of one table, or of a part of it: they add up."""
    size = 0
    engines: dict[str, int] = {}
    if "transfer_bytes" in table.column_names:
        size = int(int64_of(table["transfer_bytes"]).sum())
    if "engine" in table.column_names:
        codes, names = codes_of(table["engine"])
        counts = np.bincount(codes[codes >= 0], minlength=len(names)).tolist()
        for name, count in zip(names, counts, strict=True):
            engines[name] = engines.get(name, 0) + count
    return TableTotals(len(table), size, engines)


def check_against_summary(totals: Mapping[str, TableTotals], facts: VendorFacts, log: IssueLog) -> None:
    """Note every table whose rows do not add up to what the summary counts."""
    packets = totals.get("dma_packets")
    if packets is not None:
        _compare(log, "dma_packets: rows", packets.row_count, facts.count_of(_PACKET_COUNTS))
        _compare(log, "dma_packets: bytes", packets.bytes, facts.count_of(_PACKET_SIZES))
    transfers = totals.get("dma_transfers")
    if transfers is not None:
        _compare(log, "dma_transfers: rows", transfers.row_count, facts.count_of(("dma_transfer_count",)))
        _compare(log, "dma_transfers: bytes", transfers.bytes, facts.count_of(("dma_transfer_total_bytes",)))
    collectives = totals.get("collectives")
    if collectives is not None:
        _compare(log, "collectives: rows", collectives.row_count, facts.count_of(_COUNTS["collectives"]))
    instructions = totals.get("instructions")
    if instructions is not None:
        # A record at the edge of the capture may be counted though it has no partner: one a core and engine.
        edge = max(1, len(facts.declared_cores()))
        for engine in ENGINES:
            rows = instructions.engine_row_count.get(engine, 0)
            counted = facts.count_of((f"{engine}_engine_instruction_count",))
            _compare(log, f"instructions of the {engine} engine: rows", rows, counted, edge)


def _compare(log: IssueLog, what: str, found: int, counted: int | None, tolerance: int = 0) -> None:
    if counted is not None and abs(counted - found) > tolerance:
        log.add("DQ025", abs(counted - found), f"{what} {found:,}, in the summary {counted:,}")

"""Do a converted profile's tables agree with the totals in its own summary?

The vendor's tools can leave events out of a table (DmaPacket is sampled in large Parquet profiles, `--ignore-dma-trace`
drops it) while the summary still counts them all. A table that falls short must not pass for the whole.
"""

from __future__ import annotations

from collections.abc import Mapping

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


def check_against_summary(tables: Mapping[str, pa.Table], facts: VendorFacts, log: IssueLog) -> None:
    """Note every table whose rows do not add up to what the summary counts."""
    packets = tables.get("dma_packets")
    if packets is not None:
        _compare(log, "dma_packets: rows", len(packets), facts.count_of(_PACKET_COUNTS))
        size = int(int64_of(packets["transfer_bytes"]).sum())
        _compare(log, "dma_packets: bytes", size, facts.count_of(_PACKET_SIZES))
    transfers = tables.get("dma_transfers")
    if transfers is not None:
        _compare(log, "dma_transfers: rows", len(transfers), facts.count_of(("dma_transfer_count",)))
        size = int(int64_of(transfers["transfer_bytes"]).sum())
        _compare(log, "dma_transfers: bytes", size, facts.count_of(("dma_transfer_total_bytes",)))
    collectives = tables.get("collectives")
    if collectives is not None:
        _compare(log, "collectives: rows", len(collectives), facts.count_of(_COUNTS["collectives"]))
    instructions = tables.get("instructions")
    if instructions is not None:
        codes, names = codes_of(instructions["engine"])
        # A record at the edge of the capture may be counted though it has no partner: one a core and engine.
        edge = max(1, len(facts.declared_cores()))
        for engine in ENGINES:
            rows = int(np.isin(codes, [code for code, name in enumerate(names) if name == engine]).sum())
            counted = facts.count_of((f"{engine}_engine_instruction_count",))
            _compare(log, f"instructions of the {engine} engine: rows", rows, counted, edge)


def _compare(log: IssueLog, what: str, found: int, counted: int | None, tolerance: int = 0) -> None:
    if counted is not None and abs(counted - found) > tolerance:
        log.add("DQ025", abs(counted - found), f"{what} {found:,}, in the summary {counted:,}")

"""Metadata as the vendor's small tables spell it: what both writers put beside a Profile's tables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from trnprof.profile import Metadata, Provenance
from trnprof.readers.marker import storable_summary

PRINTED_ENGINES = {"tensor": "Tensor", "vector": "Vector", "scalar": "Scalar", "gpsimd": "GpSimd", "sync": "Sync"}
"""Engines as the vendor prints them in its instruction tables."""

_MEASURED = frozenset({Provenance.MEASURED_DEVICE, Provenance.MEASURED_CPU})


def is_simulation(metadata: Metadata) -> bool:
    """What the vendor's is_simulation says: were the numbers made by a model rather than measured?"""
    return metadata.provenance not in _MEASURED


def window_of(metadata: Metadata) -> tuple[int, int]:
    """(start, end) over all cores, ns."""
    return (
        min((core.window_start_ts for core in metadata.cores), default=0),
        max((core.window_end_ts for core in metadata.cores), default=0),
    )


def unix_time(nanoseconds: int) -> str:
    """The vendor's text form of a timestamp: 1970-01-01T00:00:00.000036351Z; years beyond 9999 are left at 9999."""
    seconds, rest = divmod(nanoseconds, 10**9)
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=max(min(seconds, 253_402_300_799), -62_135_596_800))
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


def clock_ghz(metadata: Metadata, part: str) -> float | None:
    """A clock in GHz, as the vendor writes clocks; None where it is not known."""
    hertz = metadata.clock_hz.get(part)
    return None if hertz is None else hertz / 1e9


def summary_row(metadata: Metadata) -> dict[str, object]:
    """The summary's metrics, without those that no format can hold."""
    return {name: value for name, value in storable_summary(metadata.summary).items() if name}


def warnings_of(metadata: Metadata) -> list[str]:
    """The vendor's warnings that the readers draw facts from."""
    messages = []
    if metadata.dge_notifications is False:
        messages.append("Missing dynamic DMA metadata; captured without NEURON_RT_ENABLE_DGE_NOTIFICATIONS=1.")
    if metadata.dropped_record_count:
        messages.append(f"{metadata.dropped_record_count} trace records were dropped during capture.")
    return messages

"""The detail behind an anatomy as JSON: the analyzers' results under their own names and units."""

from __future__ import annotations

import dataclasses

from trnprof.analyzers.detail import Detail
from trnprof.render.text import printable


def details_json(details: list[Detail]) -> dict[str, object]:
    """`details` (an entry a core, in the order of the result's cores) and `peaks` (an entry an input).

    What a capture does not tell is null.
    """
    entries = [
        {"input": index} | _core_json(detail, position)
        for index, detail in enumerate(details)
        for position in range(len(detail.roofline.cores))
    ]
    return {"details": entries, "peaks": [_peaks_json(detail) for detail in details]}


def _core_json(detail: Detail, position: int) -> dict[str, object]:
    bounds = detail.bounds.cores[position]
    sources = None
    if detail.sources is not None:
        core = detail.sources.cores[position]
        rows = [{**plain(row), "busy_ns": row.busy_ns} for row in core.rows]  # type: ignore[dict-item]
        sources = {"key": detail.sources.key, "attributed_share": core.attributed_share, "rows": rows}
    return {
        "core": bounds.core,
        "opcodes": None if detail.opcodes is None else plain(detail.opcodes.cores[position].opcodes),
        "dma_efficiency": None if detail.dma is None else plain(detail.dma.cores[position]),
        "roofline": plain(detail.roofline.cores[position]),
        "bounds": plain(bounds),
        "sources": sources,
    }


def _peaks_json(detail: Detail) -> dict[str, object]:
    """What the numbers were held against, and the vendor's metrics, which are of the logical core."""
    dma = None
    if detail.dma is not None:
        dma = {
            field.name: plain(getattr(detail.dma, field.name))
            for field in dataclasses.fields(detail.dma)
            if field.name != "cores"
        }
    return {
        "core_peak_flop_per_s": detail.roofline.core_peak_flop_per_s,
        "core_peak_source": printable(detail.roofline.peak_source),
        "dma_peak_bytes_per_s": detail.bounds.dma_peak_bytes_per_s,
        "dma_peak_source": printable(detail.bounds.dma_peak_source),
        "metrics": detail.roofline.metrics,
        "dma": dma,
    }


def plain(value: object) -> object:
    """A result as JSON has it: dataclasses as objects, tuples as lists, names printable."""
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {printable(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return printable(value) if isinstance(value, str) else value

"""What a file holds, as JSON, text and Markdown."""

from __future__ import annotations

from trnprof.analyzers.capture_summary import CaptureSummary
from trnprof.findings import DataQuality
from trnprof.profile import ENGINES
from trnprof.render.markdown import escaped
from trnprof.render.quality import quality_lines, quality_markdown
from trnprof.render.text import duration, printable, rate, table, wrapped


def capture_json(summary: CaptureSummary) -> dict[str, object]:
    """The `result` of trnprof.info/1 for a capture."""
    metadata = summary.metadata
    return {
        "format": metadata.format,
        "format_version": _maybe(metadata.format_version),
        "provenance": str(metadata.provenance),
        "hardware": metadata.hardware,
        "instance_type": _maybe(metadata.instance_type),
        "neff_uuid": metadata.neff_uuid,
        "versions": {printable(name): printable(text) for name, text in sorted(metadata.versions.items())},
        "row_counts": summary.row_counts,
        "summary": _metrics(summary),
        "not_captured": summary.missing,
        "cores": [
            {
                "core": core.core,
                "subgraph": printable(core.subgraph),
                "neuroncore_idx": core.neuroncore_idx,
                "window_ns": core.window_ns,
                "engines": None
                if core.instruction_counts is None
                else {name: {"instruction_count": count} for name, count in core.instruction_counts.items()},
                "row_counts": core.row_counts,
            }
            for core in summary.cores
        ],
    }


def capture_text(path: str, summary: CaptureSummary, quality: tuple[DataQuality, ...]) -> str:
    """The same for a terminal."""
    blocks = [printable(path), "\n".join(f"  {name:<14}{value}" for name, value in _facts(summary))]
    if quality:
        blocks.append(quality_lines(quality))
    header = ["core", "window", *ENGINES, "packets", "sems"]
    rows = []
    for core in summary.cores:
        counts = core.instruction_counts or {}
        rows.append(
            [
                str(core.core),
                duration(core.window_ns),
                *(f"{counts[name]:,}" if name in counts else "n/a" for name in ENGINES),
                _count(core.row_counts["dma_packets"]),
                _count(core.row_counts["semaphores"]),
            ]
        )
    blocks.append("instructions per engine\n" + table(header, rows))
    blocks.append(
        "tables\n" + table(["table", "rows"], [[name, _count(count)] for name, count in summary.row_counts.items()])
    )
    metrics = _metrics(summary)
    if metrics:
        blocks.append(
            "the vendor's summary, in its units\n" + table(["metric", "value"], list(map(_pair, metrics.items())))
        )
    if summary.missing:
        lines = [f"{name}: without it nothing is said of {meaning}" for name, meaning in summary.missing.items()]
        blocks.append("not captured\n" + "\n".join(wrapped(line, indent="    ", first="  ") for line in lines))
    return "\n\n".join(blocks) + "\n"


def capture_markdown(path: str, summary: CaptureSummary, quality: tuple[DataQuality, ...]) -> str:
    """The same as Markdown."""
    lines = [f"# {escaped(path)}", "", *quality_markdown(quality), "| | |", "|---|---|"]
    lines += [f"| {name} | {escaped(value)} |" for name, value in _facts(summary)]
    lines += ["", "| core | window ns | " + " | ".join(ENGINES) + " |", "|---|---:|" + "---:|" * len(ENGINES)]
    for core in summary.cores:
        counts = core.instruction_counts or {}
        cells = " | ".join(f"{counts[name]:,}" if name in counts else "n/a" for name in ENGINES)
        lines.append(f"| {core.core} | {core.window_ns:,} | {cells} |")
    lines += ["", "| table | rows |", "|---|---:|"]
    lines += [f"| {name} | {_count(count)} |" for name, count in summary.row_counts.items()]
    return "\n".join(lines) + "\n"


def _facts(summary: CaptureSummary) -> list[tuple[str, str]]:
    metadata = summary.metadata
    facts = [
        ("format", " ".join(filter(None, (metadata.format, metadata.format_version)))),
        ("provenance", str(metadata.provenance)),
        ("chip", metadata.hardware or "not said"),
        ("instance", metadata.instance_type or "not said"),
        ("cores", str(len(summary.cores))),
        ("NEFF", metadata.neff_uuid or "not said"),
    ]
    if metadata.hbm_bandwidth_bytes_per_s:
        facts.append(("HBM stack", rate(metadata.hbm_bandwidth_bytes_per_s)))
    if metadata.dma_bandwidth_bytes_per_s:
        facts.append(("DMA per core", rate(metadata.dma_bandwidth_bytes_per_s)))
    facts += sorted(metadata.versions.items())
    return [(name, printable(value)) for name, value in facts]


def _metrics(summary: CaptureSummary) -> dict[str, int | float | str]:
    """The vendor's summary metrics, where they are all that a capture holds."""
    if any(count is not None for count in summary.row_counts.values()):
        return {}
    return {
        printable(name): printable(value) if isinstance(value, str) else value
        for name, value in sorted(summary.metadata.summary.items())
    }


def _pair(metric: tuple[str, int | float | str]) -> list[str]:
    name, value = metric
    return [name, f"{value:,}" if isinstance(value, int) else str(value)]


def _count(count: int | None) -> str:
    return "not captured" if count is None else f"{count:,}"


def _maybe(text: str | None) -> str | None:
    return None if text is None else printable(text)

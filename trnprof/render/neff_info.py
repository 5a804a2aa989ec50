"""What a NEFF holds, as JSON, text and Markdown."""

from __future__ import annotations

from trnprof.analyzers.neff_summary import CoreProgram, NeffSummary, QueueProgram, Tensor
from trnprof.findings import DataQuality
from trnprof.profile import ENGINES
from trnprof.render.markdown import escaped
from trnprof.render.quality import quality_lines, quality_markdown
from trnprof.render.text import byte_count, printable, table, wrapped

_TENSORS_SHOWN = 12
_QUEUES_SHOWN = 12
_OPCODES_SHOWN = 8


def neff_json(summary: NeffSummary, *, full: bool) -> dict[str, object]:
    """The `result` of trnprof.info/1 for a NEFF; long lists end with a row that sums the rest."""
    return {
        "format": "neff",
        "name": printable(summary.name),
        "uuid": summary.uuid,
        "compiler_version": None if summary.compiler_version is None else printable(summary.compiler_version),
        "target": None if summary.target is None else printable(summary.target),
        "hardware": summary.hardware,
        "lnc_size": summary.lnc_size,
        "features": [printable(feature) for feature in summary.features],
        "modelled": summary.modelled,
        "unknown_opcode_count": summary.unknown_opcode_count,
        "kernels": [printable(kernel) for kernel in summary.kernels],
        "tensor_bytes": {kind: summary.tensor_bytes(kind) for kind in ("input", "output", "weight")},
        "tensors": _tensors_json(summary.tensors, full=full),
        "cores": [_core_json(core, full=full) for core in summary.cores],
    }


def _tensors_json(tensors: tuple[Tensor, ...], *, full: bool) -> list[dict[str, object]]:
    shown = tensors if full else tensors[:_TENSORS_SHOWN]
    rows: list[dict[str, object]] = [
        {
            "name": printable(tensor.name),
            "kind": tensor.kind,
            "dtype": None if tensor.dtype is None else printable(tensor.dtype),
            "shape": tensor.shape,
            "size_bytes": tensor.size_bytes,
        }
        for tensor in shown
    ]
    rest = tensors[len(shown) :]
    if rest:
        rows.append({"name": f"rest ({len(rest)})", "size_bytes": sum(tensor.size_bytes or 0 for tensor in rest)})
    return rows


def _core_json(core: CoreProgram, *, full: bool) -> dict[str, object]:
    queues = core.queues if full else _busiest(core)
    rest = len(core.queues) - len(queues)
    rows: list[dict[str, object]] = [dict(vars(queue)) | {"name": printable(queue.name)} for queue in queues]
    if rest:
        others = [queue for queue in core.queues if queue not in queues]
        rows.append({"name": f"rest ({rest})", "static_ring_count": sum(queue.static_ring_count for queue in others)})
    return {
        "core": core.core,
        "subgraph": printable(core.subgraph),
        "engines": {
            name: {
                "instruction_count": core.engines[name].instruction_count,
                "opcodes": dict(core.engines[name].opcode_counts[: None if full else _OPCODES_SHOWN]),
            }
            for name in ENGINES
        },
        "static_ring_count": core.static_ring_count,
        "dynamic_dma_count": core.dynamic_dma_count,
        "hbm_read_bytes": core.hbm_read_bytes,
        "hbm_write_bytes": core.hbm_write_bytes,
        "unsized_dma_count": core.unsized_dma_count,
        "queues": rows,
    }


def _busiest(core: CoreProgram) -> tuple[QueueProgram, ...]:
    """The queues with most static bytes, in the program's own order."""
    kept = sorted(core.queues, key=lambda queue: -(queue.read_bytes + queue.static_ring_count))[:_QUEUES_SHOWN]
    return tuple(queue for queue in core.queues if queue in kept)


def neff_text(path: str, summary: NeffSummary, quality: tuple[DataQuality, ...]) -> str:
    """The same for a terminal."""
    blocks = [printable(path), "\n".join(f"  {name:<12}{value}" for name, value in _facts(summary))]
    if quality:
        blocks.append(quality_lines(quality))
    rows = [
        [
            f"{core.core} ({printable(core.subgraph, 16)})",
            *(f"{core.engines[name].instruction_count:,}" for name in ENGINES),
            f"{core.static_ring_count:,}",
            f"{core.dynamic_dma_count:,}",
        ]
        for core in summary.cores
    ]
    blocks.append("instructions per engine\n" + table(["core", *ENGINES, "rings", "dynamic"], rows))
    if summary.tensors:
        blocks.append(_tensor_text(summary.tensors))
    blocks += [_queue_text(core) for core in summary.cores if core.queues]
    if summary.unknown_opcode_count:
        blocks.append(f"{summary.unknown_opcode_count:,} instructions have an opcode that nothing names (OP_0xNN)")
    return "\n\n".join(blocks) + "\n"


def _tensor_text(tensors: tuple[Tensor, ...]) -> str:
    rows = [
        [
            printable(tensor.name, 32),
            tensor.kind,
            printable(tensor.dtype or "n/a"),
            "x".join(map(str, tensor.shape)) if tensor.shape is not None else "n/a",
            byte_count(tensor.size_bytes),
        ]
        for tensor in tensors[:_TENSORS_SHOWN]
    ]
    rest = tensors[_TENSORS_SHOWN:]
    if rest:
        rows.append([f"rest ({len(rest)})", "", "", "", byte_count(sum(tensor.size_bytes or 0 for tensor in rest))])
    return "tensors\n" + table(["name", "kind", "dtype", "shape", "bytes"], rows, left=3)


def _queue_text(core: CoreProgram) -> str:
    shown = _busiest(core)
    rows = [
        [
            printable(queue.name, 34),
            printable(queue.type, 16),
            f"{queue.static_ring_count:,}",
            f"{queue.descriptor_count:,}",
            byte_count(queue.read_bytes),
            byte_count(queue.write_bytes),
        ]
        for queue in shown
    ]
    title = f"core {core.core}: DMA queues, with the bytes of their static rings (each triggered once)"
    if len(shown) < len(core.queues):
        title += f"; {len(core.queues) - len(shown)} more with --format json --full"
    totals = (
        f"all DMAs, each once: HBM {byte_count(core.hbm_read_bytes)} read, {byte_count(core.hbm_write_bytes)} written"
    )
    if core.unsized_dma_count:
        totals += f"; {core.unsized_dma_count} DMAs whose memory is not known are not in it"
    return "\n".join(
        [
            wrapped(title, indent="  ", first=""),
            table(["queue", "type", "rings", "descs", "read", "written"], rows, left=2),
            wrapped(totals, indent="    ", first="  "),
        ]
    )


def neff_markdown(path: str, summary: NeffSummary, quality: tuple[DataQuality, ...]) -> str:
    """The same as Markdown."""
    lines = [f"# {escaped(path)}", "", *quality_markdown(quality), "| | |", "|---|---|"]
    lines += [f"| {name} | {escaped(value)} |" for name, value in _facts(summary)]
    lines += ["", "| core | " + " | ".join(ENGINES) + " | static rings |", "|---|" + "---:|" * (len(ENGINES) + 1)]
    for core in summary.cores:
        counts = " | ".join(f"{core.engines[name].instruction_count:,}" for name in ENGINES)
        lines.append(f"| {core.core} | {counts} | {core.static_ring_count:,} |")
    lines += ["", "| tensor | kind | dtype | shape | bytes |", "|---|---|---|---|---:|"]
    for tensor in summary.tensors:
        shape = "n/a" if tensor.shape is None else "x".join(map(str, tensor.shape))
        size = "n/a" if tensor.size_bytes is None else f"{tensor.size_bytes:,}"
        lines.append(
            f"| {escaped(tensor.name)} | {tensor.kind} | {escaped(tensor.dtype or 'n/a')} | {shape} | {size} |"
        )
    return "\n".join(lines) + "\n"


def _facts(summary: NeffSummary) -> list[tuple[str, str]]:
    facts = [
        ("name", summary.name),
        ("uuid", summary.uuid),
        ("compiler", summary.compiler_version or "not said"),
        ("target", f"{summary.target or 'not said'} ({summary.hardware or 'no chip of that name known'})"),
        ("LNC", str(summary.lnc_size)),
        ("features", ", ".join(summary.features) or "none"),
        ("kernels", ", ".join(summary.kernels) or "none with debug info"),
    ]
    if summary.modelled:
        facts.append(("provenance", "modelled: written by trnprof, not by the compiler"))
    return [(name, printable(value)) for name, value in facts]

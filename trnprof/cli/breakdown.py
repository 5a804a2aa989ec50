"""`trnprof breakdown`: where the time and the bytes go, by one key."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trnprof.cli.options import (
    STANDARD_OUTPUT,
    DebugOption,
    ForceOption,
    FormatOption,
    FullOption,
    HardwareOption,
    OutputFormat,
    OutputOption,
    StrictOption,
)

if TYPE_CHECKING:
    from trnprof.analyzers.anatomy import Anatomy
    from trnprof.hardware import Hardware
    from trnprof.profile import Profile
    from trnprof.render.breakdown import BreakdownTable

EXAMPLES = (
    "trnprof breakdown step.ntff --by opcode",
    "trnprof breakdown step.ntff --by line --full",
    "trnprof breakdown profile@latest/ --by collective --format json",
    "trnprof breakdown step.ntff --by bounds",
)


class Key(StrEnum):
    """What a capture can be broken down by."""

    OPCODE = "opcode"
    LINE = "line"
    LAYER = "layer"
    KERNEL = "kernel"
    INSTRUCTION = "instruction"
    QUEUE = "queue"
    SIZE = "size"
    DMA_ENGINE = "dma-engine"
    TENSOR = "tensor"
    COLLECTIVE = "collective"
    BOUNDARY = "boundary"
    THROTTLE = "throttle"
    BOUNDS = "bounds"
    ROOFLINE = "roofline"


def breakdown(
    path: Annotated[
        Path,
        typer.Argument(
            help="An NTFF, an Explorer Parquet directory, a profiler JSON, or a folder of them.", metavar="FILE|DIR"
        ),
    ],
    by: Annotated[
        Key,
        typer.Option(
            help="Instructions by opcode, source line, layer, kernel or compiler instruction; DMA packets by queue, size or "
            "DMA engine; HBM bytes by tensor; collectives; kernel boundaries; throttling; the vendor's bounds; roofline."
        ),
    ] = Key.OPCODE,
    neff: Annotated[
        Path | None,
        typer.Option(help="The NEFF that the capture ran, where it does not lie beside it.", show_default=False),
    ] = None,
    bandwidth: Annotated[
        str, typer.Option(help="HBM bandwidth of a core: measured, spec, or bytes per second (336e9).")
    ] = "measured",
    hardware: HardwareOption = None,
    form: FormatOption = OutputFormat.TEXT,
    output: OutputOption = STANDARD_OUTPUT,
    force: ForceOption = False,
    strict: StrictOption = False,
    full: FullOption = False,
    debug: DebugOption = False,
) -> int:
    """List what costs most, with a rest row that sums; the figures add up to the anatomy's."""
    from trnprof.cli.answer import deliver
    from trnprof.cli.captures import account, folder_quality, inputs_of, open_captures
    from trnprof.hardware import hardware_of, parse_bandwidth
    from trnprof.render.breakdown import (
        BreakdownView,
        breakdown_markdown,
        breakdown_report,
        breakdown_text,
    )
    from trnprof.render.envelope import Report
    from trnprof.render.quality import quality_lines

    chosen = parse_bandwidth(bandwidth)
    opened = open_captures(path, neff=neff)
    views, quality = [], [*folder_quality(opened)]
    used = None
    for capture in opened.captures:
        view = account(capture, hardware=hardware, bandwidth=chosen)
        used = used or view.anatomy
        quality += view.data_quality
        tables, missing = _tables(by, capture.profile, view.anatomy, hardware_of(capture.profile.metadata, hardware))
        views.append(BreakdownView(str(capture.path), str(view.anatomy.provenance), str(by), tuple(tables), missing))
    assert used is not None

    def report(result: dict[str, object]) -> Report:
        return Report(
            command="breakdown",
            inputs=inputs_of(opened),
            hardware={
                "name": used.hardware,
                "bandwidth_bytes_per_s": used.bandwidth.bytes_per_s,
                "source": used.bandwidth.source,
            },
            data_quality=tuple(quality),
            result=result,
        )

    def text() -> str:
        blocks = [quality_lines(tuple(quality)) + "\n"] if quality else []
        return "\n".join([*blocks, *(breakdown_text(view, full=full) for view in views)])

    return deliver(
        breakdown_report(views, report, full=full),
        form=form,
        output=output,
        force=force,
        text=text,
        markdown=lambda: "\n".join(breakdown_markdown(view, full=full) for view in views),
        strict=strict,
        brief=lambda: breakdown_report(views, report, full=False),
    )


def _tables(by: Key, profile: Profile, anatomy: Anatomy, hardware: Hardware) -> tuple[list[BreakdownTable], str | None]:
    """(the tables, or what was not captured)."""
    from trnprof.analyzers import (
        boundaries,
        bounds,
        collectives,
        dma_efficiency,
        hbm_traffic,
        opcodes,
        roofline,
        source_cost,
        throttling,
    )
    from trnprof.render import breakdown_tables as tables

    packets: Callable[[], Any] = lambda: dma_efficiency.measure_dma_efficiency(profile, hardware)  # noqa: E731
    known: dict[Key, tuple[Callable[[], Any], Callable[[Any], list[BreakdownTable]], str]] = {
        Key.OPCODE: (lambda: opcodes.measure_opcodes(profile, hardware), tables.opcode_tables, "instructions"),
        Key.QUEUE: (packets, tables.queue_tables, "DMA packets"),
        Key.SIZE: (packets, tables.size_tables, "DMA packets"),
        Key.DMA_ENGINE: (packets, tables.dma_engine_tables, "DMA packets, or their DMA engines"),
        Key.TENSOR: (lambda: hbm_traffic.measure_hbm_traffic(profile, anatomy), tables.tensor_tables, ""),
        Key.COLLECTIVE: (lambda: collectives.measure_collectives(profile), tables.collective_tables, "collectives"),
        Key.BOUNDARY: (lambda: boundaries.measure_boundaries(profile, anatomy), tables.boundary_tables, "kernels"),
        Key.THROTTLE: (lambda: throttling.measure_throttling(profile), tables.throttle_tables, "throttling"),
        Key.BOUNDS: (lambda: bounds.measure_bounds(profile, anatomy, hardware), tables.bounds_tables, ""),
        Key.ROOFLINE: (lambda: roofline.measure_roofline(profile, anatomy, hardware), tables.roofline_tables, ""),
    }
    source: dict[Key, source_cost.SourceKey] = {
        Key.LINE: "line",
        Key.LAYER: "layer",
        Key.KERNEL: "kernel",
        Key.INSTRUCTION: "instruction",
    }
    if by in source:
        lacks = "kernels (spans of kernel calls)" if by is Key.KERNEL else "instructions"
        costs = source_cost.measure_source_cost(profile, source[by])
        made = [] if costs is None else tables.source_tables(costs)
    else:
        measure, build, lacks = known[by]
        result = measure()
        made = [] if result is None else build(result)
    return made, None if made else f"{lacks}; `trnprof info` lists what the capture has"

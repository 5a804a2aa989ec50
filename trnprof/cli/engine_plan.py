"""`trnprof engine plan`: the closed list of shapes an engine compiles, and what its memory comes to."""

from __future__ import annotations

from pathlib import Path

from trnprof.cli.engine_options import (
    CONTEXTS,
    DECODE_ROWS,
    PREFILL_SIZES,
    ContextsOption,
    DecodeRowsOption,
    DraftOption,
    HostPagesOption,
    HostSnapshotsOption,
    ModelOption,
    PagesOption,
    PrefillSizesOption,
    SnapshotsOption,
    engine_config,
)
from trnprof.cli.options import STANDARD_OUTPUT, DebugOption, ForceOption, FormatOption, OutputFormat, OutputOption

EXAMPLES = (
    "trnprof engine plan",
    "trnprof engine plan --model Qwen3.5-35B-A3B/ --decode-rows 4,8,12 --format json",
)


def plan(
    model: ModelOption = "tiny-gdn-moe",
    draft: DraftOption = 0,
    pages: PagesOption = 1024,
    snapshots: SnapshotsOption = 64,
    host_pages: HostPagesOption = 0,
    host_snapshots: HostSnapshotsOption = 0,
    prefill_sizes: PrefillSizesOption = PREFILL_SIZES,
    decode_rows: DecodeRowsOption = DECODE_ROWS,
    contexts: ContextsOption = CONTEXTS,
    form: FormatOption = OutputFormat.TEXT,
    output: OutputOption = STANDARD_OUTPUT,
    force: ForceOption = False,
    debug: DebugOption = False,
) -> int:
    """List every shape that would be compiled. A step of another shape is an error, never a live compilation.

    Needs no extra: a checkpoint's config.json is enough.
    """
    from trnprof.cli.answer import deliver
    from trnprof.engine.checkpoint_config import load_model_config
    from trnprof.engine.shapes import ShapeList
    from trnprof.render.engine_plan import plan_json, plan_markdown, plan_text
    from trnprof.render.envelope import Report

    config = engine_config(
        draft=draft,
        pages=pages,
        snapshots=snapshots,
        host_pages=host_pages,
        host_snapshots=host_snapshots,
        prefill_sizes=prefill_sizes,
        decode_rows=decode_rows,
        contexts=contexts,
    )
    described = load_model_config(model)
    shapes = ShapeList(config, described)
    result = plan_json(Path(model).name, described, config, shapes)
    return deliver(
        Report(command="engine-plan", result=result),
        form=form,
        output=output,
        force=force,
        text=lambda: plan_text(result),
        markdown=lambda: plan_markdown(result),
    )

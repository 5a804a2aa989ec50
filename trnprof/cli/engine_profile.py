"""`trnprof engine profile`: run a small workload and record every step and kernel call."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from trnprof.cli.engine_options import (
    CONTEXTS,
    DECODE_ROWS,
    PREFILL_SIZES,
    ContextsOption,
    DecodeRowsOption,
    DeviceOption,
    DraftOption,
    ModelOption,
    PagesOption,
    PrefillSizesOption,
    SeedOption,
    ThreadsOption,
    engine_config,
)
from trnprof.cli.options import DebugOption, ForceOption

EXAMPLES = (
    "trnprof engine profile -o run/ && trnprof anatomy run/",
    "trnprof engine profile --model tiny-gdn-moe --rows 8 --context 1024 --answer 64 --draft 2 -o run/",
)


def profile(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the step log.", show_default=False)],
    model: ModelOption = "tiny-gdn-moe",
    rows: Annotated[int, typer.Option(help="Requests at once.")] = 4,
    context: Annotated[int, typer.Option(help="Prompt tokens of each.")] = 256,
    answer: Annotated[int, typer.Option(help="Tokens to generate for each.")] = 32,
    draft: DraftOption = 0,
    pages: PagesOption = 4096,
    prefill_sizes: PrefillSizesOption = PREFILL_SIZES,
    decode_rows: DecodeRowsOption = DECODE_ROWS,
    contexts: ContextsOption = CONTEXTS,
    device: DeviceOption = "cpu",
    threads: ThreadsOption = 0,
    seed: SeedOption = 0,
    force: ForceOption = False,
    debug: DebugOption = False,
) -> int:
    """Record a run as Parquet (provenance measured-cpu), which `trnprof anatomy` splits into its parts.

    The same workload runs once before, unrecorded, so that the first calls' set-up is not in the numbers.
    """
    from trnprof.engine.build import open_engine
    from trnprof.engine.workload import run_batch
    from trnprof.errors import UsageError
    from trnprof.render.text import printable
    from trnprof.writers.output import replaced_directory

    config = engine_config(
        draft=draft,
        pages=pages,
        prefill_sizes=prefill_sizes,
        decode_rows=decode_rows,
        contexts=contexts,
        device=device,
        seed=seed,
    )
    if min(rows, context, answer) < 1:
        raise UsageError("--rows, --context and --answer must be at least 1")
    if rows > config.lanes:
        raise UsageError(f"--rows {rows} is more than the largest of --decode-rows ({config.lanes})")
    with replaced_directory(output, ".parquet", overwrite=force) as folder:
        served = open_engine(model, config, profile_operations=True, threads=threads or None)
        try:
            run_batch(served, rows=rows, prompt_tokens=context, answer_tokens=answer, seed=seed + 1)
            assert served.engine.log is not None
            served.engine.log.clear()
            run_batch(served, rows=rows, prompt_tokens=context, answer_tokens=answer, seed=seed)
            served.engine.log.write(folder)
        finally:
            served.engine.runner.close()
    print(
        f"trnprof: step log written; look at it with: trnprof anatomy {printable(output, 400)}",
        file=sys.stderr,
    )
    return 0

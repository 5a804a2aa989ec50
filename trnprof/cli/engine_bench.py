"""`trnprof engine bench`: tokens a second and time to first token of the bundled engine on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trnprof.cli.engine_options import (
    DraftOption,
    ModelOption,
    PagesOption,
    SeedOption,
    ThreadsOption,
    engine_config,
    numbers,
)
from trnprof.cli.options import STANDARD_OUTPUT, DebugOption, ForceOption, FormatOption, OutputFormat, OutputOption

EXAMPLES = ("trnprof engine bench", "trnprof engine bench --rows 1,8 --draft 2 --format json")


def bench(
    model: ModelOption = "tiny-gdn-moe",
    rows: Annotated[str, typer.Option(help="Requests at once, comma separated.")] = "1,4,8,16",
    prompt: Annotated[int, typer.Option(help="Prompt tokens of each request.")] = 128,
    answer: Annotated[int, typer.Option(help="Tokens to generate for each.")] = 64,
    draft: DraftOption = 0,
    pages: PagesOption = 4096,
    threads: ThreadsOption = 0,
    seed: SeedOption = 0,
    form: FormatOption = OutputFormat.TEXT,
    output: OutputOption = STANDARD_OUTPUT,
    force: ForceOption = False,
    debug: DebugOption = False,
) -> int:
    """Measure the engine in this process, without HTTP. Times are this machine's; compare ratios."""
    from trnprof.cli.answer import deliver
    from trnprof.engine.build import open_engine
    from trnprof.engine.workload import run_batch
    from trnprof.errors import UsageError
    from trnprof.render.envelope import Report
    from trnprof.render.text import duration, table

    counts = numbers(rows, "--rows")
    if min(prompt, answer) < 1:
        raise UsageError("--prompt and --answer must be at least 1")
    config = engine_config(draft=draft, pages=pages, decode_rows=",".join(map(str, counts)), seed=seed)
    served = open_engine(model, config, threads=threads or None)
    try:
        run_batch(served, rows=counts[-1], prompt_tokens=prompt, answer_tokens=min(answer, 8), seed=seed + 1)
        measured = [
            run_batch(served, rows=count, prompt_tokens=prompt, answer_tokens=answer, seed=seed + 2 + count)
            for count in counts
        ]
    finally:
        served.engine.runner.close()
    result: dict[str, object] = {
        "model": served.name,
        "provenance": "measured-cpu",
        "prompt_tokens": prompt,
        "answer_tokens": answer,
        "draft_tokens": draft,
        "runs": [
            {
                "rows": run.rows,
                "tokens_per_s": round(run.tokens_per_s, 3),
                "first_token_median_ns": run.first_token_median_ns,
                "window_ns": run.window_ns,
                "accepted_share": run.accepted_share,
            }
            for run in measured
        ],
    }
    header = ["rows", "tokens/s", "first token", "window", "drafts accepted"]
    lines = [
        [
            str(run.rows),
            f"{run.tokens_per_s:,.0f}",
            duration(run.first_token_median_ns),
            duration(run.window_ns),
            "n/a" if run.accepted_share is None else f"{100 * run.accepted_share:.0f} %",
        ]
        for run in measured
    ]
    title = f"{Path(model).name}: {prompt} prompt and {answer} answer tokens a request, measured-cpu on this machine"
    return deliver(
        Report(command="engine-bench", result=result),
        form=form,
        output=output,
        force=force,
        text=lambda: f"{title}\n{table(header, lines)}\n",
        markdown=lambda: (
            "\n".join(
                [f"{title}", "", "| " + " | ".join(header) + " |", "|" + "---:|" * len(header)]
                + ["| " + " | ".join(line) + " |" for line in lines]
            )
            + "\n"
        ),
    )

"""`trnprof engine profile`: record every step of a run on this CPU, or model one step as a device would run it."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from trnprof.cli.options import STANDARD_OUTPUT, DebugOption, ForceOption, FormatOption, FullOption, OutputFormat

if TYPE_CHECKING:
    from trnprof.hardware.instruction_costs import Case
    from trnprof.modelled_step import ModelledStep

EXAMPLES = (
    "trnprof engine profile -o run/ && trnprof anatomy run/",
    "trnprof engine profile --model tiny-gdn-moe --rows 8 --context 1024 --answer 64 --draft 2 -o run/",
    "trnprof engine profile --modelled --hardware trn2 --rows 8 --context 4096",
    "trnprof engine profile --modelled --model Qwen3-Next-80B-A3B/ --tp 4 --rows 8 --context 4096 -o step/",
    "trnprof engine profile --modelled --rows 4 --to ntff -o step.ntff --format json",
)


class Step(StrEnum):
    """What the modelled step does."""

    DECODE = "decode"
    PREFILL = "prefill"


class Experts(StrEnum):
    """How the chosen experts run."""

    ONCE = "once"
    SELECTIVE = "selective"


class ProfileFormat(StrEnum):
    """What the modelled profile can be written as."""

    PARQUET = "parquet"
    NTFF = "ntff"


class Schedule(StrEnum):
    """Which of the three schedules is written."""

    LOW = "low"
    MID = "mid"
    HIGH = "high"


def profile(
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Folder for the step log; with --modelled for the profile, or with --to ntff a name ending in .ntff.",
            show_default=False,
        ),
    ] = None,
    model: ModelOption = "tiny-gdn-moe",
    rows: Annotated[int, typer.Option(help="Requests at once.")] = 4,
    context: Annotated[
        int, typer.Option(help="Prompt tokens of each; modelled: tokens in the caches, the step's own included.")
    ] = 256,
    answer: Annotated[int, typer.Option(help="Tokens to generate for each.")] = 32,
    draft: DraftOption = 0,
    pages: PagesOption = 4096,
    prefill_sizes: PrefillSizesOption = PREFILL_SIZES,
    decode_rows: DecodeRowsOption = DECODE_ROWS,
    contexts: ContextsOption = CONTEXTS,
    device: DeviceOption = "cpu",
    threads: ThreadsOption = 0,
    seed: SeedOption = 0,
    modelled: Annotated[
        bool, typer.Option("--modelled", help="Model one step on a device instead of recording a run; needs no torch.")
    ] = False,
    hardware: Annotated[
        str, typer.Option(help="Modelled: trn1, trn2 or trn3.", autocompletion=lambda: ["trn1", "trn2", "trn3"])
    ] = "trn2",
    tp: Annotated[int, typer.Option("--tp", help="Modelled: ranks that share every layer; the profile is of one.")] = 1,
    step: Annotated[Step, typer.Option(help="Modelled: decode, or prefill.")] = Step.DECODE,
    tokens: Annotated[int, typer.Option(help="Modelled prefill: new tokens of each row.")] = 256,
    experts: Annotated[
        Experts, typer.Option(help="Modelled: each chosen expert once for all rows, or selective: for each row.")
    ] = Experts.ONCE,
    to: Annotated[ProfileFormat, typer.Option("--to", help="Modelled: what --output writes.")] = ProfileFormat.PARQUET,
    which: Annotated[
        Schedule, typer.Option("--schedule", help="Modelled: which schedule --output writes.")
    ] = Schedule.MID,
    form: FormatOption = OutputFormat.TEXT,
    force: ForceOption = False,
    full: FullOption = False,
    debug: DebugOption = False,
) -> int:
    """Record a run as Parquet (provenance measured-cpu), which `trnprof anatomy` splits into its parts; the same workload
    runs once before, unrecorded, so that the first calls' set-up is not in the numbers.

    With --modelled: put the NKI kernels of one step of one rank through the timing model into one device profile
    (provenance modelled). A folder with a config.json is enough for that; no weights are read.
    """
    from trnprof.cli.answer import deliver
    from trnprof.engine.build import open_engine
    from trnprof.engine.workload import run_batch
    from trnprof.errors import UsageError
    from trnprof.render.envelope import Report
    from trnprof.render.text import printable
    from trnprof.writers.output import replaced_directory

    if modelled:
        return _modelled(
            model, rows, context, tp=tp, hardware=hardware, step=step, output=output, to=to, which=which, form=form,
            force=force, full=full, experts=experts, tokens=tokens,
        )  # fmt: skip
    config = engine_config(
        draft=draft,
        pages=pages,
        prefill_sizes=prefill_sizes,
        decode_rows=decode_rows,
        contexts=contexts,
        device=device,
        seed=seed,
    )
    if output is None:
        raise UsageError("name the folder for the step log with --output, or add --modelled")
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
    shown = printable(output, 400)
    print(f"trnprof: step log written; look at it with: trnprof anatomy {shown}", file=sys.stderr)
    result: dict[str, object] = {
        "provenance": "measured-cpu",
        "model": printable(Path(model).name, 200),
        "rows": rows,
        "context": context,
        "answer": answer,
        "written_to": shown,
    }
    return deliver(
        Report(command="engine-profile", result=result),
        form=form,
        output=STANDARD_OUTPUT,
        force=force,
        text=lambda: "",
        markdown=lambda: "",
    )


def _modelled(
    model: str,
    rows: int,
    context: int,
    *,
    tp: int,
    hardware: str,
    step: Step,
    output: Path | None,
    to: ProfileFormat,
    which: Schedule,
    form: OutputFormat,
    force: bool,
    full: bool,
    experts: Experts,
    tokens: int,
) -> int:
    from trnprof.cli.answer import deliver
    from trnprof.cli.progress import Progress
    from trnprof.engine.checkpoint_config import load_model_config
    from trnprof.engine.modelled_step import ExpertForm, decode_step, prefill_step
    from trnprof.errors import UsageError
    from trnprof.hardware.instruction_costs import Case, load_instruction_costs
    from trnprof.modelled_step import model_device_step
    from trnprof.render.engine_profile import modelled_json, modelled_markdown, modelled_text
    from trnprof.render.envelope import Report
    from trnprof.render.text import printable
    from trnprof.writers.output import refuse_existing

    load_instruction_costs(hardware)  # an unknown name is said before anything runs
    if output is not None and to is ProfileFormat.NTFF and output.suffix != ".ntff":
        raise UsageError("--to ntff writes a file that ends in .ntff and a .neff beside it; name it so", path=output)
    name = Path(model).name
    if output is not None:
        refuse_existing(output, force)
    config = load_model_config(model)
    form_of_experts = ExpertForm(experts.value)
    if step is Step.PREFILL:
        planned = prefill_step(
            config, rows=rows, tokens=tokens, context=context, rank_count=tp, expert_form=form_of_experts
        )
    else:
        planned = decode_step(config, rows=rows, context=context, rank_count=tp, expert_form=form_of_experts)
    with Progress("modelling kernels") as progress:
        found = model_device_step(planned, hardware, advance=progress.advance)
    if output is not None:
        _write(found, output, to, Case(which.value), name, force)
    written_to = None if output is None else printable(output, 400)

    def report(full: bool) -> Report:
        return Report(
            command="engine-profile",
            hardware={
                "name": hardware,
                "bandwidth_bytes_per_s": found.bandwidth_bytes_per_s,
                "source": "instruction_costs.toml, DMA engines' sustained rate",
            },
            result=modelled_json(name, found, written_to, full=full),
        )

    return deliver(
        report(full),
        form=form,
        output=STANDARD_OUTPUT,
        force=force,
        text=lambda: modelled_text(name, found, written_to),
        markdown=lambda: modelled_markdown(name, found, written_to),
        brief=lambda: report(False),
    )


def _write(found: ModelledStep, path: Path, to: ProfileFormat, case: Case, name: str, overwrite: bool) -> None:
    from trnprof.errors import UsageError
    from trnprof.profile import ProfileError

    profile = found.profile(case)
    if to is ProfileFormat.PARQUET:
        from trnprof.writers.explorer_parquet import write_explorer_parquet

        write_explorer_parquet(profile, path, overwrite=overwrite)
        return
    from trnprof.writers.modelled_capture import write_modelled_capture

    try:
        write_modelled_capture(profile, path, name, overwrite=overwrite)
    except ProfileError as error:
        raise UsageError(f"NTFF cannot hold this profile ({error}); write it with --to parquet", path=path) from None
    if found.step.collectives:
        print("trnprof: an NTFF of ours holds no collectives; --to parquet writes them", file=sys.stderr)

"""`trnprof dma-predict`: DMA traffic of an NKI kernel before anything is compiled."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trnprof.cli.options import (
    STANDARD_OUTPUT,
    DebugOption,
    ForceOption,
    FormatOption,
    FullOption,
    OutputFormat,
    OutputOption,
)

if TYPE_CHECKING:
    import ast

    from trnprof.nki.discovery import KernelSource
    from trnprof.nki.guard import KernelRun, Limits
    from trnprof.render.envelope import Report

EXAMPLES = (
    "trnprof dma-predict kernel.py                                   # what it holds, and commands to run",
    "trnprof dma-predict kernel.py --input q=128x512:bfloat16 --input k=128x512:bfloat16",
    "trnprof dma-predict kernel.py --kernel matmul --input a=4096x4096:bfloat16 --arg tile=4 --lnc 2",
    "trnprof dma-predict kernel.py --input x=8192x2048:float32 --sweep TILE=128,256,512",
    "trnprof dma-predict attention.py --input q=128x512:float32 --against step.ntff",
    "trnprof dma-predict nkilib/core/moe/moe.py --kernel moe --inputs moe_inputs.py",
    "trnprof dma-predict kernel.py --no-exec                         # from the syntax tree, runs nothing",
)


def _complete_kernel(context: typer.Context, incomplete: str) -> list[str]:
    """Names of the kernels in the file on the command line."""
    from trnprof.errors import TrnprofError
    from trnprof.nki.discovery import find_kernels, parse_source, read_source

    path = Path(context.params.get("kernel_file") or "")
    try:
        found = find_kernels(parse_source(read_source(path), path))
    except TrnprofError:
        return []
    return [kernel.name for kernel in found if kernel.name.startswith(incomplete)]


def dma_predict(
    kernel_file: Annotated[Path, typer.Argument(help="The Python file that holds the kernel.", metavar="KERNEL.py")],
    kernel: Annotated[
        str | None,
        typer.Option(
            "--kernel",
            "-k",
            help="The kernel in it; needed if there are several.",
            show_default=False,
            autocompletion=_complete_kernel,
        ),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", "-i", help="A tensor argument: NAME=128x512:bfloat16.", show_default=False),
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Option("--arg", "-a", help="Any other argument: NAME=PYTHON_LITERAL.", show_default=False),
    ] = None,
    inputs_file: Annotated[
        Path | None,
        typer.Option("--inputs", help="A Python file whose inputs() returns the arguments.", show_default=False),
    ] = None,
    lnc: Annotated[int, typer.Option(help="Programs of a logical core: 1 or 2.")] = 1,
    grid: Annotated[str | None, typer.Option(help="First-generation launch grid: 4x2.", show_default=False)] = None,
    trips: Annotated[
        list[str] | None,
        typer.Option("--trip", help="Trip count of a loop that only the device knows: BOUND=N.", show_default=False),
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Option("--values", help="Values of an index tensor: NAME=file.npy.", show_default=False),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(help="Try values of a parameter, constant or local: NAME=a,b,c.", show_default=False),
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="A capture of this kernel to compare with.", show_default=False)
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="TOML file of time-model constants to use instead.", show_default=False)
    ] = None,
    hardware: Annotated[
        str, typer.Option(help="trn1, trn2 or trn3.", autocompletion=lambda: ["trn1", "trn2", "trn3"])
    ] = "trn2",
    exact: Annotated[bool, typer.Option("--exact", help="Run every loop iteration.")] = False,
    dge: Annotated[
        bool, typer.Option("--dge/--no-dge", help="--no-dge: compiled with --disable-dge, DMAs on static rings.")
    ] = True,
    no_exec: Annotated[
        bool, typer.Option("--no-exec", help="Run nothing: list data-moving calls from the syntax tree.")
    ] = False,
    timeout: Annotated[float, typer.Option(help="Seconds that one run may take.", min=1, max=86400)] = 60,
    memory: Annotated[float, typer.Option(help="GiB that one run may use.", min=1, max=4096)] = 4,
    jobs: Annotated[int, typer.Option(help="Sweep points at a time; 0 is one a core.", min=0, max=1024)] = 0,
    allow_import: Annotated[
        list[str] | None,
        typer.Option(help="Let the kernel import this installed module.", show_default=False),
    ] = None,
    form: FormatOption = OutputFormat.TEXT,
    output: OutputOption = STANDARD_OUTPUT,
    force: ForceOption = False,
    full: FullOption = False,
    debug: DebugOption = False,
) -> int:
    """Predict an NKI kernel's DMA traffic per source line, without the Neuron SDK or a device.

    The kernel's own Python runs on tensors without values, in a child process with limits on time, memory, files and
    imports. That guards against accidents; it is not a sandbox: look at code you do not trust with --no-exec.
    """
    from trnprof.cli.answer import deliver
    from trnprof.cli.kernel_command import choose_kernel
    from trnprof.hardware import load_hardware
    from trnprof.hardware.dma_model import load_dma_model
    from trnprof.nki.discovery import find_kernels, parse_source, read_source
    from trnprof.nki.guard import KernelRun, Limits
    from trnprof.nki.inputs import parse_inputs
    from trnprof.nki.prediction_task import PredictionSettings
    from trnprof.nki.sweep import parse_sweeps

    table = load_hardware(hardware)
    model = load_dma_model(hardware, calibration)
    tree = parse_source(read_source(kernel_file), kernel_file)
    found = find_kernels(tree)
    parsed = parse_inputs(
        inputs=inputs or (),
        arguments=arguments or (),
        inputs_file=inputs_file,
        lnc=lnc,
        grid=grid,
        trips=trips or (),
        values=values or (),
    )
    swept = parse_sweeps(sweep or ())
    if no_exec:
        answer = _sites_answer(tree, kernel_file, full)
    else:
        chosen = choose_kernel(found, kernel, kernel_file, given=parsed.given or bool(swept))
        if chosen is None:
            wanted = tuple(one for one in found if kernel in (None, one.name))
            answer = _kernels_answer(wanted, kernel_file, full)
        else:
            run = KernelRun(
                kernel_file=kernel_file,
                kernel=chosen.name,
                inputs=parsed,
                settings=PredictionSettings(model, _bytes(table, "sbuf"), _bytes(table, "psum")),
                target=hardware,
                exact=exact,
                dge=dge,
                allowed_imports=tuple(allow_import or ()),
            )
            limits = Limits(wall_s=timeout, cpu_s=timeout, memory_bytes=int(memory * 2**30))
            if swept:
                answer = _sweep_answer(run, swept, chosen, tree, limits, jobs or None, full, against)
            else:
                answer = _prediction_answer(run, limits, against, full)
    return deliver(
        answer.report,
        form=form,
        output=output,
        force=force,
        text=lambda: answer.plain,
        markdown=lambda: answer.marked,
        brief=answer.brief,
    )


@dataclass(frozen=True)
class _Answer:
    """A report with its two readable forms."""

    report: Report
    plain: str
    marked: str
    brief: Callable[[], Report]
    """The report as it is without --full."""


def _bytes(table: object, memory: str) -> int:
    value = table[f"{memory}.partition_bytes"].value  # type: ignore[index]
    return int(value)


def _report(
    path: Path, result: dict[str, object], findings: tuple = (), hardware: dict[str, object] | None = None
) -> Report:
    from trnprof.render.envelope import InputFile, Report, sha256_of

    source = InputFile(str(path), "nki-python", sha256_of(path), "source")
    return Report(command="dma-predict", inputs=(source,), hardware=hardware, result=result, findings=findings)


def _sites_answer(tree: ast.Module, path: Path, full: bool) -> _Answer:
    from trnprof.nki.sites import find_call_sites
    from trnprof.render.kernels import sites_json, sites_markdown, sites_text

    sites = find_call_sites(tree)
    return _Answer(
        _report(path, sites_json(sites, full=full)),
        sites_text(sites, path),
        sites_markdown(sites, path),
        lambda: _report(path, sites_json(sites, full=False)),
    )


def _kernels_answer(found: tuple[KernelSource, ...], path: Path, full: bool) -> _Answer:
    from trnprof.render.kernels import kernels_json, kernels_markdown, kernels_text

    return _Answer(
        _report(path, kernels_json(found, path, full=full)),
        kernels_text(found, path),
        kernels_markdown(found, path),
        lambda: _report(path, kernels_json(found, path, full=False)),
    )


def _prediction_answer(run: KernelRun, limits: Limits, against: Path | None, full: bool) -> _Answer:
    import json

    from trnprof.cli.kernel_command import run_status, show_printed
    from trnprof.nki.guard import predict_guarded
    from trnprof.render.dma_predict import PredictionView, prediction_markdown, prediction_text
    from trnprof.render.dma_predict_json import prediction_json

    compared = _read_capture(against) if against is not None else None  # before the run: a wrong path fails at once
    with run_status(f"running {run.kernel} (at most {limits.wall_s:g} s)"):
        outcome = predict_guarded(run, limits)
    show_printed(outcome.printed, outcome.printed_byte_count)
    view = PredictionView(str(run.kernel_file), run.kernel, outcome.prediction)
    error = None
    extra_text = extra_markdown = ""
    if compared is not None:
        from trnprof.analyzers.prediction_error import compare_prediction
        from trnprof.render.prediction_error import prediction_error_markdown, prediction_error_text

        error = compare_prediction(outcome.prediction.predicted, *compared)
        extra_text = "\n" + prediction_error_text(error, str(against))
        extra_markdown = "\n" + prediction_error_markdown(error, str(against))

    def report(full: bool) -> Report:
        from trnprof.render.prediction_error import prediction_error_json

        extra = {} if error is None else {"against": prediction_error_json(error, full=full)}
        result, findings = prediction_json(view, full=full, reserved_bytes=len(json.dumps(extra)))
        return _report(run.kernel_file, result | extra, findings, _hardware_json(run))

    return _Answer(
        report(full),
        prediction_text(view) + extra_text,
        prediction_markdown(view) + extra_markdown,
        lambda: report(False),
    )


def _hardware_json(run: KernelRun) -> dict[str, object]:
    constant = run.settings.model.constants[
        "core_in_pair_bytes_per_s" if run.inputs.lnc == 2 else "core_alone_bytes_per_s"
    ]
    return {
        "name": run.target,
        "bandwidth_bytes_per_s": int(constant.value),
        "source": f"{constant.source} ({constant.kind})",
    }


def _read_capture(path: Path) -> tuple:
    from trnprof.analyzers.anatomy import measure_anatomy
    from trnprof.errors import InputDataError
    from trnprof.hardware import bandwidth_for, hardware_of
    from trnprof.readers import read_profile

    profile = read_profile(path)
    table = hardware_of(profile.metadata)
    try:
        return profile, measure_anatomy(profile, table.name, bandwidth_for(profile.metadata, table))
    except InputDataError as error:
        raise InputDataError(error.message, path=path, code=error.code) from None


def _sweep_answer(
    run: KernelRun,
    swept: tuple,
    kernel: KernelSource,
    tree: ast.Module,
    limits: Limits,
    jobs: int | None,
    full: bool,
    against: Path | None,
) -> _Answer:
    from trnprof.errors import UsageError
    from trnprof.nki.sweep import run_sweep
    from trnprof.render.sweep import sweep_json, sweep_markdown, sweep_text

    if against is not None:
        raise UsageError("--against compares one point with a capture; leave --sweep out and set the value with --arg")
    total = 1
    for one in swept:
        total *= len(one.values)
    with typer.progressbar(
        length=total, label=f"{total} points", file=sys.stderr, hidden=not sys.stderr.isatty()
    ) as bar:
        sweep = run_sweep(
            run,
            swept,
            kernel=kernel,
            tree=tree,
            limits=limits,
            jobs=jobs,
            on_progress=lambda done, points: bar.update(1),
        )
    file = str(run.kernel_file)

    def report(full: bool) -> Report:
        result = sweep_json(sweep, kernel=run.kernel, full=full)
        return _report(run.kernel_file, result, (), _hardware_json(run))

    return _Answer(
        report(full),
        sweep_text(sweep, kernel_file=file, kernel=run.kernel),
        sweep_markdown(sweep, kernel_file=file, kernel=run.kernel),
        lambda: report(False),
    )

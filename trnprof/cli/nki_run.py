"""`trnprof nki run`: what an NKI kernel computes, on this machine's CPU, and whether a reference agrees."""

from __future__ import annotations

import shutil
import sys
from enum import StrEnum
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
    from trnprof.nki.run_task import RunSettings

EXAMPLES = (
    "trnprof nki run attention.py --input q=128x512:bfloat16 --input k=128x512:bfloat16 --input v=128x512:bfloat16",
    "trnprof nki run attention.py --inputs inputs.py --reference reference.py:attention",
    "trnprof nki run attention.py --load q=q.npy --load k=k.npy --load v=v.npy --out results/",
    "trnprof nki run attention.py --inputs inputs.py --reference reference.py:attention --precise off",
    "trnprof nki run allreduce.py --inputs inputs.py --ranks 4 --lnc 2",
)


class Unwritten(StrEnum):
    """What memory that nothing has written reads as."""

    NAN = "nan"
    ZERO = "zero"


class Precision(StrEnum):
    """Where values are rounded."""

    ON = "on"
    OFF = "off"


def run(
    kernel_file: Annotated[Path, typer.Argument(help="The Python file that holds the kernel.", metavar="KERNEL.py")],
    kernel: Annotated[
        str | None,
        typer.Option("--kernel", "-k", help="The kernel in it; needed if there are several.", show_default=False),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", "-i", help="A tensor of random values: NAME=128x512:bfloat16.", show_default=False),
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Option("--arg", "-a", help="Any other argument: NAME=PYTHON_LITERAL.", show_default=False),
    ] = None,
    inputs_file: Annotated[
        Path | None,
        typer.Option("--inputs", help="A Python file whose inputs() returns the arguments.", show_default=False),
    ] = None,
    loads: Annotated[
        list[str] | None,
        typer.Option("--load", help="A tensor's values: NAME=file.npy or file.safetensors.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the random values.", min=0)] = 0,
    reference: Annotated[
        str | None,
        typer.Option(help="A NumPy or torch function to compare with: FILE.py:FUNCTION.", show_default=False),
    ] = None,
    tolerance: Annotated[
        str | None,
        typer.Option(help="RTOL, or RTOL,ATOL; else by the output's type.", show_default=False),
    ] = None,
    precise: Annotated[
        Precision, typer.Option(help="off: float64 everywhere, which tells rounding from a mistake.")
    ] = Precision.ON,
    unwritten: Annotated[
        Unwritten, typer.Option(help="What memory that nothing has written reads as: does it matter?")
    ] = Unwritten.NAN,
    out: Annotated[
        Path | None,
        typer.Option(help="A folder for the outputs as .npy, or one file.safetensors.", show_default=False),
    ] = None,
    lnc: Annotated[int, typer.Option(help="Programs of a logical core: 1 or 2.")] = 1,
    grid: Annotated[str | None, typer.Option(help="First-generation launch grid: 4x2.", show_default=False)] = None,
    ranks: Annotated[int, typer.Option(help="Simulated ranks, for collectives.", min=1, max=256)] = 1,
    hardware: Annotated[
        str, typer.Option(help="trn1, trn2 or trn3.", autocompletion=lambda: ["trn1", "trn2", "trn3"])
    ] = "trn2",
    lint: Annotated[bool, typer.Option(help="Look for what the device gets wrong whatever the values are.")] = True,
    timeout: Annotated[float, typer.Option(help="Seconds that the run may take.", min=1, max=86400)] = 600,
    memory: Annotated[float, typer.Option(help="GiB that the run may use.", min=1, max=4096)] = 16,
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
    """Compute an NKI kernel's outputs without the Neuron SDK or a device, and compare them with a reference.

    Values are rounded where the hardware rounds; random numbers and the order of additions are not the device's. The exit
    code is 1 if an output differs from the reference. The kernel runs in a child process with limits: a guard against
    accidents, not a sandbox.
    """
    from trnprof.cli.answer import deliver
    from trnprof.cli.kernel_command import needed_kernel, run_status, show_printed
    from trnprof.nki.guard import KernelRun, Limits, run_guarded
    from trnprof.nki.inputs import parse_inputs
    from trnprof.nki.plain_data import from_plain
    from trnprof.nki.run_task import OUTPUT_FOLDER, KernelValues
    from trnprof.render.envelope import InputFile, Report, sha256_of, within_answer
    from trnprof.render.nki_run import RunView, run_json, run_markdown, run_text

    parsed = parse_inputs(inputs=inputs or (), arguments=arguments or (), inputs_file=inputs_file, lnc=lnc, grid=grid)
    settings = _settings(
        loads, seed, reference, tolerance, precise, unwritten, out, ranks, hardware, lint, set(parsed.arguments)
    )
    name = needed_kernel(kernel_file, kernel, given=parsed.given or bool(settings.loads))
    _check_out(out, force)
    request = KernelRun(
        kernel_file=kernel_file,
        kernel=name,
        inputs=parsed,
        settings=settings,
        task="run_task",
        target=hardware,
        allowed_imports=tuple(allow_import or ()),
    )
    limit_bytes = int(memory * 2**30)
    limits = Limits(wall_s=timeout, cpu_s=timeout, memory_bytes=limit_bytes, file_bytes=limit_bytes)
    with run_status(f"running {name} (at most {timeout:g} s)"):
        document, printed, printed_bytes = run_guarded(
            request, limits, collect=None if out is None else lambda scratch: _fetch(scratch / OUTPUT_FOLDER, out)
        )
    show_printed(printed, printed_bytes)
    values = from_plain(KernelValues, document.get("values"))
    view = RunView(str(kernel_file), name, values)
    source = InputFile(str(kernel_file), "nki-python", sha256_of(kernel_file), "source")

    def report(full: bool) -> Report:
        whole = Report(command="nki-run", inputs=(source,), result=run_json(view, full=full), findings=values.findings)
        return whole if full else within_answer(whole)

    code = deliver(
        report(full),
        form=form,
        output=output,
        force=force,
        text=lambda: run_text(view),
        markdown=lambda: run_markdown(view),
        brief=lambda: report(False),
    )
    return code or (0 if values.agrees else 1)


def _settings(
    loads: list[str] | None,
    seed: int,
    reference: str | None,
    tolerance: str | None,
    precise: Precision,
    unwritten: Unwritten,
    out: Path | None,
    ranks: int,
    hardware: str,
    lint: bool,
    taken: set[str],
) -> RunSettings:
    """The task's settings. Raises: UsageError for texts that do not parse; InputMissingError for files that are not there."""
    from trnprof.errors import InputMissingError, UsageError
    from trnprof.hardware import load_hardware
    from trnprof.hardware.dma_model import load_dma_model
    from trnprof.nki.prediction_task import PredictionSettings
    from trnprof.nki.run_task import RunSettings

    files: dict[str, str] = {}
    for text in loads or ():
        name, equals, file = text.partition("=")
        if not equals or not file or not name.strip().isidentifier():
            raise UsageError(f"--load {text!r}: write NAME=FILE, for example --load q=q.npy")
        if name.strip() in files or name.strip() in taken:
            raise UsageError(f"--load {name.strip()}: given twice; give each argument once")
        if not Path(file).is_file():
            raise InputMissingError(f"--load {name.strip()}: no such file; save the tensor with numpy.save", path=file)
        files[name.strip()] = str(Path(file).absolute())
    reference_file, function = None, ""
    if reference is not None:
        file, colon, function = reference.rpartition(":")
        if not colon or not file or not function.replace(".", "_").isidentifier():
            raise UsageError(
                f"--reference {reference!r}: write FILE.py:FUNCTION, for example --reference ref.py:attention"
            )
        if not Path(file).is_file():
            raise InputMissingError("--reference: no such file; it holds the function to compare with", path=file)
        reference_file = str(Path(file).absolute())
    rtol, atol = _tolerances(tolerance)
    table = load_hardware(hardware)
    hazards = PredictionSettings(
        load_dma_model(hardware, None),
        int(table["sbuf.partition_bytes"].value),  # type: ignore[call-overload]
        int(table["psum.partition_bytes"].value),  # type: ignore[call-overload]
    )
    return RunSettings(
        hazards=hazards if lint else None,
        precise=precise is Precision.ON,
        zeroed=unwritten is Unwritten.ZERO,
        seed=seed,
        ranks=ranks,
        loads=files,
        reference_file=reference_file,
        reference=function,
        rtol=rtol,
        atol=atol,
        save=None if out is None else "safetensors" if out.suffix == ".safetensors" else "npy",
    )


def _tolerances(text: str | None) -> tuple[float | None, float | None]:
    from trnprof.errors import UsageError

    if text is None:
        return None, None
    try:
        numbers = [float(part) for part in text.split(",")]
        if not 1 <= len(numbers) <= 2 or not all(0 <= number < float("inf") for number in numbers):
            raise ValueError
    except ValueError:
        raise UsageError(f"--tolerance {text!r}: write RTOL or RTOL,ATOL, for example --tolerance 1e-2,1e-4") from None
    return numbers[0], numbers[1] if len(numbers) == 2 else None


def _check_out(out: Path | None, force: bool) -> None:
    """Can the outputs go there? Asked before the run, which may be long."""
    from trnprof.errors import InputMissingError, UsageError

    if out is None:
        return
    if out.suffix == ".safetensors":
        if out.exists() and not force:
            raise UsageError("exists already; add --force to overwrite it, or choose another name", path=out)
        if not out.parent.is_dir():
            raise InputMissingError("--out: its folder is not there; make it first", path=out)
    elif out.is_dir():
        if any(out.iterdir()) and not force:
            raise UsageError("is a folder with files in it; add --force to write into it, or name another", path=out)
    elif out.exists():
        raise UsageError("--out is a folder or a file.safetensors", path=out)


def _fetch(outputs: Path, out: Path) -> None:
    """Copy what the child saved to where the user wants it. Raises: InputMissingError if that cannot be written."""
    from trnprof.errors import InputMissingError

    try:
        if out.suffix == ".safetensors":
            shutil.copyfile(outputs / "outputs.safetensors", out)
            written = 1
        else:
            out.mkdir(parents=True, exist_ok=True)
            files = sorted(outputs.glob("*.npy"))
            for file in files:
                shutil.copyfile(file, out / file.name)
            written = len(files)
    except OSError as error:
        raise InputMissingError(f"--out cannot be written ({error.strerror or error})", path=out) from None
    print(f"trnprof: {written} file{'s' if written != 1 else ''} written to {out}", file=sys.stderr)

"""`trnprof nki model`: a modelled timeline of an NKI kernel, before anything is compiled."""

from __future__ import annotations

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
    from trnprof.nki.guard import KernelRun, Limits
    from trnprof.nki.timing.model import KernelModel
    from trnprof.nki.timing.program import MachineProgram
    from trnprof.profile import Profile
    from trnprof.render.envelope import Report
    from trnprof.render.nki_model import ModelView

EXAMPLES = (
    "trnprof nki model attention.py --input q=128x512:float32 --input k=128x512:float32 --input v=128x512:float32",
    "trnprof nki model kernel.py --kernel matmul --input a=4096x4096:bfloat16 --keep matmul-modelled",
    "trnprof anatomy matmul-modelled --html matmul.html",
    "trnprof nki model kernel.py --input x=128x512:bfloat16 --to ntff --keep step.ntff",
    "trnprof nki model kernel.py --input x=128x512:bfloat16 --lnc 2 --format json",
)


class ProfileFormat(StrEnum):
    """What the modelled profile can be written as."""

    PARQUET = "parquet"
    NTFF = "ntff"


class Schedule(StrEnum):
    """Which of the three schedules is written."""

    LOW = "low"
    MID = "mid"
    HIGH = "high"


def model(
    kernel_file: Annotated[Path, typer.Argument(help="The Python file that holds the kernel.", metavar="KERNEL.py")],
    kernel: Annotated[
        str | None,
        typer.Option("--kernel", "-k", help="The kernel in it; needed if there are several.", show_default=False),
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
    hardware: Annotated[
        str, typer.Option(help="trn1, trn2 or trn3.", autocompletion=lambda: ["trn1", "trn2", "trn3"])
    ] = "trn2",
    keep: Annotated[
        Path | None,
        typer.Option(
            help="Write the modelled profile here: a folder of Parquet files, or with --to ntff a .ntff and a .neff.",
            show_default=False,
        ),
    ] = None,
    to: Annotated[ProfileFormat, typer.Option("--to", help="What --keep writes.")] = ProfileFormat.PARQUET,
    which: Annotated[Schedule, typer.Option("--schedule", help="Which schedule --keep writes.")] = Schedule.MID,
    exact: Annotated[bool, typer.Option("--exact", help="Lay out every loop iteration, however many.")] = False,
    dge: Annotated[
        bool, typer.Option("--dge/--no-dge", help="--no-dge: compiled with --disable-dge, DMAs on static rings.")
    ] = True,
    timeout: Annotated[float, typer.Option(help="Seconds that running the kernel may take.", min=1, max=86400)] = 120,
    memory: Annotated[float, typer.Option(help="GiB that running the kernel may use.", min=1, max=4096)] = 4,
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
    """Model an NKI kernel's timeline on a NeuronCore: engines, DMA queues, semaphores; low, mid and high of every part.

    The kernel's own Python runs on tensors without values, in a child process with limits. What it does is scheduled
    with public instruction costs. Rank variants by it; it promises no milliseconds (docs/model.md says how far off it is).
    """
    from trnprof.analyzers.source_cost import measure_source_cost
    from trnprof.cli.answer import deliver
    from trnprof.cli.kernel_command import needed_kernel, run_status, show_printed
    from trnprof.errors import UsageError
    from trnprof.hardware import load_hardware
    from trnprof.hardware.instruction_costs import Case, load_instruction_costs
    from trnprof.nki.guard import KernelRun, Limits
    from trnprof.nki.inputs import parse_inputs
    from trnprof.nki.model_task import ModelSettings
    from trnprof.nki.timing.model import model_program
    from trnprof.render.nki_model import ModelView, model_markdown, model_text

    load_instruction_costs(hardware)  # an unknown name is said before anything runs
    if keep is not None and to is ProfileFormat.NTFF and keep.suffix != ".ntff":
        raise UsageError("--to ntff writes a file that ends in .ntff and a .neff beside it; name it so", path=keep)
    parsed = parse_inputs(
        inputs=inputs or (),
        arguments=arguments or (),
        inputs_file=inputs_file,
        lnc=lnc,
        grid=grid,
        trips=trips or (),
        values=values or (),
    )
    table = load_hardware(hardware)
    run = KernelRun(
        kernel_file=kernel_file,
        kernel=needed_kernel(kernel_file, kernel, given=parsed.given),
        inputs=parsed,
        settings=ModelSettings(
            int(str(table["sbuf.partition_bytes"].value)), int(str(table["psum.partition_bytes"].value))
        ),
        task="model_task",
        target=hardware,
        exact=exact,
        dge=dge,
        allowed_imports=tuple(allow_import or ()),
    )
    limits = Limits(wall_s=timeout, cpu_s=timeout, memory_bytes=int(memory * 2**30), file_bytes=1 << 30)
    with run_status(f"running {run.kernel} (at most {timeout:g} s)"):
        program, notes, printed, printed_byte_count = _program(run, limits)
    show_printed(printed, printed_byte_count)
    with run_status("scheduling"):
        found = model_program(program)
        profile = found.profile()
        costs = measure_source_cost(profile, "line")
    if keep is not None:
        chosen = Case(which.value)
        _write(profile if chosen is Case.MID else found.profile(chosen), keep, to, run.kernel, force)
    view = ModelView(
        str(kernel_file),
        run.kernel,
        found,
        () if costs is None else costs.cores[0].rows,
        notes,
        None if keep is None else str(keep),
        Case(which.value),
    )
    report = _report(view, found, full=full)
    return deliver(
        report,
        form=form,
        output=output,
        force=force,
        text=lambda: model_text(view),
        markdown=lambda: model_markdown(view),
        brief=lambda: _report(view, found, full=False),
    )


def _program(run: KernelRun, limits: Limits) -> tuple[MachineProgram, tuple[str, ...], str, int]:
    """(machine program, notes, what the kernel printed, bytes printed)."""
    import shutil
    import tempfile

    from trnprof.nki.guard import run_guarded
    from trnprof.nki.timing.exchange import FILE_NAME, load

    with tempfile.TemporaryDirectory(prefix="trnprof-model-") as folder:

        def fetch(scratch: Path) -> None:
            shutil.move(str(scratch / FILE_NAME), folder)

        document, printed, byte_count = run_guarded(run, limits, collect=fetch)
        program = load(Path(folder), document.get("program", {}))
    notes = [] if run.dge else ["--no-dge: DMAs whose mode the kernel leaves open run from static rings"]
    notes += [*document.get("notes", ()), *document.get("loading", ()), *program.notes]
    stand_ins = document.get("stand_ins", ())
    if stand_ins:
        notes.append(f"stand-ins for {', '.join(map(str, stand_ins))}: what they compute is not modelled")
    return program, tuple(map(str, notes)), printed, byte_count


def _report(view: ModelView, found: KernelModel, *, full: bool) -> Report:
    from trnprof.hardware.instruction_costs import Case
    from trnprof.render.envelope import InputFile, Report, sha256_of
    from trnprof.render.nki_model import model_json

    return Report(
        command="nki-model",
        inputs=(InputFile(view.kernel_file, "nki-python", sha256_of(Path(view.kernel_file)), "source"),),
        hardware={
            "name": found.program.generation,
            "bandwidth_bytes_per_s": found.bandwidth_bytes_per_s[Case.MID],
            "source": "instruction_costs.toml, DMA engines' sustained rate",
        },
        result=model_json(view, full=full),
    )


def _write(profile: Profile, path: Path, to: ProfileFormat, kernel: str, overwrite: bool) -> None:
    import sys

    from trnprof.errors import UsageError
    from trnprof.profile import ProfileError
    from trnprof.render.text import printable

    if to is ProfileFormat.PARQUET:
        from trnprof.writers.explorer_parquet import write_explorer_parquet

        write_explorer_parquet(profile, path, overwrite=overwrite)
        return
    from trnprof.writers.modelled_capture import write_modelled_capture

    try:
        written = write_modelled_capture(profile, path, kernel, overwrite=overwrite)
    except ProfileError as error:
        raise UsageError(f"NTFF cannot hold this profile ({error}); write it with --to parquet", path=path) from None
    for opcode, count in written.stand_ins.items():
        print(
            f"trnprof: no opcode byte is known for {printable(opcode, 60)}: {count:,} instructions stand under another "
            "opcode of their engine in the .ntff",
            file=sys.stderr,
        )

"""The command line: one small file a command (parse, call the library, render), and one place that meets errors."""

from __future__ import annotations

import itertools
import os
import sys
from typing import Any

import typer

from trnprof.errors import TrnprofError
from trnprof.lean_start import give_memory_back

ClickException = typer.BadParameter.__mro__[2]
"""The base of every usage error that typer raises, wherever its version keeps it."""


def main() -> None:
    """Entry point of `trnprof`: run the command in sys.argv and exit with its code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line; returns the exit code (DESIGN.md section 5). Errors are printed here and nowhere else."""
    give_memory_back()
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character gets a replacement, never an exception.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        code = build_app()(args=arguments, prog_name="trnprof", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except TrnprofError as error:
        if "--debug" in arguments:
            raise
        return _report(arguments, error.kind, error.message, error.path, error.exit_code, error.code)
    except typer.Exit as error:
        return error.exit_code
    except typer.Abort:
        return 130
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output went away (`trnprof ... | head`): nothing is wrong, and nothing more can be said.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError:
        return _report(arguments, "bad-input", "out of memory; the input is too large for this machine", None, 65, None)
    except Exception as error:
        if isinstance(error, ClickException):
            return _report_usage(arguments, error)
        if "--debug" in arguments:
            raise
        where = _innermost_frame(error)
        message = f"internal error at {where}: {type(error).__name__}: {error}; run again with --debug and report it"
        return _report(arguments, "internal", message, None, 70, None)


def build_app() -> typer.Typer:
    """The application with every command: cli/NAME.py holds the function NAME and its EXAMPLES.

    Commands import what is heavy inside themselves, so that help and completion stay fast.
    """
    from trnprof.cli import (
        anatomy,
        breakdown,
        demo,
        diff,
        dma_predict,
        engine,
        export,
        fit,
        info,
        know,
        mcp,
        nki,
        query,
        schema,
        skills,
    )

    app = typer.Typer(
        add_completion=True,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        help="Where a Trainium step's time goes, what a kernel's DMA traffic will be, and whether a change is faster.",
    )
    app.callback()(_global_options)
    for module in (anatomy, breakdown, diff, fit, query, dma_predict, info, export, know, schema, mcp, demo):
        command = getattr(module, module.__name__.rpartition(".")[2])
        # \b keeps the example lines as they are.
        app.command(epilog="\b\nExamples:\n" + "\n".join(f"  {line}" for line in module.EXAMPLES))(command)
    if nki.COMMANDS:
        app.add_typer(nki.build_nki_app(), name="nki")
    app.add_typer(engine.build_engine_app(), name="engine")
    app.add_typer(skills.build_skills_app(), name="skills")
    return app


def _show_version(asked: bool) -> None:
    if asked:
        from trnprof.version import __version__

        typer.echo(f"trnprof {__version__}")
        raise typer.Exit


def _global_options(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Print the version."),
) -> None:
    pass


def _report_usage(arguments: list[str], error: Any) -> int:
    message = error.format_message()
    context = getattr(error, "ctx", None)
    if context is not None and not message.endswith("."):
        message += "."
    hint = f" Try: {context.command_path} --help" if context is not None else ""
    return _report(arguments, "usage", message + hint, None, 2, None)


def _report(arguments: list[str], kind: str, message: str, path: str | None, exit_code: int, code: str | None) -> int:
    """One line on stderr, and with --format json the envelope on stdout."""
    from trnprof.render.text import printable

    place = f"{printable(path, 400)}: " if path else ""
    label = f" [{code}]" if code else ""
    print(f"trnprof: {place}{printable(message, 2000)}{label}", file=sys.stderr)
    if _wants_json(arguments):
        from trnprof.render.envelope import error_json

        words = [argument for argument in arguments if not argument.startswith("-")] or ["trnprof"]
        command = "-".join(words[: 2 if words[0] in ("nki", "engine") else 1])
        print(
            error_json(printable(command, 40), kind=kind, message=message, path=path, exit_code=exit_code, code=code),
            end="",
        )
    return exit_code


def _wants_json(arguments: list[str]) -> bool:
    return "--format=json" in arguments or any(
        first in ("--format", "-f") and second == "json" for first, second in itertools.pairwise(arguments)
    )


def _innermost_frame(error: BaseException) -> str:
    trace = error.__traceback__
    if trace is None:
        return "an unknown place"
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"  # noqa: PTH119

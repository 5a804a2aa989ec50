"""`trnprof nki`: NKI kernels on this machine, without the SDK and without a device.

Each command is a file of its own, nki_NAME.py, that holds the function NAME and its EXAMPLES.
"""

from __future__ import annotations

import importlib

import typer

COMMANDS: tuple[str, ...] = ("run", "model")
"""In the order of the help."""


def build_nki_app() -> typer.Typer:
    """The group of commands."""
    app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Run NKI kernels on this machine's CPU.")
    for name in COMMANDS:
        module = importlib.import_module(f"trnprof.cli.nki_{name}")
        epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in module.EXAMPLES)
        app.command(name=name, epilog=epilog)(getattr(module, name))
    return app

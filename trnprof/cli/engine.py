"""`trnprof engine`: the bundled serving engine. Each command is a file of its own, engine_NAME.py."""

from __future__ import annotations

import importlib

import typer

COMMANDS = ("plan", "profile", "bench", "serve")
"""In the order of the help."""


def build_engine_app() -> typer.Typer:
    """The group of commands."""
    app = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        help="The bundled reference engine (needs the extra: pip install 'trnprof[engine]').",
    )
    for name in COMMANDS:
        module = importlib.import_module(f"trnprof.cli.engine_{name}")
        epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in module.EXAMPLES)
        app.command(name=name, epilog=epilog)(getattr(module, name))
    return app

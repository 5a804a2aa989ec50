"""`trnprof skills`: what teaches a coding agent to use trnprof. Each command is a file of its own, skills_NAME.py."""

from __future__ import annotations

import importlib

import typer

COMMANDS = ("list", "show", "install", "check")
"""In the order of the help."""


def build_skills_app() -> typer.Typer:
    """The group of commands."""
    app = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        help="Skills that let Claude Code, Codex or Cursor use trnprof as its best user does.",
    )
    for name in COMMANDS:
        module = importlib.import_module(f"trnprof.cli.skills_{name}")
        epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in module.EXAMPLES)
        app.command(name=name, epilog=epilog)(getattr(module, f"skills_{name}"))
    return app

"""Delivering a report: in the form asked for, to the place asked for, with the exit code that --strict asks for."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from trnprof.cli.options import STANDARD_OUTPUT, OutputFormat
from trnprof.errors import InputMissingError, UsageError
from trnprof.findings import Severity
from trnprof.render.envelope import Report, envelope_json
from trnprof.render.text import printable


def deliver(
    report: Report,
    *,
    form: OutputFormat,
    output: Path,
    force: bool,
    text: Callable[[], str],
    markdown: Callable[[], str],
    strict: bool = False,
) -> int:
    """Write the report and return the exit code: 1 if --strict was given and the data quality has more than notes."""
    content = {OutputFormat.TEXT: text, OutputFormat.MD: markdown, OutputFormat.JSON: lambda: envelope_json(report)}[
        form
    ]()
    write_output(content, output, force=force)
    limits = [entry for entry in report.data_quality if entry.severity is not Severity.INFO]
    if strict and limits:
        codes = ", ".join(sorted({entry.code for entry in limits}))
        print(f"trnprof: --strict: data quality {codes}", file=sys.stderr)
        return 1
    return 0


def write_page(page: str, path: Path, *, output: Path, force: bool) -> None:
    """Write the page that --html asks for, and say so on stderr.

    Raises: UsageError if `path` is standard output or the --output file; what write_output raises.
    """
    if path in (STANDARD_OUTPUT, output):
        raise UsageError("--html needs a file of its own: standard output and --output carry the result", path=path)
    write_output(page, path, force=force)
    print(
        f"trnprof: page written to {printable(path, 400)} ({len(page.encode('utf-8')) / 1e6:.1f} MB)", file=sys.stderr
    )


def write_output(content: str, output: Path, *, force: bool) -> None:
    """Print, or write a file whole or not at all.

    Raises: UsageError if the file exists and `force` is off; InputMissingError if its folder cannot be written.
    """
    if output == STANDARD_OUTPUT:
        sys.stdout.write(content)
        return
    if output.is_dir():
        raise UsageError("is a folder; name a file", path=output)
    if output.exists() and not force:
        raise UsageError("exists already; add --force to overwrite it, or choose another name", path=output)
    try:
        handle, temporary = tempfile.mkstemp(dir=output.parent, prefix=f".{output.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(content)
            os.chmod(temporary, 0o666 & ~_umask())  # noqa: PTH101
            os.replace(temporary, output)  # noqa: PTH105
        except BaseException:
            os.unlink(temporary)  # noqa: PTH108
            raise
    except OSError as error:
        raise InputMissingError(f"cannot be written ({error.strerror or error})", path=output) from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

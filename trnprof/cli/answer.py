"""Delivering a report: in the form asked for, to the place asked for, with the exit code that --strict asks for."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from trnprof.cli.options import STANDARD_OUTPUT, WHOLE_STANDARD_OUTPUT, OutputFormat
from trnprof.errors import InputMissingError, TrnprofError, UsageError
from trnprof.findings import Severity
from trnprof.render.envelope import SPILL_BYTES, Report, envelope_json, with_short_head
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
    brief: Callable[[], Report] | None = None,
) -> int:
    """Write the report and return the exit code: 1 if --strict was given and the data quality has more than notes.

    JSON of more than SPILL_BYTES that nobody named a place for goes to a file, and the answer is `brief` (the same
    command's without --full) with the file's name under `result.full`.
    """
    content = {OutputFormat.TEXT: text, OutputFormat.MD: markdown, OutputFormat.JSON: lambda: envelope_json(report)}[
        form
    ]()
    if form is OutputFormat.JSON and output == STANDARD_OUTPUT and len(content) > SPILL_BYTES:
        content = spilled(report, content, brief) or content
    write_output(content, output, force=force)
    limits = [entry for entry in report.data_quality if entry.severity is not Severity.INFO]
    if strict and limits:
        codes = ", ".join(sorted({entry.code for entry in limits}))
        print(f"trnprof: --strict: data quality {codes}", file=sys.stderr)
        return 1
    return 0


def spilled(report: Report, content: str, brief: Callable[[], Report] | None) -> str | None:
    """The short answer that names the file with the whole one; None where no file can be written.

    The file lies in the folder for temporary files, in a folder that only this user can open, under a name made of its
    content: the same answer is the same file, and nothing of the user's is overwritten.
    """
    data = content.encode("utf-8")
    digest = hashlib.sha256(data).hexdigest()
    user = os.getuid() if hasattr(os, "getuid") else "user"
    folder = Path(tempfile.gettempdir()) / f"trnprof-{user}"
    path = folder / f"{report.command}-{digest[:16]}.json"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.is_symlink() or (hasattr(os, "getuid") and folder.stat().st_uid != os.getuid()):
            raise OSError("not this user's folder")
        write_output(content, path, force=True)
    except (OSError, TrnprofError) as error:
        print(f"trnprof: printed whole, since {printable(folder, 400)} cannot be written: {error}", file=sys.stderr)
        return None
    short = brief() if brief is not None else replace(with_short_head(report), result={}, findings=())
    full = {
        "path": str(path),
        "bytes": len(data),
        "sha256": digest,
        "see": "--output FILE or --output - gives it whole",
    }
    return envelope_json(replace(short, result={"full": full} | short.result))


def write_page(page: str, path: Path, *, output: Path, force: bool) -> None:
    """Write the page that --html asks for, and say so on stderr.

    Raises: UsageError if `path` is standard output or the --output file; what write_output raises.
    """
    if path in (STANDARD_OUTPUT, WHOLE_STANDARD_OUTPUT, output):
        raise UsageError("--html needs a file of its own: standard output and --output carry the result", path=path)
    write_output(page, path, force=force)
    print(
        f"trnprof: page written to {printable(path, 400)} ({len(page.encode('utf-8')) / 1e6:.1f} MB)", file=sys.stderr
    )


def write_output(content: str, output: Path, *, force: bool) -> None:
    """Print, or write a file whole or not at all.

    Raises: UsageError if the file exists and `force` is off; InputMissingError if its folder cannot be written.
    """
    if output in (STANDARD_OUTPUT, WHOLE_STANDARD_OUTPUT):
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

"""`trnprof export`: a capture for other tools."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trnprof.cli.options import STANDARD_OUTPUT, DebugOption, ForceOption, HardwareOption

if TYPE_CHECKING:
    from trnprof.cli.captures import OpenCaptures

EXAMPLES = (
    "trnprof export step.ntff --to perfetto -o step.pftrace",
    "trnprof export step.ntff --to chrome -o step.json",
    "trnprof export captures/ --to perfetto -o ranks.pftrace",
    "trnprof export step.ntff --to parquet -o step-tables",
)


class ExportFormat(StrEnum):
    """What a capture can be exported to."""

    PERFETTO = "perfetto"
    CHROME = "chrome"
    CSV = "csv"
    PARQUET = "parquet"


def export(
    path: Annotated[
        Path,
        typer.Argument(
            help="An NTFF, an Explorer Parquet directory, a profiler JSON, or a folder of them.", metavar="FILE|DIR"
        ),
    ],
    to: Annotated[
        ExportFormat,
        typer.Option(
            "--to",
            help="perfetto or chrome: a timeline for ui.perfetto.dev; csv or parquet: a folder with every table of the "
            "capture and of its anatomy.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file, or for csv and parquet the folder.")],
    neff: Annotated[
        Path | None,
        typer.Option(help="The NEFF that the capture ran, where it does not lie beside it.", show_default=False),
    ] = None,
    bandwidth: Annotated[
        str, typer.Option(help="For csv and parquet: HBM bandwidth of the floor: measured, spec, or bytes per second.")
    ] = "measured",
    hardware: HardwareOption = None,
    force: ForceOption = False,
    debug: DebugOption = False,
) -> int:
    """Write a capture's timeline for a trace viewer, or its tables for a spreadsheet or a notebook.

    Traces keep every event and every nanosecond; events of one engine that overlap get lanes of their own, since
    viewers drop or distort them otherwise.
    """
    import sys

    from trnprof.cli.captures import open_captures
    from trnprof.errors import UsageError
    from trnprof.render.text import printable

    if output == STANDARD_OUTPUT:
        raise UsageError("an export is a file or a folder, not standard output; name one with --output")
    opened = open_captures(path, neff=neff)
    for unreadable, message in opened.unreadable:
        print(f"trnprof: {printable(unreadable, 400)}: {printable(message, 2000)}; left out [DQ022]", file=sys.stderr)
    if to in (ExportFormat.CSV, ExportFormat.PARQUET):
        _write_tables(opened, to, output, hardware, bandwidth, force)
        return 0
    from trnprof.writers.chrome_trace import write_chrome_trace
    from trnprof.writers.perfetto import write_perfetto_trace

    write = write_perfetto_trace if to is ExportFormat.PERFETTO else write_chrome_trace
    named = [(capture.path.name, capture.profile) for capture in opened.captures]
    left_out = write(named, output, overwrite=force)
    if left_out:
        print(f"trnprof: {left_out:,} events left out: too many run at once on one engine", file=sys.stderr)
    return 0


def _write_tables(
    opened: OpenCaptures, to: ExportFormat, output: Path, hardware: str | None, bandwidth: str, force: bool
) -> None:
    """Every table of every capture, and of the anatomy's report."""
    import json

    from trnprof.cli.anatomy import anatomy_report
    from trnprof.render.envelope import envelope_json
    from trnprof.render.result_tables import result_tables
    from trnprof.version import __version__
    from trnprof.writers.table_files import write_table_files

    report, _ = anatomy_report(opened, hardware=hardware, bandwidth=bandwidth, full=True)
    tables = result_tables(json.loads(envelope_json(report)))
    for index, capture in enumerate(opened.captures):
        # Of several captures each table carries the number that the report's tables have in their column `input`.
        prefix = f"{index}_" if len(opened.captures) > 1 else ""
        tables |= {f"{prefix}{name}": table for name, table in capture.profile.tables() if table is not None}
    facts = {
        "trnprof.version": __version__,
        "trnprof.provenance": ", ".join(dict.fromkeys(entry.provenance for entry in report.inputs)),
    }
    write_table_files(tables, output, f".{to}", facts=facts, overwrite=force)

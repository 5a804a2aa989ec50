"""`trnprof query`: SQL on a capture's tables."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from trnprof.cli.options import (
    STANDARD_OUTPUT,
    WHOLE_STANDARD_OUTPUT,
    DebugOption,
    ForceOption,
    FullOption,
    OutputOption,
)

EXAMPLES = (
    'trnprof query step.ntff "select opcode, count(*), sum(duration_ns) from instructions group by 1 order by 3 desc"',
    'trnprof query step.ntff "select queue_name, sum(transfer_bytes) from dma_packets group by 1" --format json',
    'trnprof query step.ntff "from instructions" --format parquet -o instructions.parquet',
    'trnprof query step.ntff "show tables"',
)

_GRACE_S = 5.0
"""After the time limit, before a query that does not stop ends the process."""


class QueryFormat(StrEnum):
    """The forms that rows can take."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


def query(
    path: Annotated[
        Path, typer.Argument(help="An NTFF, an Explorer Parquet directory, or a profiler JSON.", metavar="FILE|DIR")
    ],
    sql: Annotated[
        str,
        typer.Argument(
            help="One SELECT on instructions, dma_packets, dma_transfers, semaphores, collectives, throttle, kernels, sources, "
            "cores, summary, tensors; `show tables` and `describe TABLE` list them."
        ),
    ],
    neff: Annotated[
        Path | None,
        typer.Option(help="The NEFF that the capture ran, where it does not lie beside it.", show_default=False),
    ] = None,
    form: Annotated[
        QueryFormat, typer.Option("--format", "-f", help="text, json (one envelope), csv or parquet.")
    ] = QueryFormat.TEXT,
    output: OutputOption = STANDARD_OUTPUT,
    timeout: Annotated[
        float, typer.Option(help="Seconds after which the query is stopped.", min=0.1, max=86_400)
    ] = 60.0,
    force: ForceOption = False,
    full: FullOption = False,
    debug: DebugOption = False,
) -> int:
    """Run read-only SQL on a capture's tables; a query sees them and nothing else: no file, no network.

    Columns are the vendor's (Neuron Explorer), times are nanoseconds; duration_ns is end_ts - start_ts.
    """
    from trnprof.cli.answer import spilled, write_output
    from trnprof.cli.captures import open_captures
    from trnprof.errors import UsageError
    from trnprof.query import run_query
    from trnprof.render import query as render
    from trnprof.render.envelope import SPILL_BYTES, InputFile, Report, envelope_json, sha256_of

    if form is QueryFormat.PARQUET and output in (STANDARD_OUTPUT, WHOLE_STANDARD_OUTPUT):
        raise UsageError("Parquet is no text; name a file with --output")
    opened = open_captures(path, neff=neff)
    if len(opened.captures) != 1:
        raise UsageError(f"{len(opened.captures)} captures in the folder; name one of them", path=path)
    (capture,) = opened.captures
    everything = full or form in (QueryFormat.CSV, QueryFormat.PARQUET)
    with _bounded_process(timeout, as_json=form is QueryFormat.JSON):
        result = run_query(
            capture.profile, sql, row_limit=None if everything else render.TEXT_ROWS + 220, timeout_s=timeout
        )

    def report(document: dict[str, object]) -> Report:
        metadata = capture.profile.metadata
        source = InputFile(str(capture.path), metadata.format, sha256_of(capture.path), str(metadata.provenance))
        return Report(command="query", inputs=(source,), result=document)

    match form:
        case QueryFormat.PARQUET:
            import pyarrow.parquet as pq

            from trnprof.writers.output import replaced_file

            facts = {"provenance": str(capture.profile.metadata.provenance), "sql": sql}
            with replaced_file(output, overwrite=force) as temporary:
                pq.write_table(result.table.replace_schema_metadata(facts), temporary, compression="zstd")
        case QueryFormat.CSV:
            write_output(render.query_csv(result), output, force=force)
        case QueryFormat.JSON:
            answer = render.query_report(result, report, full=full)
            text = envelope_json(answer)
            if output == STANDARD_OUTPUT and len(text) > SPILL_BYTES:
                text = spilled(answer, text, lambda: render.query_report(result, report, full=False)) or text
            write_output(text, output, force=force)
        case QueryFormat.TEXT:
            write_output(render.query_text(result, full=full), output, force=force)
    return 0


@contextmanager
def _bounded_process(timeout_s: float, *, as_json: bool) -> Iterator[None]:
    """No allocation beyond the query's memory (where the system can bound it), and an end to what cannot be interrupted."""
    from trnprof.query import MEMORY_BYTES

    watchdog = threading.Timer(timeout_s + _GRACE_S, _end_process, (timeout_s, as_json))
    watchdog.daemon = True
    watchdog.start()
    try:
        with _address_space(2 * MEMORY_BYTES):
            yield
    finally:
        watchdog.cancel()


@contextmanager
def _address_space(more_bytes: int) -> Iterator[None]:
    """At most so much more address space than now: one huge string or list must not take the machine's memory."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (ImportError, OSError, ValueError):
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = pages * os.sysconf("SC_PAGE_SIZE") + more_bytes
    if soft != resource.RLIM_INFINITY:
        wanted = min(wanted, soft)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _end_process(timeout_s: float, as_json: bool) -> None:
    """A function that DuckDB cannot interrupt runs on: say so and leave, since no thread of Python can stop it."""
    from trnprof.render.envelope import error_json

    message = f"the query ran longer than {timeout_s:g} s and could not be interrupted; narrow it, or raise --timeout"
    print(f"trnprof: {message}", file=sys.stderr, flush=True)
    if as_json:
        print(error_json("query", kind="usage", message=message, path=None, exit_code=2, code=None), end="", flush=True)
    os._exit(2)

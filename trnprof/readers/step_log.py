"""The step log of the bundled engine: steps.parquet and operations.parquet of one run on a CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from trnprof.errors import InputDataError
from trnprof.profile import Provenance, codes_of
from trnprof.readers.cells import integers, names
from trnprof.readers.parquet_directory import ParquetDirectory, reading
from trnprof.step_log import STEP_COUNTS, STEP_TIMES, StepLog

SCHEMA = "step-log/1"

_LATEST = 1 << 62


def is_step_log(path: Path) -> bool:
    """Is this the folder of a step log?"""
    return (path / "steps.parquet").is_file()


def read_step_log(path: Path) -> StepLog:
    """The step log in a folder.

    Raises: InputDataError for a damaged file, another schema, steps that overlap or end before they start.
    """
    directory = ParquetDirectory(path)
    with reading(path / "steps.parquet"):
        metadata = pq.read_schema(path / "steps.parquet").metadata or {}
    found = metadata.get(b"trnprof.schema", b"").decode("utf-8", "replace")
    if found != SCHEMA:
        raise InputDataError(
            f"steps.parquet has the schema {found[:40]!a}, not {SCHEMA}; record it with `trnprof engine profile`",
            path=path,
        )
    if metadata.get(b"trnprof.provenance") != str(Provenance.MEASURED_CPU).encode():
        raise InputDataError("steps.parquet does not say that it was measured on a CPU", path=path)
    steps, kinds = _columns(directory, "steps", (*STEP_TIMES, *STEP_COUNTS), "kind")
    order = np.argsort(steps["started_ts"], kind="stable")
    steps = {name: values[order] for name, values in steps.items()}
    codes, kind_names = codes_of(kinds)
    _check(steps, path)
    calls, operations = _columns(directory, "operations", ("step", "start_ts", "end_ts"), "operation")
    if (calls["end_ts"] < calls["start_ts"]).any():
        raise InputDataError("operations.parquet has a call that ends before it starts", path=path)
    operation_codes, operation_names = codes_of(operations)
    dropped = metadata.get(b"trnprof.steps_dropped", b"0")
    return StepLog(
        model=metadata.get(b"trnprof.model", b"").decode("utf-8", "replace"),
        provenance=Provenance.MEASURED_CPU,
        steps=steps,
        kinds=tuple(kind_names[code] for code in codes[order].tolist()),
        operation_steps=calls["step"],
        operation_codes=operation_codes,
        operation_names=tuple(operation_names),
        operation_starts=calls["start_ts"],
        operation_ends=calls["end_ts"],
        steps_dropped=int(dropped) if dropped.isdigit() and len(dropped) < 19 else 0,
    )


def _columns(
    directory: ParquetDirectory, table: str, wanted: tuple[str, ...], text: str
) -> tuple[dict[str, npt.NDArray[np.int64]], pa.ChunkedArray]:
    """(integer columns by name, the text column as a name column) of a table that is one file."""
    path = directory.directory
    parts = list(directory.columns(table, {name: (name,) for name in (*wanted, text)}))
    if len(parts) != 1:
        raise InputDataError(
            f"{len(parts)} files of {table}.parquet where one belongs; copy the whole folder", path=path
        )
    found = parts[0][2]
    missing = [name for name in (*wanted, text) if name not in found]
    if missing:
        raise InputDataError(f"{table}.parquet has no column {missing[0]}; record the run again", path=path)
    numbers = {}
    for name in wanted:
        column, _ = integers(found[name][1])
        values = column.fill_null(-1).to_numpy(zero_copy_only=False)
        if len(values) and (values.min() < 0 or values.max() > _LATEST):
            raise InputDataError(f"{table}.parquet has impossible values in {name}", path=path)
        numbers[name] = values
    encoded = names(found[text][1])
    if encoded.null_count:
        raise InputDataError(f"{table}.parquet has rows without {text}", path=path)
    return numbers, pa.chunked_array([encoded])


def _check(steps: dict[str, npt.NDArray[np.int64]], path: Path) -> None:
    if not len(steps["step"]):
        raise InputDataError("no step was recorded; run at least one request", path=path)
    started, ended = steps["started_ts"], steps["ended_ts"]
    inside = sum(steps[name] for name in ("copy_ns", "prepare_ns", "forward_ns", "sample_ns", "draft_ns"))
    if (ended < started).any() or (started[1:] < ended[:-1]).any() or (inside > ended - started).any():
        raise InputDataError("steps.parquet has steps that overlap, or parts longer than their step", path=path)
    if len(np.unique(steps["step"])) != len(started):
        raise InputDataError("steps.parquet has a step number twice; a folder holds one run", path=path)
    if (steps["collected_ts"] < steps["collecting_ts"]).any():
        raise InputDataError("steps.parquet has a step that was collected before it was begun to be", path=path)

"""Explorer Parquet in batches: the account, the window and what is wrong are those of the directory read whole."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.analyzers.test_account_fold import PROFILES
from tests.bench._timelines import write_capture
from tests.timelines import core_profile
from trnprof.analyzers.anatomy import measure_anatomy
from trnprof.analyzers.data_quality import CaptureFacts, capture_facts
from trnprof.errors import InputDataError
from trnprof.hardware import Bandwidth, load_hardware
from trnprof.profile import Profile
from trnprof.readers.explorer_batches import ExplorerBatches
from trnprof.readers.explorer_parquet import read_explorer_parquet
from trnprof.streamed import StreamedAccount, account_batches
from trnprof.writers.explorer_parquet import write_explorer_parquet

BANDWIDTH = Bandwidth(10**9, "1 byte a ns", "user")


def streamed(directory: Path, batch_rows: int) -> StreamedAccount:
    return account_batches(ExplorerBatches(directory, batch_rows=batch_rows), load_hardware("trn2"), BANDWIDTH)


def assert_same(directory: Path, batch_rows: int) -> None:
    """Read whole and read in batches."""
    profile = read_explorer_parquet(directory)
    found = streamed(directory, batch_rows)
    assert found.facts.metadata == profile.metadata
    assert found.anatomy == measure_anatomy(profile, "trn2", BANDWIDTH)
    whole = capture_facts(profile)
    rows = {name: count for name, count in whole.row_counts.items() if name != "sources"}
    assert found.facts == CaptureFacts(whole.metadata, whole.issues, rows, whole.unknown_opcodes)


def rewrite(file: Path, table: pa.Table, row_group: int) -> None:
    pq.write_table(table, file, row_group_size=row_group, store_schema=False)


@given(
    profile=PROFILES,
    batch_rows=st.sampled_from([1, 2, 3, 100]),
    row_group=st.sampled_from([1, 2, 5, 100]),
    seed=st.none() | st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_batches_give_the_whole_s_account(
    profile: Profile, batch_rows: int, row_group: int, seed: int | None, tmp_path: Path
) -> None:
    """Whatever the row groups and batches; rows in any order within and between row groups."""
    directory = tmp_path / "profile"
    write_explorer_parquet(profile, directory, overwrite=True)
    random = None if seed is None else np.random.default_rng(seed)
    for name in ("Instruction", "DmaPacket", "CcOp", "SemaphoreUpdate", "Throttle", "TrnprofKernels"):
        table = pq.read_table(directory / f"{name}.parquet")
        if random is not None and name != "SemaphoreUpdate":
            table = table.take(pa.array(random.permutation(len(table))))
        rewrite(directory / f"{name}.parquet", table, row_group)
    assert_same(directory, batch_rows)


def make_vendors(directory: Path, random: np.random.Generator) -> None:
    """What trnprof wrote as the vendor might have: no marker, operands as text, another clock, rows that make no sense."""
    metadata = pq.read_table(directory / "Metadata.parquet").drop_columns(["trnprof_marker"])
    offset = int(random.choice([0, 10**15]))
    for edge in ("first_hw_timestamp", "last_hw_timestamp"):
        place = metadata.column_names.index(edge)
        metadata = metadata.set_column(place, edge, pa.array([metadata[edge][0].as_py() + offset], pa.int64()))
    if random.random() < 0.4:
        metadata = metadata.drop_columns(["first_hw_timestamp", "last_hw_timestamp"])
    pq.write_table(metadata, directory / "Metadata.parquet")
    (directory / "TrnprofKernels.parquet").unlink()
    for name in ("Instruction", "DmaPacket", "CcOp", "SemaphoreUpdate", "Throttle"):
        table = pq.read_table(directory / f"{name}.parquet")
        for column in ("start_ts", "end_ts", "timestamp"):
            if column in table.column_names:
                times = table[column].to_numpy() + offset
                table = table.set_column(table.column_names.index(column), column, pa.array(times))
        rows = table.to_pylist()
        if name == "Instruction":
            for row in rows:
                wait, update = row.pop("wait_semaphore_idx"), row.pop("update_semaphore_idx")
                text = (f"S[{wait}] (Tensor)>=4 " if wait else "") + (f"S[{update}]++@complete " if update else "")
                row["operands"] = text + "src=1"
        if name == "SemaphoreUpdate":
            for row in rows:
                row.pop("semaphore_idx")
        for row in rows:
            row.pop("duration_ns", None)
            kind = random.integers(0, 40)
            times = [column for column in ("start_ts", "end_ts", "timestamp") if column in row]
            if kind == 0:
                row.update(dict.fromkeys(times, 0))
            elif kind == 1:
                row[times[0]] = None
            elif kind == 2 and "end_ts" in row:
                row["end_ts"] = row["start_ts"] - 1
            elif kind == 3 and "engine" in row:
                row["engine"] = "Bogus"
            elif kind == 4 and "opcode" in row:
                row["opcode"] = "OP_0x77"
            elif kind == 5 and "transfer_bytes" in row:
                row["transfer_bytes"] = None
            elif kind == 6 and name not in ("CcOp", "Throttle"):
                row["pcore_idx"] = None
        if not rows:
            (directory / f"{name}.parquet").unlink()
            continue
        full = pa.Table.from_pylist(rows, schema=pa.Table.from_pylist(rows).schema)
        (directory / f"{name}.parquet").unlink()
        size = int(random.choice([1, 2, 7]))
        if random.random() < 0.5:
            half = len(full) // 2
            first, second = full.slice(0, half), full.slice(half)
            if name == "Instruction" and random.random() < 0.5:
                first = first.drop_columns(["evt_wait_time_ns", "compiler_pc"])
            rewrite(directory / f"{name}_0.parquet", first, size)
            rewrite(directory / f"{name}_1.parquet", second, size)
        else:
            rewrite(directory / f"{name}.parquet", full, size)
        if name == "DmaPacket" and random.random() < 0.5:
            rewrite(directory / "DmaPacketAggregated.parquet", full.slice(0, len(full) // 2), size)


@given(profile=PROFILES, batch_rows=st.sampled_from([1, 2, 100]), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_vendor_s_files_give_the_same_too(profile: Profile, batch_rows: int, seed: int, tmp_path: Path) -> None:
    """Rejected rows, rows far from all others, a clock of its own, no stated window, a table split in two files."""
    directory = tmp_path / "profile"
    shutil.rmtree(directory, ignore_errors=True)
    write_explorer_parquet(profile, directory)
    make_vendors(directory, np.random.default_rng(seed))
    try:
        read_explorer_parquet(directory)
    except InputDataError as error:
        with pytest.raises(InputDataError) as found:
            streamed(directory, batch_rows)
        assert found.value.message == error.message
        return
    try:
        assert_same(directory, batch_rows)
    except InputDataError as error:
        assert "no execution window" in error.message or "without a table of instructions" in error.message


def test_executions_of_the_vendor_s_profile_are_steps(tmp_path: Path) -> None:
    """ExecutionInfo with three rows, one of them without an end: three steps on the profile's own clock."""
    from trnprof.analyzers.steps import step_windows
    from trnprof.profile import Step

    directory = tmp_path / "profile"
    row = ((0, 60), "tensor", "MATMUL", 0, True, None, 0, None, 0)
    write_explorer_parquet(core_profile((0, 60), instructions=[row]), directory)
    metadata = pq.read_table(directory / "Metadata.parquet").drop_columns(["trnprof_marker"])
    pq.write_table(metadata, directory / "Metadata.parquet")
    executions = {
        "execution_index": [7, 5, 6],
        "neff_name": ["c.neff", "a.neff", None],
        "execution_start_ts": [40, -10, 20],
        "execution_end_ts": [None, 20, 40],
    }
    pq.write_table(pa.table(executions), directory / "ExecutionInfo.parquet")
    steps = read_explorer_parquet(directory).metadata.steps
    assert steps == (
        Step(index=5, name="a.neff", start_ts=-10, end_ts=20),
        Step(index=6, name="", start_ts=20, end_ts=40),
        Step(index=7, name="c.neff", start_ts=40, end_ts=None),
    )
    assert_same(directory, 1)
    windows = step_windows(read_explorer_parquet(directory).metadata)
    assert [(w.number, w.start_ts, w.end_ts, w.cut) for w in windows] == [
        (1, 0, 20, "begins"),
        (2, 20, 40, None),
        (3, 40, 60, "ends"),
    ]


def test_texts_that_mostly_differ_are_read_as_they_are(tmp_path: Path) -> None:
    """Longer than a first look, every operand text its own: the account of whole tables, in pieces of any size."""
    write_capture(tmp_path / "step@latest", 60_000, "sparse", unrolled=True)
    profile = read_explorer_parquet(tmp_path / "step@latest")
    whole = measure_anatomy(profile, "trn2", BANDWIDTH)
    assert profile.instructions is not None and whole.cores[0].wait_producers
    for batch_rows in (7_000, 1 << 17):
        found = streamed(tmp_path / "step@latest", batch_rows)
        assert found.anatomy == whole
        # Its instructions have no spill bytes, so that what needs them is named beside what needs whole tables.
        assert found.codes_left_out == ("DMA020", "HBM001", "HBM002", "HBM003", "THR001")

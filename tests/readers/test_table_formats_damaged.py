"""Damaged and hostile converted profiles: one error each, in bounded time and memory, or the profile all the same."""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.table_profiles import rows_of
from tests.timelines import timeline
from trnprof.errors import InputDataError, TrnprofError
from trnprof.readers.explorer_parquet import read_explorer_parquet
from trnprof.readers.legacy_json import read_legacy_json
from trnprof.readers.summary import read_summary
from trnprof.writers.explorer_parquet import write_explorer_parquet
from trnprof.writers.legacy_json import write_legacy_json


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A whole Explorer directory."""
    profile = timeline((0, 500), instructions=[("PE", 0, 40), ("DVE", 10, 100)], packets=[(0, 5, 4096), (7, 9, 4)])
    write_explorer_parquet(profile, tmp_path / "p@latest")
    return tmp_path / "p@latest"


def one_line(error: TrnprofError) -> str:
    """The message, which must be one printable line about a file."""
    assert error.path is not None
    assert error.message.isprintable(), error.message
    return error.message


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"PAR1", "not a whole Parquet file"),
        (b"PAR1" * 10, "not a whole Parquet file"),
        (b"start_ts,end_ts\n1,2\n", "not a whole Parquet file"),
        (b"\x00" * 1000, "not a whole Parquet file"),
        (b"PAR1" + b"\xff" * 100 + (2**31 - 1).to_bytes(4, "little") + b"PAR1", "not a whole Parquet file"),
        (b"PAR1" + b"\x15" * 60 + (60).to_bytes(4, "little") + b"PAR1", "not a whole Parquet file"),
    ],
)
@pytest.mark.parametrize("table", ["Instruction", "Metadata", "SchemaFields"])
def test_a_file_that_is_no_parquet_is_named(directory: Path, table: str, content: bytes, said: str) -> None:
    (directory / f"{table}.parquet").write_bytes(content)
    with pytest.raises(InputDataError, match=said) as caught:
        read_explorer_parquet(directory)
    one_line(caught.value)
    assert caught.value.path is not None and caught.value.path.endswith(f"{table}.parquet")


def test_every_truncation_of_a_table_is_one_error(directory: Path) -> None:
    file = directory / "Instruction.parquet"
    whole = file.read_bytes()
    for length in range(0, len(whole), 97):
        file.write_bytes(whole[:length])
        with pytest.raises(InputDataError) as caught:
            read_explorer_parquet(directory)
        one_line(caught.value)


def change_bytes(directory: Path) -> None:
    """Change a few bytes of a file again and again: the reader must give a profile or one of trnprof's errors."""
    dice = random.Random(20)
    outcomes = {"read": 0, "refused": 0}
    for file in (directory / "Instruction.parquet", directory / "Metadata.parquet", directory / "DmaPacket.parquet"):
        whole = file.read_bytes()
        footer = int.from_bytes(whole[-8:-4], "little") + 8
        for attempt in range(150):
            changed = bytearray(whole)
            first = len(changed) - footer if attempt % 2 else 4
            for _ in range(dice.randint(1, 4)):
                changed[dice.randrange(first, len(changed))] = dice.randrange(256)
            file.write_bytes(changed)
            try:
                profile = read_explorer_parquet(directory)
            except TrnprofError as error:
                one_line(error)
                outcomes["refused"] += 1
            else:
                for name, table in profile.tables():
                    if table is not None:
                        rows_of(profile, name)
                outcomes["read"] += 1
        file.write_bytes(whole)
    assert outcomes["refused"] > 50, outcomes


def test_changed_bytes_give_a_profile_or_one_error(directory: Path) -> None:
    # In a process of its own: an abort inside pyarrow must fail this test, not end all tests.
    code = "import sys; from pathlib import Path; from tests.readers.test_table_formats_damaged import change_bytes; "
    done = subprocess.run(
        [sys.executable, "-c", code + "change_bytes(Path(sys.argv[1]))", str(directory)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_changed_bytes_in_the_json_give_a_profile_or_one_error(tmp_path: Path) -> None:
    profile = timeline((0, 500), instructions=[("PE", 0, 40), ("DVE", 10, 100)], packets=[(0, 5, 4096)])
    path = tmp_path / "p.json"
    write_legacy_json(profile, path)
    whole = path.read_bytes()
    dice = random.Random(21)
    for _ in range(400):
        changed = bytearray(whole)
        for _ in range(dice.randint(1, 3)):
            changed[dice.randrange(len(changed))] = dice.randrange(256)
        path.write_bytes(changed)
        for reader in (read_legacy_json, read_summary):
            try:
                reader(path)
            except TrnprofError as error:
                one_line(error)


def test_a_run_length_bomb_is_refused(directory: Path) -> None:
    rows = 200_000_000
    schema = pa.schema([("start_ts", pa.int64()), ("end_ts", pa.int64()), ("engine", pa.int8()), ("opcode", pa.int8())])
    batch = pa.table([pa.nulls(10_000_000, kind) for kind in schema.types], schema=schema)
    with pq.ParquetWriter(directory / "DmaPacket.parquet", schema) as writer:
        for _ in range(rows // len(batch)):
            writer.write_table(batch)
    assert (directory / "DmaPacket.parquet").stat().st_size < 2 << 20
    _without_marker(directory)
    started = time.process_time()
    with pytest.raises(InputDataError, match="claims 200,000,000 rows"):
        read_explorer_parquet(directory)
    assert time.process_time() - started < 1


def test_a_long_name_repeated_a_million_times_stays_one_name(directory: Path) -> None:
    count = 500_000
    name = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array(["x" * 200_000]))
    numbers = pa.array(range(count), pa.int64())
    engines = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array(["Tensor"]))
    columns = {
        "start_ts": numbers,
        "end_ts": numbers,
        "engine": engines,
        "opcode": name,
        "layer": name,
        "pcore_idx": pa.array([0] * count),
    }
    pq.write_table(pa.table(columns), directory / "Instruction.parquet")
    _without_marker(directory)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    profile = read_explorer_parquet(directory)
    assert profile.instructions is not None
    assert len(profile.instructions) == count
    assert profile.instructions["layer"].chunk(0).dictionary.to_pylist() == ["x" * 200_000]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 500_000, "kilobytes; spelled out the names are 100 GB each"


def test_things_that_are_no_plain_files_are_not_read(directory: Path) -> None:
    (directory / "CcOp.parquet").unlink(missing_ok=True)
    os.mkfifo(directory / "CcOp.parquet")
    (directory / "Throttle.parquet").mkdir()
    (directory / "..weird_name_.parquet").write_bytes(b"")
    _without_marker(directory)
    profile = read_explorer_parquet(directory)
    assert profile.collectives is None
    assert profile.throttle is None


def test_a_system_profile_is_told_from_a_device_profile(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1], "name": ["x"]}), tmp_path / "SystemProfileEvents.parquet")
    with pytest.raises(InputDataError, match=r"no device events in it \(tables: SystemProfileEvents\)"):
        read_explorer_parquet(tmp_path)


def test_tables_without_rows_are_no_events(tmp_path: Path) -> None:
    pq.write_table(pa.table({"start_ts": pa.array([], pa.int64())}), tmp_path / "Instruction.parquet")
    with pytest.raises(InputDataError, match="no device events"):
        read_explorer_parquet(tmp_path)


def test_a_directory_without_tables_and_a_file_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(InputDataError, match="without Explorer Parquet tables"):
        read_explorer_parquet(tmp_path)
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputDataError, match="a file where an Explorer directory belongs"):
        read_explorer_parquet(tmp_path / "x.parquet")


def test_odd_column_types_are_one_error_or_nulls(directory: Path) -> None:
    nested = pa.array([[1, 2], [3]])
    texts = pa.array(["Tensor", "Sync"])
    base = {
        "start_ts": pa.array([1, 2]),
        "end_ts": pa.array([3, 4]),
        "engine": texts,
        "opcode": texts,
        "pcore_idx": pa.array([0, 0]),
    }
    _without_marker(directory)
    for column, values in (
        ("id", nested),
        ("layer", nested),
        ("id", pa.array([{"a": 1}, {"a": 2}])),
        ("evt_wait_time_ns", pa.array([True, False])),
        ("hbm_read_bytes", pa.array([2**64 - 1, 5], pa.uint64())),
        ("crc_in", pa.array([1.5, float("inf")])),
    ):
        pq.write_table(pa.table({**base, column: values}), directory / "Instruction.parquet")
        assert len(rows_of(read_explorer_parquet(directory), "instructions")) == 2, column
    for column in ("start_ts", "end_ts"):
        pq.write_table(pa.table({**base, column: nested}), directory / "Instruction.parquet")
        with pytest.raises(InputDataError, match=f"lacks a plain column {column}") as caught:
            read_explorer_parquet(directory)
        one_line(caught.value)


def test_extreme_times_do_not_overflow(tmp_path: Path) -> None:
    edge = 2**63 - 1
    times = [-edge - 1, -(2**62), 0, 5, 2**62 - 1, 2**62, edge]
    rows = [
        {"subgroup": "Tensor", "opcode": "A", "timestamp": at, "duration": length, "trigger": at}
        for at in times
        for length in (0, 1, edge, -edge)
    ]
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"instruction": rows}))
    profile = read_legacy_json(path)
    kept = rows_of(profile, "instructions")
    assert kept
    window = profile.metadata.cores[0].window_end_ts
    for row in kept:
        start, end = row["start_ts"], row["end_ts"]
        assert isinstance(start, int) and isinstance(end, int)
        assert 0 <= start <= end <= window
    assert sum(entry.count or 0 for entry in profile.issues if entry.code == "DQ011") == len(rows) - len(kept)


def _without_marker(directory: Path) -> None:
    stated = pq.read_table(directory / "Metadata.parquet")
    kept = [name for name in stated.column_names if name != "trnprof_marker"]
    pq.write_table(stated.select(kept), directory / "Metadata.parquet")

"""Queries: what they see, and that they see and change nothing else, end in time and stay in memory."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pyarrow as pa
import pytest

from tests.faulty_profiles import clean_step
from tests.timelines import timeline
from trnprof.errors import InputDataError, UsageError
from trnprof.profile import TABLE_SPECS
from trnprof.query import query_tables, run_query
from trnprof.readers import read_profile

PROFILE = clean_step()


def rows(sql: str, **options: object) -> list[dict[str, object]]:
    return run_query(PROFILE, sql, **options).table.to_pylist()  # type: ignore[arg-type]


def test_tables_are_the_profile_s_with_durations() -> None:
    """Every captured table by its name and columns; duration_ns is end - start."""
    names = {entry["name"] for entry in rows("show tables")}
    assert names == {name for name, table in PROFILE.tables() if table is not None} | {"cores", "summary", "tensors"}
    assert PROFILE.instructions is not None
    (count,) = rows("select count(*) n, sum(duration_ns) d, sum(end_ts - start_ts) e from instructions")
    assert count["n"] == PROFILE.instructions.num_rows and count["d"] == count["e"]
    described = {entry["column_name"]: entry["column_type"] for entry in rows("describe instructions")}
    assert set(described) == set(PROFILE.instructions.column_names) | {"duration_ns"}
    assert described["start_ts"] == "BIGINT" and described["opcode"] == "VARCHAR"


def test_joins_groups_and_windows() -> None:
    (entry,) = rows(
        "select engine, count(*) n from instructions i join cores c on c.core = i.pcore_idx "
        "where opcode = 'MATMUL' and start_ts >= window_start_ts group by engine"
    )
    assert entry["engine"] == "tensor" and entry["n"] == 2 * 915
    assert rows("select value from summary where name = 'inputs_outputs_weights_size_bytes'")[0]["value"] > 0  # type: ignore[operator]
    assert len(rows("from tensors")) == 2
    assert rows("explain select 1") != []


def test_a_row_limit_says_that_there_is_more() -> None:
    result = run_query(PROFILE, "from instructions", row_limit=7)
    assert result.table.num_rows == 7 and result.more
    exact = run_query(PROFILE, "from instructions limit 7", row_limit=7)
    assert exact.table.num_rows == 7 and not exact.more
    assert run_query(PROFILE, "from instructions where false").table.num_rows == 0


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret.csv"
    path.write_text("a\nsecret\n", encoding="utf-8")
    return path


FILES = [
    "select * from read_csv('{path}')",
    "select * from '{path}'",
    "select * from read_text('{path}')",
    "select content from read_blob('{path}')",
    "select * from read_json('{path}')",
    "select * from parquet_scan('{path}')",
    "select * from glob('{folder}/*')",
    "select * from sniff_csv('{path}')",
    "select * from query('select * from read_csv(''{path}'')')",
    "with t as (select * from read_csv('{path}')) select * from t",
    "select (select count(*) from read_csv('{path}'))",
    "select * from read_csv('https://example.invalid/a.csv')",
    "select * from 's3://bucket/a.parquet'",
    "copy instructions to '{folder}/out.csv'",
    "copy (select 1) to '{folder}/out.parquet' (format parquet)",
    "export database '{folder}/out'",
    "import database '{folder}'",
    "attach '{folder}/out.db'",
    "attach '{folder}/out.db' as x (type sqlite)",
    "install httpfs",
    "load httpfs",
    "load '{folder}/x.duckdb_extension'",
    "explain analyze copy instructions to '{folder}/out.csv'",
]


@pytest.mark.parametrize("sql", FILES)
def test_no_file_and_no_network(secret: Path, sql: str) -> None:
    before = sorted(secret.parent.rglob("*"))
    with pytest.raises((UsageError, InputDataError)) as refused:
        rows(sql.format(path=secret, folder=secret.parent))
    assert "secret\n" not in refused.value.message and "\n" not in refused.value.message
    assert sorted(secret.parent.rglob("*")) == before


CHANGES = [
    "create table x as select 1",
    "create view x as select 1",
    "insert into instructions select * from instructions",
    "update instructions set opcode = 'x'",
    "delete from instructions",
    "drop view instructions",
    "alter table instructions rename to x",
    "set threads = 99",
    "set enable_external_access = true",
    "reset enable_external_access",
    "pragma enable_profiling",
    "pragma database_list",
    "call pragma_version()",
    "begin",
    "checkpoint",
    "prepare x as select 1",
    "use memory",
    "select 1; select 2",
    "select 1; drop view instructions",
    "",
    ";",
    "-- nothing",
    "vacuum",
]


@pytest.mark.parametrize("sql", CHANGES)
def test_one_select_and_nothing_else(sql: str) -> None:
    with pytest.raises(UsageError) as refused:
        rows(sql)
    assert "\n" not in refused.value.message


WRONG = [
    "selec 1",
    "select nope from instructions",
    "select * from nope",
    "select 'unfinished",
    "select 1 +",
    "select 1/",
    "select " + "(" * 5_000 + "1" + ")" * 5_000,
    "select " + "1+" * 40_000 + "1",
    "select '" + "x" * 200_000 + "'",
    "select \x00",
    "select getenv('HOME')",
    "select cast('x' as integer)",
]


@pytest.mark.parametrize("sql", WRONG, ids=range(len(WRONG)))
def test_wrong_sql_is_one_line(sql: str) -> None:
    with pytest.raises(UsageError) as refused:
        rows(sql)
    assert "\n" not in refused.value.message and len(refused.value.message) < 1_000


@pytest.mark.parametrize(
    "sql",
    [
        "with recursive t(n) as (select 1 union all select n + 1 from t) select max(n) from t",
        "with recursive t(n) as (select 1 union all select n + 1 from t) from t",
        "select count(*) from instructions a, instructions b, instructions c, instructions d",
        "select sum(sin(a.start_ts * b.end_ts)) from instructions a, instructions b, instructions c",
        "select count(*) from range(10000000000000)",
    ],
)
def test_endless_queries_are_stopped(sql: str) -> None:
    started = time.monotonic()
    with pytest.raises(UsageError, match=r"ran longer than 0\.5 s"):
        rows(sql, timeout_s=0.5)
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    "sql",
    [
        "select list(a.start_ts) from instructions a, instructions b",
        "select string_agg(a.opcode, '') from instructions a, instructions b",
        "select a.*, b.* from instructions a, instructions b order by a.start_ts, b.end_ts",
    ],
)
def test_memory_is_bounded(sql: str) -> None:
    with pytest.raises(UsageError, match=r"needs more than 64 MiB|ran longer"):
        rows(sql, memory_bytes=64 << 20, timeout_s=20)


def test_a_table_that_was_not_captured_is_named() -> None:
    bare = dataclasses.replace(PROFILE, kernels=None)
    with pytest.raises(InputDataError, match=r"no table kernels \(not captured.*it has instructions"):
        run_query(bare, "select * from kernels")
    assert set(query_tables(bare)) == set(query_tables(PROFILE)) - {"kernels"}


def test_variables_of_this_process_are_no_tables() -> None:
    foo = pa.table({"a": [1]})
    with pytest.raises(UsageError, match="foo does not exist"):
        rows("select * from foo")
    assert foo.num_rows == 1


def test_hostile_names_are_data() -> None:
    """A column value is never SQL."""
    profile = timeline((0, 10), instructions=[("PE", 0, 10)])
    assert profile.instructions is not None
    name = "'; drop view instructions; --"
    opcode = pa.array([name], pa.string()).dictionary_encode()
    index = profile.instructions.column_names.index("opcode")
    table = profile.instructions.set_column(index, "opcode", opcode)
    profile = dataclasses.replace(profile, instructions=table)
    assert run_query(profile, "select opcode from instructions").table.to_pylist() == [{"opcode": name}]


def test_a_real_capture(captures: Path) -> None:
    """The counts are the table's; the matmuls are the vendor's 232."""
    profile = read_profile(captures / "baseline_fp32_s1024" / "step.ntff")
    (entry,) = run_query(profile, "select count(*) n from instructions where opcode = 'MATMUL'").table.to_pylist()
    assert entry == {"n": 232}
    assert (
        {"instructions", "dma_packets", "semaphores"}
        <= set(query_tables(profile))
        <= set(TABLE_SPECS) | {"cores", "summary", "tensors"}
    )

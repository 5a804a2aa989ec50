"""`trnprof query` as a user runs it: forms, sizes, files, and queries that would not end."""

from __future__ import annotations

import csv
import io
import json
import math
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import Run
from trnprof.cli import run

COUNT = (
    "select opcode, count(*) n, sum(duration_ns) ns from instructions where pcore_idx = 0 group by 1 order by 3 desc, 1"
)
ROWS = [
    ["TENSOR_TENSOR", 64_625, 9_887_625],
    ["MATMUL", 47_500, 5_700_000],
    ["EVENT_SEMAPHORE", 375, 4_600_000],
    ["DMA_DIRECT2D", 2_500, 150_000],
    ["ACTIVATE", 125, 149_875],
]


def answer(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    assert run(["query", *map(str, arguments)]) == code
    return capsys.readouterr().out


def test_every_form_has_the_same_rows(capsys: pytest.CaptureFixture[str], example: Path, tmp_path: Path) -> None:
    envelope = json.loads(answer(capsys, example, COUNT, "--format", "json"))
    assert envelope["schema"] == "trnprof.query/1" and envelope["inputs"][0]["provenance"] == "modelled"
    assert envelope["result"]["rows"] == ROWS and envelope["result"]["row_count"] == 5
    text = [line.split() for line in answer(capsys, example, COUNT).splitlines()]
    assert text == [["opcode", "n", "ns"], *([str(cell) for cell in row] for row in ROWS)]
    table = list(csv.reader(io.StringIO(answer(capsys, example, COUNT, "--format", "csv"))))
    assert table == [["opcode", "n", "ns"], *([str(cell) for cell in row] for row in ROWS)]
    target = tmp_path / "rows.parquet"
    answer(capsys, example, COUNT, "--format", "parquet", "-o", target)
    stored = pq.read_table(target)
    assert [list(row.values()) for row in stored.to_pylist()] == ROWS
    assert stored.schema.metadata[b"provenance"] == b"modelled"
    answer(capsys, example, COUNT, "--format", "parquet", "-o", target, code=2)
    answer(capsys, example, COUNT, "--format", "parquet", "-o", target, "--force")
    answer(capsys, example, COUNT, "--format", "parquet", code=2)


def test_large_results_are_cut_where_a_reader_is_a_person_or_an_agent(
    capsys: pytest.CaptureFixture[str], example: Path, tmp_path: Path
) -> None:
    sql = "select start_ts from instructions order by 1"
    short = answer(capsys, example, sql, "--format", "json")
    assert len(short) <= 8192
    result = json.loads(short)["result"]
    assert result["row_count"] is None and "--full" in result["see"] and len(result["rows"]) > 100
    pointed = json.loads(answer(capsys, example, sql, "--format", "json", "--full"))["result"]["full"]
    whole = json.loads(Path(pointed["path"]).read_text(encoding="utf-8"))["result"]
    assert whole["row_count"] == len(whole["rows"]) == 2 * 115_125
    answer(capsys, example, sql, "--format", "parquet", "-o", "-", code=2)
    text = answer(capsys, example, sql).splitlines()
    assert len(text) <= 200 and text[-1].startswith("… more rows")
    target = tmp_path / "rows.csv"
    answer(capsys, example, sql, "--format", "csv", "-o", target)
    assert len(target.read_text(encoding="utf-8").splitlines()) == 1 + 2 * 115_125


def test_json_is_strict(capsys: pytest.CaptureFixture[str], example: Path) -> None:
    """NaN, infinities, dates, intervals, blobs, huge integers, nested values and control characters."""
    sql = (
        "select 'nan'::double a, 'inf'::double b, date '2026-11-30' c, interval 1 day d, '\\xAA'::blob e, "
        "170141183460469231731687303715884105727::hugeint f, {'k': [1, null]} g, chr(27) || chr(10) h, null i, true j"
    )
    (row,) = json.loads(answer(capsys, example, sql, "--format", "json"))["result"]["rows"]
    assert row[0] is None and row[1] is None and row[2] == "2026-11-30" and row[4] == "aa"
    assert row[5] == 170141183460469231731687303715884105727 and row[6] == {"k": [1, None]}
    assert row[7] == "\\x1b\\n" and row[8] is None and row[9] is True
    text = answer(capsys, example, sql)
    assert "\x1b" not in text and text.count("\n") == 2
    assert not any(math.isnan(cell) for cell in row if isinstance(cell, float))


@pytest.mark.parametrize(
    ("sql", "code", "said"),
    [
        ("selec 1", 2, "syntax error"),
        ("drop view instructions", 2, "read-only"),
        ("select * from read_csv('/etc/hosts')", 2, "no files, no network"),
        ("select * from kernels", 65, "no table kernels"),
    ],
)
def test_errors_are_one_line(capsys: pytest.CaptureFixture[str], example: Path, sql: str, code: int, said: str) -> None:
    assert run(["query", str(example), sql]) == code
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and said in captured.err


def test_one_huge_value_is_refused(trnprof: Run, example: Path) -> None:
    """A string of 3 GB is outside DuckDB's own limit; the process's bound stops it."""
    result = trnprof("query", example, "select repeat('x', 3000000000)")
    assert result.returncode == 2 and "needs more than" in result.stderr and result.stderr.count("\n") == 1


def test_what_cannot_be_interrupted_is_ended() -> None:
    """A call that does not come back: the process says so, in both forms, and leaves."""
    program = (
        "import time, trnprof.cli.query as q\n"
        "q._GRACE_S = 0.1\n"
        "with q._bounded_process(0.1, as_json=True):\n"
        "    time.sleep(60)\n"
    )
    started = time.monotonic()
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False)
    assert time.monotonic() - started < 20
    assert result.returncode == 2 and result.stderr.count("\n") == 1 and "could not be interrupted" in result.stderr
    assert json.loads(result.stdout)["error"]["exit_code"] == 2


def test_the_bounds_are_lifted_afterwards() -> None:
    import resource

    from trnprof.cli.query import _bounded_process

    before = resource.getrlimit(resource.RLIMIT_AS)
    with _bounded_process(60, as_json=False):
        assert resource.getrlimit(resource.RLIMIT_AS)[0] != before[0]
    assert resource.getrlimit(resource.RLIMIT_AS) == before

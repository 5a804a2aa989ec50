"""`trnprof breakdown`: every key, in every form, within an answer's size, and adding up to the anatomy (S4, S5)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faulty_profiles import FAULTS, clean_step
from trnprof.cli import run
from trnprof.cli.breakdown import Key
from trnprof.render.breakdown import (
    BreakdownTable,
    BreakdownView,
    Column,
    breakdown_json,
    breakdown_markdown,
    breakdown_text,
)
from trnprof.writers.explorer_parquet import write_explorer_parquet


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A step with kernels, tensors, collectives, throttling and a hand-over through HBM."""
    directory = tmp_path_factory.mktemp("busy") / "step@latest"
    write_explorer_parquet(FAULTS["THR001"](FAULTS["HBM003"](clean_step())), directory)
    return directory


def answer(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert run([str(argument) for argument in arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("key", list(Key))
def test_every_key(capsys: pytest.CaptureFixture[str], busy: Path, key: Key) -> None:
    """JSON below 8 KiB whose shown rows and rest sum to the total; text of 80 columns and at most 200 lines."""
    short = answer(capsys, "breakdown", busy, "--by", key, "--format", "json")
    assert len(short) <= 8192
    envelope = json.loads(short)
    assert envelope["schema"] == "trnprof.breakdown/1" and envelope["error"] is None
    assert envelope["inputs"][0]["provenance"] == "modelled"
    result = envelope["result"]
    assert result["by"] == key and result["tables"] and "missing" not in result
    full = json.loads(answer(capsys, "breakdown", busy, "--by", key, "--format", "json", "--full"))["result"]
    for table, whole in zip(result["tables"], full["tables"], strict=True):
        assert whole["row_count"] == len(whole["rows"]) >= len(table["rows"]) - 1
        for column, total in table["total"].items():
            assert total == whole["total"][column]
            for rows in (table["rows"], whole["rows"]):
                assert sum(row[column] or 0 for row in rows) == total, column
    text = answer(capsys, "breakdown", busy, "--by", key)
    lines = text.splitlines()
    assert len(lines) <= 200 and "provenance modelled" in text
    assert [line for line in lines if len(line) > 80 and str(busy) not in line] == []
    assert answer(capsys, "breakdown", busy, "--by", key, "--format", "md").startswith("# ")


def test_figures_are_the_anatomy_s(capsys: pytest.CaptureFixture[str], example: Path) -> None:
    """Vector 9,887,625 ns and tensor 5,700,000 ns active, 4.6 ms blocked; 125 collectives a core, 2.8 ms exposed."""
    account = json.loads(answer(capsys, "anatomy", example, "--format", "json"))["result"]["cores"][0]
    opcodes = json.loads(answer(capsys, "breakdown", example, "--by", "opcode", "--format", "json", "--full"))["result"]
    rows = opcodes["tables"][0]["rows"]
    for engine, known in account["engines"].items():
        own = [row for row in rows if row["name"].startswith(f"{engine} ")]
        assert sum(row["charged_ns"] for row in own if not row["waits"]) == known["active_ns"]
        assert sum(row["instruction_count"] for row in own) == known["instruction_count"]
    collectives = json.loads(answer(capsys, "breakdown", example, "--by", "collective", "--format", "json"))["result"]
    assert collectives["tables"][0]["total"]["exposed_ns"] == 2 * account["parts_ns"]["exposed_collective"]


def test_what_is_not_captured_is_said(capsys: pytest.CaptureFixture[str], example: Path) -> None:
    """The published step has no kernel spans: a value in the answer, not a failure."""
    result = json.loads(answer(capsys, "breakdown", example, "--by", "boundary", "--format", "json"))["result"]
    assert result["tables"] == [] and result["missing"][0]["what"].startswith("kernels;")
    assert "not captured: kernels" in answer(capsys, "breakdown", example, "--by", "boundary")


def test_same_input_same_bytes(trnprof, example: Path) -> None:  # type: ignore[no-untyped-def]
    outputs = {
        trnprof("breakdown", example, "--by", "opcode", "--format", "json", PYTHONHASHSEED=seed).stdout
        for seed in ("0", "1", "2")
    }
    assert len(outputs) == 1


# --- tables -----------------------------------------------------------------------------------------------------------

COLUMNS = (Column("name", "name", "text"), Column("ns", "time", "ns", sums=True), Column("mean", "mean", "number"))
ROWS = tuple({"name": f"row {i}", "ns": 100 - i, "mean": 0.5} for i in range(40))
UNNAMED = {"name": "not attributed", "ns": 3, "mean": None}


def view(rows: tuple[dict[str, object], ...], cores: int = 1) -> BreakdownView:
    tables = tuple(BreakdownTable("t", COLUMNS, rows, core) for core in range(cores))
    return BreakdownView("step.ntff", "modelled", "line", tables)


def test_the_rest_sums_and_what_is_not_attributed_stays() -> None:
    (table,) = breakdown_json([view((*ROWS, UNNAMED))], rows=5)["tables"]  # type: ignore[misc]
    names = [row["name"] for row in table["rows"]]  # type: ignore[index]
    assert names == ["row 0", "row 1", "row 2", "row 3", "not attributed", "rest (36)"]
    assert table["rows"][-1] == {"name": "rest (36)", "ns": sum(100 - i for i in range(4, 40)), "mean": None}  # type: ignore[index]
    assert table["total"] == {"ns": sum(100 - i for i in range(40)) + 3}  # type: ignore[index]


def test_many_cores_lose_rows_and_then_tables() -> None:
    from trnprof.render.breakdown import breakdown_report
    from trnprof.render.envelope import Report, envelope_json

    def make(result: dict[str, object]) -> Report:
        return Report(command="breakdown", result=result)

    report = breakdown_report([view(ROWS, cores=256)], make, full=False)
    assert len(envelope_json(report)) <= 8192
    rest = report.result["tables_rest"]
    assert isinstance(rest, dict) and rest["count"] == 256 - len(report.result["tables"])  # type: ignore[arg-type]
    assert len(breakdown_report([view(ROWS, cores=256)], make, full=True).result["tables"]) == 256  # type: ignore[arg-type]


def test_names_cannot_break_out() -> None:
    hostile = view(({"name": "a\x1b[2J\n|<b>", "ns": 5, "mean": None}, {"name": "{{7*7}}", "ns": 4, "mean": 1.0}))
    text = breakdown_text(hostile, full=False)
    assert "\x1b" not in text and "a\\x1b[2J\\n|<b>" in text
    row = breakdown_markdown(hostile, full=False).splitlines()[8]
    assert row.replace("\\|", "").count("|") == 4 and "\\<b\\>" in row
    assert breakdown_json([hostile], rows=None)["tables"][0]["rows"][0]["name"] == "a\\x1b[2J\\n|<b>"  # type: ignore[index]

"""A run's log: written, read, accounted, printed; parts add up; damage is told in one line."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trnprof.analyzers.cpu_steps import account_cpu_steps
from trnprof.cli import run
from trnprof.engine.config import EngineConfig
from trnprof.engine.step_log import StepLog
from trnprof.errors import InputDataError
from trnprof.readers.step_log import read_step_log
from trnprof.result_schema import schema_of
from trnprof.step_log import STEP_COUNTS, STEP_TIMES

CALLS = [(1, "experts", 130, 150), (1, "rms_norm", 150, 155), (2, "experts", 330, 380), (2, "greedy", 395, 398)]


def write(folder: Path, rows: list[dict[str, int]], kinds: list[str]) -> Path:
    """A log as the engine's writer makes it, from the columns that matter here."""
    log = StepLog("tiny", EngineConfig())
    log.operations.extend(CALLS)
    tables = log.tables()
    columns = {name: [row.get(name, 0) for row in rows] for name in (*STEP_TIMES, *STEP_COUNTS)}
    steps = pa.table(columns | {"kind": kinds, "sampled": [False] * len(rows)})
    folder.mkdir(exist_ok=True)
    pq.write_table(steps.replace_schema_metadata(tables["steps"].schema.metadata), folder / "steps.parquet")
    pq.write_table(tables["operations"], folder / "operations.parquet")
    return folder


STEPS = [
    {
        "step": 1,
        "planned_ts": 100,
        "planning_ns": 15,
        "started_ts": 120,
        "copy_ns": 2,
        "prepare_ns": 5,
        "forward_ns": 40,
        "sample_ns": 8,
        "ended_ts": 180,
        "collecting_ts": 190,
        "collected_ts": 200,
        "shape_rows": 4,
        "shape_width": 16,
        "rows": 3,
        "new_tokens": 40,
        "output_tokens": 3,
    },
    {
        "step": 2,
        "planned_ts": 160,
        "planning_ns": 30,
        "started_ts": 320,
        "copy_ns": 0,
        "prepare_ns": 10,
        "forward_ns": 60,
        "sample_ns": 10,
        "ended_ts": 400,
        "collecting_ts": 405,
        "collected_ts": 410,
        "shape_rows": 4,
        "shape_width": 1,
        "rows": 3,
        "new_tokens": 3,
        "output_tokens": 3,
    },
]
"""Window 100..410 = 310. Steps run 120..180 and 320..400 (140). Scheduling: planning 100..115 and 160..190, taking in
190..200 and 405..410; outside of steps that is 15 + (180..200) 20 + 5 = 40, inside 20. Gap: 310 - 140 - 40 = 130."""


def test_the_parts_by_hand(tmp_path: Path) -> None:
    anatomy = account_cpu_steps(read_step_log(write(tmp_path / "run", STEPS, ["prefill", "decode"])))
    assert anatomy.window_ns == 310
    assert anatomy.parts_ns == {
        "cache_copies": 2,
        "preparation": 15,
        "forward": 100,
        "sampling": 18,
        "drafting": 0,
        "step_rest": 5,
        "scheduling": 40,
        "gap": 130,
    }
    assert anatomy.hidden_scheduling_ns == 20
    assert [(entry.name, entry.call_count, entry.total_ns) for entry in anatomy.operations or ()] == [
        ("experts", 2, 70),
        ("rms_norm", 1, 5),
        ("greedy", 1, 3),
    ]
    assert anatomy.operations_ns == {"kernels": 78, "between": 118 - 78}
    prefill = anatomy.kinds[1]
    assert (prefill.padded_row_count, prefill.padded_token_count, prefill.median_ns) == (1, 24, 60)


@pytest.mark.parametrize("form", ["text", "json", "md"])
def test_anatomy_prints_it_as_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    """measured-cpu is said, and no engine of a Trainium is named."""
    folder = write(tmp_path / "run", STEPS, ["prefill", "decode"])
    assert run(["anatomy", str(folder), "--format", form]) == 0
    out = capsys.readouterr().out
    assert "measured-cpu" in out
    for word in ("tensor", "vector", "gpsimd", "floor"):
        assert word not in out.lower()
    if form == "json":
        envelope = json.loads(out)
        jsonschema.validate(envelope, schema_of("anatomy"))
        assert envelope["schema"] == "trnprof.anatomy/1"
        assert sum(envelope["result"]["cpu_steps"]["parts_ns"].values()) == 310
    if form == "text":
        assert all(len(line) <= 80 for line in out.splitlines() if str(folder) not in line)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ended_ts": 100}, "overlap"),
        ({"ended_ts": 330}, "overlap"),
        ({"forward_ns": 600}, "overlap, or parts longer"),
        ({"step": 2}, "step number twice"),
        ({"started_ts": -5}, "impossible values in started_ts"),
        ({"collected_ts": 1}, "collected before"),
    ],
)
def test_impossible_logs_are_refused(tmp_path: Path, change: dict[str, int], message: str) -> None:
    folder = write(tmp_path / "run", [STEPS[0] | change, STEPS[1]], ["prefill", "decode"])
    with pytest.raises(InputDataError, match=message):
        read_step_log(folder)


def test_damaged_logs_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "run", STEPS, ["prefill", "decode"])
    whole = (folder / "steps.parquet").read_bytes()
    pq.write_table(pa.table({"a": [1]}), folder / "steps.parquet")
    assert run(["anatomy", str(folder)]) == 65
    (folder / "steps.parquet").write_bytes(whole[: len(whole) // 2])
    assert run(["anatomy", str(folder)]) == 65
    (folder / "steps.parquet").write_bytes(whole)
    (folder / "operations.parquet").unlink()
    assert run(["anatomy", str(folder)]) == 65
    assert run(["anatomy", str(folder), "--html", str(tmp_path / "page.html")]) == 2
    assert run(["info", str(folder)]) == 65
    errors = capsys.readouterr().err.strip().splitlines()
    assert "trnprof anatomy" in errors[-1]
    assert len(errors) == 5 and all(line.startswith("trnprof: ") for line in errors)


def test_an_empty_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputDataError, match="no step was recorded"):
        read_step_log(write(tmp_path / "run", [], []))


def test_profile_records_what_anatomy_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The real thing: a run of 2 requests of 20 + 4 tokens; kernels lie inside the steps, tokens are counted."""
    pytest.importorskip("torch", reason="the engine extra is not installed")
    folder = tmp_path / "run"
    asked = ["engine", "profile", "-o", str(folder), "--model", "tiny-gdn", "--rows", "2", "--context", "20"]
    assert run([*asked, "--answer", "4", "--threads", "1", "--contexts", "512"]) == 0
    log = read_step_log(folder)
    anatomy = account_cpu_steps(log)
    assert sum(entry.output_token_count for entry in anatomy.kinds) == 8
    assert sum(entry.new_token_count for entry in anatomy.kinds) == 2 * (20 + 3)
    assert anatomy.operations is not None and anatomy.operations_ns is not None
    assert {"project", "rms_norm", "attention_decode", "greedy"} <= {entry.name for entry in anatomy.operations}
    inside = sum(anatomy.parts_ns[name] for name in ("forward", "sampling", "drafting"))
    assert sum(entry.total_ns for entry in anatomy.operations) == anatomy.operations_ns["kernels"] <= inside
    requests = pq.read_table(folder / "requests.parquet").to_pylist()
    assert [row["output_tokens"] for row in requests] == [4, 4]
    assert all(row["provenance"] == "measured-cpu" for row in requests)
    assert run([*asked, "--answer", "4"]) == 2, "an existing folder is not overwritten"

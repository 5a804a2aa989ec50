"""A folder of ranks is one view: a row a core, the missing and the empty named, small as JSON, quick (D5)."""

from __future__ import annotations

import json
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.timelines import core_profile
from trnprof.profile import Profile, Step
from trnprof.writers.explorer_parquet import write_explorer_parquet


def rank_profile(rank: int, *, late_ns: int = 0, calls: int = 3) -> Profile:
    """Two cores that work 400 ns each and meet in `calls` collectives; a late rank enters them later."""
    work = [((0, 400 + rank), "vector", "COPY", core, True, None, 0, None, 0) for core in (0, 1)]
    last = [((9_999, 10_000), "tensor", "MATMUL", core, True, None, 0, None, 0) for core in (0, 1)]
    return core_profile(
        (0, 10_000),
        instructions=[*work, *last],
        collectives=[(1000 * k + late_ns, 1000 * k + 500) for k in range(1, calls + 1)],
        cores=2,
    )


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """32 ranks: 17 is missing, 21 is an empty directory, 5 enters its collectives 300 ns after the others."""
    folder = tmp_path_factory.mktemp("ranks")
    for rank in range(32):
        if rank == 17:
            continue
        directory = folder / f"profile_rank_{rank}@latest"
        if rank == 21:
            directory.mkdir()
            continue
        write_explorer_parquet(rank_profile(rank, late_ns=300 if rank == 5 else 0), directory)
    return folder


def test_d5_a_table_of_the_ranks_with_the_missing_and_empty_named(trnprof: Run, ranks: Path) -> None:
    begun = time.monotonic()
    result = trnprof("anatomy", ranks)
    seconds = time.monotonic() - begun
    assert result.returncode == 0, result.stderr
    assert result.stderr == "", "no progress where there is no terminal"
    rows = re.findall(r"^  (\d+) +([01]) +10\.000 ", result.stdout, re.MULTILINE)
    assert rows == [(str(rank), core) for rank in range(32) if rank not in (17, 21) for core in "01"]
    flat = " ".join(result.stdout.split())
    assert "missing: rank 17" in flat and "not readable: rank 21 (profile_rank_21@latest)" in flat
    assert "last most often: rank 5 (3 of 3)" in flat
    assert len(result.stdout.splitlines()) < 200
    assert max(len(line) for line in result.stdout.splitlines()) <= 80
    # 5 s on a quiet machine; tests run beside others here.
    assert seconds < 20


def test_its_json_is_small_and_its_full_json_whole(trnprof: Run, ranks: Path, tmp_path: Path) -> None:
    result = trnprof("anatomy", ranks, "--format", "json")
    assert len(result.stdout) <= 8192
    envelope = json.loads(result.stdout)
    found = envelope["result"]
    assert len(envelope["inputs"]) == 4 and found["inputs_rest"]["count"] == 26
    assert found["ranks"]["core_count"] == 60
    shown, rest = found["cores"], found["rest"]
    assert len(shown) + rest["core_count"] == 60
    assert found["ranks"]["parts_ns"]["busy_beyond_floor"]["max_rank"] == 31
    split = found["ranks"]["collectives"]
    assert split["aligned_on"] == "ends"
    # 30 ranks x 3 calls of 500 ns, rank 5's 200: each other rank waits 300 in each call.
    assert (split["transfer_ns"], split["waiting_ns"]) == (30 * 3 * 200, 29 * 3 * 300)
    assert sum(row["waiting_ns"] for row in split["ranks"]) + split["ranks_rest"]["waiting_ns"] == split["waiting_ns"]
    trnprof("anatomy", ranks, "--format", "json", "--full", "-o", "full.json")
    whole = json.loads((tmp_path / "full.json").read_text())
    cores = whole["result"]["cores"]
    assert len(whole["inputs"]) == 30 and len(cores) == 60
    for name in ("idle", "busy_beyond_floor"):
        listed = sum(core["parts_ns"][name] for core in shown)
        assert listed + rest["parts_ns"][name] == sum(core["parts_ns"][name] for core in cores)
    assert len(whole["result"]["ranks"]["collectives"]["ranks"]) == 30


def test_processes_side_by_side_give_the_same(trnprof: Run, ranks: Path, tmp_path: Path) -> None:
    kept = str(tmp_path / "kept")
    outputs = [
        trnprof("anatomy", ranks, "--format", "json", *options, TRNPROF_CACHE_DIR=folder).stdout
        for options, folder in ((["--jobs", "1"], ""), (["--jobs", "3"], kept), ([], kept), (["--no-cache"], kept))
    ]
    assert outputs[0] and len(set(outputs)) == 1
    assert len(list((tmp_path / "kept").glob("*.json"))) == 30


def test_a_damaged_rank_is_named_and_the_others_are_read(trnprof: Run, ranks: Path, tmp_path: Path) -> None:
    folder = tmp_path / "some"
    for rank in (0, 1, 2):
        shutil.copytree(ranks / f"profile_rank_{rank}@latest", folder / f"profile_rank_{rank}@latest")
    (folder / "profile_rank_1@latest" / "Instruction.parquet").write_bytes(b"PAR1 is not enough")
    (folder / "profile_rank_3.ntff").write_bytes(b"")
    result = trnprof("anatomy", "some", "--format", "json")
    assert result.returncode == 0
    quality = {entry["code"]: entry for entry in json.loads(result.stdout)["data_quality"]}
    assert "rank 1 (profile_rank_1@latest), rank 3 (profile_rank_3.ntff)" in quality["DQ035"]["message"]
    assert quality["DQ035"]["count"] == 2 and "DQ022" in quality


def test_d3_unequal_collectives_are_a_warning(trnprof: Run, tmp_path: Path) -> None:
    """Rank 0: 3 collectives, rank 1: 6: named, not matched, and --strict fails on it."""
    (tmp_path / "two").mkdir()
    for rank, calls in ((0, 3), (1, 6)):
        write_explorer_parquet(rank_profile(rank, calls=calls), tmp_path / "two" / f"rank_{rank}@latest")
    result = trnprof("anatomy", "two", "--strict")
    assert result.returncode == 1
    flat = " ".join(result.stdout.split())
    assert "DQ036" in flat and "rank 0: 3, rank 1: 6" in flat


def test_captures_where_the_runtime_puts_them(trnprof: Run, tmp_path: Path) -> None:
    """<instance>_pid_<pid>/<time>/profile_nc_0..: two folders down."""
    folder = tmp_path / "out" / "i-0123_pid_77" / "1700"
    folder.mkdir(parents=True)
    for core in (0, 1):
        write_explorer_parquet(rank_profile(core), folder / f"profile_nc_{core}@latest")
    result = trnprof("anatomy", "out", "--format", "json")
    assert result.returncode == 0, result.stderr
    envelope = json.loads(result.stdout)
    assert [core["rank"] for core in envelope["result"]["cores"]] == [0, 0, 1, 1]


def step_profile() -> Profile:
    """Steps [0,4000) [4000,8000) [8000,12000), the capture ends at 10,000; 100 ns of work cross the first boundary."""
    rows = [((3_900, 4_300), "vector", "COPY", 0, True, None, 0, None, 0)]
    rows += [((9_999, 10_000), "tensor", "MATMUL", 0, True, None, 0, None, 0)]
    profile = core_profile((0, 10_000), instructions=rows)
    steps = tuple(Step(index=k, name="model.neff", start_ts=4000 * k, end_ts=4000 * (k + 1)) for k in range(3))
    return replace(profile, metadata=replace(profile.metadata, steps=steps, has_step_markers=True))


def test_steps_by_number_and_all(trnprof: Run, tmp_path: Path) -> None:
    write_explorer_parquet(step_profile(), tmp_path / "steps@latest")
    second = json.loads(trnprof("anatomy", "steps@latest", "--step", "2", "--format", "json").stdout)["result"]
    (core,) = second["cores"]
    assert core["window_ns"] == 4000 and core["engines"]["vector"] == core["engines"]["vector"] | {
        "active_ns": 300,
        "instruction_count": 0,
    }
    every = json.loads(trnprof("anatomy", "steps@latest", "--step", "all", "--format", "json").stdout)
    steps = every["result"]["steps"]
    assert (steps["count"], steps["whole_count"]) == (3, 2)
    assert [row["cut"] for row in steps["rows"]] == [None, None, "ends"]
    assert steps["whole"][0]["window_ns"]["mean"] == 4000
    assert "DQ034" in {entry["code"] for entry in every["data_quality"]}
    assert every["result"]["cores"][0]["window_ns"] == 10_000
    text = trnprof("anatomy", "steps@latest", "--step", "all").stdout
    assert "2 of 3 steps are whole; 1 is cut by the capture's edge and in no mean" in " ".join(text.split())
    page = trnprof("anatomy", "steps@latest", "--step", "2", "--html", "step.html")
    assert page.returncode == 0, page.stderr
    for wrong, said in (("4", "no step 4"), ("0", "from 1, or all"), ("x", "from 1, or all")):
        result = trnprof("anatomy", "steps@latest", "--step", wrong)
        assert result.returncode == 2 and said in result.stderr


def test_a_capture_without_steps_says_so(trnprof: Run, example: Path) -> None:
    result = trnprof("anatomy", example, "--step", "all")
    assert result.returncode == 2 and "marks no steps" in result.stderr

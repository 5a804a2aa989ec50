"""`trnprof diff` as a user runs it: contract keys, size, determinism (G3), units (G4), warnings (B9), gates."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import Run
from tests.faulty_profiles import FAULTS, clean_step
from tests.timelines import timeline
from trnprof.cli import run
from trnprof.profile import Profile
from trnprof.writers.explorer_parquet import write_explorer_parquet


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The clean step and some faulty ones on disk."""
    folder = tmp_path_factory.mktemp("sides")
    paths = {}
    for name in ("clean", "WAIT001", "HBM001"):
        paths[name] = folder / f"{name}@latest"
        write_explorer_parquet(clean_step() if name == "clean" else FAULTS[name](clean_step()), paths[name])
    return paths


def answer(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    assert run(["diff", *map(str, arguments)]) == code
    return capsys.readouterr().out


def test_the_contract_s_keys(capsys: pytest.CaptureFixture[str], sides: dict[str, Path]) -> None:
    """result.cores[].window_ns and parts_ns.<part>, each before, after, delta; below 8 KiB; rows and rest sum."""
    text = answer(capsys, sides["clean"], sides["WAIT001"], "--format", "json")
    assert len(text) <= 8192
    envelope = json.loads(text)
    assert envelope["schema"] == "trnprof.diff/1" and len(envelope["inputs"]) == 2
    assert {entry["provenance"] for entry in envelope["inputs"]} == {"modelled"}
    full = json.loads(answer(capsys, sides["clean"], sides["WAIT001"], "--format", "json", "--full"))["result"]
    for core, whole in zip(envelope["result"]["cores"], full["cores"], strict=True):
        for change in (core["window_ns"], *core["parts_ns"].values()):
            assert set(change) == {"before", "after", "delta"} and change["delta"] == change["after"] - change["before"]
        assert sum(change["delta"] for change in core["parts_ns"].values()) == core["window_ns"]["delta"]
        # The wait itself, and 81 ns of an open kernel between it and the instructions around it.
        assert core["parts_ns"]["in_kernel_wait"]["delta"] == 40_081
        for group, rows in core["rows"].items():
            for side in ("before", "after", "delta"):
                assert sum(row[side] for row in rows) == sum(row[side] for row in whole["rows"][group])


def test_nothing_against_itself(capsys: pytest.CaptureFixture[str], sides: dict[str, Path]) -> None:
    result = json.loads(answer(capsys, sides["HBM001"], sides["HBM001"], "--format", "json", "--full"))["result"]
    assert result["verdict"]["outcome"] == "same" and result["configuration"] == []

    def deltas(node: object) -> list[object]:
        if isinstance(node, dict):
            return [value for key, value in node.items() if key == "delta"] + [
                d for v in node.values() for d in deltas(v)
            ]
        return [d for entry in node for d in deltas(entry)] if isinstance(node, list) else []

    assert set(deltas(result["cores"])) <= {0, None}


def test_text_and_markdown(capsys: pytest.CaptureFixture[str], sides: dict[str, Path]) -> None:
    text = answer(capsys, sides["clean"], sides["WAIT001"], "--scope", "kernel:layer")
    lines = text.splitlines()
    assert len(lines) <= 200
    assert [line for line in lines if len(line) > 80 and "@latest" not in line] == []
    joined = " ".join(text.split())
    assert "configurations: the same" in joined and "+0.00 %: same [bar 2 %" in joined
    assert "in-kernel wait 0 ns 40.081 us +40.081 us" in joined
    assert "dma qSyncIO0 (new)" in joined and "in the step 0 ns" in joined
    assert answer(capsys, sides["clean"], sides["WAIT001"], "--format", "md").startswith("# ")


def test_g3_same_bytes_whatever_the_hash_seed(trnprof: Run, sides: dict[str, Path]) -> None:
    for form in ("json", "text"):
        found = {
            trnprof("diff", sides["clean"], sides["HBM001"], "--format", form, PYTHONHASHSEED=str(seed)).stdout
            for seed in range(4)
        }
        assert len(found) == 1 and found != {""}


def in_microseconds(source: Path, target: Path, unit: str | None) -> None:
    """The same capture with the instructions' times in whole microseconds, declared in SchemaFields as `unit`."""
    target.mkdir()
    for file in source.glob("*.parquet"):
        table = pq.read_table(file)
        if file.stem == "Instruction":
            for name in ("start_ts", "end_ts", "duration_ns"):
                if name in table.column_names:
                    values = pc.divide(table[name], 1000).cast(pa.int64())
                    table = table.set_column(table.column_names.index(name), name, values)
        if file.stem == "SchemaFields":
            is_time = pc.and_(
                pc.equal(table["table_name"], "Instruction"),
                pc.is_in(table["field_name"], pa.array(["start_ts", "end_ts", "duration_ns"])),
            )
            units = pc.if_else(is_time, pa.scalar(unit, pa.string()), table["field_unit"])
            table = table.set_column(table.column_names.index("field_unit"), "field_unit", units)
        pq.write_table(table, target / file.name)


def test_g4_declared_units_are_converted_and_unknown_ones_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """One run in ns and in us: no difference where the unit is declared; a unit that nobody knows is an error."""
    rows = [("PE", 0, 40_000), ("DVE", 40_000, 90_000)]
    write_explorer_parquet(timeline((0, 90_000), instructions=rows), tmp_path / "ns@latest")
    in_microseconds(tmp_path / "ns@latest", tmp_path / "us@latest", "microseconds")
    in_microseconds(tmp_path / "ns@latest", tmp_path / "odd@latest", "fortnights")
    result = json.loads(answer(capsys, tmp_path / "ns@latest", tmp_path / "us@latest", "--format", "json"))["result"]
    assert result["cores"][0]["window_ns"] == {"before": 90_000, "after": 90_000, "delta": 0}
    assert {change["delta"] for change in result["cores"][0]["parts_ns"].values()} <= {0, None}
    answer(capsys, tmp_path / "ns@latest", tmp_path / "odd@latest", code=65)


def test_b9_an_incomplete_capture_is_warned_of(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    base = clean_step()
    lossy = dataclasses.replace(base, metadata=dataclasses.replace(base.metadata, dropped_record_count=1_200))
    for name, profile in (("whole", base), ("lossy", lossy)):
        write_explorer_parquet(profile, tmp_path / f"{name}@latest")
    envelope = json.loads(answer(capsys, tmp_path / "whole@latest", tmp_path / "lossy@latest", "--format", "json"))
    (entry,) = [entry for entry in envelope["data_quality"] if entry["code"] == "DQ001"]
    assert entry["message"].startswith(str(tmp_path / "lossy@latest"))
    assert envelope["result"]["incomplete"] == [str(tmp_path / "lossy@latest")]
    answer(capsys, tmp_path / "whole@latest", tmp_path / "lossy@latest", "--strict", code=1)


def test_a_mismatch_is_said_before_any_number(
    capsys: pytest.CaptureFixture[str], sides: dict[str, Path], tmp_path: Path
) -> None:
    base = clean_step()
    other = dataclasses.replace(base, metadata=dataclasses.replace(base.metadata, instance_type="trn2.3xlarge"))
    write_explorer_parquet(other, tmp_path / "other@latest")
    envelope = json.loads(answer(capsys, sides["clean"], tmp_path / "other@latest", "--format", "json"))
    assert envelope["data_quality"][0]["code"] == "DQ040"
    assert envelope["result"]["configuration"][0]["field"] == "instance type"


def series(folder: Path, name: str, *windows: int) -> list[Path]:
    paths = []
    for index, end in enumerate(windows):
        profile: Profile = timeline((0, end), instructions=[("PE", 0, end)])
        paths.append(folder / f"{name}{index}@latest")
        write_explorer_parquet(profile, paths[-1])
    return paths


def test_several_captures_a_side(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Three pairs, each 10 % slower: slower; --fail-if-slower makes it exit code 1; a bar of 20 % does not."""
    before = series(tmp_path, "before", 100_000, 102_000, 98_000)
    after = series(tmp_path, "after", 110_000, 112_200, 107_800)
    options = [part for path in before for part in ("--before", path)] + [
        part for path in after for part in ("--after", path)
    ]
    result = json.loads(answer(capsys, *options, "--format", "json"))["result"]
    assert result["verdict"]["outcome"] == "slower" and result["verdict"]["paired"]
    assert result["steps_ns"] == {"before": [100_000, 102_000, 98_000], "after": [110_000, 112_200, 107_800]}
    assert result["compared"]["before"] == str(before[0])
    answer(capsys, *options, "--fail-if-slower", code=1)
    answer(capsys, *options, "--fail-if-slower", "--bar", "20%")
    assert '"paired":false' in answer(capsys, *options, "--unpaired", "--format", "json")
    # Positional captures count too, and a folder is all captures in it.
    more = json.loads(
        answer(capsys, before[0], after[0], "--before", before[1], "--after", after[1], "--format", "json")
    )
    assert more["result"]["verdict"]["before_count"] == 2
    (tmp_path / "folder").mkdir()
    series(tmp_path / "folder", "run", 100_000, 101_000)
    folder = json.loads(answer(capsys, tmp_path / "folder", after[0], "--format", "json"))["result"]
    assert folder["verdict"]["before_count"] == 2 and folder["verdict"]["after_count"] == 1


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["CLEAN"],
        ["CLEAN", "CLEAN", "--bar", "two"],
        ["CLEAN", "CLEAN", "--bar", "-1%"],
        ["CLEAN", "CLEAN", "--bar", "200%"],
        ["CLEAN", "CLEAN", "--scope", "kernel:"],
        ["CLEAN", "CLEAN", "--scope", "queue:x"],
        ["CLEAN", "CLEAN", "--before", "CLEAN", "--paired"],
    ],
)
def test_usage(capsys: pytest.CaptureFixture[str], sides: dict[str, Path], arguments: list[str]) -> None:
    assert run(["diff", *(str(sides["clean"]) if entry == "CLEAN" else entry for entry in arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1


def test_a_scope_that_is_not_there_is_65(capsys: pytest.CaptureFixture[str], sides: dict[str, Path]) -> None:
    assert run(["diff", str(sides["clean"]), str(sides["WAIT001"]), "--scope", "kernel:nothing"]) == 65
    error = capsys.readouterr().err
    assert "no kernel named 'nothing'; there are: layer" in error and error.count("\n") == 1

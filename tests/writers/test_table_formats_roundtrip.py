"""Writing a profile and reading it back gives the same profile, whatever is in it."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from tests.table_profiles import differences, profiles, without_format
from tests.timelines import timeline
from trnprof.errors import UsageError
from trnprof.profile import Profile, Provenance
from trnprof.readers import read_profile
from trnprof.readers.explorer_parquet import read_explorer_parquet
from trnprof.readers.legacy_json import read_legacy_json
from trnprof.writers.explorer_parquet import write_explorer_parquet
from trnprof.writers.legacy_json import write_legacy_json

SLOW = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@given(profiles())
@SLOW
def test_explorer_parquet_gives_back_what_was_written(profile: Profile) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_explorer_parquet(profile, Path(folder) / "p@latest")
        back = read_explorer_parquet(Path(folder))
    assert differences(profile, back) == []
    assert without_format(back.metadata) == without_format(profile.metadata)
    assert back.metadata.format == "explorer-parquet"


@given(profiles())
@SLOW
def test_legacy_json_gives_back_what_was_written(profile: Profile) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.json"
        write_legacy_json(profile, path)
        back = read_legacy_json(path)
    assert differences(profile, back) == []
    assert without_format(back.metadata) == without_format(profile.metadata)


@pytest.mark.parametrize("provenance", list(Provenance))
def test_provenance_comes_back_and_a_model_says_it_is_one(tmp_path: Path, provenance: Provenance) -> None:
    import json

    import pyarrow.parquet as pq

    plain = timeline((0, 100), instructions=[("PE", 0, 100)])
    profile = dataclasses.replace(plain, metadata=dataclasses.replace(plain.metadata, provenance=provenance))
    write_explorer_parquet(profile, tmp_path / "p@latest")
    write_legacy_json(profile, tmp_path / "p.json.gz")
    made = provenance in (Provenance.MODELLED, Provenance.PREDICTED)
    assert pq.read_table(tmp_path / "p@latest/Metadata.parquet")["is_simulation"].to_pylist() == [made]
    assert read_profile(tmp_path / "p@latest").metadata.provenance is provenance
    assert read_profile(tmp_path / "p.json.gz").metadata.provenance is provenance
    write_legacy_json(profile, tmp_path / "p.json")
    assert json.loads((tmp_path / "p.json").read_text())["metadata"][0]["is_simulation"] is made


def test_the_same_profile_gives_the_same_bytes(tmp_path: Path) -> None:
    profile = timeline((0, 100), instructions=[("PE", 0, 40), ("DVE", 10, 100)], packets=[(0, 5, 4096)])
    for name in ("a", "b"):
        write_explorer_parquet(profile, tmp_path / f"{name}@latest")
        write_legacy_json(profile, tmp_path / f"{name}.json.gz")
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
    files = sorted(file.name for file in (tmp_path / "a@latest").iterdir())
    assert {"Instruction.parquet", "Metadata.parquet", "SchemaFields.parquet"} <= set(files)
    for file in files:
        assert (tmp_path / "a@latest" / file).read_bytes() == (tmp_path / "b@latest" / file).read_bytes()


def test_schema_fields_list_every_written_column_with_its_unit(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    write_explorer_parquet(timeline((0, 9), instructions=[("PE", 0, 9)], packets=[(1, 2, 4096)]), tmp_path / "p@latest")
    listed = pq.read_table(tmp_path / "p@latest/SchemaFields.parquet").to_pylist()
    units = {(row["table_name"], row["field_name"]): row["field_unit"] for row in listed}
    for file in (tmp_path / "p@latest").glob("*.parquet"):
        if file.stem != "SchemaFields":
            assert {column for table, column in units if table == file.stem} == set(pq.read_schema(file).names)
    assert units["Instruction", "start_ts"] == units["Instruction", "duration_ns"] == "nanoseconds"
    assert units["DmaPacket", "transfer_bytes"] == "bytes"
    assert units["Metadata", "last_hw_timestamp"] == "nanoseconds"


def test_nothing_is_overwritten_unless_asked(tmp_path: Path) -> None:
    profile = timeline((0, 100), instructions=[("PE", 0, 100)])
    target, file = tmp_path / "p@latest", tmp_path / "p.json"
    write_explorer_parquet(profile, target)
    write_legacy_json(profile, file)
    before = file.read_bytes()
    with pytest.raises(UsageError, match="already there"):
        write_explorer_parquet(profile, target)
    with pytest.raises(UsageError, match="already there"):
        write_legacy_json(profile, file)
    assert file.read_bytes() == before
    longer = timeline((0, 200), instructions=[("PE", 0, 200)])
    write_explorer_parquet(longer, target, overwrite=True)
    write_legacy_json(longer, file, overwrite=True)
    assert read_profile(target).metadata.cores[0].window_end_ts == 200
    assert read_profile(file).metadata.cores[0].window_end_ts == 200
    assert sorted(child.name for child in tmp_path.iterdir()) == ["p.json", "p@latest"], "no temporary file is left"


def test_a_directory_with_other_things_is_never_replaced(tmp_path: Path) -> None:
    profile = timeline((0, 100), instructions=[("PE", 0, 100)])
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="not replaced"):
        write_explorer_parquet(profile, home, overwrite=True)
    assert (home / "thesis.tex").read_text() == "years of work"


def test_links_are_not_followed(tmp_path: Path) -> None:
    profile = timeline((0, 100), instructions=[("PE", 0, 100)])
    outside = tmp_path / "outside"
    outside.mkdir()
    kept = outside / "kept.json"
    kept.write_text("mine")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "p.json").symlink_to(kept)
    (inside / "p@latest").symlink_to(outside, target_is_directory=True)
    with pytest.raises(UsageError):
        write_legacy_json(profile, inside / "p.json")
    write_legacy_json(profile, inside / "p.json", overwrite=True)
    assert kept.read_text() == "mine"
    assert not (inside / "p.json").is_symlink()
    with pytest.raises(UsageError):
        write_explorer_parquet(profile, inside / "p@latest", overwrite=True)
    assert [child.name for child in outside.iterdir()] == ["kept.json"]


def test_a_place_that_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    profile = timeline((0, 100), instructions=[("PE", 0, 100)])
    for path in (tmp_path / "missing" / "p.json", Path("/proc/p.json")):
        with pytest.raises(UsageError, match="cannot be written"):
            write_legacy_json(profile, path)
    with pytest.raises(UsageError, match="cannot be written"):
        write_explorer_parquet(profile, tmp_path / "missing" / "p@latest")
    (tmp_path / "d").mkdir()
    with pytest.raises(UsageError, match="directory"):
        write_legacy_json(profile, tmp_path / "d", overwrite=True)
    assert list((tmp_path / "d").iterdir()) == []


@pytest.mark.parametrize("folder", ["baseline_bf16_s1024", "baseline_fp32_s1024", "baseline_fp32_s512"])
def test_a_real_capture_survives_both_formats(captures: Path, tmp_path: Path, folder: str) -> None:
    _survives(captures / folder / "neuron_profile.json.gz", tmp_path)


@pytest.mark.parametrize("folder", ["fused_bf16_s512", "fused_fp32_s1024", "fused_fp32_s512"])
def test_a_real_capture_of_a_fused_kernel_survives_both_formats(captures: Path, tmp_path: Path, folder: str) -> None:
    _survives(captures / folder / "neuron_profile.json.gz", tmp_path)


def _survives(source: Path, tmp_path: Path) -> None:
    profile = read_legacy_json(source)
    write_explorer_parquet(profile, tmp_path / "p@latest")
    write_legacy_json(profile, tmp_path / "p.json")
    for back in (read_profile(tmp_path / "p@latest"), read_profile(tmp_path / "p.json")):
        assert differences(profile, back) == []
        assert without_format(back.metadata) == without_format(profile.metadata)
        assert back.metadata.provenance is Provenance.MEASURED_DEVICE
        assert back.issues == profile.issues

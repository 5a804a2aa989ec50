"""Written then read, everything that an NTFF has a place for is the same; what it has no place for is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from tests.ntff_profiles import TABLES, assert_same, profiles
from trnprof.profile import CaptureIssue, Core, Metadata, Profile, ProfileError, Provenance, make_table
from trnprof.readers import read_profile
from trnprof.readers.ntff import read_ntff_alone
from trnprof.writers.ntff import write_ntff

per_example = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)


def through_file(profile: Profile, folder: Path) -> Profile:
    path = folder / "written.ntff"
    write_ntff(profile, path)
    return read_ntff_alone(path)


@per_example
@given(before=profiles())
def test_identity(before: Profile, tmp_path: Path) -> None:
    """Names of semaphores come from the program, so the numbers are compared."""
    after = through_file(before, tmp_path)
    # What the reader found in the file, the writer was not told.
    known = replace(before.metadata, dropped_record_count=0, dge_notifications=after.metadata.dge_notifications)
    assert_same(replace(before, metadata=known), after, ignore=frozenset({"id"}))


@per_example
@given(before=profiles())
def test_writing_twice_changes_nothing(before: Profile, tmp_path: Path) -> None:
    """read(write(p)) holds all that is in the file: writing it again gives the same file."""
    write_ntff(before, tmp_path / "once.ntff")
    write_ntff(read_ntff_alone(tmp_path / "once.ntff"), tmp_path / "twice.ntff")
    write_ntff(read_ntff_alone(tmp_path / "twice.ntff"), tmp_path / "thrice.ntff")
    assert (tmp_path / "twice.ntff").read_bytes() == (tmp_path / "thrice.ntff").read_bytes()


def real_captures(captures: Path) -> Iterator[Profile]:
    for path in sorted(captures.glob("*/step.ntff")):
        yield read_ntff_alone(path)


def test_identity_of_real_captures(captures: Path, tmp_path: Path) -> None:
    """Down to the order of rows, the names of semaphores, and what was lost."""
    for before in real_captures(captures):
        after = through_file(before, tmp_path)
        assert_same(before, after)
        assert after.issues == before.issues
        for name in TABLES:
            assert getattr(after, name).to_pylist() == getattr(before, name).to_pylist(), name


def test_identity_of_older_containers(public_captures: Path, tmp_path: Path) -> None:
    """Versions 4 and 5 come back as version 6: their approximated window is then recorded."""
    for path in sorted(public_captures.rglob("*.ntff")):
        before = read_ntff_alone(path)
        after = through_file(before, tmp_path)
        assert_same(replace(before, metadata=replace(before.metadata, format_version="6")), after)


def test_provenance_is_kept(tmp_path: Path) -> None:
    for provenance in Provenance:
        after = through_file(small(provenance=provenance), tmp_path)
        assert after.metadata.provenance == provenance


def test_read_profile_knows_the_written_file(tmp_path: Path) -> None:
    write_ntff(small(), tmp_path / "modelled.dat")
    assert read_profile(tmp_path / "modelled.dat").metadata.format == "ntff"


# --- a profile by hand


def instruction(start_ns: int, end_ns: int, **columns: Any) -> dict[str, Any]:
    row = {"start_ts": start_ns, "end_ts": end_ns, "pcore_idx": 0, "engine": "tensor", "opcode": "MATMUL"}
    return row | columns


def packet(start_ns: int, end_ns: int, **columns: Any) -> dict[str, Any]:
    row = {"start_ts": start_ns, "end_ts": end_ns, "pcore_idx": 0, "transfer_bytes": 512}
    return row | columns


def table(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    columns = dict.fromkeys(column for row in rows for column in row)
    return make_table(name, {column: [row.get(column) for row in rows] for column in columns})


def small(*, window_end: int = 1000, provenance: Provenance = Provenance.MODELLED, **tables: Any) -> Profile:
    cores = (Core(core=0, subgraph="sg00", window_start_ts=0, window_end_ts=window_end),)
    rows = {"instructions": [instruction(10, 20)]} | tables
    return Profile(
        metadata=Metadata(format="test", provenance=provenance, cores=cores),
        **{name: table(name, held) for name, held in rows.items()},
    )


def test_a_profile_with_the_required_columns_only(tmp_path: Path) -> None:
    before = small(
        instructions=[instruction(10, 20), instruction(15, 30, opcode="OP_0xEE"), instruction(40, 50)],
        dma_packets=[packet(0, 100), packet(5, 50)],
    )
    after = through_file(before, tmp_path)
    for name in ("instructions", "dma_packets"):
        held, got = getattr(before, name), getattr(after, name)
        assert held.to_pylist() == got.select(held.column_names).to_pylist()
    assert after.instructions is not None
    assert after.instructions["start_ps"].to_pylist() == [10_000, 15_000, 40_000]
    # The two matmuls are one instruction that ran twice; no patch list says what of the stream is the compiler's.
    assert after.instructions["pc"].to_pylist() == [0, 1, 0]
    assert after.instructions["compiler_pc"].to_pylist() == [None, None, None]


def test_a_window_that_does_not_begin_at_zero(tmp_path: Path) -> None:
    before = small(instructions=[instruction(510, 520)])
    before = replace(
        before,
        metadata=replace(
            before.metadata, cores=(Core(core=0, subgraph="sg00", window_start_ts=500, window_end_ts=1000),)
        ),
    )
    after = through_file(before, tmp_path)
    assert after.instructions is not None
    assert after.instructions["start_ts"].to_pylist() == [10]
    assert after.metadata.cores[0].window_end_ts == 500


def test_losses_are_kept(tmp_path: Path) -> None:
    before = small(
        instructions=[instruction(10 * place, 10 * place + 5) for place in range(5)],
        semaphores=[{"timestamp": place, "pcore_idx": 0, "id": "S[4] (Scalar)", "value": place} for place in range(5)],
    )
    before = replace(
        before,
        metadata=replace(before.metadata, dropped_record_count=3),
        issues=(CaptureIssue("DQ024", 2, ""),),
    )
    after = through_file(before, tmp_path)
    assert after.metadata.dropped_record_count == 3
    assert [(issue.code, issue.count) for issue in after.issues] == [("DQ001", 3), ("DQ024", 2)]


def test_wait_beyond_the_counter_is_its_largest(tmp_path: Path) -> None:
    """65,535 ticks of 1.2 GHz: 54,612 ns."""
    after = through_file(small(instructions=[instruction(10, 20, evt_wait_time_ns=10**9)]), tmp_path)
    assert after.instructions is not None
    assert after.instructions["evt_wait_time_ns"].to_pylist() == [54_612]


@pytest.mark.parametrize(
    ("tables", "reason"),
    [
        (
            {"instructions": [instruction(10, 20, opcode="NO_SUCH_OPCODE")]},
            "no opcode byte is known for 'NO_SUCH_OPCODE'",
        ),
        ({"instructions": [instruction(10, 20, engine="quantum")]}, "no engine 'quantum'"),
        ({"instructions": [instruction(10, 1002)]}, "ends after the window"),
        ({"instructions": [instruction(-1, 20)]}, "begins before the window"),
        ({"instructions": [instruction(20, 10)]}, "ends before it starts"),
        ({"instructions": [instruction(10, 90, pc=3), instruction(20, 30, pc=3)]}, "overtake each other"),
        (
            {"instructions": [instruction(10, 20, pc=3), instruction(30, 40, pc=3, opcode="COPY")]},
            "differ in opcode",
        ),
        (
            {"instructions": [instruction(10, 20, pc=3, compiler_pc=9), instruction(30, 40, pc=4, compiler_pc=8)]},
            "runs backward",
        ),
        ({"instructions": [instruction(10, 20, pc=1 << 20)]}, "beyond index"),
        (
            {"instructions": [instruction(10, 20, opcode="DMA_DIRECT2D", hbm_read_bytes=1_000_003)]},
            "1000003 bytes in one instruction",
        ),
        ({"dma_packets": [packet(10, 90, engine_idx=1), packet(20, 30, engine_idx=1)]}, "overtake each other"),
        ({"dma_packets": [packet(10, 20, transfer_bytes=1 << 16)]}, "size or index"),
        ({"dma_packets": [packet(10, 20, engine_idx=2, queue_idx=16)]}, "cannot tell apart"),
        (
            {"throttle": [{"timestamp": 0, "duration": 10, "k": 4, "n": 8}]},
            "leave a gap",
        ),
        ({"semaphores": [{"timestamp": 5, "pcore_idx": 0, "id": "five", "value": 1}]}, "no number"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_no_ntff_can_hold_is_refused(tables: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=reason):
        write_ntff(small(**tables), tmp_path / "refused.ntff")


def test_cores_of_different_windows_are_refused(tmp_path: Path) -> None:
    before = small()
    cores = (*before.metadata.cores, Core(core=1, subgraph="sg01", window_start_ts=0, window_end_ts=7))
    with pytest.raises(ProfileError, match="one window"):
        write_ntff(replace(before, metadata=replace(before.metadata, cores=cores)), tmp_path / "refused.ntff")

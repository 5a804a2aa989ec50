"""The NTFF reader against the vendor's own decode of the same captures, and against the older containers' own clocks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.readers import vendor
from trnprof.errors import InputDataError, InputMissingError
from trnprof.intervals import union
from trnprof.profile import WAIT_OPCODES, Profile, Provenance
from trnprof.readers.ntff import read_ntff, read_ntff_alone

ENGINES = ("tensor", "vector", "scalar", "gpsimd", "sync")


@dataclass(frozen=True)
class Case:
    """One capture, read by us and by the vendor."""

    path: Path
    ours: Profile
    theirs: dict[str, Any]

    def rows(self, table: str, core: int) -> list[dict[str, Any]]:
        found = self.ours.core_rows(table, core)
        assert found is not None
        return found.to_pylist()


def _cases(pairs: list[tuple[Path, Path]]) -> list[Case]:
    assert pairs, "no capture with the vendor's JSON beside it"
    return [Case(capture, read_ntff_alone(capture), vendor.load(report)) for capture, report in pairs]


@pytest.fixture(scope="module")
def cases(captures: Path) -> list[Case]:
    return _cases(vendor.decoded_captures(captures))


@pytest.fixture(scope="module")
def public_cases(public_captures: Path) -> list[Case]:
    return _cases(vendor.decoded_public_captures(public_captures))


def check_window(case: Case) -> None:
    assert [(core.window_start_ts, core.window_end_ts) for core in case.ours.metadata.cores] == [
        (0, case.theirs["metadata"][0]["last_hw_timestamp"])
    ] * case.theirs["metadata"][0]["num_physical_cores"]


def check_instructions(case: Case) -> None:
    """Every instruction of the vendor's table, and as many of each engine as the vendor counts.

    One capture's table lacks a DRAIN that its own active_time and model_info have; ours has it.
    """
    for core, model in enumerate(case.theirs["model_info"]):
        theirs = {
            (vendor.ENGINE_OF_LABEL[row["label"]], row["pc"], row["timestamp"]): row
            for row in case.theirs["instruction"]
            if vendor.core_of(row) == core
        }
        ours = {(row["engine"], row["pc"], row["start_ts"]): row for row in case.rows("instructions", core)}
        assert theirs.keys() <= ours.keys()
        for key, row in theirs.items():
            mine = ours[key]
            assert mine["end_ts"] - mine["start_ts"] == row["duration"], key
            assert mine["opcode"] == row["opcode"], key
            assert (mine["crc_in"], mine["crc_out"]) == (row["crc_in"], row["crc_out"]), key
            assert mine["compiler_pc"] == row.get("compiler_pc"), key
            # The vendor divides ticks by 1.2 in floating point; whole quotients sometimes come out one lower.
            assert 0 <= mine["evt_wait_time_ns"] - row["evt_wait_time"] <= 1, key
            assert mine["tensor_elements"] == row.get("elements"), key
            if row["opcode"] == "DMA_DIRECT2D":
                assert mine["hbm_read_bytes"] == row.get("hbm_read_bytes", 0), key
                assert mine["hbm_write_bytes"] == row.get("hbm_write_bytes", 0), key
        counts = Counter(engine for engine, _, _ in ours)
        assert counts == {engine: model[f"{engine}_engine_instruction_count"] for engine in ENGINES}
        assert len(ours) == len(case.rows("instructions", core)), "rows that are the same"


def check_flops(case: Case) -> None:
    assert case.ours.instructions is not None
    assert pc.sum(case.ours.instructions["raw_flops"]).as_py() == case.theirs["summary"][0]["hardware_flops"]


def check_semaphores(case: Case) -> None:
    for core in range(len(case.ours.metadata.cores)):
        theirs = Counter(
            (row["timestamp"], row["id"], row["value"])
            for row in case.theirs["semaphore_update"]
            if vendor.core_of(row) == core
        )
        assert Counter((row["timestamp"], row["id"], row["value"]) for row in case.rows("semaphores", core)) == theirs


def check_packets(case: Case) -> None:
    for core in range(len(case.ours.metadata.cores)):
        theirs = Counter(
            (
                int(row["dma_engine"]),
                int(row["dma_queue"]),
                row["timestamp"],
                row["duration"],
                row["transfer_size"],
                row["crc"],
                row["queue_type"],
            )
            for row in case.theirs["dma"]
            if vendor.core_of(row) == core
        )
        ours = Counter(
            (
                row["engine_idx"],
                row["queue_idx"],
                row["start_ts"],
                row["end_ts"] - row["start_ts"],
                row["transfer_bytes"],
                row["crc"],
                row["queue_type"],
            )
            for row in case.rows("dma_packets", core)
        )
        assert ours == theirs


def check_active_time(case: Case) -> None:
    """Union without wait opcodes, per engine and core, within 8 ns of the sum of the vendor's rows."""
    for core in range(len(case.ours.metadata.cores)):
        table = case.ours.core_rows("instructions", core)
        assert table is not None
        works = pc.invert(pc.is_in(table["opcode"].cast(pa.string()), pa.array(sorted(WAIT_OPCODES))))
        table = table.filter(works)
        for engine in ENGINES:
            rows = table.filter(pc.equal(table["engine"].cast(pa.string()), engine))
            active = union(rows["start_ts"].to_numpy(), rows["end_ts"].to_numpy()).length()
            theirs = [row for row in case.theirs["active_time"] if row["pcore_idx"] == core and row["engine"] == engine]
            assert theirs
            assert abs(active - sum(row["duration_ns"] for row in theirs)) <= 8, (case.path, core, engine)


def check_throttle(case: Case) -> None:
    theirs = sorted((row["timestamp"], row["k"], row["n"], f"activity_{row['type']}") for row in case.theirs["ham"])
    rows = [row for core in range(2) for row in case.rows("throttle", core)]
    assert [(row["timestamp"], row["k"], row["n"], row["type"]) for row in rows] == theirs
    durations = {row["timestamp"]: row["duration"] for row in case.theirs["ham"]}
    # The last level ends with the window; the vendor ends it up to a ns earlier.
    assert all(0 <= row["duration"] - durations[row["timestamp"]] <= 1 for row in rows)


CHECKS = (
    check_window,
    check_instructions,
    check_flops,
    check_semaphores,
    check_packets,
    check_active_time,
    check_throttle,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_agrees_with_the_vendor(cases: list[Case], check: Any) -> None:
    for case in cases:
        check(case)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_agrees_with_the_vendor_on_public_captures(public_cases: list[Case], check: Any) -> None:
    for case in public_cases:
        check(case)


def test_metadata(captures: Path) -> None:
    """The figures are those of the vendor's JSON for the same capture (neff_header, profile_info, summary)."""
    profile = read_ntff_alone(captures / "fused_fp32_s512" / "step.ntff")
    known = profile.metadata
    assert (known.format, known.format_version, known.provenance) == ("ntff", "6", Provenance.MEASURED_DEVICE)
    assert (known.hardware, known.instance_type) == ("trn2", "trn2.3xlarge")
    assert (known.neff_uuid, known.neff_path) == ("858910c24e1f4fc783a881c09fb52205", "fused.neff")
    assert known.versions["runtime"] == "2.30.51 (faafe26f0401e2d1d9cec13866f859b15b529d1e)"
    assert known.versions["driver"] == "2.26.0"
    assert [(core.subgraph, core.neuroncore_idx, core.neuron_device_idx) for core in known.cores] == [
        ("sg00", 4, 0),
        ("sg01", 5, 0),
    ]
    assert known.dropped_record_count == 0
    assert known.dge_notifications is False
    # summary.dma_queue_count counts 34 rings of sg00 and one of sg01.
    assert Counter(queue.core for queue in known.static_dma) == {0: 34, 1: 1}
    assert {queue.name for queue in known.static_dma} == {
        "qGpSimdDynamic",
        "qSyncDynamicHW",
        "qScalarTable",
        "qDveTable",
    }


def test_issues_of_a_clean_capture(captures: Path) -> None:
    """Nothing is lost but a few semaphore updates (their records carry the overflow flag), and dynamic DMAs are unnamed."""
    profile = read_ntff_alone(captures / "fused_fp32_s512" / "step.ntff")
    assert [(issue.code, issue.count) for issue in profile.issues] == [("DQ007", 464), ("DQ024", 3)]


def test_unnamed_opcodes_are_counted(captures: Path) -> None:
    profile = read_ntff_alone(captures / "moe_megakernel" / "step.ntff")
    (issue,) = [issue for issue in profile.issues if issue.code == "DQ006"]
    assert issue.count == 416 + 178 + 144 + 144
    assert issue.detail == "ALU_OP x 416, MEMSET x 178, MOVE x 144, TENSOR_TENSOR x 144"


def test_tables_are_sorted(captures: Path) -> None:
    for path in sorted(captures.glob("*/step.ntff")):
        profile = read_ntff_alone(path)
        for name, time in (("instructions", "start_ts"), ("dma_packets", "start_ts"), ("semaphores", "timestamp")):
            table = getattr(profile, name)
            core, start = table["pcore_idx"].to_numpy().astype(np.int64), table[time].to_numpy()
            assert np.array_equal(np.lexsort((start, core)), np.arange(len(core)))


def test_rows_lie_in_the_window(captures: Path) -> None:
    for path in sorted(captures.glob("*/step.ntff")):
        profile = read_ntff_alone(path)
        end = profile.metadata.cores[0].window_end_ts
        for table in (profile.instructions, profile.dma_packets):
            assert table is not None
            assert pc.min(table["start_ts"]).as_py() >= 0
            assert pc.max(table["end_ts"]).as_py() <= end
            # ns are ps rounded down, start and duration each.
            start, stop = table["start_ps"].to_numpy(), table["end_ps"].to_numpy()
            assert np.array_equal(table["start_ts"].to_numpy(), start // 1000)
            assert np.array_equal(table["end_ts"].to_numpy(), start // 1000 + (stop - start) // 1000)


def test_waits_name_what_ends_them(captures: Path) -> None:
    """In the fused kernel the GpSimd queue's first load (semaphore 24) is awaited by the tensor engine, as >= 16."""
    table = read_ntff_alone(captures / "fused_fp32_s512" / "step.ntff").instructions
    assert table is not None
    waits = [
        (row["wait_condition"], row["wait_value"])
        for row in table.to_pylist()
        if row["wait_semaphore_idx"] == 24 and row["engine"] == "tensor"
    ]
    assert (">=", 16) in waits


def test_neff_beside_the_capture_is_joined(public_captures: Path) -> None:
    """Captures of version 5 lie beside their NEFFs; one of them recorded its uuid up to the first zero byte only."""
    joined = 0
    for path in sorted(public_captures.glob("asst4-trainium2/part*/*.ntff")):
        profile = read_ntff(path)
        assert profile.metadata.versions["compiler"] == "2.21.18209.0+043b1bf7"
        assert "DQ030" not in {issue.code for issue in profile.issues}, "opcodes of capture and NEFF differ"
        joined += 1
    assert joined == 14


def test_other_neff_is_refused(public_captures: Path) -> None:
    folder = public_captures / "asst4-trainium2/part2"
    with pytest.raises(InputDataError, match="uuid") as caught:
        read_ntff(folder / "conv2d_4_float16_smaller.ntff", neff=folder / "conv2d_4_float32_smaller.neff")
    assert caught.value.code == "DQ008"


def test_older_containers(public_captures: Path) -> None:
    """Versions 4 and 5: 834 packets and 3,072,648 bytes are what the vendor's profiler prints for stream_256k_fd1k."""
    profile = read_ntff_alone(public_captures / "asst4-trainium2/part1/stream_256k_fd1k.ntff")
    assert profile.metadata.format_version == "5"
    packets = profile.dma_packets
    assert packets is not None
    assert (packets.num_rows, pc.sum(packets["transfer_bytes"]).as_py()) == (834, 3_072_648)
    assert "DQ018" in {issue.code for issue in profile.issues}
    # The execution's duration is the metadata's, 26,639,959 ps.
    assert profile.metadata.cores[0].window_end_ts == 26_639


def test_older_containers_read_whole(public_captures: Path) -> None:
    for path in sorted(public_captures.rglob("*.ntff")):
        profile = read_ntff_alone(path)
        assert profile.instructions is not None
        assert profile.dma_packets is not None
        assert profile.instructions.num_rows > 300
        assert {issue.code for issue in profile.issues} <= {"DQ006", "DQ007", "DQ018", "DQ019", "DQ024"}


def test_trainium1_clocks_meet(public_captures: Path) -> None:
    """Trainium1's DMA engines and its cores count on clocks of their own: a DMA's semaphore follows its 4-byte write.

    On Trainium2, which has one clock, it does so by 0.30 to 0.42 us. Converted, Trainium1's stay within 30 ns of each
    other, on clocks 600 s apart.
    """
    for path in sorted(public_captures.glob("history/waahm7+asst4-trainium/*.ntff")):
        profile = read_ntff_alone(path)
        assert (profile.metadata.hardware, profile.metadata.format_version) == ("trn1", "4")
        assert profile.dma_packets is not None
        assert profile.semaphores is not None
        writes = sorted(
            row["end_ps"]
            for row in profile.dma_packets.to_pylist()
            if row["transfer_bytes"] == 4 and row["queue_type"] == "input"
        )
        updates = sorted(
            row["timestamp_ps"]
            for row in profile.semaphores.to_pylist()
            if row["update_source"] == "axi" and row["semaphore_idx"] >= 8 and row["update_operation_type"] == "sem_inc"
        )
        assert len(writes) == len(updates) > 40
        delays = np.array(updates) - np.array(writes)
        assert delays.min() > 130_000
        assert delays.max() < 170_000


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputMissingError, match="no such file"):
        read_ntff_alone(tmp_path / "absent.ntff")

"""Real legacy JSONs: the vendor's own rows, counted and summed here without the reader."""

from __future__ import annotations

import gzip
import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.table_profiles import rows_of
from trnprof.profile import Profile, Provenance
from trnprof.readers import read_profile
from trnprof.readers.legacy_json import read_legacy_json

REAL = (
    "baseline_bf16_s1024",
    "baseline_fp32_s1024",
    "baseline_fp32_s512",
    "fused_bf16_s512",
    "fused_fp32_s1024",
    "fused_fp32_s512",
)


@pytest.fixture(scope="module", params=REAL)
def real(captures: Path, request: pytest.FixtureRequest) -> tuple[dict[str, Any], Profile]:
    path = captures / request.param / "neuron_profile.json.gz"
    return json.loads(gzip.decompress(path.read_bytes())), read_profile(path)


def test_real_row_counts_and_sums(real: tuple[dict[str, Any], Profile]) -> None:
    raw, profile = real
    for name, legacy in (
        ("instructions", "instruction"),
        ("dma_packets", "dma"),
        ("semaphores", "semaphore_update"),
        ("throttle", "ham"),
    ):
        assert len(rows_of(profile, name)) == len(raw[legacy])
    rows = rows_of(profile, "instructions")
    found: Counter[tuple[object, object]] = Counter()
    expected: Counter[tuple[object, object]] = Counter()
    for row in rows:
        found[row["pcore_idx"], row["engine"]] += row["end_ts"] - row["start_ts"]  # type: ignore[operator]
    for line in raw["instruction"]:
        expected[int(line["subgraph"][2:]), line["subgroup"].lower()] += line["duration"]
    assert found == expected
    for ours, theirs in (
        ("hbm_read_bytes", "hbm_read_bytes"),
        ("hbm_write_bytes", "hbm_write_bytes"),
        ("tensor_elements", "elements"),
        ("evt_wait_time_ns", "evt_wait_time"),
    ):
        assert sum(row[ours] or 0 for row in rows) == sum(line.get(theirs, 0) for line in raw["instruction"])  # type: ignore[misc]
    assert sum(row["raw_flops"] or 0 for row in rows) == raw["summary"][0]["hardware_flops"]  # type: ignore[misc]
    assert {row["id"] for row in rows} == {line["id"] for line in raw["instruction"]}
    assert sum(row["compiler_pc"] is not None for row in rows) == sum(
        "compiler_pc" in line for line in raw["instruction"]
    )
    packets = rows_of(profile, "dma_packets")
    by_queue: Counter[tuple[object, object]] = Counter()
    for row in packets:
        by_queue[row["engine_idx"], row["queue_type"]] += row["transfer_bytes"]  # type: ignore[operator]
    direct: Counter[tuple[object, object]] = Counter()
    for line in raw["dma"]:
        direct[int(line["dma_engine"]), line["queue_type"]] += line["transfer_size"]
    assert by_queue == direct


def test_real_windows_and_facts(real: tuple[dict[str, Any], Profile]) -> None:
    raw, profile = real
    metadata = profile.metadata
    assert profile.issues == (), "the vendor's own profile is clean"
    assert metadata.provenance is Provenance.MEASURED_DEVICE
    assert (metadata.format, metadata.format_version) == ("legacy-json", "6")
    assert [(core.core, core.subgraph, core.neuroncore_idx) for core in metadata.cores] == [
        (0, "sg00", 4),
        (1, "sg01", 5),
    ]
    for core in metadata.cores:
        assert core.window_start_ts == 0
        assert (
            core.window_end_ts == raw["metadata"][0]["last_hw_timestamp"] == int(raw["summary"][0]["total_time"] * 1e9)
        )
    assert (metadata.hardware, metadata.instance_type) == ("trn2", "trn2.3xlarge")
    assert metadata.clock_hz == {"tensor": 2_400_000_000, "base": 1_200_000_000}
    assert (metadata.hbm_bandwidth_bytes_per_s, metadata.dma_bandwidth_bytes_per_s) == (716 * 10**9, 435 * 10**9)
    assert metadata.dge_notifications is False
    assert metadata.execution_index == 2
    assert metadata.summary == raw["summary"][0]
    assert len(metadata.static_dma) == len(raw["dma_queues_info"])
    assert rows_of(profile, "collectives") == []
    assert profile.dma_transfers is None
    assert profile.sources is None


def test_real_waits_and_updates_agree_with_the_text(real: tuple[dict[str, Any], Profile]) -> None:
    _, profile = real
    rows = rows_of(profile, "instructions")
    assert any(row["wait_condition"] == "event" for row in rows)
    for row in rows:
        text = str(row["operands"])
        printed = re.findall(r"([SE])\[(\d+)\](?: \(\w+\))?(?:==|>=)(\d+)", text)
        assert (row["wait_semaphore_idx"] is not None) == bool(printed)
        if printed:
            kind, number, value = printed[0]
            assert row["wait_semaphore_idx"] == int(number)
            assert row["wait_value"] == (int(value) if kind == "S" else None)
            assert (row["wait_condition"] == "event") == (kind == "E")
        updated = re.findall(r"S\[(\d+)\][^=<>]*?(?:\+\+|--|\+?=\d+)@complete| semaphore=(\d+) ", text)
        assert row["update_semaphore_idx"] == (int(updated[0][0] or updated[0][1]) if updated else None)


def test_real_semaphore_numbers(real: tuple[dict[str, Any], Profile]) -> None:
    _, profile = real
    for row in rows_of(profile, "semaphores"):
        assert str(row["semaphore_idx"]) in re.findall(r"\d+", str(row["id"]))[:1]


def test_real_throttling_agrees_with_the_summary(real: tuple[dict[str, Any], Profile]) -> None:
    raw, profile = real
    held = sum(row["duration"] for row in rows_of(profile, "throttle") if row["k"] != row["n"])  # type: ignore[misc]
    assert held == raw["summary"][0]["throttle_active_nc0_time_ns"]
    total = raw["metadata"][0]["last_hw_timestamp"]
    share = raw["summary"][0]["throttle_activity_1_active_time_nc0_percent"]
    named = sum(row["duration"] for row in rows_of(profile, "throttle") if row["type"] == "activity_1")  # type: ignore[misc]
    assert named == pytest.approx(share * total, abs=5)


def test_a_real_capture_is_read_in_well_under_half_a_second(captures: Path) -> None:
    path = captures / "baseline_fp32_s1024" / "neuron_profile.json.gz"
    times = []
    for _ in range(3):
        started = time.process_time()
        read_legacy_json(path)
        times.append(time.process_time() - started)
    assert min(times) < 0.5

"""The main job on real captures: what the vendor's own JSON of the same capture says, and how the account adds up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run

WITH_VENDOR_JSON = (
    "baseline_bf16_s1024",
    "baseline_fp32_s1024",
    "baseline_fp32_s512",
    "fused_bf16_s512",
    "fused_fp32_s1024",
    "fused_fp32_s512",
)


def anatomy(trnprof: Run, path: Path, *options: str) -> dict:  # type: ignore[type-arg]
    result = trnprof("anatomy", path, "--format", "json", *options)
    assert result.returncode == 0, result.stderr
    assert len(result.stdout) < 8192, "an agent's answer stays under 8 KiB"
    return json.loads(result.stdout)


@pytest.mark.parametrize("name", WITH_VENDOR_JSON)
def test_both_readers_give_the_same_parts(trnprof: Run, captures: Path, name: str) -> None:
    """Within 10 ns by the project's aim; seen equal. Waits have the same producers."""
    native = anatomy(trnprof, captures / name / "step.ntff")
    vendor = anatomy(trnprof, captures / name / "neuron_profile.json.gz")
    assert len(native["result"]["cores"]) == len(vendor["result"]["cores"]) == 2
    for ours, theirs in zip(native["result"]["cores"], vendor["result"]["cores"], strict=True):
        assert ours["window_ns"] == theirs["window_ns"]
        assert ours["parts_ns"] == theirs["parts_ns"]
        assert ours["dma"] == theirs["dma"]
        assert ours["work_ns"] == theirs["work_ns"]
        assert ours["wait_producers"] == theirs["wait_producers"]
        assert ours["semaphore_update_count"] == theirs["semaphore_update_count"]


@pytest.mark.parametrize("name", [*WITH_VENDOR_JSON, "moe_megakernel"])
def test_parts_add_up_on_every_capture(trnprof: Run, captures: Path, name: str) -> None:
    for bandwidth in ("measured", "spec", "1e15"):
        for core in anatomy(trnprof, captures / name / "step.ntff", "--bandwidth", bandwidth)["result"]["cores"]:
            assert sum(core["parts_ns"].values()) == core["window_ns"]
            assert min(core["parts_ns"].values()) >= 0
            assert (
                sum(core["work_ns"][key] for key in ("data_only", "compute_only", "both")) == core["work_ns"]["total"]
            )
            assert sum(entry["wait_ns"] for entry in core["wait_producers"]) == core["parts_ns"]["in_kernel_wait"]


def test_a_floor_above_the_work_is_an_error_entry_never_clamped(trnprof: Run, captures: Path) -> None:
    """At 1 GB/s the 17.9 MB of this capture would take 17.9 ms; it worked for 85 us."""
    path = captures / "baseline_bf16_s1024" / "step.ntff"
    envelope = anatomy(trnprof, path, "--bandwidth", "1e9")
    core = envelope["result"]["cores"][0]
    assert core["parts_ns"]["memory_floor"] is None
    assert core["parts_ns"]["busy_beyond_floor"] == core["work_ns"]["total"]
    (entry,) = [entry for entry in envelope["data_quality"] if entry["code"] == "DQ009"]
    assert entry["severity"] == "error" and "--bandwidth" in entry["fix"]
    assert trnprof("anatomy", path, "--bandwidth", "1e9", "--strict").returncode == 1


def test_the_vendor_s_summary_figures(trnprof: Run, captures: Path) -> None:
    """total_time, <engine>_active_time, hbm bytes of the vendor's summary, in its units, against ours in ns."""
    import gzip

    for name in WITH_VENDOR_JSON:
        with gzip.open(captures / name / "neuron_profile.json.gz") as file:
            document = json.load(file)
        (summary,) = document["summary"]
        cores = anatomy(trnprof, captures / name / "step.ntff")["result"]["cores"]
        assert sum(core["hbm"]["read_bytes"] for core in cores) == summary["hbm_read_bytes"]
        assert sum(core["hbm"]["write_bytes"] for core in cores) == summary["hbm_write_bytes"]
        for index, core in enumerate(cores):
            # last_hw_timestamp is the window's end where first_hw_timestamp is 0.
            assert core["window_ns"] == document["metadata"][0]["last_hw_timestamp"]
            for engine, account in core["engines"].items():
                rows = [
                    row["duration_ns"]
                    for row in document["active_time"]
                    if row["pcore_idx"] == index and row["engine"] == engine
                ]
                # Each of the vendor's rows is rounded down once more: at most 1 ns a row beyond its 8 ns.
                assert abs(account["active_ns"] - sum(rows)) <= 8 + len(rows)


def test_throttling_is_said(trnprof: Run, captures: Path) -> None:
    envelope = anatomy(trnprof, captures / "baseline_fp32_s1024" / "step.ntff")
    (entry,) = [entry for entry in envelope["data_quality"] if entry["code"] == "DQ010"]
    assert entry["count"] == envelope["result"]["cores"][0]["throttle"]["interval_count"] > 0
    assert "4/8" in entry["message"]


def test_a_folder_of_captures_is_analysed_whole(trnprof: Run, captures: Path) -> None:
    """Each capture once, the cores of each named by their input."""
    envelope = anatomy(trnprof, captures / "fused_fp32_s512")
    assert [entry["format"] for entry in envelope["inputs"]] == ["legacy-json", "ntff"]
    assert [core["input"] for core in envelope["result"]["cores"]] == [0, 0, 1, 1]


def test_info_counts_what_the_vendor_counts(trnprof: Run, captures: Path) -> None:
    import gzip

    with gzip.open(captures / "fused_fp32_s512" / "neuron_profile.json.gz") as file:
        document = json.load(file)
    result = json.loads(trnprof("info", captures / "fused_fp32_s512" / "step.ntff", "--format", "json").stdout)
    counts = result["result"]["row_counts"]
    assert counts["instructions"] == len(document["instruction"])
    assert counts["dma_packets"] == len(document["dma"])
    assert counts["semaphores"] == len(document["semaphore_update"])
    assert result["result"]["hardware"] == "trn2" and result["result"]["instance_type"] == "trn2.3xlarge"

"""Predicted beside measured: bytes, packets, time, and source lines where a capture names them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tests.analyzers.test_dma_prediction import load, predict, site
from trnprof.analyzers.anatomy import measure_anatomy
from trnprof.analyzers.prediction_error import PredictionError, compare_prediction
from trnprof.hardware import Bandwidth
from trnprof.profile import Core, Metadata, Profile, Provenance, make_table

BANDWIDTH = Bandwidth(336_000_000_000, "test", "measured")


def capture(
    *, locations: list[str] | None = None, names: list[str] | None = None, sources: dict | None = None
) -> Profile:
    """Two DMAs of 262,144 B read, 128 packets of 2,048 B on hardware queues each, 16 semaphore packets each."""
    columns: dict[str, object] = {
        "start_ts": np.array([0, 1000], np.int64),
        "end_ts": np.array([500, 1500], np.int64),
        "pcore_idx": np.array([0, 0], np.int16),
        "engine": pa.array(["sync", "sync"]),
        "opcode": pa.array(["DMA_DIRECT2D", "DMA_DIRECT2D"]),
        "hbm_read_bytes": np.array([262_144, 262_144], np.int64),
        "hbm_write_bytes": np.array([0, 0], np.int64),
    }
    if locations:
        columns["bir_debug_info_source_location"] = pa.array(locations)
    if names:
        columns["kernel_instruction_name"] = pa.array(names)
    packet_count = 2 * 128 + 2 * 16 + 1
    sizes = [2048] * 256 + [4] * 32 + [16384]
    kinds = ["hardware_dynamic"] * 288 + ["instruction"]
    return Profile(
        metadata=Metadata(
            format="test",
            provenance=Provenance.MODELLED,
            cores=(Core(core=0, subgraph="sg00", window_start_ts=0, window_end_ts=4000),),
        ),
        instructions=make_table("instructions", columns),
        dma_packets=make_table(
            "dma_packets",
            {
                "start_ts": np.arange(packet_count, dtype=np.int64) * 7,
                "end_ts": np.arange(packet_count, dtype=np.int64) * 7 + 7,
                "pcore_idx": np.zeros(packet_count, np.int16),
                "transfer_bytes": np.array(sizes, np.int64),
                "queue_type": pa.array(kinds),
            },
        ),
        sources=None if sources is None else make_table("sources", sources),
    )


def compared(profile: Profile, dmas: int = 2) -> PredictionError:
    predicted = predict([load(where=site(12 + i), sequence=i) for i in range(dmas)])
    return compare_prediction(predicted, profile, measure_anatomy(profile, "trn2", BANDWIDTH))


def test_bytes_packets_and_time() -> None:
    error = compared(capture())
    read, written, dmas = error.counts
    assert (read.predicted, read.measured, read.error_share) == (524_288, 524_288, 0.0)
    assert (written.predicted, written.measured) == (0, 0)
    assert (dmas.predicted, dmas.measured) == (2, 2)
    assert [(entry.mode, entry.bytes, entry.predicted, entry.measured) for entry in error.packets] == [
        ("hwdge", 2048, 256, 256),
        ("hwdge", 4, 32, 32),
    ]
    (time,) = error.times
    assert time.measured_ns == 256 * 7, "no semaphore writes, no instruction fetch"
    assert time.within and time.error_share == pytest.approx((time.predicted.mid - 1792) / 1792)  # type: ignore[union-attr]
    assert error.lines == ()
    assert any("no source lines" in note for note in error.notes)


def test_a_wrong_prediction_shows() -> None:
    error = compared(capture(), dmas=3)
    assert error.counts[0].error_share == pytest.approx(0.5)
    assert (error.packets[0].predicted, error.packets[0].measured) == (384, 256)


@pytest.mark.parametrize(
    "profile",
    [
        capture(locations=["/home/u/project/kernel.py:12", "kernel.py:13:4,outer.py:99"]),
        capture(
            names=["I-1", "I-2"],
            sources={
                "kernel_instruction_name": pa.array(["I-1", "I-1", "I-2"]),
                "file_path": pa.array(["/home/u/outer.py", "/home/u/kernel.py", "kernel.py"]),
                "line_number": np.array([3, 12, 13], np.int64),
                "stack_frame_depth": np.array([1, 0, 0], np.int64),
            },
        ),
    ],
    ids=["location column", "sources table"],
)
def test_lines_join_by_file_name_and_line(profile: Profile) -> None:
    rows = {row.source: row for row in compared(profile, dmas=3).lines}
    assert set(rows) == {"kernel.py:12", "kernel.py:13", "kernel.py:14"}
    both = rows["kernel.py:12"]
    assert (both.predicted_bytes, both.measured_bytes, both.predicted_dma_count, both.measured_dma_count) == (
        262_144,
        262_144,
        1,
        1,
    )
    assert (rows["kernel.py:14"].predicted_bytes, rows["kernel.py:14"].measured_bytes) == (262_144, None)


def test_a_capture_without_packets_compares_what_it_has() -> None:
    profile = Profile(metadata=capture().metadata, instructions=capture().instructions)
    error = compared(profile)
    assert error.counts[0].measured == 524_288
    assert error.packets == () and error.times[0].measured_ns is None and error.times[0].within is None

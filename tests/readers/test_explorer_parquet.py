"""Explorer's Parquet tables, made here as the vendor makes them: names bound at run time, units, split and absent tables."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.table_profiles import column_names, differences, issue, rows_of
from trnprof.errors import InputDataError, InputMissingError
from trnprof.profile import Profile, Provenance
from trnprof.readers import read_profile
from trnprof.readers.explorer_parquet import read_explorer_parquet
from trnprof.readers.legacy_json import read_legacy_json
from trnprof.readers.marker import MARKER_NAME
from trnprof.writers.explorer_parquet import write_explorer_parquet

METADATA = {
    "profile_schema_version": ["7.4.0"],
    "num_physical_cores": [1],
    "first_hw_timestamp": [0],
    "last_hw_timestamp": [1000],
}
INSTRUCTION = {
    "start_ts": [10, 30, 50],
    "end_ts": [20, 45, 90],
    "duration_ns": [10, 15, 40],
    "engine": ["Tensor", "Vector", "GpSimd"],
    "opcode": ["MATMUL", "COPY", "EVENT_SEMAPHORE"],
    "pcore_idx": [0, 0, 0],
    "operands": [
        "S[5] (Tensor)++@complete acc_flags=3",
        " S[5] (Tensor)>=4 src=x",
        "setter=0 $S[2]==8 $S[2]=0@complete",
    ],
}
DMA = {
    "start_ts": [5, 6],
    "end_ts": [9, 12],
    "transfer_bytes": [4096, 512],
    "queue_type": ["software_dynamic", "data"],
    "engine_idx": [64, 65],
    "pcore_idx": [0, 0],
}
Columns = dict[str, object]


def write(folder: Path, **tables: Columns) -> Path:
    """A directory of these tables (a trailing number in a name is a part: Instruction_0)."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    return folder


def read(tmp_path: Path, **tables: Columns) -> Profile:
    """The profile of a directory with these tables, Metadata as above unless given."""
    return read_explorer_parquet(write(tmp_path / "p@latest", **{"Metadata": dict(METADATA), **tables}))


def test_the_tables_fill_the_profile(tmp_path: Path) -> None:
    profile = read(
        tmp_path,
        Instruction=INSTRUCTION,
        DmaPacket=DMA,
        DmaPacketAggregated={
            "start_ts": [5],
            "end_ts": [12],
            "transfer_bytes": [4608],
            "source": ["[[INPUT]]"],
            "id": [7],
        },
        SemaphoreUpdate={"timestamp": [11], "id": ["S[8] (qSyncDynamicHW)"], "value": [16], "update_source": ["AXI"]},
        CcOp={
            "start_ts": [100],
            "end_ts": [150],
            "operation": ["AllReduce"],
            "op_id": [3],
            "algorithm_bandwidth": [1.5e9],
        },
        Throttle={"timestamp": [0], "duration": [500], "k": [4], "n": [8], "type": ["activity_1"]},
        KernelInstructions={
            "kernel_instruction_name": ["I-1:2"],
            "stack_frame_id": [4],
            "line_number": [17],
            "file_path": ["k.py"],
        },
        KernelStackFrames={"stack_frame_id": [4, 5], "fully_qualified_function_name": ["k.attention", "k.other"]},
        Warning={"message": ["Missing additional dynamic DMA metadata"], "category": ["Missing Data"]},
        Summary={"total_time": [1e-6], "static_dma_packet_count": [1], "mfu_estimated_percent": [float("nan")]},
        NeffHeader={"uuid": ["abc"], "network_name": ["file.neff"]},
        DmaQueuesInfo={"name": ["q"], "type": ["weights"], "pcore_idx": [0], "idx": [2], "engine_idx": [70]},
    )
    rows = rows_of(profile, "instructions")
    assert [row["engine"] for row in rows] == ["tensor", "vector", "gpsimd"]
    assert [row["update_semaphore_idx"] for row in rows] == [5, None, 2]
    assert [(row["wait_semaphore_idx"], row["wait_condition"], row["wait_value"]) for row in rows] == [
        (None, None, None),
        (5, ">=", 4),
        (2, "==", 8),
    ]
    assert sum(row["transfer_bytes"] for row in rows_of(profile, "dma_packets")) == 4608  # type: ignore[misc]
    assert rows_of(profile, "dma_transfers")[0]["source"] == "[[INPUT]]"
    assert rows_of(profile, "semaphores")[0]["semaphore_idx"] == 8
    assert rows_of(profile, "collectives")[0]["algorithm_bandwidth"] == 1.5e9
    assert rows_of(profile, "throttle") == [
        {"timestamp": 0, "duration": 500, "k": 4, "n": 8, "type": "activity_1", "pcore_idx": 0}
    ]
    (source,) = rows_of(profile, "sources")
    assert (source["function_name"], source["file_path"], source["line_number"]) == ("k.attention", "k.py", 17)
    metadata = profile.metadata
    assert metadata.dge_notifications is False
    assert (metadata.neff_uuid, metadata.neff_path) == ("abc", "file.neff")
    assert metadata.summary == {"total_time": 1e-6, "static_dma_packet_count": 1}, "NaN is not a value"
    assert [(queue.engine_idx, queue.queue_idx, queue.type) for queue in metadata.static_dma] == [(70, 2, "data")]
    assert metadata.format_version == "7.4.0"
    assert issue(profile, "DQ016") == (0, "")


def test_absent_tables_and_columns_were_not_captured(tmp_path: Path) -> None:
    profile = read(tmp_path, Instruction=INSTRUCTION)
    for name in ("dma_packets", "dma_transfers", "semaphores", "collectives", "throttle", "kernels", "sources"):
        assert getattr(profile, name) is None, name
    assert "hbm_read_bytes" not in column_names(profile, "instructions")


def test_an_absent_table_of_which_the_summary_counts_none_is_empty(tmp_path: Path) -> None:
    counts: Columns = {"cc_op_count": [0], "hbm_read_bytes": [7], "hbm_write_bytes": [9]}
    profile = read(tmp_path, Instruction=INSTRUCTION, Summary=counts)
    assert rows_of(profile, "collectives") == []
    assert profile.dma_packets is None
    assert (profile.metadata.cores[0].hbm_read_bytes, profile.metadata.cores[0].hbm_write_bytes) == (7, 9)


def test_split_tables_are_joined_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    parts = {f"Instruction_{part}": {**INSTRUCTION, "id": [3 * part, 3 * part + 1, 3 * part + 2]} for part in range(12)}
    profile = read(tmp_path, **parts)
    assert sorted(row["id"] for row in rows_of(profile, "instructions")) == list(range(36))  # type: ignore[type-var]


def test_parts_with_other_columns_join_to_nulls(tmp_path: Path) -> None:
    first = {**INSTRUCTION, "layer": ["a", "b", "a"]}
    profile = read(tmp_path, Instruction_0=first, Instruction_1={**INSTRUCTION, "start_ts": [11, 31, 51]})
    layers = [row["layer"] for row in rows_of(profile, "instructions")]
    assert layers.count(None) == 3
    assert layers.count("a") == 2


def test_a_missing_part_is_an_error(tmp_path: Path) -> None:
    for parts in ((0, 2), (1, 2)):
        folder = write(
            tmp_path / f"{parts}", Metadata=METADATA, **{f"Instruction_{part}": INSTRUCTION for part in parts}
        )
        with pytest.raises(InputDataError, match=r"Instruction_[01]\.parquet is missing"):
            read_explorer_parquet(folder)


def test_a_parent_that_holds_one_profile_is_that_profile(tmp_path: Path) -> None:
    write(tmp_path / "a@latest", Metadata=METADATA, Instruction=INSTRUCTION)
    (tmp_path / "notes").mkdir()
    assert len(rows_of(read_profile(tmp_path), "instructions")) == 3
    write(tmp_path / "b@latest", Metadata=METADATA, Instruction=INSTRUCTION)
    with pytest.raises(InputDataError, match="2 profiles"):
        read_explorer_parquet(tmp_path)


def test_older_names_are_bound(tmp_path: Path) -> None:
    older: Columns = {
        "start": [10],
        "duration": [5],
        "subgraph": ["sg00"],
        "engine": ["Tensor"],
        "opcode": ["MATMUL"],
        "evt_wait_time": [3],
        "elements": [128],
        "instruction_type": ["TRANSPOSE"],
    }
    profile = read(
        tmp_path, Instruction=older, DmaPacket={"start": [1], "end": [2], "transfer_size": [64], "dma_engine": ["64"]}
    )
    (row,) = rows_of(profile, "instructions")
    assert (row["start_ts"], row["end_ts"], row["evt_wait_time_ns"]) == (10, 15, 3)
    assert (row["tensor_elements"], row["raw_flops"], row["tensor_instruction_type"]) == (128, 256, "TRANSPOSE")
    (packet,) = rows_of(profile, "dma_packets")
    assert (packet["transfer_bytes"], packet["engine_idx"]) == (64, 64)


def test_the_current_name_wins_over_an_older_one(tmp_path: Path) -> None:
    profile = read(
        tmp_path, Instruction={**INSTRUCTION, "start": [7, 7, 7], "elements": [1, 1, 1], "tensor_elements": [2, 2, 2]}
    )
    assert [row["start_ts"] for row in rows_of(profile, "instructions")] == [10, 30, 50]
    assert {row["tensor_elements"] for row in rows_of(profile, "instructions")} == {2}


def fields(*units: tuple[str, str, str | None]) -> Columns:
    """A SchemaFields table."""
    return {
        "table_name": [table for table, _, _ in units],
        "field_name": [field for _, field, _ in units],
        "field_unit": pa.array([unit for _, _, unit in units], pa.string()),
    }


def test_b4_absolute_microseconds_in_text_keep_every_nanosecond(tmp_path: Path) -> None:
    rows: Columns = {
        "start_ts": ["1747123456789012.100", "1747123456789012.350"],
        "duration_ns": ["0.250", "0.150"],
        "engine": ["Tensor", "Tensor"],
        "opcode": ["A", "B"],
    }
    units = fields(("Instruction", "start_ts", "microseconds"), ("Instruction", "duration_ns", "microseconds"))
    profile = read(tmp_path, Metadata={"profile_schema_version": ["7.4.0"]}, Instruction=rows, SchemaFields=units)
    assert [(row["start_ts"], row["end_ts"]) for row in rows_of(profile, "instructions")] == [(0, 250), (250, 400)]
    assert profile.metadata.cores[0].window_end_ts == 400, "gap 0, compute 400, T 400"


@pytest.mark.parametrize(
    ("unit", "start", "end", "expected"),
    [
        ("nanoseconds", [10, 30], [20, 40], [(10, 20), (30, 40)]),
        ("microseconds", [1, 2], [2, 3], [(1000, 2000), (2000, 3000)]),
        ("picoseconds", [1999, 2001], [2999, 3000], [(1, 2), (2, 3)]),
        ("milliseconds", [0, 1], [1, 2], [(0, 10**6), (10**6, 2 * 10**6)]),
        # 1.23e-05 s is 12,300 ns, though 1.23e-05 * 1e9 is 12299.999999999998.
        ("seconds", [1.23e-05, 2.0e-05], [1.3e-05, 2.1e-05], [(12_300, 13_000), (20_000, 21_000)]),
    ],
)
def test_declared_units_are_converted(
    tmp_path: Path, unit: str, start: list[float], end: list[float], expected: list[tuple[int, int]]
) -> None:
    rows: Columns = {"start_ts": start, "end_ts": end, "engine": ["Sync"] * 2, "opcode": ["A"] * 2}
    units = fields(("Instruction", "start_ts", unit), ("Instruction", "end_ts", unit), ("Instruction", "opcode", None))
    stated = {**METADATA, "last_hw_timestamp": [10**9]}
    profile = read(tmp_path, Metadata=stated, Instruction=rows, SchemaFields=units)
    assert [(row["start_ts"], row["end_ts"]) for row in rows_of(profile, "instructions")] == expected


def test_an_unknown_unit_is_an_error_where_the_column_is_needed_and_not_captured_elsewhere(tmp_path: Path) -> None:
    rows = {**INSTRUCTION, "evt_wait_time_ns": [1, 2, 3]}
    with pytest.raises(InputDataError, match=r"Instruction\.start_ts is in 'fortnights'"):
        read(tmp_path, Instruction=rows, SchemaFields=fields(("Instruction", "start_ts", "fortnights")))
    profile = read(tmp_path, Instruction=rows, SchemaFields=fields(("Instruction", "evt_wait_time_ns", "fortnights")))
    assert "evt_wait_time_ns" not in column_names(profile, "instructions")
    assert issue(profile, "DQ016")[0] == 1


def test_a_missing_required_column_is_named(tmp_path: Path) -> None:
    for table, column in (
        ("Instruction", "opcode"),
        ("Instruction", "engine"),
        ("DmaPacket", "transfer_bytes"),
        ("DmaPacket", "end_ts"),
    ):
        whole = INSTRUCTION if table == "Instruction" else DMA
        columns = {name: values for name, values in whole.items() if name not in (column, "duration_ns")}
        with pytest.raises(InputDataError, match=f"{table} lacks a plain column {column}") as caught:
            read(tmp_path / f"{table}{column}", **{table: columns})
        assert caught.value.path is not None and caught.value.path.endswith(f"{table}.parquet")


def test_several_cores_need_to_be_told_apart(tmp_path: Path) -> None:
    stated: Columns = {**METADATA, "num_physical_cores": [2]}
    rows = {name: values for name, values in INSTRUCTION.items() if name != "pcore_idx"}
    with pytest.raises(InputDataError, match="pcore_idx though the profile has several cores"):
        read(tmp_path, Metadata=stated, Instruction=rows)
    profile = read(
        tmp_path,
        Metadata=stated,
        Instruction={**rows, "pcore_idx": [0, 1, 1]},
        CcOp={"start_ts": [1], "end_ts": [2], "operation": ["x"]},
    )
    assert [core.core for core in profile.metadata.cores] == [0, 1]
    assert [row["pcore_idx"] for row in rows_of(profile, "instructions")] == [0, 1, 1]
    assert "pcore_idx" not in column_names(profile, "collectives"), "a collective is the whole logical core's"


@pytest.mark.parametrize(("version", "noted"), [("7.4.0", 0), ("7.99.1", 0), ("12.0.1", 1), ("x", 1), (None, 1)])
def test_another_major_version_is_noted_and_read(tmp_path: Path, version: str | None, noted: int) -> None:
    stated = {**METADATA, "profile_schema_version": pa.array([version], pa.string())}
    profile = read(tmp_path, Metadata=stated, Instruction=INSTRUCTION)
    assert issue(profile, "DQ016")[0] == noted
    assert len(rows_of(profile, "instructions")) == 3


def test_the_window_is_the_executions_own_where_it_is_there(tmp_path: Path) -> None:
    one: Columns = {"execution_index": [0], "execution_start_ts": [10], "execution_end_ts": [110]}
    profile = read(tmp_path, Instruction=INSTRUCTION, ExecutionInfo=one)
    assert profile.metadata.cores[0].window_end_ts == 100
    assert [row["start_ts"] for row in rows_of(profile, "instructions")] == [0, 20, 40], "zero is the window's start"


def test_without_an_execution_the_window_is_the_traces(tmp_path: Path) -> None:
    before_v6: Columns = {
        "execution_index": [0],
        "execution_start_ts": pa.nulls(1, pa.int64()),
        "execution_end_ts": pa.nulls(1, pa.int64()),
    }
    stated = {**METADATA, "first_hw_timestamp": [5], "last_hw_timestamp": [105]}
    profile = read(tmp_path, Metadata=stated, Instruction=INSTRUCTION, ExecutionInfo=before_v6)
    assert profile.metadata.cores[0].window_end_ts == 100
    assert rows_of(profile, "instructions")[0]["start_ts"] == 5
    two: Columns = {"execution_index": [0, 1], "execution_start_ts": [5, 60], "execution_end_ts": [50, 105]}
    both = read(tmp_path, Metadata=stated, Instruction=INSTRUCTION, ExecutionInfo=two)
    assert both.metadata.cores[0].window_end_ts == 100
    assert issue(both, "DQ018")[0] == 1


def test_without_any_stated_window_it_runs_from_the_first_to_the_last_event(tmp_path: Path) -> None:
    for metadata in (
        {"profile_schema_version": ["7.4.0"]},
        {**METADATA, "first_hw_timestamp": [10**9], "last_hw_timestamp": [10**9 + 1]},
    ):
        profile = read(tmp_path, Metadata=metadata, Instruction=INSTRUCTION)
        assert profile.metadata.cores[0].window_end_ts == 80
        assert issue(profile, "DQ018")[0] == 1


def test_sampled_packets_are_noted(tmp_path: Path) -> None:
    counts: Columns = {
        "static_dma_packet_count": [10],
        "software_dynamic_dma_packet_count": [20],
        "hardware_dynamic_dma_packet_count": [70],
        "static_dma_size": [1000],
        "software_dynamic_dma_size": [2000],
        "hardware_dynamic_dma_size": [4608 - 3000],
        "dma_transfer_count": [1],
        "dma_transfer_total_bytes": [4608],
    }
    whole: Columns = {"start_ts": [5], "end_ts": [12], "transfer_bytes": [4608]}
    profile = read(tmp_path, DmaPacket=DMA, DmaPacketAggregated=whole, Summary=counts)
    count, detail = issue(profile, "DQ025")
    assert count == 98
    assert detail == "dma_packets: rows 2, in the summary 100 (98)", "bytes and transfers agree"


def test_lost_instructions_are_noted(tmp_path: Path) -> None:
    counts: Columns = {
        f"{engine}_engine_instruction_count": [2] for engine in ("tensor", "vector", "scalar", "gpsimd", "sync")
    }
    counts["tensor_engine_instruction_count"] = [40]
    profile = read(tmp_path, Instruction=INSTRUCTION, Summary=counts)
    count, detail = issue(profile, "DQ025")
    assert count == 39 + 2 + 2, "the scalar and sync engines have none of 2; one off at the edge is no loss"
    assert "tensor" in detail and "vector" not in detail


def test_a7_empty_text_and_a_packet_without_length(tmp_path: Path) -> None:
    packets = {**DMA, "end_ts": [5, 12], "id": ["", "7"]}
    profile = read(tmp_path, DmaPacket=packets)
    assert [row["id"] for row in rows_of(profile, "dma_packets")] == [None, 7]
    assert issue(profile, "DQ020") == (2, "dma_packets.id: 1 as text, 1 empty (2)")
    assert issue(profile, "DQ017")[0] == 1


def test_b1_b5_b6_odd_rows_as_in_the_json(tmp_path: Path) -> None:
    base = 10**15
    rows: Columns = {
        "start_ts": pa.array([base + 150, 0, base, base + 7], pa.int64()),
        "end_ts": pa.array([base + 300, 0, base + 100, base + 3], pa.int64()),
        "engine": ["Vector", "Scalar", "Tensor", "Sync"],
        "opcode": ["A"] * 4,
    }
    profile = read(tmp_path, Metadata={"profile_schema_version": ["7.4.0"]}, Instruction=rows)
    assert [(row["start_ts"], row["end_ts"]) for row in rows_of(profile, "instructions")] == [(0, 100), (150, 300)]
    assert issue(profile, "DQ011")[0] == 2, "one at zero, one that ends before it starts"
    floats: Columns = {**rows, "start_ts": [1.0, float("nan"), 3.0, float("inf")], "end_ts": [2.0, 2.0, 4.0, 5.0]}
    profile = read(tmp_path, Instruction=floats)
    assert [row["start_ts"] for row in rows_of(profile, "instructions")] == [1, 3]
    assert issue(profile, "DQ011")[0] == 2


def test_times_that_went_through_a_float_are_refused_once_nanoseconds_are_lost(tmp_path: Path) -> None:
    exact: Columns = {**INSTRUCTION, "start_ts": [1.0, 2.0, 2.0**53], "end_ts": [3.0, 4.0, 2.0**53]}
    assert rows_of(read(tmp_path, Instruction=exact), "instructions")[2]["start_ts"] == 2**53
    for odd in ([1.0, 2.0, 1.7e18], np.array([1, 2, 2**25], np.float32)):
        with pytest.raises(InputDataError, match=r"Instruction\.start_ts is (double|float).*too large to be exact"):
            read(tmp_path, Instruction={**INSTRUCTION, "start_ts": odd, "end_ts": [2**62] * 3})


def test_nullable_integers_that_pandas_made_floats_are_nulls(tmp_path: Path) -> None:
    rows = {**INSTRUCTION, "compiler_pc": [float("nan"), 0.0, 1.0], "id": [1.0, 2.0, 3.0]}
    profile = read(tmp_path, Instruction=rows)
    assert [row["compiler_pc"] for row in rows_of(profile, "instructions")] == [None, 0, 1]
    assert profile.issues == ()


def test_arrow_timestamps_and_large_text_are_understood(tmp_path: Path) -> None:
    rows: Columns = {
        "start_ts": pa.array([1, 2], pa.timestamp("us")),
        "end_ts": pa.array([2000, 3000], pa.timestamp("ns")),
        "engine": pa.array(["Tensor", "Sync"], pa.large_string()),
        "opcode": pa.array(["A", "B"]).dictionary_encode(),
        "operands": pa.array([b"S[1]>=2 \xff", b""], pa.binary()),
    }
    profile = read(tmp_path, Metadata={**METADATA, "last_hw_timestamp": [10**6]}, Instruction=rows)
    (first, second) = rows_of(profile, "instructions")
    assert (first["start_ts"], first["end_ts"], second["start_ts"], second["end_ts"]) == (1000, 2000, 2000, 3000)
    assert (first["operands"], second["operands"]) == ("S[1]>=2 \\xff", None)
    assert first["wait_semaphore_idx"] == 1


def test_bandwidths_and_clocks_are_whole_numbers_whatever_their_float(tmp_path: Path) -> None:
    stated: Columns = {
        **METADATA,
        "hbm_ddr_bandwidth": [716e9],
        "dma_ddr_bandwidth": pa.array([435e9], pa.float32()),
        "tensor_engine_clock_freq": pa.array([2.4], pa.float32()),
        "vector_engine_clock_freq": [0.96],
        "neuroncore_clock_freq": [1.4],
        "instance_type": ["trn1.32xlarge"],
        "explorer_version": ["2.31"],
        "neuroncore_idx": [3],
        "is_simulation": [True],
    }
    metadata = read(tmp_path, Metadata=stated, Instruction=INSTRUCTION).metadata
    assert metadata.hbm_bandwidth_bytes_per_s == 716 * 10**9
    assert metadata.dma_bandwidth_bytes_per_s == 435 * 10**9
    assert metadata.clock_hz == {"tensor": 2_400_000_000, "vector": 960_000_000, "base": 1_400_000_000}
    assert (metadata.hardware, metadata.versions, metadata.cores[0].neuroncore_idx) == ("trn1", {"profiler": "2.31"}, 3)
    assert metadata.provenance is Provenance.MODELLED, "the vendor says it is a simulation"


def test_functions_are_joined_by_core_and_frame(tmp_path: Path) -> None:
    frames: Columns = {
        "stack_frame_id": [1, 1, 2],
        "pcore_idx": [0, 1, 0],
        "fully_qualified_function_name": ["zero", "one", "two"],
        "file_path": ["f0", "f1", "f2"],
        "line_number": [10, 11, 12],
    }
    rows: Columns = {
        "kernel_instruction_name": ["a", "b", "c", "d"],
        "pcore_idx": [1, 0, 0, 1],
        "stack_frame_id": pa.array([1, 1, 9, None], pa.int64()),
        "file_path": pa.array(["own", None, None, None], pa.string()),
    }
    stated = {**METADATA, "num_physical_cores": [2]}
    profile = read(
        tmp_path, Metadata=stated, Instruction=INSTRUCTION, KernelInstructions=rows, KernelStackFrames=frames
    )
    found = [(row["function_name"], row["file_path"], row["line_number"]) for row in rows_of(profile, "sources")]
    assert found == [("one", "own", 11), ("zero", "f0", 10), (None, None, None), (None, None, None)]


def test_only_the_needed_columns_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {**INSTRUCTION, "huge_and_unneeded": [["x"] * 10] * 3, "start": [1, 2, 3]}
    asked: list[str] = []
    plain = pq.ParquetFile.read

    def watched(self: pq.ParquetFile, columns: list[str] | None = None, **more: object) -> pa.Table:
        asked.extend(columns or [])
        return plain(self, columns=columns, **more)

    monkeypatch.setattr(pq.ParquetFile, "read", watched)
    read(tmp_path, Instruction=rows)
    assert "start_ts" in asked
    assert not {"huge_and_unneeded", "start"} & set(asked)


@pytest.mark.parametrize("folder", ["baseline_bf16_s1024", "fused_fp32_s512"])
def test_a_real_capture_without_the_marker_is_read_as_the_vendors(captures: Path, tmp_path: Path, folder: str) -> None:
    """What the vendor's columns alone carry: the same tables, waits parsed again, and the same facts."""
    original = read_legacy_json(captures / folder / "neuron_profile.json.gz")
    target = tmp_path / "p@latest"
    write_explorer_parquet(original, target)
    stated = pq.read_table(target / "Metadata.parquet").drop_columns([MARKER_NAME])
    pq.write_table(stated, target / "Metadata.parquet")
    for table in ("Instruction", "SemaphoreUpdate", "DmaPacket"):
        held = pq.read_table(target / f"{table}.parquet")
        own = {
            "wait_semaphore_idx",
            "wait_condition",
            "wait_value",
            "update_semaphore_idx",
            "semaphore_idx",
            "is_cc_dma",
        }
        pq.write_table(
            held.drop_columns([name for name in held.column_names if name in own]), target / f"{table}.parquet"
        )
    back = read_explorer_parquet(target)
    assert differences(original, back) == ["dma_packets: columns ['is_cc_dma']"]
    assert back.issues == ()
    ours, theirs = original.metadata, back.metadata
    for name in (
        "provenance",
        "hardware",
        "instance_type",
        "neff_uuid",
        "neff_path",
        "versions",
        "clock_hz",
        "summary",
    ):
        assert getattr(theirs, name) == getattr(ours, name), name
    assert theirs.dge_notifications is False
    assert [(core.core, core.window_end_ts) for core in theirs.cores] == [
        (core.core, core.window_end_ts) for core in ours.cores
    ]
    assert theirs.hbm_bandwidth_bytes_per_s == ours.hbm_bandwidth_bytes_per_s


def test_a_forged_marker_is_an_error(tmp_path: Path) -> None:
    for marker in ("", "{}", "[" * 100_000, json.dumps({"version": 1, "metadata": {"cores": []}, "columns": {}})):
        with pytest.raises(InputDataError, match="marker"):
            read(tmp_path, Metadata={**METADATA, MARKER_NAME: [marker]}, Instruction=INSTRUCTION)


def test_what_is_not_there_is_another_error(tmp_path: Path) -> None:
    with pytest.raises(InputMissingError):
        read_explorer_parquet(tmp_path / "absent")

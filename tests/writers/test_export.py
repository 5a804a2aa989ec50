"""What an export holds is what the capture holds: every event, every nanosecond, every name."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

from tests.timelines import timeline
from trnprof.cli import run
from trnprof.demo import published_step
from trnprof.profile import Profile, make_table
from trnprof.readers import read_profile
from trnprof.render.result_tables import result_tables
from trnprof.writers.chrome_trace import microseconds, write_chrome_trace
from trnprof.writers.explorer_parquet import write_explorer_parquet
from trnprof.writers.perfetto import write_perfetto_trace
from trnprof.writers.tracks import MAX_LANES, first_free_lane

HOSTILE = ("</script><script>alert(1)", "{{7*7}}", 'a"b|c\\', "line\nbreak", "nul\x00é🚀", "=1+1")

Slices = Counter[tuple[str, str, str, int, int]]
"""(process, track, label, start, end) of each slice, in ns on the capture's clock."""


def slices_of(profile: Profile, name: str) -> Slices:
    """(process, track, label, start, end) of every event, straight from the tables."""
    found: Slices = Counter()
    for core in profile.metadata.cores:
        process = f"{name}: core {core.core} ({core.subgraph}), {profile.metadata.provenance}"
        instructions = profile.core_rows("instructions", core.core)
        for row in instructions.to_pylist() if instructions is not None else []:
            found[process, row["engine"], row["opcode"], row["start_ts"], row["end_ts"]] += 1
        packets = profile.core_rows("dma_packets", core.core)
        for row in packets.to_pylist() if packets is not None else []:
            engine = row.get("engine_idx")
            track = "dma" if engine is None else f"dma {engine}"
            found[process, track, row.get("queue_name") or track, row["start_ts"], row["end_ts"]] += 1
        collectives = profile.core_rows("collectives", core.core)
        for row in collectives.to_pylist() if collectives is not None else []:
            found[process, "collectives", row["operation"], row["start_ts"], row["end_ts"]] += 1
        for row in profile.kernels.to_pylist() if profile.kernels is not None else []:
            if row["pcore_idx"] == core.core:
                found[process, "kernels", row["name"], row["start_ts"], row["end_ts"]] += 1
        for row in profile.throttle.to_pylist() if profile.throttle is not None else []:
            if row.get("pcore_idx", core.core) == core.core:
                end = row["timestamp"] + row["duration"]
                found[process, "throttle", row.get("type") or "throttle", row["timestamp"], end] += 1
    return found


def read_chrome(path: Path) -> tuple[Slices, dict[str, Any]]:
    """The slices of a Chrome trace, times taken from its decimal text; and its otherData."""
    document = json.loads(path.read_text("ascii"), parse_float=str)
    events = document["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name" and e["ph"] == "M"}
    threads = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name" and e["ph"] == "M"}
    shift = document["otherData"]["shift_ns"]
    assert 0 not in processes
    assert 0 not in threads
    found: Slices = Counter()
    by_thread: dict[int, list[tuple[int, int]]] = {}
    for event in events:
        if event["ph"] != "X":
            continue
        start, length = nanoseconds(event["ts"]), nanoseconds(event["dur"])
        by_thread.setdefault(event["tid"], []).append((start, start + length))
        process, track = processes[event["pid"]], threads[event["tid"]].partition(" (lane")[0]
        assert start - event["args"]["start_ns"] in shift
        found[process, track, event["name"], event["args"]["start_ns"], event["args"]["start_ns"] + length] += 1
    for slices in by_thread.values():
        assert_disjoint(slices)
    return found, document["otherData"]


def nanoseconds(text: str) -> int:
    """Microseconds in decimal, to the digit."""
    whole, _, rest = text.partition(".")
    assert len(rest) == 3
    return int(whole) * 1000 + int(rest)


def assert_disjoint(slices: list[tuple[int, int]]) -> None:
    """In the order written, no slice starts before the one before it has ended."""
    for (_, end), (start, _) in itertools.pairwise(slices):
        assert end <= start


def read_perfetto(path: Path) -> tuple[Slices, list[tuple[str, dict[str, object]]]]:
    """(the slices of a Perfetto trace, track and details of each) as Perfetto's own protobuf classes read it."""
    trace = Trace()
    trace.ParseFromString(path.read_bytes())
    tracks: dict[int, tuple[int, str]] = {}
    processes: dict[int, str] = {}
    names: dict[int, str] = {}
    detail_names: dict[int, str] = {}
    texts: dict[int, str] = {}
    open_slice: dict[int, tuple[int, Any]] = {}
    by_track: dict[int, list[tuple[int, int]]] = {}
    found: Slices = Counter()
    details: list[tuple[str, dict[str, object]]] = []
    assert trace.packet[0].sequence_flags == 3
    for packet in trace.packet:
        assert packet.trusted_packet_sequence_id == 1
        assert not len(UnknownFieldSet(packet))
        assert not len(UnknownFieldSet(packet.track_event))
        names |= {entry.iid: entry.name for entry in packet.interned_data.event_names}
        detail_names |= {entry.iid: entry.name for entry in packet.interned_data.debug_annotation_names}
        texts |= {entry.iid: entry.str.decode() for entry in packet.interned_data.debug_annotation_string_values}
        if packet.HasField("track_descriptor"):
            descriptor = packet.track_descriptor
            if descriptor.HasField("process"):
                assert descriptor.process.pid > 0
                processes[descriptor.uuid] = descriptor.process.process_name
            else:
                tracks[descriptor.uuid] = (descriptor.parent_uuid, descriptor.name)
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            assert event.track_uuid not in open_slice
            open_slice[event.track_uuid] = (packet.timestamp, event)
            continue
        assert event.type == TrackEvent.TYPE_SLICE_END
        begun, begin = open_slice.pop(event.track_uuid)
        by_track.setdefault(event.track_uuid, []).append((begun, packet.timestamp))
        said = {
            detail_names[detail.name_iid]: texts[detail.string_value_iid]
            if detail.HasField("string_value_iid")
            else detail.int_value
            for detail in begin.debug_annotations
        }
        parent, track = tracks[event.track_uuid]
        details.append((track, said))
        start = said["start_ns"]
        assert isinstance(start, int)
        found[processes[parent], track, names[begin.name_iid], start, start + packet.timestamp - begun] += 1
    assert not open_slice
    for slices in by_track.values():
        assert_disjoint(slices)
    return found, details


def overlapping() -> Profile:
    """Four matmuls in flight, one long one over short ones, an instant one, times before the execution, hostile names."""
    profile = timeline(
        (0, 1000),
        instructions=[
            *(("PE", 10 * i, 10 * i + 35) for i in range(20)),
            ("PE", 300, 900),
            ("PE", 320, 330),
            ("PE", 330, 340),
            ("DVE", -50, -20),
            ("DVE", 400, 400),
        ],
        packets=[(0, 50, 512), (20, 70, 4), (1_700_000_000_000_123_456, 1_700_000_000_000_123_457, 64)],
        collectives=[(500, 600)],
        kernels=[(100, 800)],
    )
    assert profile.instructions is not None
    count = len(profile.instructions)
    opcode = pa.array([HOSTILE[i % len(HOSTILE)] for i in range(count)])
    rows = {name: profile.instructions[name] for name in profile.instructions.column_names} | {
        "opcode": opcode,
        "operands": pa.array([None if i % 3 else HOSTILE[i % len(HOSTILE)] for i in range(count)]),
        "compiler_pc": pa.array([None if i % 4 == 0 else i - 2 for i in range(count)], pa.int32()),
    }
    return replace(profile, instructions=make_table("instructions", rows))


@pytest.mark.parametrize("make", [overlapping, lambda: timeline((0, 5))], ids=["overlapping", "empty"])
def test_traces_hold_every_event(make: Any, tmp_path: Path) -> None:
    profile = make()
    assert write_chrome_trace([("a", profile), ("b", profile)], tmp_path / "t.json") == 0
    assert write_perfetto_trace([("a", profile), ("b", profile)], tmp_path / "t.pftrace") == 0
    expected = slices_of(profile, "a") + slices_of(profile, "b")
    chrome, other = read_chrome(tmp_path / "t.json")
    assert chrome == expected
    assert other["provenance"] == ["modelled"]
    assert read_perfetto(tmp_path / "t.pftrace")[0] == expected


def test_details_of_a_slice_are_the_rows_values(tmp_path: Path) -> None:
    profile = overlapping()
    write_perfetto_trace([("a", profile)], tmp_path / "t.pftrace")
    write_chrome_trace([("a", profile)], tmp_path / "t.json")
    assert profile.instructions is not None
    expected = Counter(
        (row["start_ts"], row["compiler_pc"], row["operands"]) for row in profile.instructions.to_pylist()
    )
    _, details = read_perfetto(tmp_path / "t.pftrace")
    told = [entry for track, entry in details if track in ("tensor", "vector")]
    assert Counter((e["start_ns"], e.get("compiler_pc"), e.get("operands")) for e in told) == expected
    events = json.loads((tmp_path / "t.json").read_text("ascii"))["traceEvents"]
    threads = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    shown = [e["args"] for e in events if e["ph"] == "X" and threads[e["tid"]].startswith(("tensor", "vector"))]
    assert Counter((e["start_ns"], e.get("compiler_pc"), e.get("operands")) for e in shown) == expected


def test_chrome_times_keep_nanoseconds() -> None:
    """1,700,000,000,000,123,456 ns as a float of microseconds would be off by 100 ns and more."""
    at = np.array([0, 1, 999, 1000, 1_234_567, 1_700_000_000_000_123_456])
    assert microseconds(at).to_pylist() == [
        "0.000",
        "0.001",
        "0.999",
        "1.000",
        "1234.567",
        "1700000000000123.456",
    ]


spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 25)), max_size=40)


@given(spans)
def test_lanes_are_disjoint_and_no_more_than_needed(rows: list[tuple[int, int]]) -> None:
    """First fit by start colours an interval graph with as many lanes as intervals ever overlap."""
    rows = sorted(rows, key=lambda row: row[0])
    start = np.array([row[0] for row in rows], np.int64)
    end = start + np.array([row[1] for row in rows], np.int64)
    lane = first_free_lane(start, end)
    assert (lane >= 0).all()
    for number in set(lane.tolist()):
        inside = lane == number
        assert_disjoint(list(zip(start[inside].tolist(), end[inside].tolist(), strict=True)))
    deepest = max([int(((start <= at) & (at < end)).sum()) for at in range(90)] or [0])
    assert lane.max(initial=-1) + 1 <= max(deepest, 1 if len(rows) else 0) + int((start == end).any())
    # First fit, row by row.
    free: list[int] = []
    for a, b, got in zip(start.tolist(), end.tolist(), lane.tolist(), strict=True):
        expected = next((number for number, until in enumerate(free) if until <= a), len(free))
        assert got == expected
        free[expected : expected + 1] = [b]


def test_more_at_once_than_lanes_is_counted_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = timeline((0, 1000), instructions=[("PE", i, 900) for i in range(MAX_LANES + 7)])
    assert write_perfetto_trace([("a", profile)], tmp_path / "t.pftrace") == 7
    write_explorer_parquet(profile, tmp_path / "p@latest")
    assert run(["export", str(tmp_path / "p@latest"), "--to", "chrome", "-o", str(tmp_path / "t.json")]) == 0
    assert "7 events left out" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_tables_hold_the_capture_and_its_anatomy(form: str, tmp_path: Path) -> None:
    write_explorer_parquet(published_step(), tmp_path / "step@latest")
    assert run(["export", str(tmp_path / "step@latest"), "--to", form, "-o", str(tmp_path / "out")]) == 0
    read = pyarrow.csv.read_csv if form == "csv" else pq.read_table
    tables = {path.stem: read(path) for path in (tmp_path / "out").iterdir()}
    profile = read_profile(tmp_path / "step@latest")
    for name, table in profile.tables():
        assert (name in tables) == (table is not None)
        if table is not None:
            assert tables[name].column_names == table.column_names
            for column in ("start_ts", "end_ts", "opcode", "transfer_bytes"):
                if column in table.column_names:
                    assert tables[name][column].cast(pa.string()) == table[column].cast(pa.string())
    cores = tables["result_cores"]
    assert cores["parts_ns.memory_floor"].to_pylist() == [6_065_476, 6_065_476]
    assert tables["inputs"]["provenance"].to_pylist() == ["modelled"]
    assert sum(tables["result_wait_producers"]["wait_ns"].to_pylist()) == 2 * 4_600_000
    if form == "parquet":
        assert pq.read_schema(tmp_path / "out" / "instructions.parquet").metadata[b"trnprof.provenance"] == b"modelled"


def test_hostile_names_survive_csv(tmp_path: Path) -> None:
    write_explorer_parquet(overlapping(), tmp_path / "p@latest")
    assert run(["export", str(tmp_path / "p@latest"), "--to", "csv", "-o", str(tmp_path / "out")]) == 0
    options = pyarrow.csv.ParseOptions(newlines_in_values=True)
    table = pyarrow.csv.read_csv(tmp_path / "out" / "instructions.csv", parse_options=options)
    assert set(table["opcode"].to_pylist()) == set(HOSTILE)


def test_result_tables_of_a_small_report() -> None:
    report: dict[str, object] = {
        "inputs": [{"path": "a", "provenance": "modelled"}],
        "data_quality": [],
        "findings": [],
        "result": {
            "pair": {"both_ns": 3},
            "cores": [
                {"input": 0, "core": 1, "span": [4, 5], "parts": {"x": 6, "y": None}, "engines": {"pe": {"ns": 7}},
                 "rows": [{"name": "a", "n": 1}, {"name": 2, "n": 2.5}]},
            ],
        },
    }  # fmt: skip
    tables = {name: table.to_pylist() for name, table in result_tables(report).items()}
    assert tables == {
        "inputs": [{"path": "a", "provenance": "modelled"}],
        "result": [{"pair.both_ns": 3}],
        "result_cores": [{"input": 0, "core": 1, "span.0": 4, "span.1": 5, "parts.x": 6, "parts.y": None}],
        "result_engines": [{"input": 0, "core": 1, "name": "pe", "ns": 7}],
        "result_rows": [
            {"input": 0, "core": 1, "name": "a", "n": 1.0},
            {"input": 0, "core": 1, "name": "2", "n": 2.5},
        ],
    }


def test_a_folder_of_captures_is_one_export(tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    for name in ("a", "b"):
        write_explorer_parquet(overlapping(), tmp_path / "ranks" / f"{name}@latest", overwrite=False)
    assert run(["export", str(tmp_path / "ranks"), "--to", "perfetto", "-o", str(tmp_path / "t.pftrace")]) == 0
    found, _ = read_perfetto(tmp_path / "t.pftrace")
    assert {process.partition(":")[0] for process, *_ in found} == {"a@latest", "b@latest"}
    assert run(["export", str(tmp_path / "ranks"), "--to", "parquet", "-o", str(tmp_path / "out")]) == 0
    names = {path.stem for path in (tmp_path / "out").iterdir()}
    assert {"0_instructions", "1_instructions", "result_cores"} <= names
    assert pq.read_table(tmp_path / "out" / "result_cores.parquet")["input"].to_pylist() == [0, 1]


@pytest.mark.parametrize("form", ["perfetto", "chrome", "csv", "parquet"])
def test_nothing_is_overwritten_unasked_or_left_half_written(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_explorer_parquet(timeline((0, 100), instructions=[("PE", 0, 40)]), tmp_path / "p@latest")
    command = ["export", str(tmp_path / "p@latest"), "--to", form, "-o"]
    assert run([*command, str(tmp_path / "out")]) == 0
    before = sorted(path.name for path in tmp_path.iterdir())
    assert run([*command, str(tmp_path / "out")]) == 2
    assert run([*command, str(tmp_path / "out"), "--force"]) == 0
    assert run([*command, "-"]) == 2
    assert run([*command, str(tmp_path / "no" / "folder" / "out")]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 3
    assert all(line.startswith("trnprof: ") for line in errors)


@pytest.mark.parametrize("name", ["baseline_fp32_s1024", "moe_megakernel"])
def test_real_captures(name: str, captures: Path, tmp_path: Path) -> None:
    """Matmuls of the tensor engine overlap there (up to six in flight): all are in the traces, in lanes of their own."""
    profile = read_profile(captures / name / "step.ntff")
    assert write_chrome_trace([(name, profile)], tmp_path / "t.json") == 0
    assert write_perfetto_trace([(name, profile)], tmp_path / "t.pftrace") == 0
    expected = slices_of(profile, name)
    assert read_chrome(tmp_path / "t.json")[0] == expected
    assert read_perfetto(tmp_path / "t.pftrace")[0] == expected
    assert sum(expected.values()) > 6000

"""The legacy full-profile JSON: users' cases A and B by arithmetic, the format's other rows, hostile files."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.table_profiles import column_names, issue, rows_of, write_text
from trnprof.errors import InputDataError, InputMissingError
from trnprof.profile import Profile
from trnprof.readers.legacy_json import read_legacy_json

PRINTED = {"PE": "Tensor", "DVE": "Vector", "ACT": "Scalar", "POOL": "GpSimd", "SP": "Sync"}


def instruction(engine: str, timestamp: object, duration: object, **more: object) -> dict[str, object]:
    """A row as the vendor writes it."""
    return {"subgroup": PRINTED[engine], "timestamp": timestamp, "duration": duration, "opcode": "COPY", **more}


def packet(timestamp: object, duration: object, size: object, **more: object) -> dict[str, object]:
    """A DMA row as the vendor writes it."""
    return {"timestamp": timestamp, "duration": duration, "transfer_size": size, "queue_type": "data", **more}


def read(tmp_path: Path, text: str | None = None, **lists: object) -> Profile:
    """The profile of a JSON with these lists."""
    return read_legacy_json(write_text(tmp_path / "p.json", json.dumps(lists) if text is None else text))


def spans(profile: Profile, name: str = "instructions") -> list[tuple[object, object]]:
    """(start, end) of each row."""
    return [(row["start_ts"], row["end_ts"]) for row in rows_of(profile, name)]


def window_ns(profile: Profile) -> int:
    """The length of the (one) window."""
    lengths = {core.window_end_ts - core.window_start_ts for core in profile.metadata.cores}
    assert len(lengths) == 1
    return lengths.pop()


# A: capture, pairing, version


def test_a2_cores_without_events_are_listed(tmp_path: Path) -> None:
    profile = read(
        tmp_path,
        metadata=[{"num_physical_cores": 4, "first_hw_timestamp": 0, "last_hw_timestamp": 250}],
        instruction=[instruction("PE", 0, 100, subgraph="sg00"), instruction("PE", 150, 100, subgraph="sg00")],
    )
    assert [core.core for core in profile.metadata.cores] == [0, 1, 2, 3]
    assert [core.window_end_ts for core in profile.metadata.cores] == [250] * 4
    assert {row["pcore_idx"] for row in rows_of(profile, "instructions")} == {0}


def test_a6_dynamic_packets_of_unknown_size_are_kept_without_one(tmp_path: Path) -> None:
    static = [packet(at, 10, 2**20, queue_type="data") for at in (0, 20)]
    dynamic = [
        packet(at, 10, size, queue_type="software_dynamic") for at, size in ((40, 0), (60, "unknown"), (80, None))
    ]
    warning = {
        "category": "Missing Data",
        "message": "Missing additional dynamic DMA metadata, reported DMA values may be off.",
    }
    profile = read(tmp_path, dma=static + dynamic, warnings=[warning])
    sizes = [row["transfer_bytes"] for row in rows_of(profile, "dma_packets")]
    assert sizes == [2**20, 2**20, 0, None, None]
    assert profile.metadata.dge_notifications is False
    assert issue(profile, "DQ014")[0] == 3


def test_a7_empty_text_in_a_number_is_null_and_a_packet_without_length_counts_its_bytes(tmp_path: Path) -> None:
    profile = read(tmp_path, instruction=[instruction("PE", 0, 10, id="")], dma=[packet(5, 0, 4096)])
    assert rows_of(profile, "instructions")[0]["id"] is None
    assert rows_of(profile, "dma_packets")[0]["transfer_bytes"] == 4096
    assert issue(profile, "DQ020") == (1, "instructions.id: 1 empty (1)")
    assert issue(profile, "DQ017")[0] == 1


# B: damaged or odd event data


B1_GOOD = [instruction("PE", 10**15, 100), instruction("DVE", 10**15 + 150, 150)]


def test_b1_a_zero_row_far_from_the_rest_is_rejected(tmp_path: Path) -> None:
    profile = read(tmp_path, instruction=[*B1_GOOD, instruction("ACT", 0, 0)])
    assert spans(profile) == [(0, 100), (150, 300)]
    assert window_ns(profile) == 300
    assert issue(profile, "DQ011")[0] == 1


def test_b1_a_row_at_zero_among_the_others_is_kept(tmp_path: Path) -> None:
    profile = read(tmp_path, instruction=[instruction("PE", 0, 0), instruction("PE", 10, 20)])
    assert spans(profile) == [(0, 0), (10, 30)]
    assert issue(profile, "DQ011")[0] == 0


def test_b1_a_row_at_zero_inside_the_stated_window_is_kept(tmp_path: Path) -> None:
    stated = [{"first_hw_timestamp": 0, "last_hw_timestamp": 10**6}]
    profile = read(tmp_path, metadata=stated, instruction=[instruction("PE", 0, 0), instruction("PE", 999_990, 10)])
    assert len(spans(profile)) == 2


def test_b2_an_empty_last_row_is_skipped_and_counted(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [instruction("PE", at, 5) for at in (0, 10, 20)]
    profile = read(tmp_path, instruction=[*rows, {}])
    assert len(spans(profile)) == 3
    assert issue(profile, "DQ011")[0] == 1


def test_b3_invalid_json_is_told_by_line_byte_and_snippet(tmp_path: Path) -> None:
    text = '{"instruction": [\n{"name": "a"b"}]}'
    with pytest.raises(InputDataError) as caught:
        read(tmp_path, text)
    message = caught.value.message
    assert "line 2" in message
    at = text.index('b"}')  # the b after the name's early end
    assert f"byte {at}," in message
    assert r"\"a\"b\"" in message
    assert "\n" not in message
    assert caught.value.exit_code == 65
    assert caught.value.path is not None


def test_b4_absolute_times_in_decimal_text_keep_every_nanosecond(tmp_path: Path) -> None:
    # ns since 1970 as text: float64 has a step of 256 ns there.
    rows = [
        instruction("PE", "1747123456789012100.000", "250.000"),
        instruction("PE", "1747123456789012350.000", "150.000"),
    ]
    profile = read(tmp_path, instruction=rows)
    assert spans(profile) == [(0, 250), (250, 400)], "gap 0, compute 400"
    assert window_ns(profile) == 400
    assert issue(profile, "DQ020")[0] == 4


def test_b4_absolute_times_as_json_numbers_with_decimals_keep_every_nanosecond(tmp_path: Path) -> None:
    text = """{"instruction": [
        {"subgroup": "Tensor", "opcode": "A", "timestamp": 1747123456789012100.0, "duration": 250.75},
        {"subgroup": "Tensor", "opcode": "A", "timestamp": 1747123456789012350.0, "duration": 150.25}]}"""
    assert spans(read(tmp_path, text)) == [(0, 250), (250, 400)]


def test_b5_times_that_are_not_finite_are_rejected_with_a_count(tmp_path: Path) -> None:
    good = [instruction("PE", at, 5) for at in (0, 10, 20, 30)]
    for odd in (float("nan"), float("inf"), "NaN", "-Infinity", "soon", 2**64, 10**400, [1], {}):
        bad = [instruction("PE", odd, 5), instruction("PE", 40, odd)]
        profile = read(tmp_path, instruction=[*good, *bad])
        assert len(spans(profile)) == 4, odd
        assert issue(profile, "DQ011")[0] == 2, odd
        json.dumps([entry.detail for entry in profile.issues], allow_nan=False)


def test_b6_the_order_of_the_rows_does_not_show(tmp_path: Path) -> None:
    rows = [*B1_GOOD, instruction("PE", 10**15, 100, opcode="B"), instruction("PE", 10**15, 90, opcode="A")]
    packets = [
        packet(at, 5, 64, dma_engine=engine, dma_queue="1") for at in (10**15, 10**15 + 1) for engine in ("65", "64")
    ]
    first = read(tmp_path, instruction=rows, dma=packets)
    second = read(tmp_path, instruction=rows[::-1], dma=packets[::-1])
    for name in ("instructions", "dma_packets"):
        assert rows_of(first, name) == rows_of(second, name)
        assert getattr(first, name)["engine" if name == "instructions" else "queue_type"].chunk(
            0
        ).dictionary.to_pylist() == (["tensor", "vector"] if name == "instructions" else ["data"])


def test_b7_b8_overlapping_rows_are_all_kept(tmp_path: Path) -> None:
    b7 = [instruction("PE", 0, 1000), instruction("PE", 50, 10), instruction("PE", 60, 10)]
    profile = read(tmp_path, metadata=[{"first_hw_timestamp": 0, "last_hw_timestamp": 70}], instruction=b7)
    assert spans(profile) == [(0, 1000), (50, 60), (60, 70)]
    assert window_ns(profile) == 70
    b8 = [instruction("PE", 3000, 3776), instruction("PE", 5000, 2000)]
    assert spans(read(tmp_path, instruction=b8)) == [(0, 3776), (2000, 4000)]


def test_b9_dropped_events_are_counted_from_the_warning(tmp_path: Path) -> None:
    message = "Warning: 1,200 trace events were dropped during capture (stored 10000 out of 11200 total events)."
    profile = read(tmp_path, instruction=[instruction("PE", 0, 5)], warnings=[{"category": "x", "message": message}])
    assert profile.metadata.dropped_record_count == 1200


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "0 bytes"),
        ("[]", "empty list"),
        ("{}", "empty object"),
        (" \n ", "only blanks"),
        ('{"profile_info": [{"profile_name": "x"}]}', "no events in it"),
        ('{"instruction": [], "dma": []}', "no events in it"),
        ('{"instruction": [{}, {}]}', "no events in it"),
        ("[1, 2]", "object of lists"),
        ("7", "object of lists"),
        ('{"instruction": {"timestamp": 1}}', "no list"),
        ("start,end\n", "not valid JSON"),
    ],
)
def test_b10_files_without_events_are_told_apart(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputDataError, match=said):
        read(tmp_path, text)


def test_b11_a_number_as_text_counts_like_the_number(tmp_path: Path) -> None:
    profile = read(tmp_path, dma=[packet(0, 5, "4096"), packet(10, 5, 4096)])
    assert sum(row["transfer_bytes"] for row in rows_of(profile, "dma_packets")) == 8192  # type: ignore[misc]
    assert issue(profile, "DQ020")[0] == 1


def test_b12_collectives_that_share_an_id_stay_apart(tmp_path: Path) -> None:
    collectives = [{"timestamp": at, "duration": 10, "operation": "AllReduce", "op_id": 0} for at in (10, 30, 50)]
    profile = read(tmp_path, instruction=[instruction("PE", 0, 10), instruction("PE", 60, 10)], cc_ops=collectives)
    assert spans(profile, "collectives") == [(10, 20), (30, 40), (50, 60)]
    assert window_ns(profile) == 70


# The rest of the format


def test_collectives_carry_what_their_rows_say(tmp_path: Path) -> None:
    row = {
        "timestamp": 100,
        "duration": 20,
        "operation": "AllGather",
        "input_size": 8,
        "output_size": 64,
        "replica_group": "[[0,1]]",
        "trigger_engine": "Tensor",
        "cc_trigger": 90,
        "cc_trigger_start_delay": 10,
    }
    window = [{"first_hw_timestamp": 80, "last_hw_timestamp": 200}]
    (found,) = rows_of(read(tmp_path, metadata=window, cc_ops=[row]), "collectives")
    assert (found["start_ts"], found["end_ts"], found["trigger_start_ts"]) == (20, 40, 10), "from the window's start"
    assert (found["cc_trigger_start_delay"], found["input_size"], found["output_size"]) == (10, 8, 64)
    assert (found["operation"], found["replica_group"], found["trigger_engine"]) == ("AllGather", "[[0,1]]", "Tensor")


def test_a_summary_without_collectives_means_none_happened(tmp_path: Path) -> None:
    lists: dict[str, Any] = {"instruction": [instruction("PE", 0, 5)]}
    assert read(tmp_path, **lists).collectives is None, "not captured"
    known = read(tmp_path, **lists, summary=[{"cc_op_count": 0}])
    assert rows_of(known, "collectives") == []
    lost = read(tmp_path, **lists, summary=[{"cc_op_count": 7}])
    assert lost.collectives is None
    assert issue(lost, "DQ025")[0] == 7


def test_a_dma_list_left_empty_though_the_summary_counts_packets_was_not_captured(tmp_path: Path) -> None:
    counts = {
        "static_dma_packet_count": 2,
        "software_dynamic_dma_packet_count": 3,
        "hardware_dynamic_dma_packet_count": 0,
    }
    profile = read(tmp_path, instruction=[instruction("PE", 0, 5)], dma=[], summary=[counts])
    assert profile.dma_packets is None
    assert issue(profile, "DQ025")[0] == 5


def test_aggregated_rows_are_transfers_and_duplicates_are_left_out(tmp_path: Path) -> None:
    rows = [
        packet(0, 5, 64, aggregated="no", duplicate="no"),
        packet(0, 5, 64, aggregated="no", duplicate="yes"),
        packet(0, 9, 512, aggregated="yes", source=[["INPUT"]], dest=["SB"], op="copy", semaphore_id="8"),
    ]
    profile = read(tmp_path, dma=rows)
    assert [row["transfer_bytes"] for row in rows_of(profile, "dma_packets")] == [64]
    (transfer,) = rows_of(profile, "dma_transfers")
    assert (transfer["transfer_bytes"], transfer["source"], transfer["dest"]) == (512, "[[INPUT]]", "[SB]")
    assert issue(profile, "DQ011")[0] == 1


def test_ids_beyond_float64_stay_exact(tmp_path: Path) -> None:
    profile = read(tmp_path, instruction=[instruction("PE", 0, 5, id=2**53 + 1), instruction("PE", 9, 5, id=2**63 - 1)])
    assert [row["id"] for row in rows_of(profile, "instructions")] == [2**53 + 1, 2**63 - 1]


def test_a_number_that_does_not_fit_is_null_and_counted(tmp_path: Path) -> None:
    profile = read(tmp_path, instruction=[instruction("PE", 0, 5, id=2**63, pc=2**31, crc_in=-1)])
    (row,) = rows_of(profile, "instructions")
    assert (row["id"], row["pc"], row["crc_in"]) == (None, None, -1)
    assert issue(profile, "DQ020")[0] == 2


def test_an_end_before_its_start_is_rejected(tmp_path: Path) -> None:
    profile = read(tmp_path, instruction=[instruction("PE", 10, -3), instruction("PE", 20, 5)])
    assert len(spans(profile)) == 1
    assert "the end is before the start" in issue(profile, "DQ011")[1]


def test_rows_of_no_compute_engine_are_left_out_and_said_so(tmp_path: Path) -> None:
    rows = [instruction("PE", 0, 5), {**instruction("PE", 5, 5), "subgroup": "CcCore0"}]
    profile = read(tmp_path, instruction=rows)
    assert len(spans(profile)) == 1
    assert "not on a compute engine" in issue(profile, "DQ011")[1]


def test_several_cores_and_a_row_that_names_none(tmp_path: Path) -> None:
    rows = [instruction("PE", 0, 5, subgraph=name) for name in ("sg00", "sg01", "", None, "sg9999999")]
    profile = read(tmp_path, instruction=rows)
    assert [core.core for core in profile.metadata.cores] == [0, 1]
    assert len(spans(profile)) == 2
    assert issue(profile, "DQ011")[0] == 3


def test_the_same_rows_without_times_are_an_error_that_names_the_column(tmp_path: Path) -> None:
    with pytest.raises(InputDataError, match="instruction has rows without timestamp"):
        read(tmp_path, instruction=[{"subgroup": "Tensor", "opcode": "A", "duration": 1}])
    with pytest.raises(InputDataError, match="dma has rows without"):
        read(tmp_path, dma=[{"timestamp": 1, "duration": 2}])


def test_runtime_instructions_have_no_compiler_pc(tmp_path: Path) -> None:
    rows = [instruction("PE", 0, 5, pc=7), instruction("PE", 9, 5, pc=8, compiler_pc=0)]
    profile = read(tmp_path, instruction=rows)
    assert [row["compiler_pc"] for row in rows_of(profile, "instructions")] == [None, 0]
    assert "compiler_pc" not in column_names(read(tmp_path, instruction=rows[:1]), "instructions")


def test_names_are_kept_whatever_they_hold(tmp_path: Path) -> None:
    hostile = ["</script>", "\x1b[31m", "a\x00b", "\ud800", "x" * 100_000, 7, True, ["a", ["b"]], None]
    rows = [instruction("PE", at, 1, layer=name) for at, name in enumerate(hostile)]
    layers = [row["layer"] for row in rows_of(read(tmp_path, instruction=rows), "instructions")]
    assert layers == ["</script>", "\x1b[31m", "a\x00b", "\\ud800", "x" * 100_000, "7", "true", "[a, [b]]", None]


def test_an_empty_name_is_no_name(tmp_path: Path) -> None:
    (row,) = rows_of(read(tmp_path, instruction=[instruction("PE", 0, 5, layer="", bir_id="")]), "instructions")
    assert row["layer"] is None
    assert row["bir_id"] is None


def test_a_deeply_nested_bomb_is_one_error(tmp_path: Path) -> None:
    started = time.process_time()
    with pytest.raises(InputDataError, match="nested"):
        read(tmp_path, '{"instruction": ' + "[" * 2_000_000)
    with pytest.raises(InputDataError):
        read(tmp_path, '{"instruction": [' + '{"a":' * 500_000)
    assert time.process_time() - started < 5


def test_numbers_of_thousands_of_digits_are_one_error(tmp_path: Path) -> None:
    with pytest.raises(InputDataError, match="not a profile's JSON"):
        read(tmp_path, '{"instruction": [{"timestamp": ' + "9" * 100_000 + "}]}")


def test_an_exponent_bomb_costs_nothing(tmp_path: Path) -> None:
    started = time.process_time()
    text = """{"instruction": [{"subgroup": "Tensor", "opcode": "A", "timestamp": 1e999999999, "duration": 1},
        {"subgroup": "Tensor", "opcode": "A", "timestamp": 5, "duration": "1e999"},
        {"subgroup": "Tensor", "opcode": "A", "timestamp": 1e-999999999, "duration": 1}]}"""
    assert spans(read(tmp_path, text)) == [(0, 1)]
    assert time.process_time() - started < 1


def test_a_gzip_bomb_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.json.gz"
    path.write_bytes(gzip.compress(b" " * (256 << 20), compresslevel=9))
    with pytest.raises(InputDataError, match="unpacks to more than"):
        read_legacy_json(path)


def test_gzip_is_told_by_content_and_damage_by_name(tmp_path: Path) -> None:
    packed = gzip.compress(json.dumps({"instruction": [instruction("PE", 0, 5)]}).encode())
    path = tmp_path / "p.json"
    path.write_bytes(packed)
    assert len(spans(read_legacy_json(path))) == 1
    for damaged in (packed[:-4], packed[: len(packed) // 2], packed[:10], packed[:20] + b"\xff\xff" + packed[22:]):
        path.write_bytes(damaged)
        with pytest.raises(InputDataError, match="gzip"):
            read_legacy_json(path)


def test_bytes_that_are_not_utf8_cost_a_name_and_not_the_capture(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(
        json.dumps({"instruction": [instruction("PE", 0, 5, layer="ab")]}).encode().replace(b"ab", b"a\xff")
    )
    profile = read_legacy_json(path)
    assert rows_of(profile, "instructions")[0]["layer"] == "a\ufffd"
    assert issue(profile, "DQ020")[0] == 1


def test_what_is_not_there_is_another_error(tmp_path: Path) -> None:
    with pytest.raises(InputMissingError, match="no such file"):
        read_legacy_json(tmp_path / "absent.json")
    with pytest.raises(InputMissingError, match="directory"):
        read_legacy_json(tmp_path)


def test_a_damaged_marker_is_an_error_and_not_a_vendor_file(tmp_path: Path) -> None:
    for marker in ("", [], ["{}"], [1], [{"a": 1}], ["{", "}"], ['{"version": 1, "metadata": {}, "columns": {}}']):
        with pytest.raises(InputDataError, match="marker"):
            read(tmp_path, instruction=[instruction("PE", 0, 5)], trnprof_marker=marker)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["timestamp", "duration", "subgroup", "opcode", "subgraph", "message", "id"]),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    ),
    st.sampled_from(
        [
            "instruction",
            "dma",
            "semaphore_update",
            "ham",
            "metadata",
            "summary",
            "warnings",
            "model_info",
            "dma_queues_info",
            "cc_ops",
            "neff_header",
        ]
    ),
)
@settings(max_examples=200, deadline=None)
def test_any_json_gives_a_profile_or_one_error(value: object, name: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.json"
        path.write_text(json.dumps({"instruction": [instruction("PE", 0, 5)], name: [value]}))
        try:
            profile = read_legacy_json(path)
        except InputDataError as error:
            assert "\n" not in error.message
        else:
            assert profile.metadata.cores

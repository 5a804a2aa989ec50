"""Damaged and hostile NTFFs: one error of ours or a Profile, in bounded time and memory, never a traceback."""

from __future__ import annotations

import resource
import time
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.writers.test_ntff_roundtrip import instruction, packet, small
from trnprof.errors import InputDataError, InputMissingError, TrnprofError
from trnprof.profile import Core, Profile
from trnprof.readers import read_profile
from trnprof.readers.ntff import read_ntff, read_ntff_alone
from trnprof.writers.ntff import write_ntff
from trnprof.writers.protobuf import field, varint

HEADER_BYTES = 128
SECONDS = 5.0
"""More than any file of the sizes below may take, on a slow machine."""
MEMORY_BYTES = 1 << 30

per_example = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@cache
def written_bytes() -> bytes:
    """A file with every kind of record, a patch list, rings and two cores."""
    import tempfile

    profile = small(
        instructions=[
            instruction(10, 20, pc=1, compiler_pc=2, wait_semaphore_idx=4, wait_condition=">=", wait_value=3),
            instruction(30, 40, pc=3, compiler_pc=5, opcode="DMA_DIRECT2D", hbm_read_bytes=512),
            instruction(30, 45, pc=3, compiler_pc=5, opcode="DMA_DIRECT2D", hbm_read_bytes=512),
        ],
        dma_packets=[
            packet(0, 5, engine_idx=1, queue_idx=0, queue_type="software_dynamic", queue_name="qGpSimdDynamic"),
            packet(10, 20, engine_idx=2, queue_idx=14, queue_type="instruction", queue_name=None),
        ],
        semaphores=[{"timestamp": 5, "pcore_idx": 0, "id": "5", "value": 1}],
        throttle=[{"timestamp": 0, "duration": 1000, "k": 4, "n": 8}],
    )
    cores = (*profile.metadata.cores, Core(core=1, subgraph="sg01", window_start_ts=0, window_end_ts=1000))
    known = replace(profile.metadata, cores=cores, neff_uuid="ab" * 16, neff_path="model.neff", hardware="trn2")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "whole.ntff"
        write_ntff(replace(profile, metadata=known), path)
        return path.read_bytes()


def read_bytes(data: bytes, folder: Path) -> Profile | None:
    """The profile in `data`, or None if it was refused; anything but our errors fails the test, warnings too."""
    path = folder / "damaged.ntff"
    path.write_bytes(data)
    before = time.monotonic()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            profile = read_ntff_alone(path)
    except TrnprofError as error:
        assert "\n" not in str(error)
        return None
    finally:
        assert time.monotonic() - before < SECONDS
    for _, table in profile.tables():
        if table is not None:
            table.validate(full=True)
    return profile


def ntff(metadata: bytes, payload: bytes = b"", *, version: int = 6) -> bytes:
    return bytes([version]) + len(metadata).to_bytes(8, "little") + bytes(119) + metadata + payload


def core_message(*fields: bytes) -> bytes:
    """Root field 4, its field 4, its field 1: one core."""
    return field(4, field(4, field(1, b"".join(fields))))


EXECUTION = field(15, field(2, 10**12) + field(3, 2 * 10**12))


# --- truncation


@per_example
@given(data=st.data())
def test_truncated_anywhere(data: st.DataObject, tmp_path: Path) -> None:
    whole = written_bytes()
    assert read_bytes(whole, tmp_path) is not None
    length = data.draw(st.integers(0, len(whole) - 1))
    assert read_bytes(whole[:length], tmp_path) is None, "a file that lacks its end has no numbers to give"


def test_truncated_in_each_part(tmp_path: Path) -> None:
    whole = written_bytes()
    metadata_bytes = int.from_bytes(whole[1:9], "little")
    for length, reason in (
        (0, "no NTFF"),
        (100, "no NTFF"),
        (HEADER_BYTES, "promises"),
        (HEADER_BYTES + metadata_bytes - 1, "promises"),
        (HEADER_BYTES + metadata_bytes, "truncated"),
        (len(whole) - 1, "truncated"),
    ):
        path = tmp_path / "short.ntff"
        path.write_bytes(whole[:length])
        with pytest.raises(InputDataError, match=reason) as caught:
            read_ntff_alone(path)
        assert "copy or capture it again" in str(caught.value)


def test_real_captures_truncated(captures: Path, tmp_path: Path) -> None:
    whole = (captures / "fused_fp32_s512" / "step.ntff").read_bytes()
    for length in range(0, len(whole), 997):
        assert read_bytes(whole[:length], tmp_path) is None


# --- not an NTFF, or not one that we know


@pytest.mark.parametrize("version", [1, 2, 3, *range(7, 32)])
def test_other_versions_are_refused_by_number(version: int, tmp_path: Path) -> None:
    path = tmp_path / "step.ntff"
    path.write_bytes(bytes([version]) + written_bytes()[1:])
    with pytest.raises(InputDataError, match=rf"NTFF version {version}; supported 4-6; upgrade trnprof") as caught:
        read_ntff_alone(path)
    assert "neuron-explorer view" in str(caught.value)


def test_read_profile_refuses_the_next_version_by_number(tmp_path: Path) -> None:
    path = tmp_path / "step.ntff"
    path.write_bytes(bytes([7]) + written_bytes()[1:])
    with pytest.raises(InputDataError, match="NTFF version 7"):
        read_profile(path)


@pytest.mark.parametrize("first", [0, 32, 128, 255])
def test_other_first_bytes_are_no_version(first: int, tmp_path: Path) -> None:
    path = tmp_path / "step.ntff"
    path.write_bytes(bytes([first]) + written_bytes()[1:])
    with pytest.raises(InputDataError, match=f"not an NTFF: it begins with bytes {first:02x}"):
        read_ntff_alone(path)


def test_text_named_ntff(tmp_path: Path) -> None:
    path = tmp_path / "notes.ntff"
    path.write_text("these are my notes on the capture\n" * 20, encoding="utf-8")
    with pytest.raises(InputDataError, match="not an NTFF"):
        read_ntff(path)
    with pytest.raises(InputDataError):
        read_profile(path)


def test_directory_named_ntff(tmp_path: Path) -> None:
    (tmp_path / "step.ntff").mkdir()
    with pytest.raises(InputMissingError):
        read_ntff_alone(tmp_path / "step.ntff")


@per_example
@given(data=st.binary(max_size=400))
def test_random_bytes(data: bytes, tmp_path: Path) -> None:
    read_bytes(data, tmp_path)
    read_bytes(ntff(data), tmp_path)
    read_bytes(ntff(EXECUTION + core_message(data)), tmp_path)


# --- lying lengths and odd values


def test_lying_metadata_length(tmp_path: Path) -> None:
    whole = written_bytes()
    for length in (0, 1, len(whole), 1 << 32, (1 << 64) - 1):
        assert read_bytes(whole[:1] + length.to_bytes(8, "little") + whole[9:], tmp_path) is None


def section(kind: int, offset: int, size: int, *, block: int = 0) -> bytes:
    return field(16, field(1, kind) + field(3, block) + field(5, offset) + field(6, size))


@pytest.mark.parametrize(
    ("offset", "size", "reason"),
    [
        (0, 64, "truncated"),
        (64, 0, "truncated"),
        (1 << 63, 16, "truncated"),
        (0, (1 << 64) - 16, "truncated"),
        (0, 17, "whole number of 16-byte records"),
    ],
)
def test_lying_sections(offset: int, size: int, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "step.ntff"
    path.write_bytes(ntff(EXECUTION + core_message() + section(0, offset, size), bytes(48)))
    with pytest.raises(InputDataError, match=reason):
        read_ntff_alone(path)


def test_sections_may_not_overlap(tmp_path: Path) -> None:
    """A file of 1 MB that names its payload 1000 times would be a GB of records."""
    payload = bytes(1 << 20)
    repeated = section(0, 0, 1 << 20) * 1000
    path = tmp_path / "step.ntff"
    path.write_bytes(ntff(EXECUTION + core_message() + repeated, payload))
    with pytest.raises(InputDataError, match="overlaps"):
        read_ntff_alone(path)


def test_streams_may_not_overlap(tmp_path: Path) -> None:
    stream = field(4, field(1, 0) + field(2, 0) + field(7, 0) + field(8, 1 << 20))
    many = b"".join(field(1, stream) for _ in range(200))
    path = tmp_path / "step.ntff"
    path.write_bytes(ntff(EXECUTION + field(4, field(4, many)), bytes(1 << 20)))
    with pytest.raises(InputDataError, match="overlaps"):
        read_ntff_alone(path)


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        (b"", "no core"),
        (EXECUTION, "no core"),
        (core_message(), "no trace records and no execution window"),
        (field(4, field(4, field(1, b"") * 300)), "300 subgraphs"),
        (EXECUTION + core_message(field(3, 1 << 40)), "NeuronCore's number"),
        (EXECUTION + core_message(field(7, field(1, 1 << 40))), "DMA engine's number"),
        (EXECUTION + core_message(field(10, field(1, field(2, 0) + field(3, 0)))), "clock of 0/0"),
        (EXECUTION + core_message(field(4, field(3, bytes(63)))), "63 bytes are not a whole number"),
        (field(15, field(2, 1) + field(3, 1 << 63)) + core_message(), "beyond 64 bits"),
        (core_message(field(1, 7)), "number 7 where a string belongs"),
        (b"\x00", "field number 0"),
        (b"\xff" * 20, "no varint"),
        (b"\x0b", "wire type 3"),
        (EXECUTION + core_message() + section(0, 0, 0) * 10_001, "more than 10000 trace sections"),
        (EXECUTION + core_message(field(7, b"") * 65_537), "more than 65536 DMA rings"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_odd_metadata(metadata: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "step.ntff"
    path.write_bytes(ntff(metadata))
    with pytest.raises(InputDataError, match=reason):
        read_ntff_alone(path)


@pytest.mark.slow
def test_metadata_of_many_fields_is_refused_in_time(tmp_path: Path) -> None:
    path = tmp_path / "step.ntff"
    path.write_bytes(ntff((varint(3 << 3) + varint(1)) * 4_100_000))
    before = time.monotonic()
    with pytest.raises(InputDataError, match="more than 4000000 fields"):
        read_ntff_alone(path)
    assert time.monotonic() - before < 30


def test_patch_list_of_huge_counts(tmp_path: Path) -> None:
    """Counts and offsets of 2**64 - 1 touch no more than the stream."""
    stream = field(4, field(1, 0) + field(2, 64) + field(3, bytes(640)))
    huge = (1 << 64) - 1
    patches = [
        field(2, field(1, at) + field(2, huge) + field(3, kind)) for at in (0, 64, huge) for kind in (0, 1, 2, 9)
    ]
    metadata = EXECUTION + core_message(stream, field(5, field(1, 0) + b"".join(patches)))
    assert read_bytes(ntff(metadata), tmp_path) is not None


def test_memory_stays_bounded(tmp_path: Path) -> None:
    """16 MB of records that are all starts, all ends, or all of one DMA ring: the worst for pairing."""
    import numpy as np

    from trnprof.readers.ntff_records import RECORD

    for header in (0x84, 0x85):
        records = np.zeros(1 << 20, RECORD)
        records["header"] = header
        records["stamp"] = 10**12 + np.arange(1 << 20)
        metadata = EXECUTION + core_message(field(3, 0)) + section(0, 0, records.nbytes)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        profile = read_bytes(ntff(metadata, records.tobytes()), tmp_path)
        assert profile is not None
        assert [issue.code for issue in profile.issues] == ["DQ002", "DQ003"]
        assert profile.issues[0].count == 1 << 20
        assert 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < MEMORY_BYTES


# --- mutations


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    """A written file with a few bytes changed, inserted, removed or overwritten by others of its own."""
    data = bytearray(written_bytes())
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        kind = draw(st.sampled_from(["set", "insert", "remove", "copy", "number"]))
        if kind == "set":
            data[at : at + 1] = bytes([draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))])
        elif kind == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=4))
        elif kind == "remove":
            del data[at : at + draw(st.integers(1, 20))]
        elif kind == "copy":
            begin = draw(st.integers(0, max(len(data) - 1, 0)))
            data[at : at + 16] = data[begin : begin + 16]
        else:
            edge = draw(st.sampled_from([0, 1, 255, 65535, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]))
            data[at : at + 8] = edge.to_bytes(8, "little")
    return bytes(data)


@settings(per_example, max_examples=300)
@given(data=mutations())
def test_mutated_files(data: bytes, tmp_path: Path) -> None:
    read_bytes(data, tmp_path)


@settings(per_example, max_examples=150)
@given(data=st.data())
def test_mutated_real_captures(data: st.DataObject, captures: Path, tmp_path: Path) -> None:
    whole = bytearray((captures / "fused_fp32_s512" / "step.ntff").read_bytes())
    metadata_end = HEADER_BYTES + int.from_bytes(whole[1:9], "little")
    for _ in range(data.draw(st.integers(1, 10))):
        end = data.draw(st.sampled_from([metadata_end, len(whole)]))
        whole[data.draw(st.integers(0, end - 1))] = data.draw(st.integers(0, 255))
    read_bytes(bytes(whole), tmp_path)


# --- records that contradict each other


def test_unpaired_and_backward_records(tmp_path: Path) -> None:
    """One start without an end, one end without a start, one pair that runs backward: three rows less, two issues."""
    import numpy as np

    from trnprof.readers.ntff_records import RECORD

    def record(header: int, key: int, at_ns: int) -> tuple[int, int, int, int, int]:
        return (key, 0, header, 0, 10**12 + 1000 * at_ns)

    records = np.array(
        [
            record(0x84, 1, 10),  # paired with the next
            record(0x85, 1, 20),
            record(0x84, 2, 30),  # never ends
            record(0x85, 3, 40),  # never began
            record(0x84, 4, 60),  # ends before it starts
            record(0x85, 4, 50),
        ],
        RECORD,
    )
    stream = field(4, field(1, 0) + field(2, 0) + field(3, bytes(64 * 8)))
    metadata = EXECUTION + core_message(stream) + section(0, 0, records.nbytes)
    profile = read_bytes(ntff(metadata, records.tobytes()), tmp_path)
    assert profile is not None
    assert profile.instructions is not None
    assert profile.instructions["start_ts"].to_pylist() == [10]
    assert {issue.code: issue.count for issue in profile.issues} == {"DQ002": 2, "DQ006": 1, "DQ011": 1}


def test_first_in_first_out(tmp_path: Path) -> None:
    """Two executions of one instruction in flight: the first end is the first start's. An early end is nobody's."""
    import numpy as np

    from trnprof.readers.ntff_records import RECORD

    times = [(0x85, 5), (0x84, 10), (0x84, 20), (0x85, 30), (0x85, 40), (0x85, 50), (0x84, 60)]
    records = np.array([(1, 0, header, 0, 10**12 + 1000 * at) for header, at in times], RECORD)
    stream = field(4, field(1, 0) + field(2, 0) + field(3, bytes(64 * 8)))
    profile = read_bytes(
        ntff(EXECUTION + core_message(stream) + section(0, 0, records.nbytes), records.tobytes()), tmp_path
    )
    assert profile is not None
    assert profile.instructions is not None
    spans = [(row["start_ts"], row["end_ts"]) for row in profile.instructions.to_pylist()]
    assert spans == [(10, 30), (20, 40)]
    assert {issue.code: issue.count for issue in profile.issues}["DQ002"] == 3


def test_records_of_a_core_that_is_not_listed(tmp_path: Path) -> None:
    records = field(16, field(1, 0) + field(5, 0) + field(6, 32) + field(7, 9))
    profile = read_bytes(ntff(EXECUTION + core_message(field(3, 4)) + records, bytes(32)), tmp_path)
    assert profile is not None
    assert [(issue.code, issue.count) for issue in profile.issues] == [("DQ011", 2), ("DQ003", 1)]


def test_empty_cores_are_named(tmp_path: Path) -> None:
    """Three of four cores opened and never used: listed, with the shared window, and said so."""
    path = tmp_path / "step.ntff"
    cores = tuple(
        Core(core=core, subgraph=f"sg{core:02d}", window_start_ts=0, window_end_ts=250, neuroncore_idx=core)
        for core in range(4)
    )
    profile = small(window_end=250)
    write_ntff(replace(profile, metadata=replace(profile.metadata, cores=cores)), path)
    after = read_ntff_alone(path)
    assert [core.window_end_ts for core in after.metadata.cores] == [250] * 4
    (issue,) = [issue for issue in after.issues if issue.code == "DQ003"]
    assert (issue.count, issue.detail) == (3, "sg01, sg02, sg03")


# --- hostile names


@pytest.mark.parametrize(
    ("raw", "read"),
    [
        (b'mo"del\n.neff', 'mo"del\n.neff'),
        (b"\x1b[31m\x00\x07", "\x1b[31m\x00\x07"),
        (b"caf\xe9.neff", "caf\\xe9.neff"),
        (b"<script>alert(1)</script>", "<script>alert(1)</script>"),
        (b"x" * 100_000, "x" * 100_000),
        ("\u202egpj.ffen".encode(), "\u202egpj.ffen"),
    ],
)
def test_names_are_data(raw: bytes, read: str, tmp_path: Path) -> None:
    """Whatever a name holds comes through as it is; bytes that are no text are spelled out. Only renderers print it."""
    ring = field(7, field(1, 3) + field(2, 1) + field(4, raw))
    profile = read_bytes(ntff(EXECUTION + field(1, raw) + field(9, raw) + core_message(field(1, raw), ring)), tmp_path)
    assert profile is not None
    known = profile.metadata
    assert known.neff_path == known.instance_type == known.cores[0].subgraph == known.static_dma[0].name == read


def test_records_of_unknown_layout_are_counted(tmp_path: Path) -> None:
    """Of collective cores (block 2), errors (kind 2) and a kind that is newer than trnprof: counted, never guessed at."""
    sections = section(0, 0, 32, block=2) + section(2, 32, 16) + section(6, 48, 48)
    profile = read_bytes(ntff(EXECUTION + core_message() + sections, bytes(96)), tmp_path)
    assert profile is not None
    assert profile.collectives is None
    (issue,) = [issue for issue in profile.issues if issue.code == "DQ031"]
    assert issue.count == 6
    assert issue.detail == "collective cores: 2 records, errors: 1 records, section kind 6 of block 0: 3 records"

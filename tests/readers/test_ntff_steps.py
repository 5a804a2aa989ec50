"""An NTFF that records several executions: each is a step."""

from __future__ import annotations

from pathlib import Path

from tests.bench.ntff import make_capture
from trnprof.readers.ntff import read_ntff_alone
from trnprof.readers.ntff_container import HEADER_BYTES, read_container
from trnprof.writers.ntff import write_ntff
from trnprof.writers.protobuf import field


def test_several_recorded_executions_are_steps(tmp_path: Path) -> None:
    """The execution message repeated: the window runs from the first to the last, and each is a step of it.

    No public capture shows this; the message is the one that a version 6 file has once.
    """
    path = tmp_path / "step.ntff"
    write_ntff(make_capture(300), path)
    once = read_ntff_alone(path).metadata
    assert once.steps == () and not once.has_step_markers
    ((start, end),) = read_container(path).executions
    data = path.read_bytes()
    length = int.from_bytes(data[1:9], "little")
    added = field(15, field(2, end + 5_000_000) + field(3, end + 9_000_000))
    head = data[:1] + (length + len(added)).to_bytes(8, "little") + data[9:HEADER_BYTES]
    metadata, payload = data[HEADER_BYTES : HEADER_BYTES + length], data[HEADER_BYTES + length :]
    path.write_bytes(head + metadata + added + payload)
    twice = read_ntff_alone(path).metadata
    whole_ns = (end - start) // 1000
    assert twice.has_step_markers
    assert [(step.index, step.start_ts, step.end_ts) for step in twice.steps] == [
        (0, 0, whole_ns),
        (1, whole_ns + 5_000, whole_ns + 9_000),
    ]
    assert {core.window_end_ts for core in twice.cores} == {whole_ns + 9_000}

"""Semaphores named by the NEFF that lies beside the capture, which is found by its uuid, whole or cut."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.neffs import small_neff
from tests.writers.test_ntff_roundtrip import small
from trnprof.errors import InputDataError
from trnprof.profile import Profile
from trnprof.readers.neff import Neff
from trnprof.readers.ntff import read_ntff
from trnprof.readers.ntff_container import uuid_matches
from trnprof.writers.neff import write_neff
from trnprof.writers.ntff import write_ntff


def update(index: int, source: str) -> dict[str, Any]:
    return {"timestamp": index, "pcore_idx": 0, "id": str(index), "value": 1, "update_source": source}


def neff_of(uuid: str) -> Neff:
    """The small NEFF, whose core 0 has qSPIO0 with semaphores 8..23, under another uuid."""
    neff = small_neff()
    return replace(neff, header=replace(neff.header, uuid=uuid))


def capture_of(uuid: str) -> Profile:
    profile = small(semaphores=[update(4, "scalar"), update(8, "axi"), update(9, "tensor"), update(40, "axi")])
    return replace(profile, metadata=replace(profile.metadata, neff_uuid=uuid))


@pytest.mark.parametrize(
    ("recorded", "uuid"),
    [
        ("ab" * 16, "ab" * 16),
        # Cut at the first zero byte, as some runtimes record it.
        ("abcd", "abcd00" + "ef" * 13),
    ],
)
def test_static_queues_are_named(recorded: str, uuid: str, tmp_path: Path) -> None:
    write_ntff(capture_of(recorded), tmp_path / "step.ntff")
    write_neff(neff_of("12" * 16), tmp_path / "step.neff")
    write_neff(neff_of(uuid), tmp_path / "other name")
    table = read_ntff(tmp_path / "step.ntff").semaphores
    assert table is not None
    # 4 is the Scalar engine's own; 40 belongs to no queue; 9 belongs to one, although an engine set it.
    assert list(zip(table["id"].to_pylist(), table["update_source"].to_pylist(), strict=True)) == [
        ("S[4] (Scalar)", "scalar"),
        ("S[8] (qSyncIO0)", "dma"),
        ("S[9] (qSyncIO0)", "tensor"),
        ("40", "axi"),
    ]


def test_named_neff_of_another_uuid_is_refused(tmp_path: Path) -> None:
    write_ntff(capture_of("abcd"), tmp_path / "step.ntff")
    write_neff(neff_of("abcdef" + "00" * 13), tmp_path / "model.neff")
    with pytest.raises(InputDataError, match="the capture ran abcd") as caught:
        read_ntff(tmp_path / "step.ntff", neff=tmp_path / "model.neff")
    assert caught.value.code == "DQ008"


def test_uuids() -> None:
    whole = "abcd00" + "ef" * 13
    assert uuid_matches(whole, whole)
    assert uuid_matches("abcd", whole)
    assert not uuid_matches("ab", whole)
    assert not uuid_matches("abcd", "abcd01" + "ef" * 13)
    assert not uuid_matches("ef" * 16, whole)


def test_public_captures_name_the_same_alone_and_with_their_neff(public_captures: Path) -> None:
    """Dynamic queues show in the capture itself; the NEFF says the same of them."""
    from trnprof.readers.ntff import read_ntff_alone

    paths = sorted(public_captures.glob("trainium-kernel-fusion/profiling/artifacts/*/*.ntff"))
    assert len(paths) == 8
    for path in paths:
        alone, joined = read_ntff_alone(path).semaphores, read_ntff(path).semaphores
        assert alone is not None
        assert joined is not None
        assert joined.to_pylist() == alone.to_pylist()

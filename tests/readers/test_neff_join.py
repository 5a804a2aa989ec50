"""A NEFF found beside a capture and joined to it: by uuid, core, engine and the compiler's instruction index."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.neffs import (
    UUID,
    small_neff,
)
from trnprof.errors import InputDataError, InputMissingError
from trnprof.profile import Core, Metadata, Profile, Provenance, make_table
from trnprof.readers.neff import read_neff_uuid
from trnprof.readers.neff_join import attach_neff, find_neff
from trnprof.writers.neff import write_neff


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """The small NEFF as a file."""
    path = tmp_path / "by_hand.neff"
    write_neff(small_neff(), path)
    return path


# Joined to a capture.


def _profile(rows: list[tuple[int, str, str, int | None]], *, uuid: str | None = UUID, **columns: object) -> Profile:
    """A capture of (core, engine, opcode, compiler_pc) rows, 10 ns each."""
    start = np.arange(len(rows), dtype=np.int64) * 10
    table = make_table(
        "instructions",
        {
            "start_ts": start,
            "end_ts": start + 10,
            "pcore_idx": np.array([row[0] for row in rows], np.int16),
            "engine": [row[1] for row in rows],
            "opcode": [row[2] for row in rows],
            "compiler_pc": pa.array([row[3] for row in rows], pa.int32()),
            **columns,
        },
    )
    cores = tuple(Core(core=core, subgraph=f"sg0{core}", window_start_ts=0, window_end_ts=1000) for core in range(2))
    metadata = Metadata(format="ntff", provenance=Provenance.MODELLED, cores=cores, neff_uuid=uuid)
    return Profile(metadata=metadata, instructions=table)


def test_join_by_core_engine_and_compiler_pc(small: Path) -> None:
    rows = [
        (0, "sync", "NOP", None),
        (0, "sync", "WRITE", 1),
        (0, "sync", "WRITE", 2),
        (0, "tensor", "LDWEIGHTS", 1),
        (0, "tensor", "MATMUL", 2),
        (0, "gpsimd", "DMA_DIRECT2D", 1),
        (1, "tensor", "SET_ORDERING_MODE", 0),
        (1, "tensor", "NOTIFY", None),
    ]
    joined = attach_neff(_profile(rows), small)
    table = joined.instructions
    assert table is not None
    assert table["bir_instruction_name"].to_pylist() == [
        None,
        "I-4-0-trig",
        "I-9-0-trig",
        "inst.6",
        "inst.7",
        None,
        None,
        None,
    ]
    assert table["hbm_read_bytes"].to_pylist() == [None, 512_000, 0, None, None, 32_768, None, None]
    assert table["hbm_write_bytes"].to_pylist() == [None, 0, 512_000, None, None, 0, None, None]
    assert table["compiler_opcode"].to_pylist()[1] == "PSEUDO_DMA_TRIGGER"
    assert joined.metadata.versions["compiler"] == "2.23.0+byhand"
    assert joined.metadata.hardware == "trn2"
    assert joined.sources is not None
    assert joined.issues == ()


def test_join_keeps_the_bytes_of_the_capture_except_for_static_rings(small: Path) -> None:
    """The device's WRITE moves nothing itself; a dynamic DMA's own operands, where the capture has them, are what ran."""
    rows = [(0, "sync", "WRITE", 1), (0, "gpsimd", "DMA_DIRECT2D", 1)]
    joined = attach_neff(_profile(rows, hbm_read_bytes=np.array([0, 999], np.int64)), small)
    assert joined.instructions is not None
    assert joined.instructions["hbm_read_bytes"].to_pylist() == [512_000, 999]


def test_join_names_what_stays_unknown(tmp_path: Path) -> None:
    neff = small_neff()
    core = replace(neff.cores[0], static_dma=neff.cores[1].static_dma)
    write_neff(replace(neff, cores=(core, neff.cores[1])), tmp_path / "x.neff")
    joined = attach_neff(_profile([(0, "sync", "WRITE", 1), (0, "sync", "WRITE", 2)]), tmp_path / "x.neff")
    assert [(issue.code, issue.count) for issue in joined.issues] == [("DQ019", 2)]


@pytest.mark.parametrize("uuid", ["ff" * 16, "ff" * 22])
def test_join_with_another_neff_is_refused(small: Path, uuid: str) -> None:
    with pytest.raises(InputDataError, match=f"uuid {UUID}") as caught:
        attach_neff(_profile([], uuid=uuid), small)
    assert (caught.value.code, caught.value.path) == ("DQ008", str(small))


def test_join_takes_a_capture_that_stores_more_than_the_uuid(small: Path) -> None:
    attach_neff(_profile([], uuid=UUID.upper() + "0badf00d"), small)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((0, "tensor", "MATMUL", 3), "more instructions than the NEFF has"),
        ((0, "tensor", "ACTIVATE", 2), "other instructions than the NEFF has"),
        ((5, "tensor", "MATMUL", 2), "more instructions than the NEFF has"),  # a core that the NEFF does not have
        ((0, "warp", "MATMUL", 2), "more instructions than the NEFF has"),
    ],
)
def test_join_says_where_capture_and_neff_differ(small: Path, row: tuple[int, str, str, int], message: str) -> None:
    joined = attach_neff(_profile([row]), small)
    ((code, detail),) = [(issue.code, issue.detail) for issue in joined.issues]
    assert code == "DQ030"
    assert message in detail


def test_join_of_a_capture_without_compiler_pc_adds_the_version(small: Path) -> None:
    profile = _profile([(0, "tensor", "MATMUL", 2)])
    assert profile.instructions is not None
    joined = attach_neff(replace(profile, instructions=profile.instructions.drop_columns("compiler_pc")), small)
    assert joined.instructions is not None
    assert "bir_id" not in joined.instructions.column_names
    assert joined.metadata.versions["compiler"] == "2.23.0+byhand"


def test_neff_is_found_by_its_uuid_whatever_its_name(small: Path) -> None:
    folder = small.parent
    small.rename(folder / "program.bin")
    for name, uuid in (("step.neff", "aa" * 16), ("other.neff", "bb" * 16)):
        neff = small_neff()
        write_neff(replace(neff, header=replace(neff.header, uuid=uuid)), folder / name)
    (folder / "step.ntff").write_bytes(b"\x06" + bytes(200))
    (folder / "notes.txt").write_text("nothing")
    (folder / "empty.neff").write_bytes(b"")
    (folder / "deeper.neff").mkdir()
    assert find_neff(folder / "step.ntff", UUID + "0badf00d") == folder / "program.bin"
    assert find_neff(folder / "step.ntff", "cc" * 16) is None
    assert find_neff(folder / "step.ntff", None) is None
    assert find_neff(folder / "gone" / "step.ntff", UUID) is None


def test_uuid_needs_the_header_only(small: Path) -> None:
    """The first 1024 bytes are enough: what follows may be cut off."""
    short = small.parent / "short.neff"
    short.write_bytes(small.read_bytes()[:1024])
    assert read_neff_uuid(short) == UUID
    with pytest.raises(InputMissingError):
        read_neff_uuid(small.parent / "gone.neff")

"""Writing a NEFF and reading it back gives the same NEFF, marked as modelled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.neffs import assert_same, level, small_neff, stream, variables
from trnprof.profile import ENGINES
from trnprof.readers.neff import EngineStream, Neff, NeffCore, read_neff, read_neff_uuid
from trnprof.readers.neff_container import NeffHeader, pack_header, parse_header
from trnprof.writers.neff import BUILD_VERSION, write_neff

MADE_BY_THE_WRITER = frozenset({"data_size", "hash", "neff_build_version", "modelled", "issues"})
"""Fields that the writer sets, whatever the NEFF had."""


def test_small_neff_comes_back(tmp_path: Path) -> None:
    neff = small_neff()
    write_neff(neff, tmp_path / "by_hand.neff")
    back = read_neff(tmp_path / "by_hand.neff")
    assert_same(neff, back, ignore=MADE_BY_THE_WRITER)
    assert back.modelled
    assert back.header.neff_build_version == BUILD_VERSION
    assert read_neff_uuid(tmp_path / "by_hand.neff") == neff.header.uuid


def test_second_time_nothing_changes(tmp_path: Path) -> None:
    """What was read from a written file is written to the very same bytes: no clock, no set order."""
    first, second = tmp_path / "one.neff", tmp_path / "two.neff"
    write_neff(small_neff(), first)
    write_neff(read_neff(first), second)
    assert first.read_bytes() == second.read_bytes()


def test_real_neffs_come_back(public_captures: Path, tmp_path: Path) -> None:
    """Public NEFFs of both chips and three compilers, written and read; the small ones, as the writer is no fast one."""
    paths = [path for path in sorted(public_captures.rglob("*.neff")) if path.stat().st_size < 120_000]
    assert len(paths) >= 30
    for path in paths:
        neff = read_neff(path)
        write_neff(neff, tmp_path / "again.neff")
        back = read_neff(tmp_path / "again.neff")
        assert_same(neff, back, place=path.name, ignore=MADE_BY_THE_WRITER)
        assert not neff.modelled
        assert back.modelled


@given(
    st.builds(
        NeffHeader,
        pkg_version=st.sampled_from([1, 2]),
        data_size=st.integers(0, 2**64 - 1),
        neff_version_major=st.integers(0, 2**64 - 1),
        neff_build_version=st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=31),
        num_tpb=st.integers(0, 2**32 - 1),
        hash=st.binary(min_size=32, max_size=32).map(bytes.hex),
        uuid=st.binary(min_size=16, max_size=16).map(bytes.hex),
        name=st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=63),
        tpb_per_node=st.lists(st.integers(1, 255), max_size=64).map(tuple),
        feature_bits=st.integers(0, 2**64 - 1),
        lnc_size=st.integers(1, 64),
    )
)
def test_header_comes_back(header: NeffHeader) -> None:
    packed = pack_header(header)
    assert len(packed) == 1024
    assert parse_header(packed) == header


_TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
_IDS = st.lists(st.integers(0, 2**62), max_size=4)
_ENTRY = st.fixed_dictionaries(
    {
        "id": st.integers(0, 2**63 - 1),
        "name": _TEXT,
        "parent_ids": _IDS,
        "dependency_ids": _IDS,
        "schedule_ids": _IDS,
        "dependency_kinds": _IDS,
        "kind": st.integers(0, 300),
        "attributes": st.lists(st.tuples(_TEXT, _TEXT), max_size=3),
    }
)


@settings(max_examples=40, deadline=None)
@given(entries=st.lists(_ENTRY, max_size=12), words=st.binary(max_size=320), files=st.lists(_TEXT, max_size=3))
def test_any_debug_info_and_stream_comes_back(
    tmp_path_factory: pytest.TempPathFactory, entries: list[dict[str, object]], words: bytes, files: list[str]
) -> None:
    content = np.frombuffer(words[: len(words) // 64 * 64], np.uint8).reshape(-1, 64)
    ids = np.arange(len(content), dtype=np.int64) - 1
    streams = {engine: EngineStream(content, ids) if engine == "vector" else stream() for engine in ENGINES}
    core = NeffCore(
        core=0,
        subgraph="sg00",
        streams=streams,
        variables=variables({"name": "SB", "type": "state-buffer", "var_id": 0}),
        static_dma=small_neff().cores[1].static_dma,
        backend={"vector": level(entries, engine_code=5, source_files=tuple(files))},
    )
    neff = Neff(header=NeffHeader(name="x"), target="sunda", hardware="trn1", cores=(core,))
    path = tmp_path_factory.mktemp("neff") / "any.neff"
    write_neff(neff, path)
    back = read_neff(path)
    if not (ids >= 0).any():
        back = replace(back, cores=(replace(back.cores[0], streams=neff.cores[0].streams),))
    assert_same(neff, back, ignore=MADE_BY_THE_WRITER)


@pytest.mark.parametrize("name", ["x" * 256, "with a \0 in it"])
def test_name_that_does_not_fit_is_refused(tmp_path: Path, name: str) -> None:
    neff = small_neff()
    with pytest.raises(ValueError, match="does not fit a header field"):
        write_neff(replace(neff, header=replace(neff.header, name=name)), tmp_path / "x.neff")

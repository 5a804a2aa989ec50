"""Real captures and NEFFs, against what the vendor's own profiler printed of them."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.neffs import (
    level,
    small_neff,
)
from trnprof.analyzers.neff_summary import summarize_neff
from trnprof.profile import Profile
from trnprof.readers.isa import OPCODE_OF_NAME
from trnprof.readers.neff import EngineStream, Neff, read_neff
from trnprof.readers.neff_debug import DEPENDENCY_KINDS
from trnprof.readers.neff_dma import DMA_TRIGGER
from trnprof.readers.neff_origins import trace_origins
from trnprof.writers.neff import write_neff

LABELS = {
    "Tensor": "tensor",
    "TensorMatrix": "tensor",
    "Scalar": "scalar",
    "Vector": "vector",
    "GpSimd": "gpsimd",
    "Sync": "sync",
}
"""The engine of a row of the vendor's JSON, by its label."""


# The join against the vendor's decode of real captures. Their NEFFs are not in the folder, so one is written from what
# the vendor's JSON says of each instruction; it must come back joined to the rows that the reader of captures gives.

_CAPTURES = {
    "baseline_bf16_s1024": 598,
    "baseline_fp32_s1024": 629,
    "baseline_fp32_s512": 172,
    "fused_bf16_s512": 148,
    "fused_fp32_s1024": 566,
    "fused_fp32_s512": 154,
}
"""Instructions with a BIR name in each capture: 2,267 in all."""


def _instructions(path: Path) -> list[dict[str, object]]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        rows: list[dict[str, object]] = json.load(file)["instruction"]
    return rows


def _neff_of(rows: list[dict[str, object]], uuid: str) -> Neff:
    """A NEFF with an instruction wherever the vendor counts one of the compiler's."""
    neff = small_neff()
    cores = []
    for core in neff.cores:
        streams, backend = {}, {}
        for engine in core.streams:
            mine = {
                row["compiler_pc"]: row
                for row in rows
                if row["subgraph"] == core.subgraph and LABELS[str(row["label"])] == engine and "compiler_pc" in row
            }
            words = np.zeros((max(mine, default=-1) + 1, 64), np.uint8)  # type: ignore[call-overload, operator]
            ids = np.full(len(words), -1, np.int64)
            entries = {}
            for index, row in mine.items():
                words[index, 0] = OPCODE_OF_NAME[str(row.get("compiler_opcode", row["opcode"]))]
                if row["bir_instruction_name"]:
                    ids[index] = row["raw_bir_id"]
                    entries[row["raw_bir_id"]] = {
                        "id": row["raw_bir_id"],
                        "name": row["bir_instruction_name"],
                        "parent_ids": [row["raw_penguin_id"]],
                        "kind": {"REGULAR": 1, "TRANSPOSE": 3}[str(row["instruction_type"])],
                    }
            streams[engine] = EngineStream(words, ids)
            backend[engine] = level(list(entries.values()))
        cores.append(replace(core, streams=streams, backend=backend, static_dma=neff.cores[1].static_dma))
    return replace(neff, header=replace(neff.header, uuid=uuid[:32]), cores=tuple(cores), kernels=())


@pytest.mark.parametrize(("name", "count"), _CAPTURES.items())
def test_names_reach_the_rows_of_real_captures(captures: Path, tmp_path: Path, name: str, count: int) -> None:
    from trnprof.readers.ntff import read_ntff

    folder = captures / name
    rows = _instructions(folder / "neuron_profile.json.gz")
    link = tmp_path / "step.ntff"
    link.symlink_to(folder / "step.ntff")
    uuid = read_ntff(link).metadata.neff_uuid
    assert uuid is not None
    write_neff(_neff_of(rows, uuid), tmp_path / "program.neff")
    _assert_vendor_names(read_ntff(link), rows, count)


def _assert_vendor_names(profile: Profile, rows: list[dict[str, object]], count: int) -> None:
    """Every row of the vendor's JSON, found by core, engine, pc and start, has the same names and kinds."""
    assert profile.instructions is not None
    wanted = {
        (int(str(row["subgraph"])[2:]), LABELS[str(row["label"])], row["pc"], row["timestamp"]): (
            row.get("compiler_pc"),
            row["bir_instruction_name"] or None,
            row["bir_id"] or None,
            row["penguin_id"] or None,
            row["instruction_type"] or None,
        )
        for row in rows
    }
    columns = ["pcore_idx", "engine", "pc", "start_ts", "compiler_pc", "bir_instruction_name", "bir_id", "penguin_id"]
    found = profile.instructions.select([*columns, "tensor_instruction_type"]).to_pylist()
    ours = {tuple(row.values())[:4]: tuple(row.values())[4:] for row in found}
    assert {place: ours.get(place) for place in wanted} == wanted
    # At a capture's edge the vendor leaves out a row of the runtime's own.
    assert all(ours[place] == (None,) * 5 for place in ours.keys() - wanted.keys())
    assert sum(name is not None for _, name, *_ in wanted.values()) == count
    assert not [issue for issue in profile.issues if issue.code == "DQ030"]


# Public NEFFs, with the vendor's own decode of ten of them.


def _vendor_captures(folder: Path) -> list[tuple[Path, Path, Path]]:
    """(NEFF, NTFF, the vendor's JSON) of the ten captures that have all three."""
    found = []
    for report in sorted(folder.glob("trainium-kernel-fusion/profiling/**/*_profile_full.json")):
        home = report.parent.parent
        (neff,), (ntff,) = home.glob("*.neff"), home.glob("*.ntff")
        found.append((neff, ntff, report))
    assert len(found) == 10
    return found


def test_every_public_neff_is_read(public_captures: Path) -> None:
    """53 files of compilers 2.18 to 2.23 for both chips. Each instruction has its debug entry, each trigger its ring."""
    total: Counter[str] = Counter()
    for path in sorted(public_captures.rglob("*.neff")):
        neff = read_neff(path)
        assert not neff.issues
        assert (neff.hardware, len(neff.cores)) in {("trn1", 1), ("trn2", 2)}
        assert len(neff.cores) == neff.header.lnc_size
        total["files"] += 1
        origins = trace_origins(neff)
        named = origins.columns["bir_instruction_name"].is_valid().to_numpy(zero_copy_only=False)
        total["instructions"] += len(named)
        total["named"] += int(named.sum())
        is_trigger = origins.is_static_dma
        known = origins.columns["hbm_read_bytes"].is_valid().to_numpy(zero_copy_only=False)
        assert known[origins.is_dma].all()
        assert not known[~origins.is_dma].any()
        total["triggers"] += int(is_trigger.sum())
        total["rings"] += sum(core.static_dma.rings.num_rows for core in neff.cores)
        for core in neff.cores:
            triggers = sum(int((part.words[:, 0] == DMA_TRIGGER).sum()) for part in core.streams.values())
            assert triggers == core.static_dma.rings.num_rows
    assert total == {"files": 53, "instructions": 604_176, "named": 603_356, "triggers": 45_194, "rings": 45_194}


def test_vendors_names_and_bytes_of_ten_captures(public_captures: Path) -> None:
    """6,175 instructions: names, kinds, compiler's pc and opcode (144 rewritten), HBM bytes each and in the summary."""
    from trnprof.readers.ntff import read_ntff

    count: Counter[str] = Counter()
    for neff, ntff, report in _vendor_captures(public_captures):
        document = json.loads(report.read_text(encoding="utf-8"))
        rows = document["instruction"]
        profile = read_ntff(ntff, neff=neff)
        named = sum(bool(row["bir_instruction_name"]) for row in rows)
        _assert_vendor_names(profile, rows, named)
        assert profile.instructions is not None
        ours = {
            (row["pcore_idx"], row["engine"], row["pc"], row["start_ts"]): row
            for row in profile.instructions.to_pylist()
        }
        for row in rows:
            mine = ours[int(row["subgraph"][2:]), LABELS[row["label"]], row["pc"], row["timestamp"]]
            assert (mine["hbm_read_bytes"] or 0) == row.get("hbm_read_bytes", 0)
            assert (mine["hbm_write_bytes"] or 0) == row.get("hbm_write_bytes", 0)
            if "compiler_opcode" in row:
                assert mine["compiler_opcode"] == row["compiler_opcode"]
                count["rewritten"] += 1
            # The vendor prints Unknown for the compiler's instructions without a framework op.
            assert mine["layer"] is None and row["layer"] in ("Unknown", "")
        (summary,) = document["summary"]
        assert pc.sum(profile.instructions["hbm_read_bytes"]).as_py() == summary["hbm_read_bytes"]
        assert pc.sum(profile.instructions["hbm_write_bytes"]).as_py() == summary["hbm_write_bytes"]
        # Nothing loops in these programs, so the NEFF alone says the same.
        program = summarize_neff(read_neff(neff, debug_info=False))
        assert sum(core.hbm_read_bytes for core in program.cores) == summary["hbm_read_bytes"]
        assert sum(core.hbm_write_bytes for core in program.cores) == summary["hbm_write_bytes"]
        assert profile.metadata.versions["compiler"] == summary["compiler_version"]
        count["rows"] += len(rows)
        count["named"] += named
    assert count == {"rows": 6175, "named": 3299, "rewritten": 144}


@pytest.mark.parametrize(
    ("name", "read_bytes", "write_bytes", "trigger_count"),
    [
        ("stream_256k_fd1k", 2_048_000, 1_024_000, 6),
        ("stream_256k_fd2k", 2_048_000, 1_024_000, 3),
        ("transpose_1024", 4_210_688, 4_194_304, 129),
    ],
)
def test_bytes_of_static_rings(
    public_captures: Path, name: str, read_bytes: int, write_bytes: int, trigger_count: int
) -> None:
    """hbm_read_bytes, hbm_write_bytes and dma_transfer_count of the vendor's summaries of these programs.

    The summaries (profile_1k.txt, profile_2k.txt, transpose_1024_perf.txt) are public in another repository that ran
    the same kernels with the same compiler; the bytes are the program's, not the run's.
    """
    from trnprof.readers.ntff import read_ntff

    folder = public_captures / "asst4-trainium2/part1"
    profile = read_ntff(folder / f"{name}.ntff")
    assert profile.instructions is not None
    assert pc.sum(profile.instructions["hbm_read_bytes"]).as_py() == read_bytes
    assert pc.sum(profile.instructions["hbm_write_bytes"]).as_py() == write_bytes
    triggers = profile.instructions.filter(pc.field("compiler_opcode") == "PSEUDO_DMA_TRIGGER")
    assert triggers.num_rows == trigger_count
    assert not [issue for issue in profile.issues if issue.code in ("DQ019", "DQ030")]


def test_vendors_header_and_tensors(public_captures: Path) -> None:
    """neff_header and neff_node of the ten JSONs: 54 tensors with kind, shape and bytes."""
    kinds = {"IN": "input", "OUT": "output", "WEIGHT": "weight"}
    count = 0
    for path, _, report in _vendor_captures(public_captures):
        document = json.loads(report.read_text(encoding="utf-8"))
        neff = read_neff(path)
        (header,) = document["neff_header"]
        assert header["uuid"] == neff.header.uuid
        assert header["hash"] == neff.header.hash[:32]
        assert header["data_size"] == str(neff.header.data_size)
        assert header["enabled_features"] == ", ".join(neff.header.features)
        assert header["network_name"] == neff.header.name
        assert header["number_of_neuroncores_per_lnc"] == str(neff.header.lnc_size)
        assert (header["major_version"], header["package_version"]) == ("2", str(neff.header.pkg_version))
        wanted = sorted(
            (node["variable_name"], kinds[node["type"]], node["shape"], int(node["size"]))
            for node in document["neff_node"]
            if node["type"]
        )
        tensors = summarize_neff(neff).tensors
        found = [(t.name, t.kind, f"[{' '.join(map(str, t.shape or ()))}]", t.size_bytes) for t in tensors]
        assert sorted(found) == wanted
        count += len(wanted)
    assert count == 54


def test_vendors_predecessors(public_captures: Path) -> None:
    """A JSON row's predecessors are the entry's dependencies by data and by schedule together, kinds included."""
    count = 0
    for path, _, report in _vendor_captures(public_captures):
        rows = json.loads(report.read_text(encoding="utf-8"))["instruction"]
        bir_id_of = {row["id"]: row["raw_bir_id"] for row in rows}
        entries = {
            row["id"]: row
            for core in read_neff(path).cores
            for engine, backend in core.backend.items()
            if engine != "dma"
            for row in backend.entries.to_pylist()
        }
        for row in rows:
            if not row.get("predecessors") or not row["bir_instruction_name"]:
                continue
            entry = entries[row["raw_bir_id"]]
            data = dict(zip(entry["dependency_ids"], entry["dependency_kinds"], strict=True))
            schedule = dict(zip(entry["schedule_ids"], entry["schedule_kinds"], strict=True))
            found = {bir_id_of[item["id"]]: item["type"] for item in row["predecessors"]}
            assert found == {bir_id: DEPENDENCY_KINDS[kind] for bir_id, kind in (schedule | data).items()}
            count += 1
    assert count == 3245


def test_kernel_trees_agree_with_the_lines_in_the_debug_info(public_captures: Path) -> None:
    """NKI kernels of the newer front end: the tree's line of each instruction is the one that its BIR entry names."""
    count = 0
    for path in sorted(public_captures.glob("history/ucb-bar+autocomp/*.neff")):
        origins = trace_origins(read_neff(path))
        framed = origins.sources.filter(pc.field("stack_frame_id").is_valid())["kernel_instruction_name"].to_pylist()
        in_tree = origins.columns.filter(pc.is_in(origins.columns["kernel_instruction_name"], pa.array(framed)))
        assert pc.all(pc.equal(in_tree["nki_source_location"], in_tree["bir_debug_info_source_location"])).as_py()
        count += len(framed)
    assert count == 2 * (313 + 449 + 1650)

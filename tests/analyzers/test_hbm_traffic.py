"""HBM traffic by purpose and tensor, and what goes through HBM between kernels."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.faulty_profiles import BLOCK_NS, FAULTS, clean_step
from tests.timelines import timeline
from trnprof.analyzers.account_sets import NOT_ATTRIBUTED
from trnprof.analyzers.anatomy import measure_anatomy
from trnprof.analyzers.boundaries import BETWEEN_KERNELS, CoreBoundaries, measure_boundaries
from trnprof.analyzers.hbm_traffic import CoreTraffic, measure_hbm_traffic, memory_of
from trnprof.hardware import Bandwidth
from trnprof.profile import DmaQueue, Profile, TensorSize, make_table
from trnprof.readers import read_profile
from trnprof.writers.explorer_parquet import write_explorer_parquet

BANDWIDTH = Bandwidth(10**9, "1 byte a ns", "user")

Transfer = tuple[int, int, str | None, str, str, int, int | None]
"""start, end, variable, source, dest, bytes, block"""


def with_transfers(profile: Profile, rows: list[Transfer]) -> Profile:
    table = make_table(
        "dma_transfers",
        {
            "start_ts": [row[0] for row in rows],
            "end_ts": [row[1] for row in rows],
            "pcore_idx": [0] * len(rows),
            "variable": pa.array([row[2] for row in rows], pa.string()),
            "source": pa.array([row[3] for row in rows], pa.string()),
            "dest": pa.array([row[4] for row in rows], pa.string()),
            "transfer_bytes": [row[5] for row in rows],
            "read_bytes": [row[5] for row in rows],
            "write_bytes": [row[5] for row in rows],
            "block_id": [row[6] for row in rows],
        },
    )
    return dataclasses.replace(profile, dma_transfers=table)


def traffic(profile: Profile) -> CoreTraffic:
    return measure_hbm_traffic(profile, measure_anatomy(profile, "trn2", BANDWIDTH)).cores[0]


BASE = timeline((0, 10_000), instructions=[("PE", 0, 10_000)], hbm_bytes=1_000)


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        ("[[INPUT]]", "hbm"),
        ("[OUTPUT]", "hbm"),
        ("[[VIRTUAL]]", "virtual"),
        ("[SB]", "on-chip"),
        ("[['SB']]", "on-chip"),
        ("unknown", "unknown"),
        ("", "unknown"),
    ],
)
def test_the_vendor_s_words_for_memories(text: str, memory: str) -> None:
    assert memory_of(text) == memory


def test_spills_by_instruction_come_first() -> None:
    spilled = traffic(FAULTS["HBM001"](clean_step())).spill
    assert spilled is not None and spilled.kind == "measured"
    assert (spilled.save_bytes, spilled.reload_bytes) == (5 * 131_072, 5 * 131_072)
    clean = traffic(clean_step())
    assert clean.spill is not None and clean.spill.total_bytes() == 0
    assert clean.hbm is not None and clean.useful_bytes == clean.hbm.total_bytes()


def test_spills_by_virtual_tensors() -> None:
    """128 B to a virtual tensor, read back twice; without any known side nothing is said."""
    rows: list[Transfer] = [
        (0, 10, "v", "[SB]", "[[VIRTUAL]]", 128, 1),
        (20, 30, "v", "[[VIRTUAL]]", "[SB]", 128, 2),
        (40, 50, "v", "[[VIRTUAL]]", "[SB]", 128, 2),
        (60, 70, "w", "[[INPUT]]", "[SB]", 512, 3),
    ]
    found = traffic(with_transfers(BASE, rows))
    assert found.spill is not None
    assert (found.spill.save_bytes, found.spill.reload_bytes) == (128, 256)
    unknown: list[Transfer] = [(0, 10, "v", "unknown", "unknown", 128, 1)]
    assert traffic(with_transfers(BASE, unknown)).spill is None


def test_spills_by_the_compiler_s_queue_are_an_upper_bound() -> None:
    """Static rings named SpillReload carry spilled tensors and constants; saves are on other queues."""
    profile = timeline((0, 100), instructions=[("PE", 0, 100)], packets=[(0, 10, 512), (20, 30, 256)])
    assert profile.dma_packets is not None
    columns = {name: profile.dma_packets[name] for name in profile.dma_packets.column_names}
    table = make_table(
        "dma_packets", columns | {"queue_name": pa.array(["qSyncIO0", "qSyncSpillReload0"], pa.string())}
    )
    queue = DmaQueue(core=0, engine_idx=64, queue_idx=0, name="qSyncSpillReload0", type="data")
    metadata = dataclasses.replace(profile.metadata, static_dma=(queue,))
    found = traffic(dataclasses.replace(profile, dma_packets=table, metadata=metadata)).spill
    assert found is not None and (found.save_bytes, found.reload_bytes, found.kind) == (None, 256, "upper-bound")


def test_a_weight_loaded_more_than_once() -> None:
    """A weight of 400 B read as 1,000 B: 2.5 times, 600 B again. Without its size blocks that run again show it."""
    rows: list[Transfer] = [(i * 10, i * 10 + 5, "w", "[[INPUT]]", "[SB]", 200, i % 2) for i in range(5)]
    rows.append((90, 95, None, "[[INPUT]]", "[SB]", 50, None))
    profile = with_transfers(BASE, rows)
    sized = dataclasses.replace(
        profile,
        metadata=dataclasses.replace(profile.metadata, tensors=(TensorSize(name="w", kind="weight", size_bytes=400),)),
    )
    for given, factor in ((sized, 2.5), (profile, None)):
        found = traffic(given)
        assert found.tensors is not None
        by_name = {tensor.name: tensor for tensor in found.tensors}
        assert by_name["w"].reloaded_bytes == 600 and by_name["w"].load_factor == factor
        assert by_name[NOT_ATTRIBUTED].read_bytes == 50 and by_name[NOT_ATTRIBUTED].reloaded_bytes is None
        assert found.reloaded_bytes == 600
        assert sum(tensor.read_bytes for tensor in found.tensors) == 1_050
    assert traffic(BASE).tensors is None


def test_needed_bytes_from_a_neff_are_the_vendor_s(public_captures: Path) -> None:
    """Inputs, outputs and weights of the NEFF sum to the vendor's inputs_outputs_weights_size_bytes, in eight captures."""
    folders = sorted((public_captures / "trainium-kernel-fusion/profiling/artifacts").iterdir())
    assert len(folders) == 8
    for folder in folders:
        (capture,) = folder.glob("*.ntff")
        (vendor,) = folder.glob("json_reports/*full*.json")
        found = [measure_anatomy(read_profile(path), "trn2", BANDWIDTH).needed for path in (capture, vendor)]
        assert found[0] is not None and found[0] == found[1], folder.name
        # The fused kernels move each needed byte once.
        assert (found[0].moved_bytes == found[0].needed_bytes) == folder.name.startswith("fused")


def test_tensors_of_explorer_s_table(tmp_path: Path) -> None:
    """TensorInfo: IN, OUT and weights once each, whichever core lists them; spill buffers and odd rows are left out."""
    directory = tmp_path / "step@latest"
    profile = dataclasses.replace(BASE, metadata=dataclasses.replace(BASE.metadata, tensors=()))
    write_explorer_parquet(profile, directory)
    unmark(directory)
    rows = [
        ("x", "IN", 8),
        ("x", "IN", 8),
        ("w", "WEIGHT", 16),
        ("y", "OUT", 4),
        ("v", "VIRTUAL", 99),
        ("z", "IN", None),
        ("", "IN", 1),
    ]
    names, kinds, sizes = zip(*rows, strict=True)
    pq.write_table(pa.table({"variable_name": names, "type": kinds, "size": sizes}), directory / "TensorInfo.parquet")
    tensors = read_profile(directory).metadata.tensors
    assert [(tensor.name, tensor.kind, tensor.size_bytes) for tensor in tensors] == [
        ("x", "input", 8),
        ("w", "weight", 16),
        ("y", "output", 4),
    ]


def unmark(directory: Path) -> None:
    """Take out what says that trnprof wrote the files, so that they are read as the vendor's."""
    path = directory / "Metadata.parquet"
    table = pq.read_table(path)
    pq.write_table(table.drop_columns([name for name in table.column_names if name.startswith("trnprof")]), path)


# --- between kernels --------------------------------------------------------------------------------------------------


def boundaries(profile: Profile) -> CoreBoundaries:
    result = measure_boundaries(profile, measure_anatomy(profile, "trn2", BANDWIDTH))
    assert result is not None
    return result.cores[0]


CALLS = timeline((0, 1000), instructions=[("PE", 0, 1000)], kernels=[(0, 300), (300, 600), (700, 1000)], hbm_bytes=0)


def test_a_tensor_handed_over_through_hbm() -> None:
    """h: written at 100 in call 0, read twice in call 1 and once in call 2; w is never written; own reads stay inside."""
    rows: list[Transfer] = [
        (100, 110, "h", "[SB]", "[OUTPUT]", 64, 1),
        (150, 160, "h", "[[OUTPUT]]", "[SB]", 64, 2),
        (310, 320, "h", "[[OUTPUT]]", "[SB]", 64, 3),
        (330, 340, "h", "[[OUTPUT]]", "[SB]", 64, 4),
        (400, 410, "w", "[[INPUT]]", "[SB]", 999, 5),
        (620, 630, "h", "[[OUTPUT]]", "[SB]", 64, 6),
        (710, 720, None, "[[INPUT]]", "[SB]", 7, 7),
    ]
    found = boundaries(with_transfers(CALLS, rows))
    assert found.kind == "measured" and found.call_count == 3 and found.between_ns == 100
    assert [
        (row.writer, row.reader, row.crossing_count, row.written_bytes, row.read_back_bytes) for row in found.boundaries
    ] == [
        ("kernel", "kernel", 2, 64, 128),
        ("kernel", BETWEEN_KERNELS, 1, 64, 64),
    ]
    assert found.boundaries[0].hbm_ns == 192  # both ways at 1 byte a ns
    assert found.not_attributed_bytes == 7


def test_the_last_write_counts() -> None:
    """h is written by call 0 and again by call 1: call 2 reads what call 1 wrote."""
    rows: list[Transfer] = [
        (100, 110, "h", "[SB]", "[OUTPUT]", 10, 1),
        (400, 410, "h", "[SB]", "[OUTPUT]", 20, 2),
        (800, 810, "h", "[[OUTPUT]]", "[SB]", 30, 3),
    ]
    (row,) = boundaries(with_transfers(CALLS, rows)).boundaries
    assert (row.written_bytes, row.read_back_bytes) == (20, 30)


def test_without_names_neighbours_give_an_upper_bound() -> None:
    """Call 0 wrote 80 B, call 1 read 50 B: at most 50 B came back."""
    assert CALLS.instructions is not None
    columns = {name: CALLS.instructions[name] for name in CALLS.instructions.column_names}
    rows = {name: column.to_pylist() * 2 for name, column in columns.items()}
    rows |= {"start_ts": [10, 310], "end_ts": [20, 320], "hbm_read_bytes": [0, 50], "hbm_write_bytes": [80, 0]}
    found = boundaries(dataclasses.replace(CALLS, instructions=make_table("instructions", rows)))
    assert found.kind == "upper-bound"
    (row,) = found.boundaries
    assert (row.crossing_count, row.written_bytes, row.read_back_bytes, row.hbm_ns) == (1, 50, 50, 100)


def test_kernels_not_captured() -> None:
    bare = dataclasses.replace(CALLS, kernels=None)
    assert measure_boundaries(bare, measure_anatomy(bare, "trn2", BANDWIDTH)) is None


def test_round_trips_of_the_faulty_step() -> None:
    """Nine hand-overs of 256 KiB a core, each written and read once."""
    found = boundaries(FAULTS["HBM003"](clean_step()))
    (row,) = [row for row in found.boundaries if row.reader == "layer"]
    assert row.crossing_count == len(range(2_000, 198_000 - BLOCK_NS, BLOCK_NS)) == 9
    assert row.written_bytes == row.read_back_bytes == 9 * 256 * 1024

"""The modelled timeline as a Profile: it adds up, it is read back the same, and it agrees with what else is known."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest

from tests.bench.nki_model import ATTENTION, Measured, model_case
from tests.nki.timing.kernels import EXAMPLES, attention, example, lowered, record
from tests.nki.timing.test_lowering import HALVES, PAIR
from trnprof.analyzers.anatomy import measure_anatomy
from trnprof.analyzers.predicted_dma import TimeRange
from trnprof.hardware import bandwidth_for, load_hardware
from trnprof.hardware.instruction_costs import Case
from trnprof.nki.timing.model import PARTS, KernelModel, model_program, model_recording
from trnprof.profile import Profile, Provenance, codes_of, int64_of
from trnprof.readers import read_profile
from trnprof.writers.explorer_parquet import write_explorer_parquet
from trnprof.writers.modelled_capture import write_modelled_capture


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> KernelModel:
    return model_recording(attention(tmp_path_factory.mktemp("fused"), "fused", 512))


def anatomy(profile: Profile):
    hardware = load_hardware("trn2")
    return measure_anatomy(profile, "trn2", bandwidth_for(profile.metadata, hardware))


def test_the_account_of_every_schedule_adds_up(fused: KernelModel) -> None:
    for case in Case:
        profile = fused.profile(case)
        assert profile.metadata.provenance is Provenance.MODELLED
        core = anatomy(profile).cores[0]
        assert core.parts.total_ns() == core.window_ns == profile.metadata.cores[0].window_end_ts
        assert core.parts.runtime_overhead_ns == 0  # the body is all there is
        assert core.floor_above_work_ns == 0
    # The model's own bandwidth: 368 GB/s for a core alone (23 B/ns an engine).
    assert anatomy(fused.profile()).bandwidth.bytes_per_s == 368_000_000_000
    assert fused.cores[0].parts_ns["memory_floor"].mid == round((851_968 + 262_144) / 368)


def test_bytes_and_counts_are_the_captures(fused: KernelModel) -> None:
    """fused_fp32_s512 on a trn2.3xlarge: 851,968 B read, 262,144 written; 256 x 4,096 and 128 x 512 B packets of data; 2
    instructions a float32 product and 1 a transpose: 56 LDWEIGHTS and MATMULs of 4 + 16 products and 20 transposes."""
    profile = fused.profile()
    assert profile.instructions is not None
    assert profile.dma_packets is not None
    assert pc.sum(profile.instructions["hbm_read_bytes"]).as_py() == 851_968
    assert pc.sum(profile.instructions["hbm_write_bytes"]).as_py() == 262_144
    sizes = int64_of(profile.dma_packets["transfer_bytes"])
    found = dict(zip(*(values.tolist() for values in np.unique(sizes, return_counts=True)), strict=True))
    assert found == {4: 80, 512: 128, 4096: 256}
    codes, names = codes_of(profile.instructions["opcode"])
    counts = dict(zip(names, np.bincount(codes, minlength=len(names)).tolist(), strict=True))
    assert counts["MATMUL"] == counts["LDWEIGHTS"] == 2 * (4 + 16) + 20


def test_rows_are_in_order_and_inside_the_window(fused: KernelModel) -> None:
    profile = fused.profile()
    end = profile.metadata.cores[0].window_end_ts
    for name in ("instructions", "dma_packets"):
        table = getattr(profile, name)
        start, stop = int64_of(table["start_ts"]), int64_of(table["end_ts"])
        assert np.all(np.diff(start) >= 0)
        assert np.all((start >= 0) & (start <= stop) & (stop <= end)), name
    table = profile.instructions
    engine, _ = codes_of(table["engine"])
    for code in np.unique(engine):
        pcs = int64_of(table["compiler_pc"])[engine == code]
        assert pcs.tolist() == list(range(len(pcs)))


_KEYS = ("engine", "pc", "engine_idx", "queue_idx", "start_ts", "timestamp", "transfer_bytes")


def rows_of(profile: Profile, name: str, columns: list[str]) -> list[tuple[object, ...]]:
    """The rows of a table; those that begin at one instant may stand in any order in a file."""
    table = getattr(profile, name)
    rows = zip(*(table[column].to_pylist() for column in columns), strict=True)
    keys = [columns.index(key) for key in _KEYS if key in columns]
    return sorted(rows, key=lambda row: [str(row[key]).zfill(12) for key in keys])


def assert_same_rows(left: Profile, right: Profile, tables: tuple[str, ...], ignore: tuple[str, ...] = ()) -> None:
    for name in tables:
        theirs = getattr(right, name).column_names
        columns = [column for column in getattr(left, name).column_names if column in theirs and column not in ignore]
        assert len(columns) > 2
        assert rows_of(left, name, columns) == rows_of(right, name, columns), name


def test_parquet_round_trip(fused: KernelModel, tmp_path: Path) -> None:
    profile = fused.profile()
    write_explorer_parquet(profile, tmp_path / "modelled")
    back = read_profile(tmp_path / "modelled")
    assert back.metadata.provenance is Provenance.MODELLED
    assert back.metadata == profile.metadata or back.metadata.summary == profile.metadata.summary
    assert_same_rows(
        profile, back, ("instructions", "dma_packets", "semaphores", "collectives", "throttle", "kernels", "sources")
    )
    assert anatomy(back).cores[0].parts == anatomy(profile).cores[0].parts


def test_ntff_and_neff_round_trip(fused: KernelModel, tmp_path: Path) -> None:
    profile = fused.profile()
    written = write_modelled_capture(profile, tmp_path / "modelled.ntff", "fused_attention")
    assert written.stand_ins == {}
    back = read_profile(written.ntff)
    assert back.metadata.provenance is Provenance.MODELLED
    assert_same_rows(
        profile,
        back,
        ("instructions", "dma_packets", "throttle"),
        # NTFF counts a wait in ticks; names are the NEFF's.
        ignore=("evt_wait_time_ns", "kernel_instruction_name", "nki_source_location", "bir_debug_info_source_location",
                "tensor_instruction_type", "raw_flops", "tensor_elements", "hbm_read_bytes", "hbm_write_bytes"),
    )  # fmt: skip
    assert pc.sum(back.instructions["hbm_read_bytes"]).as_py() == 851_968
    lines = set(back.instructions["nki_source_location"].cast("string").to_pylist())
    mine = {
        text.split(",")[0] if text else None
        for text in profile.instructions["nki_source_location"].cast("string").to_pylist()
    }
    assert lines - {None} == mine - {None, ""}
    # The kernel's span is not in an NTFF: what it alone covered is idle there, all else is the same.
    ours, theirs = anatomy(profile).cores[0].parts, anatomy(back).cores[0].parts
    assert ours.busy_beyond_floor_ns + (ours.memory_floor_ns or 0) == theirs.busy_beyond_floor_ns + (
        theirs.memory_floor_ns or 0
    )


def test_opcodes_without_a_byte_are_said(tmp_path: Path) -> None:
    from tests.nki.timing.kernels import SECOND

    source = (
        SECOND
        + """
@nki.jit
def kernel(x):
    tile = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    stats = nl.ndarray((128, 6), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.bn_stats(dst=stats, data=tile)
"""
    )
    profile = model_recording(record(source, tmp_path, {"x": ((128, 512), "float32")})).profile()
    written = write_modelled_capture(profile, tmp_path / "m.ntff", "kernel")
    assert written.stand_ins == {"BN_STATS": 1}
    codes = read_profile(written.ntff).instructions["opcode"].to_pylist()
    assert "BN_STATS" not in codes
    assert "TENSOR_TENSOR" in codes


def test_a_pair_has_two_cores_of_one_window(tmp_path: Path) -> None:
    found = model_recording(record(PAIR, tmp_path, HALVES, lnc=2))
    profile = found.profile()
    assert [core.core for core in profile.metadata.cores] == [0, 1]
    assert len({core.window_end_ts for core in profile.metadata.cores}) == 1
    account = anatomy(profile)
    assert [core.parts.total_ns() for core in account.cores] == [profile.metadata.cores[0].window_end_ts] * 2
    # Program 1 waits at the barrier for program 0's activations.
    assert account.cores[1].parts.in_kernel_wait_ns > account.cores[0].parts.in_kernel_wait_ns
    assert found.bandwidth_bytes_per_s[Case.MID] == 336_000_000_000
    written = write_modelled_capture(profile, tmp_path / "pair.ntff", "kernel")
    assert len(read_profile(written.ntff).metadata.cores) == 2


def test_streams_reach_the_bandwidth_and_no_more(tmp_path: Path) -> None:
    found = model_recording(
        example("dma_streams.py", tmp_path, "mixed_modes", {"a": ((128, 32768), "bfloat16")}, width=2048)
    )
    moved = 2 * 128 * 32768 * 2
    core = found.cores[0]
    assert core.parts_ns["memory_floor"] == TimeRange(*(round(moved / rate) for rate in (435.2, 368, 296)))
    assert core.data_ns.mid >= core.parts_ns["memory_floor"].mid
    assert core.data_ns.mid == pytest.approx(moved / 368, rel=0.01)


@pytest.mark.parametrize(
    ("file", "kernel", "tensors", "within"),
    [
        ("matmul_tilings.py", "row_loads", dict.fromkeys(("lhs_t", "rhs"), ((4096, 4096), "bfloat16")), 0.02),
        ("dma_streams.py", "combine", dict.fromkeys("ab", ((8192, 4096), "float32")), 0.02),
        ("attention_phases.py", "fused_attention", dict.fromkeys("qkv", ((128, 4096), "float32")), 0.03),
    ],
)
def test_extrapolation_against_laying_everything_out(
    tmp_path: Path, file: str, kernel: str, tensors: dict[str, tuple[tuple[int, ...], str]], within: float
) -> None:
    source = (EXAMPLES / file).read_text()
    whole = model_recording(record(source, tmp_path, tensors, kernel=kernel))
    part = model_recording(record(source, tmp_path, tensors, kernel=kernel, iterations=16))
    assert not whole.extrapolated
    assert part.extrapolated
    assert len(part.program) < len(whole.program)
    assert part.laid_out_ns.mid < part.total_ns.mid
    assert part.total_ns.mid == pytest.approx(whole.total_ns.mid, rel=within)
    assert part.program.written_count == whole.program.written_count


def test_more_to_do_takes_longer(tmp_path: Path) -> None:
    sizes = [model_recording(attention(tmp_path, "fused", size)).total_ns for size in (512, 1024, 2048)]
    for smaller, larger in itertools.pairwise(sizes):
        assert smaller.low < larger.low
        assert smaller.mid < larger.mid
        assert smaller.high < larger.high


def test_parts_are_named(fused: KernelModel) -> None:
    assert tuple(fused.cores[0].parts_ns) == PARTS
    assert fused.unknown == {}
    assert {bracket.kind for bracket in fused.used_constants()} <= {"documented", "measured", "derived", "guess"}


@pytest.mark.parametrize("target", ["trn1", "trn3"])
def test_other_generations(tmp_path: Path, target: str) -> None:
    found = model_program(lowered(attention(tmp_path, "fused", 512, target=target)))
    assert found.profile().metadata.hardware == target
    throttle = found.profile().throttle
    assert (throttle is not None and throttle.num_rows > 0) == (target == "trn3")  # trn1 has no dI/dt limit


@pytest.mark.parametrize("case", [case for case in ATTENTION if case.name.endswith("s512")], ids=lambda case: case.name)
def test_parts_add_up_to_the_nanosecond(case: Measured) -> None:
    """A body that ends past half a nanosecond too: the profile's window and the total are cut alike."""
    found = model_case(case)
    assert sum(part.mid for part in found.cores[0].parts_ns.values()) == found.laid_out_ns.mid == found.total_ns.mid

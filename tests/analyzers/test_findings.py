"""A clean step has no finding, and each injected fault is found with its code, at a cost that its arithmetic gives."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.faulty_profiles import BLOCK_NS, BODY, FAULTS, QUIET, clean_step
from trnprof.analyzers.anatomy import Anatomy, measure_anatomy
from trnprof.analyzers.data_quality import assess_data_quality
from trnprof.analyzers.findings import NEED_WHOLE_TABLES, find_findings
from trnprof.finding_codes import FINDING_CODES
from trnprof.findings import Finding
from trnprof.hardware import bandwidth_for, load_hardware
from trnprof.profile import Profile, Provenance

TRN2 = load_hardware("trn2")

CLEAN = clean_step()

CONSEQUENCES = {"LNC001": {"WAIT003"}}
"""Codes that a fault brings with it: the shorter core of an unbalanced pair waits for the other at a barrier."""

COSTS = {
    "LNC001": 77_081,  # core 0's work less core 1's: the 77,000 ns of its wait, and a matmul's rest
    "CC001": (BODY[1] - BODY[0] + BLOCK_NS - 1) // BLOCK_NS * 5_000,  # ten calls of 5 us
    "CC002": 9_000,  # 14 us less the median's 5
    "THR001": 60_000 // 2,
    "HBM001": 3_901,  # 5 x 2 x 131,072 B / 336 GB/s
    "WAIT001": QUIET[1] - QUIET[0],
    "WAIT002": QUIET[1] - QUIET[0],
    "WAIT003": QUIET[1] - QUIET[0],
    "RUN001": 60_000 + 4_100,
}


def analysed(profile: Profile) -> tuple[Anatomy, tuple[Finding, ...]]:
    anatomy = measure_anatomy(profile, "trn2", bandwidth_for(profile.metadata, TRN2))
    return anatomy, find_findings(profile, anatomy, TRN2)


def test_a_clean_step_has_no_finding() -> None:
    assert analysed(CLEAN)[1] == ()


def test_every_code_has_a_fault() -> None:
    assert set(FAULTS) == set(FINDING_CODES)


@pytest.mark.parametrize("code", FAULTS)
def test_a_fault_is_found_and_nothing_else(code: str) -> None:
    anatomy, found = analysed(FAULTS[code](CLEAN))
    assert {entry.code for entry in found} - CONSEQUENCES.get(code, set()) == {code}
    (entry,) = [entry for entry in found if entry.code == code]
    assert entry.title == FINDING_CODES[code].title and entry.advice and entry.evidence
    assert entry.cost_ns is not None and entry.ceiling_ns is not None and entry.share is not None
    # The ceiling is never more than the symptom itself, and that never more than the window.
    assert 0 <= entry.ceiling_ns <= entry.cost_ns <= anatomy.cores[0].window_ns
    if code in COSTS:
        assert entry.cost_ns == COSTS[code]


@pytest.mark.parametrize("code", FAULTS)
def test_a_fault_survives_being_written(code: str, tmp_path: Path) -> None:
    """The same finding, to the nanosecond, from the vendor's tables on disk."""
    from trnprof.readers import read_profile
    from trnprof.writers.explorer_parquet import write_explorer_parquet

    faulty = FAULTS[code](CLEAN)
    write_explorer_parquet(faulty, tmp_path / "step@latest")
    (before,) = [entry for entry in analysed(faulty)[1] if entry.code == code]
    (after,) = [entry for entry in analysed(read_profile(tmp_path / "step@latest"))[1] if entry.code == code]
    assert (after.cost_ns, after.ceiling_ns, after.share) == (before.cost_ns, before.ceiling_ns, before.share)


@pytest.mark.parametrize("batch_rows", [500, 100_000])
@pytest.mark.parametrize("code", ["none", *FAULTS])
def test_a_fault_is_found_in_batches(code: str, batch_rows: int, tmp_path: Path) -> None:
    """What whole tables give, to the nanosecond, but for the codes that need them; nothing of a clean step."""
    from trnprof.readers.explorer_batches import ExplorerBatches
    from trnprof.streamed import account_batches
    from trnprof.writers.explorer_parquet import write_explorer_parquet

    profile = FAULTS.get(code, lambda clean: clean)(CLEAN)
    write_explorer_parquet(profile, tmp_path / "step@latest")
    bandwidth = bandwidth_for(profile.metadata, TRN2)
    found = account_batches(ExplorerBatches(tmp_path / "step@latest", batch_rows=batch_rows), TRN2, bandwidth)
    expected = [entry for entry in analysed(profile)[1] if entry.code not in found.codes_left_out]
    assert found.codes_left_out == NEED_WHOLE_TABLES
    assert [(entry.code, entry.cost_ns, entry.ceiling_ns, entry.share) for entry in found.findings] == [
        (entry.code, entry.cost_ns, entry.ceiling_ns, entry.share) for entry in expected
    ]


def test_ceilings_come_first() -> None:
    """Two faults: the exposed collectives can win 50 us, the spill only the 19 ns of packets that no matmul covers."""
    _, found = analysed(FAULTS["CC001"](FAULTS["HBM001"](CLEAN)))
    assert [entry.code for entry in found] == ["CC001", "HBM001"]
    assert [entry.ceiling_ns for entry in found] == [50_000, 19]


def test_a_table_that_was_not_captured_raises_nothing() -> None:
    """Without packets, collectives, kernels and throttling no rule invents a finding."""
    bare = dataclasses.replace(
        CLEAN,
        dma_packets=None,
        dma_transfers=None,
        collectives=None,
        kernels=None,
        throttle=None,
        semaphores=None,
        metadata=dataclasses.replace(CLEAN.metadata, summary={}),
    )
    assert analysed(bare)[1] == ()


@pytest.mark.parametrize(
    "name",
    ["baseline_bf16_s1024", "baseline_fp32_s1024", "baseline_fp32_s512", "fused_bf16_s512", "fused_fp32_s1024"],
)
def test_real_captures(captures: Path, name: str) -> None:
    """These kernels run on one core of the pair, transpose on the tensor engine, and spend 13 us in the runtime."""
    from trnprof.readers import read_profile

    _, found = analysed(read_profile(captures / name / "neuron_profile.json.gz"))
    assert {"LNC002", "PE002", "RUN001"} <= {entry.code for entry in found}
    assert all(0 <= (entry.ceiling_ns or 0) <= (entry.cost_ns or 0) for entry in found)
    ceilings = [entry.ceiling_ns or 0 for entry in found]
    assert ceilings == sorted(ceilings, reverse=True)


def test_throttling_taints_a_capture_but_not_a_model() -> None:
    """DQ010 tells to capture again; a modelled step's throttling is its result, and THR001 says what it costs."""
    for provenance, codes in ((Provenance.MEASURED_DEVICE, {"DQ010"}), (Provenance.MODELLED, set())):
        faulty = FAULTS["THR001"](CLEAN)
        profile = dataclasses.replace(faulty, metadata=dataclasses.replace(faulty.metadata, provenance=provenance))
        anatomy, found = analysed(profile)
        assert {entry.code for entry in assess_data_quality(profile, anatomy)} & {"DQ010"} == codes
        assert "THR001" in {entry.code for entry in found}

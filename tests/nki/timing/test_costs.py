"""What one instruction costs: the formulae by hand, and what real instructions took."""

from __future__ import annotations

import pytest

from trnprof.errors import UsageError
from trnprof.hardware.instruction_costs import Case, load_instruction_costs
from trnprof.nki.timing.formulas import FORMULAS, CostModel
from trnprof.nki.timing.work import Work

RATES = ("dma.engine_bytes_per_ns", "dma.pair_engine_bytes_per_ns", "collective.bytes_per_ns")
"""Of these the high schedule takes the smallest."""


def model(case: Case = Case.MID, generation: str = "trn2") -> CostModel:
    return CostModel(load_instruction_costs(generation), case)


def issue_ns(engine: str, work: Work, case: Case = Case.MID) -> float:
    return model(case).cost(engine, work).issue_ps / 1000


def latency_ns(engine: str, work: Work, case: Case = Case.MID) -> float:
    return model(case).cost(engine, work).latency_ps / 1000


@pytest.mark.parametrize("generation", ["trn1", "trn2", "trn3"])
def test_every_entry_is_a_bracket_with_a_source(generation: str) -> None:
    costs = load_instruction_costs(generation)
    for bracket in costs.entries():
        ends = (bracket.low, bracket.mid, bracket.high)
        assert list(ends) == sorted(ends, reverse=bracket.name in RATES), bracket.name
        assert bracket.unit, bracket.name
        assert bracket.source, bracket.name
        assert bracket.kind in ("documented", "measured", "derived", "guess"), bracket.name
    for name, entry in costs.instructions.items():
        assert entry.formula in (*FORMULAS, "register"), name
        assert entry.source, name
        assert entry.kind, name


def test_what_no_generation_states_is_a_guess_there() -> None:
    taken = load_instruction_costs("trn3")["fixed.semaphore_signal_ns"]
    assert taken.kind == "guess"
    assert "taken over" in taken.source
    assert load_instruction_costs("trn3")["dma.engine_bytes_per_ns"].kind == "documented"


def test_an_unknown_generation_is_said() -> None:
    with pytest.raises(UsageError, match="known: trn1, trn2, trn3"):
        load_instruction_costs("trn9")


def test_low_is_the_documented_formula() -> None:
    # Activation of 512 columns: max(64, 512) scalar cycles at 1.2 GHz = 426.7 ns; 8 columns: 64 cycles = 53.3 ns.
    assert issue_ns("scalar", Work("activation", elements=512), Case.LOW) == pytest.approx(426.67, abs=0.01)
    assert issue_ns("scalar", Work("activation", elements=8), Case.LOW) == pytest.approx(53.33, abs=0.01)
    # tensor_tensor_scan: 2N on the vector engine at 0.96 GHz.
    assert issue_ns("vector", Work("tensor_tensor_scan", elements=480), Case.LOW) == pytest.approx(1000, abs=0.01)


def test_matmuls() -> None:
    # 512 moving columns at 2.4 GHz are 213.3 ns a pass; float32 takes four passes in two instructions, each 8 cycles more.
    assert issue_ns("tensor", Work("nc_matmul", 512, 128, 128), Case.LOW) == pytest.approx(213.33, abs=0.01)
    assert issue_ns("tensor", Work("nc_matmul", 512, 128, 128, True), Case.LOW) == pytest.approx(853.33, abs=0.01)
    assert issue_ns("tensor", Work("nc_matmul", 512, 128, 128, True)) == pytest.approx((2048 + 16) / 2.4, abs=0.01)
    # 8 moving columns cost what 64 do; a float32 transpose of 128 x 128 two passes of 128.
    assert issue_ns("tensor", Work("nc_matmul", 8, 128, 128), Case.LOW) == pytest.approx(26.67, abs=0.01)
    assert issue_ns("tensor", Work("nc_transpose_tensor", 128, 128, 128, True), Case.LOW) == pytest.approx(
        106.67, abs=0.01
    )


@pytest.mark.parametrize(
    ("engine", "work", "issue", "latency"),
    [
        # trn2 captures of allenkchau/trainium-kernel-fusion, medians of fused_fp32_s1024: starts of back-to-back
        # instructions, and how long each took.
        ("vector", Work("tensor_reduce", elements=512), (592, 611), (672, 687)),
        ("vector", Work("tensor_scalar", elements=512, pointer=True), (395, 396), (480, 487)),
        ("vector", Work("tensor_copy", elements=512, in_psum=True), (596, 597), (679, 691)),
        ("scalar", Work("tensor_copy", elements=512, in_psum=True), (477, 477), (584, 591)),
        ("scalar", Work("activation", elements=512, pointer=True), (585, 612), (673, 729)),
        ("tensor", Work("nc_transpose_tensor", 128, 128, 128, True), (107, 112), (270, 275)),
    ],
)
def test_mid_is_what_captures_show(engine: str, work: Work, issue: tuple[int, int], latency: tuple[int, int]) -> None:
    assert issue[0] - 4 <= issue_ns(engine, work) <= issue[1] + 4
    assert latency[0] - 4 <= latency_ns(engine, work) <= latency[1] + 4


def test_few_columns_hold_the_engine_for_64_and_are_out_sooner() -> None:
    # The expert layer's capture: products of one column take 163 to 165 ns, 392 cycles and their own.
    one = Work("nc_matmul", 1, 128, 128)
    assert issue_ns("tensor", one) == pytest.approx((64 + 8) / 2.4, abs=0.01)
    assert latency_ns("tensor", one) == pytest.approx(165, abs=3)


def test_a_small_dependent_instruction_takes_what_a_decode_step_measured() -> None:
    # TrnRT: 153 ns for a small instruction in a chain on the vector engine.
    assert latency_ns("vector", Work("tensor_reduce", elements=1)) == pytest.approx(153, abs=1)


def test_fast_modes() -> None:
    def work(**more: object) -> float:
        return issue_ns("vector", Work("tensor_copy", elements=1024, **more), Case.LOW)  # type: ignore[arg-type]

    whole = 1024 / 0.96
    assert work(itemsize=2) == pytest.approx(whole / 4, rel=1e-4)
    assert work(itemsize=2, contiguous=False) == pytest.approx(whole / 2, rel=1e-4)
    assert work(itemsize=2, in_psum=True) == pytest.approx(whole / 2, rel=1e-4)
    assert work(itemsize=4) == pytest.approx(whole / 2, rel=1e-4)
    assert work(itemsize=4, in_psum=True) == pytest.approx(whole, rel=1e-4)


def test_gpsimd_and_dynamic_addresses() -> None:
    assert issue_ns("gpsimd", Work("iota", elements=450)) == pytest.approx((150 + 450) / 1.2, abs=0.01)
    assert issue_ns("vector", Work("tensor_copy_dynamic", elements=8)) == pytest.approx(600 / 0.96, abs=0.01)


def test_costs_grow_from_low_to_high() -> None:
    works = [
        Work(name, elements=300, groups=2)
        for name in load_instruction_costs("trn2").instructions
        if not name.startswith("nc_")
    ]
    for work in works:
        costs = [issue_ns("vector", work, case) for case in Case]
        assert costs == sorted(costs), work

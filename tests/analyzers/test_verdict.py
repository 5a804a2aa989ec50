"""Verdicts: the users' cases G1 and K8, the t table, and what must hold of any two sides."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnprof.analyzers.name_matching import match_names, without_hashes, without_numbers
from trnprof.analyzers.verdict import Outcome, judge, t_95

US = 1_000


def test_g1_a_real_regression_below_the_bar() -> None:
    """6,931 to 6,949 us (ranges 6,929-6,932 and 6,947-6,953 disjoint): +0.26 %, real, below the 2 % bar."""
    before = [us * US for us in (6929, 6931, 6931, 6932, 6932)]
    after = [us * US for us in (6947, 6947, 6949, 6949, 6953)]
    for paired in (None, False):
        verdict = judge(before, after, bar_share=0.02, paired=paired)
        assert verdict.outcome is Outcome.REAL_BELOW_BAR
        assert verdict.change_share == pytest.approx(0.0026, abs=0.00005)
        assert verdict.interval_share is not None and verdict.interval_share[0] > 0
    assert judge(before, after, bar_share=0.001).outcome is Outcome.SLOWER


def test_k8_noise_is_not_a_win() -> None:
    """Baseline 100.0±2: 98.6 is discarded; 96 with two paired wins is kept."""
    for candidate in ([98.6], [96.9, 98.6, 100.3], [98.6, 98.6, 98.6]):
        verdict = judge([98.0, 100.0, 102.0], candidate, bar_share=0.02, paired=False)
        assert verdict.outcome not in (Outcome.FASTER, Outcome.SLOWER), candidate
    kept = judge([98.0, 102.0], [94.5, 97.5], bar_share=0.02)
    assert kept.outcome is Outcome.FASTER and kept.paired and "2 of 2 pairs" in kept.method
    # One of the pairs does not reach the bar: not kept.
    assert judge([98.0, 102.0], [97.0, 95.0], bar_share=0.02).outcome is Outcome.INCONCLUSIVE


def test_one_capture_a_side_says_that_the_noise_is_not_known() -> None:
    verdict = judge([100.0], [80.0], bar_share=0.02)
    assert verdict.outcome is Outcome.INCONCLUSIVE and "noise" in verdict.method
    assert judge([100.0], [100.0], bar_share=0.02).outcome is Outcome.SAME


def test_disjoint_ranges_need_enough_of_them() -> None:
    """4 + 4 in order happen by chance in 2 of 70 cases; 2 + 2 in 2 of 6, which shows nothing."""
    wide = judge([100, 100, 100, 180], [200, 200, 200, 1000], bar_share=0.02, paired=False)
    assert wide.outcome is Outcome.SLOWER and "disjoint (p = 0.029)" in wide.method
    assert judge([100, 180], [200, 1000], bar_share=0.02, paired=False).outcome is Outcome.INCONCLUSIVE


def test_narrow_intervals_inside_the_bar_are_the_same() -> None:
    verdict = judge([100.0, 100.2, 99.9, 100.1], [100.1, 100.0, 100.2, 99.9], bar_share=0.02)
    assert verdict.outcome is Outcome.SAME and "inside the bar" in verdict.method


def test_pairs_take_out_what_both_share() -> None:
    """Nodes differ by 10 %, the change is 5 % on each: visible in pairs, not without."""
    before = [90.0, 100.0, 110.0, 95.0]
    after = [time * 0.95 + noise for time, noise in zip(before, (0.1, -0.1, 0.05, -0.05), strict=True)]
    assert judge(before, after, bar_share=0.02).outcome is Outcome.FASTER
    assert judge(before, after, bar_share=0.02, paired=False).outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize(
    ("freedom", "value"), [(1, 12.706), (4, 2.776), (30, 2.042), (35, 2.042), (59, 2.021), (10_000, 1.98)]
)
def test_t_table(freedom: int, value: float) -> None:
    """Published two-sided 95 % values; between rows the larger one."""
    assert t_95(freedom) == value


@pytest.mark.parametrize(
    ("before", "after", "bar", "paired"),
    [
        ([], [1.0], 0.02, None),
        ([1.0], [0.0], 0.02, None),
        ([1.0], [math.nan], 0.02, None),
        ([1.0], [1.0], -0.1, None),
        ([1.0, 2.0], [1.0], 0.02, True),
    ],
)
def test_impossible_measurements_are_refused(before, after, bar, paired) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError):
        judge(before, after, bar_share=bar, paired=paired)


times = st.lists(st.integers(1, 10_000).map(float), min_size=1, max_size=6)
OPPOSITE = {Outcome.FASTER: Outcome.SLOWER, Outcome.SLOWER: Outcome.FASTER}


@given(times, times)
def test_laws(before: list[float], after: list[float]) -> None:
    """A side against itself is the same; the interval holds the change; a verdict that is real keeps its sign."""
    assert judge(before, before, bar_share=0.02).outcome is Outcome.SAME
    verdict = judge(before, after, bar_share=0.02)
    if verdict.interval_share is not None:
        low, high = verdict.interval_share
        assert low - 1e-9 <= verdict.change_share <= high + 1e-9
    if verdict.outcome is Outcome.FASTER:
        assert verdict.change_share <= -0.02
    if verdict.outcome is Outcome.SLOWER:
        assert verdict.change_share >= 0.02
    # With no bar a change that is real one way is real the other way round.
    first, second = judge(before, after, bar_share=0), judge(after, before, bar_share=0)
    if first.outcome in OPPOSITE:
        assert second.outcome is OPPOSITE[first.outcome]


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "bare"),
    [
        ("fusion.12_a1b2", "fusion.12"),
        ("MODULE_1110545750766486452+fad94d7c", "MODULE"),
        ("kernel_0bf12844-bb6f-4820-81c1-dd5d2f12e4ed", "kernel"),
        ("mlp_deadbee1_half", "mlp_half"),
        ("layer_1024", "layer_1024"),
        ("attention_bf16", "attention_bf16"),
        ("dead_beef_cafe", "dead_beef_cafe"),
        ("mlp.py:5712", "mlp.py:5712"),
        ("a1b2", "a1b2"),
    ],
)
def test_hashes_go_and_words_stay(name: str, bare: str) -> None:
    assert without_hashes(name) == bare


def test_g2_a_name_with_another_hash_is_one_row() -> None:
    (match,) = match_names(["fusion.12_a1b2"], ["fusion.12_c3d4"])
    assert match.renamed and match.before == ("fusion.12_a1b2",) and match.name == "fusion.12_c3d4"


def test_numbers_match_only_alone() -> None:
    """One fusion.7 for one fusion.9 is that; two for one is anybody's guess, so nothing is guessed."""
    assert [match.renamed for match in match_names(["fusion.7"], ["fusion.9"])] == [True]
    assert [match.renamed for match in match_names(["fusion.7", "fusion.8"], ["fusion.9"])] == [False] * 3
    assert without_numbers("mlp.py:57") == without_numbers("mlp.py:61") == "mlp.py:#"


def test_several_hashes_of_one_name_are_taken_together() -> None:
    (match,) = match_names(["f_a1b2", "f_b2c3"], ["f_c3d4"])
    assert match.before == ("f_a1b2", "f_b2c3") and match.after == ("f_c3d4",) and match.name == "f_c3d4"


parts = st.sampled_from(["fusion", "mlp", "12", "13", "a1b2", "c3d4", "bf16", "x"])
names = st.sets(st.lists(parts, min_size=1, max_size=3).map("_".join), max_size=8)


@given(names, names)
def test_each_name_is_in_one_match(before: set[str], after: set[str]) -> None:
    matches = match_names(before, after)
    assert sorted(name for match in matches for name in match.before) == sorted(before)
    assert sorted(name for match in matches for name in match.after) == sorted(after)
    for match in matches:
        assert match.before or match.after
        if not match.renamed and match.before and match.after:
            assert match.before == match.after

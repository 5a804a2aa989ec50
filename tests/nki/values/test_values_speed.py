"""How long values take and how much memory: the bench's cases against their limits."""

from __future__ import annotations

import pytest

from tests.bench.nki_values import CASES, Case, measure


@pytest.mark.parametrize("case", CASES[:2], ids=lambda case: case.kernel)
def test_attention_of_512_in_two_seconds(case: Case) -> None:
    found = measure(case)
    assert found["seconds"] < case.limit_s
    assert found["error"] < 5e-3


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES[2:], ids=lambda case: case.kernel)
def test_larger_kernels_within_their_time_and_three_times_their_tensors(case: Case) -> None:
    found = measure(case)
    assert found["seconds"] < case.limit_s
    assert found["error"] < 5e-3
    if found["tensors"] > 8 << 20:  # below, one tile of scratch counts as much as a tensor
        assert found["grown"] <= 3 * found["tensors"]

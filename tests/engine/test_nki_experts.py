"""experts as NKI kernels: the CPU kernel and a sum in float64 are the references for values, arithmetic for bytes."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from tests.engine.nki_traffic import kernel_traffic  # noqa: E402
from trnprof.engine.kernels import experts as cpu  # noqa: E402
from trnprof.engine.kernels.contracts import CONTRACTS, load_kernels  # noqa: E402
from trnprof.engine.kernels.examples import difference  # noqa: E402
from trnprof.engine.kernels.nki.bridge import run_kernel  # noqa: E402
from trnprof.engine.kernels.nki.experts_calls import experts, experts_to_run, packed_down, packed_gate_up, tile_size  # noqa: E402
from trnprof.nki.recording import TensorSpec  # noqa: E402

TOLERANCE = CONTRACTS["experts"].tolerance


def layer(
    rows: int, *, hidden: int = 64, inner: int = 32, count: int = 8, top_k: int = 2, dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    """Random arguments."""
    make = torch.Generator().manual_seed(rows + hidden + inner)
    return {
        "x": torch.randn(rows, hidden, generator=make).to(dtype),
        "weights": torch.rand(rows, top_k, generator=make).to(dtype),
        "chosen": torch.stack([torch.randperm(count, generator=make)[:top_k] for _ in range(rows)]),
        "gate_up": (torch.randn(count, 2 * inner, hidden, generator=make) * hidden**-0.5).to(dtype),
        "down": (torch.randn(count, hidden, inner, generator=make) * inner**-0.5).to(dtype),
    }


def in_float64(given: dict[str, Any]) -> Tensor:
    """The contract's sum, pair by pair."""
    x, weights, gate_up, down = (given[name].double() for name in ("x", "weights", "gate_up", "down"))
    out = torch.zeros_like(x)
    for row, numbers in enumerate(given["chosen"].tolist()):
        for place, number in enumerate(numbers):
            gate, up = (gate_up[number] @ x[row]).chunk(2)
            out[row] += weights[row, place] * (down[number] @ (gate * torch.sigmoid(gate) * up))
    return out


@pytest.mark.parametrize("form", cpu.FORMS)
@pytest.mark.parametrize("rows", [1, 4, 8])
def test_every_form_agrees_with_the_cpu_kernel(form: str, rows: int) -> None:
    def candidate(*arguments: Any) -> Tensor:
        return experts(*arguments[:-1], form)

    for seed in range(3):
        assert difference("experts", candidate, rows=rows, seed=seed) <= TOLERANCE


def test_it_is_registered() -> None:
    assert load_kernels("nki", fallback="cpu").experts is experts


@pytest.mark.parametrize("form", cpu.FORMS)
@pytest.mark.parametrize(
    ("rows", "sizes"),
    [
        pytest.param(3, {"hidden": 256, "inner": 192}, id="inner channels in tiles of 96"),
        pytest.param(3, {"hidden": 320, "inner": 40}, id="hidden channels in tiles of 80"),
        pytest.param(3, {"hidden": 2048, "inner": 384, "count": 3}, id="several DMAs an expert"),
        pytest.param(5, {"count": 4, "top_k": 1}, id="one expert a row"),
        pytest.param(2, {"count": 4, "top_k": 4}, id="all experts"),
        pytest.param(130, {"hidden": 16, "inner": 8, "count": 2, "top_k": 1}, id="more rows than partitions"),
    ],
)
def test_other_sizes_agree_too(form: str, rows: int, sizes: dict[str, int]) -> None:
    given = layer(rows, **sizes)
    expected = in_float64(given)
    assert (experts(**given, form=form) - expected).abs().max() <= TOLERANCE * expected.abs().max()


def test_more_rows_than_a_call_takes_go_in_several() -> None:
    given = layer(515, hidden=16, inner=8, count=2, top_k=1)
    expected = in_float64(given)
    assert (experts(**given, form="dense") - expected).abs().max() <= TOLERANCE * expected.abs().max()


@pytest.mark.parametrize("form", cpu.FORMS)
def test_bfloat16_differs_by_two_roundings(form: str) -> None:
    # Sums are float32; what stands between the projections and the result are rounded to 8 bits, half a unit each: 2 * 2^-9.
    given = layer(4, hidden=256, inner=128, dtype=torch.bfloat16)
    expected, got = in_float64(given), experts(**given, form=form)
    assert got.dtype == torch.bfloat16
    assert 0 < (got.double() - expected).abs().max() <= 2**-8 * expected.abs().max()


def test_experts_spread_over_ranks_add_up_to_the_whole() -> None:
    given = layer(6, count=8, top_k=3)
    parts = []
    for first in (0, 4):
        local = given | {
            "gate_up": packed_gate_up(given["gate_up"][first : first + 4]),
            "down": packed_down(given["down"][first : first + 4]),
            "chosen": given["chosen"].to(torch.int32),
        }
        (part,) = run_kernel("experts.py", "experts_once", **local, first_expert=first)
        (listed,) = run_kernel(
            "experts.py", "experts_once", **local, first_expert=first, numbers=torch.arange(4, dtype=torch.int32)
        )
        assert torch.equal(part, listed)
        parts.append(part)
    expected = in_float64(given)
    assert (sum(parts) - expected).abs().max() <= TOLERANCE * expected.abs().max()


def test_the_experts_to_run_are_those_that_a_row_chose() -> None:
    assert experts_to_run(torch.tensor([[5, 2], [2, 7]]), 8).tolist() == [2, 5, 7]


# What it moves

QWEN3_30B = {"experts": 128, "hidden": 2048, "inner": 768}
SHARDED = {"experts": 512, "hidden": 2048, "inner": 128}
GLM = {"experts": 288, "hidden": 4096, "inner": 2048}


def specs(rows: int, top_k: int, experts: int, hidden: int, inner: int) -> dict[str, Any]:
    """Arguments without values, bfloat16."""
    p, q = tile_size(hidden), tile_size(inner)
    return {
        "x": TensorSpec((rows, hidden), "bfloat16"),
        "weights": TensorSpec((rows, top_k), "bfloat16"),
        "chosen": TensorSpec((rows, top_k), "int32"),
        "gate_up": TensorSpec((experts, p, inner // q, 2, hidden // p, q), "bfloat16"),
        "down": TensorSpec((experts, q, hidden // p, inner // q, p), "bfloat16"),
    }


@pytest.mark.parametrize(
    ("kernel", "sizes", "rows", "top_k", "listed"),
    [
        ("experts_selective", QWEN3_30B, 1, 8, None),
        ("experts_selective", SHARDED, 8, 10, None),
        ("experts_once", QWEN3_30B, 8, 8, 52),
        ("experts_once", GLM, 8, 8, 9),
        ("experts_once", SHARDED, 64, 10, None),
    ],
)
def test_weights_move_once_a_pair_or_once_an_expert(
    kernel: str, sizes: dict[str, int], rows: int, top_k: int, listed: int | None
) -> None:
    given = specs(rows, top_k, **sizes)
    if listed is not None:
        given["numbers"] = TensorSpec((listed,), "int32")
    loads = rows * top_k if kernel == "experts_selective" else listed or sizes["experts"]
    expert_bytes = 3 * sizes["hidden"] * sizes["inner"] * 2
    inputs = 2 * rows * sizes["hidden"] + (2 + 4) * rows * top_k + 4 * (listed or 0)
    identities = (
        128 * 128 * (4 + 2)
    )  # what the tensor engine's transposes multiply by, which the compiler loads once a type
    traffic = kernel_traffic("experts.py", kernel, given)
    assert traffic.hbm_read_bytes == loads * expert_bytes + inputs + identities
    assert traffic.hbm_write_bytes == 2 * rows * sizes["hidden"]
    assert traffic.hazards == ()

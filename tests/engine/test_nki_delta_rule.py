"""delta_rule_decode as an NKI kernel: the CPU kernel is the reference for values, arithmetic on the page for bytes."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.engine.nki_traffic import kernel_traffic  # noqa: E402
from trnprof.engine.kernels import delta_rule as cpu  # noqa: E402
from trnprof.engine.kernels.contracts import CONTRACTS, load_kernels  # noqa: E402
from trnprof.engine.kernels.examples import difference  # noqa: E402
from trnprof.engine.kernels.nki.delta_rule_calls import delta_rule_decode  # noqa: E402
from trnprof.nki.recording import TensorSpec  # noqa: E402

TOLERANCE = CONTRACTS["delta_rule_decode"].tolerance


def arguments(
    rows: int,
    width: int = 1,
    *,
    key_heads: int = 2,
    value_heads: int = 4,
    key_dim: int = 16,
    value_dim: int = 16,
    taps: int = 4,
    channel_decay: bool = False,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> dict[str, Any]:
    """Random arguments with slots in no order; a page is 5 elements longer than what lies in it."""
    make = torch.Generator().manual_seed(seed)
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    size = (taps - 1) * channels + value_heads * key_dim * value_dim
    slots = 1 + torch.randperm(2 + rows * (width + 1), generator=make)
    return {
        "bank": torch.randn(len(slots) + 1, size + 5, generator=make) * 0.3,
        "read_slots": slots[:rows].clone(),
        "write_slots": slots[rows : rows * (width + 1)].view(rows, width).clone(),
        "qkv": torch.randn(rows, width, channels, generator=make).to(dtype),
        "conv_weight": (torch.randn(taps, channels, generator=make) * 0.5).to(dtype),
        "log_decay": -torch.rand(rows, width, value_heads, key_dim if channel_decay else 1, generator=make),
        "beta": torch.rand(rows, width, value_heads, generator=make),
        "key_heads": key_heads,
        "value_heads": value_heads,
        "key_dim": key_dim,
        "value_dim": value_dim,
    }


def assert_agrees(given: dict[str, Any]) -> None:
    """Outputs and the whole bank within the contract's tolerance."""
    other = given | {"bank": given["bank"].clone()}
    expected, got = cpu.delta_rule_decode(**given), delta_rule_decode(**other)
    assert got.shape == expected.shape
    for wanted, found in ((expected, got), (given["bank"], other["bank"])):
        assert (wanted - found).abs().max() <= TOLERANCE * wanted.abs().max()


@pytest.mark.parametrize("kda", [False, True])
@pytest.mark.parametrize("rows", [1, 4, 8])
def test_it_agrees_with_the_cpu_kernel(rows: int, kda: bool) -> None:
    for seed in range(3):
        assert difference("delta_rule_decode", delta_rule_decode, rows=rows, seed=seed, kda=kda) <= TOLERANCE


def test_it_is_registered() -> None:
    assert load_kernels("nki", fallback="cpu").delta_rule_decode is delta_rule_decode


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param({"key_heads": 2, "value_heads": 6}, id="three value heads a key head"),
        pytest.param({"key_dim": 16, "value_dim": 32}, id="values longer than keys"),
        pytest.param({"key_dim": 32, "value_dim": 8, "channel_decay": True}, id="keys longer than values"),
        pytest.param({"key_heads": 20, "value_heads": 20, "key_dim": 8, "value_dim": 8}, id="two DMAs a state"),
        pytest.param({"key_heads": 48, "value_heads": 48, "key_dim": 4, "value_dim": 4}, id="144 heads of channels"),
        pytest.param({"key_heads": 1, "value_heads": 1, "key_dim": 128, "value_dim": 128}, id="a head of 128 x 128"),
        pytest.param({"taps": 2}, id="a convolution of two taps"),
    ],
)
@pytest.mark.parametrize("width", [1, 3])
def test_other_sizes_agree_too(sizes: dict[str, Any], width: int) -> None:
    assert_agrees(arguments(3, width, **sizes))


@pytest.mark.parametrize("channel_decay", [False, True])
def test_rows_of_several_groups_agree(channel_decay: bool) -> None:
    assert_agrees(arguments(19, channel_decay=channel_decay))
    assert_agrees(arguments(5, 4, channel_decay=channel_decay))


def test_bfloat16_inputs_are_widened_before_anything_is_computed() -> None:
    # State and arithmetic are float32 in both, so the tolerance is float32's.
    assert_agrees(arguments(4, dtype=torch.bfloat16))


def test_a_row_may_write_the_slot_that_it_reads() -> None:
    given = arguments(4)
    given["write_slots"] = given["read_slots"].unsqueeze(1).clone()
    assert_agrees(given)


def test_slots_are_read_before_any_is_written() -> None:
    given = arguments(19)
    given["write_slots"][0, 0] = given["read_slots"][18]  # more than a group of rows later
    assert_agrees(given)


# What it moves

GDN = {"key_heads": 16, "value_heads": 32, "decays": 1}
WIDE_GDN = {"key_heads": 16, "value_heads": 64, "decays": 1}
SHARDED_GDN = {"key_heads": 4, "value_heads": 12, "decays": 1}
KDA = {"key_heads": 32, "value_heads": 32, "decays": 128}


def specs(rows: int, width: int, key_heads: int, value_heads: int, decays: int) -> dict[str, Any]:
    """Arguments without values of a layer with heads of 128 x 128, a convolution of 4 taps, bfloat16 activations."""
    channels = 128 * (2 * key_heads + value_heads)
    page = 3 * channels + value_heads * 128 * 128
    return {
        "bank": TensorSpec((100, page), "float32"),
        "read_slots": TensorSpec((rows,), "int32"),
        "write_slots": TensorSpec((rows, width), "int32"),
        "qkv": TensorSpec((rows, width, channels), "bfloat16"),
        "conv_weight": TensorSpec((4, channels), "bfloat16"),
        "log_decay": TensorSpec((rows, width, value_heads, decays), "float32"),
        "beta": TensorSpec((rows, width, value_heads), "float32"),
        "key_heads": key_heads,
        "value_heads": value_heads,
        "key_dim": 128,
        "value_dim": 128,
    }


@pytest.mark.parametrize(
    ("layer", "rows", "width"),
    [(GDN, 1, 1), (GDN, 8, 1), (WIDE_GDN, 8, 1), (SHARDED_GDN, 64, 1), (KDA, 8, 1), (KDA, 4, 3)],
)
def test_a_page_is_read_once_and_written_once_a_token(layer: dict[str, int], rows: int, width: int) -> None:
    given = specs(rows, width, **layer)
    page_bytes = 4 * given["bank"].shape[1]
    tokens, heads = rows * width, layer["value_heads"]
    slots = 4 * (rows + tokens)
    channels = given["qkv"].shape[2]
    inputs = 2 * channels * (tokens + 4) + 4 * tokens * heads * (layer["decays"] + 1) + slots
    outputs = 4 * tokens * heads * 128
    identity = 128 * 128 * 4  # what transposes on the tensor engine multiply by, which the compiler loads once
    traffic = kernel_traffic("delta_rule.py", "delta_rule_decode", given)
    assert traffic.hbm_read_bytes == rows * page_bytes + inputs + identity
    assert traffic.hbm_write_bytes == tokens * page_bytes + outputs
    assert traffic.hazards == ()

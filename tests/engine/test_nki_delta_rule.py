"""delta_rule_decode as an NKI kernel: the CPU kernel is the reference for values, arithmetic on the page for bytes."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.engine.nki_traffic import kernel_traffic  # noqa: E402
from trnprof.engine.kernels import delta_rule as cpu  # noqa: E402
from trnprof.engine.kernels.contracts import CONTRACTS, load_kernels  # noqa: E402
from trnprof.engine.kernels.examples import difference  # noqa: E402
from trnprof.engine.kernels.nki.delta_rule_calls import delta_rule_decode, delta_rule_prefill  # noqa: E402
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


def test_they_are_registered() -> None:
    kernels = load_kernels("nki", fallback="cpu")
    assert kernels.delta_rule_decode is delta_rule_decode
    assert kernels.delta_rule_prefill is delta_rule_prefill


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
SHARDED_KDA = {"key_heads": 4, "value_heads": 4, "decays": 128}


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


# Long rows


def prefill_arguments(rows: int, width: int, saves: int = 2, **sizes: Any) -> dict[str, Any]:
    """arguments() with lengths up to the width, and states saved anywhere in them, 0 included."""
    given = arguments(rows, width, **sizes)
    make = torch.Generator().manual_seed(rows + width)
    lengths = torch.randint(1, width + 1, (rows,), generator=make)
    lengths[0] = width
    save_after = (torch.rand(rows, saves, generator=make) * (lengths.unsqueeze(1) + 1)).long()
    return given | {
        "write_slots": given["write_slots"].flatten()[: rows * saves].view(rows, saves),
        "save_after": save_after,
        "lengths": lengths,
    }


def assert_prefill_agrees(given: dict[str, Any]) -> None:
    """Outputs and the whole bank within the contract's tolerance."""
    other = given | {"bank": given["bank"].clone()}
    expected, got = cpu.delta_rule_prefill(**given), delta_rule_prefill(**other)
    assert got.shape == expected.shape
    for wanted, found in ((expected, got), (given["bank"], other["bank"])):
        assert (wanted - found).abs().max() <= TOLERANCE * wanted.abs().max()


@pytest.mark.parametrize("kda", [False, True])
@pytest.mark.parametrize("rows", [1, pytest.param(4, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)])
def test_prefill_agrees_with_the_cpu_kernel(rows: int, kda: bool) -> None:
    for seed in range(1 if rows == 1 else 3):
        assert difference("delta_rule_prefill", delta_rule_prefill, rows=rows, seed=seed, kda=kda) <= TOLERANCE


@pytest.mark.parametrize("channel_decay", [False, True])
@pytest.mark.parametrize(
    ("width", "sizes"),
    [
        pytest.param(16, {}, id="one chunk"),
        pytest.param(77, {"key_heads": 2, "value_heads": 6}, id="a last chunk of 13 tokens"),
        pytest.param(65, {"key_dim": 16, "value_dim": 32}, id="values longer than keys"),
        pytest.param(12, {"key_heads": 10, "value_heads": 20, "key_dim": 8, "value_dim": 8}, id="batches of heads"),
        pytest.param(20, {"key_heads": 1, "value_heads": 1, "key_dim": 128, "value_dim": 128}, id="128 x 128"),
        pytest.param(16, {"dtype": torch.bfloat16}, id="bfloat16"),
    ],
)
def test_long_rows_of_other_sizes_agree(width: int, sizes: dict[str, Any], channel_decay: bool) -> None:
    if channel_decay:
        width = width // 4 + 1  # its chunks are a quarter as long
    assert_prefill_agrees(prefill_arguments(2, width, channel_decay=channel_decay, **sizes))


@pytest.mark.parametrize("channel_decay", [False, True])
def test_states_are_saved_after_any_number_of_tokens(channel_decay: bool) -> None:
    # 0 to 4 tokens: before that many inputs the history is partly the page's own.
    given = prefill_arguments(3, 20, saves=3, channel_decay=channel_decay)
    given["lengths"] = torch.tensor([20, 20, 4])
    given["save_after"] = torch.tensor([[0, 1, 2], [3, 4, 20], [16, 17, 4]])
    given["save_after"][2] = torch.tensor([4, 0, 3])
    assert_prefill_agrees(given)


@pytest.mark.parametrize("channel_decay", [False, True])
def test_strong_decays_and_equal_keys_stay_finite_and_exact(channel_decay: bool) -> None:
    # e^(4 * 64) overflows, so only differences that are never positive may be exponents; equal keys of full strength make
    # the system's matrix all ones below the diagonal, whose powers grow although its inverse does not.
    given = prefill_arguments(2, 64, channel_decay=channel_decay)
    given["log_decay"][0] *= 8
    given["log_decay"][1] = 0.0
    given["beta"][1] = 1.0
    given["qkv"][1] = given["qkv"][1, :1]
    assert_prefill_agrees(given)


def test_prefill_then_decode_is_one_recurrence() -> None:
    # Eight tokens at once, then a ninth, against nine tokens of decode from the same state.
    given = arguments(2, 9)
    decode = given | {"bank": given["bank"].clone()}
    whole = delta_rule_decode(**decode)
    first = {name: given[name][:, :8].contiguous() for name in ("qkv", "log_decay", "beta")}
    last = {name: given[name][:, 8:].contiguous() for name in ("qkv", "log_decay", "beta")}
    slots, ends = given["write_slots"][:, 7:8].contiguous(), torch.full((2, 1), 8)
    prefilled = delta_rule_prefill(
        **(given | first | {"write_slots": slots, "save_after": ends, "lengths": ends.flatten()})
    )
    ninth = delta_rule_decode(
        **(given | last | {"read_slots": slots.flatten(), "write_slots": given["write_slots"][:, 8:].contiguous()})
    )
    assert (torch.cat((prefilled, ninth), 1) - whole).abs().max() <= TOLERANCE * whole.abs().max()
    at = given["write_slots"][:, 8]
    assert (given["bank"][at] - decode["bank"][at]).abs().max() <= TOLERANCE * given["bank"][at].abs().max()


@pytest.mark.parametrize("layer", [SHARDED_GDN, SHARDED_KDA])
def test_prefill_reads_its_inputs_once_and_a_page_once(layer: dict[str, int]) -> None:
    rows, width, saves = 2, 64, 3
    given = specs(rows, width, **layer)
    given["write_slots"] = given["save_after"] = TensorSpec((rows, saves), "int32")
    given["lengths"] = TensorSpec((rows,), "int32")
    page_bytes = 4 * given["bank"].shape[1]
    tokens, heads, channels = rows * width, layer["value_heads"], given["qkv"].shape[2]
    numbers = 4 * (2 * rows + 2 * rows * saves)
    inputs = 2 * channels * (tokens + 4) + 4 * tokens * heads * (layer["decays"] + 1) + numbers
    # The first three inputs of a row again beside the page's history, and the last three before each saved state.
    history = 2 * channels * 3 * (rows + rows * saves)
    identities = 128 * 128 * (4 + 2)
    traffic = kernel_traffic("delta_rule.py", "delta_rule_prefill", given)
    assert traffic.hbm_read_bytes == rows * page_bytes + inputs + history + identities
    assert traffic.hbm_write_bytes == rows * saves * page_bytes + 4 * tokens * heads * 128
    assert traffic.hazards == ()

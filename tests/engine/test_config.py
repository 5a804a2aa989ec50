"""Configs and the tokenizer: what is read from a checkpoint's fields, what is refused, what bytes become."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnprof.engine.checkpoint_config import model_config_from_hf
from trnprof.engine.config import EngineConfig, Mixer, ModelConfig, presets
from trnprof.engine.protocol import StopFinder
from trnprof.engine.tokenizer import ByteTokenizer
from trnprof.errors import InputDataError, UsageError

QWEN_35B: dict[str, Any] = {
    "model_type": "qwen3_5_moe_text",
    "vocab_size": 248320,
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000_000, "partial_rotary_factor": 0.25},
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "mtp_num_hidden_layers": 1,
    "max_position_embeddings": 262144,
    "eos_token_id": 248044,
}
"""The fields of a 35B-A3B checkpoint; seed 003 counts its layers as 30 + 10."""

KIMI: dict[str, Any] = {
    "model_type": "kimi_linear",
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_experts": 8,
    "num_experts_per_token": 2,
    "kv_lora_rank": 32,
    "q_lora_rank": None,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 20,
    "first_k_dense_replace": 2,
    "linear_attn_config": {"full_attn_layers": [4], "kda_layers": [1, 2, 3, 5], "head_dim": 16, "num_heads": 4},
}
"""The form of the published checkpoints: layers counted from 1, linear sizes in an object of their own."""


def test_a_published_hybrid() -> None:
    config = model_config_from_hf(QWEN_35B)
    assert (config.linear_layers, len(config.mixers) - config.linear_layers) == (30, 10)
    assert config.mixers[3] is Mixer.FULL and config.mtp and config.eos == (248044,)
    assert config.attention.rotary_dim == 64 and config.attention.gated and config.zero_centred_norm
    # A snapshot: 30 layers x (32 heads x 128 x 128 + 3 x (2 x 16 + 32) x 128 convolution inputs) x 4 bytes.
    assert config.state_bytes() == 30 * (32 * 128 * 128 + 3 * 64 * 128) * 4
    # A page of 16 tokens: 11 layers (MTP's too) x 16 x 2 heads x (256 + 256) x 2 bytes.
    assert config.page_bytes(16, 2) == 11 * 16 * 2 * 512 * 2


def test_the_seeds_snapshot() -> None:
    """Seed 001: about 47 MiB a rank; 45 layers x 16 value heads a rank x 128 x 128 x 4 bytes = 45 MiB and convolution."""
    fields = QWEN_35B | {
        "num_hidden_layers": 60,
        "linear_num_value_heads": 16,
        "linear_num_key_heads": 4,
    }
    mebibytes = model_config_from_hf(fields).state_bytes() / 2**20
    assert 45 <= mebibytes <= 48


def test_a_published_kimi() -> None:
    config = model_config_from_hf(KIMI)
    assert [mixer is Mixer.FULL for mixer in config.mixers] == [False, False, False, True, False]
    assert config.sparse == (False, False, True, True, True)
    assert config.linear is not None and config.linear.value_heads == 4 and config.linear.key_dim == 16
    assert config.attention.cache_heads == 1
    assert (config.attention.cache_key_dim, config.attention.cache_value_dim) == (40, 0)


def test_a_vision_checkpoints_text_part_is_read() -> None:
    assert model_config_from_hf({"model_type": "qwen3_5_moe", "text_config": QWEN_35B}).hidden == 2048


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "llama"}, "model_type 'llama'"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_bias": True}, "attention_bias"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type 'yarn'"),
        ({"rope_parameters": 3}, "rope_parameters"),
        ({"hidden_size": None}, "hidden_size is None"),
        ({"hidden_size": -1}, "hidden_size is -1"),
        ({"hidden_size": 1 << 40}, "hidden_size"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"layer_types": ["linear_attention"]}, "layer_types must be a list of 40"),
        ({"layer_types": ["mamba"] * 40}, "'mamba'"),
        ({"num_key_value_heads": 3}, "num_attention_heads"),
        ({"num_experts_per_tok": 500}, "num_experts_per_tok"),
        ({"linear_num_value_heads": 17}, "linear_num_value_heads"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
        ({"eos_token_id": ["a"]}, "eos_token_id"),
    ],
)
def test_what_is_not_served_is_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(InputDataError, match=named):
        model_config_from_hf(QWEN_35B | change)


def test_presets_are_what_they_say() -> None:
    models: dict[str, ModelConfig] = presets()
    assert list(models) == ["tiny-gdn", "tiny-gdn-moe", "tiny-kda"]
    assert all(model.mtp and model.vocab == ByteTokenizer.VOCAB for model in models.values())


@pytest.mark.parametrize(
    "change",
    [
        {"pages": 0},
        {"decode_rows": ()},
        {"decode_rows": (4, 1)},
        {"prefill_rows": (2,)},
        {"prefill_sizes": (0, 16)},
        {"contexts": (100,)},
        {"draft_tokens": -1},
        {"eviction": "fifo"},
        {"dtype": "float8"},
    ],
)
def test_engine_configs_that_cannot_be_meant(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        EngineConfig(**change)


@given(st.text())
def test_text_survives_whole_and_byte_by_byte(text: str) -> None:
    """Lone surrogates, which JSON can carry and UTF-8 cannot, become the replacement character."""
    tokenizer = ByteTokenizer()
    tokens = tokenizer.encode(text)
    expected = text.encode("utf-8", "replace").decode()
    assert tokenizer.decode(tokens) == expected
    stream = tokenizer.stream()
    assert "".join(stream.push([token]) for token in tokens) + stream.finish() == expected


def test_special_tokens_are_silent_and_half_characters_are_told() -> None:
    stream = ByteTokenizer().stream()
    assert stream.push([104, ByteTokenizer.EOS, 105]) == "hi"
    assert stream.push([0xE6, 0x97]) == ""
    assert stream.finish() == "\ufffd"


def test_a_conversation_only_grows() -> None:
    """The next turn's tokens begin with this turn's, or no prefix would ever be found in the cache."""
    tokenizer = ByteTokenizer()
    first = tokenizer.encode_chat([("user", "hello")])
    answer = [*first, *tokenizer.encode("hi"), tokenizer.TURN_END]
    second = tokenizer.encode_chat([("user", "hello"), ("assistant", "hi"), ("user", "more")])
    assert second[: len(answer)] == answer


def test_the_same_tokenizer_for_clients() -> None:
    """tokenizer.json, read by the library that clients use, gives the same tokens."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers (with transformers, extra engine-test)")
    read = tokenizers.Tokenizer.from_str(ByteTokenizer.to_json())
    for text in ("plain", "héllo wörld\n\t ", "日本語", "a  b\r\n", "".join(map(chr, range(1, 300)))):
        assert read.encode(text, add_special_tokens=False).ids == ByteTokenizer().encode(text)
        assert read.decode(ByteTokenizer().encode(text)) == text
    assert read.encode("<|im_start|>x<|im_end|>", add_special_tokens=False).ids == [257, 120, 258]


@given(st.text(alphabet="abc", max_size=30), st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3))
def test_stop_texts_in_any_pieces(text: str, stops: list[str]) -> None:
    """Sent piece by piece, what comes out ends before the first stop text, as if it had been seen whole."""
    finder = StopFinder(tuple(stops))
    sent = ""
    for i, char in enumerate(text):
        sent += finder.push(char, last=i == len(text) - 1)
    # The stop text that is complete first ends the answer; of several complete then, the one that begins first.
    ends = [(text.index(stop) + len(stop), text.index(stop)) for stop in stops if stop in text]
    if not ends:
        assert sent == text and not finder.found
    else:
        first = min(end for end, _ in ends)
        assert finder.found
        assert sent == text[: min(start for end, start in ends if end == first)]

"""Tiny random models of transformers, the oracle, and the same weights in the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trnprof.engine.checkpoint_config import model_config_from_hf
from trnprof.engine.config import ModelConfig
from trnprof.engine.kernels.contracts import load_kernels
from trnprof.engine.model.caches import ZERO_SLOT, allocate_caches
from trnprof.engine.model.decoder import Batch, Decoder
from trnprof.engine.model.weights import load_weights

PAGE = 16

_SHARED: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    "initializer_range": 0.05,
}
_GDN = {
    "num_hidden_layers": 4,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}
_MOE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_SHARED_EXPERT = {"shared_expert_intermediate_size": 48}

FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", _SHARED | _GDN),
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM", _SHARED | _GDN | _MOE | _SHARED_EXPERT),
    "qwen3_next": ("Qwen3NextConfig", "Qwen3NextForCausalLM", _SHARED | _GDN | _MOE | _SHARED_EXPERT),
    "qwen3_sliding": (
        "Qwen3Config",
        "Qwen3ForCausalLM",
        _SHARED
        | {
            "num_hidden_layers": 4,
            "head_dim": 32,
            "use_sliding_window": True,
            "sliding_window": 37,
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        },
    ),
    "kimi_linear": (
        "KimiLinearConfig",
        "KimiLinearForCausalLM",
        _SHARED
        | {
            "num_hidden_layers": 4,
            "num_key_value_heads": 4,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "kv_lora_rank": 32,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16,
            "v_head_dim": 20,
            "linear_head_dim": 16,
            "linear_num_heads": 4,
            "layer_types": ["linear_attention"] * 3 + ["full_attention"],
            "mlp_layer_types": ["dense"] + ["sparse"] * 3,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
}
"""Name: configuration class, model class, fields. Heads, dims and intermediate sizes all differ, so that no two can be
mixed up; the initialiser is wider than the default, so that logits are no near ties."""


@dataclass(frozen=True)
class Reference:
    """One model twice."""

    hf: Any
    config: ModelConfig
    decoder: Decoder


def build(family: str, *, dtype: torch.dtype = torch.float32, seed: int = 0, **changes: Any) -> Reference:
    """A transformers model with seeded random weights (norms and biases too, so that none is trivial) and ours."""
    import transformers

    config_class, model_class, fields = FAMILIES[family]
    hf_config = getattr(transformers, config_class)(**(fields | changes))
    torch.manual_seed(seed)
    hf = getattr(transformers, model_class)(hf_config).eval()
    for name, parameter in [*hf.named_parameters(), *hf.named_buffers()]:
        if name.endswith(("norm.weight", "layernorm.weight", "dt_bias", "e_score_correction_bias")):
            parameter.data.add_(torch.randn_like(parameter) * 0.2)
        if name.endswith("conv1d.weight"):
            parameter.data.normal_(0, 0.5)
    hf = hf.to(dtype)
    config = model_config_from_hf(hf_config.to_dict())
    weights = load_weights(config, hf.state_dict(), dtype)
    return Reference(hf, config, Decoder(config, weights, load_kernels(), context=8192))


class Rows:
    """Caches of its own and one row of pages and slots for each sequence: the model without scheduler or runner."""

    def __init__(self, decoder: Decoder, count: int, *, context: int, dtype: torch.dtype = torch.float32) -> None:
        self.decoder, self.count, self.pages = decoder, count, -(-context // PAGE)
        self.caches = allocate_caches(
            decoder.config, pages=1 + count * self.pages, page_size=PAGE, slots=2 + count, dtype=dtype
        )
        self.starts = [0] * count

    @torch.inference_mode()
    def feed(self, chunks: list[list[int]], *, width: int | None = None) -> list[Tensor]:
        """Logits [len, vocab] of each row's next tokens. width: prefill padded to it; None: one decode token a row."""
        lengths = [len(chunk) for chunk in chunks]
        padded = width or 1
        table = torch.arange(self.count * self.pages).view(self.count, self.pages) + 1
        slots = torch.arange(self.count) + 2
        batch = Batch(
            tokens=torch.tensor([chunk + [0] * (padded - len(chunk)) for chunk in chunks]),
            starts=torch.tensor(self.starts),
            lengths=torch.tensor(lengths),
            page_table=table,
            read_slots=torch.where(torch.tensor(self.starts) == 0, ZERO_SLOT, slots),
            write_slots=slots.unsqueeze(1),
            save_after=torch.tensor(lengths).unsqueeze(1) if width else None,
        )
        logits = self.decoder.logits(self.decoder.forward(batch, self.caches))
        self.starts = [start + length for start, length in zip(self.starts, lengths, strict=True)]
        return [row[:length] for row, length in zip(logits, lengths, strict=True)]

"""Seeded random checkpoints of the presets, under the names that a real checkpoint has."""

from __future__ import annotations

import torch
from torch import Tensor

from trnprof.engine.config import Mixer, ModelConfig

_SPREAD = 0.05


def random_checkpoint(config: ModelConfig, seed: int) -> dict[str, Tensor]:
    """Tensors for load_weights; norms near 1, everything else normal with a small spread. Grouped-query models only."""
    make = _Maker(config, seed)
    make.matrix("embed_tokens.weight", config.vocab, config.hidden)
    if not config.tied_embeddings:
        make.matrix("lm_head.weight", config.vocab, config.hidden)
    make.norm("norm.weight", config.hidden)
    for i, mixer in enumerate(config.mixers):
        make.layer(f"layers.{i}.", mixer, config.sparse[i])
    if config.mtp:
        make.norm("mtp.pre_fc_norm_embedding.weight", config.hidden)
        make.norm("mtp.pre_fc_norm_hidden.weight", config.hidden)
        make.matrix("mtp.fc.weight", config.hidden, 2 * config.hidden)
        make.layer("mtp.layers.0.", Mixer.FULL, config.sparse[-1])
        make.norm("mtp.norm.weight", config.hidden)
    return make.tensors


class _Maker:
    def __init__(self, config: ModelConfig, seed: int) -> None:
        self.config = config
        self.generator = torch.Generator().manual_seed(seed)
        self.tensors: dict[str, Tensor] = {}

    def matrix(self, name: str, *shape: int, spread: float = _SPREAD) -> None:
        self.tensors[name] = torch.randn(*shape, generator=self.generator) * spread

    def norm(self, name: str, size: int) -> None:
        self.tensors[name] = torch.full((size,), 0.0 if self.config.zero_centred_norm else 1.0)

    def layer(self, at: str, mixer: Mixer, sparse: bool) -> None:
        hidden, attention = self.config.hidden, self.config.attention
        self.norm(f"{at}input_layernorm.weight", hidden)
        self.norm(f"{at}post_attention_layernorm.weight", hidden)
        if mixer.is_linear:
            self.linear(at, mixer)
        else:
            queries, keys = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
            self.matrix(f"{at}self_attn.q_proj.weight", queries * (2 if attention.gated else 1), hidden)
            self.matrix(f"{at}self_attn.k_proj.weight", keys, hidden)
            self.matrix(f"{at}self_attn.v_proj.weight", keys, hidden)
            self.matrix(f"{at}self_attn.o_proj.weight", hidden, queries)
            if attention.qk_norm:
                self.norm(f"{at}self_attn.q_norm.weight", attention.head_dim)
                self.norm(f"{at}self_attn.k_norm.weight", attention.head_dim)
        if sparse:
            self.moe(f"{at}mlp.")
        else:
            self.mlp(f"{at}mlp.", self.config.intermediate)

    def linear(self, at: str, mixer: Mixer) -> None:
        hidden, sizes = self.config.hidden, self.config.linear
        assert sizes is not None
        heads, keys, values = sizes.value_heads, sizes.key_heads * sizes.key_dim, sizes.value_heads * sizes.value_dim
        inner = f"{at}linear_attn." if mixer is Mixer.GDN else f"{at}self_attn."
        self.matrix(f"{inner}conv1d.weight", sizes.conv_channels, 1, sizes.conv_kernel, spread=0.5)
        # Decay rates spread over heads, as trained models have them: exp(-rate * softplus(bias)) between 0.5 and 0.999.
        rates = torch.logspace(-2, 0, heads)
        if mixer is Mixer.GDN:
            self.matrix(f"{inner}in_proj_qkv.weight", sizes.conv_channels, hidden)
            self.matrix(f"{inner}in_proj_z.weight", values, hidden)
            self.matrix(f"{inner}in_proj_b.weight", heads, hidden)
            self.matrix(f"{inner}in_proj_a.weight", heads, hidden)
            self.tensors[f"{inner}A_log"] = rates.log()
            self.tensors[f"{inner}dt_bias"] = torch.zeros(heads)
            self.tensors[f"{inner}norm.weight"] = torch.ones(sizes.value_dim)
            self.matrix(f"{inner}out_proj.weight", hidden, values)
            return
        for name, rows in (("q", keys), ("k", keys), ("v", values), ("b", heads)):
            self.matrix(f"{inner}{name}_proj.weight", rows, hidden)
        for name in ("forget_gate.f_a", "g_a"):
            self.matrix(f"{inner}{name}_proj.weight", sizes.key_dim, hidden)
        self.matrix(f"{inner}forget_gate.f_b_proj.weight", keys, sizes.key_dim)
        self.matrix(f"{inner}g_b_proj.weight", values, sizes.key_dim)
        self.tensors[f"{inner}forget_gate.A_log"] = rates.log()
        self.tensors[f"{inner}forget_gate.dt_bias"] = torch.zeros(keys)
        self.tensors[f"{inner}o_norm.weight"] = torch.ones(sizes.value_dim)
        self.matrix(f"{inner}o_proj.weight", hidden, values)

    def mlp(self, at: str, size: int) -> None:
        self.matrix(f"{at}gate_proj.weight", size, self.config.hidden)
        self.matrix(f"{at}up_proj.weight", size, self.config.hidden)
        self.matrix(f"{at}down_proj.weight", self.config.hidden, size)

    def moe(self, at: str) -> None:
        hidden, sizes = self.config.hidden, self.config.moe
        assert sizes is not None
        self.matrix(f"{at}gate.weight", sizes.experts, hidden)
        self.matrix(f"{at}experts.gate_up_proj", sizes.experts, 2 * sizes.intermediate, hidden)
        self.matrix(f"{at}experts.down_proj", sizes.experts, hidden, sizes.intermediate)
        if sizes.shared_intermediate:
            self.mlp(f"{at}shared_expert.", sizes.shared_intermediate)
            self.matrix(f"{at}shared_expert_gate.weight", 1, hidden)

"""Checkpoint tensors (Hugging Face names) in the engine's layout: projections packed and padded, experts stacked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from trnprof.engine.config import ROW_MULTIPLE, LinearAttentionConfig, Mixer, ModelConfig
from trnprof.errors import InputDataError, InputMissingError


@dataclass(frozen=True)
class LinearAttentionWeights:
    """A GDN or KDA layer."""

    inputs: Tensor
    """GDN: rows of qkv, output gate, beta, decay. KDA: qkv, beta, first halves of the two low-rank gates. [N, D]"""
    conv: Tensor
    """[K, C], tap by tap."""
    decay_rate: Tensor
    """exp(A_log), [H] float32."""
    decay_bias: Tensor
    """[H] or [H * dk] float32."""
    decay_up: Tensor | None
    """KDA: second half of the decay gate, [H * dk, dk]."""
    gate_up: Tensor | None
    """KDA: second half of the output gate, [H * dv, dk]."""
    norm: Tensor
    out: Tensor


@dataclass(frozen=True)
class AttentionWeights:
    """A full or sliding attention layer."""

    inputs: Tensor
    """Rows of q, k, v and the output gate; latent: q (or its low rank), the latent and the shared key. [N, D]"""
    query_norm: Tensor | None
    key_norm: Tensor | None
    """Latent: the norm of the cached latent."""
    query_up: Tensor | None
    """Latent with a query rank: [N, query_rank]."""
    key_up: Tensor | None
    """Latent: [A, nope, rank]; folded into the query, so that attention runs on the latents."""
    value_up: Tensor | None
    """Latent: [A, value_dim, rank]; applied to the attended latent."""
    out: Tensor


@dataclass(frozen=True)
class MlpWeights:
    """A dense MLP or a shared expert."""

    gate_up: Tensor
    """Rows of gate, up and, for a gated shared expert, one row of its gate. [N, D]"""
    down: Tensor


@dataclass(frozen=True)
class MoeWeights:
    """A mixture of experts."""

    router: Tensor
    bias: Tensor
    gate_up: Tensor
    """[E, 2 I, D]"""
    down: Tensor
    """[E, D, I]"""
    shared: MlpWeights | None


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer."""

    input_norm: Tensor
    mixer: LinearAttentionWeights | AttentionWeights
    post_norm: Tensor
    mlp: MlpWeights | MoeWeights


@dataclass(frozen=True)
class MtpWeights:
    """The multi-token-prediction layer: one attention layer over [next token's embedding | hidden state]."""

    embedding_norm: Tensor
    hidden_norm: Tensor
    inputs: Tensor
    """[D, 2 D]"""
    layer: LayerWeights
    norm: Tensor


@dataclass(frozen=True)
class ModelWeights:
    """One model."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Tensor
    """[vocab padded to 128, D]"""
    mtp: MtpWeights | None

    def count(self) -> int:
        """Parameters as laid out, padding included."""
        seen: dict[int, int] = {}

        def walk(value: object) -> None:
            if isinstance(value, Tensor):
                seen[value.data_ptr()] = value.numel()
            elif isinstance(value, tuple):
                for entry in value:
                    walk(entry)
            elif hasattr(value, "__dataclass_fields__"):
                for entry in vars(value).values():
                    walk(entry)

        walk(self)
        return sum(seen.values())


def read_checkpoint(folder: Path) -> dict[str, Tensor]:
    """Every tensor of the folder's .safetensors files, by name.

    Raises: InputMissingError without any; InputDataError for a damaged file.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise InputMissingError("no .safetensors file in the folder; give a whole checkpoint", path=folder)
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            tensors |= load_file(file)
        except (SafetensorError, OSError, ValueError) as error:
            raise InputDataError(f"not a whole safetensors file ({error}); copy it again", path=file) from None
    return tensors


def load_weights(config: ModelConfig, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> ModelWeights:
    """The model in the engine's layout.

    tensors: Hugging Face names, with or without the `model.` or `model.language_model.` in front. An `mtp.` layer is
    read where the config has one.

    Raises: InputDataError naming the tensor that is missing or has another shape than the config says.
    """
    return _Loader(config, tensors, dtype).model()


_PUBLISHED_NAMES = (
    ("block_sparse_moe.", "mlp."),
    (".w1.", ".gate_proj."),
    (".w2.", ".down_proj."),
    (".w3.", ".up_proj."),
    ("self_attn.A_log", "self_attn.forget_gate.A_log"),
    ("self_attn.dt_bias", "self_attn.forget_gate.dt_bias"),
    ("self_attn.f_a_proj", "self_attn.forget_gate.f_a_proj"),
    ("self_attn.f_b_proj", "self_attn.forget_gate.f_b_proj"),
)
"""Names in Kimi's published checkpoints, and transformers' own that replaced them."""


class _Loader:
    def __init__(self, config: ModelConfig, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        self.config, self.dtype = config, dtype
        self.tensors: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            for prefix in ("model.language_model.", "language_model.model.", "model."):
                if name.startswith(prefix):
                    name = name.removeprefix(prefix)
                    break
            for published, ours in _PUBLISHED_NAMES:
                name = name.replace(published, ours)
            self.tensors[name] = tensor

    def take(self, name: str, *shape: int, wide: bool = False) -> Tensor:
        tensor = self.tensors.get(name)
        if tensor is None:
            raise InputDataError(f"the checkpoint has no tensor {name} of shape {list(shape)}")
        if tensor.numel() != _product(shape):
            raise InputDataError(f"{name} is {list(tensor.shape)} where the config says {list(shape)}")
        kept = torch.float32 if wide and self.dtype != torch.float64 else self.dtype
        return tensor.reshape(shape).to(kept)

    def norm(self, name: str, size: int) -> Tensor:
        weight = self.take(name, size, wide=True)
        return weight + 1.0 if self.config.zero_centred_norm else weight

    def pack(self, *parts: Tensor) -> Tensor:
        rows = sum(part.shape[0] for part in parts)
        padding = parts[0].new_zeros(-rows % ROW_MULTIPLE, parts[0].shape[1])
        return torch.cat((*parts, padding)).contiguous()

    def model(self) -> ModelWeights:
        config = self.config
        embedding = self.take("embed_tokens.weight", config.vocab, config.hidden)
        tied = config.tied_embeddings or "lm_head.weight" not in self.tensors
        head = embedding if tied else self.take("lm_head.weight", config.vocab, config.hidden)
        layers = tuple(self.layer(f"layers.{i}.", mixer, config.sparse[i]) for i, mixer in enumerate(config.mixers))
        return ModelWeights(
            embedding=embedding,
            layers=layers,
            norm=self.norm("norm.weight", config.hidden),
            head=self.pack(head),
            mtp=self.mtp() if config.mtp else None,
        )

    def mtp(self) -> MtpWeights:
        hidden = self.config.hidden
        return MtpWeights(
            embedding_norm=self.norm("mtp.pre_fc_norm_embedding.weight", hidden),
            hidden_norm=self.norm("mtp.pre_fc_norm_hidden.weight", hidden),
            inputs=self.take("mtp.fc.weight", hidden, 2 * hidden),
            layer=self.layer("mtp.layers.0.", Mixer.FULL, self.config.sparse[-1]),
            norm=self.norm("mtp.norm.weight", hidden),
        )

    def layer(self, prefix: str, mixer: Mixer, sparse: bool) -> LayerWeights:
        hidden = self.config.hidden
        read: Callable[[str], LinearAttentionWeights | AttentionWeights]
        if mixer.is_linear:
            read = self.gdn if mixer is Mixer.GDN else self.kda
        else:
            read = self.latent if self.config.attention.latent else self.attention
        return LayerWeights(
            input_norm=self.norm(f"{prefix}input_layernorm.weight", hidden),
            mixer=read(prefix),
            post_norm=self.norm(f"{prefix}post_attention_layernorm.weight", hidden),
            mlp=self.moe(f"{prefix}mlp.") if sparse else self.mlp(f"{prefix}mlp.", self.config.intermediate),
        )

    @property
    def linear(self) -> LinearAttentionConfig:
        assert self.config.linear is not None
        return self.config.linear

    def gdn(self, prefix: str) -> LinearAttentionWeights:
        at, hidden, sizes = f"{prefix}linear_attn.", self.config.hidden, self.linear
        heads, values = sizes.value_heads, sizes.value_heads * sizes.value_dim
        if f"{at}in_proj_qkvz.weight" in self.tensors:
            qkv, gate, beta, decay = self.interleaved(at)
        else:
            qkv = self.take(f"{at}in_proj_qkv.weight", sizes.conv_channels, hidden)
            gate = self.take(f"{at}in_proj_z.weight", values, hidden)
            beta = self.take(f"{at}in_proj_b.weight", heads, hidden)
            decay = self.take(f"{at}in_proj_a.weight", heads, hidden)
        return LinearAttentionWeights(
            inputs=self.pack(qkv, gate, beta, decay),
            conv=self.take(f"{at}conv1d.weight", sizes.conv_channels, sizes.conv_kernel).t().contiguous(),
            decay_rate=self.take(f"{at}A_log", heads, wide=True).exp(),
            decay_bias=self.take(f"{at}dt_bias", heads, wide=True),
            decay_up=None,
            gate_up=None,
            norm=self.take(f"{at}norm.weight", sizes.value_dim, wide=True),  # never zero-centred
            out=self.take(f"{at}out_proj.weight", hidden, values),
        )

    def interleaved(self, at: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """qwen3_next: rows lie key head by key head, [q, k, its values, their gates] and [betas, decays]."""
        hidden, sizes = self.config.hidden, self.linear
        keys, group = sizes.key_heads, sizes.value_heads // sizes.key_heads
        each = group * sizes.value_dim
        rows = self.take(f"{at}in_proj_qkvz.weight", keys, 2 * sizes.key_dim + 2 * each, hidden)
        q, k, v, gate = (part.flatten(0, 1) for part in rows.split([sizes.key_dim, sizes.key_dim, each, each], 1))
        beta, decay = (
            part.flatten(0, 1) for part in self.take(f"{at}in_proj_ba.weight", keys, 2 * group, hidden).split(group, 1)
        )
        return torch.cat((q, k, v)), gate, beta, decay

    def kda(self, prefix: str) -> LinearAttentionWeights:
        at, hidden, sizes = f"{prefix}self_attn.", self.config.hidden, self.linear
        keys, values = sizes.key_heads * sizes.key_dim, sizes.value_heads * sizes.value_dim
        inputs = [
            *(self.take(f"{at}{name}_proj.weight", keys, hidden) for name in ("q", "k")),
            self.take(f"{at}v_proj.weight", values, hidden),
            self.take(f"{at}b_proj.weight", sizes.value_heads, hidden),
            self.take(f"{at}forget_gate.f_a_proj.weight", sizes.key_dim, hidden),
            self.take(f"{at}g_a_proj.weight", sizes.key_dim, hidden),
        ]
        if f"{at}conv1d.weight" in self.tensors:
            conv = self.take(f"{at}conv1d.weight", sizes.conv_channels, sizes.conv_kernel)
        else:
            taps = [(name, values if name == "v" else keys) for name in ("q", "k", "v")]
            conv = torch.cat([self.take(f"{at}{name}_conv1d.weight", size, sizes.conv_kernel) for name, size in taps])
        return LinearAttentionWeights(
            inputs=self.pack(*inputs),
            conv=conv.t().contiguous(),
            decay_rate=self.take(f"{at}forget_gate.A_log", sizes.value_heads, wide=True).exp(),
            decay_bias=self.take(f"{at}forget_gate.dt_bias", keys, wide=True),
            decay_up=self.take(f"{at}forget_gate.f_b_proj.weight", keys, sizes.key_dim),
            gate_up=self.take(f"{at}g_b_proj.weight", values, sizes.key_dim),
            norm=self.take(f"{at}o_norm.weight", sizes.value_dim, wide=True),
            out=self.take(f"{at}o_proj.weight", hidden, values),
        )

    def attention(self, prefix: str) -> AttentionWeights:
        at, hidden, sizes = f"{prefix}self_attn.", self.config.hidden, self.config.attention
        queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        if sizes.gated:  # head by head [query, gate]
            rows = self.take(f"{at}q_proj.weight", sizes.heads, 2, sizes.head_dim, hidden)
            q, gate = rows[:, 0].flatten(0, 1), [rows[:, 1].flatten(0, 1)]
        else:
            q, gate = self.take(f"{at}q_proj.weight", queries, hidden), []
        k, v = (self.take(f"{at}{name}_proj.weight", keys, hidden) for name in ("k", "v"))
        return AttentionWeights(
            inputs=self.pack(q, k, v, *gate),
            query_norm=self.norm(f"{at}q_norm.weight", sizes.head_dim) if sizes.qk_norm else None,
            key_norm=self.norm(f"{at}k_norm.weight", sizes.head_dim) if sizes.qk_norm else None,
            query_up=None,
            key_up=None,
            value_up=None,
            out=self.take(f"{at}o_proj.weight", hidden, queries),
        )

    def latent(self, prefix: str) -> AttentionWeights:
        at, hidden, heads = f"{prefix}self_attn.", self.config.hidden, self.config.attention.heads
        sizes = self.config.attention.latent
        assert sizes is not None
        queries = heads * (sizes.nope_dim + sizes.shared_dim)
        name = "q_proj" if sizes.query_rank is None else "q_a_proj"
        first = self.take(f"{at}{name}.weight", sizes.query_rank or queries, hidden)
        latent = self.take(f"{at}kv_a_proj_with_mqa.weight", sizes.kv_rank + sizes.shared_dim, hidden)
        up = self.take(f"{at}kv_b_proj.weight", heads, sizes.nope_dim + sizes.value_dim, sizes.kv_rank)
        ranked = sizes.query_rank is not None
        return AttentionWeights(
            inputs=self.pack(first, latent),
            query_norm=self.norm(f"{at}q_a_layernorm.weight", sizes.query_rank or 0) if ranked else None,
            key_norm=self.norm(f"{at}kv_a_layernorm.weight", sizes.kv_rank),
            query_up=self.pack(self.take(f"{at}q_b_proj.weight", queries, sizes.query_rank or 0)) if ranked else None,
            key_up=up[:, : sizes.nope_dim].contiguous(),
            value_up=up[:, sizes.nope_dim :].contiguous(),
            out=self.take(f"{at}o_proj.weight", hidden, heads * sizes.value_dim),
        )

    def mlp(self, at: str, size: int, *gate_rows: Tensor) -> MlpWeights:
        hidden = self.config.hidden
        return MlpWeights(
            gate_up=self.pack(
                self.take(f"{at}gate_proj.weight", size, hidden),
                self.take(f"{at}up_proj.weight", size, hidden),
                *gate_rows,
            ),
            down=self.take(f"{at}down_proj.weight", hidden, size),
        )

    def moe(self, at: str) -> MoeWeights:
        hidden, sizes = self.config.hidden, self.config.moe
        assert sizes is not None
        count, size = sizes.experts, sizes.intermediate
        if f"{at}experts.gate_up_proj" in self.tensors:
            gate_up = self.take(f"{at}experts.gate_up_proj", count, 2 * size, hidden)
            down = self.take(f"{at}experts.down_proj", count, hidden, size)
        else:
            names = [f"{at}experts.{i}." for i in range(count)]
            gate_up = torch.stack(
                [
                    torch.cat([self.take(f"{name}{part}_proj.weight", size, hidden) for part in ("gate", "up")])
                    for name in names
                ]
            )
            down = torch.stack([self.take(f"{name}down_proj.weight", hidden, size) for name in names])
        shared = None
        if sizes.shared_intermediate and sizes.shared_gated:
            row = self.take(f"{at}shared_expert_gate.weight", 1, hidden)
            shared = self.mlp(f"{at}shared_expert.", sizes.shared_intermediate, row)
        elif sizes.shared_intermediate:
            shared = self.mlp(f"{at}shared_experts.", sizes.shared_intermediate)
        sigmoid = sizes.router == "sigmoid"
        return MoeWeights(
            router=self.take(f"{at}gate.weight", count, hidden),
            bias=self.take(f"{at}gate.e_score_correction_bias", count, wide=True) if sigmoid else torch.zeros(count),
            gate_up=gate_up.contiguous(),
            down=down.contiguous(),
            shared=shared,
        )


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total

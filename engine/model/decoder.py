"""A forward pass as kernels: hidden states of a batch of rows, from caches and back into them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from trnprof.engine.config import LinearAttentionConfig, Mixer, ModelConfig
from trnprof.engine.kernels.contracts import Kernels
from trnprof.engine.model.caches import Caches
from trnprof.engine.model.weights import (
    AttentionWeights,
    LayerWeights,
    LinearAttentionWeights,
    MlpWeights,
    ModelWeights,
    MoeWeights,
)


@dataclass(frozen=True)
class Batch:
    """Rows of one step; all index tensors are int64. R rows, W tokens a row, P pages of context, J states to save."""

    tokens: Tensor
    """[R, W]"""
    starts: Tensor
    """[R]: tokens already in the caches."""
    lengths: Tensor
    """[R]: tokens of the row that are real; 0 for a padding row."""
    page_table: Tensor
    """[R, P]: pages of the context in order, the spare page behind its end."""
    read_slots: Tensor
    """[R]"""
    write_slots: Tensor
    """[R, J]"""
    save_after: Tensor | None
    """[R, J] for prefill (tokens after which slot j is saved); None: decode, a slot a token (J = W)."""


class Decoder:
    """A model: config, weights and kernels. It holds no state."""

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        kernels: Kernels,
        *,
        context: int,
        expert_form: str = "expert_once",
    ) -> None:
        """`context` is the longest context that will be asked for; `expert_form` one of kernels.experts.FORMS."""
        self.config, self.weights, self.kernels = config, weights, kernels
        self.expert_form = expert_form
        self._rope = _rope_table(config, context, weights.embedding)

    def forward(self, batch: Batch, caches: Caches) -> Tensor:
        """Hidden states after the last norm, [R, W, D]; writes the batch's pages and slots."""
        x = functional.embedding(batch.tokens, self.weights.embedding)
        rope = self._rotation(batch)
        attention = linear = 0
        for mixer, layer in zip(self.config.mixers, self.weights.layers, strict=True):
            if mixer.is_linear:
                x = self._layer(layer, mixer, x, batch, rope, caches, linear)
                linear += 1
            else:
                x = self._layer(layer, mixer, x, batch, rope, caches, attention)
                attention += 1
        return self.kernels.rms_norm(x, self.weights.norm, self.config.norm_eps)

    def draft(self, hidden: Tensor, batch: Batch, caches: Caches) -> Tensor:
        """The MTP layer's hidden states [R, W, D] for the token after the next.

        hidden: this model's (or this layer's) [R, W, D]; batch.tokens: the token that follows each position.
        """
        mtp = self.weights.mtp
        assert mtp is not None
        eps, norm = self.config.norm_eps, self.kernels.rms_norm
        embedded = functional.embedding(batch.tokens, self.weights.embedding)
        x = torch.cat((norm(embedded, mtp.embedding_norm, eps), norm(hidden, mtp.hidden_norm, eps)), -1)
        x = functional.linear(x, mtp.inputs)
        last = self.config.attention_layers - 1
        x = self._layer(mtp.layer, Mixer.FULL, x, batch, self._rotation(batch), caches, last)
        return norm(x, mtp.norm, eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., vocab] of hidden states [..., D]."""
        return self.kernels.project(hidden, self.weights.head)[..., : self.config.vocab]

    def _layer(
        self,
        layer: LayerWeights,
        mixer: Mixer,
        x: Tensor,
        batch: Batch,
        rope: tuple[Tensor, Tensor] | None,
        caches: Caches,
        index: int,
    ) -> Tensor:
        eps, norm = self.config.norm_eps, self.kernels.rms_norm
        inner = norm(x, layer.input_norm, eps)
        if isinstance(layer.mixer, LinearAttentionWeights):
            x = x + self._linear_attention(layer.mixer, mixer, inner, batch, caches.banks[index])
        else:
            pages = (caches.key_pages[index], caches.value_pages[index])
            form = self._latent_attention if self.config.attention.latent else self._attention
            x = x + form(layer.mixer, mixer, inner, batch, rope, pages)
        inner = norm(x, layer.post_norm, eps)
        if isinstance(layer.mlp, MoeWeights):
            return x + self._moe(layer.mlp, inner)
        return x + self._mlp(layer.mlp, inner, self.config.intermediate)

    def _linear_attention(
        self, weights: LinearAttentionWeights, mixer: Mixer, x: Tensor, batch: Batch, bank: Tensor
    ) -> Tensor:
        sizes = self.config.linear
        assert sizes is not None
        rows, width, _ = x.shape
        heads, values = sizes.value_heads, sizes.value_heads * sizes.value_dim
        channels = sizes.conv_channels
        projected = self.kernels.project(x, weights.inputs)
        if mixer is Mixer.GDN:
            qkv, gate, beta, decay = projected[..., : channels + values + 2 * heads].split(
                [channels, values, heads, heads], -1
            )
            decay = decay.unsqueeze(-1)  # one a head
        else:
            qkv, beta, decay, gate = projected[..., : channels + heads + 2 * sizes.key_dim].split(
                [channels, heads, sizes.key_dim, sizes.key_dim], -1
            )
            assert weights.decay_up is not None and weights.gate_up is not None
            decay = functional.linear(decay, weights.decay_up).view(rows, width, heads, -1)  # one a key channel
            gate = functional.linear(gate, weights.gate_up)
        wide = bank.dtype
        bias = weights.decay_bias.view(heads, -1)
        log_decay = -weights.decay_rate.view(heads, 1) * functional.softplus(decay.to(wide) + bias)
        out = self._delta_rule(batch, bank, qkv, weights.conv, log_decay, torch.sigmoid(beta.to(wide)), sizes)
        gate = gate.reshape(rows, width, heads, -1)
        out = self.kernels.gated_rms_norm(out, gate, weights.norm, self.config.norm_eps, mixer is Mixer.KDA)
        return functional.linear(out.reshape(rows, width, values), weights.out)

    def _delta_rule(
        self,
        batch: Batch,
        bank: Tensor,
        qkv: Tensor,
        conv: Tensor,
        log_decay: Tensor,
        beta: Tensor,
        sizes: LinearAttentionConfig,
    ) -> Tensor:
        inputs = (qkv, conv, log_decay, beta)
        shape = (sizes.key_heads, sizes.value_heads, sizes.key_dim, sizes.value_dim)
        if batch.save_after is None:
            return self.kernels.delta_rule_decode(bank, batch.read_slots, batch.write_slots, *inputs, *shape)
        return self.kernels.delta_rule_prefill(
            bank, batch.read_slots, batch.write_slots, batch.save_after, batch.lengths, *inputs, *shape
        )

    def _attention(
        self,
        weights: AttentionWeights,
        mixer: Mixer,
        x: Tensor,
        batch: Batch,
        rope: tuple[Tensor, Tensor] | None,
        pages: tuple[Tensor, Tensor],
    ) -> Tensor:
        sizes = self.config.attention
        rows, width, _ = x.shape
        queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        projected = self.kernels.project(x, weights.inputs)
        q = projected[..., :queries].reshape(rows, width, sizes.heads, -1)
        k = projected[..., queries : queries + keys].reshape(rows, width, sizes.kv_heads, -1)
        v = projected[..., queries + keys : queries + 2 * keys].reshape(rows, width, sizes.kv_heads, -1)
        if weights.query_norm is not None and weights.key_norm is not None:
            q = self.kernels.rms_norm(q, weights.query_norm, self.config.norm_eps)
            k = self.kernels.rms_norm(k, weights.key_norm, self.config.norm_eps)
        if rope is not None:
            q, k = _rotate(q, *rope), _rotate(k, *rope)
        window = sizes.window or 0 if mixer is Mixer.SLIDING else 0
        attend = self._attend(batch)
        out = attend(
            *pages, batch.page_table, batch.starts, batch.lengths, q, k, v, sizes.head_dim**-0.5, window, sizes.head_dim
        )
        out = out.reshape(rows, width, queries)
        if sizes.gated:
            out = out * torch.sigmoid(projected[..., queries + 2 * keys : 2 * queries + 2 * keys])
        return functional.linear(out, weights.out)

    def _latent_attention(
        self,
        weights: AttentionWeights,
        mixer: Mixer,
        x: Tensor,
        batch: Batch,
        rope: tuple[Tensor, Tensor] | None,
        pages: tuple[Tensor, Tensor],
    ) -> Tensor:
        """MLA with the key's up-projection folded into the query: one key head, whose values are its latent."""
        sizes, heads = self.config.attention.latent, self.config.attention.heads
        assert sizes is not None and weights.key_up is not None and weights.value_up is not None
        assert weights.key_norm is not None
        rows, width, _ = x.shape
        dim = sizes.nope_dim + sizes.shared_dim
        first = sizes.query_rank or heads * dim
        projected = self.kernels.project(x, weights.inputs)
        q = projected[..., :first]
        if weights.query_up is not None and weights.query_norm is not None:
            q = self.kernels.rms_norm(q.contiguous(), weights.query_norm, 1e-6)
            q = self.kernels.project(q, weights.query_up)[..., : heads * dim]
        q = q.reshape(rows, width, heads, dim)
        folded = torch.einsum("rwad,adl->rwal", q[..., : sizes.nope_dim], weights.key_up)
        latent, shared = projected[..., first : first + sizes.kv_rank + sizes.shared_dim].split(
            [sizes.kv_rank, sizes.shared_dim], -1
        )
        latent = self.kernels.rms_norm(latent.contiguous(), weights.key_norm, 1e-6)
        out = self._attend(batch)(
            *pages,
            batch.page_table,
            batch.starts,
            batch.lengths,
            torch.cat((folded, q[..., sizes.nope_dim :]), -1),
            torch.cat((latent, shared), -1).unsqueeze(2),
            latent.new_empty(rows, width, 1, 0),
            dim**-0.5,
            0,
            sizes.kv_rank,
        )
        out = torch.einsum("rwal,avl->rwav", out, weights.value_up)
        return functional.linear(out.reshape(rows, width, -1), weights.out)

    def _attend(self, batch: Batch) -> Callable[..., Tensor]:
        return self.kernels.attention_decode if batch.save_after is None else self.kernels.attention_prefill

    def _mlp(self, weights: MlpWeights, x: Tensor, size: int) -> Tensor:
        projected = self.kernels.project(x, weights.gate_up)
        gate, up = projected[..., :size], projected[..., size : 2 * size]
        return functional.linear(functional.silu(gate) * up, weights.down)

    def _moe(self, weights: MoeWeights, x: Tensor) -> Tensor:
        sizes = self.config.moe
        assert sizes is not None
        flat = x.flatten(0, 1)
        chosen_weights, chosen = self.kernels.route(
            flat, weights.router, weights.bias, sizes.top_k, sizes.router == "sigmoid", sizes.renormalise, sizes.scale
        )
        out = self.kernels.experts(flat, chosen_weights, chosen, weights.gate_up, weights.down, self.expert_form)
        if weights.shared is not None:
            size = sizes.shared_intermediate
            projected = self.kernels.project(flat, weights.shared.gate_up)
            inner = functional.silu(projected[:, :size]) * projected[:, size : 2 * size]
            shared = functional.linear(inner, weights.shared.down)
            if sizes.shared_gated:
                shared = shared * torch.sigmoid(projected[:, 2 * size : 2 * size + 1])
            out = out + shared
        return out.view(x.shape)

    def _rotation(self, batch: Batch) -> tuple[Tensor, Tensor] | None:
        """(cos, sin) of the batch's positions, [R, W, 1, rotary_dim]."""
        if self._rope is None:
            return None
        ahead = torch.arange(batch.tokens.shape[1], device=batch.starts.device)
        positions = (batch.starts.unsqueeze(1) + ahead).clamp(max=self._rope.shape[1] - 1)
        cos, sin = self._rope[:, positions].unsqueeze(3)
        return cos, sin


def _rope_table(config: ModelConfig, context: int, like: Tensor) -> Tensor | None:
    """cos and sin by position, [2, context, rotary_dim], angles in float32 as the checkpoints were trained with."""
    dim = config.attention.rotary_dim
    if not dim:
        return None
    frequencies = 1.0 / config.attention.rope_theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    angles = torch.arange(context, dtype=torch.float32).unsqueeze(1) * frequencies
    angles = torch.cat((angles, angles), -1)
    return torch.stack((angles.cos(), angles.sin())).to(like.dtype).to(like.device)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs (i, i + n/2) of the first n = cos.shape[-1] channels of x [R, W, H, D]."""
    size = cos.shape[-1]
    turned, passed = x[..., :size], x[..., size:]
    first, second = turned.chunk(2, -1)
    turned = turned * cos + torch.cat((-second, first), -1) * sin
    return torch.cat((turned, passed), -1) if passed.shape[-1] else turned

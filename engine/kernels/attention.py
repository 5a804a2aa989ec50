"""Attention over a paged cache that is never laid out anew.

Keys lie as [page, head, channel, token] and values as [page, head, token, channel]: both with the contracted axis
outermost inside a head, as the tensor engine wants its operands. A published compiled decode spent 1.0 ms on transposing
the cache before 0.25 ms of attention. What the NKI kernel does with pages of few tokens: docs/decisions/0007. A step
first writes its own keys and values, then reads.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from trnprof.engine.kernels.contracts import Contract, Operand, contract

_OPERANDS = (
    Operand("key_pages", "N H D S", written=True),
    Operand("value_pages", "N H S V", written=True),
    Operand("page_table", "R P", "index"),
    Operand("starts", "R", "index"),
    Operand("lengths", "R", "index"),
    Operand("q", "R W A D"),
    Operand("k", "R W H D"),
    Operand("v", "R W H V"),
)
_MEANING = (
    "write k and v of tokens starts..starts + lengths to their pages (padding goes to page 0), then each of the A query "
    "heads attends to the tokens at or before it, within window (0: all). V = 0: values are the first value_dim channels "
    "of the keys (latent attention)"
)
_SCALARS = ("scale", "window", "value_dim")
_SIZES = (("O", "value_dim"),)


@contract(
    Contract(
        "attention_decode",
        _MEANING + "; W is 1, or the tokens to verify",
        _OPERANDS,
        (Operand("out", "R W A O"),),
        _SCALARS,
        _SIZES,
    )
)
def attention_decode(
    key_pages: Tensor,
    value_pages: Tensor,
    page_table: Tensor,
    starts: Tensor,
    lengths: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    window: int,
    value_dim: int,
) -> Tensor:
    """See the contract."""
    _write(key_pages, value_pages, page_table, starts, lengths, k, v)
    rows, width, heads, dim = q.shape
    kv_heads = key_pages.shape[1]
    keys = _gather(key_pages, page_table, channels_first=True)  # [R, H, D, context]
    values = keys[:, :, :value_dim].transpose(-1, -2) if not v.shape[-1] else _gather(value_pages, page_table)
    # Queries of one key head are rows of one product: [R, H, group * W, D] x [R, H, D, context].
    group = heads // kv_heads
    queries = q.view(rows, width, kv_heads, group, dim).permute(0, 2, 3, 1, 4).reshape(rows, kv_heads, -1, dim)
    scores = queries @ keys * scale
    hidden = ~_visible(starts, width, keys.shape[-1], window)  # [R, W, context]
    scores = scores.view(rows, kv_heads, group, width, -1).masked_fill(hidden[:, None, None], -torch.inf)
    weights = torch.softmax(scores, -1, dtype=torch.float32 if scores.dtype != torch.float64 else None).to(q.dtype)
    out = weights.view(rows, kv_heads, group * width, -1) @ values
    return out.view(rows, kv_heads, group, width, value_dim).permute(0, 3, 1, 2, 4).reshape(rows, width, heads, -1)


@contract(
    Contract(
        "attention_prefill",
        _MEANING + "; W is a prefill size",
        _OPERANDS,
        (Operand("out", "R W A O"),),
        _SCALARS,
        _SIZES,
    )
)
def attention_prefill(
    key_pages: Tensor,
    value_pages: Tensor,
    page_table: Tensor,
    starts: Tensor,
    lengths: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    window: int,
    value_dim: int,
) -> Tensor:
    """See the contract; the same numbers as attention_decode, tiled by the library so that no score matrix is kept."""
    _write(key_pages, value_pages, page_table, starts, lengths, k, v)
    # Tokens before channels and contiguous: the library's tiled path does not take strided keys, and is 4x faster.
    keys = _gather(key_pages.transpose(-1, -2), page_table)
    values = keys[..., :value_dim] if not v.shape[-1] else _gather(value_pages, page_table)
    visible = _visible(starts, q.shape[1], keys.shape[2], window).unsqueeze(1)
    repeat = q.shape[2] // keys.shape[1]
    out = functional.scaled_dot_product_attention(
        q.transpose(1, 2), keys, values, attn_mask=visible, scale=scale, enable_gqa=repeat > 1
    )
    return out.transpose(1, 2)


def _write(
    key_pages: Tensor, value_pages: Tensor, page_table: Tensor, starts: Tensor, lengths: Tensor, k: Tensor, v: Tensor
) -> None:
    width, size = k.shape[1], key_pages.shape[-1]
    ahead = torch.arange(width, device=k.device)
    positions = starts.unsqueeze(1) + ahead
    index, last = positions // size, page_table.shape[1] - 1
    pages = page_table.gather(1, index.clamp(max=last))
    pages = torch.where((ahead < lengths.unsqueeze(1)) & (index <= last), pages, 0)
    offsets = positions % size
    # The two index tensors are apart, so the result's axes are [R, W, head, channel].
    key_pages[pages, :, :, offsets] = k
    if v.shape[-1]:
        value_pages[pages, :, offsets] = v


def _gather(pages: Tensor, table: Tensor, *, channels_first: bool = False) -> Tensor:
    """The rows' caches in order: keys [R, H, D, P * S] with channels_first, values [R, H, P * S, V]."""
    taken = pages[table]  # [R, P, H, a, b]
    rows, count, heads, first, second = taken.shape
    if channels_first:
        return taken.permute(0, 2, 3, 1, 4).reshape(rows, heads, first, count * second)
    return taken.transpose(1, 2).reshape(rows, heads, count * first, second)


def _visible(starts: Tensor, width: int, context: int, window: int) -> Tensor:
    """[R, W, context]: may token w of row r see the cached token c?"""
    query = (starts.unsqueeze(1) + torch.arange(width, device=starts.device)).unsqueeze(-1)
    cached = torch.arange(context, device=starts.device)
    visible = cached <= query
    return visible & (cached > query - window) if window else visible

"""The gated delta rule of GDN and KDA, with its short convolution, on packed state pages.

One head keeps a matrix S [key, value]. For every token, with decay a = exp(log_decay), write strength b and unit key k:

    S <- a * S                      (a: one number a head for GDN, one a key channel for KDA)
    S <- S + k (b * (v - k^T S))    (what the state already predicts of v is subtracted: the delta rule)
    o  = q^T S

A state page holds [conv_kernel - 1 last inputs of the convolution | S of every head], contiguous, so that a slot is read
once and written once. Slots are read before any is written: a step may write the slot that it reads.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from trnprof.engine.kernels.contracts import Contract, Operand, contract

CHUNK = 64
"""Tokens whose updates are condensed into matrix products at once. Work per token inside a chunk grows with it, the
number of sequential steps shrinks with it; 64 is what the published kernels use."""
CHANNEL_CHUNK = 16
"""The same with a decay a channel (KDA), where pairs of tokens cost a channel vector each: 64 took 6x longer on a CPU."""

_NORM_EPS = 1e-6

_SIZES = ("key_heads", "value_heads", "key_dim", "value_dim")
_COMMON = (
    Operand("bank", "S E", "state", written=True),
    Operand("read_slots", "R", "index"),
)
_INPUTS = (
    Operand("qkv", "R W C"),
    Operand("conv_weight", "K C"),
    Operand("log_decay", "R W H G", "state"),
    Operand("beta", "R W H", "state"),
)


@contract(
    Contract(
        "delta_rule_decode",
        "token by token from the state in read_slots; the state after token j goes to write_slots[:, j], so that "
        "rejecting drafted tokens is choosing another slot (no copy). G is 1 for GDN, key_dim for KDA",
        (*_COMMON, Operand("write_slots", "R W", "index"), *_INPUTS),
        (Operand("out", "R W H V", "state"),),
        _SIZES,
        (("V", "value_dim"),),
    )
)
def delta_rule_decode(
    bank: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    qkv: Tensor,
    conv_weight: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    key_heads: int,
    value_heads: int,
    key_dim: int,
    value_dim: int,
) -> Tensor:
    """See the contract."""
    width, channels = qkv.shape[1:]
    history, state = _read_pages(bank, read_slots, conv_weight, channels, value_heads, key_dim, value_dim)
    window = torch.cat((history, qkv.to(history.dtype)), 1)
    mixed = _convolve(window, conv_weight, width)
    q, k, v = _heads(mixed, key_heads, value_heads, key_dim, value_dim)
    decay = log_decay.exp()
    outputs, pages = [], []
    kept = conv_weight.shape[0] - 1
    for t in range(width):
        key = k[:, t].unsqueeze(-1)  # [R, H, dk, 1]
        state = state * decay[:, t].unsqueeze(-1)
        predicted = key.transpose(-1, -2) @ state  # [R, H, 1, dv]
        delta = (v[:, t].unsqueeze(-2) - predicted) * beta[:, t, :, None, None]
        state = state + key * delta
        outputs.append((q[:, t].unsqueeze(-2) @ state).squeeze(-2))
        pages.append(torch.cat((window[:, t + 1 : t + 1 + kept].flatten(1), state.flatten(1)), 1))
    packed = pages[0] if width == 1 else torch.stack(pages, 1).flatten(0, 1)
    bank[:, : packed.shape[1]].index_copy_(0, write_slots.flatten(), packed)
    return outputs[0].unsqueeze(1) if width == 1 else torch.stack(outputs, 1)


@contract(
    Contract(
        "delta_rule_prefill",
        "as delta_rule_decode for long rows, in chunks of matrix products; tokens from lengths on are padding and change "
        "nothing. The state after save_after[:, j] tokens (0: none) goes to write_slots[:, j]: a branch point, the prompt's "
        "last page boundary and its end in one pass",
        (
            *_COMMON,
            Operand("write_slots", "R J", "index"),
            Operand("save_after", "R J", "index"),
            Operand("lengths", "R", "index"),
            *_INPUTS,
        ),
        (Operand("out", "R W H V", "state"),),
        _SIZES,
        (("V", "value_dim"),),
    )
)
def delta_rule_prefill(
    bank: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    save_after: Tensor,
    lengths: Tensor,
    qkv: Tensor,
    conv_weight: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    key_heads: int,
    value_heads: int,
    key_dim: int,
    value_dim: int,
) -> Tensor:
    """See the contract."""
    width, channels = qkv.shape[1:]
    history, state = _read_pages(bank, read_slots, conv_weight, channels, value_heads, key_dim, value_dim)
    window = torch.cat((history, qkv.to(history.dtype)), 1)
    q, k, v = _heads(_convolve(window, conv_weight, width), key_heads, value_heads, key_dim, value_dim)
    # A padding token neither decays (log decay 0) nor writes (b = 0): the state passes through it unchanged.
    real = torch.arange(width, device=qkv.device).unsqueeze(0) < lengths.unsqueeze(1)
    log_decay = log_decay * real[..., None, None]
    beta = beta * real[..., None]
    saved = [state] * save_after.shape[1]
    outputs = []
    # Heads before tokens, once: every product below is of [tokens, channels] matrices, a head each.
    by_head = [tensor.transpose(1, 2).contiguous() for tensor in (q, k, v, log_decay, beta)]
    size = CHUNK if log_decay.shape[-1] == 1 else CHANNEL_CHUNK
    for start in range(0, width, size):
        part = slice(start, min(start + size, width))
        out, after, state = _chunk(state, *(tensor[:, :, part] for tensor in by_head))
        outputs.append(out.transpose(1, 2))
        for j in range(len(saved)):
            inside = save_after[:, j] - start  # tokens of this chunk after which to save, where it is 1..size
            hit = (inside >= 1) & (inside <= part.stop - start)
            if hit.any():
                at = after(inside.clamp(1, part.stop - start) - 1)
                saved[j] = torch.where(hit[:, None, None, None], at, saved[j])
    kept = torch.arange(conv_weight.shape[0] - 1, device=qkv.device)
    pages = []
    for j, kept_state in enumerate(saved):
        at = (save_after[:, j, None] + kept).unsqueeze(-1).expand(-1, -1, channels)
        pages.append(torch.cat((window.gather(1, at).flatten(1), kept_state.flatten(1)), 1))
    packed = torch.stack(pages, 1).flatten(0, 1)
    bank[:, : packed.shape[1]].index_copy_(0, write_slots.flatten(), packed)
    return torch.cat(outputs, 1)


def _read_pages(
    bank: Tensor, slots: Tensor, conv_weight: Tensor, channels: int, heads: int, key_dim: int, value_dim: int
) -> tuple[Tensor, Tensor]:
    """(convolution inputs [R, K - 1, C], state [R, H, dk, dv]) of the slots."""
    page = bank.index_select(0, slots)
    kept = conv_weight.shape[0] - 1
    split = kept * channels
    history = page[:, :split].view(-1, kept, channels)
    state = page[:, split : split + heads * key_dim * value_dim].view(-1, heads, key_dim, value_dim)
    return history, state


def _convolve(window: Tensor, weight: Tensor, width: int) -> Tensor:
    """silu of the causal depthwise convolution: out[t] = sum_j weight[j] * window[t + j]; [R, width, C]."""
    weight = weight.to(window.dtype)
    total = window[:, :width] * weight[0]
    for tap in range(1, weight.shape[0]):
        total.addcmul_(window[:, tap : tap + width], weight[tap])
    return functional.silu(total)


def _heads(
    mixed: Tensor, key_heads: int, value_heads: int, key_dim: int, value_dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k [R, W, H, dk] of unit length (q also scaled by 1 / sqrt(dk)) and v [R, W, H, dv]."""
    rows, width, _ = mixed.shape
    keys = key_heads * key_dim
    qk = mixed[..., : 2 * keys].view(rows, width, 2 * key_heads, key_dim)
    qk = qk * torch.rsqrt((qk * qk).sum(-1, keepdim=True) + _NORM_EPS)
    q, k = qk[:, :, :key_heads] * key_dim**-0.5, qk[:, :, key_heads:]
    if value_heads != key_heads:  # each key head serves value_heads / key_heads consecutive value heads
        q = q.repeat_interleave(value_heads // key_heads, 2)
        k = k.repeat_interleave(value_heads // key_heads, 2)
    return q, k, mixed[..., 2 * keys :].view(rows, width, value_heads, value_dim)


def _chunk(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor
) -> tuple[Tensor, Callable[[Tensor], Tensor], Tensor]:
    """One chunk of C tokens: (out [R, H, C, dv], state_after, last state).

    q, k: [R, H, C, dk]; v: [R, H, C, dv]; log_decay: [R, H, C, 1 or dk]; beta: [R, H, C]; state: [R, H, dk, dv].

    With G the running sum of the log decay, token i reads the writes u_j of tokens j <= i through k_j exp(G_i - G_j), so
    the writes solve a unit lower triangular system (the UT transform):
        u_i + b_i sum_{j<i} (k_i exp(G_i - G_j) . k_j) u_j = b_i (v_i - k_i exp(G_i) S)
    All exponents are of differences that are never positive, so nothing overflows.
    """
    total = log_decay.cumsum(2)
    size = q.shape[2]
    if log_decay.shape[-1] == 1:  # one decay a head: pairs factor into a product and a decay
        lower = torch.ones(size, size, dtype=torch.bool, device=q.device).tril()
        pairs = (total - total.transpose(-1, -2)).clamp(max=0.0).exp() * lower
        both = torch.cat((k, q), 2) @ k.transpose(-1, -2)
        keys, reads = both[:, :, :size] * pairs, both[:, :, size:] * pairs
    else:  # a decay a channel: pairs differ by channel, [R, H, C, C, dk] for this chunk only
        upper = torch.ones(size, size, dtype=torch.bool, device=q.device).triu(1)[..., None]
        pairs = (total.unsqueeze(3) - total.unsqueeze(2)).masked_fill(upper, -torch.inf).exp()
        weighted = pairs * k.unsqueeze(2)
        keys, reads = torch.einsum("rhid,rhijd->rhij", k, weighted), torch.einsum("rhid,rhijd->rhij", q, weighted)
    grown = total.exp()
    rest = beta.unsqueeze(-1) * (v - (k * grown) @ state)
    writes = torch.linalg.solve_triangular(beta.unsqueeze(-1) * keys, rest, upper=False, unitriangular=True)
    out = (q * grown) @ state + reads @ writes

    def after(index: Tensor) -> Tensor:
        """The state after token index[r] of the chunk, [R, H, dk, dv]."""
        at = total.gather(2, index[:, None, None, None].expand(-1, total.shape[1], 1, total.shape[3]))
        seen = (torch.arange(size, device=q.device) <= index[:, None])[:, None, :, None]
        fade = torch.where(seen, at - total, -torch.inf).exp()
        return state * at.transpose(-1, -2).exp() + (k * fade).transpose(-1, -2) @ writes

    last = total[:, :, -1:]
    return out, after, state * last.transpose(-1, -2).exp() + (k * (last - total).exp()).transpose(-1, -2) @ writes

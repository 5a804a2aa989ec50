"""Mixture of experts: routing, and three forms of running the chosen experts behind one operation.

With T tokens, K experts a token and E experts of w bytes each, weights move:
    selective     T * K * w     one pass a (token, expert) pair: best for very few tokens on a device
    expert_once   <= E * w      each chosen expert once for all its tokens (seed 004 expects 3.2 ms a step from it)
    dense         E * w         every expert on every token, unchosen ones weighted 0: no data-dependent shape at all
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from trnprof.engine.kernels.contracts import Contract, Operand, contract

FORMS = ("selective", "expert_once", "dense")


@contract(
    Contract(
        "route",
        "the K experts of each token and their weights. softmax: probabilities; sigmoid: scores, chosen by score + bias. "
        "Ties go to the lowest expert",
        (Operand("x", "T D"), Operand("weight", "E D"), Operand("bias", "E", "state")),
        (Operand("weights", "T K"), Operand("chosen", "T K", "index")),
        ("top_k", "sigmoid", "renormalise", "scale"),
        (("K", "top_k"),),
    )
)
def route(
    x: Tensor, weight: Tensor, bias: Tensor, top_k: int, sigmoid: bool, renormalise: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """See the contract."""
    logits = functional.linear(x, weight)
    if sigmoid:
        scores = torch.sigmoid(logits.float() if logits.dtype != torch.float64 else logits)
        chosen = _top(scores + bias.to(scores.dtype), top_k)[1]
        weights = scores.gather(-1, chosen)
    else:
        probabilities = torch.softmax(logits, -1, dtype=torch.float32 if logits.dtype != torch.float64 else None)
        weights, chosen = _top(probabilities, top_k)
    if renormalise:
        weights = weights / (weights.sum(-1, keepdim=True) + (1e-20 if sigmoid else 0.0))
    return (weights * scale).to(x.dtype), chosen


def _top(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(the highest, their places), the lowest place of equal ones first: torch.topk leaves that open."""
    ordered, places = scores.sort(dim=-1, descending=True, stable=True)
    return ordered[..., :count], places[..., :count]


@contract(
    Contract(
        "experts",
        "sum over a token's K experts of weight * down(silu(gate x) * up x); form says how, never what",
        (
            Operand("x", "T D"),
            Operand("weights", "T K"),
            Operand("chosen", "T K", "index"),
            Operand("gate_up", "E M D"),
            Operand("down", "E D I"),
        ),
        (Operand("out", "T D"),),
        ("form",),
    )
)
def experts(x: Tensor, weights: Tensor, chosen: Tensor, gate_up: Tensor, down: Tensor, form: str) -> Tensor:
    """See the contract; gate_up's rows are the gate's I, then up's I."""
    if form == "selective":
        gate, up = torch.einsum("td,tkmd->tkm", x, gate_up[chosen]).chunk(2, -1)
        return torch.einsum("tki,tkdi,tk->td", functional.silu(gate) * up, down[chosen], weights)
    if form == "dense":
        gate, up = torch.einsum("td,emd->tem", x, gate_up).chunk(2, -1)
        spread = torch.zeros(x.shape[0], gate_up.shape[0], dtype=x.dtype).scatter(1, chosen, weights)
        return torch.einsum("tei,edi,te->td", functional.silu(gate) * up, down, spread)
    if form == "expert_once":
        return _expert_once(x, weights, chosen, gate_up, down)
    raise ValueError(f"unknown form {form!r}; one of {FORMS}")


def _expert_once(x: Tensor, weights: Tensor, chosen: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Pairs sorted by expert, one pair of products for each expert that has any, summed back by token."""
    top_k = chosen.shape[1]
    experts_in_order, order = chosen.flatten().sort(stable=True)
    taken = x[order // top_k]
    counts = torch.bincount(experts_in_order, minlength=gate_up.shape[0])
    run = _grouped if _takes_groups(x, down) and len(order) >= _FEW_PAIRS else _one_by_one
    pairs = run(taken, counts, gate_up, down) * weights.flatten()[order].unsqueeze(-1)
    # Back to [T, K, D] and summed in the order of the choice, so that a token's sum does not depend on its neighbours.
    return torch.empty_like(pairs).index_copy_(0, order, pairs).view(*chosen.shape, -1).sum(1)


_FEW_PAIRS = 8
"""Below so many pairs the grouped product costs more to set up than it saves (measured on two x86 cores)."""


def _takes_groups(x: Tensor, down: Tensor) -> bool:
    """Has this PyTorch a grouped product that takes these tensors? (rows of whole 16 bytes, no float64)"""
    aligned = all(size * x.element_size() % 16 == 0 for size in down.shape[1:])
    return hasattr(functional, "grouped_mm") and aligned and x.dtype in (torch.float32, torch.bfloat16)


def _grouped(taken: Tensor, counts: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    ends = counts.cumsum(0).to(torch.int32)
    gate, up = functional.grouped_mm(taken, gate_up.transpose(1, 2), offs=ends).chunk(2, -1)
    return functional.grouped_mm(functional.silu(gate) * up, down.transpose(1, 2), offs=ends)


def _one_by_one(taken: Tensor, counts: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    parts, start = [], 0
    for expert, count in enumerate(counts.tolist()):
        if count:
            gate, up = functional.linear(taken[start : start + count], gate_up[expert]).chunk(2, -1)
            parts.append(functional.linear(functional.silu(gate) * up, down[expert]))
            start += count
    return torch.cat(parts)

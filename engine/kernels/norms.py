"""RMSNorm, plain and gated. Normalised in float32 whatever the activations are."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from trnprof.engine.kernels.contracts import Contract, Operand, contract


@contract(
    Contract(
        "rms_norm",
        "x / sqrt(mean(x^2) + eps) * weight over the last axis",
        (Operand("x", "... D"), Operand("weight", "D")),
        (Operand("out", "... D"),),
        ("eps",),
    )
)
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See the contract."""
    if x.dtype == weight.dtype and x.dtype in (torch.float32, torch.float64):
        return functional.rms_norm(x, weight.shape, weight, eps)
    return functional.rms_norm(x.float(), weight.shape, weight.float(), eps).to(x.dtype)


@contract(
    Contract(
        "gated_rms_norm",
        "rms_norm(x, weight) * act(gate), act is silu (GDN) or sigmoid (KDA)",
        (Operand("x", "R W H V", "state"), Operand("gate", "R W H V"), Operand("weight", "V")),
        (Operand("out", "R W H V"),),
        ("eps", "sigmoid"),
    )
)
def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float, sigmoid: bool) -> Tensor:
    """See the contract; x is the recurrence's float32 output, the result has the gate's dtype."""
    wide = gate if gate.dtype in (torch.float32, torch.float64) else gate.float()
    normed = functional.rms_norm(x, weight.shape, weight.to(x.dtype), eps)
    return (normed * (torch.sigmoid(wide) if sigmoid else functional.silu(wide))).to(gate.dtype)

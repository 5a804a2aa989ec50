"""rms_norm and gated_rms_norm on torch tensors: leading axes become rows."""

from __future__ import annotations

from torch import Tensor

from trnprof.engine.kernels.contracts import implements
from trnprof.engine.kernels.nki.bridge import run_kernel


@implements("rms_norm", "nki")
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See the contract."""
    (out,) = run_kernel("rms_norm.py", "rms_norm", x=x.reshape(-1, x.shape[-1]), weight=weight, eps=eps)
    return out.view(x.shape)


@implements("gated_rms_norm", "nki")
def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float, sigmoid: bool) -> Tensor:
    """See the contract."""
    rows, gates = x.reshape(-1, x.shape[-1]), gate.reshape(-1, x.shape[-1])
    (out,) = run_kernel(
        "rms_norm.py", "gated_rms_norm", x=rows, gate=gates, weight=weight, eps=eps, sigmoid=bool(sigmoid)
    )
    return out.view(gate.shape)

"""route on torch tensors."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from trnprof.engine.kernels.contracts import implements
from trnprof.engine.kernels.nki.bridge import run_kernel
from trnprof.engine.kernels.nki.layouts import contracted_first

PARTITIONS = 128


@implements("route", "nki")
def route(
    x: Tensor, weight: Tensor, bias: Tensor, top_k: int, sigmoid: bool, renormalise: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """See the contract; channels that fill no partition are padded with zeros."""
    turned, missing = contracted_first(weight), -x.shape[-1] % PARTITIONS
    if missing:
        x, turned = functional.pad(x, (0, missing)), functional.pad(turned, (0, 0, 0, missing))
    weights, chosen = run_kernel(
        "routing.py",
        "route",
        x=x,
        weight=turned,
        bias=bias.float().view(1, -1),
        top_k=top_k,
        sigmoid=bool(sigmoid),
        renormalise=bool(renormalise),
        scale=float(scale),
    )
    return weights, chosen.to(torch.int64)

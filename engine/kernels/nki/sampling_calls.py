"""greedy on torch tensors. The contract `sample` has no NKI kernel: its noise is a hash in 64-bit integers."""

from __future__ import annotations

import torch
from torch import Tensor

from trnprof.engine.kernels.contracts import implements
from trnprof.engine.kernels.nki.bridge import run_kernel


@implements("greedy", "nki")
def greedy(logits: Tensor) -> Tensor:
    """See the contract."""
    (tokens,) = run_kernel("sampling.py", "greedy", logits=logits.reshape(-1, logits.shape[-1]))
    return tokens.view(logits.shape[:-1]).to(torch.int64)

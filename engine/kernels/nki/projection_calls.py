"""project on torch tensors."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from trnprof.engine.kernels.contracts import implements
from trnprof.engine.kernels.nki.bridge import run_kernel
from trnprof.engine.kernels.nki.layouts import contracted_first

PARTITIONS = 128


@implements("project", "nki")
def project(x: Tensor, weight: Tensor) -> Tensor:
    """See the contract; channels that fill no partition are padded with zeros."""
    rows, turned = x.reshape(-1, x.shape[-1]), contracted_first(weight)
    missing = -x.shape[-1] % PARTITIONS
    if missing:
        rows, turned = functional.pad(rows, (0, missing)), functional.pad(turned, (0, 0, 0, missing))
    (out,) = run_kernel("projection.py", "project", x=rows, weight=turned)
    return out.view(*x.shape[:-1], weight.shape[0])

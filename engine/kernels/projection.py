"""Linear projections with rows padded to whole tiles of 128."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from trnprof.engine.kernels.contracts import Contract, Operand, contract


@contract(
    Contract(
        "project",
        "x @ weight^T; N is a multiple of 128 (padding rows are zero), so that an input projection packs q, k, v and gates "
        "into one call without a ragged tile",
        (Operand("x", "... D"), Operand("weight", "N D")),
        (Operand("out", "... N"),),
    )
)
def project(x: Tensor, weight: Tensor) -> Tensor:
    """See the contract."""
    return functional.linear(x, weight)

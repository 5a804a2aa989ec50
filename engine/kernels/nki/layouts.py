"""Weights in the layout that a kernel reads, made once a weight and kept as long as it lives."""

from __future__ import annotations

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

_turned = WeakIdKeyDictionary()
"""Weight -> (its version then, the copy)."""


def contracted_first(weight: Tensor) -> Tensor:
    """A weight [..., N, D] as contiguous [..., D, N]: the axis that products contract, outermost."""
    version = 0 if weight.is_inference() else weight._version  # an inference tensor does not count its writes
    known = _turned.get(weight)
    if known is None or known[0] != version:
        known = _turned[weight] = (version, weight.detach().transpose(-1, -2).contiguous())
    turned: Tensor = known[1]
    return turned

"""Weights in the layout that a kernel reads, made once a weight and kept as long as it lives."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

_arranged = WeakIdKeyDictionary()
"""Weight -> {what arranges it: (its version then, the copy)}."""


def arranged(weight: Tensor, arrange: Callable[[Tensor], Tensor]) -> Tensor:
    """arrange(weight), kept until the weight is written or gone."""
    version = 0 if weight.is_inference() else weight._version  # an inference tensor does not count its writes
    copies = _arranged.setdefault(weight, {})
    known = copies.get(arrange)
    if known is None or known[0] != version:
        known = copies[arrange] = (version, arrange(weight.detach()))
    made: Tensor = known[1]
    return made


def contracted_first(weight: Tensor) -> Tensor:
    """A weight [..., N, D] as contiguous [..., D, N]: the axis that products contract, outermost."""
    return arranged(weight, _turn)


def _turn(weight: Tensor) -> Tensor:
    return weight.transpose(-1, -2).contiguous()

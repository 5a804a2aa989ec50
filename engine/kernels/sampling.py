"""Choosing the next token on the device: greedy, temperature and top-p, seeded per request and position.

The noise is a hash of (seed, position, token), not a generator's state: the same request gives the same tokens alone, in
a batch, after a preemption, and with speculation on or off.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trnprof.engine.kernels.contracts import Contract, Operand, contract


@contract(
    Contract(
        "greedy",
        "index of the largest logit; ties go to the lowest token",
        (Operand("logits", "R W X"),),
        (Operand("tokens", "R W", "index"),),
        tolerance=0.0,
    )
)
def greedy(logits: Tensor) -> Tensor:
    """See the contract."""
    return logits.argmax(-1)


@contract(
    Contract(
        "sample",
        "greedy where temperature is 0; else a draw from softmax(logits / temperature), cut to the smallest set of tokens "
        "whose probability reaches top_p. The draw depends only on (seed, position)",
        (
            Operand("logits", "R W X"),
            Operand("temperature", "R", "state"),
            Operand("top_p", "R", "state"),
            Operand("seeds", "R", "index"),
            Operand("positions", "R W", "index"),
        ),
        (Operand("tokens", "R W", "index"),),
        tolerance=0.0,
    )
)
def sample(logits: Tensor, temperature: Tensor, top_p: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """See the contract."""
    wide = logits.float()
    scaled = wide / temperature.clamp(min=1e-6)[:, None, None]
    ordered, order = torch.softmax(scaled, -1).sort(dim=-1, descending=True, stable=True)
    # A token stays if what is before it does not yet reach top_p; the first always stays.
    cut = (ordered.cumsum(-1) - ordered) >= top_p[:, None, None]
    cut[..., 0] = False
    dropped = torch.zeros_like(cut).scatter(-1, order, cut)
    noisy = scaled.masked_fill(dropped, -torch.inf) + _gumbel(seeds, positions, wide.shape[-1])
    return torch.where((temperature == 0)[:, None], wide.argmax(-1), noisy.argmax(-1))


def _gumbel(seeds: Tensor, positions: Tensor, vocab: int) -> Tensor:
    """Standard Gumbel noise [R, W, vocab]: argmax(log p + noise) is a draw from p."""
    counter = _mix(_mix(seeds[:, None] + _GOLDEN) + positions)
    bits = _mix(counter.unsqueeze(-1) + torch.arange(vocab, device=seeds.device) * _GOLDEN)
    # 24 bits into the open interval (0, 1): never 0 and never 1, so both logarithms are finite.
    uniform = ((bits >> 39) & 0xFFFFFF).double().add_(0.5).div_(float(1 << 24))
    return -torch.log(-torch.log(uniform)).float()


_GOLDEN = -7046029254386353131
"""0x9E3779B97F4A7C15 as a signed 64-bit number: splitmix64's increment."""


def _mix(x: Tensor) -> Tensor:
    """splitmix64's finaliser; int64 arithmetic wraps, and shifts are made logical by masking the sign's copies."""
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * -4658895280553007687
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * -7723592293110705685
    return x ^ ((x >> 31) & ((1 << 33) - 1))

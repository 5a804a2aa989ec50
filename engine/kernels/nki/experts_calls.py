"""experts on torch tensors: weights in the order of the kernel's tiles, and which experts to run."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trnprof.engine.kernels.contracts import implements
from trnprof.engine.kernels.experts import FORMS
from trnprof.engine.kernels.nki.bridge import run_kernel
from trnprof.engine.kernels.nki.layouts import arranged

PARTITIONS = 128
ROWS = 512
"""Of one call of the kernel; more rows go in several, each of which reads the weights again."""


@implements("experts", "nki")
def experts(x: Tensor, weights: Tensor, chosen: Tensor, gate_up: Tensor, down: Tensor, form: str) -> Tensor:
    """See the contract."""
    parts = zip(x.split(ROWS), weights.split(ROWS), chosen.split(ROWS), strict=True)
    return torch.cat([_run(*part, gate_up, down, form) for part in parts])


def _run(x: Tensor, weights: Tensor, chosen: Tensor, gate_up: Tensor, down: Tensor, form: str) -> Tensor:
    given: dict[str, Any] = {
        "x": x,
        "weights": weights,
        "chosen": chosen.to(torch.int32),
        "gate_up": arranged(gate_up, packed_gate_up),
        "down": arranged(down, packed_down),
    }
    if form == "selective":
        (out,) = run_kernel("experts.py", "experts_selective", **given)
    elif form == "expert_once":
        (out,) = run_kernel("experts.py", "experts_once", numbers=experts_to_run(chosen, len(gate_up)), **given)
    elif form == "dense":
        (out,) = run_kernel("experts.py", "experts_once", **given)
    else:
        raise ValueError(f"unknown form {form!r}; one of {', '.join(FORMS)}")
    return out


def packed_gate_up(gate_up: Tensor) -> Tensor:
    """[E, 2I, D] as [E, P, C, 2, J, Q]."""
    count, both, hidden = gate_up.shape
    p, q = tile_size(hidden), tile_size(both // 2)
    by_tile = gate_up.reshape(count, 2, both // 2 // q, q, hidden // p, p)
    return by_tile.permute(0, 5, 2, 1, 4, 3).contiguous()


def packed_down(down: Tensor) -> Tensor:
    """[E, D, I] as [E, Q, J, C, P]."""
    count, hidden, inner = down.shape
    p, q = tile_size(hidden), tile_size(inner)
    by_tile = down.reshape(count, hidden // p, p, inner // q, q)
    return by_tile.permute(0, 4, 1, 3, 2).contiguous()


def tile_size(channels: int) -> int:
    """The most partitions, up to 128, that divide the channels evenly."""
    return max(size for size in range(1, min(channels, PARTITIONS) + 1) if channels % size == 0)


def experts_to_run(chosen: Tensor, count: int) -> Tensor:
    """Numbers of the experts that a row chose, ascending, int32.

    On a device the list has as many entries as the rows could choose, so that its shape is the step's and nothing waits for
    the choice: experts that no row chose fill it up.
    """
    used = torch.zeros(count, dtype=torch.int32, device=chosen.device)
    used[chosen.flatten()] = 1
    listed = torch.argsort(used, descending=True, stable=True).to(torch.int32)
    if chosen.device.type == "cpu":
        return listed[: int(used.sum())]
    return listed[: min(count, chosen.numel())]

"""experts on torch tensors: weights in the order of the kernel's tiles, and which experts to run."""

from __future__ import annotations

import torch
from torch import Tensor

from trnprof.engine.kernels.contracts import implements
from trnprof.engine.kernels.nki.bridge import run_kernel

PARTITIONS = 128
ROWS = 512
"""Of one call of the kernel; more rows go in several, each of which reads the weights again."""


@implements("experts", "nki")
def experts(x: Tensor, weights: Tensor, chosen: Tensor, gate_up: Tensor, down: Tensor, form: str) -> Tensor:
    """See the contract."""
    first, second = pack(gate_up, down)
    parts = zip(x.split(ROWS), weights.split(ROWS), chosen.split(ROWS), strict=True)
    return torch.cat([_run(*part, first, second, form) for part in parts])


def _run(x: Tensor, weights: Tensor, chosen: Tensor, gate_up: Tensor, down: Tensor, form: str) -> Tensor:
    given = {"x": x, "weights": weights, "chosen": chosen.to(torch.int32), "gate_up": gate_up, "down": down}
    if form == "selective":
        (out,) = run_kernel("experts.py", "experts_selective", **given)
    elif form == "expert_once":
        (out,) = run_kernel("experts.py", "experts_once", numbers=experts_to_run(chosen, len(gate_up)), **given)
    elif form == "dense":
        (out,) = run_kernel("experts.py", "experts_once", **given)
    else:
        raise ValueError(f"unknown form {form!r}")
    return out


def pack(gate_up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
    """[E, 2I, D] and [E, D, I] as the kernels take them, [E, P, C, 2, J, Q] and [E, Q, J, C, P]: once, when weights load."""
    count, hidden, inner = down.shape
    p, q = tile_size(hidden), tile_size(inner)
    first = gate_up.view(count, 2, inner // q, q, hidden // p, p).permute(0, 5, 2, 1, 4, 3)
    second = down.view(count, hidden // p, p, inner // q, q).permute(0, 4, 1, 3, 2)
    return first.contiguous(), second.contiguous()


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

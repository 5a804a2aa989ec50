"""Seeded arguments for every contract, and the comparison of an implementation with the CPU's on them.

What a test of an NKI kernel, or a candidate of an optimiser, needs: `difference("rms_norm", candidate)` is to be at most
the contract's tolerance. Sizes are those of the tiny presets, so that an interpreter gets through them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from trnprof.engine.kernels.contracts import CONTRACTS, load_kernels

ROWS, HIDDEN, HEADS, KV_HEADS, DIM, KERNEL, PAGE, PAGES = 4, 128, 4, 2, 32, 4, 16, 40
CHANNELS = 3 * HEADS * DIM
STATE = (KERNEL - 1) * CHANNELS + HEADS * DIM * DIM
EXPERTS, TOP_K, INTERMEDIATE, VOCAB = 16, 2, 96, 260


def example_arguments(name: str, *, rows: int = ROWS, seed: int = 0, kda: bool = False) -> dict[str, Any]:
    """Arguments of one call by name, fresh tensors each time.

    kda: a decay a channel and a sigmoid gate (KDA) instead of one a head and silu (GDN), where that differs.

    Raises: KeyError for a name without a contract.
    """
    make = torch.Generator().manual_seed(seed)

    def normal(*shape: int, spread: float = 1.0) -> Tensor:
        return torch.randn(*shape, generator=make) * spread

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=make)

    def tokens_of(width: int) -> dict[str, Any]:
        return {
            "qkv": normal(rows, width, CHANNELS),
            "conv_weight": normal(KERNEL, CHANNELS, spread=0.5),
            "log_decay": -uniform(rows, width, HEADS, DIM if kda else 1),
            "beta": uniform(rows, width, HEADS),
        }

    def bank() -> dict[str, Any]:
        filled = normal(2 + 3 * rows, STATE, spread=0.3)
        filled[1] = 0.0  # the zero slot
        read = torch.arange(rows) + 2
        read[0] = 1
        return {"bank": filled, "read_slots": read}

    sizes = {"key_heads": HEADS, "value_heads": HEADS, "key_dim": DIM, "value_dim": DIM}

    def attention(width: int) -> dict[str, Any]:
        table = 1 + torch.randperm(PAGES - 1, generator=make)[: rows * 8].view(rows, 8)
        return {
            "key_pages": normal(PAGES, KV_HEADS, DIM, PAGE),
            "value_pages": normal(PAGES, KV_HEADS, PAGE, DIM),
            "page_table": table,
            "starts": torch.tensor([(37 * row + 5) % (8 * PAGE - width) for row in range(rows)]),
            "lengths": torch.tensor([max(1, width - row) for row in range(rows)]),
            "q": normal(rows, width, HEADS, DIM),
            "k": normal(rows, width, KV_HEADS, DIM),
            "v": normal(rows, width, KV_HEADS, DIM),
            "scale": DIM**-0.5,
            "window": 0,
            "value_dim": DIM,
        }

    builders: dict[str, Callable[[], dict[str, Any]]] = {
        "rms_norm": lambda: {"x": normal(rows, 1, HIDDEN), "weight": 1 + normal(HIDDEN, spread=0.1), "eps": 1e-6},
        "gated_rms_norm": lambda: {
            "x": normal(rows, 1, HEADS, DIM),
            "gate": normal(rows, 1, HEADS, DIM),
            "weight": 1 + normal(DIM, spread=0.1),
            "eps": 1e-6,
            "sigmoid": kda,
        },
        "project": lambda: {"x": normal(rows, 1, HIDDEN), "weight": normal(640, HIDDEN, spread=0.05)},
        "delta_rule_decode": lambda: (
            bank() | {"write_slots": 2 + rows + torch.arange(rows).unsqueeze(1)} | tokens_of(1) | sizes
        ),
        "delta_rule_prefill": lambda: (
            bank()
            | {
                "write_slots": 2 + rows + torch.arange(2 * rows).view(rows, 2),
                "save_after": torch.tensor([[64, 100 - row] for row in range(rows)]),
                "lengths": torch.tensor([100 - row for row in range(rows)]),
            }
            | tokens_of(128)
            | sizes
        ),
        "attention_decode": lambda: attention(1),
        "attention_prefill": lambda: attention(32),
        "route": lambda: {
            "x": normal(rows, HIDDEN),
            "weight": normal(EXPERTS, HIDDEN, spread=0.2),
            "bias": normal(EXPERTS, spread=0.1) if kda else torch.zeros(EXPERTS),
            "top_k": TOP_K,
            "sigmoid": kda,
            "renormalise": True,
            "scale": 2.5 if kda else 1.0,
        },
        "experts": lambda: {
            "x": normal(rows, HIDDEN),
            "weights": uniform(rows, TOP_K),
            "chosen": torch.stack([torch.randperm(EXPERTS, generator=make)[:TOP_K] for _ in range(rows)]),
            "gate_up": normal(EXPERTS, 2 * INTERMEDIATE, HIDDEN, spread=0.1),
            "down": normal(EXPERTS, HIDDEN, INTERMEDIATE, spread=0.1),
            "form": "selective",
        },
        "greedy": lambda: {"logits": normal(rows, 1, VOCAB)},
        "sample": lambda: {
            "logits": normal(rows, 1, VOCAB),
            "temperature": torch.tensor([0.3 * row for row in range(rows)]),
            "top_p": torch.tensor([1.0 - 0.1 * (row % 3) for row in range(rows)]),
            "seeds": torch.arange(rows),
            "positions": 10 + torch.arange(rows).unsqueeze(1),
        },
    }
    return builders[name]()


def difference(
    name: str, candidate: Callable[..., Any], *, rows: int = ROWS, seed: int = 0, kda: bool = False
) -> float:
    """Largest difference of a candidate from the CPU kernel, of outputs and of what the contract says is written.

    Relative to the largest magnitude of the same tensor; index outputs count 1.0 if any differs.
    """
    outputs = []
    for function in (getattr(load_kernels("cpu"), name), candidate):
        given = example_arguments(name, rows=rows, seed=seed, kda=kda)
        outputs.append(_everything(name, function, given))
    worst = 0.0
    for expected, got in zip(*outputs, strict=True):
        if expected.shape != got.shape:
            return float("inf")
        if not expected.is_floating_point():
            worst = max(worst, float(not torch.equal(expected, got)))
        else:
            scale = float(expected.abs().max()) or 1.0
            apart = float((expected.double() - got.double()).abs().max())
            worst = max(worst, apart / scale if apart == apart else float("inf"))
    return worst


def _everything(name: str, function: Callable[..., Any], given: Mapping[str, Any]) -> list[Tensor]:
    """Outputs and written operands of a call with the CPU kernel's order of arguments."""
    order = inspect.signature(getattr(load_kernels("cpu"), name)).parameters
    result = function(*(given[parameter] for parameter in order))
    outputs = list(result) if isinstance(result, tuple) else [result]
    return [*outputs, *(given[written] for written in CONTRACTS[name].written)]

"""The tensors that outlive a step: pages of keys and values, and banks of recurrent state."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trnprof.engine.config import ModelConfig

SPARE = 0
"""Page 0 and slot 0: where padding writes; nobody reads them."""
ZERO_SLOT = 1
"""The slot that a new request reads: always zeros, never written, so that no slot has to be emptied."""


@dataclass(frozen=True)
class Caches:
    """Caches of a model, a tensor of its own for every layer: each is one contiguous input of a compiled step."""

    key_pages: tuple[Tensor, ...]
    """[pages, heads, channels, page_size] of each attention layer; the MTP layer's comes last."""
    value_pages: tuple[Tensor, ...]
    """[pages, heads, page_size, channels]; no channels for latent attention."""
    banks: tuple[Tensor, ...]
    """[slots, state elements] of each linear layer, float32: convolution inputs and recurrent state of a slot together.
    A bank and slot ids are two inputs a layer at any batch size; a view a request would be two a layer and request."""


def allocate_caches(
    config: ModelConfig, *, pages: int, page_size: int, slots: int, dtype: torch.dtype, device: str = "cpu"
) -> Caches:
    """Zeroed caches for `pages` pages (page 0 is the spare) and `slots` state slots (0 the spare, 1 always zero)."""
    heads, sizes = config.attention.cache_heads, config.attention
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    elements = config.linear.state_elements if config.linear else 0

    def layers(count: int, *shape: int, kind: torch.dtype) -> tuple[Tensor, ...]:
        return tuple(torch.zeros(*shape, dtype=kind, device=device) for _ in range(count))

    return Caches(
        key_pages=layers(config.attention_layers, pages, heads, sizes.cache_key_dim, page_size, kind=dtype),
        value_pages=layers(config.attention_layers, pages, heads, page_size, sizes.cache_value_dim, kind=dtype),
        banks=layers(config.linear_layers, slots, elements, kind=wide),
    )

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
    """Caches of a model; one tensor a kind, of which every layer has a contiguous slice."""

    key_pages: Tensor
    """[attention layers, pages, heads, channels, page_size]; the MTP layer's come last."""
    value_pages: Tensor
    """[attention layers, pages, heads, page_size, channels]; no channels for latent attention."""
    banks: Tensor
    """[linear layers, slots, state elements], float32: convolution inputs and recurrent state of a slot together. A bank
    and slot ids are two inputs a layer at any batch size, where a view a request would be two a layer and request."""


def allocate_caches(
    config: ModelConfig, *, pages: int, page_size: int, slots: int, dtype: torch.dtype, device: str = "cpu"
) -> Caches:
    """Zeroed caches for `pages` pages (page 0 is the spare) and `slots` state slots (0 the spare, 1 always zero)."""
    heads, sizes = config.attention.cache_heads, config.attention
    layers = config.attention_layers
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    elements = config.linear.state_elements if config.linear else 0
    return Caches(
        key_pages=torch.zeros(layers, pages, heads, sizes.cache_key_dim, page_size, dtype=dtype, device=device),
        value_pages=torch.zeros(layers, pages, heads, page_size, sizes.cache_value_dim, dtype=dtype, device=device),
        banks=torch.zeros(config.linear_layers, slots, elements, dtype=wide, device=device),
    )

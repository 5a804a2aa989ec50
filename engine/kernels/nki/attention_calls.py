"""attention_decode and attention_prefill on torch tensors: where each token goes in the cache, and the table a page after the other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trnprof.engine.kernels.contracts import implements
from trnprof.engine.kernels.nki.bridge import run_kernel

PARTITIONS = 128


@implements("attention_decode", "nki")
def attention_decode(
    key_pages: Tensor,
    value_pages: Tensor,
    page_table: Tensor,
    starts: Tensor,
    lengths: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    window: int,
    value_dim: int,
) -> Tensor:
    """See the contract."""
    options = {"scale": scale, "window": window, "value_dim": value_dim}
    return _attend("attention_decode", (key_pages, value_pages), page_table, starts, lengths, (q, k, v), options)


@implements("attention_prefill", "nki")
def attention_prefill(
    key_pages: Tensor,
    value_pages: Tensor,
    page_table: Tensor,
    starts: Tensor,
    lengths: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    window: int,
    value_dim: int,
) -> Tensor:
    """See the contract."""
    options = {"scale": scale, "window": window, "value_dim": value_dim}
    return _attend("attention_prefill", (key_pages, value_pages), page_table, starts, lengths, (q, k, v), options)


def _attend(
    kernel: str,
    caches: tuple[Tensor, Tensor],
    page_table: Tensor,
    starts: Tensor,
    lengths: Tensor,
    projected: tuple[Tensor, Tensor, Tensor],
    options: dict[str, Any],
) -> Tensor:
    (key_pages, value_pages), (q, k, v) = caches, projected
    width, size = k.shape[1], key_pages.shape[-1]
    positions = starts.unsqueeze(1) + torch.arange(width, device=k.device)
    pages = _pages_to_write(page_table, positions, lengths, size)
    latent = not v.shape[-1]
    (out,) = run_kernel(
        "attention.py",
        kernel,
        written=("key_pages",) if latent else ("key_pages", "value_pages"),
        key_pages=key_pages,
        value_pages=None if latent else value_pages,
        pages=page_table.t().to(torch.int32),
        positions=positions.reshape(1, -1).to(torch.int32),
        key_places=_key_places(key_pages, pages, positions % size),
        value_places=None if latent else _value_places(value_pages, pages, positions % size),
        q=q,
        k=k,
        v=None if latent else v,
        **options,
    )
    return out


def _pages_to_write(page_table: Tensor, positions: Tensor, lengths: Tensor, size: int) -> Tensor:
    """[R, W]: the page of each token; padding goes to page 0."""
    index, last = positions // size, page_table.shape[1] - 1
    ahead = torch.arange(positions.shape[1], device=positions.device)
    pages = page_table.gather(1, index.clamp(max=last))
    return torch.where((ahead < lengths.unsqueeze(1)) & (index <= last), pages, 0)


def _key_places(key_pages: Tensor, pages: Tensor, offsets: Tensor) -> Tensor:
    """[pieces, 1]: where a piece of a token's keys begins; as many pieces as there are partitions, if channels divide so."""
    _, heads, channels, size = key_pages.shape
    pieces = 1
    while pages.numel() * heads * pieces * 2 <= PARTITIONS and channels % (pieces * 2) == 0:
        pieces *= 2
    inside = torch.arange(heads * pieces, device=pages.device) * (channels // pieces * size)
    return _column((pages * key_pages[0].numel() + offsets).unsqueeze(-1) + inside)


def _value_places(value_pages: Tensor, pages: Tensor, offsets: Tensor) -> Tensor:
    """[R W H, 1]: where a token's values of a head begin."""
    _, heads, size, channels = value_pages.shape
    inside = torch.arange(heads, device=pages.device) * (size * channels)
    return _column((pages * value_pages[0].numel() + offsets * channels).unsqueeze(-1) + inside)


def _column(places: Tensor) -> Tensor:
    return places.reshape(-1, 1).to(torch.int32)

"""delta_rule_decode on torch tensors: indices as the device takes them, and reads before writes where rows share slots."""

from __future__ import annotations

import torch
from torch import Tensor

from trnprof.engine.kernels.contracts import implements
from trnprof.engine.kernels.nki.bridge import run_kernel


@implements("delta_rule_decode", "nki")
def delta_rule_decode(
    bank: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    qkv: Tensor,
    conv_weight: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    key_heads: int,
    value_heads: int,
    key_dim: int,
    value_dim: int,
) -> Tensor:
    """See the contract."""
    pages, reads = bank, read_slots
    if _is_read_after_write(read_slots, write_slots):
        # The kernel writes a row's pages while others are still to be read; those that would change lie behind the bank.
        pages, reads = torch.cat((bank, bank[read_slots])), len(bank) + torch.arange(len(read_slots))
    (out,) = run_kernel(
        "delta_rule.py",
        "delta_rule_decode",
        written=("bank",),
        bank=pages,
        read_slots=reads.to(torch.int32),
        write_slots=write_slots.to(torch.int32),
        qkv=qkv,
        conv_weight=conv_weight,
        log_decay=log_decay,
        beta=beta,
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=key_dim,
        value_dim=value_dim,
    )
    if pages is not bank:
        bank.copy_(pages[: len(bank)])
    return out


def _is_read_after_write(read_slots: Tensor, write_slots: Tensor) -> bool:
    """Does a row write a slot that another row reads? (Asked on the CPU only: on a device it would wait for it.)"""
    if read_slots.device.type != "cpu":
        return False
    shared = write_slots.unsqueeze(-1) == read_slots  # [writing row, token, reading row]
    others = ~torch.eye(len(read_slots), dtype=torch.bool).unsqueeze(1)
    return bool((shared & others).any())

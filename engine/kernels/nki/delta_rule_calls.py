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
    pages, reads = apart(bank, read_slots, write_slots)
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


@implements("delta_rule_prefill", "nki")
def delta_rule_prefill(
    bank: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    save_after: Tensor,
    lengths: Tensor,
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
    pages, reads = apart(bank, read_slots, write_slots)
    (out,) = run_kernel(
        "delta_rule.py",
        "delta_rule_prefill",
        written=("bank",),
        bank=pages,
        read_slots=reads.to(torch.int32),
        write_slots=write_slots.to(torch.int32),
        save_after=save_after.to(torch.int32),
        lengths=lengths.to(torch.int32),
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


def apart(bank: Tensor, read_slots: Tensor, write_slots: Tensor) -> tuple[Tensor, Tensor]:
    """(bank, read slots) with which no row reads what another row writes.

    The kernels write rows' pages while others are still to be read. Pages that would change meanwhile are read from behind a
    copy of the bank. (Looked for on the CPU only: on a device it would wait for the slots, and the scheduler plans none.)
    """
    if read_slots.device.type != "cpu":
        return bank, read_slots
    shared = write_slots.unsqueeze(-1) == read_slots  # [writing row, token, reading row]
    others = ~torch.eye(len(read_slots), dtype=torch.bool).unsqueeze(1)
    if not bool((shared & others).any()):
        return bank, read_slots
    return torch.cat((bank, bank[read_slots])), len(bank) + torch.arange(len(read_slots))

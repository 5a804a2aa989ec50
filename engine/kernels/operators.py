"""Kernels as operators of `torch.library`: one opaque call in a compiled graph, with what it writes declared.

A compiler then sees neither the inside of a kernel nor a graph break at it, and state is written in place only there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from trnprof.engine.kernels.contracts import CONTRACTS, Contract, Kernels

NAMESPACE = "trnprof"


def as_operators(kernels: Kernels) -> Kernels:
    """The same kernels as operators `trnprof::NAME`; a kernel is registered once a process."""
    return Kernels(**{name: _operator(name, function) for name, function in vars(kernels).items()})


@cache
def _operator(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    contract = CONTRACTS[name]
    operator = torch.library.custom_op(f"{NAMESPACE}::{name}", function, mutates_args=contract.written)
    operator.register_fake(_shaped(contract, list(inspect.signature(function).parameters)))
    return operator


def _shaped(contract: Contract, parameters: list[str]) -> Callable[..., Any]:
    """What the kernel would return, as empty tensors: shapes and dtypes come from its contract."""

    def outputs(*arguments: Any) -> Any:
        given = dict(zip(parameters, arguments, strict=True))
        sizes = contract.check(given)
        sizes |= {axis: given[scalar] for axis, scalar in contract.sizes_from}
        made = tuple(
            _empty(contract, operand.shape.split(), operand.kind, given, sizes) for operand in contract.outputs
        )
        return made if len(made) > 1 else made[0]

    return outputs


def _empty(contract: Contract, axes: list[str], kind: str, given: dict[str, Any], sizes: dict[str, int]) -> Tensor:
    like = given[next(operand.name for operand in contract.operands if operand.kind == kind or kind == "index")]
    dtype = torch.int64 if kind == "index" else like.dtype
    if axes[0] == "...":  # the leading axes are the first operand's
        first = given[contract.operands[0].name]
        return first.new_empty((*first.shape[: first.dim() - 1], sizes[axes[1]]), dtype=dtype)
    return like.new_empty([sizes[axis] for axis in axes], dtype=dtype)

"""Tensors that come into being with values: constants, identity matrices, filled and random ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnprof.nki.dtypes import as_dtype
from trnprof.nki.objects import MemoryRegion
from trnprof.nki.operations import creation
from trnprof.nki.operations.table import Bound, Operation, new_tensor
from trnprof.nki.tensor import Tensor
from trnprof.nki.values.cells import Cells
from trnprof.nki.values.elementwise import copy, fill
from trnprof.nki.values.kinds import dtype_of
from trnprof.nki.values.machine import Machine
from trnprof.nki.values.random import fill_uniform, reseed
from trnprof.nki.values.registry import evaluation


def _allocate(machine: Machine, bound: Bound, shape: Any, dtype: Any) -> Tensor:
    return machine.limits.check_allocation(creation.allocate(machine.recorder, bound, shape, dtype))


@evaluation("language", "ndarray", "empty")
def ndarray(machine: Machine, operation: Operation, bound: Bound) -> Tensor:
    tensor = _allocate(machine, bound, bound["shape"], bound.get("dtype") or "float32")
    if bound.get("init_value") is not None:
        fill(machine, tensor, bound["init_value"])
    return tensor


@evaluation("language", "zeros", "ones", "full")
def filled(machine: Machine, operation: Operation, bound: Bound) -> Tensor:
    tensor = _allocate(machine, bound, bound["shape"], bound.get("dtype") or "float32")
    fill(machine, tensor, bound.get("fill_value", 1 if operation.name == "ones" else 0))
    return tensor


@evaluation("language", "zeros_like", "empty_like")
def like(machine: Machine, operation: Operation, bound: Bound) -> Tensor:
    x = bound["x"]
    given = {**bound, "buffer": bound.get("buffer") or x.buffer}
    tensor = _allocate(machine, given, x.shape, bound.get("dtype") or x.dtype)
    if operation.name == "zeros_like":
        fill(machine, tensor, 0)
    return tensor


@evaluation("language", "rand")
def rand(machine: Machine, operation: Operation, bound: Bound) -> Tensor:
    tensor = _allocate(machine, bound, bound["shape"], bound.get("dtype") or "float32")
    fill_uniform(machine, tensor)
    return tensor


@evaluation("language", "random_seed")
def random_seed(machine: Machine, operation: Operation, bound: Bound) -> None:
    reseed(machine, machine.integer(bound["seed"]))


@evaluation("language", "shared_constant")
def shared_constant(machine: Machine, operation: Operation, bound: Bound) -> Tensor:
    """Data of the compiled file, in HBM."""
    data = bound["constant"]
    if isinstance(data, str):
        data = np.load(data, allow_pickle=False)
    return _constant(machine, np.asarray(data), bound.get("dtype"))


def _constant(machine: Machine, data: np.ndarray, dtype: Any) -> Tensor:
    kind = dtype_of(data) if dtype is None else as_dtype(dtype)
    tensor = new_tensor(machine.recorder, data.shape, kind, MemoryRegion.shared_hbm, name="constant", kind="constant")
    tensor.storage.cells = Cells.of(data.copy(), kind, "constant", loose=not machine.precise)
    return tensor


@evaluation("language", "shared_identity_matrix")
def shared_identity_matrix(machine: Machine, operation: Operation, bound: Bound) -> Tensor:
    """Ones on the diagonal, in SBUF."""
    n, dtype = machine.integer(bound["n"]), as_dtype(bound.get("dtype") or "uint8")
    target = bound.get("dst")
    if target is None:
        target = new_tensor(machine.recorder, (n, n), dtype, name="identity", kind="tensor")
    copy(machine, target, _constant(machine, np.eye(n, dtype=np.float32), dtype))
    return target

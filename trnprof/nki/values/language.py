"""nki.language on tiles: operators, functions, reductions, products."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnprof.nki.dtypes import DTYPES, as_dtype
from trnprof.nki.index_tensors import IndexTensor, Mask
from trnprof.nki.objects import MemoryRegion
from trnprof.nki.operations.language import (
    ACTIVATIONS,
    BINARY,
    COMPARISONS,
    REDUCTIONS,
    VECTOR_UNARY,
    broadcast_shape,
    host_value,
)
from trnprof.nki.operations.table import TABLE, Bound, Operation, new_tensor
from trnprof.nki.recording import Memory
from trnprof.nki.tensor import Tensor
from trnprof.nki.values import alu, kinds
from trnprof.nki.values.activations import activate
from trnprof.nki.values.elementwise import combine, copy, put_integers
from trnprof.nki.values.machine import Machine
from trnprof.nki.values.products import nc_transpose
from trnprof.nki.values.random import drop
from trnprof.nki.values.reductions import reduced
from trnprof.nki.values.registry import evaluation

_REDUCTION = {
    "sum": "add",
    "max": "maximum",
    "min": "minimum",
    "prod": "multiply",
    "all": "logical_and",
    "any": "logical_or",
}


@evaluation("language", *BINARY, *COMPARISONS)
def binary(machine: Machine, operation: Operation, bound: Bound) -> Any:
    """x <op> y, NumPy's broadcasting; numbers and index tensors are the host's arithmetic."""
    x, y = bound.get("x"), bound.get("y")
    if not isinstance(x, Tensor) and not isinstance(y, Tensor):
        return host_value(operation.name, x, y)
    dst, made = machine.destination(operation, bound)
    left, right = (_wide(machine, one, dst.shape) for one in (x, y))
    if (type(left) is Tensor and type(right) is Tensor) or alu.is_bitwise(operation.name):
        combine(machine, dst, operation.name, left, right, bound.get("mask"))
    else:
        result = alu.apply(operation.name, machine.number(left), machine.number(right))
        machine.write(dst, result, bound.get("mask"))
    if operation.name in COMPARISONS and made is not None:
        made.predicate = True
    return made


def _wide(machine: Machine, value: Any, shape: tuple[int, ...]) -> Any:
    if type(value) is Tensor and value.shape != shape and value.size != _size(shape):
        return value.broadcast_to(shape)
    return value


def _size(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))


@evaluation("language", *VECTOR_UNARY, *ACTIVATIONS)
def unary(machine: Machine, operation: Operation, bound: Bound) -> Any:
    x = bound.get("x")
    if not isinstance(x, Tensor):
        return host_value(operation.name, x, None)
    dst, made = machine.destination(operation, bound)
    mask = bound.get("mask")
    if operation.name in ("copy", "bypass"):
        copy(machine, dst, x, mask)
    elif alu.is_bitwise(operation.name):
        put_integers(
            machine, dst, alu.apply_integers(operation.name, machine.bits(x), None, kinds.NUMPY[x.dtype]), mask
        )
    else:
        machine.write(dst, activate(operation.name, machine.number(x)), mask)
    return made


@evaluation("language", *REDUCTIONS)
def reduction(machine: Machine, operation: Operation, bound: Bound) -> Any:
    """Over any axes (the language adds what it takes to cross partitions)."""
    x = bound["x"]
    if not isinstance(x, Tensor):
        import builtins

        rest = [bound["axis"]] if bound.get("axis") is not None else []
        return getattr(builtins, operation.name)(x, *rest)
    dst, made = machine.destination(operation, bound)
    given = bound["axis"] if isinstance(bound["axis"], list | tuple) else [bound["axis"]]
    axes = tuple(sorted({int(axis) % x.ndim for axis in given}))
    mask = bound.get("mask")
    name = _REDUCTION.get(operation.name)
    if name is not None:
        reduced(machine, dst, name, x, axes, mask=mask)
        return made
    values = machine.number(x)
    where = machine.where(mask, x.shape)
    inside: Any = True if where is None else where
    result = (np.mean if operation.name in ("mean", "average") else np.var)(
        values, axis=axes, keepdims=True, where=inside
    )
    machine.write(dst, machine.fitted(result, dst.shape))
    return made


def _made(machine: Machine, bound: Bound, shape: Any, dtype: Any, name: str, region: Any = MemoryRegion.sbuf) -> Tensor:
    kind = as_dtype(bound["dtype"]) if bound.get("dtype") is not None else dtype
    return new_tensor(machine.recorder, shape, kind, region, name=name, kind="result")


@evaluation("language", "softmax")
def softmax(machine: Machine, operation: Operation, bound: Bound) -> Tensor:
    x = bound["x"]
    given = bound.get("axis", -1)
    axes = tuple(int(axis) % x.ndim for axis in (given if isinstance(given, list | tuple) else [given]))
    values = machine.number(x)
    where = machine.where(bound.get("mask"), x.shape)
    if where is not None:
        values = np.where(where, values, -np.inf)
    powers = np.exp(values - values.max(axis=axes, keepdims=True))
    result = _made(machine, bound, x.shape, x.dtype, "softmax")
    machine.write(result, powers / powers.sum(axis=axes, keepdims=True), bound.get("mask"))
    return result


@evaluation("language", "rms_norm")
def rms_norm(machine: Machine, operation: Operation, bound: Bound) -> Tensor:
    """x / sqrt(sum(x^2) / n + epsilon) * w."""
    x, w = bound["x"], bound["w"]
    given = bound["axis"]
    axes = tuple(int(axis) % x.ndim for axis in (given if isinstance(given, list | tuple) else [given]))
    values = machine.number(x)
    count = bound.get("n") or _size(tuple(x.shape[axis] for axis in axes))
    epsilon = bound.get("epsilon")
    total = np.square(values).sum(axis=axes, keepdims=True, dtype=machine.work)
    scaled = values / np.sqrt(total / count + machine.work.type(1e-6 if epsilon is None else epsilon))
    if isinstance(w, Tensor):
        scaled = scaled * machine.fitted(machine.number(w), x.shape)
    result = _made(machine, bound, x.shape, x.dtype, "rms_norm")
    machine.write(result, scaled, bound.get("mask"))
    return result


@evaluation("language", "matmul")
def matmul(machine: Machine, operation: Operation, bound: Bound) -> Tensor:
    """x @ y in PSUM; x comes transposed where transpose_x says so."""
    x, y = bound["x"], bound["y"]
    left, right = machine.number(x), machine.number(y)
    left = left.reshape(left.shape[0], -1)
    rows = left if bound.get("transpose_x") else left.T
    product = rows.T @ right.reshape(right.shape[0], -1)
    shape = (rows.shape[1], *y.shape[1:])
    result = new_tensor(machine.recorder, shape, DTYPES["float32"], MemoryRegion.psum, name="matmul", kind="result")
    machine.deliver(result, product, False, bound.get("mask"))
    return result


@evaluation("language", "transpose")
def transpose(machine: Machine, operation: Operation, bound: Bound) -> Any:
    x = bound["x"]
    if not isinstance(x, Tensor):
        raise TypeError("nl.transpose needs a tile")
    rest = {name: bound[name] for name in ("dtype", "mask") if bound.get(name) is not None}
    return nc_transpose(machine, TABLE["isa", "nc_transpose"], {"data": x, **rest})


@evaluation("language", "where")
def where(machine: Machine, operation: Operation, bound: Bound) -> Any:
    condition, x, y = bound["condition"], bound["x"], bound["y"]
    tensors = [value for value in (x, y, condition) if isinstance(value, Tensor)]
    shape = tensors[0].shape
    for tensor in tensors[1:]:
        shape = broadcast_shape(shape, tensor.shape)
    if isinstance(condition, IndexTensor | Mask):
        truth = condition.values() if isinstance(condition, Mask) else condition.values() != 0
    else:
        truth = machine.bits(_wide(machine, condition, shape)) != 0
    left, right = (
        machine.fitted(machine.number(one), shape) if type(one) is Tensor and one.size == _size(shape)
        else machine.number(_wide(machine, one, shape))
        for one in (x, y)
    )  # fmt: skip
    result = _made(machine, bound, shape, tensors[0].dtype, "where")
    machine.write(result, np.where(truth, left, right).astype(machine.work), bound.get("mask"))
    return result


@evaluation("language", "broadcast_to")
def broadcast_to(machine: Machine, operation: Operation, bound: Bound) -> Any:
    x = bound["x"]
    shape = tuple(int(size) for size in bound["shape"])
    if isinstance(x, IndexTensor):
        return x.broadcast_to(shape)
    if x.storage.memory is not Memory.HBM and shape and x.shape and shape[0] != x.shape[0]:
        result = _made(machine, bound, shape, x.dtype, "broadcast_to")
        copy(machine, result, x.broadcast_to(shape))
        return result
    return x.broadcast_to(shape)


@evaluation("language", "expand_dims")
def expand_dims(machine: Machine, operation: Operation, bound: Bound) -> Any:
    x, axis = bound["x"], int(bound["axis"])
    return x.expand_dims(axis) if isinstance(x, IndexTensor) else x.expand_dim(axis)


@evaluation("language", "gather_flattened")
def gather_flattened(machine: Machine, operation: Operation, bound: Bound) -> Tensor:
    """Within each partition: the elements that the indices name, free dimensions flattened."""
    data, indices = bound["data"], bound["indices"]
    values, places = machine.bits(data), machine.bits(indices).astype(np.int64)
    flat = values.reshape(values.shape[0], -1)
    rows = places.reshape(places.shape[0], -1)
    if rows.size and (rows.min() < 0 or rows.max() >= flat.shape[1]):
        raise IndexError(
            f"gather_flattened: indices {int(rows.min())}..{int(rows.max())} of {indices.name!r} into {flat.shape[1]} elements"
        )
    result = _made(machine, bound, indices.shape, data.dtype, "gather_flattened")
    taken = np.take_along_axis(flat, rows, axis=1).reshape(indices.shape)
    if result.dtype == data.dtype:
        machine.put(result, taken)
    else:
        machine.write(result, machine.widened(taken, data.dtype))
    return result


@evaluation("language", "dropout")
def dropout(machine: Machine, operation: Operation, bound: Bound) -> Any:
    dst, made = machine.destination(operation, bound)
    drop(machine, dst, bound["x"], bound["rate"], bound.get("mask"))
    return made

"""nki.isa on elements: copies, operators, activations, selections, patterns."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnprof.nki.index_tensors import IndexTensor, Mask
from trnprof.nki.operations.table import Bound, Operation, op_name
from trnprof.nki.recording import Memory
from trnprof.nki.tensor import Tensor
from trnprof.nki.values import alu, kinds
from trnprof.nki.values.accumulators import accumulate, command
from trnprof.nki.values.activations import VALID_RANGE, activate
from trnprof.nki.values.machine import SCALAR, VECTOR, Machine
from trnprof.nki.values.registry import instruction

FP32_MIN = float(np.finfo(np.float32).min)


@instruction("isa", "tensor_copy", "tensor_copy_dynamic_src", "tensor_copy_dynamic_dst")
def tensor_copy(machine: Machine, operation: Operation, bound: Bound, dst: Tensor) -> None:
    """Bit by bit between equal types, through float32 otherwise."""
    src = bound["src"]
    machine.limits.same_partitions(operation.name, dst, src=src)
    copy(machine, dst, src, bound.get("mask"))


def copy(machine: Machine, dst: Tensor, src: Tensor, mask: Any = None) -> None:
    """dst = src, in element order where the shapes differ."""
    if src.dtype == dst.dtype:
        machine.put(dst, machine.fitted(machine.bits(src), dst.shape), mask)
    else:
        machine.write(dst, machine.fitted(machine.number(src), dst.shape), mask)


@instruction("isa", "memset")
def memset(machine: Machine, operation: Operation, bound: Bound, dst: Tensor) -> None:
    fill(machine, dst, bound["value"], bound.get("mask"))


def fill(machine: Machine, dst: Tensor, value: Any, mask: Any = None) -> None:
    """dst = value everywhere."""
    if dst.dtype in kinds.PACKED:
        machine.put(dst, np.full((1,) * dst.ndim, int(value), kinds.NUMPY[dst.dtype]), mask)
    elif kinds.is_integer(dst.dtype):
        limits = np.iinfo(kinds.NUMPY[dst.dtype])
        plain = value if isinstance(value, int) else round(float(machine.number(value)))
        machine.put(
            dst, np.full((1,) * dst.ndim, min(max(plain, limits.min), limits.max), kinds.NUMPY[dst.dtype]), mask
        )
    else:
        machine.write(dst, np.full((1,) * dst.ndim, value, machine.work), mask)


@instruction("isa", "tensor_tensor")
def tensor_tensor(machine: Machine, operation: Operation, bound: Bound, dst: Tensor) -> None:
    first, second = bound["data1"], bound["data2"]
    if machine.limits.integers_for_bits("tensor_tensor", (bound["op"],), dst, first, second) is False:
        machine.limits.not_both_in_psum("tensor_tensor", first, second)
    machine.limits.same_partitions("tensor_tensor", dst, data1=first, data2=second)
    combine(machine, dst, op_name(bound["op"]), first, second, bound.get("mask"))


def combine(machine: Machine, dst: Tensor, name: str, first: Any, second: Any, mask: Any = None) -> None:
    """dst = first <op> second: exactly between 32-bit integers and for bit patterns, in float32 otherwise."""
    operands = [one for one in (first, second) if type(one) is Tensor]
    whole = all(one.dtype in ("int32", "uint32") for one in (*operands, dst))
    if alu.is_bitwise(name) or (whole and len(operands) == 2):
        kind = kinds.NUMPY[operands[0].dtype]
        left = machine.fitted(machine.bits(first), dst.shape) if type(first) is Tensor else first
        right = machine.fitted(machine.bits(second), dst.shape) if type(second) is Tensor else second
        put_integers(machine, dst, alu.apply_integers(name, left, right, kind), mask)
        return
    left, right = (
        machine.fitted(machine.number(one), dst.shape) if type(one) is Tensor else machine.number(one)
        for one in (first, second)
    )
    machine.write(dst, alu.apply(name, left, right), mask)


def put_integers(machine: Machine, dst: Tensor, values: np.ndarray, mask: Any = None) -> None:
    """Integers to a tensor of any integer type (their low bits) or to floats."""
    if kinds.is_integer(dst.dtype):
        machine.put(dst, np.asarray(values).astype(kinds.NUMPY[dst.dtype]), mask)
    else:
        machine.write(dst, np.asarray(values).astype(machine.work), mask)


@instruction("isa", "tensor_scalar")
def tensor_scalar(machine: Machine, operation: Operation, bound: Bound, dst: Tensor) -> None:
    """(data <op0> operand0) <op1> operand1, operands broadcast along the free dimensions."""
    data = bound["data"]
    first, second = bound["op0"], bound.get("op1")
    machine.limits.same_partitions("tensor_scalar", dst, data=data)
    if machine.limits.integers_for_bits("tensor_scalar", (first, second), dst, data):
        kind = kinds.NUMPY[data.dtype]
        values = machine.bits(data)
        for op, name in ((first, "0"), (second, "1")):
            if op is not None:
                values = _bits_step(machine, values, op_name(op), bound, name, kind)
        put_integers(machine, dst, machine.fitted(values, dst.shape), bound.get("mask"))
        return
    values = step(machine, machine.number(data), first, bound.get("operand0"), bound.get("reverse0"))
    if second is not None:
        values = step(machine, values, second, bound.get("operand1"), bound.get("reverse1"))
    machine.write(dst, machine.fitted(values, dst.shape), bound.get("mask"))


def _bits_step(machine: Machine, values: Any, name: str, bound: Bound, which: str, kind: Any) -> Any:
    operand = bound.get(f"operand{which}")
    if type(operand) is Tensor:
        bits = machine.bits(operand)
        operand = bits.reshape(bits.shape[0], *([1] * (values.ndim - 1))) if bits.size > 1 else bits.reshape(())
    elif operand is not None:
        operand = np.array(int(operand), np.int64)
    left, right = (operand, values) if bound.get(f"reverse{which}") else (values, operand)
    return alu.apply_integers(name, left, right, kind)


def step(machine: Machine, values: np.ndarray, op: Any, operand: Any, reverse: Any = False) -> Any:
    """values <op> operand, or operand <op> values."""
    name = op_name(op)
    other = machine.operand(0.0 if operand is None else operand, values)
    return alu.apply(name, other, values) if reverse else alu.apply(name, values, other)


@instruction("isa", "scalar_tensor_tensor")
def scalar_tensor_tensor(machine: Machine, operation: Operation, bound: Bound, dst: Tensor) -> None:
    data, other = bound["data"], bound["operand1"]
    machine.limits.same_partitions("scalar_tensor_tensor", dst, data=data, operand1=other)
    machine.limits.not_both_in_psum("scalar_tensor_tensor", data, other)
    values = step(machine, machine.number(data), bound["op0"], bound["operand0"], bound.get("reverse0"))
    right = machine.operand(other, values)
    name = op_name(bound["op1"])
    result = alu.apply(name, right, values) if bound.get("reverse1") else alu.apply(name, values, right)
    machine.write(dst, machine.fitted(result, dst.shape), bound.get("mask"))


@instruction("isa", "tensor_scalar_reduce")
def tensor_scalar_reduce(machine: Machine, operation: Operation, bound: Bound, dst: Tensor) -> None:
    data = bound["data"]
    values = step(machine, machine.number(data), bound["op0"], bound.get("operand0"), bound.get("reverse0"))
    machine.write(dst, machine.fitted(values, dst.shape), bound.get("mask"))
    accumulate(machine, VECTOR, bound, values, default="reset_reduce", op="add")


@instruction("isa", "tensor_scalar_cumulative")
def tensor_scalar_cumulative(machine: Machine, operation: Operation, bound: Bound, dst: Tensor) -> None:
    """A scalar operation, then a running reduction along the free dimensions."""
    src = bound["src"]
    values = step(machine, machine.number(src), bound["op0"], bound["imm0"])
    flat = values.reshape(values.shape[0], -1)
    name = alu.canonical(op_name(bound["op1"]))
    start = command(bound, "reset_reduce")
    if start == "load_reduce":
        first = np.broadcast_to(machine.operand(bound["imm1"], flat), (flat.shape[0], 1))
    elif start == "reduce" and VECTOR in machine.registers:
        first = machine.registers[VECTOR][: flat.shape[0]]
    else:
        first = np.full((flat.shape[0], 1), alu.IDENTITY.get(name, 0.0))
    ordered = np.concatenate([first.astype(flat.dtype), flat], axis=1)
    if name == "subtract":  # reg = value - reg
        result = np.empty_like(ordered)
        result[:, 0] = ordered[:, 0]
        for at in range(1, ordered.shape[1]):
            result[:, at] = ordered[:, at] - result[:, at - 1]
    else:
        result = alu.REDUCTIONS[name].accumulate(ordered, axis=1, dtype=flat.dtype)
    machine.registers[VECTOR] = result[:, -1:].copy()
    machine.write(dst, machine.fitted(result[:, 1:].reshape(values.shape), dst.shape), bound.get("mask"))


@instruction("isa", "activation", "activation_reduce")
def activation(machine: Machine, operation: Operation, bound: Bound, dst: Tensor) -> None:
    """op(data * scale + bias), with an optional sum along the free dimensions."""
    data = bound["data"]
    machine.limits.same_partitions(operation.name, dst, data=data)
    values = machine.number(data)
    scale, bias = bound.get("scale"), bound.get("bias")
    if scale is not None and not (type(scale) is not Tensor and scale == 1):
        values = values * machine.operand(scale, values)
    if bias is not None:
        values = values + machine.operand(bias, values)
    name = op_name(bound["op"])
    check_range(machine, name, values)
    result = activate(name, values)
    machine.write(dst, machine.fitted(result, dst.shape), bound.get("mask"))
    default = "reset_reduce" if operation.name == "activation_reduce" or _reduces(bound) else "idle"
    accumulate(machine, SCALAR, bound, result, default=default, op="add")


def _reduces(bound: Bound) -> bool:
    """First generation: a reduction result without a command resets and reduces."""
    return bound.get("reduce_res") is not None and bound.get("reduce_cmd") is None


def check_range(machine: Machine, name: str, values: np.ndarray) -> None:
    """Note inputs for which the device's polynomial means nothing."""
    known = VALID_RANGE.get(alu.canonical(name))
    if known is None or not values.size:
        return
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if low < known[0] * (1 + 1e-6 * np.sign(known[0])) or high > known[1] * (1 + 1e-6):
        machine.note(
            "activation-range",
            f"{name} of {low:.4g}..{high:.4g}: the scalar engine's result is valid for {known[0]:.4g}..{known[1]:.4g} only",
        )


@instruction("isa", "activate2")
def activate2(machine: Machine, operation: Operation, bound: Bound, dst: Tensor) -> None:
    values = machine.number(bound["data"])
    for which in "01":
        op = bound.get(f"op{which}")
        if op is not None and op_name(op) != "bypass":
            values = step(machine, values, op, bound.get(f"imm{which}"), bound.get(f"reverse{which}"))
    name = op_name(bound["op"])
    check_range(machine, name, values)
    result = activate(name, values, machine.operand(bound.get("relu_param", 0.0), values))
    machine.write(dst, machine.fitted(result, dst.shape))
    accumulate(machine, SCALAR, bound, result, default="idle", op="add")


@instruction("isa", "exponential")
def exponential(machine: Machine, operation: Operation, bound: Bound, dst: Tensor) -> None:
    values = machine.number(bound["src"])
    largest = bound.get("max_value")
    if largest is not None:
        values = values - machine.operand(largest, values)
    result = np.exp(values)
    machine.write(dst, machine.fitted(result, dst.shape))
    accumulate(machine, VECTOR, bound, result, default="idle", op="add")


@instruction("isa", "reciprocal")
def reciprocal(machine: Machine, operation: Operation, bound: Bound, dst: Tensor) -> None:
    machine.write(dst, machine.fitted(1 / machine.number(bound["data"]), dst.shape), bound.get("mask"))


@instruction("isa", "tensor_copy_predicated")
def tensor_copy_predicated(machine: Machine, operation: Operation, bound: Bound, dst: Tensor) -> None:
    predicate = machine.fitted(machine.bits(bound["predicate"]), dst.shape) != 0
    if bound.get("reverse_pred"):
        predicate = ~predicate
    src = bound["src"]
    if type(src) is not Tensor:
        fill(machine, dst, src, predicate)
    else:
        copy(machine, dst, src, predicate)


@instruction("isa", "select_reduce")
def select_reduce(machine: Machine, operation: Operation, bound: Bound, dst: Tensor) -> None:
    on_true = machine.number(bound["on_true"])
    predicate = machine.fitted(machine.bits(bound["predicate"]), on_true.shape) != 0
    if bound.get("reverse_pred"):
        predicate = ~predicate
    result = np.where(predicate, on_true, machine.operand(bound["on_false"], on_true)).astype(machine.work)
    machine.write(dst, machine.fitted(result, dst.shape))
    accumulate(machine, VECTOR, bound, result, default="idle", op="maximum")


@instruction("isa", "range_select")
def range_select(machine: Machine, operation: Operation, bound: Bound, dst: Tensor) -> None:
    """Elements whose place in the free dimensions lies between two bounds; FP32_MIN elsewhere."""
    data = machine.number(bound["on_true_tile"])
    flat = data.reshape(data.shape[0], -1)
    place = np.arange(flat.shape[1], dtype=machine.work) + machine.work.type(bound.get("range_start") or 0)
    keep = np.ones(flat.shape, bool)
    for which in "01":
        limit = machine.operand(bound[f"bound{which}"], flat)
        keep &= alu.apply(op_name(bound[f"comp_op{which}"]), place[None, :], limit) != 0
    other = bound.get("on_false_value")
    other = FP32_MIN if other is None or other is ... else float(machine.number(other))
    result = np.where(keep, flat, machine.work.type(other)).reshape(data.shape)
    machine.write(dst, machine.fitted(result, dst.shape), bound.get("mask"))
    accumulate(machine, VECTOR, bound, result, default="reset_reduce", op="maximum")


@instruction("isa", "iota")
def iota(machine: Machine, operation: Operation, bound: Bound, dst: Tensor) -> None:
    expression = bound.get("expr")
    if expression is not None:  # first generation: an index expression
        values = expression.values() if isinstance(expression, IndexTensor) else np.array(machine.integer(expression))
    else:
        values = affine(machine, bound, dst)
    _put_counts(machine, dst, np.broadcast_to(values, dst.shape), bound.get("mask"))


def _put_counts(machine: Machine, dst: Tensor, values: np.ndarray, mask: Any) -> None:
    values = ((values + (1 << 31)) % (1 << 32) - (1 << 31)).astype(np.int32)  # the engine counts in int32
    put_integers(machine, dst, values, mask)


def affine(machine: Machine, bound: Bound, tensor: Tensor) -> np.ndarray:
    """offset + channel * channel_multiplier + the pattern's steps, shape tensor.shape, int64."""
    pattern = bound["pattern"]
    channels = tensor.shape[0]
    total = np.arange(channels, dtype=np.int64) * machine.integer(bound.get("channel_multiplier") or 0)
    total = total + machine.integer(bound.get("offset") or 0)
    for index_step, count in pattern:
        line = np.arange(int(count), dtype=np.int64) * int(index_step)
        total = total[..., None] + line
    if total.size != tensor.size:
        raise ValueError(
            f"the pattern {[list(pair) for pair in pattern]} gives {total.size // max(channels, 1)} elements a partition, "
            f"and {tensor.name!r} has {tensor.size // max(channels, 1)}"
        )
    return total.reshape(tensor.shape)


@instruction("isa", "affine_select")
def affine_select(machine: Machine, operation: Operation, bound: Bound, dst: Tensor) -> None:
    """on_true_tile where the affine expression compares with 0 as asked, on_false_value elsewhere."""
    source = bound["on_true_tile"]
    for name, tensor in (("dst", dst), ("on_true_tile", source)):
        if tensor.storage.memory is Memory.PSUM:
            machine.limits.refuse(
                f"affine_select {name}: {tensor.name!r} is in PSUM, which the gpsimd engine does not reach"
            )
    if bound.get("pred") is not None:
        keep = _predicate(bound["pred"], source.shape)
    else:
        name = op_name(bound["cmp_op"]) if bound.get("cmp_op") is not None else "equal"
        keep = alu.apply(name, affine(machine, bound, dst).astype(np.float64), 0.0) != 0
    values = machine.fitted(machine.number(source), dst.shape)
    other = machine.operand(bound["on_false_value"], values)
    machine.write(dst, np.where(machine.fitted(keep, dst.shape), values, other), bound.get("mask"))


def _predicate(predicate: Any, shape: tuple[int, ...]) -> np.ndarray:
    values = predicate.values() if isinstance(predicate, Mask) else np.asarray(predicate)
    return np.broadcast_to(values, shape)

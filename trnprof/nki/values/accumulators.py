"""Accumulator registers: 128 of the vector engine and 128 of the scalar engine, one a partition."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from trnprof.nki.operations.table import Bound, op_name
from trnprof.nki.values import alu

if TYPE_CHECKING:
    from trnprof.nki.values.machine import Machine

_NAMES = {0: "idle", 1: "reset", 2: "reduce", 3: "reset_reduce", 4: "load_reduce"}


def command(bound: Bound, default: str) -> str:
    """The reduce_cmd of a call by name."""
    given = bound.get("reduce_cmd")
    if given is None:
        return default
    if isinstance(given, Enum):
        return given.name
    return _NAMES.get(given, str(given)) if isinstance(given, int) else str(given)


def accumulate(machine: Machine, engine: str, bound: Bound, values: np.ndarray, *, default: str, op: str) -> None:
    """Reduce `values` [partitions, ...] along the free dimensions into the engine's registers; write them to reduce_res.

    default: the command of a call that names none; op: the operator of one that names none.
    """
    what = command(bound, default)
    target = bound.get("reduce_res")
    name = alu.canonical(op_name(bound["reduce_op"]) if bound.get("reduce_op") is not None else op)
    inside = machine.where(bound.get("mask"), values.shape)
    if inside is not None:
        values = np.where(inside, values, machine.work.type(alu.IDENTITY.get(name, 0.0)))
    flat = values.reshape(values.shape[0], -1)
    registers = machine.registers.get(engine)
    if what in ("reset", "reset_reduce") or registers is None or registers.shape[0] != flat.shape[0]:
        if what == "reduce" and registers is not None and registers.shape[0] > flat.shape[0]:
            registers = registers[: flat.shape[0]]
        else:
            registers = np.full((flat.shape[0], 1), alu.IDENTITY.get(name, 0.0), machine.work)
    if what == "load_reduce":
        start: Any = machine.operand(bound.get("reduce_init") or 0.0, flat)
        registers = np.array(np.broadcast_to(start, (flat.shape[0], 1)), machine.work)
    if what in ("reduce", "reset_reduce", "load_reduce"):
        part = alu.reduce(name, flat, (1,))
        registers = np.asarray(alu.apply(name, registers, part), machine.work)
    machine.registers[engine] = registers
    if target is not None:
        shown = -registers if bound.get("reduce_res_negate") else registers
        machine.write(target, machine.fitted(shown, target.shape))

"""Random numbers of nki.isa and nki.language: seeded NumPy generators, one a program. They are not the device's numbers:
kernels that use them can be compared in distribution only.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trnprof.nki.operations.table import INSTRUCTION, Bound, Operation
from trnprof.nki.tensor import Tensor
from trnprof.nki.values import kinds
from trnprof.nki.values.machine import Machine
from trnprof.nki.values.registry import evaluation, instruction


def _note(machine: Machine) -> None:
    machine.note("random", "random numbers come from NumPy's generator and --seed, not from the device's")


@instruction("isa", "rng")
def rng(machine: Machine, operation: Operation, bound: Bound, dst: Tensor) -> None:
    """Random bits."""
    _note(machine)
    bits = machine.generator.integers(0, 1 << 32, dst.shape, np.uint32)
    if kinds.is_integer(dst.dtype):
        machine.put(dst, bits.astype(kinds.NUMPY[dst.dtype]))
    else:
        machine.write(dst, bits.astype(machine.work))


@instruction("isa", "rand2")
def rand2(machine: Machine, operation: Operation, bound: Bound, dst: Tensor) -> None:
    _note(machine)
    uniform = machine.generator.random(dst.shape, np.float32).astype(machine.work)
    low, high = machine.operand(bound["min"], uniform), machine.operand(bound["max"], uniform)
    machine.write(dst, low + uniform * (high - low))


def drop(machine: Machine, dst: Tensor, data: Tensor, probability: Any, mask: Any) -> None:
    """Elements become 0 with the given probability (a number, or one a partition)."""
    _note(machine)
    values = machine.number(data)
    limit = machine.operand(probability, values)
    keep = machine.generator.random(values.shape, np.float32) >= limit
    machine.write(dst, machine.fitted(np.where(keep, values, machine.work.type(0)), dst.shape), mask)


@instruction("isa", "dropout")
def dropout(machine: Machine, operation: Operation, bound: Bound, dst: Tensor) -> None:
    drop(machine, dst, bound["data"], bound["prob"], bound.get("mask"))


@evaluation("isa", "set_rng_seed", "rand_set_state")
def set_rng_seed(machine: Machine, operation: Operation, bound: Bound) -> Any:
    """The same seeds give the same numbers again."""
    words = machine.bits(bound["src_seeds"]).astype(np.int64).reshape(-1)
    machine.generator = np.random.default_rng([int(word) & 0xFFFFFFFF for word in words[:64]])
    return INSTRUCTION


@instruction("isa", "rand_get_state")
def rand_get_state(machine: Machine, operation: Operation, bound: Bound, dst: Tensor) -> None:
    """Words from which rand_set_state starts over; their layout is not the device's."""
    words = machine.generator.integers(0, 1 << 32, dst.shape, np.uint32)
    machine.put(dst, words.astype(kinds.NUMPY[dst.dtype]))
    machine.generator = np.random.default_rng([int(word) for word in words.reshape(-1)[:64].astype(np.int64)])


def fill_uniform(machine: Machine, dst: Tensor) -> None:
    """nl.rand: uniform in [0, 1)."""
    _note(machine)
    machine.write(dst, machine.generator.random(dst.shape, np.float32).astype(machine.work))


def reseed(machine: Machine, seed: int) -> None:
    """nl.random_seed."""
    machine.generator = np.random.default_rng((seed, *machine.recorder.program_id))

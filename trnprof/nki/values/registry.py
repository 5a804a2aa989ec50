"""Which function computes which operation of the table, and which operations none does, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trnprof.nki.operations.table import INSTRUCTION, Bound, Operation
from trnprof.nki.tensor import Tensor

if TYPE_CHECKING:
    from trnprof.nki.values.machine import Machine

Evaluation = Callable[["Machine", Operation, Bound], Any]

EVALUATIONS: dict[tuple[str, str], Evaluation] = {}
"""(module, name) -> what runs instead of the recording; returns what the language returns."""

NOT_EVALUATED: dict[tuple[str, str], str] = {
    ("isa", "builtin_custom_op"): "it runs a compiled library of the kernel's own, which only the device can",
}
"""Operations without values, and why."""


class NoValuesError(NotImplementedError):
    """The kernel calls an operation that has no values here."""

    reason = "unsupported"


def evaluation(module: str, *names: str) -> Callable[[Evaluation], Evaluation]:
    """Register what computes operations of `module`: function(machine, operation, bound) -> returned value."""

    def register(function: Evaluation) -> Evaluation:
        for name in names:
            EVALUATIONS[module, name] = function
        return function

    return register


def instruction(
    module: str, *names: str
) -> Callable[[Callable[[Machine, Operation, Bound, Tensor], None]], Evaluation]:
    """Register what computes instructions: function(machine, operation, bound, dst) writes to `dst`, which is the
    call's destination or, where it names none (first generation), the tile it returns."""

    def register(function: Callable[[Machine, Operation, Bound, Tensor], None]) -> Evaluation:
        def run(machine: Machine, operation: Operation, bound: Bound) -> Any:
            destination, made = machine.destination(operation, bound)
            machine.limits.check_operands(operation, bound, destination)
            function(machine, operation, bound, destination)
            return INSTRUCTION if made is None else made

        return evaluation(module, *names)(run)

    return register

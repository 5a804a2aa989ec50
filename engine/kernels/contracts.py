"""What a kernel promises, and the table of who implements it.

To replace a kernel: write a function with the CPU kernel's arguments in its order, register it with
`implements(name, backend)`, and compare it by `trnprof.engine.kernels.examples.difference` with `Contract.tolerance`.
The NKI kernels of `trnprof.engine.kernels.nki` are registered so, by its modules named `*_calls`.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from trnprof.errors import InconsistencyError, ToolMissingError

BACKENDS = {
    "cpu": (
        "trnprof.engine.kernels.norms",
        "trnprof.engine.kernels.projection",
        "trnprof.engine.kernels.delta_rule",
        "trnprof.engine.kernels.attention",
        "trnprof.engine.kernels.experts",
        "trnprof.engine.kernels.sampling",
    ),
    "nki": (
        "trnprof.engine.kernels.nki.rms_norm_calls",
        "trnprof.engine.kernels.nki.projection_calls",
        "trnprof.engine.kernels.nki.delta_rule_calls",
        "trnprof.engine.kernels.nki.experts_calls",
        "trnprof.engine.kernels.nki.attention_calls",
        "trnprof.engine.kernels.nki.sampling_calls",
        "trnprof.engine.kernels.nki.routing_calls",
    ),
}
"""Modules that register a backend's kernels when they are imported."""


@dataclass(frozen=True)
class Operand:
    """One tensor of a contract."""

    name: str
    shape: str
    """Axes by letter, as "R W D"; the same letter is the same size in every operand. "..." stands for leading axes."""
    kind: str = "activation"
    """activation (the model's dtype), state (float32), index (int64)."""
    written: bool = False
    """Does the kernel write it in place?"""


@dataclass(frozen=True)
class Contract:
    """What a kernel takes, gives and writes, and how far an implementation may be from the CPU's float32."""

    name: str
    meaning: str
    operands: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    scalars: tuple[str, ...] = ()
    sizes_from: tuple[tuple[str, str], ...] = ()
    """(axis letter, scalar) of output axes that no operand has."""
    tolerance: float = 1e-5
    """Largest absolute difference, relative to the largest magnitude of the output, in float32; 0 is bit for bit."""

    @property
    def written(self) -> tuple[str, ...]:
        """Names of the operands that it writes."""
        return tuple(operand.name for operand in self.operands if operand.written)

    def check(self, arguments: Mapping[str, Any]) -> dict[str, int]:
        """Sizes by axis letter, after comparing every tensor in `arguments` with the contract.

        Raises: InconsistencyError naming the operand that does not fit.
        """
        sizes: dict[str, int] = {}
        for operand in self.operands:
            if operand.name not in arguments:
                raise InconsistencyError(f"{self.name}: {operand.name} was not given")
            tensor = arguments[operand.name]
            axes = operand.shape.split()
            shape = tuple(tensor.shape)
            if axes and axes[0] == "...":
                axes = axes[1:]
                shape = shape[len(shape) - len(axes) :]
            if len(axes) != len(shape):
                raise InconsistencyError(f"{self.name}: {operand.name} is {tuple(tensor.shape)}, not [{operand.shape}]")
            for axis, size in zip(axes, shape, strict=True):
                wanted = int(axis) if axis.isdigit() else sizes.setdefault(axis, size)
                if size != wanted:
                    raise InconsistencyError(f"{self.name}: {operand.name} has {axis} = {size} where {wanted} belongs")
            if operand.kind == "index" and str(tensor.dtype) != "torch.int64":
                raise InconsistencyError(f"{self.name}: {operand.name} is {tensor.dtype}, not int64")
        return sizes


CONTRACTS: dict[str, Contract] = {}
_IMPLEMENTATIONS: dict[tuple[str, str], Callable[..., Any]] = {}


def contract(declared: Contract) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a contract with its CPU implementation."""
    CONTRACTS[declared.name] = declared
    return implements(declared.name, "cpu")


def implements(name: str, backend: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register an implementation of the contract `name` for `backend`; the last one registered wins."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _IMPLEMENTATIONS[name, backend] = function
        return function

    return register


class Kernels(SimpleNamespace):
    """One function a contract, by name: `kernels.rms_norm(x, weight, eps)`."""

    if False:  # every attribute is a kernel; this tells a type checker so

        def __getattr__(self, name: str) -> Callable[..., Any]: ...


def load_kernels(
    backend: str = "cpu", *, fallback: str | None = None, replace: Mapping[str, Callable[..., Any]] | None = None
) -> Kernels:
    """The kernels of a backend, those that it lacks from `fallback`; what `replace` names is a candidate on trial.

    Raises: ToolMissingError if the backend has no kernels here; InconsistencyError for a name without a contract.
    """
    for module in (*BACKENDS["cpu"], *BACKENDS.get(backend, ())):
        if importlib.util.find_spec(module) is None:
            raise ToolMissingError(f"no {backend} kernels are installed (module {module}); use the cpu backend")
        importlib.import_module(module)
    chosen: dict[str, Callable[..., Any]] = {}
    for name in CONTRACTS:
        function = _IMPLEMENTATIONS.get((name, backend)) or _IMPLEMENTATIONS.get((name, fallback or backend))
        if function is None:
            raise ToolMissingError(f"the {backend} backend does not implement {name}; use the cpu backend")
        chosen[name] = function
    for name, function in (replace or {}).items():
        if name not in CONTRACTS:
            raise InconsistencyError(f"there is no kernel {name}; known: {', '.join(sorted(CONTRACTS))}")
        chosen[name] = function
    return Kernels(**chosen)

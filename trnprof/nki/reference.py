"""A reference function beside a kernel: NumPy or torch, in a file of the user's, run in the guarded child.

The kernel's own files get stand-ins for torch and its like (standins.py); a reference computes with the real ones. They are
imported before the child closes its doors, put aside while the kernel runs, and put back for the reference.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from trnprof.errors import InputDataError, UsageError
from trnprof.nki.discovery import parse_source, read_source
from trnprof.nki.standins import STAND_IN_MODULES
from trnprof.nki.values.kinds import PACKED

if TYPE_CHECKING:
    from trnprof.nki.kernel_call import KernelCall
    from trnprof.nki.values.run import OutputValue


@dataclass(frozen=True)
class Frameworks:
    """Modules that the reference needs for real."""

    modules: dict[str, ModuleType]

    @classmethod
    def imported_by(cls, path: Path) -> Frameworks:
        """Import the frameworks that the file names. Raises: UsageError for one that is not installed."""
        roots = set()
        for node in ast.walk(parse_source(read_source(path), path)):
            if isinstance(node, ast.Import):
                roots |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                roots.add(node.module.partition(".")[0])
        before = set(sys.modules)
        for root in sorted(roots & STAND_IN_MODULES):
            if importlib.util.find_spec(root) is None:
                raise UsageError(
                    f"the reference imports {root}, which is not installed here; install it beside trnprof, or write the "
                    "reference in NumPy",
                    path=path.name,
                )
            importlib.import_module(root)
        added = {name: sys.modules[name] for name in set(sys.modules) - before}
        return cls({name: module for name, module in added.items() if _is_framework(name)})

    @contextmanager
    def in_place(self, call: KernelCall) -> Iterator[None]:
        """While open, imports find the real frameworks."""
        for name in [name for name in sys.modules if _is_framework(name)]:
            del sys.modules[name]
        sys.modules.update(self.modules)
        with call.loader.set_aside():
            yield


def _is_framework(name: str) -> bool:
    return name.partition(".")[0] in STAND_IN_MODULES - sys.stdlib_module_names


def call_reference(
    call: KernelCall,
    file: str,
    name: str,
    arguments: Sequence[dict[str, Any]],
    outputs: Sequence[Sequence[OutputValue]],
    *,
    precise: bool,
) -> list[np.ndarray | None]:
    """What the reference gives for each output of each rank, in order; None: nothing.

    arguments, outputs: of each rank. The function gets the kernel's arguments by name, those it has parameters for: tensors as
    float32 (float64 when not precise; integers as they are) arrays, or torch tensors if its module imports torch. It returns
    one tensor, a tuple in the kernel's order, or a dict by output name. Of several ranks it gets each tensor once, with the
    ranks as a first axis, and returns tensors that have that axis too.
    Raises: UsageError for a function that is not there or does not fit; InputDataError for what it returns.
    """
    path = Path(file)
    frameworks = call.frameworks if isinstance(call.frameworks, Frameworks) else Frameworks({})
    with frameworks.in_place(call):
        module = call.loader.load_beside(path)
        function = getattr(module, name, None)
        if not callable(function):
            raise UsageError(f"--reference: the file defines no function {name}", path=path.name)
        uses_torch = isinstance(getattr(module, "torch", None), ModuleType)
        kind = np.dtype(np.float32 if precise else np.float64)
        together = arguments[0] if len(arguments) == 1 else _over_ranks(arguments)
        given = {key: _for_reference(value, uses_torch, kind) for key, value in together.items()}
        returned = function(**_accepted(function, name, given, path))
        return _in_order(returned, outputs, name, path)


def _over_ranks(arguments: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Tensors with the ranks as a first axis; other arguments as rank 0 has them."""
    together = dict(arguments[0])
    for key, first in arguments[0].items():
        arrays = [value for value in (of_rank.get(key) for of_rank in arguments) if isinstance(value, np.ndarray)]
        if isinstance(first, np.ndarray) and len(arrays) == len(arguments) and len({one.shape for one in arrays}) == 1:
            together[key] = np.stack(arrays)
    return together


def _accepted(function: Any, name: str, given: dict[str, Any], path: Path) -> dict[str, Any]:
    """The arguments that the function has parameters for."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return given
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return given
    missing = [
        key
        for key, parameter in parameters.items()
        if key not in given and parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL
    ]
    if missing:
        raise UsageError(
            f"{name}() wants {', '.join(missing)}, and the kernel's arguments are {', '.join(given)}; name its parameters "
            "like the kernel's",
            path=path.name,
        )
    return {key: value for key, value in given.items() if key in parameters}


def _for_reference(value: Any, as_torch: bool, kind: np.dtype[Any]) -> Any:
    """One wide type for every float type, so that the reference rounds nothing before it has to."""
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.names:
        return value
    plain = value if value.dtype.kind in "iub" or value.dtype == np.float64 else value.astype(kind)
    if not as_torch:
        return plain
    import torch

    unsigned = {np.dtype(np.uint16): np.int32, np.dtype(np.uint32): np.int64, np.dtype(np.uint64): np.int64}
    return torch.from_numpy(np.ascontiguousarray(plain.astype(unsigned.get(plain.dtype, plain.dtype))))


def _in_order(
    returned: Any, outputs: Sequence[Sequence[OutputValue]], name: str, path: Path
) -> list[np.ndarray | None]:
    first = outputs[0]
    kernels = [output for output in first if not output.is_argument] or list(first)
    found: dict[str, Any]
    if isinstance(returned, dict):
        found = returned
        unknown = [key for key in returned if key not in [output.name for output in first]]
        if unknown:
            raise InputDataError(
                f"{name}() returns {', '.join(map(str, unknown))}, and the kernel's outputs are "
                f"{', '.join(output.name for output in first)}; use their names, or return a tuple in their order",
                path=path.name,
            )
    else:
        values = list(returned) if isinstance(returned, list | tuple) else [returned]
        if len(values) not in (len(first), len(kernels)):
            raise InputDataError(
                f"{name}() returns {len(values)} values, and the kernel has {len(kernels)} outputs "
                f"({', '.join(output.name for output in kernels)}); return as many, in their order",
                path=path.name,
            )
        places = range(len(values))
        return [
            None if at not in places else _fitted(_of_rank(values[at], rank, outputs, name, path), output, name, path)
            for rank, of_rank in enumerate(outputs)
            for at, output in enumerate(of_rank)
        ]
    return [
        None
        if found.get(output.name) is None
        else _fitted(_of_rank(found[output.name], rank, outputs, name, path), output, name, path)
        for rank, of_rank in enumerate(outputs)
        for output in of_rank
    ]


def _of_rank(value: Any, rank: int, outputs: Sequence[Any], name: str, path: Path) -> np.ndarray:
    array = _as_array(value)
    if len(outputs) == 1:
        return array
    if array.ndim == 0 or array.shape[0] != len(outputs):
        raise InputDataError(
            f"{name}() gives shape {array.shape} for {len(outputs)} ranks; of several ranks the first axis is the rank",
            path=path.name,
        )
    return np.asarray(array[rank])


def _as_array(value: Any) -> np.ndarray:
    if hasattr(value, "detach"):
        value = value.detach()
        value = value.float() if value.dtype.is_floating_point and str(value.dtype) != "torch.float64" else value
        value = value.cpu().numpy()
    return np.asarray(value)


def _fitted(array: np.ndarray, output: OutputValue, name: str, path: Path) -> np.ndarray:
    """In the output's shape."""
    shape = output.array.shape
    if output.dtype in PACKED:
        raise InputDataError(
            f"output {output.name} is {output.dtype}, which has no reference; return it as another type", path=path.name
        )
    if array.shape == shape:
        return array
    if array.size == output.array.size and [size for size in array.shape if size != 1] == [
        size for size in shape if size != 1
    ]:
        return array.reshape(shape)
    raise InputDataError(
        f"{name}() gives shape {array.shape} for output {output.name}, which has {shape}; return it in that shape",
        path=path.name,
    )

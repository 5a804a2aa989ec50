"""Run a kernel of an NKI file on torch tensors: on a Neuron device by the vendor's `nki`, else by our interpreter.

    out, = run_kernel("rms_norm.py", "rms_norm", x=x, weight=weight, eps=1e-6)

Where the tensors are decides. On the CPU trnprof.nki.values computes the kernel with NumPy, rounding where the hardware
rounds; in this process, since the files are our own (the guarded child is for strangers'). On a device the kernel is called
with the tensors as they are. **That second way was never run: no Neuron device was at hand.**
"""

from __future__ import annotations

import importlib.util
import linecache
import sys
import threading
import types
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

from trnprof.errors import InconsistencyError, ToolMissingError

FOLDER = Path(__file__).resolve().parent
"""Where the kernel files lie."""

TARGET = "trn2"
"""The generation whose limits the interpreter holds a kernel to."""

_one_at_a_time = threading.Lock()
"""The interpreter's modules and its open recording belong to the process."""

_EXTRA_NUMPY = {torch.bfloat16: np.dtype(ml_dtypes.bfloat16), torch.float8_e4m3fn: np.dtype(ml_dtypes.float8_e4m3fn)}
"""Types that NumPy has from ml_dtypes and torch does not hand over: they travel as integers of their size."""
_BITS = {1: torch.uint8, 2: torch.int16}


def run_kernel(file: str, kernel: str, *, written: Sequence[str] = (), **arguments: Any) -> tuple[Tensor, ...]:
    """Call `kernel` of `file` (a name in this folder, or a path) with tensors and plain values by parameter.

    written: tensor arguments that the kernel writes; they hold the new contents afterwards.
    Returns the tensors that the kernel returns, in order; integers as torch has them (uint32 as int64).
    Raises: KernelError with the kernel's line; InconsistencyError if a tensor in `written` is not contiguous, or if the
        kernel writes an argument that is not in `written`; ToolMissingError on a device without the vendor's `nki`.
    """
    path = FOLDER / file
    tensors = {name: value for name, value in arguments.items() if isinstance(value, Tensor)}
    for name in written:
        if not tensors[name].is_contiguous():
            raise InconsistencyError(f"{kernel}: {name} is written in place and must be contiguous")
    if any(tensor.device.type != "cpu" for tensor in tensors.values()):
        returned = vendor_kernel(path, kernel)(**arguments)
        return tuple(returned) if isinstance(returned, list | tuple) else (returned,)
    return _interpret(path, kernel, written, arguments)


def _interpret(path: Path, kernel: str, written: Sequence[str], arguments: dict[str, Any]) -> tuple[Tensor, ...]:
    from trnprof.nki.values.run import compute

    given = {name: as_array(value) if isinstance(value, Tensor) else value for name, value in arguments.items()}
    with _one_at_a_time:
        run = compute(interpreted_kernel(path, kernel), (), given, target=TARGET)
    outputs = run.outputs[0]
    stray = [output.name for output in outputs if output.is_argument and output.name not in written]
    if stray:
        raise InconsistencyError(f"{kernel} writes {', '.join(stray)}, which its caller does not expect")
    return tuple(as_tensor(output.array) for output in outputs if not output.is_argument)


@cache
def interpreted_kernel(path: Path, kernel: str) -> Callable[..., Any]:
    """The kernel made by our `nki` modules: what trnprof.nki's compute() and trace() take."""
    function: Callable[..., Any] = getattr(_interpreted_file(path), kernel)
    return function


@cache
def _interpreted_file(path: Path) -> types.ModuleType:
    """The file executed with our `nki` in the vendor's place, under its own name so that messages show the kernel's lines."""
    from trnprof.nki.modules import install_nki_modules

    module = types.ModuleType(f"nki_kernels_{path.stem}")
    module.__file__ = str(path)
    source = path.read_text(encoding="utf-8")
    shown = f"nki/{path.name}"
    linecache.cache[shown] = (len(source), None, source.splitlines(keepends=True), shown)
    with install_nki_modules(TARGET):
        exec(compile(source, shown, "exec", dont_inherit=True), module.__dict__)
    return module


@cache
def vendor_kernel(path: Path, kernel: str) -> Callable[..., Any]:
    """The kernel made by the vendor's `nki`. Raises: ToolMissingError if that is not installed."""
    # The name on the public package index is a placeholder without the compiler in it.
    if importlib.util.find_spec("nki") is None or importlib.util.find_spec("nki.isa") is None:
        raise ToolMissingError("the tensors are on a device and the Neuron SDK's nki is not installed")
    name = f"trnprof_nki_kernels_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # the vendor's compiler reads the source through the module
    spec.loader.exec_module(module)
    function: Callable[..., Any] = getattr(module, kernel)
    return function


def as_array(tensor: Tensor) -> np.ndarray:
    """The tensor's elements as NumPy has them; the same memory where the tensor is contiguous."""
    plain = tensor.detach().contiguous()
    wanted = _EXTRA_NUMPY.get(plain.dtype)
    if wanted is None:
        return plain.numpy()
    return plain.view(_BITS[plain.element_size()]).numpy().view(wanted)


def as_tensor(array: np.ndarray) -> Tensor:
    """The inverse; unsigned integers that torch computes little with become int64."""
    for kind, numpy_kind in _EXTRA_NUMPY.items():
        if array.dtype == numpy_kind:
            bits = array.view(np.int16 if array.dtype.itemsize == 2 else np.uint8)
            return torch.from_numpy(np.ascontiguousarray(bits)).view(kind)
    if array.dtype in (np.uint16, np.uint32):
        array = array.astype(np.int64)
    return torch.from_numpy(np.ascontiguousarray(array))

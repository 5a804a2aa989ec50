"""Where steps run: the CPU, or a Neuron device with one compiled graph a shape.

What a device adds is small: how a step's function becomes something callable for one shape, and how tensors get there.
Nothing here was ever run on a Neuron device; `tests/engine/test_neuron_seam.py` holds the rules that are known of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from time import perf_counter_ns
from types import FunctionType, MethodType
from typing import Any, TypeVar

import torch

from trnprof.engine.kernels.contracts import Kernels
from trnprof.engine.kernels.operators import as_operators
from trnprof.engine.shapes import Shape
from trnprof.errors import ToolMissingError

Inputs = TypeVar("Inputs")


class Device:
    """The CPU: steps run as they are, and every operation has ended when it returns."""

    name = "cpu"

    def prepare_thread(self) -> None:
        """Called once in the thread that runs steps."""
        # Decaying states reach denormal numbers, on which x86 is up to 100x slower.
        torch.set_flush_denormal(True)
        keep_freed_memory()

    def kernels(self, kernels: Kernels) -> Kernels:
        """The kernels as this device's graphs want them."""
        return kernels

    def compiled(self, shape: Shape, step: Callable[..., Any]) -> Callable[..., Any]:
        """The step's function (a bound method) for one shape."""
        return step

    def send(self, inputs: Inputs) -> Inputs:
        """A step's inputs (a dataclass of tensors) on the device."""
        return inputs

    def mark(self) -> int | None:
        """Now, in ns, where the device is known to have done everything before; None inside a compiled graph."""
        return perf_counter_ns()


class CompiledDevice(Device):
    """A device whose steps are whole graphs: one `torch.compile` a shape, no graph breaks, no dynamic sizes."""

    def __init__(self, name: str, backend: Any) -> None:
        self.name, self.backend = name, backend
        self._graphs: dict[Shape, Callable[..., Any]] = {}

    def kernels(self, kernels: Kernels) -> Kernels:
        """See Device."""
        return as_operators(kernels)

    def compiled(self, shape: Shape, step: Callable[..., Any]) -> Callable[..., Any]:
        """See Device."""
        if shape not in self._graphs:
            # Dynamo keeps its graphs by code object and gives up after a few of one: every shape gets a copy of its own.
            assert isinstance(step, MethodType)
            function = step.__func__
            copied = FunctionType(
                function.__code__.replace(co_name=shape.name),
                function.__globals__,
                shape.name,
                function.__defaults__,
                function.__closure__,
            )
            bound = MethodType(copied, step.__self__)
            self._graphs[shape] = torch.compile(bound, backend=self.backend, fullgraph=True, dynamic=False)
        return self._graphs[shape]

    def send(self, inputs: Inputs) -> Inputs:
        """See Device."""
        moved = {field.name: getattr(inputs, field.name).to(self.name) for field in fields(inputs)}  # type: ignore[arg-type]
        return replace(inputs, **moved)  # type: ignore[type-var]

    def mark(self) -> int | None:
        """See Device."""
        return None


def keep_freed_memory() -> None:
    """Have glibc keep what an operation frees for the next one; elsewhere nothing happens.

    Left to itself it returns each large temporary to the system and gets it back page by page, zeroed: 2,000 page faults and
    a tenth of the time of a prefill of 4 x 128 tokens. Process-wide, and up to 256 MB more stay resident.
    """
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):  # another C library
        for option, size in ((_M_MMAP_THRESHOLD, 32 << 20), (_M_TRIM_THRESHOLD, 256 << 20), (_M_TOP_PAD, 64 << 20)):
            ctypes.CDLL(None).mallopt(option, size)


_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
"""glibc's malloc.h."""


def open_device(name: str) -> Device:
    """The device of that name.

    Raises: ToolMissingError for `neuron` where PyTorch has no such device; UsageError is the caller's for other names.
    """
    if name == "cpu":
        return Device()
    # TorchNeuron registers itself as PyTorch's PrivateUse1 device when torch is imported (torch >= 2.9).
    if getattr(torch, name, None) is None:
        raise ToolMissingError(
            f"PyTorch has no {name} device here; install torch-neuronx from the vendor's index, or use --device cpu"
        )
    return CompiledDevice(name, name)

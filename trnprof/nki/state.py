"""The state that a loop body can reach, as a value to compare: has an iteration changed anything but the index?

Reachable are the names of the frame that runs the loop, the closures and defaults of functions among them, the objects
they lead to, and the data of the user's modules. Integers that move with the loop are compared by how they move; tensors
allocated inside it by their place in the iteration. Anything whose state cannot be seen (iterators, generators, foreign
C objects) makes the state unknown, and the loop then runs exactly.
"""

from __future__ import annotations

import enum
import functools
import logging
import re
import sys
from collections import OrderedDict, defaultdict, deque
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from trnprof.nki.dtypes import DType
from trnprof.nki.loops import KernelRange, LoopIndex, LoopIterator, LoopRun

if TYPE_CHECKING:
    from trnprof.nki.recorder import Recorder

_BUDGET = 100_000
"""Objects looked at in one state; more make it unknown (some 50 ms)."""
_ARRAY_BYTES = 1 << 20
_BY_IDENTITY = (ModuleType, BuiltinFunctionType, re.Pattern, logging.Logger, property, classmethod, staticmethod)
_ATOMS = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented), range, slice, DType)


class _UnknownStateError(Exception):
    """Something reachable cannot be compared."""


def state_after_iteration(recorder: Recorder, frame: Any, loop: LoopRun) -> Any:
    """A hashable value, equal for two iterations of `loop` after which the body starts from the same state; None: unknown."""
    walker = _Walker(recorder, loop)
    try:
        parts: list[Any] = []
        for name, value in sorted(frame.f_locals.items()):
            parts.append((name, walker.token(value)))
        for name in recorder.user_modules():
            module = sys.modules.get(name)
            if module is not None:
                parts.append((name, walker.module_token(module.__dict__)))
        if frame.f_globals is not frame.f_locals:
            parts.append(("globals", walker.module_token(frame.f_globals)))
        return tuple(parts)
    except (_UnknownStateError, RecursionError):
        return None


class _Walker:
    """Turns objects into tokens; an object seen before is a reference to its first place."""

    def __init__(self, recorder: Recorder, loop: LoopRun) -> None:
        self.recorder = recorder
        self.loop = loop
        self.seen: dict[int, int] = {}
        self.keep: list[Any] = []  # ids stay valid while their objects live
        self.budget = _BUDGET

    def module_token(self, namespace: dict[str, Any]) -> Any:
        """Data of a user's module: functions, classes and modules in it cannot be changed by running a loop body, or
        are reached from the names that use them."""
        if id(namespace) in self.seen:
            return ("ref", self.seen[id(namespace)])
        self.seen[id(namespace)] = len(self.seen)
        parts = []
        for name, value in namespace.items():
            if name.startswith("__") or isinstance(value, _BY_IDENTITY):
                continue
            if isinstance(value, type):
                if value.__module__ == namespace.get("__name__") and not issubclass(value, enum.Enum):
                    parts.append((name, self.class_token(value)))
            elif isinstance(value, FunctionType):
                if value.__closure__ or value.__dict__ or not _is_constant(value.__defaults__):
                    parts.append((name, self.token(value)))
            else:
                parts.append((name, self.token(value)))
        return tuple(parts)

    def class_token(self, value: type) -> Any:
        """Data attributes of a user's class: a body may count in one."""
        return tuple(
            (name, self.token(item))
            for name, item in value.__dict__.items()
            if not name.startswith("__") and not callable(item) and not hasattr(type(item), "__get__")
        )

    def token(self, value: Any) -> Any:
        """The token of one object."""
        kind = type(value)
        if kind in _ATOMS:
            return (kind.__name__, value if kind is not slice else (value.start, value.stop, value.step))
        if kind is LoopIndex:
            return self.number_token(value)
        self.budget -= 1
        if self.budget < 0:
            raise _UnknownStateError
        identity = id(value)
        if identity in self.seen:
            return ("ref", self.seen[identity])
        self.seen[identity] = len(self.seen)
        self.keep.append(value)
        return self._compound(kind, value)

    def number_token(self, value: Any) -> Any:
        """How an integer moves: its value less what the open loops' iteration numbers contribute."""
        if type(value) is not LoopIndex:
            return value
        base, moves = value.value, []
        for loop, step in value.steps().items():
            base -= step * loop.iteration
            moves.append((loop.id, step))
        return ("index", base, tuple(sorted(moves)))

    def storage_token(self, number: int) -> Any:
        """A storage (or register) by its number; one allocated inside the loop by its place relative to the iteration."""
        first = self.loop.start_storage
        return number if number < self.recorder.loop_first_storage(self.loop) else ("new", number - first)

    def _compound(self, kind: type, value: Any) -> Any:
        if kind in (list, tuple, deque):
            return (kind.__name__, tuple(self.token(item) for item in value))
        if kind in (dict, OrderedDict, defaultdict):
            return (kind.__name__, tuple((self.token(key), self.token(item)) for key, item in value.items()))
        if kind in (set, frozenset):
            return (kind.__name__, frozenset(self.token(item) for item in value))
        if isinstance(value, _BY_IDENTITY) or kind.__module__ in ("typing", "types"):
            return ("object", id(value))
        if kind is functools.partial:
            return ("partial", self.token(value.func), self.token(value.args), self.token(value.keywords))
        if isinstance(value, type):
            return ("class", id(value))
        if isinstance(value, enum.Enum):
            return ("enum", id(value))
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, MethodType):
            return ("method", self.token(value.__func__), self.token(value.__self__))
        if kind is KernelRange or kind is LoopIterator:
            return ("range", repr(value) if kind is KernelRange else id(value))
        own = getattr(kind, "__nki_state__", None)
        if own is not None:
            return own(value, self)
        if kind.__module__.partition(".")[0] in ("numpy", "ml_dtypes"):
            return self._array(value)
        return self._instance(kind, value)

    def _function(self, value: FunctionType) -> Any:
        parts: list[Any] = ["function", id(value.__code__)]
        for cell in value.__closure__ or ():
            try:
                parts.append(self.token(cell.cell_contents))
            except ValueError:  # not filled yet
                parts.append("empty")
        parts.append(self.token(value.__defaults__))
        parts.append(self.token(value.__kwdefaults__))
        if value.__dict__:
            parts.append(self.token(value.__dict__))
        return tuple(parts)

    def _array(self, value: Any) -> Any:
        import numpy as np

        if isinstance(value, np.dtype | np.ufunc):
            return ("object", id(value))
        if not isinstance(value, np.ndarray | np.generic) or value.nbytes > _ARRAY_BYTES or value.dtype.hasobject:
            raise _UnknownStateError
        return ("array", str(value.dtype), getattr(value, "shape", ()), value.tobytes())

    def _instance(self, kind: type, value: Any) -> Any:
        """An object of a Python class: its attributes. A C object has none that can be trusted to be all."""
        if not all(_is_python_class(base) for base in kind.__mro__ if base not in _PLAIN_BASES):
            raise _UnknownStateError
        attributes = getattr(value, "__dict__", None)
        slots = [name for base in kind.__mro__ for name in _slots(base)]
        parts: list[Any] = [kind.__qualname__]
        if isinstance(value, list | tuple | set | frozenset):
            parts.append(tuple(self.token(item) for item in value))
        elif isinstance(value, dict):
            parts.append(tuple((self.token(key), self.token(item)) for key, item in value.items()))
        elif isinstance(value, str | int | float):
            parts.append(value)
        for name, item in (attributes or {}).items():
            parts.append((name, self.token(item)))
        for name in slots:
            if hasattr(value, name):
                parts.append((name, self.token(getattr(value, name))))
        return tuple(parts)


_PLAIN_BASES = (object, list, dict, tuple, set, frozenset, str, int, float)


def _is_python_class(kind: type) -> bool:
    """Was the class written in Python? A C class may keep state that its attributes do not show."""
    module = sys.modules.get(kind.__module__)
    return bool(kind.__flags__ & (1 << 9)) and str(getattr(module, "__file__", "") or "").endswith((".py", ".pyc"))


def _is_constant(defaults: tuple[Any, ...] | None) -> bool:
    """Are a function's defaults values that a call cannot change?"""
    return all(type(value) in _ATOMS or isinstance(value, type | enum.Enum) for value in defaults or ())


def _slots(base: type) -> tuple[str, ...]:
    """Names of a class's own slots."""
    slots = base.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))

"""The state that a loop body can reach, as a value to compare: has an iteration changed anything but the index?

Reachable are the names of the frame that runs the loop, the globals that its code and the code it can call mention,
closures, defaults, attributes, and the objects all these lead to. Integers that move with the loop are compared by how
they move; tensors allocated inside it by their place in the iteration. Anything whose state cannot be seen (iterators,
generators, foreign C objects, code that asks for globals()) makes the state unknown, and the loop then runs exactly.
"""

from __future__ import annotations

import enum
import functools
import logging
import re
import sys
from collections import OrderedDict, defaultdict, deque
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from trnprof.nki.dtypes import DType
from trnprof.nki.loop_index import LoopIndex, LoopRun
from trnprof.nki.loops import KernelRange, LoopIterator
from trnprof.nki.origin import is_user_code, is_user_file

if TYPE_CHECKING:
    from trnprof.nki.recorder import Recorder

_BUDGET = 100_000
"""Objects looked at in one state; more make it unknown (some 50 ms)."""
_ARRAY_BYTES = 1 << 20
_BY_IDENTITY = (BuiltinFunctionType, re.Pattern, logging.Logger)
_ATOMS = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented), range, DType)
_PLAIN_BASES = (object, list, dict, tuple, set, frozenset, str, int, float)
_REFLECTION = frozenset({"globals", "eval", "exec", "vars", "__dict__", "_getframe", "currentframe"})
"""Names by which code reaches what its other names do not show."""


class _UnknownStateError(Exception):
    """Something reachable cannot be compared."""


def state_after_iteration(recorder: Recorder, frame: Any, loop: LoopRun) -> Any:
    """A hashable value, equal for two iterations of `loop` after which the body starts from the same state; None: unknown."""
    walker = _Walker(recorder, loop)
    try:
        parts = [(name, walker.token(value)) for name, value in sorted(frame.f_locals.items())]
        parts.append(("globals", walker.named(frame.f_code, frame.f_globals)))
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

    def named(self, code: CodeType, namespace: dict[str, Any]) -> Any:
        """What code can reach in a namespace: the values of the names that it mentions."""
        names = _names(code)
        if names & _REFLECTION:
            raise _UnknownStateError
        parts = []
        for name in sorted(names & namespace.keys()):
            value = namespace[name]
            if isinstance(value, ModuleType):
                parts.append((name, self.module(value, names)))
            else:
                parts.append((name, self.token(value)))
        return tuple(parts)

    def module(self, module: ModuleType, names: frozenset[str]) -> Any:
        """A module of the user's, as far as the names that go with it reach into it; others do not change."""
        file = getattr(module, "__file__", None)
        if not is_user_file(file):
            return ("module", id(module))
        space = module.__dict__
        parts = []
        for name in sorted(names & space.keys()):
            value = space[name]
            if isinstance(value, ModuleType):
                parts.append((name, ("module", id(value)) if value is module else self.module(value, names)))
            else:
                parts.append((name, self.token(value)))
        return tuple(parts)

    def token(self, value: Any) -> Any:
        """The token of one object."""
        kind = type(value)
        if kind in _ATOMS:
            return (kind.__name__, value)
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
        if number < self.recorder.loop_first_storage(self.loop):
            return number
        return ("new", number - self.loop.start_storage)

    def _compound(self, kind: type, value: Any) -> Any:
        own = getattr(kind, "__nki_state__", None)
        if own is not None:
            return own(value, self)
        if kind in (list, tuple, deque):
            return (kind.__name__, tuple([self.token(item) for item in value]))
        if kind in (dict, OrderedDict, defaultdict):
            return (kind.__name__, tuple([(self.token(key), self.token(item)) for key, item in value.items()]))
        if kind in (set, frozenset):
            return (kind.__name__, frozenset(self.token(item) for item in value))
        if kind is slice:
            return ("slice", self.token(value.start), self.token(value.stop), self.token(value.step))
        if isinstance(value, _BY_IDENTITY) or kind.__module__ in ("typing", "types") or isinstance(value, ModuleType):
            return ("object", id(value))
        if isinstance(value, enum.Enum):
            return ("enum", id(value))
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, MethodType):
            return ("method", self.token(value.__func__), self.token(value.__self__))
        if isinstance(value, staticmethod | classmethod):
            return (kind.__name__, self.token(value.__func__))
        if isinstance(value, property):
            return ("property", self.token(value.fget), self.token(value.fset))
        if kind is functools.partial:
            return ("partial", self.token(value.func), self.token(value.args), self.token(value.keywords))
        if kind is KernelRange or kind is LoopIterator:
            return ("range", repr(value) if kind is KernelRange else id(value))
        if kind.__module__.partition(".")[0] in ("numpy", "ml_dtypes"):
            return _array(value)
        return self._instance(kind, value)

    def _function(self, value: FunctionType) -> Any:
        """Its code's identity, what it closes over, its defaults and attributes, and the globals that it mentions."""
        parts: list[Any] = ["function", id(value.__code__)]
        for cell in value.__closure__ or ():
            try:
                parts.append(self.token(cell.cell_contents))
            except ValueError:  # not filled yet
                parts.append("empty")
        for part in (value.__defaults__, value.__kwdefaults__, value.__dict__):
            if part:
                parts.append(self.token(part))
        if is_user_code(value.__code__):
            parts.append(self.named(value.__code__, value.__globals__))
        return tuple(parts)

    def _class(self, value: type) -> Any:
        """A user's class: its data (a body may count in it) and its methods."""
        if not _is_users(value):
            return ("class", id(value))
        parts: list[Any] = ["class", id(value), tuple([self.token(base) for base in value.__bases__])]
        for name, item in value.__dict__.items():
            if isinstance(item, FunctionType | staticmethod | classmethod | property) or (
                not name.startswith("__") and not hasattr(type(item), "__get__")
            ):
                parts.append((name, self.token(item)))
        return tuple(parts)

    def _instance(self, kind: type, value: Any) -> Any:
        """An object of a Python class: its attributes. A C object has none that can be trusted to be all."""
        if not all(_is_python_class(base) for base in kind.__mro__ if base not in _PLAIN_BASES):
            raise _UnknownStateError
        attributes = getattr(value, "__dict__", None)
        slots = [name for base in kind.__mro__ for name in _slots(base)]
        parts: list[Any] = [self.token(kind)]
        if isinstance(value, list | tuple | set | frozenset):
            parts.append(tuple([self.token(item) for item in value]))
        elif isinstance(value, dict):
            parts.append(tuple([(self.token(key), self.token(item)) for key, item in value.items()]))
        elif isinstance(value, str | int | float):
            parts.append(value)
        for name, item in (attributes or {}).items():
            parts.append((name, self.token(item)))
        for name in slots:
            if hasattr(value, name):
                parts.append((name, self.token(getattr(value, name))))
        return tuple(parts)


def _array(value: Any) -> Any:
    """A numpy value by its bytes."""
    import numpy as np

    if isinstance(value, np.dtype | np.ufunc):
        return ("object", id(value))
    if not isinstance(value, np.ndarray | np.generic) or value.nbytes > _ARRAY_BYTES or value.dtype.hasobject:
        raise _UnknownStateError
    return ("array", str(value.dtype), getattr(value, "shape", ()), value.tobytes())


@functools.lru_cache(maxsize=4096)
def _names(code: CodeType) -> frozenset[str]:
    """Names that code mentions, the functions defined inside it too."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
    return frozenset(names)


def _is_users(kind: type) -> bool:
    """Is the class the user's own?"""
    module = sys.modules.get(kind.__module__)
    return module is None or is_user_file(getattr(module, "__file__", None))


def _is_python_class(kind: type) -> bool:
    """Was the class written in Python? A C class may keep state that its attributes do not show."""
    if not kind.__flags__ & (1 << 9):  # not a heap type
        return False
    module = sys.modules.get(kind.__module__)
    return module is None or str(getattr(module, "__file__", "") or "").endswith((".py", ".pyc"))


def _slots(base: type) -> tuple[str, ...]:
    """Names of a class's own slots."""
    slots = base.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))

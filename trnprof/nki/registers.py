"""Device registers: integers that only the device knows, in arithmetic, addresses and loop bounds."""

from __future__ import annotations

import ast
import linecache
import operator
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from trnprof.nki.objects import NKIObject
from trnprof.nki.origin import is_user_code
from trnprof.nki.recorder import Recorder, current_recorder
from trnprof.nki.tensor import DeviceValueError

if TYPE_CHECKING:
    from types import FrameType

    from trnprof.nki.state import _Walker


class VirtualRegister(NKIObject):
    """start + sum(factor * register): affine where the kernel's arithmetic is, so that equal parts cancel in a slice."""

    def __init__(self, value: int | None = None, terms: dict[int, int] | None = None, *, serial: int = -1) -> None:
        """`value`: what it is known to hold, from register_alloc(5); None: known on the device only."""
        recorder = current_recorder()
        self.serial = serial if serial >= 0 or recorder is None else recorder.serial()
        self.value = value
        self.terms = {self.serial: 1} if terms is None else terms
        self.start = 0

    def _combined(self, other: Any, sign: int, own: int = 1) -> Any:
        result = VirtualRegister(serial=self.serial)
        result.terms = {key: own * factor for key, factor in self.terms.items()}
        result.start = own * self.start
        known = self.value
        if isinstance(other, VirtualRegister):
            for key, factor in other.terms.items():
                result.terms[key] = result.terms.get(key, 0) + sign * factor
            result.start += sign * other.start
            result.value = own * known + sign * other.value if known is not None and other.value is not None else None
        elif isinstance(other, int):
            result.start += sign * int(other)
            result.value = own * known + sign * int(other) if known is not None else None
        else:
            return NotImplemented
        result.terms = {key: factor for key, factor in result.terms.items() if factor}
        return result if result.terms else result.start

    def __add__(self, other: Any) -> Any:
        return self._combined(other, 1)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._combined(other, -1)

    def __rsub__(self, other: Any) -> Any:
        return self._combined(other, 1, -1)

    def __mul__(self, other: Any) -> Any:
        if not isinstance(other, int):
            return _computed(operator.mul, self, other)
        factor = int(other)
        if factor == 0:
            return 0
        result = VirtualRegister(serial=self.serial)
        result.terms = {key: own * factor for key, own in self.terms.items()}
        result.start = self.start * factor
        result.value = None if self.value is None else self.value * factor
        return result

    __rmul__ = __mul__

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> Any:
        return self is other if not isinstance(other, int) else _computed(operator.eq, self, other)

    def __bool__(self) -> bool:
        frame = _user_frame()
        if frame is not None:
            condition = while_condition(frame.f_code.co_filename, frame.f_lineno)
            recorder = current_recorder()
            if condition and recorder is not None:
                if recorder.machine is not None:
                    return recorder.machine.integer(self) != 0
                return _while_turn(recorder, frame, condition)
        raise DeviceValueError("a Python condition needs the value of a register")

    def _no_value(self, *_: Any) -> Any:
        raise DeviceValueError("the kernel's Python needs the value of a register")

    __int__ = __index__ = __float__ = _no_value

    def __repr__(self) -> str:
        return f"register{self.serial}"

    def __nki_state__(self, walker: _Walker) -> Any:
        terms = tuple(sorted((str(walker.storage_token(key)), factor) for key, factor in self.terms.items()))
        return ("register", terms, self.value, self.start)


def _computed(function: Callable[[Any, Any], Any], left: Any, right: Any) -> VirtualRegister:
    """A register for arithmetic that leaves the affine: known where both sides are."""
    one, other = known_value(left), known_value(right)
    if one is None or other is None:
        return VirtualRegister()
    try:
        return VirtualRegister(int(function(one, other)))
    except (ZeroDivisionError, ValueError, OverflowError):
        return VirtualRegister()


def _install_operators() -> None:
    """The operators that leave the affine."""
    names = ("floordiv", "mod", "and_", "or_", "xor", "lshift", "rshift", "lt", "le", "gt", "ge")
    table = {name.rstrip("_"): getattr(operator, name) for name in names}
    table["truediv"] = operator.floordiv  # registers hold integers
    for name, function in table.items():

        def forward(self: Any, other: Any, function: Any = function) -> Any:
            return _computed(function, self, other)

        def backward(self: Any, other: Any, function: Any = function) -> Any:
            return _computed(function, other, self)

        setattr(VirtualRegister, f"__{name}__", forward)
        if name not in ("lt", "le", "gt", "ge"):
            setattr(VirtualRegister, f"__r{name}__", backward)


def _user_frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user_code(frame.f_code):
        frame = frame.f_back
    return frame


def _while_turn(recorder: Recorder, frame: FrameType, condition: str) -> bool:
    """`while register:` runs its body once: the first test opens a loop of unknown length, the second ends it."""
    for loop in reversed(recorder.loops):
        if loop.kind == "while" and loop.bound == condition and loop.state is frame:
            recorder.close_loop(loop)
            return False
    loop = recorder.open_loop("while", None, condition)
    loop.state = frame
    once(recorder, loop, trip_count(recorder, (condition,), loop.bound))
    return True


def once(recorder: Recorder, loop: Any, count: int | None) -> None:
    """The loop's body runs once and stands for `count` iterations; None: as many as the device says."""
    loop.count = count
    loop.repeats[0] = count
    loop.iteration = 0
    recorder.start_iteration(loop)
    if count is None:
        recorder.note(
            "trip-count-unknown",
            f"the length of this loop is known on the device only: totals count one iteration; "
            f"give it with --trip {loop.bound}=N",
        )


def trip_count(recorder: Recorder, names: tuple[str, ...], bound: str) -> int | None:
    """The trip count the user gave under one of `names`."""
    for name in names:
        if name in recorder.trips:
            recorder.used_trips.add(name)
            return int(recorder.trips[name])
    return None


class DynamicRange:
    """nl.dynamic_range: the body runs once, with a register as its index."""

    def __init__(self, recorder: Recorder, bounds: tuple[Any, ...]) -> None:
        start, stop, step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]
        self.recorder = recorder
        self.start, self.stop, self.step = start, stop, int(step)
        if self.step <= 0:
            raise ValueError(f"dynamic_range needs a positive step, got {self.step}")

    def __iter__(self) -> Iterator[VirtualRegister]:
        machine = self.recorder.machine
        if machine is not None:
            for value in range(machine.integer(self.start), machine.integer(self.stop), self.step):
                yield VirtualRegister(value)
            return
        frame = _user_frame()
        text, variable = "", ""
        if frame is not None:
            text, variable = for_bound(frame.f_code.co_filename, frame.f_lineno)
        first, last = known_value(self.start), known_value(self.stop)
        count = None
        if first is not None and last is not None:
            count = max(0, -(-(last - first) // self.step))
        given = trip_count(self.recorder, tuple(name for name in (text, variable) if name), text)
        count = given if given is not None else count
        if count == 0:
            return
        loop = self.recorder.open_loop("dynamic_range", count, text or variable or "dynamic_range")
        try:
            once(self.recorder, loop, count)
            yield VirtualRegister()
        finally:
            if not loop.closed:
                self.recorder.close_loop(loop)


def known_value(value: Any) -> int | None:
    """The integer of an int, or of a register that is known to hold one."""
    if isinstance(value, VirtualRegister):
        return value.value
    return int(value) if isinstance(value, int) else None


_install_operators()


def _tree(file: str) -> ast.Module | None:
    return _parsed("".join(linecache.getlines(file)))


@lru_cache(maxsize=64)
def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text) if text else None
    except SyntaxError:
        return None


def while_condition(file: str, line: int) -> str:
    """Source text of the condition of the `while` whose test stands on this line; '' where there is none."""
    tree = _tree(file)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.While) and node.lineno <= line <= (node.test.end_lineno or node.lineno):
            return ast.unparse(node.test)
    return ""


def for_bound(file: str, line: int) -> tuple[str, str]:
    """(source text of the bound, loop variable) of the `for` over dynamic_range on this line."""
    tree = _tree(file)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.For) and node.lineno <= line <= (node.iter.end_lineno or node.lineno):
            arguments = node.iter.args if isinstance(node.iter, ast.Call) else []
            bound = arguments[1 if len(arguments) > 1 else 0] if arguments else None
            return ast.unparse(bound) if bound is not None else "", ast.unparse(node.target)
    return "", ""

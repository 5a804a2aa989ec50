"""Loops: a body that repeats is run a few times and multiplied.

A watched loop yields indices that know how they move per iteration (loop_index.py). Everything that an iteration decides by its index shrinks the range of iterations for which it decides the same (`LoopRun.reach`). When the
state that the body can reach is the same after two consecutive iterations (state.py), every further iteration within
reach does what this one did, at addresses that the indices give: it is skipped and the records stand for it. That is
induction, not sampling: counts equal those of running every iteration (trace(exact=True)).

Only a `for` statement in a plain function qualifies. Comprehensions, generators, zip() and the like keep state where
nothing can see it, so they run exactly.
"""

from __future__ import annotations

import builtins
import dis
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from trnprof.nki.loop_index import LoopIndex, plain_int

if TYPE_CHECKING:
    from types import CodeType

    from trnprof.nki.recorder import Recorder
WORTHWHILE_OPERATIONS = 4096
"""A loop is watched once the rest of it would record more operations than this; below, running it is cheaper."""
least_iterations: ContextVar[int] = ContextVar("least_iterations", default=1)
"""Iterations that every loop runs before it may be watched: a timeline needs several to see its steady state."""
_MAX_ATTEMPTS = 6
"""Iterations whose state is compared before a loop is run to its end: state that settles does so within a few."""

_GET_ITER = dis.opmap["GET_ITER"]
_FOR_ITER = dis.opmap["FOR_ITER"]
_EXTENDED_ARG = dis.opmap["EXTENDED_ARG"]
_CO_GENERATOR = 0x20 | 0x80 | 0x200  # generator, coroutine, asynchronous generator


class _RangeType(type):
    """isinstance(x, range) in user code, where our range shadows the builtin one, means either."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, builtins.range) or type.__instancecheck__(cls, instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return subclass is builtins.range or type.__subclasscheck__(cls, subclass)


class KernelRange(metaclass=_RangeType):
    """range, and nl.affine_range and its like: a sequence of integers; a `for` over it is a loop of the recording."""

    __slots__ = ("_range", "_recorder", "kind")

    def __init__(self, *bounds: Any, kind: str = "range", recorder: Recorder | None = None) -> None:
        plain = [plain_int(bound) for bound in bounds]
        self._range = builtins.range(*plain)
        self._recorder = recorder
        self.kind = kind

    start = property(lambda self: self._range.start)
    stop = property(lambda self: self._range.stop)
    step = property(lambda self: self._range.step)

    def __len__(self) -> int:
        return len(self._range)

    def __getitem__(self, key: Any) -> Any:
        return self._range[plain_int(key)]

    def __contains__(self, value: object) -> bool:
        return plain_int(value) in self._range

    def __reversed__(self) -> Iterator[int]:
        return reversed(self._range)

    def __eq__(self, other: object) -> bool:
        return self._range == (other._range if type(other) is KernelRange else other)

    def __hash__(self) -> int:
        return hash(self._range)

    def __repr__(self) -> str:
        return repr(self._range)

    def __bool__(self) -> bool:
        return bool(self._range)

    def index(self, value: Any) -> int:
        """As range.index."""
        return self._range.index(plain_int(value))

    def count(self, value: Any) -> int:
        """As range.count."""
        return self._range.count(plain_int(value))

    def __iter__(self) -> Iterator[Any]:
        from trnprof.nki.recorder import current_recorder

        recorder = self._recorder or current_recorder()
        if recorder is None or recorder.machine is not None or not self._range:
            return iter(self._range)
        frame = sys._getframe(1)
        if not is_for_statement(frame.f_code, frame.f_lasti):
            return iter(self._range)
        return LoopIterator(recorder, self._range, self.kind, (frame.f_code, frame.f_lasti))


_for_statements: dict[tuple[int, int], tuple[bool, CodeType]] = {}
"""By (id(code), position); the code is kept so that its id stays its own."""


def is_for_statement(code: CodeType, position: int) -> bool:
    """Is the bytecode at `position` the head of a `for` statement of a plain function (or a module)?"""
    key = (id(code), position)
    cached = _for_statements.get(key)
    if cached is None:
        raw = code.co_code
        following = position + 2
        while following < len(raw) and raw[following] == _EXTENDED_ARG:  # a long body's jump
            following += 2
        known = (
            not code.co_flags & _CO_GENERATOR
            and code.co_name not in ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<lambda>")
            and following < len(raw)
            and raw[position] == _GET_ITER
            and raw[following] == _FOR_ITER
        )
        cached = _for_statements[key] = (known, code)
    return cached[0]


class LoopIterator:
    """Drives one `for` statement: yields indices, decides after each iteration how many it stands for."""

    __slots__ = ("count", "loop", "numbers", "recorder")

    def __init__(self, recorder: Recorder, numbers: range, kind: str, place: tuple[CodeType, int]) -> None:
        self.recorder = recorder
        self.numbers = numbers
        self.count = len(numbers)
        self.loop = recorder.open_loop(kind, self.count, place=place)
        self.loop.iteration = -1

    def __iter__(self) -> LoopIterator:
        return self

    def __next__(self) -> Any:
        loop = self.loop
        count = self.count
        if loop.closed:
            raise StopIteration
        if loop.iteration >= 0:
            if loop.watched:
                self._finish_iteration(sys._getframe(1), count)
            else:
                self._consider_watching(count)
        loop.iteration += 1
        if loop.iteration >= count:
            self.recorder.close_loop(loop)
            raise StopIteration
        self.recorder.start_iteration(loop)
        number = self.numbers[loop.iteration]
        if loop.watched:
            loop.reach = count - 1
            return LoopIndex(number, ((loop, self.numbers.step, loop.jumped),))
        return number

    def __del__(self) -> None:
        # A `break` (or an exception) leaves the loop: the statement drops its iterator.
        if not self.loop.closed:
            self.recorder.close_loop(self.loop)

    def _consider_watching(self, count: int) -> None:
        """Watch the loop from the next iteration on if what is left of it is worth more than looking at its state."""
        recorder, loop = self.recorder, self.loop
        recorder.weight += 1
        if loop.attempts == 0 and recorder.multiplies and loop.iteration + 1 >= least_iterations.get():
            weight = recorder.weight - loop.start_weight
            loop.watched = (count - 1 - loop.iteration) * weight > recorder.worthwhile_operations

    def _finish_iteration(self, frame: Any, count: int) -> None:
        """Skip what the iteration that just ended stands for. The last iteration always runs, so that the names it
        leaves behind are right."""
        recorder, loop = self.recorder, self.loop
        recorder.weight += 1
        weight = recorder.weight - loop.start_weight
        last = min(loop.reach, count - 2)
        if last <= loop.iteration:
            loop.state = None
            self._give_up_after_attempts(loop.reach < count - 1)
            return
        state = recorder.state_after_iteration(frame, loop)
        if state is None:
            loop.watched, loop.attempts = False, _MAX_ATTEMPTS
            return
        if state == loop.state:
            skipped = last - loop.iteration
            loop.repeats[loop.iteration] = skipped + 1
            recorder.skip_iterations(loop, skipped)
            loop.iteration = last
            loop.jumped += skipped
            recorder.weight += skipped * weight
            loop.attempts = 0
            return
        loop.state = state
        self._give_up_after_attempts(True)

    def _give_up_after_attempts(self, failed: bool) -> None:
        """Run the rest as it is once an attempt too many failed."""
        loop = self.loop
        loop.attempts += failed
        if loop.attempts > _MAX_ATTEMPTS:
            loop.watched = False

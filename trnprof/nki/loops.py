"""Loop indices that know what they are, so that a loop body that repeats is run a few times and multiplied.

A loop of a kernel yields LoopIndex values: integers that remember how they move per iteration. Everything that an
iteration decides by its index shrinks the range of iterations for which it decides the same (`LoopRun.reach`). When the
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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import CodeType

    from trnprof.nki.recorder import Recorder
WORTHWHILE_OPERATIONS = 4096
"""A loop is watched once the rest of it would record more operations than this; below, running it is cheaper."""
_MAX_ATTEMPTS = 6
"""Iterations whose state is compared before a loop is run to its end: state that settles does so within a few."""

_GET_ITER = dis.opmap["GET_ITER"]
_FOR_ITER = dis.opmap["FOR_ITER"]
_EXTENDED_ARG = dis.opmap["EXTENDED_ARG"]
_CO_GENERATOR = 0x20 | 0x80 | 0x200  # generator, coroutine, asynchronous generator


class LoopRun:
    """One run of one loop statement."""

    __slots__ = (
        "attempts",
        "bound",
        "closed",
        "count",
        "id",
        "iteration",
        "jumped",
        "kind",
        "place",
        "reach",
        "repeats",
        "start_moving",
        "start_storage",
        "start_weight",
        "state",
        "watched",
    )

    def __init__(
        self, number: int, kind: str, place: tuple[CodeType, int] | None, count: int | None, bound: str
    ) -> None:
        self.id = number
        self.kind = kind
        self.place = place
        """(code, bytecode position) of the statement."""
        self.count = count
        self.bound = bound
        self.iteration = 0
        self.reach = 0
        """The last iteration that would decide as the current one does."""
        self.jumped = 0
        """Iterations skipped so far: what a LoopIndex made before a jump has moved by."""
        self.repeats: dict[int, int | None] = {}
        """Iteration -> how many iterations it stands for, where not 1; None: unknown."""
        self.closed = False
        self.watched = False
        self.attempts = 0
        self.state: Any = None
        self.start_weight = 0
        self.start_storage = 0
        self.start_moving = 0


class LoopIndex:
    """An integer affine in the iteration numbers of open loops. Behaves as the int it is in the current iteration."""

    __slots__ = ("base", "terms")

    def __init__(self, base: int, terms: tuple[tuple[LoopRun, int, int], ...]) -> None:
        """terms: (loop, value per iteration, loop.jumped at creation)."""
        self.base = base
        self.terms = terms

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """isinstance(index, int) must hold: kernels check their arguments."""
        return int

    @property
    def value(self) -> int:
        """The integer in the current iteration."""
        value = self.base
        for loop, step, stamp in self.terms:
            if loop.jumped != stamp:
                value += step * (loop.jumped - stamp)
        return value

    def steps(self) -> dict[LoopRun, int]:
        """Open loops that move it, with the value per iteration."""
        return {loop: step for loop, step, _ in self.terms if not loop.closed}

    def pin(self) -> int:
        """The value, used in a way that nothing is known about: the iteration stands for itself only."""
        for loop, _, _ in self.terms:
            if not loop.closed:
                loop.reach = loop.iteration
        return self.value

    def holds(self, outcome: bool, limit: int) -> None:
        """Note that `self < limit` was `outcome` and that the kernel may depend on it: shrink the loops' reach."""
        open_terms = [(loop, step) for loop, step, _ in self.terms if not loop.closed and step]
        if not open_terms:
            return
        value = self.value
        # The worst corner of the box of all iterations that the current ones may come to stand for.
        worst = value
        for loop, step in open_terms:
            if loop.reach > loop.iteration and (step > 0) == outcome:
                worst += step * (loop.reach - loop.iteration)
        if (worst < limit) == outcome:
            return
        # Shrink one loop, the outermost that suffices: the others' worst corner plus step * n stays on its side of limit.
        for loop, step in open_terms:
            if loop.reach <= loop.iteration or (step > 0) != outcome:
                continue
            others = worst - step * (loop.reach - loop.iteration)
            still = (limit - 1 - others) // step if outcome else (others - limit) // -step
            if still >= 0:
                loop.reach = loop.iteration + still
                return
        for loop, _ in open_terms:
            loop.reach = loop.iteration

    # Arithmetic that stays affine.

    def __add__(self, other: Any) -> Any:
        kind = type(other)
        if kind is int or kind is bool:
            return LoopIndex(self.base + other, self.terms)
        if kind is LoopIndex:
            return _combine(self, other, 1)
        if _is_integer(other):
            return LoopIndex(self.base + int(other), self.terms)
        return NotImplemented if _is_foreign(other) else self.pin() + other

    __radd__ = __add__

    def __neg__(self) -> Any:
        return LoopIndex(-self.base, tuple((loop, -step, stamp) for loop, step, stamp in self.terms))

    def __pos__(self) -> Any:
        return self

    def __sub__(self, other: Any) -> Any:
        kind = type(other)
        if kind is LoopIndex:
            return _combine(self, other, -1)
        if _is_integer(other):
            return LoopIndex(self.base - int(other), self.terms)
        return NotImplemented if _is_foreign(other) else self.pin() - other

    def __rsub__(self, other: Any) -> Any:
        if _is_integer(other):
            return -self + int(other)
        return NotImplemented if _is_foreign(other) else other - self.pin()

    def __mul__(self, other: Any) -> Any:
        if type(other) is LoopIndex:
            return self.pin() * other.pin()
        if _is_integer(other):
            factor = int(other)
            if factor == 0:
                return 0
            return LoopIndex(
                self.base * factor, tuple((loop, step * factor, stamp) for loop, step, stamp in self.terms)
            )
        return NotImplemented if _is_foreign(other) else self.pin() * other

    __rmul__ = __mul__

    # Comparisons: each says until when it stays so.

    def __lt__(self, other: Any) -> bool:
        return _less(self, other, 0)

    def __le__(self, other: Any) -> bool:
        return _less(self, other, 1)

    def __gt__(self, other: Any) -> bool:
        return not _less(self, other, 1)

    def __ge__(self, other: Any) -> bool:
        return not _less(self, other, 0)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, builtins.int):  # a LoopIndex says that it is one
            below = _less(self, other, 0)
            return not below and _less(self, other, 1)
        return NotImplemented if _is_foreign(other) else self.pin() == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __bool__(self) -> bool:
        return self != 0

    # Everything else pins the iteration.

    def __index__(self) -> int:
        return self.pin()

    __int__ = __index__
    __trunc__ = __index__
    __floor__ = __index__
    __ceil__ = __index__

    def __round__(self, digits: int | None = None) -> int:
        return self.pin()

    def __float__(self) -> float:
        return float(self.pin())

    def __complex__(self) -> complex:
        return complex(self.pin())

    def __hash__(self) -> int:
        return hash(self.pin())

    def __abs__(self) -> int:
        return abs(self.pin())

    def __invert__(self) -> int:
        return ~self.pin()

    def __str__(self) -> str:
        return str(self.pin())

    def __repr__(self) -> str:
        return repr(self.pin())

    def __format__(self, spec: str) -> str:
        return format(self.pin(), spec)

    def __reduce__(self) -> tuple[Any, ...]:
        return (int, (self.pin(),))

    def __floordiv__(self, other: Any) -> Any:
        if type(other) is int and other:
            divided = self._divided(other)
            if divided is not None:
                return divided
        return NotImplemented if _is_foreign(other) else self.pin() // _plain(other)

    def __mod__(self, other: Any) -> Any:
        if type(other) is int and other and all(step % other == 0 for _, step, _ in self.terms):
            return self.value % other
        return NotImplemented if _is_foreign(other) else self.pin() % _plain(other)

    def _divided(self, other: int) -> LoopIndex | None:
        """self // other where it is exact per iteration: every step is a multiple of the divisor."""
        if all(step % other == 0 for _, step, _ in self.terms):
            terms = tuple((loop, step // other, loop.jumped) for loop, step, _ in self.terms)
            return LoopIndex(self.value // other, terms)
        return None

    @property
    def real(self) -> int:
        """As int."""
        return self.pin()

    numerator = real

    @property
    def imag(self) -> int:
        """As int."""
        return 0

    @property
    def denominator(self) -> int:
        """As int."""
        return 1

    def bit_length(self) -> int:
        """As int."""
        return self.pin().bit_length()

    def is_integer(self) -> bool:
        """As int."""
        return True


def _install_pinned_operators() -> None:
    """Operators that are not affine: computed on plain integers."""
    import operator

    table = {
        "truediv": operator.truediv,
        "pow": operator.pow,
        "and": operator.and_,
        "or": operator.or_,
        "xor": operator.xor,
        "lshift": operator.lshift,
        "rshift": operator.rshift,
        "divmod": divmod,
    }
    for name, function in table.items():

        def forward(self: LoopIndex, other: Any, function: Any = function) -> Any:
            return NotImplemented if _is_foreign(other) else function(self.pin(), _plain(other))

        def backward(self: LoopIndex, other: Any, function: Any = function) -> Any:
            return NotImplemented if _is_foreign(other) else function(_plain(other), self.pin())

        setattr(LoopIndex, f"__{name}__", forward)
        setattr(LoopIndex, f"__r{name}__", backward)
    for name, function in {"floordiv": operator.floordiv, "mod": operator.mod}.items():

        def backward_only(self: LoopIndex, other: Any, function: Any = function) -> Any:
            return NotImplemented if _is_foreign(other) else function(_plain(other), self.pin())

        setattr(LoopIndex, f"__r{name}__", backward_only)


def _plain(value: Any) -> Any:
    """The int of a LoopIndex, pinned; anything else as it is."""
    return value.pin() if type(value) is LoopIndex else value


def _is_integer(value: Any) -> bool:
    """A plain int, bool or numpy integer."""
    kind = type(value)
    return kind is int or kind is bool or (hasattr(value, "__index__") and getattr(value, "ndim", None) == 0)


def _is_foreign(value: Any) -> bool:
    """Does `value` know itself how to combine with an index (index tensors, registers, arrays)?"""
    return not isinstance(value, builtins.int | float | complex | str | list | tuple)


def _combine(left: LoopIndex, right: LoopIndex, sign: int) -> Any:
    """left + sign * right."""
    steps = left.steps()
    for loop, step, _ in right.terms:
        if not loop.closed:
            steps[loop] = steps.get(loop, 0) + sign * step
    value = left.value + sign * right.value
    terms = tuple((loop, step, loop.jumped) for loop, step in steps.items() if step)
    return LoopIndex(value, terms) if terms else value


def _less(index: LoopIndex, other: Any, slack: int) -> bool:
    """index < other + slack, noting until when."""
    if type(other) is LoopIndex:
        difference = _combine(index, other, -1)
        if type(difference) is not LoopIndex:
            return bool(difference < slack)
        index, limit = difference, slack
    elif isinstance(other, builtins.int):
        limit = other + slack
    else:
        plain = index.pin()
        return bool(plain <= other) if slack else bool(plain < other)
    outcome = index.value < limit
    index.holds(outcome, limit)
    return outcome


def value_of(number: Any) -> int:
    """The integer of an int or LoopIndex in the current iteration, without pinning anything."""
    return number.value if type(number) is LoopIndex else int(number)


_install_pinned_operators()


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
        plain = [_plain(bound) for bound in bounds]
        self._range = builtins.range(*plain)
        self._recorder = recorder
        self.kind = kind

    start = property(lambda self: self._range.start)
    stop = property(lambda self: self._range.stop)
    step = property(lambda self: self._range.step)

    def __len__(self) -> int:
        return len(self._range)

    def __getitem__(self, key: Any) -> Any:
        return self._range[_plain(key)]

    def __contains__(self, value: object) -> bool:
        return _plain(value) in self._range

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
        return self._range.index(_plain(value))

    def count(self, value: Any) -> int:
        """As range.count."""
        return self._range.count(_plain(value))

    def __iter__(self) -> Iterator[Any]:
        from trnprof.nki.recorder import current_recorder

        recorder = self._recorder or current_recorder()
        if recorder is None or not self._range:
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
        if loop.attempts == 0 and recorder.multiplies:
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

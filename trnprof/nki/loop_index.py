"""Loop indices that know what they are: integers affine in the iteration numbers of the open loops.

Arithmetic that stays affine stays known. A comparison notes until which iteration it comes out the same (LoopRun.reach);
every other use pins the iteration: it stands for itself only.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import CodeType


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
        return NotImplemented if _is_foreign(other) else self.pin() // plain_int(other)

    def __mod__(self, other: Any) -> Any:
        if type(other) is int and other and all(step % other == 0 for _, step, _ in self.terms):
            return self.value % other
        return NotImplemented if _is_foreign(other) else self.pin() % plain_int(other)

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
            return NotImplemented if _is_foreign(other) else function(self.pin(), plain_int(other))

        def backward(self: LoopIndex, other: Any, function: Any = function) -> Any:
            return NotImplemented if _is_foreign(other) else function(plain_int(other), self.pin())

        setattr(LoopIndex, f"__{name}__", forward)
        setattr(LoopIndex, f"__r{name}__", backward)
    for name, function in {"floordiv": operator.floordiv, "mod": operator.mod}.items():

        def backward_only(self: LoopIndex, other: Any, function: Any = function) -> Any:
            return NotImplemented if _is_foreign(other) else function(plain_int(other), self.pin())

        setattr(LoopIndex, f"__r{name}__", backward_only)


def plain_int(value: Any) -> Any:
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

"""A repeated loop body that is run a few times and multiplied records exactly what running every iteration records.

The law is checked on random programs: loops over the language's ranges and Python's, whose bodies copy tiles at affine
places and do what kernels do around it: ragged tails, first/last iterations, counters, lists, double buffers, indices kept
from the iteration before, helpers, objects with state, early exits.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from trnprof.nki.modules import install_nki_modules
from trnprof.nki.recording import Access, DmaRecord, Event, Recording, TensorSpec
from trnprof.nki.trace import trace

SIZE = 4096
"""Elements of the tensors: every place the programs below compute lies inside."""

HEADER = """
import nki, nki.isa as nisa, nki.language as nl

TOTAL = [0]
class Stack:
    def __init__(self):
        self.top = 0
        self.high = 0
    def push(self, size):
        self.top += size
        self.high = max(self.high, self.top)
        return self.top - size
    def pop(self, size):
        self.top -= size

def copy(out, x, at, size=1):
    nisa.dma_copy(dst=out[at:at + size], src=x[at:at + size])

@nki.jit
def kernel(x, out):
    count = 0
    seen = []
    before = 0
    stack = Stack()
    previous = nl.ndarray((1, 4), dtype=x.dtype, buffer=nl.sbuf, name="first")
"""

STATEMENTS = [
    "copy(out, x, {place})",
    "nisa.dma_copy(dst=out[{place}:{place} + 2], src=x[0:2])",
    "copy(out, x, {place}, 2 if {var} < {k} else 1)",
    "if {var} == {k}: copy(out, x, {place})",
    "if {var} > {k} and {var} != {m}: copy(out, x, 3)",
    "if {var} % {m} == 0: copy(out, x, {place})",
    "copy(out, x, {var} // {m})",
    "count += 1",
    "if count > {k}: copy(out, x, 5)",
    "if count % {m} == 1: copy(out, x, {place})",
    "seen.append({var})",
    "if len(seen) > {k}: copy(out, x, 7)",
    "copy(out, x, seen[-1] if seen else 0)",
    "copy(out, x, before)",
    "before = {var}",
    "before = {place}",
    "if {var} < {k}: before = {place}",
    "if {var} < 2: seen.append({place})",
    "tile = nl.ndarray((1, 4), dtype=x.dtype, buffer=nl.sbuf); nisa.dma_copy(dst=tile[0, 0:1], src=x[{place}:{place} + 1])",
    "nisa.dma_copy(dst=out[{place}:{place} + 4], src=previous)",
    "tile = nl.ndarray((1, 4), dtype=x.dtype, buffer=nl.sbuf); previous = tile; nisa.memset(tile, 0)",
    "at = stack.push({m}); copy(out, x, at); stack.pop({m})",
    "stack.push(1)",
    "copy(out, x, stack.high)",
    "TOTAL[0] += 1; copy(out, x, TOTAL[0] % 3)",
    "size = min({m}, {trip} - {var}); copy(out, x, {place}, size)",
    "if {var} >= {k}: continue",
    "if {var} == {k}: break",
    "label = f'row{{{var}}}'",
    "copy(out, x, [4, 9, 2][{var} % 3])",
    "copy(out, x, (lambda v: v + 1)({var}))",
    "[copy(out, x, v) for v in range({m})]",
    "nisa.dma_copy(dst=out[{place}], src=x[nl.ds({place}, 1)])",
]


@st.composite
def programs(draw: st.DrawFn) -> str:
    """A kernel of nested loops."""
    lines: list[str] = []

    def body(depth: int, variables: list[tuple[str, int]]) -> None:
        indent = "    " * (depth + 1)
        for _ in range(draw(st.integers(1, 3))):
            choice = draw(st.integers(0, len(STATEMENTS) + 3))
            if (choice >= len(STATEMENTS) or not variables) and depth < 3:
                name = f"i{depth}"
                trip = draw(st.integers(1, 12))
                kind = draw(st.sampled_from(["range", "nl.affine_range", "nl.static_range", "nl.sequential_range"]))
                bounds = (
                    draw(st.sampled_from(["{n}", "2, {n} + 2", "0, 2 * {n}, 2", "{n}, 0, -1"]))
                    if kind == "range"
                    else "{n}"
                )
                if variables and kind == "range" and draw(st.integers(0, 5)) == 0:
                    bounds = variables[-1][0] + " % 5"
                lines.append(f"{indent}for {name} in {kind}({bounds.format(n=trip)}):")
                body(depth + 1, [*variables, (name, trip)])
                if draw(st.booleans()):
                    lines.append(f"{indent}copy(out, x, {name} if '{name}' in locals() else 1)")
            elif variables:
                variable, trip = draw(st.sampled_from(variables))
                coefficients = [draw(st.integers(0, 9)) for _ in variables]
                place = (
                    " + ".join(f"{c} * {v}" for c, (v, _) in zip(coefficients, variables, strict=True))
                    + f" + {draw(st.integers(0, 5))}"
                )
                statement = STATEMENTS[choice % len(STATEMENTS)]
                text = statement.format(
                    var=variable, trip=trip, place=f"({place})", k=draw(st.integers(0, 8)), m=draw(st.integers(1, 4))
                )
                lines.extend(indent + part.strip() for part in text.split(";"))
        lines.append(f"{indent}pass")

    body(0, [])
    return HEADER + "\n".join(lines) + "\n"


def load(source: str) -> Callable[..., Any]:
    """The kernel of a program text."""
    namespace: dict[str, Any] = {"__name__": "kernel_under_test"}
    exec(compile(source, "kernel_under_test.py", "exec"), namespace)
    return namespace["kernel"]


def executions(recording: Recording) -> Counter[tuple[Any, ...]]:
    """Every execution of every record, with its addresses, as a multiset."""
    found: Counter[tuple[Any, ...]] = Counter()
    for record in recording.programs[0].events:
        for iteration in itertools.product(*[range(span.count or 1) for span in record.loops]):
            found[_execution(record, iteration)] += 1
    return found


def _execution(record: Event, iteration: tuple[int, ...]) -> tuple[Any, ...]:
    accesses: list[Access] = []
    if isinstance(record, DmaRecord):
        accesses = [*record.reads, record.write]
    places = []
    for access in accesses:
        moved = sum(step * at for step, at in zip(access.loop_steps, iteration, strict=True))
        places.append((access.memory.value, access.offset + moved, access.shape, access.pattern))
    return (record.op, str(record.site), *places)


def both(source: str) -> Iterator[Recording]:
    """The program recorded with loops multiplied as early as can be, and exactly."""
    for exact in (False, True):
        with install_nki_modules():
            yield trace(
                load(source),
                [TensorSpec((SIZE,), "float32"), TensorSpec((SIZE,), "float32")],
                exact=exact,
                worthwhile_operations=0,
            )


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs())
def test_multiplied_equals_exact(source: str) -> None:
    quick, exact = both(source)
    assert executions(quick) == executions(exact), source
    event("multiplied" if len(quick.programs[0].events) < len(exact.programs[0].events) else "ran exactly")


@pytest.mark.parametrize(
    "body",
    [
        # The ragged tail: 24 tiles of 128 rows and one of 16.
        "for i in nl.affine_range(25):\n        copy(out, x, i * 128, min(128, 3088 - i * 128))",
        # A list that grows decides late.
        "for i in range(300):\n        seen.append(i)\n        if len(seen) == 299: copy(out, x, 1)",
        # A buffer from the iteration before.
        "for i in range(300):\n        copy(out, x, before)\n        before = i + 1",
        # An index kept from an early iteration, not from the one before.
        "for i in range(300):\n        if i < 7: before = i\n        copy(out, x, before)",
        # Triangular: the inner trip count is the outer index.
        "for i in range(60):\n        for j in range(i):\n            copy(out, x, i + j)",
        # The body leaves early.
        "for i in range(300):\n        copy(out, x, i)\n        if i == 250: break",
    ],
)
def test_bodies_that_vary(body: str) -> None:
    quick, exact = both(HEADER + "    " + body + "\n")
    assert executions(quick) == executions(exact)


def test_sixteen_million_copies_take_seconds_at_most() -> None:
    """sdk#980, #776: 16,777,216 copies of 4 B in a static loop: 16,777,216 descriptors, 64 MiB, and few records."""
    source = (
        HEADER + "    for i in nl.static_range(x.shape[0]):\n        nisa.dma_copy(dst=out[i:i + 1], src=x[i:i + 1])\n"
    )
    with install_nki_modules():
        recording = trace(load(source), [TensorSpec((1 << 24,), "float32"), TensorSpec((1 << 24,), "float32")])
    dmas = recording.programs[0].dma
    assert sum(record.execution_count for record in dmas) == 1 << 24
    assert sum(record.execution_count * record.write.byte_count for record in dmas) == 1 << 26
    assert len(dmas) < 10


def test_python_ranges_multiply_too() -> None:
    """4,096 x 4,096 copies under two plain `range` loops."""
    source = HEADER + (
        "    for i in range(x.shape[0]):\n        for j in range(x.shape[1]):\n"
        "            nisa.dma_copy(dst=out[i, j:j + 1], src=x[i, j:j + 1])\n"
    )
    with install_nki_modules():
        recording = trace(load(source), [TensorSpec((4096, 4096), "float32"), TensorSpec((4096, 4096), "float32")])
    assert sum(record.execution_count for record in recording.programs[0].dma) == 1 << 24

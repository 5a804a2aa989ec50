"""Times of single kernel calls inside a step, recorded only when a run is profiled."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from trnprof.engine.kernels.contracts import Kernels


class OperationTimer:
    """Wraps kernels so that every call notes its name, start and end; about 0.3 us a call on a CPU, where a kernel has
    returned only when it is done."""

    def __init__(self) -> None:
        self._calls: list[tuple[str, int, int]] = []

    def wrap(self, kernels: Kernels) -> Kernels:
        """The same kernels, timed."""
        return Kernels(**{name: self._timed(name, function) for name, function in vars(kernels).items()})

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            start = perf_counter_ns()
            result = function(*arguments)
            self._calls.append((name, start, perf_counter_ns()))
            return result

        return call

    def begin(self) -> None:
        """A step starts."""
        self._calls = []

    def end(self) -> list[tuple[str, int, int]]:
        """The step's calls in order: (kernel, start, end) on time.perf_counter_ns."""
        calls, self._calls = self._calls, []
        return calls

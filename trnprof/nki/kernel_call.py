"""A kernel that is loaded and has its arguments: what the guarded child hands to the task that it was started for.

A task is a module of trnprof.nki with one function, perform(call: KernelCall) -> dict: the result document, as JSON data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trnprof.nki.loader import KernelLoader
    from trnprof.nki.recording import Recording


@dataclass(frozen=True)
class KernelCall:
    """One call of one kernel."""

    kernel: Any
    positional: list[Any]
    keywords: dict[str, Any]
    request: dict[str, Any]
    """What guard.py sent: target, lnc, grid, trips, exact, dge, settings, limits, ..."""
    values: dict[str, Any]
    """Contents of integer input tensors, by parameter."""
    loader: KernelLoader
    frameworks: Any
    """What the task's prepare() returned, where it has one: called before the child closes its doors."""
    arguments_of_rank: Callable[[int], tuple[list[Any], dict[str, Any]]] | None
    """The arguments of another rank, where the inputs file's function takes the rank."""
    enter: Callable[[str], None]
    """Says what the child is doing from here on ("counting"), for the message of a failure or a time-out."""

    def record(self, *, exact: bool | None = None) -> Recording:
        """Run the kernel on tensors without values; every loop iteration if `exact` (None: as the request says)."""
        from trnprof.nki.static_rings import without_dge
        from trnprof.nki.trace import trace

        request = self.request
        recording = trace(
            self.kernel,
            self.positional,
            self.keywords,
            lnc=request["lnc"],
            grid=request["grid"],
            exact=request["exact"] if exact is None else exact,
            trips=request["trips"],
            values=self.values,
            target=request["target"],
        )
        return recording if request["dge"] else without_dge(recording)

    @property
    def stand_ins(self) -> list[str]:
        """Frameworks that the kernel's files imported and that were replaced."""
        return sorted(self.loader.stand_ins.imported)

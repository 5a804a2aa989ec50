"""What one step will do: decided by the scheduler, carried out by a runner. No torch."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from trnprof.engine.cache.prefix_cache import Copy
from trnprof.engine.request import Request
from trnprof.engine.shapes import Shape

ON_DEVICE = -1
"""A token whose value is only on the device yet: the lane's last one."""


@dataclass(frozen=True)
class Row:
    """One request's part of a step."""

    request: Request
    lane: int
    tokens: list[int]
    """Tokens to feed; ON_DEVICE where the step before it chooses them."""
    start: int
    """Position of the first."""
    pages: list[int]
    """Pages of the whole context, those that the step writes included."""
    read_slot: int
    saves: list[tuple[int, int]]
    """(tokens of this row after which the state is saved, slot)."""
    samples: bool
    """Does the row choose a token (decode, or the prompt's last chunk)?"""
    following: int = ON_DEVICE
    """The prompt token after this chunk, for the MTP layer; ON_DEVICE where the row samples it."""


@dataclass(frozen=True)
class StepPlan:
    """One step."""

    number: int
    shape: Shape
    rows: list[Row]
    copies: list[Copy] = field(default_factory=list)
    planned_from: int = 0
    """When planning began, ns."""
    planning_ns: int = 0


@dataclass(frozen=True)
class StepResult:
    """What came of a step; all times in ns."""

    tokens: list[list[int]]
    """Per row the tokens chosen: none for a chunk inside a prompt; with speculation the accepted drafts and one more."""
    started: int
    ended: int
    copy_ns: int = 0
    prepare_ns: int = 0
    forward_ns: int = 0
    sample_ns: int = 0
    draft_ns: int = 0
    operations: list[tuple[str, int, int]] = field(default_factory=list)
    """(kernel, start, end) of every call, where the runner was asked to record them."""


class Runner(Protocol):
    """What the loop needs: a real device, or a model of one."""

    def submit(self, plan: StepPlan) -> Future[StepResult]:
        """Start a step; its result, or the exception it raised, comes later."""

    def close(self) -> None:
        """Stop after the steps that were submitted."""

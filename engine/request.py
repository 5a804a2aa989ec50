"""One request on its way: what was asked, what is known of its tokens, and what memory it holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from trnprof.engine.cache.tree import Node


class State(StrEnum):
    """Where a request is."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    PREEMPTED = "preempted"
    """Its memory is taken back as soon as nothing of it is in flight; then it waits again."""
    FINISHED = "finished"


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """What a request asks for."""

    max_tokens: int = 16
    temperature: float = 0.0
    """0 is greedy."""
    top_p: float = 1.0
    seed: int = 0
    ignore_eos: bool = False
    min_tokens: int = 0
    """Before so many tokens no end-of-text token is chosen."""

    @property
    def needs_sampling(self) -> bool:
        """Does a step with this row need the sampled variant of its shape?"""
        return self.temperature > 0 or self.min_tokens > 0


@dataclass
class Timing:
    """Nanoseconds of time.perf_counter_ns; None: not yet."""

    received: int | None = None
    """By the server, before the request was read; None outside a server."""
    arrived: int | None = None
    """In the queue."""
    admitted: int | None = None
    first_token: int | None = None
    first_sent: int | None = None
    """When the server had written the first chunk (or the whole answer)."""
    finished: int | None = None


@dataclass(eq=False)
class Request:
    """A prompt being answered. Token positions count from 0; `planned` positions are computed or in flight."""

    id: str
    prompt: list[int]
    sampling: Sampling
    arrival: int = 0
    """Order of arrival; a preempted request keeps it."""
    session: str | None = None
    """What the client calls the conversation that this request belongs to."""

    state: State = State.WAITING
    tokens: list[int] = field(default_factory=list)
    """Prompt and answer as far as known."""
    finish_reason: FinishReason | None = None
    error: str | None = None
    planned: int = 0
    """Tokens whose keys, values and states are in the caches once all planned steps have run."""
    sampled: int = 0
    """Answer tokens that planned steps sample (with speculation: that are known)."""
    resumed: int = 0
    """Where its first chunk began: tokens that the prefix cache had at the latest admission."""
    in_flight: int = 0
    """Planned steps that have not been collected."""
    cached_tokens: int = 0
    """Prompt tokens that the prefix cache had, at the first admission."""
    preemptions: int = 0
    waited_steps: int = 0
    """Decode steps that went before this prompt while prompts were accumulated."""
    hashes: list[bytes] = field(default_factory=list)
    timing: Timing = field(default_factory=Timing)

    lane: int | None = None
    node: Node | None = None
    """The locked run of the prefix tree."""
    pages: list[int] = field(default_factory=list)
    read_slot: int = 0
    work_slots: list[int] = field(default_factory=list)
    """Slots that the next decode step writes, one a token."""
    boundary_slot: int | None = None
    """The state at `boundary` tokens: the last whole page."""
    boundary: int = 0
    prompt_slot: int | None = None
    """The snapshot at the prompt's last whole page, until the prefix tree takes it."""
    prompt_boundary: int = 0
    branch_slot: int | None = None
    """The snapshot where this prompt leaves what an earlier one left in the tree, until the tree takes it."""
    branch: int = 0
    """Tokens up to there; 0: no branch point."""

    def __post_init__(self) -> None:
        if not self.tokens:
            self.tokens = list(self.prompt)

    @property
    def answer(self) -> list[int]:
        """Tokens of the answer so far."""
        return self.tokens[len(self.prompt) :]

    @property
    def wants_decode(self) -> bool:
        """May another decode step be planned?"""
        return self.state is State.DECODE and self.finish_reason is None and self.sampled < self.sampling.max_tokens

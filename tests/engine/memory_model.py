"""A device that is only memory: it checks that every step reads exactly what the request's tokens should have left there.

Pages hold (position, token) cells and slots hold the tokens whose state they are; the next token is a function of all
tokens before it. So a page or slot that was given away too early, copied wrongly or resumed at the wrong place is an
assertion, not a wrong number somewhere.
"""

from __future__ import annotations

import hashlib
import random
from concurrent.futures import Future
from typing import Any

from trnprof.engine.cache.prefix_cache import Copy, CopyKind
from trnprof.engine.config import (
    AttentionConfig,
    EngineConfig,
    LinearAttentionConfig,
    Mixer,
    ModelConfig,
)
from trnprof.engine.plan import ON_DEVICE, Row, StepPlan, StepResult
from trnprof.engine.shapes import StepKind

VOCAB = 50
EOS = 7


def model(*, linear: bool = True, context: int = 512) -> ModelConfig:
    """A model config for the scheduler; nothing of it is computed."""
    return ModelConfig(
        name="memory",
        vocab=VOCAB,
        hidden=1,
        mixers=(Mixer.GDN if linear else Mixer.FULL, Mixer.FULL),
        sparse=(False, False),
        attention=AttentionConfig(heads=1, kv_heads=1, head_dim=1),
        linear=LinearAttentionConfig(key_heads=1, value_heads=1, key_dim=1, value_dim=1) if linear else None,
        intermediate=1,
        max_context=context,
        eos=(EOS,),
    )


def next_token(tokens: tuple[int, ...]) -> int:
    """The token after `tokens`: any function of all of them will do."""
    digest = hashlib.blake2b(bytes(tokens[-64:]) + len(tokens).to_bytes(4, "little"), digest_size=2).digest()
    return int.from_bytes(digest, "little") % VOCAB


def expected_answer(prompt: list[int], max_tokens: int, *, ignore_eos: bool) -> list[int]:
    """The answer by brute force."""
    tokens = list(prompt)
    while len(tokens) - len(prompt) < max_tokens:
        tokens.append(next_token(tuple(tokens)))
        if tokens[-1] == EOS and not ignore_eos:
            break
    return tokens[len(prompt) :]


class MemoryRunner:
    """Runs plans on the memory model, at once and in order, as a device's queue would."""

    def __init__(self, engine: EngineConfig, *, linear: bool, seed: int = 0) -> None:
        self.engine, self.linear = engine, linear
        self.pages: dict[int, dict[int, tuple[int, int]]] = {}
        self.slots: dict[int, tuple[int, ...] | None] = {1: ()}
        self.host_pages: dict[int, dict[int, tuple[int, int]]] = {}
        self.host_slots: dict[int, tuple[int, ...] | None] = {}
        self.lanes: dict[int, tuple[int, ...]] = {}
        """All tokens of the lane's request, as the device knows them."""
        self.random = random.Random(seed)
        self.prefilled = 0
        self.fail_next = False
        self.broken: set[int] = set()
        """Requests of a step that raised: a step in flight behind it still has them, with nothing sound to read."""

    def submit(self, plan: StepPlan) -> Future[StepResult]:
        """See Runner."""
        future: Future[StepResult] = Future()
        try:
            future.set_result(self.run(plan))
        except RuntimeError as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        """See Runner."""

    def run(self, plan: StepPlan) -> StepResult:
        for copy in plan.copies:
            self.copy(copy)
        if self.fail_next:
            self.fail_next = False
            self.broken |= {id(row.request) for row in plan.rows}
            raise RuntimeError("the kernel raised")
        sound = [row for row in plan.rows if id(row.request) not in self.broken]
        fed = {row.lane: self.fed(row, plan.shape.kind) for row in sound}
        histories = {row.lane: self.read(row) for row in sound}  # all slots are read before any is written
        chosen = [
            self.write(row, plan.shape.kind, histories[row.lane], fed[row.lane]) if row.lane in fed else self.spoil(row)
            for row in plan.rows
        ]
        written = [slot for row in plan.rows for _, slot in row.saves]
        assert len(set(written)) == len(written), "two rows write one slot"
        return StepResult(tokens=chosen, started=0, ended=1)

    def fed(self, row: Row, kind: StepKind) -> list[int]:
        """The row's tokens with those that only the device knows: the newest, then drafts that are right or wrong."""
        if kind is StepKind.PREFILL:
            assert ON_DEVICE not in row.tokens
            return row.tokens
        known = self.lanes[row.lane]
        assert len(known) == row.start + 1, "a decode step does not start at the newest token"
        tokens = [known[-1] if row.tokens[0] == ON_DEVICE else row.tokens[0]]
        assert tokens[0] == known[-1]
        for _ in row.tokens[1:]:
            right = next_token((*known, *tokens[1:]))
            tokens.append(right if self.random.random() < 0.7 else (right + 1) % VOCAB)
        return tokens

    def read(self, row: Row) -> tuple[int, ...]:
        """The tokens before the row, checked cell by cell."""
        size = self.engine.page_size
        history = []
        for position in range(row.start):
            cell = self.pages[row.pages[position // size]].get(position % size)
            assert cell is not None and cell[0] == position, f"position {position} reads {cell}"
            history.append(cell[1])
        if self.linear:
            assert self.slots.get(row.read_slot) == tuple(history), "the state read is of other tokens"
        return tuple(history)

    def write(self, row: Row, kind: StepKind, history: tuple[int, ...], tokens: list[int]) -> list[int]:
        size, everything = self.engine.page_size, history + tuple(tokens)
        assert len(row.pages) * size >= len(everything), "the step writes beyond its pages"
        for position in range(row.start, len(everything)):
            self.pages.setdefault(row.pages[position // size], {})[position % size] = (position, everything[position])
        for count, slot in row.saves:
            assert slot > 1, "a step writes a reserved slot"
            self.slots[slot] = everything[: row.start + count]
        if kind is StepKind.PREFILL:
            self.prefilled += len(tokens)
            if not row.samples:
                return []
            self.lanes[row.lane] = (*everything, next_token(everything))
            return [self.lanes[row.lane][-1]]
        chosen: list[int] = []
        for count in range(1, len(tokens) + 1):
            chosen.append(next_token(everything[: row.start + count]))
            if count < len(tokens) and tokens[count] != chosen[-1]:
                break
        self.lanes[row.lane] = (*history, tokens[0], *chosen)
        return chosen

    def spoil(self, row: Row) -> list[int]:
        """A row of a broken request writes nonsense to its own memory."""
        size = self.engine.page_size
        for position in range(row.start, row.start + len(row.tokens)):
            self.pages.setdefault(row.pages[position // size], {})[position % size] = (position, -1)
        self.slots.update({slot: None for _, slot in row.saves})
        return [0]

    def copy(self, copy: Copy) -> None:
        away = copy.kind in (CopyKind.PAGE_OUT, CopyKind.SLOT_OUT)
        device: dict[int, Any] = self.pages if "page" in copy.kind else self.slots
        host: dict[int, Any] = self.host_pages if "page" in copy.kind else self.host_slots
        source, target = (device, host) if away else (host, device)
        content = source[copy.source]
        target[copy.target] = dict(content) if isinstance(content, dict) else content

    def poison(self, free_pages: list[int], free_slots: list[int]) -> None:
        """Forget what is free, so that reading it fails."""
        for page in free_pages:
            self.pages.pop(page, None)
        for slot in free_slots:
            self.slots.pop(slot, None)

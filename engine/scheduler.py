"""Continuous batching: which rows the next step has, and what memory they get. No torch, no clock of its own.

A step is either a prefill (chunks of waiting prompts) or a decode (one token, or one verification, for every running
request). Plans are made ahead: step n + 1 is planned while n runs, so a request's newest token may be known only to the
device (`ON_DEVICE`), and a request that ends in step n may have a row in n + 1, whose result is dropped.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns

from trnprof.engine.cache.hashing import extend_hashes
from trnprof.engine.cache.pool import IdPool
from trnprof.engine.cache.prefix_cache import PrefixCache
from trnprof.engine.cache.tree import Node
from trnprof.engine.config import EngineConfig, ModelConfig
from trnprof.engine.plan import ON_DEVICE, Row, StepPlan, StepResult
from trnprof.engine.request import FinishReason, Request, State
from trnprof.engine.shapes import ShapeList, StepKind
from trnprof.errors import UsageError

ZERO_SLOT = 1


class QueueFullError(UsageError):
    """More requests wait than the queue may hold."""


class DraftCounters:
    """How drafts fared, by position: a falling acceptance is the first sign of a broken draft layer."""

    RECENT = 256
    """Verifications over which a collapse is judged."""

    def __init__(self, count: int) -> None:
        self.verifications = 0
        self.accepted = [0] * count
        self._recent: deque[int] = deque(maxlen=self.RECENT)

    def add(self, accepted: int) -> None:
        """A verification accepted so many drafts."""
        self.verifications += 1
        for position in range(accepted):
            self.accepted[position] += 1
        self._recent.append(accepted)

    @property
    def collapsed(self) -> bool:
        """Was hardly a first draft accepted lately (under 1% of the last RECENT verifications)?"""
        return len(self._recent) == self.RECENT and sum(1 for count in self._recent if count) < self.RECENT / 100


@dataclass(frozen=True)
class Update:
    """News of one request."""

    request: Request
    new_tokens: list[int]
    finished: bool


class Scheduler:
    """All requests of one engine. Not thread-safe: the loop owns it."""

    def __init__(self, engine: EngineConfig, model: ModelConfig, *, clock: Callable[[], int] = perf_counter_ns) -> None:
        self.engine, self.model, self.clock = engine, model, clock
        self.shapes = ShapeList(engine, model)
        self.draft = engine.draft_tokens
        self.page = engine.page_size
        self.has_state = model.linear_layers > 0
        self.cache = PrefixCache(
            pages=engine.pages,
            page_size=engine.page_size,
            slots=engine.slots,
            needs_state=self.has_state,
            policy=engine.eviction,
            host_pages=engine.host_pages,
            host_snapshots=engine.host_snapshots,
            enabled=engine.prefix_cache,
        )
        self.lanes = IdPool("lane", 1, engine.lanes)  # lane 0 takes what padding rows write
        self.waiting: OrderedDict[str, Request] = OrderedDict()
        """By id, first come first; a preempted request is put in front."""
        self.running: list[Request] = []
        """PREFILL, DECODE and PREEMPTED requests in order of admission."""
        self.requests: dict[str, Request] = {}
        self.steps = 0
        self.drafts = DraftCounters(self.draft)
        self._arrivals = 0
        self._decode_turn = False

    # Requests in and out

    def limit_error(self, prompt_tokens: int, max_tokens: int) -> str | None:
        """Why a request of this size can never be served; None if it can."""
        if prompt_tokens < 1:
            return "the prompt is empty"
        if max_tokens < 1:
            return f"max_tokens is {max_tokens}; it must be at least 1"
        total = prompt_tokens + max_tokens + self.draft
        if total > self.shapes.max_context:
            return (
                f"{prompt_tokens} prompt tokens + {max_tokens} tokens to generate"
                + (f" + {self.draft} drafted" if self.draft else "")
                + f" exceed the context of {self.shapes.max_context} tokens"
            )
        if -(-total // self.page) > self.cache.pages.count:
            return f"{total} tokens need more than the {self.cache.pages.count} pages of {self.page} tokens there are"
        return None

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises: QueueFullError if the queue is full; UsageError if it can never be served or its id is taken.
        """
        if len(self.waiting) >= self.engine.queue_limit:
            raise QueueFullError(f"{len(self.waiting)} requests are waiting already; try again later")
        problem = self.limit_error(len(request.prompt), request.sampling.max_tokens)
        if problem:
            raise UsageError(problem)
        if any(not 0 <= token < self.model.vocab for token in request.prompt):
            raise UsageError(f"a prompt token is outside the vocabulary of {self.model.vocab}")
        if request.id in self.requests:
            raise UsageError(f"a request with the id {request.id} is running already")
        self._arrivals += 1
        request.arrival = self._arrivals
        request.timing.arrived = request.timing.arrived or self.clock()
        self.requests[request.id] = request
        self.waiting[request.id] = request

    def abort(self, request_id: str) -> Update | None:
        """End a request wherever it is; None if it is not here (any more)."""
        request = self.requests.get(request_id)
        if request is None or request.finish_reason is not None:
            return None
        return self._finish(request, FinishReason.ABORT)

    @property
    def is_idle(self) -> bool:
        """Nothing waits, runs or is in flight."""
        return not self.requests

    # Planning

    def plan(self) -> StepPlan | None:
        """The next step, or None if nothing can run before a step in flight is collected."""
        began = self.clock()
        step = self._plan_decode() if self._decode_first() else None
        step = step or self._plan_prefill() or self._plan_decode()
        if step is None:
            return None
        kind, rows, width = step
        self.steps += 1
        self._decode_turn = kind is StepKind.PREFILL
        context = max(row.start + len(row.tokens) for row in rows) + self.draft
        sampled = any(row.request.sampling.needs_sampling for row in rows)
        shape = self.shapes.fit(kind, len(rows), width, context, sampled=sampled)
        return StepPlan(self.steps, shape, rows, self.cache.take_copies(), began, self.clock() - began)

    def _decode_first(self) -> bool:
        """Whether decoding goes before waiting prompts: in turn, and while prompts are still being accumulated."""
        if not any(request.wants_decode for request in self.running):
            return False
        if self._decode_turn:
            return True
        if any(request.state is State.PREFILL for request in self.running) or not self.waiting:
            return False
        if len(self.waiting) >= self.shapes.prefill_rows[-1]:
            return False
        if sum(len(request.tokens) for request in self.waiting.values()) >= self.shapes.budget:
            return False
        first = next(iter(self.waiting.values()))
        first.waited_steps += 1
        return first.waited_steps <= self.engine.accumulate_steps

    def _plan_prefill(self) -> tuple[StepKind, list[Row], int] | None:
        rows: list[Row] = []
        width = limit = 0
        started = [request for request in self.running if request.state is State.PREFILL]
        while True:
            request = started.pop(0) if started else self._admit()
            if request is None:
                break
            left = len(request.tokens) - request.planned
            if not rows:
                width = self.shapes.size_for(left)
                limit = self.shapes.max_rows(width)
            rows.append(self._prefill_row(request, min(left, width)))
            if len(rows) == limit:
                break
        for row in rows:
            # Not before the last row has its memory: a copy into a slot runs before this step reads it.
            if row.request.node is not None and row.start == row.request.resumed:
                self.cache.unpin(row.request.node)
        return (StepKind.PREFILL, rows, width) if rows else None

    def _admit(self) -> Request | None:
        """Give the first waiting request its memory; None if it does not fit now."""
        if not self.waiting or not self.lanes.free_count:
            return None
        request = next(iter(self.waiting.values()))
        whole = -(-len(request.tokens) // self.page)
        # A page for each running request stays free, or the newcomer would soon push somebody out again.
        if self.cache.available_pages() + self._cached_pages(request) < whole + len(self.running):
            return None
        extend_hashes(request.hashes, request.tokens, self.page)
        resume = self.cache.resume(request.hashes[: (len(request.tokens) - 1) // self.page])
        cached = resume.pages
        own = self.cache.allocate_pages(whole - len(cached))
        slots = self.cache.allocate_slots(self.engine.slots_per_request) if self.has_state else []
        if own is None or slots is None:
            self.cache.pages.release(own or [])
            self.cache.slots.release(slots or [])
            if resume.node is not None:
                self.cache.unpin(resume.node)
                self.cache.release(resume.node)
            return None
        self.waiting.popitem(last=False)
        lane = self.lanes.allocate(1)
        assert lane is not None
        request.lane, request.state = lane[0], State.PREFILL
        request.pages = cached + own
        request.node = resume.node
        request.planned = request.resumed = len(cached) * self.page
        request.read_slot = resume.slot if resume.slot is not None else ZERO_SLOT
        if slots:
            request.work_slots = slots[:-3]
            request.boundary_slot, request.prompt_slot, request.branch_slot = slots[-3:]
        request.boundary = 0
        request.prompt_boundary = (len(request.tokens) - 1) // self.page * self.page
        shared = resume.shared_pages * self.page
        request.branch = shared if request.planned < shared < request.prompt_boundary else 0
        if request.timing.admitted is None:
            request.timing.admitted = self.clock()
            request.cached_tokens = request.planned
        self.running.append(request)
        return request

    def _cached_pages(self, request: Request) -> int:
        """Pages that the request would find in use by others: they are neither free nor needed."""
        extend_hashes(request.hashes, request.tokens, self.page)
        node, _ = self.cache.tree.match(request.hashes[: (len(request.tokens) - 1) // self.page])
        return sum(len(entry.pages) for entry in node.path() if entry.locks and not entry.on_host)

    def _prefill_row(self, request: Request, count: int) -> Row:
        start, end = request.planned, request.planned + count
        last = end == len(request.tokens)
        saves: list[tuple[int, int]] = []
        if self.has_state:
            read = request.read_slot
            if start < request.branch <= end and request.branch_slot is not None:
                saves.append((request.branch - start, request.branch_slot))
            if start < request.prompt_boundary <= end and request.prompt_slot is not None:
                saves.append((request.prompt_boundary - start, request.prompt_slot))
            saves.append((count, request.work_slots[0]))
            request.read_slot = request.work_slots[0]
        else:
            read = 0
        row = Row(
            request,
            request.lane or 0,
            request.tokens[start:end],
            start,
            list(request.pages),
            read,
            saves,
            samples=last,
            following=ON_DEVICE if last else request.tokens[end],
        )
        request.planned = end
        request.in_flight += 1
        if last:
            request.state = State.DECODE
            request.sampled = len(request.tokens) - len(request.prompt) + 1
        return row

    def _plan_decode(self) -> tuple[StepKind, list[Row], int] | None:
        width = self.shapes.decode_width
        rows = []
        for request in sorted(self.running, key=lambda one: one.arrival):
            # With speculation the next step's length depends on what this one accepts.
            if not request.wants_decode or (self.draft and request.in_flight):
                continue
            if not self._grow(request, request.planned + width):
                continue
            rows.append(self._decode_row(request))
        return (self.shapes.decode_kind, rows, width) if rows else None

    def _grow(self, request: Request, tokens: int) -> bool:
        """Make `request.pages` hold `tokens` tokens; if memory is short somebody is preempted and False returned."""
        missing = -(-tokens // self.page) - len(request.pages)
        if missing <= 0:
            return True
        pages = self.cache.allocate_pages(missing)
        if pages is not None:
            request.pages += pages
            return True
        if not any(one.state is State.PREEMPTED for one in self.running):
            # The one that came last goes. Requests whose end is already in flight give their memory back by themselves.
            victim = max(
                (one for one in self.running if one.finish_reason is None), key=lambda one: one.arrival, default=None
            )
            if victim is not None:
                victim.state = State.PREEMPTED
                if not victim.in_flight:
                    self._requeue(victim)
        return False

    def _decode_row(self, request: Request) -> Row:
        at = request.planned
        token = request.tokens[at] if at < len(request.tokens) else ON_DEVICE
        tokens = [token] + [ON_DEVICE] * self.draft
        saves = [(j + 1, slot) for j, slot in enumerate(request.work_slots)]
        row = Row(request, request.lane or 0, tokens, at, list(request.pages), request.read_slot, saves, samples=True)
        request.in_flight += 1
        if not self.draft:  # one token, certainly: the next step can be planned before this one has run
            request.sampled += 1
            self._advance(request, 1)
        return row

    def _advance(self, request: Request, count: int) -> None:
        """The decode step just planned (or collected) computes `count` tokens: choose slots instead of copying states."""
        base = request.planned
        request.planned += count
        if not self.has_state:
            request.boundary = request.planned // self.page * self.page
            return
        request.read_slot = request.work_slots[count - 1]
        crossed = request.planned // self.page * self.page
        if crossed > base and request.boundary_slot is not None:
            # This slot holds the state at a page's end: it is kept, and the older boundary's slot is written next.
            index = crossed - base - 1
            request.work_slots[index], request.boundary_slot = request.boundary_slot, request.work_slots[index]
            request.boundary = crossed

    # Results

    def collect(self, plan: StepPlan, result: StepResult) -> list[Update]:
        """Take in a step's tokens; returns what changed for each request of the step."""
        updates = []
        for row, chosen in zip(plan.rows, result.tokens, strict=True):
            request = row.request
            request.in_flight -= 1
            if request.finish_reason is None and row.samples:
                updates.append(self._take_tokens(row, chosen, plan.shape.kind))
            self._settle(request)
        return updates

    def _take_tokens(self, row: Row, chosen: list[int], kind: StepKind) -> Update:
        request = row.request
        kept = self._until_end(request, chosen)
        if not request.answer:
            request.timing.first_token = self.clock()
        request.tokens += kept
        if kind is StepKind.VERIFY:
            # `kept` tokens are known; all but the last of them have been fed.
            self._advance(request, len(kept))
            self.drafts.add(len(chosen) - 1)
            request.sampled = len(request.answer)
        if kind is StepKind.PREFILL:
            self._keep_prompt(request)
        reason = self._end_of(request, kept)
        if reason is not None:
            self._finish(request, reason)
        return Update(request, kept, reason is not None)

    def _until_end(self, request: Request, chosen: list[int]) -> list[int]:
        room = request.sampling.max_tokens - len(request.answer)
        chosen = chosen[:room]
        if not request.sampling.ignore_eos:
            for i, token in enumerate(chosen):
                if token in self.model.eos:
                    return chosen[: i + 1]
        return chosen

    def _end_of(self, request: Request, kept: list[int]) -> FinishReason | None:
        if kept and kept[-1] in self.model.eos and not request.sampling.ignore_eos:
            return FinishReason.STOP
        if len(request.answer) >= request.sampling.max_tokens:
            return FinishReason.LENGTH
        return None

    def fail(self, plan: StepPlan, message: str) -> list[Update]:
        """A step raised: its requests end with an error, and nothing of theirs is kept."""
        updates = []
        for row in plan.rows:
            row.request.in_flight -= 1
            row.request.error = row.request.error or message
            if row.request.finish_reason is None:
                updates.append(self._finish(row.request, FinishReason.ERROR))
            else:
                row.request.finish_reason = FinishReason.ERROR
                self._settle(row.request)
        return updates

    def _finish(self, request: Request, reason: FinishReason) -> Update:
        request.finish_reason = reason
        request.timing.finished = self.clock()
        if self.waiting.pop(request.id, None) is not None:
            request.state = State.FINISHED
            del self.requests[request.id]
        else:
            self._settle(request)
        return Update(request, [], True)

    def _settle(self, request: Request) -> None:
        """Take memory back from a request that ended or was preempted, once nothing of it is in flight."""
        if request.in_flight or request not in self.running:
            return
        if request.finish_reason is not None:
            self._keep_answer(request)
            self._release(request)
            request.state = State.FINISHED
            del self.requests[request.id]
        elif request.state is State.PREEMPTED:
            self._requeue(request)

    def _requeue(self, request: Request) -> None:
        self._keep_answer(request)
        self._release(request)
        request.state = State.WAITING
        request.preemptions += 1
        self.waiting[request.id] = request
        self.waiting.move_to_end(request.id, last=False)

    def _keep_prompt(self, request: Request) -> None:
        """The prompt is computed: its whole pages, and the snapshot at their end, go to the prefix tree."""
        if not self.engine.prefix_cache or not request.prompt_boundary:
            return
        if request.prompt_boundary <= request.resumed:
            return
        if self.has_state and request.branch and request.branch_slot is not None:
            # A second prompt with the same beginning: the third will resume here.
            request.node, taken = self._insert(request, request.branch, request.branch_slot, sightings=2)
            request.branch_slot = None if taken else request.branch_slot
        request.node, taken = self._insert(request, request.prompt_boundary, request.prompt_slot)
        if taken:
            request.prompt_slot = None

    def _keep_answer(self, request: Request) -> None:
        """The state at the answer's last whole page goes to the prefix tree, for the conversation's next turn."""
        if not self.engine.prefix_cache or request.finish_reason is FinishReason.ERROR:
            return
        kept = min(request.boundary, len(request.tokens) // self.page * self.page)
        if kept != request.boundary or kept <= request.prompt_boundary:
            return
        extend_hashes(request.hashes, request.tokens, self.page)
        request.node, taken = self._insert(request, kept, request.boundary_slot)
        if taken:
            request.boundary_slot = None

    def _insert(self, request: Request, tokens: int, slot: int | None, *, sightings: int = 0) -> tuple[Node, bool]:
        count = tokens // self.page
        return self.cache.insert(request.hashes[:count], request.pages, slot, request.node, sightings=sightings)

    def _release(self, request: Request) -> None:
        node = request.node
        held = 0
        if node is not None:
            held = sum(len(entry.pages) for entry in node.path())
            self.cache.release(node)
        self.cache.pages.release(request.pages[held:])
        slots = [*request.work_slots, request.boundary_slot, request.prompt_slot, request.branch_slot]
        self.cache.slots.release([slot for slot in slots if slot is not None])
        if request.lane is not None:
            self.lanes.release([request.lane])
        self.running.remove(request)
        request.lane = request.node = request.boundary_slot = request.prompt_slot = request.branch_slot = None
        request.pages, request.work_slots = [], []
        request.planned = request.boundary = 0

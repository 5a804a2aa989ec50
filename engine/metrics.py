"""What /metrics says, in Prometheus' text format."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from trnprof.engine.request import FinishReason, Request
from trnprof.engine.scheduler import Scheduler

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Histogram:
    """Counts by upper bound, seconds."""

    def __init__(self) -> None:
        self.counts = [0] * (len(_BUCKETS_S) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """One observation."""
        index = next((i for i, bound in enumerate(_BUCKETS_S) if seconds <= bound), len(_BUCKETS_S))
        self.counts[index] += 1
        self.total += seconds

    def lines(self, name: str) -> list[str]:
        """Its samples."""
        lines, seen = [], 0
        for bound, count in zip([*map(str, _BUCKETS_S), "+Inf"], self.counts, strict=True):
            seen += count
            lines.append(f'{name}_bucket{{le="{bound}"}} {seen}')
        return [*lines, f"{name}_sum {self.total:.9f}", f"{name}_count {seen}"]


@dataclass
class Metrics:
    """Observations of the server's answers; the engine's own counters are read when asked."""

    time_to_first_token: Histogram = field(default_factory=Histogram)
    """From the request's first byte to the first chunk's last."""
    request_latency: Histogram = field(default_factory=Histogram)
    finished: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    answer_tokens: int = 0

    def add(self, request: Request, *, ended: int) -> None:
        """A request whose answer was sent; `ended` is when, ns."""
        timing = request.timing
        self.finished[str(request.finish_reason or FinishReason.ABORT)] += 1
        self.prompt_tokens += len(request.prompt)
        self.cached_tokens += request.cached_tokens
        self.answer_tokens += len(request.answer)
        if timing.received is not None:
            if timing.first_sent is not None:
                self.time_to_first_token.add((timing.first_sent - timing.received) / 1e9)
            self.request_latency.add((ended - timing.received) / 1e9)

    def text(self, scheduler: Scheduler) -> str:
        """The page; reads plain integers of the engine's thread, each consistent in itself.

        While nothing runs, free and cached ones add up: pages = pages_free + pages_cached, slots = slots_free +
        snapshots_cached.
        """
        cache, drafts = scheduler.cache, scheduler.drafts
        lines: list[str] = []

        def sample(name: str, kind: str, meaning: str, values: dict[str, float]) -> None:
            lines.extend((f"# HELP trnprof_engine_{name} {meaning}", f"# TYPE trnprof_engine_{name} {kind}"))
            lines.extend(f"trnprof_engine_{name}{labels} {value:g}" for labels, value in values.items())

        def one(name: str, kind: str, meaning: str, value: float) -> None:
            sample(name, kind, meaning, {"": value})

        finished = {f'{{finish="{reason}"}}': float(count) for reason, count in sorted(self.finished.items())}
        sample("requests_total", "counter", "Answered requests.", finished)
        refused = {f'{{status="{status}"}}': float(count) for status, count in sorted(self.refused.items())}
        sample("refused_total", "counter", "Requests refused.", refused)
        one("prompt_tokens_total", "counter", "Prompt tokens of answered requests.", self.prompt_tokens)
        one("cached_tokens_total", "counter", "Prompt tokens found in the prefix cache.", self.cached_tokens)
        one("answer_tokens_total", "counter", "Generated tokens.", self.answer_tokens)
        one("waiting", "gauge", "Requests in the queue.", len(scheduler.waiting))
        one("running", "gauge", "Requests that hold memory.", len(scheduler.running))
        one("steps_total", "counter", "Steps planned.", scheduler.steps)
        one("pages", "gauge", "Pages of keys and values.", cache.pages.count)
        one("pages_free", "gauge", "Pages neither in use nor cached.", cache.pages.free_count)
        one(
            "pages_cached",
            "gauge",
            "Pages of the prefix cache, those that requests share included.",
            cache.cached_pages,
        )
        one("slots", "gauge", "State slots.", cache.slots.count)
        one("slots_free", "gauge", "State slots neither in use nor cached.", cache.slots.free_count)
        one("snapshots_cached", "gauge", "State slots of the prefix cache.", cache.cached_snapshots)
        for name, value in vars(cache.counters).items():
            one(f"cache_{name}_total", "counter", "Prefix cache, since the start.", value)
        if drafts.accepted:
            one("verifications_total", "counter", "Verified drafts, rows.", drafts.verifications)
            by_position = {f'{{position="{i}"}}': float(count) for i, count in enumerate(drafts.accepted)}
            sample("drafts_accepted_total", "counter", "Accepted drafts by position.", by_position)
            one("draft_acceptance_collapsed", "gauge", "1: hardly any draft was accepted lately.", drafts.collapsed)
        for name, histogram, meaning in (
            ("time_to_first_token_seconds", self.time_to_first_token, "First byte in to first chunk out."),
            ("request_seconds", self.request_latency, "First byte in to last chunk out."),
        ):
            lines += [f"# HELP trnprof_engine_{name} {meaning}", f"# TYPE trnprof_engine_{name} histogram"]
            lines += histogram.lines(f"trnprof_engine_{name}")
        return "\n".join(lines) + "\n"

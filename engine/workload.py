"""Small workloads for profiling and benchmarking an engine in this process."""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass
from time import perf_counter_ns

from trnprof.engine.build import Served
from trnprof.engine.request import Request, Sampling
from trnprof.errors import InconsistencyError


@dataclass(frozen=True)
class BatchRun:
    """What a batch took."""

    rows: int
    window_ns: int
    """From the first submission to the last answer's end."""
    answer_tokens: int
    first_token_median_ns: int
    accepted_share: float | None
    """Accepted of all drafts; None without speculation."""

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens by the window."""
        return self.answer_tokens / (self.window_ns / 1e9)


def run_batch(served: Served, *, rows: int, prompt_tokens: int, answer_tokens: int, seed: int) -> BatchRun:
    """Serve `rows` requests that arrive together, greedily, each with a prompt of its own of random bytes.

    Raises: UsageError if a request does not fit; InconsistencyError if one failed.
    """
    chance = random.Random(seed)
    drafts = served.engine.scheduler.drafts
    before = (drafts.verifications, sum(drafts.accepted))
    requests = [
        Request(
            f"batch-{seed}-{row}",
            [chance.randrange(32, 127) for _ in range(prompt_tokens)],
            Sampling(max_tokens=answer_tokens, ignore_eos=True),
        )
        for row in range(rows)
    ]
    began = perf_counter_ns()
    for request in requests:
        served.engine.submit(request, lambda update: None)
    served.engine.run_until_idle()
    window = perf_counter_ns() - began
    failed = [request.error for request in requests if request.error]
    if failed:
        raise InconsistencyError(f"{len(failed)} of {rows} requests failed: {failed[0]}")
    firsts = [(request.timing.first_token or 0) - (request.timing.arrived or 0) for request in requests]
    drafted = (drafts.verifications - before[0]) * served.engine.scheduler.draft
    return BatchRun(
        rows=rows,
        window_ns=window,
        answer_tokens=sum(len(request.answer) for request in requests),
        first_token_median_ns=int(statistics.median(firsts)),
        accepted_share=(sum(drafts.accepted) - before[1]) / drafted if drafted else None,
    )

"""Every step and request of a run, written as Parquet: the record that `trnprof anatomy` reads. Provenance measured-cpu."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnprof.engine.config import EngineConfig
from trnprof.engine.plan import StepPlan, StepResult
from trnprof.engine.request import Request
from trnprof.engine.shapes import StepKind

if TYPE_CHECKING:
    import pyarrow as pa

    from trnprof.engine.scheduler import Scheduler

SCHEMA = "step-log/1"
PROVENANCE = "measured-cpu"

STEP_COLUMNS = (
    "step",
    "kind",
    "shape_rows",
    "shape_width",
    "shape_context",
    "sampled",
    "rows",
    "new_tokens",
    "context_tokens",
    "output_tokens",
    "drafted_tokens",
    "accepted_tokens",
    "planned_ts",
    "planning_ns",
    "started_ts",
    "ended_ts",
    "collecting_ts",
    "collected_ts",
    "copy_ns",
    "prepare_ns",
    "forward_ns",
    "sample_ns",
    "draft_ns",
    "waiting",
    "running",
    "pages_free",
    "pages_cached",
    "slots_free",
    "snapshots_cached",
    "cache_hits",
    "cache_misses",
    "tokens_reused",
    "snapshots_taken",
    "snapshots_evicted",
    "pages_evicted",
    "pages_to_host",
    "pages_from_host",
)
"""Times are ns (time.perf_counter_ns for *_ts); cache counters are totals since the start."""

REQUEST_COLUMNS = (
    "request",
    "session",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "finish",
    "preemptions",
    "received_ts",
    "arrived_ts",
    "admitted_ts",
    "first_token_ts",
    "first_sent_ts",
    "finished_ts",
)


class StepLog:
    """Collects rows in memory and writes them at the end; the newest `limit` steps and requests are kept."""

    def __init__(self, model: str, engine: EngineConfig, *, limit: int = 500_000) -> None:
        self.model, self.engine = model, engine
        self.steps: deque[tuple[object, ...]] = deque(maxlen=limit)
        self.requests: deque[tuple[object, ...]] = deque(maxlen=limit)
        self.operations: deque[tuple[object, ...]] = deque(maxlen=20 * limit)
        self.step_count = 0

    def add_step(self, plan: StepPlan, result: StepResult, scheduler: Scheduler, *, collected: tuple[int, int]) -> None:
        """Note a step; `collected` is when its result was taken in, from and to, ns."""
        cache, counters, shape = scheduler.cache, scheduler.cache.counters, plan.shape
        verify = shape.kind is StepKind.VERIFY
        self.step_count += 1
        self.steps.append(
            (
                plan.number,
                str(shape.kind),
                shape.rows,
                shape.width,
                shape.context,
                shape.sampled,
                len(plan.rows),
                sum(len(row.tokens) for row in plan.rows),
                sum(row.start for row in plan.rows),
                sum(len(tokens) for tokens in result.tokens),
                (shape.width - 1) * len(plan.rows) if verify else 0,
                sum(len(tokens) - 1 for tokens in result.tokens) if verify else 0,
                plan.planned_from,
                plan.planning_ns,
                result.started,
                result.ended,
                *collected,
                result.copy_ns,
                result.prepare_ns,
                result.forward_ns,
                result.sample_ns,
                result.draft_ns,
                len(scheduler.waiting),
                len(scheduler.running),
                cache.pages.free_count,
                cache.cached_pages,
                cache.slots.free_count,
                cache.cached_snapshots,
                counters.hits,
                counters.misses,
                counters.tokens_reused,
                counters.snapshots_taken,
                counters.snapshots_evicted,
                counters.pages_evicted,
                counters.pages_to_host,
                counters.pages_from_host,
            )
        )
        self.operations.extend((plan.number, *call) for call in result.operations)

    def add_request(self, request: Request) -> None:
        """Note a request that ended."""
        timing = request.timing
        self.requests.append(
            (
                request.id,
                request.session,
                len(request.prompt),
                request.cached_tokens,
                len(request.answer),
                str(request.finish_reason),
                request.preemptions,
                timing.received,
                timing.arrived,
                timing.admitted,
                timing.first_token,
                timing.first_sent,
                timing.finished,
            )
        )

    def clear(self) -> None:
        """Forget what was noted so far (a warm-up)."""
        self.steps.clear()
        self.requests.clear()
        self.operations.clear()
        self.step_count = 0

    def tables(self) -> dict[str, pa.Table]:
        """steps, requests and operations as Arrow tables, each with a provenance column and the run's metadata."""
        import pyarrow as pa

        text = pa.dictionary(pa.int32(), pa.string())
        steps = {
            name: text if name == "kind" else pa.bool_() if name == "sampled" else pa.int64() for name in STEP_COLUMNS
        }
        requests = {
            name: pa.string() if name in ("request", "session") else text if name == "finish" else pa.int64()
            for name in REQUEST_COLUMNS
        }
        operations = {"step": pa.int64(), "operation": text, "start_ts": pa.int64(), "end_ts": pa.int64()}
        return {
            "steps": self._table(steps, self.steps),
            "requests": self._table(requests, self.requests),
            "operations": self._table(operations, self.operations),
        }

    def _table(self, types: dict[str, Any], rows: deque[tuple[object, ...]]) -> pa.Table:
        import pyarrow as pa

        columns = list(zip(*rows, strict=True)) if rows else [()] * len(types)
        arrays = [pa.array(list(values), kind) for values, kind in zip(columns, types.values(), strict=True)]
        arrays.append(pa.array([PROVENANCE] * len(rows), pa.dictionary(pa.int32(), pa.string())))
        metadata = {
            "trnprof.schema": SCHEMA,
            "trnprof.provenance": PROVENANCE,
            "trnprof.model": self.model,
            "trnprof.engine": json.dumps(asdict(self.engine)),
            "trnprof.steps_dropped": str(self.step_count - len(self.steps)),
        }
        return pa.table(arrays, names=[*types, "provenance"]).replace_schema_metadata(metadata)

    def write(self, folder: Path) -> None:
        """Write steps.parquet, requests.parquet and operations.parquet into `folder` (made if missing)."""
        import pyarrow.parquet as pq

        folder.mkdir(parents=True, exist_ok=True)
        for name, table in self.tables().items():
            pq.write_table(table, folder / f"{name}.parquet")

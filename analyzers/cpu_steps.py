"""Where the time of an engine's run on a CPU goes. Its own parts: no part of a Trainium step is named here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trnprof.errors import InconsistencyError
from trnprof.intervals import EMPTY, Intervals, union
from trnprof.profile import Provenance
from trnprof.step_log import StepLog


@dataclass(frozen=True)
class StepKindAccount:
    """The steps of one kind."""

    kind: str
    step_count: int
    row_count: int
    padded_row_count: int
    """Rows of the compiled shapes beyond the real ones."""
    new_token_count: int
    padded_token_count: int
    """Tokens of the compiled shapes beyond the real ones."""
    output_token_count: int
    drafted_token_count: int
    accepted_token_count: int
    median_ns: int
    """Median time of a step, rounded down."""
    parts_ns: dict[str, int]
    """Sum over the steps: cache copies, input preparation, forward, sampling, drafting, rest; adds up to their time."""


@dataclass(frozen=True)
class OperationAccount:
    """All calls of one kernel."""

    name: str
    call_count: int
    total_ns: int


@dataclass(frozen=True)
class CpuAnatomy:
    """A run's window, from the first step's planning to the last result taken in, split into parts that add up to it."""

    model: str
    provenance: Provenance
    window_ns: int
    parts_ns: dict[str, int]
    """forward: the model; sampling; drafting; cache_copies: pages and states to and from host memory; preparation:
    inputs as tensors; scheduling: planning and taking in results while no step runs; gap: no step runs and nothing is
    scheduled; step_rest: in a step, but in none of its measured parts."""
    hidden_scheduling_ns: int
    """Planning and taking in results while a step runs: costs nothing, and is in no part."""
    operations: tuple[OperationAccount, ...] | None
    """Kernel calls by time; their time lies inside forward, sampling and drafting. None: not recorded."""
    operations_ns: dict[str, int] | None
    """The union of all kernel calls (`kernels`) and what forward, sampling and drafting have beyond it (`between`)."""
    kinds: tuple[StepKindAccount, ...]
    cache: dict[str, int]
    """Cache counters of the last step, with the lowest free pages and slots seen."""
    steps_dropped: int


_STEP_PARTS = {
    "cache_copies": "copy_ns",
    "preparation": "prepare_ns",
    "forward": "forward_ns",
    "sampling": "sample_ns",
    "drafting": "draft_ns",
}


def account_cpu_steps(log: StepLog) -> CpuAnatomy:
    """Split a run on a CPU into its parts.

    Reads:  log.steps (times in ns), log.operation_*.
    Raises: InconsistencyError if the parts do not add up to the window.
    """
    steps = log.steps
    started, ended = steps["started_ts"], steps["ended_ts"]
    planned_to = steps["planned_ts"] + steps["planning_ns"]
    start = int(min(started.min(), steps["planned_ts"].min()))
    end = int(max(ended.max(), steps["collected_ts"].max()))
    running = union(started, ended)
    scheduling = union(steps["planned_ts"], planned_to) | union(steps["collecting_ts"], steps["collected_ts"])
    exposed = scheduling - running
    parts = {name: int(steps[column].sum()) for name, column in _STEP_PARTS.items()}
    parts["step_rest"] = running.length() - sum(parts.values())
    parts["scheduling"] = exposed.length()
    parts["gap"] = (union(np.array([start]), np.array([end])) - running - scheduling).length()
    if sum(parts.values()) != end - start or min(parts.values()) < 0:
        raise InconsistencyError(f"parts of {sum(parts.values())} ns do not add up to a window of {end - start} ns")
    operations, operations_ns = _operations(log, parts)
    return CpuAnatomy(
        model=log.model,
        provenance=log.provenance,
        window_ns=end - start,
        parts_ns=parts,
        hidden_scheduling_ns=scheduling.length() - exposed.length(),
        operations=operations,
        operations_ns=operations_ns,
        kinds=tuple(_kind(log, kind) for kind in sorted(set(log.kinds))),
        cache=_cache(steps),
        steps_dropped=log.steps_dropped,
    )


def _operations(
    log: StepLog, parts: dict[str, int]
) -> tuple[tuple[OperationAccount, ...] | None, dict[str, int] | None]:
    if not len(log.operation_steps):
        return None, None
    lengths = log.operation_ends - log.operation_starts
    count = len(log.operation_names)
    totals = np.zeros(count, np.int64)
    np.add.at(totals, log.operation_codes, lengths)
    calls = np.bincount(log.operation_codes, minlength=count)
    accounts = [
        OperationAccount(name, int(calls[code]), int(totals[code]))
        for code, name in enumerate(log.operation_names)
        if calls[code]
    ]
    covered = _covered(log).length()
    inside = parts["forward"] + parts["sampling"] + parts["drafting"]
    return (
        tuple(sorted(accounts, key=lambda account: (-account.total_ns, account.name))),
        {"kernels": covered, "between": inside - covered},
    )


def _covered(log: StepLog) -> Intervals:
    """Kernel calls inside the steps' forward, sampling and drafting, as a set."""
    calls = union(log.operation_starts, log.operation_ends)
    steps = log.steps
    first = steps["started_ts"] + steps["copy_ns"] + steps["prepare_ns"]
    last = first + steps["forward_ns"] + steps["sample_ns"] + steps["draft_ns"]
    return calls & union(first, last) if len(calls) else EMPTY


def _kind(log: StepLog, kind: str) -> StepKindAccount:
    chosen = np.array([entry == kind for entry in log.kinds])
    steps = {name: values[chosen] for name, values in log.steps.items()}
    times = steps["ended_ts"] - steps["started_ts"]
    parts = {name: int(steps[column].sum()) for name, column in _STEP_PARTS.items()}
    parts["step_rest"] = int(times.sum()) - sum(parts.values())
    shape_tokens = int((steps["shape_rows"] * steps["shape_width"]).sum())
    return StepKindAccount(
        kind=kind,
        step_count=len(times),
        row_count=_total(steps["rows"]),
        padded_row_count=_total(steps["shape_rows"]) - _total(steps["rows"]),
        new_token_count=_total(steps["new_tokens"]),
        padded_token_count=shape_tokens - _total(steps["new_tokens"]),
        output_token_count=_total(steps["output_tokens"]),
        drafted_token_count=_total(steps["drafted_tokens"]),
        accepted_token_count=_total(steps["accepted_tokens"]),
        median_ns=int(np.median(times)),
        parts_ns=parts,
    )


def _cache(steps: dict[str, npt.NDArray[np.int64]]) -> dict[str, int]:
    totals = (
        "cache_hits",
        "cache_misses",
        "tokens_reused",
        "snapshots_taken",
        "snapshots_evicted",
        "pages_evicted",
        "pages_to_host",
        "pages_from_host",
    )
    lowest = {f"lowest_{name}": int(steps[name].min()) for name in ("pages_free", "slots_free")}
    return {name: int(steps[name].max()) for name in totals} | lowest


def _total(values: npt.NDArray[np.int64]) -> int:
    return int(values.sum())

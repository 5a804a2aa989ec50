"""One run of the bundled engine on a CPU, step by step: what its reader fills and its analyzer reads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trnprof.profile import Provenance

STEP_TIMES = (
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
)
STEP_COUNTS = (
    "step",
    "shape_rows",
    "shape_width",
    "shape_context",
    "rows",
    "new_tokens",
    "context_tokens",
    "output_tokens",
    "drafted_tokens",
    "accepted_tokens",
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


@dataclass(frozen=True)
class StepLog:
    """One run. Times are int64 ns on one clock; rows of `steps` are in the order in which the steps ran."""

    model: str
    provenance: Provenance
    steps: dict[str, npt.NDArray[np.int64]]
    """STEP_TIMES and STEP_COUNTS by name, [steps]."""
    kinds: tuple[str, ...]
    """prefill, decode or verify, of each step."""
    operation_steps: npt.NDArray[np.int64]
    """The step of each recorded kernel call, [calls]; empty where the run was not profiled by operation."""
    operation_codes: npt.NDArray[np.int32]
    operation_names: tuple[str, ...]
    operation_starts: npt.NDArray[np.int64]
    operation_ends: npt.NDArray[np.int64]
    steps_dropped: int
    """Steps before the first one here that the log had no room for."""

"""Throttling: how long the chip held its engines below full rate, and how much matrix work fell into that time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from trnprof.analyzers.account_sets import account_sets
from trnprof.intervals import EMPTY, Intervals, union
from trnprof.profile import Core, Profile, codes_of, int64_of


@dataclass(frozen=True)
class ThrottleLevel:
    """Time at one utilisation limit. Over the levels of a core the times are disjoint: the lowest limit counts."""

    k: int
    n: int
    throttled_ns: int
    tensor_active_ns: int
    """Matrix engine active in that time."""
    tensor_loss_ns: int
    """Of that, what full rate would not have needed if the limit bound the engine all the time: active x (1 - k/n)."""


@dataclass(frozen=True)
class ThrottleCause:
    """The intervals of one type, as the capture names it."""

    type: str
    """activity_0, ...; untrusted."""
    interval_count: int
    throttled_ns: int
    """Union; types may overlap."""
    avg_util_limit: float
    """Mean of k/n over its throttled time: the vendor's avg_util_limit."""


@dataclass(frozen=True)
class CoreThrottling:
    """One physical core's throttling."""

    core: int
    throttled_ns: int
    levels: tuple[ThrottleLevel, ...]
    """Lowest limit first."""
    causes: tuple[ThrottleCause, ...]

    @property
    def tensor_loss_ns(self) -> int:
        """At most what throttling cost the matrix engine."""
        return sum(level.tensor_loss_ns for level in self.levels)


@dataclass(frozen=True)
class Throttling:
    """Every core's throttling."""

    cores: tuple[CoreThrottling, ...]


def measure_throttling(profile: Profile) -> Throttling | None:
    """Time at each utilisation limit; None where throttling was not captured.

    Reads:  profile.throttle (timestamp, duration, k, n, type, pcore_idx), instructions of the tensor engine; ns.
    """
    if profile.throttle is None:
        return None
    return Throttling(tuple(_measure_core(profile, core) for core in profile.metadata.cores))


def _measure_core(profile: Profile, core: Core) -> CoreThrottling:
    table = profile.core_rows("throttle", core.core)
    assert table is not None
    window = (core.window_start_ts, core.window_end_ts)
    tensor = account_sets(profile, core).busy["tensor"]
    k, n = int64_of(table["k"]), int64_of(table["n"])
    start = np.clip(int64_of(table["timestamp"]), *window)
    end = np.clip(int64_of(table["timestamp"]) + int64_of(table["duration"]), *window)
    slow = (k < n) & (n > 0) & (start < end)
    levels, covered = [], EMPTY
    pairs = sorted(
        set(zip(k[slow].tolist(), n[slow].tolist(), strict=True)), key=lambda pair: (pair[0] / pair[1], pair)
    )
    for level_k, level_n in pairs:
        rows = slow & (k == level_k) & (n == level_n)
        here: Intervals = union(start[rows], end[rows]) - covered
        covered = covered | here
        active = (tensor & here).length()
        if here.length():
            loss = active * (level_n - level_k) // level_n
            levels.append(ThrottleLevel(level_k, level_n, here.length(), active, loss))
    return CoreThrottling(core.core, covered.length(), tuple(levels), _causes(table, slow, start, end, k, n))


def _causes(
    table: pa.Table, slow: np.ndarray, start: np.ndarray, end: np.ndarray, k: np.ndarray, n: np.ndarray
) -> tuple[ThrottleCause, ...]:
    if "type" not in table.column_names:
        return ()
    codes, names = codes_of(table["type"])
    found = []
    for code, name in enumerate(names):
        rows = slow & (codes == code)
        if rows.any():
            length = end[rows] - start[rows]
            limit = float((length * k[rows] / n[rows]).sum() / length.sum())
            found.append(ThrottleCause(name, int(rows.sum()), union(start[rows], end[rows]).length(), limit))
    return tuple(sorted(found, key=lambda cause: (-cause.throttled_ns, cause.type)))

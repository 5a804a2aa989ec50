"""Fixed cost and cost per row of a step, part by part, from captures at several batch sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from trnprof.analyzers.anatomy import Anatomy, CoreAnatomy
from trnprof.errors import UsageError

PARTS = (
    "runtime_overhead",
    "memory_floor",
    "busy_beyond_floor",
    "in_kernel_wait",
    "exposed_collective",
    "idle",
)

MAX_ROWS = 10**9


@dataclass(frozen=True)
class BatchCapture:
    """One capture and how many rows (requests, tokens) its step worked on."""

    rows: int
    label: str
    anatomy: Anatomy


@dataclass(frozen=True)
class Line:
    """time = fixed + per_row x rows, by least squares."""

    fixed_ns: int
    """May be negative where the line is steeper than from zero."""
    per_row_ps: int
    """Picoseconds: a row may cost less than a nanosecond, and rows may be thousands."""
    residuals_ps: tuple[int, ...]
    """measured - line, in the order of the points."""

    @property
    def largest_residual_ns(self) -> float:
        """The largest distance of a measurement from the line."""
        return max(abs(residual) for residual in self.residuals_ps) / 1000


@dataclass(frozen=True)
class FitPoint:
    """One measured step."""

    rows: int
    label: str
    window_ns: int
    parts_ns: dict[str, int | None]


@dataclass(frozen=True)
class CoreFit:
    """One physical core over the batch sizes. Fixed costs, costs per row and residuals of the parts sum to the window's."""

    core: int
    points: tuple[FitPoint, ...]
    """Ascending by rows."""
    window: Line
    parts: dict[str, Line | None]
    """None: the part is not captured at every size."""
    explained_share: float | None
    """R²: how much of the windows' variation the line explains; None where all windows are equal."""


@dataclass(frozen=True)
class Fit:
    """Every core's fit."""

    cores: tuple[CoreFit, ...]
    sizes: tuple[int, ...]
    """Distinct batch sizes, ascending. Two always fit a line: their residuals say nothing."""


def fit_batches(captures: Sequence[BatchCapture]) -> Fit:
    """Least-squares lines of each part against the rows, on every core that all captures have.

    A line is linear in what it fits, so the parts' lines sum to the window's; rounding to whole numbers keeps that: of
    each coefficient the parts are rounded down, and what is missing to the window's goes to those cut most.

    Raises: UsageError for fewer than two batch sizes or a number of rows outside 1 to MAX_ROWS.
    """
    if any(not 1 <= capture.rows <= MAX_ROWS for capture in captures):
        raise UsageError(f"rows must be from 1 to {MAX_ROWS:,}")
    ordered = sorted(captures, key=lambda capture: capture.rows)
    sizes = tuple(sorted({capture.rows for capture in ordered}))
    if len(sizes) < 2:
        raise UsageError("a fit needs captures at two batch sizes or more: trnprof fit 1=a.ntff 8=b.ntff")
    shared = set.intersection(*({core.core for core in capture.anatomy.cores} for capture in ordered))
    return Fit(tuple(_fit_core(core, ordered) for core in sorted(shared)), sizes)


def _fit_core(core: int, captures: Sequence[BatchCapture]) -> CoreFit:
    points = []
    for capture in captures:
        (account,) = [entry for entry in capture.anatomy.cores if entry.core == core]
        points.append(FitPoint(capture.rows, capture.label, account.window_ns, _parts(account)))
    known = [part for part in PARTS if all(point.parts_ns[part] is not None for point in points)]
    if "memory_floor" not in known:
        # busy_beyond_floor holds all work where the floor is not known: the two are one part then, at every size.
        for index, point in enumerate(points):
            work = (point.parts_ns["memory_floor"] or 0) + (point.parts_ns["busy_beyond_floor"] or 0)
            parts = point.parts_ns | {"memory_floor": None, "busy_beyond_floor": work}
            points[index] = FitPoint(point.rows, point.label, point.window_ns, parts)
    rows = [point.rows for point in points]
    exact = {part: _least_squares(rows, [point.parts_ns[part] or 0 for point in points]) for part in known}
    windows = [point.window_ns for point in points]
    window = _least_squares(rows, windows)
    fixed = _rounded({part: line[0] for part, line in exact.items()}, round(window[0]))
    per_row = _rounded({part: 1000 * line[1] for part, line in exact.items()}, round(1000 * window[1]))
    lines: dict[str, Line | None] = {
        part: _line(fixed[part], per_row[part], rows, [point.parts_ns[part] or 0 for point in points])
        if part in known
        else None
        for part in PARTS
    }
    whole = _line(round(window[0]), round(1000 * window[1]), rows, windows)
    mean = Fraction(sum(windows), len(windows))
    spread = sum((value - mean) ** 2 for value in windows)
    missed = sum((value - window[0] - window[1] * size) ** 2 for size, value in zip(rows, windows, strict=True))
    return CoreFit(core, tuple(points), whole, lines, None if not spread else float(1 - missed / spread))


def _parts(account: CoreAnatomy) -> dict[str, int | None]:
    return {part: getattr(account.parts, f"{part}_ns") for part in PARTS}


def _least_squares(rows: Sequence[int], times: Sequence[int]) -> tuple[Fraction, Fraction]:
    """(fixed, per row), exact."""
    count, mean_rows = len(rows), Fraction(sum(rows), len(rows))
    mean_time = Fraction(sum(times), count)
    spread = sum((size - mean_rows) ** 2 for size in rows)
    along = sum((size - mean_rows) * (time - mean_time) for size, time in zip(rows, times, strict=True))
    slope = Fraction(along) / spread
    return mean_time - slope * mean_rows, slope


def _rounded(exact: dict[str, Fraction], total: int) -> dict[str, int]:
    """Whole numbers next to the exact ones that sum to `total` (largest remainders first)."""
    floors = {name: value.numerator // value.denominator for name, value in exact.items()}
    missing = total - sum(floors.values())
    by_remainder = sorted(exact, key=lambda name: (floors[name] - exact[name], name))
    # The parts' exact values sum to the window's, so between 0 and one for each part is missing.
    for name in by_remainder[:missing]:
        floors[name] += 1
    return floors


def _line(fixed_ns: int, per_row_ps: int, rows: Sequence[int], times: Sequence[int]) -> Line:
    residuals = (1000 * (time - fixed_ns) - per_row_ps * size for size, time in zip(rows, times, strict=True))
    return Line(fixed_ns, per_row_ps, tuple(residuals))

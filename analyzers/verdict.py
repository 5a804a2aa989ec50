"""Is a change real, and is it large enough? Several measurements a side, a bar, and "inconclusive" when that is the truth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

CONFIDENCE = 0.95

_T_95 = (
    # Student's t, two-sided 95 %, for 1 to 30 degrees of freedom.
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_T_95_LARGE = ((120, 1.980), (60, 2.000), (40, 2.021), (30, 2.042))


class Outcome(StrEnum):
    """What can be said of a change."""

    FASTER = "faster"
    """Real, and at least the bar."""
    SLOWER = "slower"
    REAL_BELOW_BAR = "real, below the bar"
    SAME = "same"
    """Any difference is smaller than the bar."""
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class Verdict:
    """The outcome and what it rests on. Negative changes are faster."""

    outcome: Outcome
    before_ns: float
    """Mean."""
    after_ns: float
    change_share: float
    """(after - before) ÷ before."""
    interval_share: tuple[float, float] | None
    """95 % confidence interval of the change; None with fewer than two measurements a side."""
    bar_share: float
    before_count: int
    after_count: int
    paired: bool
    method: str
    """What the outcome rests on, one line."""


def judge(before: Sequence[float], after: Sequence[float], *, bar_share: float, paired: bool | None = None) -> Verdict:
    """Compare two sides of measured times.

    before, after: times in ns, at least one each. bar_share: the smallest change that counts, 0.02 is 2 %.
    paired: are before[i] and after[i] one pair (same node, back to back)? None: yes, where both sides are equally long.
            Pairing in a fixed order is valid even where nothing was paired; it only has fewer degrees of freedom then.

    A change is real where the 95 % t interval (of the pairs' differences, or Welch's) leaves out zero, or where the two
    sides' ranges are disjoint and that would happen by chance in at most 5 % of orders (4 and 4 measurements, 2 ÷ 70). It
    also counts as faster or slower where every one of two or more pairs changes by the bar or more in one direction: the
    rule of those who measure on noisy nodes, whose bar is above the noise.

    Raises: ValueError for an empty side, a time that is not positive and finite, a bar below 0, or pairs of unequal count.
    """
    if not before or not after or any(not 0 < time < math.inf for time in (*before, *after)) or bar_share < 0:
        raise ValueError("both sides need positive, finite times, and the bar must not be negative")
    if paired and len(before) != len(after):
        raise ValueError(f"{len(before)} measurements before cannot be paired with {len(after)} after")
    in_pairs = len(before) == len(after) and len(before) > 1 if paired is None else paired and len(before) > 1
    mean_before, mean_after = _mean(before), _mean(after)
    change = (mean_after - mean_before) / mean_before
    interval = _interval(before, after, in_pairs)
    relative = None if interval is None else (interval[0] / mean_before, interval[1] / mean_before)
    outcome, method = _decide(before, after, change, relative, bar_share, in_pairs)
    return Verdict(
        outcome, mean_before, mean_after, change, relative, bar_share, len(before), len(after), in_pairs, method
    )


def _decide(
    before: Sequence[float],
    after: Sequence[float],
    change: float,
    interval: tuple[float, float] | None,
    bar: float,
    in_pairs: bool,
) -> tuple[Outcome, str]:
    direction = Outcome.FASTER if change < 0 else Outcome.SLOWER
    kind = f"95 % t interval of {len(before)} pairs" if in_pairs else "95 % Welch t interval"
    excludes_zero = interval is not None and (interval[0] > 0 or interval[1] < 0)
    disjoint = (max(before) < min(after) or max(after) < min(before)) and _chance_of_order(before, after) <= 0.05
    if change and (excludes_zero or disjoint):
        basis = (
            f"{kind} leaves out zero"
            if excludes_zero
            else f"ranges are disjoint (p = {_chance_of_order(before, after):.3f})"
        )
        return (direction if abs(change) >= bar else Outcome.REAL_BELOW_BAR), basis
    pair_changes = [(b - a) / a for a, b in zip(before, after, strict=True)] if in_pairs else []
    if (
        change
        and bar > 0
        and pair_changes
        and min(map(abs, pair_changes)) >= bar
        and len({c > 0 for c in pair_changes}) == 1
    ):
        count = len(pair_changes)
        return direction, f"{count} of {count} pairs change by the bar or more; {kind} includes zero"
    if interval is not None and -bar < interval[0] and interval[1] < bar:
        return Outcome.SAME, f"{kind} lies inside the bar"
    if interval is not None:
        return Outcome.INCONCLUSIVE, f"{kind} includes zero and reaches the bar"
    if not change:
        return Outcome.SAME, "the same time, measured once a side"
    return Outcome.INCONCLUSIVE, "fewer than two measurements on a side: the noise between runs is not known"


def _interval(before: Sequence[float], after: Sequence[float], in_pairs: bool) -> tuple[float, float] | None:
    """95 % confidence interval of mean(after) - mean(before)."""
    if in_pairs:
        differences = [b - a for a, b in zip(before, after, strict=True)]
        half = t_95(len(differences) - 1) * math.sqrt(_variance(differences) / len(differences))
        return _mean(differences) - half, _mean(differences) + half
    if len(before) < 2 or len(after) < 2:
        return None
    difference = _mean(after) - _mean(before)
    first, second = _variance(before) / len(before), _variance(after) / len(after)
    if first + second == 0:
        return difference, difference
    # Welch-Satterthwaite; rounded down, which widens the interval.
    freedom = (first + second) ** 2 / (first**2 / (len(before) - 1) + second**2 / (len(after) - 1))
    half = t_95(max(1, int(freedom))) * math.sqrt(first + second)
    return difference - half, difference + half


def t_95(degrees_of_freedom: int) -> float:
    """Student's t for a two-sided 95 % interval; between the table's rows the next lower one, which is the larger value."""
    if degrees_of_freedom <= len(_T_95):
        return _T_95[degrees_of_freedom - 1]
    return next(value for freedom, value in _T_95_LARGE if degrees_of_freedom >= freedom)


def _chance_of_order(before: Sequence[float], after: Sequence[float]) -> float:
    """How likely two disjoint ranges are, in either order, if nothing changed: exact, 2 of all orders."""
    return 2 / math.comb(len(before) + len(after), len(before))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _variance(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)

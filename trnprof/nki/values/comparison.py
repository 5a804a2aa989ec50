"""An output against a reference: how far apart, where first, and in which of the ways that mistakes show themselves.

Pure functions of two arrays. An element is bad if it differs by more than atol + rtol x |reference| (NaN and infinity only
equal themselves); unless the caller gives atol it is rtol x the reference's root mean square, so that sums that cancel are
judged by the size of what was summed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trnprof.nki.values.kinds import NUMPY, is_integer, rounded

RTOL = {
    "float64": 1e-6,
    "float32": 1e-4,
    "tfloat32": 2e-3,
    "float16": 4e-3,
    "bfloat16": 2e-2,
    "float8_e4m3": 0.15,
    "float8_e4m3fn": 0.15,
    "float8_e3m4": 0.08,
    "float8_e5m2": 0.3,
}
"""Relative tolerance by output type, about two to four units in the last place; integers must be equal."""

ULP_EDGES = (0, 1, 2, 4, 8, 16, 64, 256, 1024)
"""Upper ends of the histogram's classes; what is beyond is the last class."""
_ROWS_LOOKED_AT = 1 << 20


@dataclass(frozen=True)
class UlpClass:
    """Elements whose distance is at most `most` and more than the class before: in units in the last place."""

    most: int | None
    """None: beyond every other class, or not finite."""
    count: int


@dataclass(frozen=True)
class RepeatedRows:
    """Rows of the output that are equal to an earlier row where the reference's rows differ."""

    count: int
    row: int
    """The first of them, counted over all leading dimensions."""
    equals_row: int


@dataclass(frozen=True)
class Comparison:
    """The figures of one output."""

    agrees: bool
    dtype: str
    """The type whose tolerance and units in the last place these figures use."""
    rtol: float
    atol: float
    bad_count: int
    element_count: int
    max_abs_error: float
    """Over elements that are finite on both sides."""
    max_rel_error: float
    """The largest |difference| / |reference| where the reference is not 0."""
    relative_frobenius: float | None
    """||output - reference|| / ||reference||, over finite elements; None: the reference is 0."""
    ulps: tuple[UlpClass, ...]
    """Distances in the output's type."""
    first_bad_index: tuple[int, ...]
    """Empty: none."""
    first_bad_value: str = ""
    first_reference_value: str = ""
    nan_count: int = 0
    """Elements that are NaN in the output and not in the reference."""
    is_all_zero: bool = False
    """Every element of the output is 0 and not every one of the reference."""
    repeated: RepeatedRows | None = None


def compare(
    output: np.ndarray, reference: np.ndarray, dtype: str, *, rtol: float | None = None, atol: float | None = None
) -> Comparison:
    """Figures of `output` (of NKI type `dtype`) against `reference`, of equal shape.

    Raises: ValueError if the shapes differ.
    """
    if output.shape != reference.shape:
        raise ValueError(f"the output's shape is {output.shape} and the reference's {reference.shape}")
    left, right = output.astype(np.float64), reference.astype(np.float64)
    both = np.isfinite(left) & np.isfinite(right)
    relative = RTOL.get(dtype, 0.0) if rtol is None else rtol
    with np.errstate(all="ignore"):
        scale = float(np.sqrt(np.mean(right[both] ** 2))) if both.any() else 0.0
        absolute = relative * scale if atol is None else atol
        difference = np.where(both, np.abs(left - right), 0.0)
        same = (left == right) | (np.isnan(left) & np.isnan(right))
        bad = np.where(both, difference > absolute + relative * np.abs(right), ~same)
        nonzero = both & (right != 0)
        worst = float((difference[nonzero] / np.abs(right[nonzero])).max()) if nonzero.any() else 0.0
        norm = float(np.sqrt((right[both] ** 2).sum()))
        error = float(np.sqrt((difference**2).sum()))
    first = tuple(int(part) for part in np.unravel_index(int(bad.argmax()), bad.shape)) if bad.any() else ()
    return Comparison(
        agrees=not bad.any(),
        dtype=dtype,
        rtol=relative,
        atol=absolute,
        bad_count=int(bad.sum()),
        element_count=int(bad.size),
        max_abs_error=float(difference.max()) if difference.size else 0.0,
        max_rel_error=worst,
        relative_frobenius=error / norm if norm else None,
        ulps=ulp_histogram(left, right, dtype),
        first_bad_index=first,
        first_bad_value=_shown(left[first]) if bad.any() else "",
        first_reference_value=_shown(right[first]) if bad.any() else "",
        nan_count=int((np.isnan(left) & ~np.isnan(right)).sum()),
        is_all_zero=bool(left.size and not left.any() and right.any()),
        repeated=repeated_rows(left, right),
    )


def _shown(value: np.float64) -> str:
    return f"{float(value):.9g}"


def ulp_histogram(left: np.ndarray, right: np.ndarray, dtype: str) -> tuple[UlpClass, ...]:
    """How many elements lie how many representable numbers of `dtype` apart, the reference rounded to it first."""
    distance, finite = ulp_distance(left, right, dtype)
    classes = []
    below = -1
    for most in ULP_EDGES:
        classes.append(UlpClass(most, int(((distance > below) & (distance <= most) & finite).sum())))
        below = most
    classes.append(UlpClass(None, int(((distance > below) | ~finite).sum())))
    return tuple(classes)


def ulp_distance(left: np.ndarray, right: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """(distance of each pair in representable numbers, are both finite or both the same?)."""
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    finite = (np.isfinite(left) & np.isfinite(right)) | same
    if is_integer(dtype):
        return np.abs(np.where(finite, left - right, 0)), finite
    kind = "float32" if dtype in ("float64", "tfloat32") or dtype not in NUMPY else dtype
    places = []
    for side in (left, right):
        bits = rounded(np.where(np.isfinite(side), side, 0.0).astype(np.float64), kind)
        width = bits.dtype.itemsize
        raw = bits.view(f"i{width}").astype(np.int64)
        # Sign and magnitude to a line of integers: -0 and +0 are one place.
        places.append(np.where(raw < 0, -(raw & ((1 << (8 * width - 1)) - 1)), raw))
    return np.where(finite & ~same, np.abs(places[0] - places[1]), 0), finite


def repeated_rows(left: np.ndarray, right: np.ndarray) -> RepeatedRows | None:
    """Rows (last dimension) of `left` that equal an earlier row although the reference's two rows differ; rows of zeros
    and rows with NaN do not count."""
    if left.ndim < 2 or not left.size:
        return None
    rows, others = (np.ascontiguousarray(side.reshape(-1, side.shape[-1])) for side in (left, right))
    if not 1 < len(rows) <= _ROWS_LOOKED_AT or rows.shape[1] < 2:
        return None
    keys = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).reshape(-1)
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    earlier = first[inverse.reshape(-1)]
    repeats = np.flatnonzero(earlier != np.arange(len(rows)))
    if not len(repeats):
        return None
    looked_at = rows[repeats]
    differs = (others[repeats] != others[earlier[repeats]]).any(axis=1) & looked_at.any(axis=1)
    differs &= np.isfinite(looked_at).all(axis=1)
    wrong = repeats[differs]
    if not len(wrong):
        return None
    return RepeatedRows(len(wrong), int(wrong[0]), int(earlier[wrong[0]]))

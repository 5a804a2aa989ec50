"""Collectives by operation: how long a call takes, how much of it nothing else covers, and who stood still for it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from trnprof.analyzers.account_sets import NOT_ATTRIBUTED, account_sets
from trnprof.analyzers.waits import releasing_instructions
from trnprof.intervals import Int64Array, Intervals, charged_lengths, distinct
from trnprof.profile import Profile, codes_of, int64_of

BEFORE = "before "
"""Prefix of a kernel that began only after the collective: the one that its result let go."""


@dataclass(frozen=True)
class LongestCall:
    """The call that took longest."""

    duration_ns: int
    core: int
    rank: int | None
    start_ts: int


@dataclass(frozen=True)
class Operation:
    """All calls of one operation over the capture's cores. Median and longest lead: a mean hides the late rank."""

    name: str
    """As in the capture; untrusted."""
    call_count: int
    """A call that the capture records for the logical core counts on each of its physical cores."""
    median_ns: int
    """Median duration, the lower one of two."""
    longest: LongestCall
    total_ns: int
    """Sum of durations."""
    exposed_ns: int
    """Time without work under it, summed over cores; where operations overlap the one that began first is charged. Over
    the operations these sum to the anatomy's exposed collectives."""
    bytes: int | None
    """Sum of the larger of input and output; None: not captured."""


@dataclass(frozen=True)
class Waiter:
    """Who stood still in exposed collective time."""

    name: str
    """An engine or a kernel; untrusted. NOT_ATTRIBUTED: nobody is seen to wait."""
    exposed_ns: int


@dataclass(frozen=True)
class CoreCollectives:
    """One physical core's exposed collective time, split two ways; each sums to exposed_ns."""

    core: int
    call_count: int
    exposed_ns: int
    engines: tuple[Waiter, ...]
    """By the engine that was blocked and went on first."""
    kernels: tuple[Waiter, ...] | None
    """By the kernel that was open, or with BEFORE the one that came next; None: kernels were not captured."""


@dataclass(frozen=True)
class Collectives:
    """The collectives of a capture."""

    operations: tuple[Operation, ...]
    """Most exposed time first."""
    cores: tuple[CoreCollectives, ...]


def measure_collectives(profile: Profile) -> Collectives | None:
    """Operations and who waited for them; None where collectives were not captured.

    Reads:  profile.collectives (start_ts, end_ts, operation, pcore_idx, input_size, output_size), clipped to each core's
            window; instructions, kernels; the exposed time is the account's set (analyzers.account_sets); ns.
    """
    if profile.collectives is None:
        return None
    names: list[str] = []
    code_of: dict[str, int] = {}
    calls: list[_Calls] = []
    cores = []
    for core in profile.metadata.cores:
        table = profile.core_rows("collectives", core.core)
        assert table is not None
        exposed = account_sets(profile, core).exposed
        window = (core.window_start_ts, core.window_end_ts)
        codes, local = codes_of(table["operation"])
        local_codes = [code_of.setdefault(name, len(code_of)) for name in [*local, NOT_ATTRIBUTED]]
        names = list(code_of)
        calls.append(_Calls(table, np.array(local_codes, np.int64)[codes], window, exposed, core.core, core.rank))
        instructions = profile.core_rows("instructions", core.core)
        cores.append(
            CoreCollectives(
                core.core,
                len(table),
                exposed.length(),
                _waiting_engines(exposed, instructions),
                _waiting_kernels(exposed, profile.core_rows("kernels", core.core)),
            )
        )
    operations = [operation for code, name in enumerate(names) if (operation := _operation(name, code, calls))]
    operations.sort(key=lambda operation: (-operation.exposed_ns, -operation.total_ns, operation.name))
    return Collectives(tuple(operations), tuple(cores))


class _Calls:
    """One core's calls as arrays, clipped to its window."""

    def __init__(
        self,
        table: pa.Table,
        codes: Int64Array,
        window: tuple[int, int],
        exposed: Intervals,
        core: int,
        rank: int | None,
    ) -> None:
        self.codes, self.core, self.rank = codes, core, rank
        self.start = np.clip(int64_of(table["start_ts"]), *window)
        self.length = np.maximum(np.clip(int64_of(table["end_ts"]), *window) - self.start, 0)
        self.exposed = _charged_inside(self.start, self.start + self.length, exposed)
        sizes = [int64_of(table[name]) for name in ("input_size", "output_size") if name in table.column_names]
        self.size = np.maximum.reduce(sizes) if sizes else None


def _charged_inside(start: Int64Array, end: Int64Array, inside: Intervals) -> Int64Array:
    """How much of `inside` each interval is charged with: what of it is not in one that began earlier."""
    charged = charged_lengths(start, end)
    # What is charged to an interval is its last stretch: earlier ones have covered everything before that.
    return inside.overlap_lengths(end - charged, end)


def _operation(name: str, code: int, calls: list[_Calls]) -> Operation | None:
    chosen = [part.codes == code for part in calls]
    lengths = np.concatenate([part.length[rows] for part, rows in zip(calls, chosen, strict=True)])
    if not len(lengths):
        return None
    longest = max(
        (
            LongestCall(int(part.length[row]), part.core, part.rank, int(part.start[row]))
            for part, rows in zip(calls, chosen, strict=True)
            if rows.any()
            for row in [int(np.flatnonzero(rows)[np.argmax(part.length[rows])])]
        ),
        key=lambda call: (call.duration_ns, -call.core),
    )
    sizes = [part.size[rows] for part, rows in zip(calls, chosen, strict=True) if part.size is not None]
    return Operation(
        name,
        len(lengths),
        int(np.sort(lengths)[(len(lengths) - 1) // 2]),
        longest,
        int(lengths.sum()),
        sum(int(part.exposed[rows].sum()) for part, rows in zip(calls, chosen, strict=True)),
        int(sum(int(size.sum()) for size in sizes)) if sizes else None,
    )


def _waiting_engines(exposed: Intervals, instructions: pa.Table | None) -> tuple[Waiter, ...]:
    if not len(exposed):
        return ()
    if instructions is None:
        return (Waiter(NOT_ATTRIBUTED, exposed.length()),)
    start, end, row = releasing_instructions(exposed, instructions)
    codes, names = codes_of(instructions["engine"])
    return _waiters(np.where(row < 0, len(names), np.append(codes, 0)[row]), [*names, NOT_ATTRIBUTED], end - start)


def _waiting_kernels(exposed: Intervals, kernels: pa.Table | None) -> tuple[Waiter, ...] | None:
    if kernels is None:
        return None
    if not len(exposed):
        return ()
    codes, names = codes_of(kernels["name"])
    opened, closed = int64_of(kernels["start_ts"]), int64_of(kernels["end_ts"])
    order = np.argsort(opened, kind="stable")
    codes, opened, closed = codes[order], opened[order], closed[order]
    cuts = distinct(np.concatenate((opened, closed, exposed.start, exposed.end)))
    start, end = cuts[:-1], cuts[1:]
    inside = exposed.overlap_lengths(start, end) > 0
    start, end = start[inside], end[inside]
    last = np.searchsorted(opened, start, side="right") - 1
    if not len(opened):
        return (Waiter(NOT_ATTRIBUTED, exposed.length()),)
    # Kernels of one core follow each other; where they nest, the one that began last is the one that runs.
    is_open = (last >= 0) & (closed[np.maximum(last, 0)] >= end)
    following = np.minimum(last + 1, len(opened) - 1)
    has_next = last + 1 < len(opened)
    label = np.where(
        is_open,
        codes[np.maximum(last, 0)],
        np.where(has_next, len(names) + codes[following], 2 * len(names)),
    )
    return _waiters(label, [*names, *(BEFORE + name for name in names), NOT_ATTRIBUTED], end - start)


def _waiters(codes: np.ndarray, names: list[str], lengths: Int64Array) -> tuple[Waiter, ...]:
    total = np.bincount(codes, weights=lengths, minlength=len(names)).astype(np.int64)
    found = [Waiter(names[code], int(total[code])) for code in np.flatnonzero(total).tolist()]
    return tuple(sorted(found, key=lambda waiter: (-waiter.exposed_ns, waiter.name)))

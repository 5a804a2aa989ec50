"""Many captures as one view: a row for each core and rank, what differs between them, and who waited for whom.

Clocks of different ranks are not one clock. Only what lies within one rank is compared as it is; collectives are aligned
on their ends: all ranks of a call are taken to leave it at one instant, so the rank that was in it shortest came last.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trnprof.analyzers.anatomy import CoreAnatomy, Parts
from trnprof.analyzers.collective_calls import CollectiveCalls
from trnprof.intervals import Int64Array


@dataclass(frozen=True)
class RankCapture:
    """One capture of the view."""

    rank: int | None
    """None: neither the capture nor its name says."""
    input: int
    """Its place among the command's inputs."""
    cores: tuple[CoreAnatomy, ...]


@dataclass(frozen=True)
class RankRow:
    """One physical core of one rank."""

    rank: int | None
    input: int
    account: CoreAnatomy


@dataclass(frozen=True)
class RankSpread:
    """One figure over all cores with events: the middle and the tail, since a mean hides the one late rank."""

    median_ns: int
    """The lower one of two."""
    min_ns: int
    max_ns: int
    max_rank: int | None
    max_input: int
    max_core: int


@dataclass(frozen=True)
class PairBalance:
    """The physical cores of one logical core: by how much the busiest works longer than the least busy."""

    rank: int | None
    input: int
    most_core: int
    most_work_ns: int
    least_core: int
    least_work_ns: int

    @property
    def imbalance(self) -> float:
        """Share of the busiest core's work that the least busy one does not have."""
        return 0.0 if not self.most_work_ns else 1 - self.least_work_ns / self.most_work_ns


@dataclass(frozen=True)
class RankCollectives:
    """One rank in the collectives that all ranks share."""

    rank: int | None
    input: int
    call_count: int
    total_ns: int
    """Sum of its calls' durations: transfer + waiting."""
    transfer_ns: int
    waiting_ns: int
    """For the late rank of each call."""
    late_count: int
    """Calls in which it came last."""


@dataclass(frozen=True)
class OperationSplit:
    """All calls of one operation over all ranks."""

    operation: str
    """Untrusted."""
    call_count: int
    """On each rank."""
    median_ns: int
    max_ns: int
    max_rank: int | None
    max_input: int
    transfer_ns: int
    """Summed over ranks; with waiting_ns it is the sum of all durations."""
    waiting_ns: int


@dataclass(frozen=True)
class AlignedCollectives:
    """Collectives split into transfer and waiting for the late rank, or why they are not."""

    refused: str | None
    """Why the ranks' calls cannot be matched; None: they were."""
    grouped: bool
    """Were replica groups told apart? Else all ranks are taken to be in every call."""
    ranks: tuple[RankCollectives, ...]
    operations: tuple[OperationSplit, ...]


@dataclass(frozen=True)
class RankView:
    """A folder of captures as one."""

    rows: tuple[RankRow, ...]
    """Every core with events, by rank and core."""
    empty: tuple[RankCapture, ...]
    """Captures without an event."""
    window: RankSpread | None
    """None without rows."""
    parts: dict[str, RankSpread | None]
    """By part; None where a core does not have it."""
    pairs: tuple[PairBalance, ...]
    """The most unbalanced first."""
    collectives: AlignedCollectives | None
    """None: not captured by every rank, or there is one rank only."""


def compare_ranks(captures: tuple[RankCapture, ...]) -> RankView:
    """Rows, spreads, balance of pairs and aligned collectives. Cores without events are in no figure."""
    ordered = sorted(captures, key=lambda capture: (capture.rank is None, capture.rank or 0, capture.input))
    busy = [capture for capture in ordered if any(core.event_count for core in capture.cores)]
    rows = tuple(
        RankRow(capture.rank, capture.input, core) for capture in busy for core in capture.cores if core.event_count
    )
    parts = {
        name.removesuffix("_ns"): _spread(rows, lambda account, name=name: getattr(account.parts, name))  # type: ignore[misc]
        for name in Parts.__dataclass_fields__
    }
    pairs = [_balance(capture) for capture in busy if len(capture.cores) > 1]
    return RankView(
        rows,
        tuple(capture for capture in ordered if capture not in busy),
        _spread(rows, lambda account: account.window_ns),
        parts,
        tuple(sorted(pairs, key=lambda pair: (-pair.imbalance, pair.input))),
        align_collectives(tuple(busy)),
    )


def _spread(rows: tuple[RankRow, ...], figure: Callable[[CoreAnatomy], int | None]) -> RankSpread | None:
    values = [figure(row.account) for row in rows]
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    ordered = sorted(known)
    worst = rows[known.index(ordered[-1])]
    median = ordered[(len(ordered) - 1) // 2]
    return RankSpread(median, ordered[0], ordered[-1], worst.rank, worst.input, worst.account.core)


def _balance(capture: RankCapture) -> PairBalance:
    ordered = sorted(capture.cores, key=lambda core: (core.work.total_ns(), -core.core))
    most, least = ordered[-1], ordered[0]
    return PairBalance(capture.rank, capture.input, most.core, most.work.total_ns(), least.core, least.work.total_ns())


def align_collectives(captures: tuple[RankCapture, ...]) -> AlignedCollectives | None:
    """Transfer and waiting of each rank, call by call; refused where the ranks do not have the same calls.

    The n-th call of one rank is the n-th of every other: there is no other key that all captures carry.
    """
    if len(captures) < 2:
        return None
    calls = [next((core.collective_calls for core in capture.cores if core.event_count), None) for capture in captures]
    known = [found for found in calls if found is not None]
    if len(known) < len(calls) or not any(len(found) for found in known):
        return None
    refused = _mismatch(captures, known)
    if refused is not None:
        return AlignedCollectives(refused, False, (), ())
    duration = np.array([np.subtract(found.end_ts, found.start_ts) for found in known], np.int64)
    group = _groups(captures, known)
    transfer, late = _shortest(duration, group)
    names = known[0].operation
    ranks = tuple(
        RankCollectives(
            capture.rank,
            capture.input,
            len(names),
            int(duration[place].sum()),
            int(transfer[place].sum()),
            int((duration[place] - transfer[place]).sum()),
            int(late[place].sum()),
        )
        for place, capture in enumerate(captures)
    )
    operations = tuple(
        _operation(captures, name, duration[:, chosen], transfer[:, chosen])
        for name in sorted(set(names))
        if (chosen := np.array([operation == name for operation in names])).any()
    )
    return AlignedCollectives(
        None, group is not None, ranks, tuple(sorted(operations, key=lambda o: (-o.waiting_ns, o.operation)))
    )


def _mismatch(captures: tuple[RankCapture, ...], calls: list[CollectiveCalls]) -> str | None:
    """Why the ranks' calls are not the same ones, naming both counts; None if they are."""
    counts: dict[int, list[str]] = {}
    for capture, found in zip(captures, calls, strict=True):
        counts.setdefault(len(found), []).append(_name(capture))
    if len(counts) > 1:
        told = [
            f"{names[0]}{f' and {len(names) - 1} more' if names[1:] else ''}: {n}"
            for n, names in sorted(counts.items())
        ]
        return "the ranks have different numbers of collectives (" + ", ".join(told[:4]) + "): not matched"
    for capture, found in zip(captures, calls, strict=True):
        for place, (mine, first) in enumerate(zip(found.operation, calls[0].operation, strict=True)):
            if mine != first:
                return (
                    f"call {place + 1} is {mine[:40]} on {_name(capture)} and {first[:40]} on {_name(captures[0])}: "
                    "not matched"
                )
    return None


def _name(capture: RankCapture) -> str:
    return f"input {capture.input}" if capture.rank is None else f"rank {capture.rank}"


def _groups(captures: tuple[RankCapture, ...], calls: list[CollectiveCalls]) -> Int64Array | None:
    """For each rank and call the number of the replica group that the rank is in; None where that is not known.

    Groups are printed as lists of ranks, [[0, 1], [2, 3]].
    """
    parsed: dict[str, dict[int, int] | None] = {}
    group = np.zeros((len(captures), len(calls[0])), np.int64)
    for place, (capture, found) in enumerate(zip(captures, calls, strict=True)):
        for call, text in enumerate(found.group):
            if text not in parsed:
                parsed[text] = _parse_groups(text)
            of_rank = parsed[text]
            if of_rank is None or capture.rank not in of_rank:
                return None
            group[place, call] = of_rank[capture.rank]
    return group


def _parse_groups(text: str) -> dict[int, int] | None:
    """Rank -> the lowest rank of its group; None where the text is no list of groups."""
    try:
        found = json.loads(text[:100_000]) if text else None
    except (ValueError, RecursionError):
        return None
    groups = found if isinstance(found, list | tuple) and all(isinstance(g, list | tuple) for g in found) else [found]
    of_rank = {}
    for members in groups:
        if not isinstance(members, list | tuple) or not members or not all(type(rank) is int for rank in members):
            return None
        of_rank.update(dict.fromkeys(members, min(members)))
    return of_rank


def _shortest(duration: Int64Array, group: Int64Array | None) -> tuple[Int64Array, Int64Array]:
    """(the shortest duration in each rank's group, is it the rank that came last), both [ranks, calls]."""
    if group is None:
        group = np.zeros(duration.shape, np.int64)
    transfer = np.zeros_like(duration)
    late = np.zeros(duration.shape, bool)
    for number in np.unique(group).tolist():
        own = group == number
        shortest = np.where(own, duration, np.iinfo(np.int64).max)
        transfer = np.where(own, shortest.min(axis=0), transfer)
        # Of several that came last at once the first counts.
        last = shortest.argmin(axis=0)
        some = own.any(axis=0)
        late[last[some], np.flatnonzero(some)] = True
    return transfer, late


def _operation(
    captures: tuple[RankCapture, ...], name: str, duration: Int64Array, transfer: Int64Array
) -> OperationSplit:
    place = int(duration.max(axis=1).argmax())
    ordered = np.sort(duration, axis=None)
    return OperationSplit(
        name,
        duration.shape[1],
        int(ordered[(len(ordered) - 1) // 2]),
        int(ordered[-1]),
        captures[place].rank,
        captures[place].input,
        int(transfer.sum()),
        int((duration - transfer).sum()),
    )

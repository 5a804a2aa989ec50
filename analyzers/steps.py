"""Several executions or steps in one capture: an account of each, and of the whole ones together.

An event that crosses a boundary is cut there: each step has the time that lies in it, and the one in which the event
begins counts it. A step that the capture's window cuts is partial: it is accounted as far as it goes, and is in no mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from trnprof.analyzers.account_fold import Tables, body_of
from trnprof.analyzers.anatomy import Anatomy, AnatomyFold, Parts, core_events
from trnprof.errors import UsageError
from trnprof.events import Events, NameList
from trnprof.hardware import Bandwidth
from trnprof.ordering import END_OF_TIME
from trnprof.profile import Metadata, Profile, int64_of


@dataclass(frozen=True)
class StepWindow:
    """Where one step lies in the capture."""

    number: int
    """1 for the capture's first."""
    index: int
    """As the capture numbers it."""
    name: str
    """Of what was executed; untrusted."""
    start_ts: int
    end_ts: int
    """Clipped to the capture's window; ns."""
    cut: str | None
    """Which of its ends the capture does not have: "begins", "ends", "begins and ends"; None: it is whole."""


@dataclass(frozen=True)
class StepAnatomy:
    """One step's account."""

    window: StepWindow
    anatomy: Anatomy


@dataclass(frozen=True)
class Spread:
    """One figure over the whole steps; ns."""

    total_ns: int
    min_ns: int
    median_ns: int
    """The lower one of two."""
    max_ns: int
    max_step: int
    """The number of the step that has the maximum."""


@dataclass(frozen=True)
class CoreSteps:
    """One physical core over all whole steps."""

    core: int
    window: Spread
    parts: dict[str, Spread | None]
    """By part; None where a step does not have it. Totals sum to the window's."""


@dataclass(frozen=True)
class StepsSummary:
    """The whole steps together."""

    step_count: int
    """All that the capture marks."""
    whole_count: int
    cores: tuple[CoreSteps, ...]


def step_windows(metadata: Metadata) -> tuple[StepWindow, ...]:
    """The steps that the capture marks, as far as they lie in its window."""
    low = min((core.window_start_ts for core in metadata.cores), default=0)
    high = max((core.window_end_ts for core in metadata.cores), default=0)
    found = []
    for number, step in enumerate(metadata.steps, 1):
        begins, ends = step.start_ts < low, step.end_ts is None or step.end_ts > high
        start, end = max(step.start_ts, low), high if step.end_ts is None else min(step.end_ts, high)
        if start < end:
            cut = {(True, True): "begins and ends", (True, False): "begins", (False, True): "ends"}.get((begins, ends))
            found.append(StepWindow(number, step.index, step.name, start, end, cut))
    return tuple(found)


def choose_steps(metadata: Metadata, wanted: int | None) -> tuple[StepWindow, ...]:
    """The steps asked for: one by its number, or all for None.

    Raises: UsageError if the capture marks no steps, or not that one.
    """
    windows = step_windows(metadata)
    if not windows:
        raise UsageError("the capture marks no steps: its whole execution is one window; leave --step out")
    chosen = tuple(window for window in windows if wanted in (None, window.number))
    if not chosen:
        numbers = f"{windows[0].number} to {windows[-1].number}" if len(windows) > 1 else f"{windows[0].number} only"
        raise UsageError(f"there is no step {wanted}: the capture has {numbers}")
    return chosen


def measure_steps(
    profile: Profile, hardware: str, bandwidth: Bandwidth, windows: Iterable[StepWindow]
) -> tuple[StepAnatomy, ...]:
    """An account of each of the steps. Reads and raises what measure_anatomy does."""
    names = NameList()
    rows = {core.core: core_events(profile, core.core, names) for core in profile.metadata.cores}
    chosen = tuple(windows)
    bodies = []
    for window in chosen:
        span = (window.start_ts, window.end_ts)
        bodies.append(
            {core: body_of(_overlapping(tables["instructions"], span), span) for core, tables in rows.items()}
        )
    fold = StepsFold(profile.metadata, hardware, bandwidth, names, chosen, bodies)
    cuts = sorted({edge for window in chosen for edge in (window.start_ts, window.end_ts)})
    given = {core: dict.fromkeys(tables, 0) for core, tables in rows.items()}
    for until in [*cuts, END_OF_TIME]:
        batch: dict[int, dict[str, Events | None]] = {}
        for core, tables in rows.items():
            batch[core] = {}
            for name, events in tables.items():
                if events is None:
                    batch[core][name] = None
                    continue
                first = given[core][name]
                last = len(events) if until == END_OF_TIME else int(np.searchsorted(events.start, until, side="left"))
                batch[core][name] = events.rows(slice(first, last))
                given[core][name] = last
        fold.add(batch, until, final=until == END_OF_TIME)
    return fold.steps()


class StepsFold:
    """The accounts of several steps, from batches of a capture's events in order of time."""

    def __init__(
        self,
        metadata: Metadata,
        hardware: str,
        bandwidth: Bandwidth,
        names: NameList,
        windows: Iterable[StepWindow],
        bodies: Iterable[Mapping[int, tuple[int, int]]],
        *,
        reach_back_ns: int | None = None,
    ) -> None:
        """bodies: of each step by core, clipped to it; see AnatomyFold."""
        self._waiting = list(zip(windows, bodies, strict=True))
        self._open: list[tuple[StepWindow, AnatomyFold]] = []
        self._done: list[StepAnatomy] = []

        def open_fold(window: StepWindow, body: Mapping[int, tuple[int, int]]) -> AnatomyFold:
            cores = tuple(
                # What the capture totals is of all of its steps.
                replace(
                    core,
                    window_start_ts=window.start_ts,
                    window_end_ts=window.end_ts,
                    hbm_read_bytes=None,
                    hbm_write_bytes=None,
                )
                for core in metadata.cores
            )
            own = replace(metadata, cores=cores, summary={})
            return AnatomyFold(own, hardware, bandwidth, names, body, is_step=True, reach_back_ns=reach_back_ns)

        self._open_fold = open_fold

    def add(self, rows: Mapping[int, Tables], until: int, *, final: bool = False) -> None:
        """One batch: each core's rows that begin before `until` and were not in an earlier batch, in order of start."""
        reach = max((_reach(events) for tables in rows.values() for events in tables.values()), default=-END_OF_TIME)
        # A step has to see the rows that reach into it from before, and be seen through when its end is passed.
        begun = [entry for entry in self._waiting if final or entry[0].start_ts < max(reach, until)]
        self._waiting = [entry for entry in self._waiting if entry not in begun]
        self._open += [(window, self._open_fold(window, body)) for window, body in begun]
        left = []
        for window, fold in self._open:
            over = final or until >= window.end_ts
            fold.add(rows, until, final=over)
            if over:
                self._done.append(StepAnatomy(window, fold.anatomy()))
            else:
                left.append((window, fold))
        self._open = left

    def steps(self) -> tuple[StepAnatomy, ...]:
        """The accounts in the steps' order, after the final batch."""
        return tuple(sorted(self._done, key=lambda step: step.window.number))


def summarize_steps(steps: tuple[StepAnatomy, ...]) -> StepsSummary:
    """The whole steps together; partial ones are counted and left out."""
    whole = [step for step in steps if step.window.cut is None]
    cores = []
    for place, first in enumerate(whole[0].anatomy.cores if whole else ()):
        accounts = [(step.window.number, step.anatomy.cores[place]) for step in whole]
        parts: dict[str, Spread | None] = {}
        for name in Parts.__dataclass_fields__:
            values = [(number, getattr(account.parts, name)) for number, account in accounts]
            parts[name.removesuffix("_ns")] = None if any(value is None for _, value in values) else _spread(values)
        cores.append(CoreSteps(first.core, _spread([(n, account.window_ns) for n, account in accounts]), parts))
    return StepsSummary(len(steps), len(whole), tuple(cores))


def profile_of_step(profile: Profile, window: StepWindow) -> Profile:
    """What of a profile's tables overlaps one step, with the step as every core's window: for what is no account."""
    cores = tuple(
        replace(
            core,
            window_start_ts=window.start_ts,
            window_end_ts=window.end_ts,
            hbm_read_bytes=None,
            hbm_write_bytes=None,
        )
        for core in profile.metadata.cores
    )
    tables: dict[str, Any] = {name: _in_window(table, window) for name, table in profile.tables()}
    return replace(profile, metadata=replace(profile.metadata, cores=cores, summary={}, steps=()), **tables)


def _in_window(table: pa.Table | None, window: StepWindow) -> pa.Table | None:
    if table is None or not {"start_ts", "timestamp"} & set(table.column_names):
        return table
    start = int64_of(table["start_ts" if "start_ts" in table.column_names else "timestamp"])
    end = start
    if "end_ts" in table.column_names:
        end = int64_of(table["end_ts"])
    elif "duration" in table.column_names:
        end = start + int64_of(table["duration"])
    inside = (start < window.end_ts) & ((end > window.start_ts) | (start >= window.start_ts))
    return table.filter(pa.array(inside))


def _spread(values: list[tuple[int, int]]) -> Spread:
    ordered = sorted(value for _, value in values)
    highest = ordered[-1]
    return Spread(
        sum(ordered),
        ordered[0],
        ordered[(len(ordered) - 1) // 2],
        highest,
        next(number for number, value in values if value == highest),
    )


def _overlapping(instructions: Events | None, window: tuple[int, int]) -> Events | None:
    if instructions is None:
        return None
    start, end = instructions.start, instructions.end
    return instructions.rows((start < window[1]) & ((end > window[0]) | (start >= window[0])))


def _reach(events: Events | None) -> int:
    """How far the latest of the rows reaches."""
    if events is None or not len(events):
        return -END_OF_TIME
    return int(events["end"].max()) if "end" in events else int(events.start[-1])

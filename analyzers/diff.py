"""Two builds compared: each part, engine, opcode, line, layer, kernel, queue and byte, before, after and between."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from trnprof.analyzers.anatomy import Anatomy, CoreAnatomy
from trnprof.analyzers.configuration import ConfigurationDifference, compare_configurations, configuration_of
from trnprof.analyzers.dma_efficiency import measure_dma_efficiency
from trnprof.analyzers.hbm_traffic import measure_hbm_traffic
from trnprof.analyzers.name_matching import match_names, without_hashes
from trnprof.analyzers.opcodes import measure_opcodes
from trnprof.analyzers.source_cost import SourceKey, measure_source_cost
from trnprof.analyzers.verdict import Verdict, judge
from trnprof.errors import InputDataError
from trnprof.hardware import Hardware
from trnprof.intervals import union_lengths
from trnprof.profile import ENGINES, Profile, codes_of, int64_of

PARTS = (
    "runtime_overhead",
    "memory_floor",
    "busy_beyond_floor",
    "in_kernel_wait",
    "exposed_collective",
    "idle",
)

GROUPS = {
    "opcode": "engine time by opcode, waits too, ns",
    "wait": "in-kernel wait by who ended it, ns",
    "line": "engine time and waits by source line, ns",
    "layer": "engine time and waits by layer, ns",
    "kernel": "time in kernel calls, ns",
    "queue": "data time by DMA queue, ns",
}
"""What rows are compared, and their unit. A group's rows sum to figures of the anatomy."""

ScopeKind = Literal["kernel", "layer", "line"]


@dataclass(frozen=True)
class Scope:
    """One kernel, layer or line, to be judged beside the step."""

    kind: ScopeKind
    name: str


@dataclass(frozen=True)
class CaptureCosts:
    """What a comparison needs of one capture: small, whatever the capture's size."""

    label: str
    """How the user named it."""
    anatomy: Anatomy
    configuration: Mapping[str, str]
    groups: Mapping[str, tuple[Mapping[str, int], ...] | None]
    """By GROUPS, per core {name: ns}; None: not captured."""
    spills: tuple[tuple[int | None, int] | None, ...]
    """(saved, reloaded) bytes per core; None: not captured."""
    incomplete: bool
    """Records were lost: work is a lower bound, waits and idle are upper bounds."""

    @property
    def step_ns(self) -> int:
        """The longest window of the cores that ran."""
        ran = [core.window_ns for core in self.anatomy.cores if core.event_count]
        return max(ran or [core.window_ns for core in self.anatomy.cores])


@dataclass(frozen=True)
class Change:
    """One figure before and after; None: not captured."""

    before: int | None
    after: int | None

    @property
    def delta(self) -> int | None:
        """after - before; None where either is not captured."""
        return None if self.before is None or self.after is None else self.after - self.before


@dataclass(frozen=True)
class RowChange:
    """One opcode, line, kernel, ... of one core."""

    name: str
    """Untrusted."""
    state: str
    """same, renamed, new or gone."""
    before: int
    after: int
    names_before: tuple[str, ...] = ()
    """Where it was called something else."""

    @property
    def delta(self) -> int:
        """after - before."""
        return self.after - self.before


@dataclass(frozen=True)
class CoreDiff:
    """One physical core of the two captures that stand for their sides."""

    core: int
    window_ns: Change
    parts_ns: dict[str, Change]
    engines_ns: dict[str, Change]
    """Active time."""
    instruction_counts: dict[str, Change]
    hbm_bytes: dict[str, Change]
    """read, write, undirected, spill_save, spill_reload."""
    dma_bytes: Change
    groups: dict[str, tuple[RowChange, ...] | None]
    """Largest change first; None: not captured on a side."""


@dataclass(frozen=True)
class ScopeDiff:
    """A part of the step beside the whole: what it won, and what the step got."""

    scope: Scope
    names_before: tuple[str, ...]
    names_after: tuple[str, ...]
    verdict: Verdict
    """Of the scope's time on the core where it takes longest."""
    step_delta_ns: float
    scope_delta_ns: float

    @property
    def contradicts_step(self) -> bool:
        """The part moved one way and the step the other."""
        return self.step_delta_ns * self.scope_delta_ns < 0


@dataclass(frozen=True)
class Diff:
    """The comparison. With several captures a side `cores` compares the ones of median step time, real captures both."""

    configuration: tuple[ConfigurationDifference, ...]
    verdict: Verdict
    """Of the step time, over all captures."""
    before_label: str
    after_label: str
    before_steps_ns: tuple[int, ...]
    after_steps_ns: tuple[int, ...]
    cores: tuple[CoreDiff, ...]
    cores_before_only: tuple[int, ...]
    cores_after_only: tuple[int, ...]
    scope: ScopeDiff | None
    incomplete: tuple[str, ...]
    """Captures that lost records."""


def costs_for_diff(
    profile: Profile, anatomy: Anatomy, hardware: Hardware, *, label: str, incomplete: bool
) -> CaptureCosts:
    """What a comparison needs of one capture.

    Reads: what measure_opcodes, measure_source_cost, measure_dma_efficiency and measure_hbm_traffic read; kernels.
    """
    cores = range(len(anatomy.cores))
    opcodes, packets = measure_opcodes(profile, hardware), measure_dma_efficiency(profile, hardware)
    traffic = measure_hbm_traffic(profile, anatomy)
    groups: dict[str, tuple[Mapping[str, int], ...] | None] = {
        "opcode": None
        if opcodes is None
        else tuple({f"{row.engine} {row.opcode}": row.charged_ns for row in core.opcodes} for core in opcodes.cores),
        "wait": tuple({entry.producer: entry.wait_ns for entry in core.wait_producers} for core in anatomy.cores),
        "queue": None
        if packets is None
        else tuple({group.name: group.charged_ns for group in core.queues} for core in packets.cores),
        "kernel": None
        if profile.kernels is None
        else tuple(_kernel_time(profile, core.core) for core in profile.metadata.cores),
    }
    groups |= {"line": _source_costs(profile, "line"), "layer": _source_costs(profile, "layer")}
    spills = [traffic.cores[index].spill for index in cores]
    return CaptureCosts(
        label=label,
        anatomy=anatomy,
        configuration=configuration_of(profile.metadata, anatomy),
        groups={name: groups[name] for name in GROUPS},
        spills=tuple(None if spill is None else (spill.save_bytes, spill.reload_bytes) for spill in spills),
        incomplete=incomplete,
    )


def _source_costs(profile: Profile, key: SourceKey) -> tuple[Mapping[str, int], ...] | None:
    costs = measure_source_cost(profile, key)
    if costs is None:
        return None
    return tuple({row.name: row.busy_ns + row.wait_ns for row in core.rows} for core in costs.cores)


def _kernel_time(profile: Profile, core: int) -> dict[str, int]:
    kernels = profile.core_rows("kernels", core)
    assert kernels is not None
    codes, names = codes_of(kernels["name"])
    lengths = union_lengths(
        codes.astype(np.int64), int64_of(kernels["start_ts"]), int64_of(kernels["end_ts"]), len(names)
    )
    return dict(zip(names, lengths.tolist(), strict=True))


def compare(
    before: Sequence[CaptureCosts],
    after: Sequence[CaptureCosts],
    *,
    bar_share: float,
    paired: bool | None = None,
    scope: Scope | None = None,
) -> Diff:
    """Compare one capture or several a side.

    bar_share: the smallest change of the step time that counts. paired: see trnprof.analyzers.verdict.judge.

    Raises: InputDataError if a scope is in none of a side's captures, or was not captured.
    """
    steps = [capture.step_ns for capture in before], [capture.step_ns for capture in after]
    verdict = judge(*steps, bar_share=bar_share, paired=paired)
    first, second = _median_capture(before), _median_capture(after)
    cores_before = {core.core: index for index, core in enumerate(first.anatomy.cores)}
    cores_after = {core.core: index for index, core in enumerate(second.anatomy.cores)}
    return Diff(
        configuration=compare_configurations(
            [capture.configuration for capture in before],  # type: ignore[misc]
            [capture.configuration for capture in after],  # type: ignore[misc]
        ),
        verdict=verdict,
        before_label=first.label,
        after_label=second.label,
        before_steps_ns=tuple(steps[0]),
        after_steps_ns=tuple(steps[1]),
        cores=tuple(
            _core_diff(first, cores_before[core], second, cores_after[core])
            for core in sorted(cores_before.keys() & cores_after.keys())
        ),
        cores_before_only=tuple(sorted(cores_before.keys() - cores_after.keys())),
        cores_after_only=tuple(sorted(cores_after.keys() - cores_before.keys())),
        scope=None if scope is None else _scope_diff(before, after, scope, verdict, bar_share, paired),
        incomplete=tuple(capture.label for capture in (*before, *after) if capture.incomplete),
    )


def _median_capture(captures: Sequence[CaptureCosts]) -> CaptureCosts:
    """The capture of median step time, the lower one of two: its figures were measured together, and so add up."""
    order = sorted(range(len(captures)), key=lambda index: (captures[index].step_ns, index))
    return captures[order[(len(order) - 1) // 2]]


def _core_diff(before: CaptureCosts, index_before: int, after: CaptureCosts, index_after: int) -> CoreDiff:
    first, second = before.anatomy.cores[index_before], after.anatomy.cores[index_after]

    def change(figure: Callable[[CoreAnatomy], int | None]) -> Change:
        return Change(figure(first), figure(second))

    groups: dict[str, tuple[RowChange, ...] | None] = {}
    for name in GROUPS:
        sides = before.groups[name], after.groups[name]
        groups[name] = (
            None if sides[0] is None or sides[1] is None else row_changes(sides[0][index_before], sides[1][index_after])
        )
    spill_before, spill_after = before.spills[index_before], after.spills[index_after]
    hbm = {
        side: change(lambda core, side=side: None if core.hbm is None else getattr(core.hbm, f"{side}_bytes"))  # type: ignore[misc]
        for side in ("read", "write", "undirected")
    }
    hbm["spill_save"] = Change(spill_before and spill_before[0], spill_after and spill_after[0])
    hbm["spill_reload"] = Change(spill_before and spill_before[1], spill_after and spill_after[1])
    return CoreDiff(
        core=first.core,
        window_ns=change(lambda core: core.window_ns),
        parts_ns={part: change(lambda core, part=part: getattr(core.parts, f"{part}_ns")) for part in PARTS},  # type: ignore[misc]
        engines_ns={name: change(lambda core, name=name: core.engines[name].active_ns) for name in ENGINES},  # type: ignore[misc]
        instruction_counts={
            name: change(lambda core, name=name: core.engines[name].instruction_count)  # type: ignore[misc]
            for name in ENGINES
        },
        hbm_bytes=hbm,
        dma_bytes=change(lambda core: None if core.dma is None else core.dma.bytes),
        groups=groups,
    )


def row_changes(before: Mapping[str, int], after: Mapping[str, int]) -> tuple[RowChange, ...]:
    """Rows of two sides matched by name, the largest change first; over the rows before and after sum to the sides'."""
    rows = []
    for match in match_names(before, after):
        state = "renamed" if match.renamed else "new" if not match.before else "gone" if not match.after else "same"
        rows.append(
            RowChange(
                match.name,
                state,
                sum(before[name] for name in match.before),
                sum(after[name] for name in match.after),
                match.before if match.renamed else (),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-abs(row.delta), -row.after, row.name)))


def _scope_diff(
    before: Sequence[CaptureCosts],
    after: Sequence[CaptureCosts],
    scope: Scope,
    step: Verdict,
    bar_share: float,
    paired: bool | None,
) -> ScopeDiff:
    names_before, times_before = _scope_times(before, scope)
    names_after, times_after = _scope_times(after, scope)
    verdict = judge(times_before, times_after, bar_share=bar_share, paired=paired)
    return ScopeDiff(
        scope,
        names_before,
        names_after,
        verdict,
        step_delta_ns=step.after_ns - step.before_ns,
        scope_delta_ns=verdict.after_ns - verdict.before_ns,
    )


def _scope_times(captures: Sequence[CaptureCosts], scope: Scope) -> tuple[tuple[str, ...], list[int]]:
    """(the names found, its time in each capture on the core where it takes longest)."""
    found: dict[str, None] = {}
    times = []
    for capture in captures:
        cores = capture.groups[scope.kind]
        if cores is None:
            raise InputDataError(
                f"no {scope.kind} is known in this capture, so --scope {scope.kind}:... has nothing to look at; "
                "`trnprof info` lists what the capture has",
                path=capture.label,
            )
        known = sorted({name for core in cores for name in core})
        # Another build's name of it may carry another hash.
        names = [name for name in known if name == scope.name] or [
            name for name in known if without_hashes(name) == without_hashes(scope.name)
        ]
        if not names:
            near = [name for name in known if scope.name.lower() in name.lower()] or known
            more = f" and {len(near) - 5} more" if len(near) > 5 else ""
            raise InputDataError(
                f"no {scope.kind} named {scope.name!r}; there are: {', '.join(near[:5]) or 'none'}{more}",
                path=capture.label,
            )
        found |= dict.fromkeys(names)
        times.append(max(sum(core.get(name, 0) for name in names) for core in cores))
        if not times[-1]:
            raise InputDataError(f"the {scope.kind} {scope.name!r} takes no time in this capture", path=capture.label)
    return tuple(found), times

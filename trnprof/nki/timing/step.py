"""Several modelled kernels in a row, with the collectives between them: one decode step of a rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trnprof.analyzers.predicted_dma import TimeRange
from trnprof.errors import InputDataError, UsageError
from trnprof.hardware.instruction_costs import Case, InstructionCosts, load_instruction_costs
from trnprof.nki.recording import Recording
from trnprof.nki.timing.model import KernelModel, model_recording
from trnprof.profile import Profile, TensorSize, make_table

MAX_ROWS = 20_000_000
"""Rows of one table of a step: about 2 GB; a longer step is refused."""

_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute")

StepEntry = tuple[KernelModel | Recording, str, int]
"""(a kernel's model or recording, the name of its part of the step, how often it runs)."""


@dataclass(frozen=True)
class StepCollective:
    """A collective after every run of one part of the step."""

    operation: str
    """all_reduce, all_gather, reduce_scatter, all_to_all or permute."""
    byte_count: int
    """Payload of a rank."""


@dataclass(frozen=True)
class Layout:
    """How the step is spread over ranks: which parts end in a collective. Without any a rank is alone."""

    name: str
    rank_count: int = 1
    collectives: Mapping[str, StepCollective] | None = None
    """By part of the step."""

    def after(self, part: str) -> StepCollective | None:
        """The collective after a part; None: none, or nobody to talk to."""
        return (self.collectives or {}).get(part) if self.rank_count > 1 else None


SINGLE = Layout("single")


def tensor_parallel(rank_count: int, hidden_bytes: int, parts: Sequence[str]) -> Layout:
    """`parts` end in an all-reduce of the hidden state, as after attention and after the feed-forward part of a layer."""
    reduced = StepCollective("all_reduce", hidden_bytes)
    return Layout(f"tensor parallel over {rank_count} ranks", rank_count, dict.fromkeys(parts, reduced))


def model_step(
    entries: Sequence[StepEntry],
    *,
    layout: Layout = SINGLE,
    case: Case = Case.MID,
    order: Sequence[int] | None = None,
) -> Profile:
    """The step as a Profile of provenance `modelled`, one window with every kernel in it.

    entries: the kernels of one layer in order, each with its count: they run in turn, first every entry once, then those
             with more runs left again, and so on. A recording is modelled first (record with exact=True).
    order:   another order, as places in `entries`; each stands there as often as it runs.
    Kernels exchange data through HBM, so that each begins when the one before has ended, after the boundary that
    instruction_costs.toml guesses; a collective's alpha and bandwidth are its ranges too, and nothing hides it.

    Raises: UsageError for an unknown collective, kernels of different generations, an order that is not one of the
            entries, or a step too long to lay out;
            InputDataError for a kernel that is not laid out whole.
    """
    models = _models(entries)
    costs = load_instruction_costs(models[0].program.generation)
    profiles = [_named(model.profile(case), part) for model, (_, part, _) in zip(models, entries, strict=True)]
    order = _order(entries) if order is None else _checked(order, entries)
    rows = sum(_moved(profiles[place].dma_packets, 0).num_rows for place in order)
    if rows > MAX_ROWS:
        raise UsageError(
            f"the step has {rows:,} DMA packets, more than the {MAX_ROWS:,} that are laid out; take fewer layers"
        )
    boundary_ns = round(costs["fixed.kernel_boundary_ns"].at(case))
    at = 0
    starts: list[int] = []
    collectives: list[tuple[int, int, StepCollective]] = []
    for place in order:
        starts.append(at)
        at += profiles[place].metadata.cores[0].window_end_ts
        after = layout.after(entries[place][1])
        if after is not None:
            length = collective_ns(after, costs, case)
            collectives.append((at, at + length, after))
            at += length
        at += boundary_ns
    end = at - boundary_ns if order else 0
    return _joined(
        profiles, [entry[1] for entry in entries], order, starts, collectives, end, _tensors(models, entries)
    )


def step_range(entries: Sequence[StepEntry], *, layout: Layout = SINGLE) -> TimeRange:
    """The step's time as low, mid and high, ns: the sum of its kernels, boundaries and collectives."""
    models = _models(entries)
    costs = load_instruction_costs(models[0].program.generation)
    totals = {}
    for case in Case:
        kernels = sum(
            getattr(model.total_ns, case.value) * count for model, (_, _, count) in zip(models, entries, strict=True)
        )
        runs = sum(count for _, _, count in entries)
        boundaries = max(runs - 1, 0) * round(costs["fixed.kernel_boundary_ns"].at(case))
        shared = sum(
            collective_ns(after, costs, case) * count
            for _, part, count in entries
            if (after := layout.after(part)) is not None
        )
        totals[case] = kernels + boundaries + shared
    return TimeRange(totals[Case.LOW], totals[Case.MID], totals[Case.HIGH])


def collective_ns(collective: StepCollective, costs: InstructionCosts, case: Case) -> int:
    """alpha + bytes / bandwidth.

    Raises: UsageError for an operation without an alpha.
    """
    if collective.operation not in _COLLECTIVES:
        raise UsageError(f"no cost for a collective {collective.operation!r}; known: {', '.join(_COLLECTIVES)}")
    alpha = costs[f"collective.{collective.operation}_alpha_ns"].at(case)
    return round(alpha + collective.byte_count / costs["collective.bytes_per_ns"].at(case))


def step_traffic(entries: Sequence[StepEntry], roles: Mapping[str, str]) -> dict[str, int]:
    """HBM bytes that the step's kernels move, by role: what is weights, state, cache or activations.

    roles: the role of a parameter or result, by "part.name" or by its name alone; others are "activations".
    """
    found: dict[str, int] = {}
    for model, (_, part, count) in zip(_models(entries), entries, strict=True):
        for tensor in model.program.tensors:
            role = roles.get(f"{part}.{tensor.name}", roles.get(tensor.name, "activations"))
            found[role] = found.get(role, 0) + count * (tensor.read_bytes + tensor.written_bytes)
    return dict(sorted(found.items()))


def _models(entries: Sequence[StepEntry]) -> list[KernelModel]:
    if not entries:
        raise UsageError("a step needs at least one kernel")
    known: dict[int, KernelModel] = {}
    models = []
    for kernel, name, count in entries:
        if count < 1:
            raise UsageError(f"{name} runs {count} times; give a count of at least 1")
        model = known.get(id(kernel))
        if model is None:
            model = known[id(kernel)] = kernel if isinstance(kernel, KernelModel) else model_recording(kernel)
        if model.extrapolated:
            raise InputDataError(f"{name} is not laid out whole: record it with exact=True, or with smaller shapes")
        models.append(model)
    generations = {(model.program.generation, model.program.core_count) for model in models}
    if len(generations) > 1:
        raise UsageError("the kernels of a step are for one generation and one number of cores each")
    return models


def _order(entries: Sequence[StepEntry]) -> list[int]:
    """The entries in turn."""
    rounds = max(count for _, _, count in entries)
    return [place for turn in range(rounds) for place, (_, _, count) in enumerate(entries) if turn < count]


def _checked(order: Sequence[int], entries: Sequence[StepEntry]) -> list[int]:
    counts = [0] * len(entries)
    for place in order:
        if not 0 <= place < len(entries):
            raise UsageError(f"the order names entry {place} of {len(entries)}")
        counts[place] += 1
    for (_, part, count), found in zip(entries, counts, strict=True):
        if count != found:
            raise UsageError(f"{part} runs {count} times and stands {found} times in the order")
    return list(order)


def _joined(
    profiles: list[Profile],
    names: list[str],
    order: list[int],
    starts: list[int],
    collectives: list[tuple[int, int, StepCollective]],
    end: int,
    tensors: tuple[TensorSize, ...],
) -> Profile:
    """All kernels' tables at their places, streams of instructions counted on."""
    first = profiles[0]
    cores = tuple(replace(core, window_end_ts=end) for core in first.metadata.cores)
    metadata = replace(first.metadata, cores=cores, has_step_markers=True, summary={}, tensors=tensors)
    tables = {
        name: _concatenated(
            [_moved(getattr(profiles[place], name), start) for place, start in zip(order, starts, strict=True)]
        )
        for name in ("instructions", "dma_packets", "semaphores")
    }
    numbers = [core.core for core in cores]
    waits = _collective_waits(collectives, tables["instructions"], numbers)
    instructions = _recounted(_concatenated([tables["instructions"], waits]))
    kernels: dict[str, list[object]] = {"start_ts": [], "end_ts": [], "name": [], "pcore_idx": []}
    for place, start in zip(order, starts, strict=True):
        for core in first.metadata.cores:
            kernels["start_ts"].append(start)
            kernels["end_ts"].append(start + profiles[place].metadata.cores[0].window_end_ts)
            kernels["name"].append(names[place])
            kernels["pcore_idx"].append(core.core)
    own = _concatenated(
        [_moved(profiles[place].collectives, start) for place, start in zip(order, starts, strict=True)]
    )
    between = make_table(
        "collectives",
        {
            "start_ts": [entry[0] for entry in collectives for _ in cores],
            "end_ts": [entry[1] for entry in collectives for _ in cores],
            "operation": [entry[2].operation for entry in collectives for _ in cores],
            "pcore_idx": [core.core for _ in collectives for core in cores],
            "op_id": [number for number in range(len(collectives)) for _ in cores],
            "input_size": [entry[2].byte_count for entry in collectives for _ in cores],
        },
    )
    throttle = _throttle(profiles, order, starts, end)
    return Profile(
        metadata=metadata,
        instructions=instructions,
        dma_packets=_sorted(tables["dma_packets"]),
        semaphores=_sorted(tables["semaphores"], "timestamp"),
        collectives=_sorted(_concatenated([own, between])),
        throttle=throttle,
        kernels=_sorted(make_table("kernels", dict(kernels))),
        sources=_concatenated([profiles[place].sources for place in sorted(set(order))]),
    )


def _named(profile: Profile, part: str) -> Profile:
    """The profile with call sites named after their part of the step: numbers repeat from kernel to kernel."""
    changed = {}
    for name in ("instructions", "sources"):
        table = getattr(profile, name)
        at = table.schema.get_field_index("kernel_instruction_name")
        names = table["kernel_instruction_name"].cast(pa.string())
        longer = pc.binary_join_element_wise(part, names, ".")
        named = pc.if_else(pc.equal(names, ""), names, longer).dictionary_encode()
        changed[name] = table.set_column(at, table.schema.field(at), named)
    return replace(profile, **changed)


def _moved(table: pa.Table | None, start_ns: int) -> pa.Table:
    assert table is not None
    for name in ("start_ts", "end_ts", "timestamp"):
        if name in table.column_names:
            at = table.schema.get_field_index(name)
            table = table.set_column(at, table.schema.field(at), pc.add(table[name], start_ns))
    for name in ("start_ps", "end_ps", "timestamp_ps"):
        if name in table.column_names:
            at = table.schema.get_field_index(name)
            table = table.set_column(at, table.schema.field(at), pc.add(table[name], 1000 * start_ns))
    return table


def _concatenated(tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()


def _sorted(table: pa.Table, by: str = "start_ts") -> pa.Table:
    return table.sort_by([("pcore_idx", "ascending"), (by, "ascending")])


def _recounted(table: pa.Table) -> pa.Table:
    """Instructions in order, every engine's stream counted from 0 through the whole step."""
    table = _sorted(table)
    engine = table["engine"].cast(pa.string()).to_numpy(zero_copy_only=False)
    core = table["pcore_idx"].to_numpy()
    place = np.zeros(len(engine), np.int32)
    for name in np.unique(engine).tolist():
        for number in np.unique(core).tolist():
            rows = np.flatnonzero((engine == name) & (core == number))
            place[rows] = np.arange(len(rows), dtype=np.int32)
    for column in ("pc", "compiler_pc"):
        at = table.schema.get_field_index(column)
        table = table.set_column(at, table.schema.field(at), pa.array(place, pa.int32()))
    return table


def _throttle(profiles: list[Profile], order: list[int], starts: list[int], end: int) -> pa.Table:
    """Each kernel's levels; limited wherever no kernel has one, since the tensor engine rests."""
    moved = [_moved(profiles[place].throttle, start) for place, start in zip(order, starts, strict=True)]
    table = _sorted(_concatenated(moved), "timestamp")
    if not table.num_rows:
        return table
    gaps: dict[str, list[object]] = {name: [] for name in ("timestamp", "duration", "k", "n", "type", "pcore_idx")}
    for core in sorted(set(table["pcore_idx"].to_pylist())):
        rows = table.filter(pc.equal(table["pcore_idx"], pa.scalar(core, pa.int16())))
        begin, length = rows["timestamp"].to_numpy(), rows["duration"].to_numpy()
        free = np.concatenate(([0], begin + length))
        for start, until in zip(free.tolist(), [*begin.tolist(), end], strict=True):
            if until > start:
                row = (start, until - start, 4, 8, "activity_1", core)
                for name, value in zip(gaps, row, strict=True):
                    gaps[name].append(value)
    return _sorted(_concatenated([table, make_table("throttle", dict(gaps))]), "timestamp")


def _collective_waits(collectives: list[tuple[int, int, StepCollective]], like: pa.Table, cores: list[int]) -> pa.Table:
    """The sync engine waits for every collective between kernels."""
    rows = [(start, end, core) for start, end, _ in collectives for core in cores]
    starts, ends, owners = (np.array([row[place] for row in rows], np.int64) for place in range(3))
    columns: dict[str, object] = {
        "start_ts": starts,
        "end_ts": ends,
        "start_ps": 1000 * starts,
        "end_ps": 1000 * ends,
        "pcore_idx": owners.astype(np.int16),
        "engine": ["sync"] * len(rows),
        "opcode": ["EVENT_SEMAPHORE"] * len(rows),
        "evt_wait_time_ns": np.zeros(len(rows), np.int64),
        "hbm_read_bytes": np.zeros(len(rows), np.int64),
        "hbm_write_bytes": np.zeros(len(rows), np.int64),
    }
    for field in like.schema:
        if field.name not in columns:
            columns[field.name] = pa.nulls(len(rows), field.type)
    return make_table("instructions", {name: columns[name] for name in like.column_names})


def _tensors(models: list[KernelModel], entries: Sequence[StepEntry]) -> tuple[TensorSize, ...]:
    """What the step needs: every kernel's inputs and outputs, as often as it runs (each layer has its own)."""
    return tuple(
        TensorSize(name=f"{part}.{tensor.name}", kind=tensor.kind, size_bytes=count * tensor.size_bytes)
        for model, (_, part, count) in zip(models, entries, strict=True)
        for tensor in model.program.tensors
    )

"""Engines and opcodes: what each kind of instruction cost, and how much of it is the fixed cost of short instructions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trnprof.analyzers.account_sets import InstructionRows
from trnprof.analyzers.anatomy import SHORT_INSTRUCTION_NS
from trnprof.hardware import Hardware
from trnprof.intervals import charged_lengths, union_lengths
from trnprof.profile import ENGINES, Metadata, Profile


@dataclass(frozen=True)
class IssueCost:
    """What one instruction of an engine costs however little it does."""

    low_ns: float
    """The minimum issue interval of independent instructions."""
    high_ns: float
    """A small instruction that depends on the one before."""
    basis: str
    """The two as published, each with its kind."""


@dataclass(frozen=True)
class FixedCost:
    """The part of measured time that is fixed cost: instructions x the engine's issue cost, as a range."""

    low_ns: int
    high_ns: int
    """Neither is more than the instructions took: where one is shorter than the issue cost, its own time counts."""


@dataclass(frozen=True)
class OpcodeCost:
    """One opcode on one engine of one core."""

    engine: str
    opcode: str
    """As in the capture; untrusted."""
    waits: bool
    """A wait opcode: its time is no compute."""
    instruction_count: int
    total_ns: int
    """Sum of durations (instructions of one engine may overlap)."""
    active_ns: int
    """Union of its own intervals."""
    charged_ns: int
    """Its share of the engine's active time; where instructions overlap, the one that began first is charged. Over the
    opcodes that do not wait these sum to the engine's active_ns, over those that do to its blocked_ns."""
    short_instruction_count: int
    """Below SHORT_INSTRUCTION_NS; 0 for wait opcodes."""
    short_ns: int
    """Sum of their durations."""
    fixed_cost: FixedCost | None
    """Of its short instructions; None for wait opcodes and for engines whose issue cost nobody has published."""

    @property
    def mean_ns(self) -> float:
        """Mean duration; an opcode in the result has at least one instruction."""
        return self.total_ns / self.instruction_count


@dataclass(frozen=True)
class CoreOpcodes:
    """One physical core's opcodes, dearest first."""

    core: int
    opcodes: tuple[OpcodeCost, ...]


@dataclass(frozen=True)
class Opcodes:
    """Every core's opcodes, and the issue costs that the fixed costs were computed with."""

    cores: tuple[CoreOpcodes, ...]
    issue_costs: dict[str, IssueCost]
    """By engine; an engine without a published figure is absent."""
    issue_cost_source: str


def measure_opcodes(profile: Profile, hardware: Hardware) -> Opcodes | None:
    """What each opcode cost on each engine of each core; None where instructions were not captured.

    Reads:  profile.instructions (start_ts, end_ts, engine, opcode), clipped to each core's window; ns.
    The counts of an engine sum to the anatomy's instruction_count, the charged times to its active_ns and blocked_ns.
    """
    if profile.instructions is None:
        return None
    costs = issue_costs(hardware, profile.metadata)
    cores = []
    for core in profile.metadata.cores:
        rows = InstructionRows(profile.core_rows("instructions", core.core), (core.window_start_ts, core.window_end_ts))
        found = [cost for engine in ENGINES for cost in _engine_opcodes(rows, engine, costs.get(engine))]
        found.sort(key=lambda cost: (-cost.charged_ns, -cost.instruction_count, cost.engine, cost.opcode))
        cores.append(CoreOpcodes(core.core, tuple(found)))
    return Opcodes(tuple(cores), costs, _issue_cost_source(hardware))


def _issue_cost_source(hardware: Hardware) -> str:
    """Where the figures of issue_costs come from."""
    paths = ("min_issue_cycles", "static_overhead_cycles", "dependent_small_ns")
    found = [entry for path in paths if (entry := hardware.get(f"instruction.{path}")) is not None]
    tags = [entry.source.partition(";")[0] for entry in found]
    return "; ".join(dict.fromkeys(hardware.sources.get(tag, tag) for tag in tags))


def issue_costs(hardware: Hardware, metadata: Metadata) -> dict[str, IssueCost]:
    """Issue cost by engine: cycles of the hardware's table at the capture's clock, or at the table's.

    The minimum is `instruction.min_issue_cycles`; the upper end is what was measured or printed for a small dependent
    instruction, else the minimum + `instruction.static_overhead_cycles`. The matrix engine's short instructions overlap,
    so its upper end is its minimum.
    """
    minimum = hardware.get("instruction.min_issue_cycles")
    overhead = hardware.get("instruction.static_overhead_cycles")
    dependent = hardware.get("instruction.dependent_small_ns")
    if minimum is None or overhead is None:
        return {}
    assert isinstance(minimum.value, dict) and isinstance(overhead.value, int)
    known = dependent.value if dependent is not None and isinstance(dependent.value, dict) else {}
    costs = {}
    for engine in ENGINES:
        cycles = minimum.value.get(engine)
        if cycles is None:
            continue
        clock = metadata.clock_hz.get(engine)
        if not clock:
            listed = hardware.get(f"clock_hz.{engine}")
            assert listed is not None and isinstance(listed.value, int)
            clock = listed.value
        low = cycles * 1e9 / clock
        basis = f"{cycles} cycles ({minimum.kind})"
        if engine == "tensor":
            costs[engine] = IssueCost(low, low, basis)
        elif engine in known:
            assert dependent is not None
            high = max(low, float(known[engine]))
            costs[engine] = IssueCost(low, high, f"{basis} to {known[engine]} ns ({dependent.kind})")
        else:
            high = (cycles + overhead.value) * 1e9 / clock
            costs[engine] = IssueCost(low, high, f"{basis} to {cycles + overhead.value} cycles ({overhead.kind})")
    return costs


def _engine_opcodes(rows: InstructionRows, engine: str, cost: IssueCost | None) -> list[OpcodeCost]:
    own = rows.of(engine)
    start, end, opcode, waits = rows.start[own], rows.end[own], rows.opcode[own], rows.waits[own]
    length, size = end - start, len(rows.opcodes)
    charged = np.zeros(len(start), np.int64)
    # Waiting and working are two accounts: a wait under a running instruction takes nothing from it.
    for chosen in (waits, ~waits):
        charged[chosen] = charged_lengths(start[chosen], end[chosen])
    short = ~waits & (length < SHORT_INSTRUCTION_NS)

    def by_opcode(values: np.ndarray) -> np.ndarray:
        return np.bincount(opcode, weights=values, minlength=size).round().astype(np.int64)

    counts = np.bincount(opcode, minlength=size)
    total, shares, active = by_opcode(length), by_opcode(charged), union_lengths(opcode, start, end, size)
    short_counts, short_ns = by_opcode(short), by_opcode(np.where(short, length, 0))
    low = high = np.zeros(size, np.int64)
    if cost is not None:
        low, high = (by_opcode(np.where(short, np.minimum(length, ns), 0)) for ns in (cost.low_ns, cost.high_ns))
    waiting = by_opcode(waits) > 0
    return [
        OpcodeCost(
            engine=engine,
            opcode=rows.opcodes[code],
            waits=bool(waiting[code]),
            instruction_count=int(counts[code]),
            total_ns=int(total[code]),
            active_ns=int(active[code]),
            charged_ns=int(shares[code]),
            short_instruction_count=int(short_counts[code]),
            short_ns=int(short_ns[code]),
            fixed_cost=None if cost is None or waiting[code] else FixedCost(int(low[code]), int(high[code])),
        )
        for code in np.flatnonzero(counts).tolist()
    ]

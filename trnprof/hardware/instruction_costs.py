"""The constants of the modelled timeline: what instructions, hand-offs and DMAs cost, each as low, mid and high."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any

from trnprof.errors import UsageError
from trnprof.hardware import load_hardware

GROUPS = ("fixed", "dma", "collective", "tensor_engine", "throttle", "fast_modes", "two_inputs")
"""Tables of a generation beside its engines."""


class Case(StrEnum):
    """Which end of every bracket a schedule takes."""

    LOW = "low"
    MID = "mid"
    HIGH = "high"


@dataclass(frozen=True)
class Bracket:
    """One constant: the fastest that its sources allow, what they make likely, the slowest."""

    name: str
    """Dotted path in the table: dma.hwdge_issue_ns."""
    low: float
    mid: float
    high: float
    unit: str
    source: str
    kind: str
    """documented, measured, derived or guess."""
    note: str = ""

    def at(self, case: Case) -> float:
        """The value for one schedule."""
        return float(getattr(self, case.value))


@dataclass(frozen=True)
class EngineCosts:
    """What every instruction of one engine costs beside its work."""

    name: str
    clock_hz: int
    constants: dict[str, Bracket]
    """issue_floor, issue_overhead, latency_overhead, pointer_issue, pointer_latency (cycles), semaphore_start (ns)."""

    def cycles_ps(self, cycles: float) -> int:
        """Cycles of this engine as whole picoseconds."""
        return round(cycles * 1e12 / self.clock_hz)


@dataclass(frozen=True)
class InstructionCost:
    """How one instruction's work is computed."""

    name: str
    formula: str
    """An id of trnprof.nki.timing.formulas."""
    constants: dict[str, Bracket]
    mode: str = ""
    """fast_modes or two_inputs: the table of factors that its operands choose from; empty: none."""
    half_16bit: bool = False
    """Half the work where all operands have two bytes."""
    dynamic: bool = False
    """Its address comes from a register: never below fixed.dynamic_floor_cycles."""
    unknown: bool = False
    """No source says what it costs: the bracket is a guess, and the result counts it."""
    source: str = ""
    kind: str = ""
    note: str = ""


@dataclass(frozen=True)
class InstructionCosts:
    """The table of one generation."""

    generation: str
    engines: dict[str, EngineCosts]
    """tensor, vector, scalar, gpsimd, sync."""
    constants: dict[str, Bracket]
    """By group and name: dma.hwdge_issue_ns."""
    instructions: dict[str, InstructionCost]
    base_clock_hz: int

    def __getitem__(self, path: str) -> Bracket:
        return self.constants[path]

    def ps(self, path: str, case: Case) -> int:
        """A constant in ns as whole picoseconds."""
        return round(self.constants[path].at(case) * 1000)

    def entries(self) -> tuple[Bracket, ...]:
        """Every constant of the generation, engines' too, in the order of their names."""
        found = {**self.constants}
        for engine in self.engines.values():
            found |= {bracket.name: bracket for bracket in engine.constants.values()}
        return tuple(found[name] for name in sorted(found))


@cache
def load_instruction_costs(generation: str) -> InstructionCosts:
    """The table of `generation`: trn1, trn2 or trn3.

    Raises: UsageError for any other name.
    """
    document = tomllib.loads(
        resources.files("trnprof.hardware").joinpath("instruction_costs.toml").read_text(encoding="utf-8")
    )
    if generation not in document or generation in ("sources", "instruction"):
        known = [name for name in document if name not in ("sources", "instruction")]
        raise UsageError(f"no instruction costs for {generation!r}; known: {', '.join(sorted(known))}")
    reader = _Reader(document["sources"])
    own = document[generation]
    base = document.get(own.get("taken_over_from", ""), {})
    hardware = load_hardware(generation)
    clocks = {name: _clock_hz(hardware, name) for name in ("tensor", "vector", "scalar", "gpsimd", "base")}
    engines = {
        name: EngineCosts(
            name,
            clocks["base" if name == "sync" else name],
            {
                key: reader.bracket(f"engine.{name}.{key}", *_own_or_taken(own, base, "engine", name, key))
                for key in (base or own)["engine"][name]
            },
        )
        for name in (base or own)["engine"]
    }
    constants = {
        f"{group}.{key}": reader.bracket(f"{group}.{key}", *_own_or_taken(own, base, group, key))
        for group in GROUPS
        for key in (base or own)[group]
    }
    instructions = {name: reader.instruction(name, entry) for name, entry in document["instruction"].items()}
    return InstructionCosts(generation, engines, constants, instructions, clocks["base"])


def _clock_hz(hardware: Any, name: str) -> int:
    quantity = hardware.get(f"clock_hz.{name}") or hardware["clock_hz.scalar"]
    return int(quantity.value)


def _own_or_taken(own: dict[str, Any], base: dict[str, Any], *path: str) -> tuple[dict[str, Any], bool]:
    """(the entry, was it taken over from another generation?)."""
    found: Any = own
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    if found is not None:
        return found, False
    found = base
    for key in path:
        found = found[key]
    return found, True


class _Reader:
    """Entries of the file as brackets, their sources spelled out."""

    def __init__(self, sources: dict[str, str]) -> None:
        self._sources = sources
        self._tags = re.compile("|".join(rf"\b{tag}\b" for tag in sorted(sources, key=len, reverse=True)))

    def bracket(self, name: str, entry: dict[str, Any], taken_over: bool = False) -> Bracket:
        low, mid, high = (float(entry.get(case.value, entry.get("value", 0))) for case in Case)
        source = self._spelled(str(entry["source"]))
        if taken_over:
            source = f"trn2's figure taken over ({source})"
        kind = "guess" if taken_over else str(entry["kind"])
        return Bracket(name, low, mid, high, str(entry["unit"]), source, kind, str(entry.get("note", "")))

    def instruction(self, name: str, entry: dict[str, Any]) -> InstructionCost:
        constants = {
            key: self.bracket(f"instruction.{name}.{key}", value)
            for key, value in entry.items()
            if isinstance(value, dict)
        }
        first = next(iter(constants.values()), None)
        return InstructionCost(
            name,
            str(entry["formula"]),
            constants,
            mode=str(entry.get("mode", "")),
            half_16bit=bool(entry.get("half_16bit", False)),
            dynamic=bool(entry.get("dynamic", False)),
            unknown=bool(entry.get("unknown", False)),
            source=self._spelled(str(entry.get("source", ""))) or (first.source if first else ""),
            kind=str(entry.get("kind", "")) or (first.kind if first else ""),
            note=str(entry.get("note", "")),
        )

    def _spelled(self, text: str) -> str:
        """The source text with its tags spelled out."""
        return self._tags.sub(lambda found: self._sources[found[0]], text)

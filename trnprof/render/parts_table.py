"""Windows and their parts as rows of a table that fits 80 columns: one unit for all, named once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trnprof.analyzers.anatomy import Parts

PART_HEADERS = ("window", "overhead", "floor", "busy", "wait", "coll", "idle")
"""In the order of Parts' fields; busy is beyond the floor, coll the exposed collectives."""


@dataclass(frozen=True)
class Unit:
    """A unit of time."""

    name: str
    ns: int


_UNITS = (Unit("s", 10**9), Unit("ms", 10**6), Unit("us", 10**3), Unit("ns", 1))


def unit_for(times_ns: Iterable[int]) -> Unit:
    """The largest unit of which the longest time has at least one."""
    longest = max(times_ns, default=0)
    return next((unit for unit in _UNITS if longest >= unit.ns), _UNITS[-1])


def time_cell(ns: int | None, unit: Unit) -> str:
    """A time in the unit, three decimals; n/a where it is not captured."""
    if ns is None:
        return "n/a"
    return f"{ns:,}" if unit.ns == 1 else f"{ns / unit.ns:,.3f}"


def part_cells(window_ns: int, parts: Parts, unit: Unit) -> list[str]:
    """The window and its parts, under PART_HEADERS."""
    return [time_cell(value, unit) for value in (window_ns, *vars(parts).values())]

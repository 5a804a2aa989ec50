"""Everything that stands behind an anatomy, measured together: opcodes, DMA efficiency, roofline, bounds, cost by source."""

from __future__ import annotations

from dataclasses import dataclass

from trnprof.analyzers.anatomy import Anatomy
from trnprof.analyzers.bounds import Bounds, measure_bounds
from trnprof.analyzers.dma_efficiency import DmaEfficiency, measure_dma_efficiency
from trnprof.analyzers.opcodes import Opcodes, measure_opcodes
from trnprof.analyzers.roofline import Roofline, measure_roofline
from trnprof.analyzers.source_cost import SourceCosts, SourceKey, measure_source_cost
from trnprof.hardware import Hardware
from trnprof.profile import Profile

_SOURCE_KEYS: tuple[SourceKey, ...] = ("line", "layer", "kernel", "instruction")


@dataclass(frozen=True)
class Detail:
    """One capture; each entry has the anatomy's cores in the anatomy's order, None is not captured."""

    opcodes: Opcodes | None
    dma: DmaEfficiency | None
    roofline: Roofline
    bounds: Bounds
    sources: SourceCosts | None
    """By the finest key that the capture names: source line, else layer, kernel, compiler instruction."""


def measure_detail(profile: Profile, anatomy: Anatomy, hardware: Hardware) -> Detail:
    """All of it. anatomy: the account of the same profile."""
    return Detail(
        measure_opcodes(profile, hardware),
        measure_dma_efficiency(profile, hardware),
        measure_roofline(profile, anatomy, hardware),
        measure_bounds(profile, anatomy, hardware),
        _finest_sources(profile),
    )


def _finest_sources(profile: Profile) -> SourceCosts | None:
    found = None
    for key in _SOURCE_KEYS:
        costs = measure_source_cost(profile, key)
        if costs is not None and any(core.attributed_share for core in costs.cores):
            return costs
        found = found or costs
    return found

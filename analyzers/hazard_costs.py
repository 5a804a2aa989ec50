"""What a hazard costs: time under the DMA model, and its share of the whole prediction."""

from __future__ import annotations

from dataclasses import dataclass

from trnprof.analyzers.predicted_dma import PredictedDma, PredictedLine
from trnprof.findings import Finding
from trnprof.hardware.dma_model import DmaModel
from trnprof.nki.hazard_codes import HAZARD_CODES

SATURATING_ELEMENT_BYTES = 4096
"""Elements of this size reach the bandwidth: 8 ns of 158 are the packet's own."""


@dataclass(frozen=True)
class HazardCosts:
    """A prediction and the model it was made with."""

    predicted: PredictedDma
    model: DmaModel

    @property
    def total_ns(self) -> int | None:
        """The whole kernel's mid time; None: unknown trip counts, or nothing moves."""
        total = self.predicted.total
        return total.time_ns.mid if total and total.time_ns.mid else None

    def ideal_ns(self, moved: int) -> float:
        """Time of `moved` bytes in elements that saturate, on all engines."""
        packet_ns = self.model["packet_overhead_ns"] + SATURATING_ELEMENT_BYTES / self.model["packet_rate_bytes_per_ns"]
        return moved / (self.model["engine_count"] * SATURATING_ELEMENT_BYTES) * packet_ns

    def data_ns(self, line: PredictedLine) -> float:
        """The line's mid time without what issuing its DMAs costs."""
        cores = max(self.predicted.lnc, 1)
        return max(0.0, line.time_ns.mid - line.dma_count / cores * self.model["issue_ns"])


def finding(code: str, costs: HazardCosts, cost_ns: float | None, *, message: str, **evidence: object) -> Finding:
    """A finding whose cost the model gives (None: it gives none)."""
    known = HAZARD_CODES[code]
    cost = None if cost_ns is None else round(cost_ns)
    total = costs.total_ns
    share = round(cost / total, 4) if cost is not None and total else None
    return Finding(code, known.title, cost, share, {**evidence, "message": message}, known.advice)


def device_finding(code: str, *, message: str, **evidence: object) -> Finding:
    """A finding about what fails or goes wrong on the device, which has no cost in time."""
    known = HAZARD_CODES[code]
    return Finding(code, known.title, None, None, {**evidence, "message": message}, known.advice)

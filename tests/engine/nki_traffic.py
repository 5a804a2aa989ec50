"""What an engine kernel moves and what in it fails on a device, found as `trnprof dma-predict` finds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.nki.running import settings_for
from trnprof.analyzers.dma_prediction import predict_dma
from trnprof.analyzers.hazards import find_hazards
from trnprof.engine.kernels.nki.bridge import FOLDER, interpreted_kernel
from trnprof.nki.trace import trace


@dataclass(frozen=True)
class KernelTraffic:
    """One kernel's call on tensors without values."""

    hbm_read_bytes: int
    hbm_write_bytes: int
    hazards: tuple[str, ...]
    """The HAZ findings."""


def kernel_traffic(file: str, kernel: str, arguments: dict[str, Any]) -> KernelTraffic:
    """Record the kernel of an NKI file and predict its DMAs on trn2."""
    settings = settings_for()
    recording = trace(interpreted_kernel(FOLDER / file, kernel), (), arguments)
    predicted = predict_dma(
        recording,
        settings.model,
        sbuf_bytes_per_partition=settings.sbuf_bytes_per_partition,
        psum_bytes_per_partition=settings.psum_bytes_per_partition,
    )
    findings = find_hazards(recording, predicted, settings.model)
    hazards = tuple(f"{one.code} {one.evidence}" for one in findings if one.code.startswith("HAZ"))
    return KernelTraffic(predicted.total.hbm_read_bytes, predicted.total.hbm_write_bytes, hazards)

"""Predict a kernel given as text, the way the command does: in the guarded child."""

from __future__ import annotations

import contextlib
import os
import textwrap
from pathlib import Path

from trnprof.findings import Finding
from trnprof.hardware import load_hardware
from trnprof.hardware.dma_model import load_dma_model
from trnprof.nki.discovery import find_kernels, parse_source
from trnprof.nki.guard import GuardedResult, KernelRun, Limits, predict_guarded
from trnprof.nki.inputs import parse_inputs
from trnprof.nki.prediction_task import PredictionSettings

HEADER = """
import nki
import nki.isa as nisa
import nki.language as nl
"""
FIRST_GENERATION = """
from neuronxcc import nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
"""


def settings_for(target: str = "trn2", calibration: Path | None = None) -> PredictionSettings:
    """The built-in model and memories of a generation."""
    table = load_hardware(target)
    return PredictionSettings(
        load_dma_model(target, calibration),
        int(table["sbuf.partition_bytes"].value),  # type: ignore[call-overload]
        int(table["psum.partition_bytes"].value),  # type: ignore[call-overload]
    )


def kernel_run(folder: Path, source: str, *inputs: str, target: str = "trn2", **options: object) -> KernelRun:
    """A run of the first kernel in `source`; inputs as --input texts, options as parse_inputs takes them."""
    path = folder / "kernel.py"
    path.write_text(textwrap.dedent(source))
    name = find_kernels(parse_source(path.read_text(), path))[0].name
    return KernelRun(
        kernel_file=path,
        kernel=str(options.pop("kernel", name)),
        inputs=parse_inputs(inputs=inputs, **options),  # type: ignore[arg-type]
        settings=settings_for(target),
        target=target,
    )


def predict(folder: Path, source: str, *inputs: str, limits: Limits | None = None, **options: object) -> GuardedResult:
    """The guarded prediction of the first kernel in `source`."""
    return predict_guarded(kernel_run(folder, source, *inputs, **options), limits)  # type: ignore[arg-type]


def by_code(result: GuardedResult) -> dict[str, list[Finding]]:
    """Findings by their code."""
    found: dict[str, list[Finding]] = {}
    for finding in result.prediction.findings:
        found.setdefault(finding.code, []).append(finding)
    return found


def children() -> set[str]:
    """Processes whose parent is this one, by number; other tests of the same process may have left some (Linux)."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The parent's number is the second field after the name, which is in parentheses.
            if int(stat.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(stat.parent.name)
    return found

"""What the guarded child does with a recording: predict, look for hazards, and hand both back as plain data.

Counting where the recording is keeps what crosses the process boundary small: rows per source line, not per instruction.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from trnprof.analyzers.dma_prediction import predict_dma
from trnprof.analyzers.hazards import find_hazards
from trnprof.analyzers.predicted_dma import Assumption, PredictedDma
from trnprof.findings import Finding
from trnprof.hardware.dma_model import DmaModel
from trnprof.nki.kernel_call import KernelCall
from trnprof.nki.plain_data import from_plain, to_plain
from trnprof.nki.recording import Recording


@dataclass(frozen=True)
class PredictionSettings:
    """What the prediction needs beside the recording."""

    model: DmaModel
    sbuf_bytes_per_partition: int
    psum_bytes_per_partition: int


@dataclass(frozen=True)
class KernelPrediction:
    """The answer of one guarded run."""

    predicted: PredictedDma
    findings: tuple[Finding, ...]
    outputs: tuple[tuple[str, tuple[int, ...], str], ...]
    """(name, shape, dtype) of what the kernel returns."""


def perform(call: KernelCall) -> dict[str, Any]:
    """The task of the guarded child: record the kernel and predict from the recording."""
    recording = call.record()
    call.enter("counting")
    return summarise(recording, settings=call.request["settings"], notes=call.loader.notes, stand_ins=call.stand_ins)


def summarise(
    recording: Recording, *, settings: dict[str, Any], notes: Iterable[str] = (), stand_ins: Iterable[str] = ()
) -> dict[str, Any]:
    """The result document: KernelPrediction as plain data.

    settings: PredictionSettings as plain data; notes: what the loader has to say; stand_ins: frameworks that were replaced.
    """
    known = from_plain(PredictionSettings, settings)
    predicted = predict_dma(
        recording,
        known.model,
        sbuf_bytes_per_partition=known.sbuf_bytes_per_partition,
        psum_bytes_per_partition=known.psum_bytes_per_partition,
        source_line=_statement,
    )
    added = tuple(Assumption("loading", note) for note in notes)
    predicted = replace(predicted, assumptions=(*predicted.assumptions, *added), stand_ins=tuple(stand_ins))
    findings = find_hazards(recording, predicted, known.model)
    return {"prediction": to_plain(KernelPrediction(predicted, findings, recording.outputs))}


def _statement(file: str, line: int) -> str:
    """The source from `line` on until its brackets close: a call's first line alone says little."""
    text, depth = "", 0
    for number in range(line, line + 6):
        part = linecache.getline(file, number).partition("#")[0].strip()
        text += (" " if text and not text.endswith(("(", "[")) else "") + part
        depth += sum(part.count(bracket) for bracket in "([{") - sum(part.count(bracket) for bracket in ")]}")
        if depth <= 0 and not part.endswith("\\"):
            break
    return text

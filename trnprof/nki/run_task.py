"""What the guarded child does to compute a kernel's values: run it, compare with a reference, look for hazards.

Results cross the process boundary as figures; the outputs themselves stay in files of the child's scratch folder, which
the parent fetches before it deletes it.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trnprof.errors import InputDataError
from trnprof.findings import Finding
from trnprof.nki.discovery import KernelKind, find_kernels, parse_source, read_source
from trnprof.nki.kernel_call import KernelCall
from trnprof.nki.plain_data import from_plain, to_plain
from trnprof.nki.prediction_task import PredictionSettings
from trnprof.nki.reference import Frameworks, call_reference
from trnprof.nki.tensor_files import load_tensor, save_outputs
from trnprof.nki.value_codes import NOTE_CODES, VALUE_CODES
from trnprof.nki.values.comparison import Comparison, compare
from trnprof.nki.values.kinds import is_integer

OUTPUT_FOLDER = "outputs"
"""In the scratch folder: what the parent fetches."""


@dataclass(frozen=True)
class RunSettings:
    """What a run needs beside the kernel and its inputs."""

    hazards: PredictionSettings | None
    """For the lint that runs beside the values; None: none."""
    precise: bool = True
    zeroed: bool = False
    """Memory that nothing has written reads as 0 instead of NaN."""
    seed: int = 0
    ranks: int = 1
    loads: dict[str, str] = field(default_factory=dict)
    """Parameter -> file with its contents (.npy, .safetensors)."""
    reference_file: str | None = None
    reference: str = ""
    """The function in it."""
    rtol: float | None = None
    atol: float | None = None
    save: str | None = None
    """npy, safetensors; None: outputs are not kept."""


@dataclass(frozen=True)
class OutputReport:
    """One output."""

    name: str
    rank: int
    dtype: str
    shape: tuple[int, ...]
    is_argument: bool
    """An argument that the kernel wrote."""
    missing_count: int
    nan_count: int
    is_all_zero: bool
    smallest: float | None
    """Of the finite elements; None: there are none."""
    largest: float | None
    comparison: Comparison | None = None


@dataclass(frozen=True)
class RunNote:
    """Something the reader must know of the run."""

    code: str
    message: str
    source: str | None = None


@dataclass(frozen=True)
class KernelValues:
    """The answer of one guarded run."""

    target: str
    lnc: int
    ranks: int
    precise: bool
    program_count: int
    outputs: tuple[OutputReport, ...]
    reference: str | None
    findings: tuple[Finding, ...]
    notes: tuple[RunNote, ...]
    stand_ins: tuple[str, ...] = ()
    zeroed: bool = False

    @property
    def agrees(self) -> bool:
        """Does every output that was compared agree?"""
        return all(output.comparison is None or output.comparison.agrees for output in self.outputs)


def prepare(settings: dict[str, Any]) -> Frameworks | None:
    """Before the child closes its doors: import the frameworks that the reference's file uses."""
    known = from_plain(RunSettings, settings)
    return None if known.reference_file is None else Frameworks.imported_by(Path(known.reference_file))


def perform(call: KernelCall) -> dict[str, Any]:
    """The task: KernelValues as plain data under "values"."""
    from trnprof.nki.values.run import compute

    settings = from_plain(RunSettings, call.request["settings"])
    ranks = [_Given.of(call, settings, rank) for rank in range(settings.ranks)]
    before: list[dict[str, Any]] = []
    if settings.reference_file is not None:  # the kernel may write its arguments
        before = [
            {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in given.named.items()}
            for given in ranks
        ]
    run = compute(
        call.kernel,
        ranks[0].positional,
        ranks[0].keywords,
        lnc=call.request["lnc"],
        grid=call.request["grid"],
        target=call.request["target"],
        precise=settings.precise,
        seed=settings.seed,
        ranks=settings.ranks,
        arguments_of_rank=lambda rank: (ranks[rank].positional, ranks[rank].keywords),
        is_host=_is_host(call),
        zeroed=settings.zeroed,
    )
    outputs = [output for rank in run.outputs for output in rank]
    if not outputs:
        raise InputDataError(
            "the kernel returns no tensor and writes none of its arguments; return the output tensor",
            path=call.loader.path,
        )
    if settings.save is not None:
        call.enter("saving the outputs")
        save_outputs(run.outputs, Path(OUTPUT_FOLDER), settings.save)
    expected: list[np.ndarray | None] = [None] * len(outputs)
    if settings.reference_file is not None:
        call.enter("running the reference")
        expected = call_reference(
            call, settings.reference_file, settings.reference, before, run.outputs, precise=settings.precise
        )
    call.enter("comparing")
    reports: list[OutputReport] = []
    for rank, of_rank in enumerate(run.outputs):
        for output in of_rank:
            reports.append(_report(rank, output, expected[len(reports)], settings))
    notes = [RunNote(note.code, note.message, None if note.site is None else str(note.site)) for note in run.notes]
    notes += [RunNote("loading", text) for text in call.loader.notes]
    findings = [*_value_findings(reports), *_note_findings(notes)]
    if settings.hazards is not None:
        call.enter("looking for hazards")
        findings += _hazards(call, settings.hazards, notes)
    values = KernelValues(
        target=call.request["target"],
        lnc=call.request["lnc"],
        ranks=settings.ranks,
        precise=settings.precise,
        program_count=run.program_count,
        outputs=tuple(reports),
        reference=None if settings.reference_file is None else settings.reference,
        findings=tuple(findings),
        notes=tuple(note for note in notes if note.code not in NOTE_CODES),
        stand_ins=tuple(call.stand_ins),
        zeroed=settings.zeroed,
    )
    return {"values": to_plain(values)}


def _is_host(call: KernelCall) -> bool:
    """Does the file show the function as one that launches kernels?"""
    found = find_kernels(parse_source(read_source(call.loader.path), call.loader.path))
    return any(one.name == call.request["kernel"] and one.kind is KernelKind.HOST for one in found)


def arguments(keywords: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments with --load's contents in place of the specs that describe them."""
    loads = from_plain(RunSettings, settings).loads
    return keywords | {name: load_tensor(Path(file), name, keywords.get(name)) for name, file in loads.items()}


def _parameters(kernel: Any) -> list[str]:
    try:
        return [parameter.name for parameter in inspect.signature(kernel).parameters.values()]
    except (TypeError, ValueError):
        return []


@dataclass(frozen=True)
class _Given:
    """The arguments of one rank; tensors without contents have got theirs, so that a reference sees the same."""

    positional: list[Any]
    keywords: dict[str, Any]
    named: dict[str, Any]
    """All of them by parameter."""

    @classmethod
    def of(cls, call: KernelCall, settings: RunSettings, rank: int) -> _Given:
        """Rank 0's are the call's. Another rank's come from the inputs file where that takes the rank; else they are the
        same with random tensors of its own."""
        positional, keywords = call.positional, call.keywords
        if rank and call.arguments_of_rank is not None:
            positional, own = call.arguments_of_rank(rank)
            keywords = keywords | own
        names = _parameters(call.kernel)
        named = {
            name: _filled(value, name, settings.seed, rank)
            for name, value in (dict(zip(names, positional, strict=False)) | keywords).items()
        }
        return cls(
            [named.get(names[at], value) if at < len(names) else value for at, value in enumerate(positional)],
            {name: named.get(name, value) for name, value in keywords.items()},
            named,
        )


def _filled(value: Any, name: str, seed: int, rank: int) -> Any:
    """Random values for a spec; an array of its own for each rank."""
    from trnprof.nki.dtypes import as_dtype
    from trnprof.nki.recording import TensorSpec
    from trnprof.nki.values.world import random_array

    if isinstance(value, TensorSpec):
        dtype = as_dtype(value.dtype)
        return _as_record(random_array(value.shape, dtype, seed=seed, name=value.name or name, rank=rank), str(dtype))
    return value.copy() if rank and isinstance(value, np.ndarray) else value


def _as_record(array: np.ndarray, dtype: str) -> np.ndarray:
    """An array that tells its NKI type: packed types as records of one field."""
    from trnprof.nki.values.kinds import NUMPY, PACKED

    if dtype in PACKED:
        return array.view(np.dtype([(dtype, NUMPY[dtype])]))
    return array.astype(bool) if dtype == "bool" else array


def _report(rank: int, output: Any, expected: np.ndarray | None, settings: RunSettings) -> OutputReport:
    numbers = output.array if output.array.dtype.names is None else None
    nan_count, zero, smallest, largest = 0, False, None, None
    if numbers is not None and numbers.size:
        wide = numbers.astype(np.float64)
        nan_count = int(np.isnan(wide).sum())
        zero = not wide.any()
        finite = wide[np.isfinite(wide)]
        if finite.size:
            smallest, largest = float(finite.min()), float(finite.max())
    comparison = None
    if expected is not None and numbers is not None:
        # Without rounding the output is as good as float32, which the reference has.
        judged_as = output.dtype if settings.precise or is_integer(output.dtype) else "float32"
        comparison = compare(numbers, expected, judged_as, rtol=settings.rtol, atol=settings.atol)
    return OutputReport(
        name=output.name,
        rank=rank,
        dtype=output.dtype,
        shape=tuple(int(size) for size in output.array.shape),
        is_argument=output.is_argument,
        missing_count=output.missing_count,
        nan_count=nan_count,
        is_all_zero=zero,
        smallest=smallest,
        largest=largest,
        comparison=comparison,
    )


def _value_findings(reports: list[OutputReport]) -> list[Finding]:
    """What the outputs show, the worst first."""
    found = []
    for report in reports:
        compared = report.comparison
        place = {"output": report.name} | ({"rank": report.rank} if report.rank else {})
        if compared is not None and compared.is_all_zero:
            found.append(_finding("VAL003", f"{report.name} is 0 everywhere", **place))
        if compared is not None and compared.repeated is not None:
            rows = compared.repeated
            message = f"{rows.count:,} rows of {report.name} repeat an earlier row; row {rows.row} equals row {rows.equals_row}"
            found.append(_finding("VAL002", message, **place))
        if report.missing_count:
            message = f"{report.missing_count:,} elements of {report.name} were never written"
            found.append(_finding("VAL004", message, **place))
        if report.nan_count > report.missing_count or (report.nan_count and is_integer(report.dtype)):
            message = f"{report.nan_count - report.missing_count:,} written elements of {report.name} are NaN"
            found.append(_finding("VAL006", message, **place))
        if compared is None and report.is_all_zero:
            found.append(_finding("VAL003", f"{report.name} is 0 everywhere (nothing to compare it with)", **place))
        if compared is not None and not compared.agrees:
            message = (
                f"{compared.bad_count:,} of {compared.element_count:,} elements of {report.name}, the first at "
                f"{list(compared.first_bad_index)}: {compared.first_bad_value} against {compared.first_reference_value}"
            )
            found.append(_finding("VAL001", message, **place))
    return found


def _note_findings(notes: list[RunNote]) -> list[Finding]:
    return [
        _finding(NOTE_CODES[note.code], note.message, **({"source": note.source} if note.source else {}))
        for note in notes
        if note.code in NOTE_CODES
    ]


def _finding(code: str, message: str, **evidence: object) -> Finding:
    known = VALUE_CODES[code]
    return Finding(code, known.title, None, None, {"message": message, **evidence}, known.advice)


def _hazards(call: KernelCall, settings: PredictionSettings, notes: list[RunNote]) -> list[Finding]:
    """What fails on the device whatever the values are: the lint of dma-predict, HAZ codes only."""
    from trnprof.analyzers.dma_prediction import predict_dma
    from trnprof.analyzers.hazards import find_hazards
    from trnprof.nki.trace import KernelError

    try:
        recording = call.record()
        predicted = predict_dma(
            recording,
            settings.model,
            sbuf_bytes_per_partition=settings.sbuf_bytes_per_partition,
            psum_bytes_per_partition=settings.psum_bytes_per_partition,
            source_line=lambda file, line: "",
        )
        return [
            finding for finding in find_hazards(recording, predicted, settings.model) if finding.code.startswith("HAZ")
        ]
    except KernelError as error:
        notes.append(RunNote("hazards-unchecked", f"the device's hazards could not be looked for: {error.message}"))
        return []

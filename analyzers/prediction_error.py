"""A prediction beside a capture of the same kernel: what was predicted, what was measured, and the error of each number.

Predicted and measured stay in different fields and are never added or averaged.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np

from trnprof.analyzers.anatomy import Anatomy
from trnprof.analyzers.predicted_dma import PredictedDma, TimeRange
from trnprof.profile import Profile, codes_of, int64_of

QUEUE_MODES = {
    "software_dynamic": "swdge",
    "hardware_dynamic": "hwdge",
    "data": "none",
    "input": "none",
    "output": "none",
    "unknown": "unknown",
}
"""The DGE mode of each queue type of a capture that moves tensor data; instruction fetch is not a kernel's DMA."""

_LOCATION_COLUMNS = ("nki_source_location", "bir_debug_info_source_location")
_LOCATION = re.compile(r"([^,\s]+?):(\d+)(?=[,\s:]|$)")


@dataclass(frozen=True)
class ComparedCount:
    """One number of which there is one of each."""

    name: str
    unit: str
    predicted: int | None
    """None: a symbolic multiple of an unknown trip count."""
    measured: int | None
    """None: not captured."""
    measured_kind: str
    """measured, or lower-bound."""

    @property
    def error_share(self) -> float | None:
        """(predicted - measured) ÷ measured."""
        if self.predicted is None or not self.measured:
            return None
        return (self.predicted - self.measured) / self.measured


@dataclass(frozen=True)
class ComparedTime:
    """A predicted range and a measured time."""

    name: str
    predicted: TimeRange | None
    measured_ns: int | None

    @property
    def within(self) -> bool | None:
        """Does the measured time lie in the range?"""
        if self.predicted is None or self.measured_ns is None:
            return None
        return self.predicted.low <= self.measured_ns <= self.predicted.high

    @property
    def error_share(self) -> float | None:
        """(mid - measured) ÷ measured."""
        if self.predicted is None or not self.measured_ns:
            return None
        return (self.predicted.mid - self.measured_ns) / self.measured_ns


@dataclass(frozen=True)
class ComparedPackets:
    """Packets of one size in the queues of one mode."""

    mode: str
    bytes: int
    predicted: int
    measured: int


@dataclass(frozen=True)
class ComparedLine:
    """HBM bytes and DMA instructions of one source line."""

    source: str
    predicted_bytes: int | None
    """None: the prediction has no DMA on this line."""
    measured_bytes: int | None
    """None: the capture has none."""
    predicted_dma_count: int | None
    measured_dma_count: int | None


@dataclass(frozen=True)
class PredictionError:
    """Everything that can be compared."""

    counts: tuple[ComparedCount, ...]
    times: tuple[ComparedTime, ...]
    packets: tuple[ComparedPackets, ...]
    lines: tuple[ComparedLine, ...]
    """Empty where the capture has no source lines."""
    notes: tuple[str, ...]
    """What the comparison rests on."""


def compare_prediction(predicted: PredictedDma, profile: Profile, anatomy: Anatomy) -> PredictionError:
    """Put `predicted` beside a capture and its account.

    Reads: profile.dma_packets (transfer_bytes, queue_type), profile.instructions (opcode, hbm_*_bytes, source locations),
           profile.sources; anatomy.cores (hbm, dma). All physical cores of the capture are added: a prediction covers
           every program.
    """
    total = predicted.total
    hbm = [core.hbm for core in anatomy.cores if core.hbm is not None]
    complete = bool(hbm) and all(account.kind == "measured" for account in hbm)
    kind = "measured" if complete else "lower-bound"
    counts = [
        ComparedCount(
            name,
            "B",
            getattr(total, name) if total else None,
            sum(getattr(a, short) for a in hbm) if hbm else None,
            kind,
        )
        for name, short in (("hbm_read_bytes", "read_bytes"), ("hbm_write_bytes", "write_bytes"))
    ]
    packets, unknown_types = _packets(predicted, profile)
    measured_instructions = _dma_instructions(profile)
    if measured_instructions is not None:
        counts.append(
            ComparedCount(
                "dma_count", "DMA instructions", total.dma_count if total else None, measured_instructions, "measured"
            )
        )
    moving = [core.dma.data_ns for core in anatomy.cores if core.dma is not None]
    times = [ComparedTime("dma_data_time", total.time_ns if total else None, max(moving, default=None))]
    lines = _lines(predicted, profile)
    notes = [
        "dma_count is as written: the compiler merges DMAs of neighbouring iterations, so fewer are measured.",
        "dma_data_time is the time in which a core's DMA packets moved tensor data (no instruction fetch), slowest core.",
    ]
    if not lines:
        notes.append("The capture names no source lines: compared per queue type and packet size instead.")
    if unknown_types:
        notes.append(f"Queue types that are not compared: {', '.join(sorted(unknown_types))}.")
    return PredictionError(tuple(counts), tuple(times), packets, lines, tuple(notes))


def _packets(predicted: PredictedDma, profile: Profile) -> tuple[tuple[ComparedPackets, ...], set[str]]:
    expected = {(entry.mode, entry.bytes): entry.count for entry in predicted.packets}
    table = profile.dma_packets
    if table is None or "queue_type" not in table.column_names:
        return (), set()
    codes, names = codes_of(table["queue_type"])
    sizes = int64_of(table["transfer_bytes"])
    measured: dict[tuple[str, int], int] = defaultdict(int)
    unknown: set[str] = set()
    for code, name in enumerate(names):
        of_type = codes == code
        if not of_type.any():
            continue
        if name not in QUEUE_MODES:
            unknown.add(name)
            continue
        for size, count in zip(*(part.tolist() for part in np.unique(sizes[of_type], return_counts=True)), strict=True):
            measured[QUEUE_MODES[name], size] += count
    keys = sorted(expected.keys() | measured.keys(), key=lambda key: (key[0], -key[1]))
    return tuple(ComparedPackets(*key, expected.get(key, 0), measured.get(key, 0)) for key in keys), unknown


def _dma_instructions(profile: Profile) -> int | None:
    table = profile.instructions
    if table is None:
        return None
    codes, names = codes_of(table["opcode"])
    return int(np.isin(codes, [code for code, name in enumerate(names) if _is_dma(name)]).sum())


def _is_dma(opcode: str) -> bool:
    return "DMA" in opcode.upper()


def _lines(predicted: PredictedDma, profile: Profile) -> tuple[ComparedLine, ...]:
    measured = _measured_lines(profile)
    if not measured:
        return ()
    expected: dict[str, tuple[int, int]] = {}
    for line in predicted.lines:
        if line.implicit or line.times:
            continue
        moved, count = expected.get(_key(line.source), (0, 0))
        expected[_key(line.source)] = (
            moved + line.hbm_read_bytes + line.hbm_write_bytes,
            count + line.dma_count,
        )
    rows = [
        ComparedLine(
            key,
            expected[key][0] if key in expected else None,
            measured[key][0] if key in measured else None,
            expected[key][1] if key in expected else None,
            measured[key][1] if key in measured else None,
        )
        for key in expected.keys() | measured.keys()
    ]
    return tuple(sorted(rows, key=lambda row: (-(row.measured_bytes or row.predicted_bytes or 0), row.source)))


def _measured_lines(profile: Profile) -> dict[str, tuple[int, int]]:
    """{file:line: (HBM bytes, DMA instructions)} of a capture whose instructions name their source."""
    table = profile.instructions
    if table is None or not {"hbm_read_bytes", "hbm_write_bytes"} <= set(table.column_names):
        return {}
    codes, names = codes_of(table["opcode"])
    is_dma = np.isin(codes, [code for code, name in enumerate(names) if _is_dma(name)])
    moved = int64_of(table["hbm_read_bytes"]) + int64_of(table["hbm_write_bytes"])
    found: dict[str, tuple[int, int]] = {}
    for column in _LOCATION_COLUMNS:
        if column not in table.column_names:
            continue
        location_codes, locations = codes_of(table[column])
        for code, text in enumerate(locations):
            match = _LOCATION.search(text or "")
            rows = is_dma & (location_codes == code)
            if match is None or not rows.any():
                continue
            key = _key(f"{match[1]}:{match[2]}")
            bytes_before, count_before = found.get(key, (0, 0))
            found[key] = (bytes_before + int(moved[rows].sum()), count_before + int(rows.sum()))
        if found:
            return found
    return _lines_by_instruction_name(profile, is_dma, moved)


def _lines_by_instruction_name(profile: Profile, is_dma: np.ndarray, moved: np.ndarray) -> dict[str, tuple[int, int]]:
    """The same through the capture's own table of sources, by instruction name, innermost frame."""
    table, sources = profile.instructions, profile.sources
    needed = {"kernel_instruction_name", "file_path", "line_number"}
    if table is None or sources is None or not needed <= set(sources.column_names):
        return {}
    if "kernel_instruction_name" not in table.column_names:
        return {}
    place: dict[str, tuple[int, str]] = {}
    depths = (
        sources["stack_frame_depth"].to_pylist() if "stack_frame_depth" in sources.column_names else [0] * len(sources)
    )
    for name, file, line, depth in zip(
        sources["kernel_instruction_name"].to_pylist(),
        sources["file_path"].to_pylist(),
        sources["line_number"].to_pylist(),
        depths,
        strict=True,
    ):
        if name and file and line is not None and (name not in place or (depth or 0) < place[name][0]):
            place[name] = (depth or 0, _key(f"{file}:{line}"))
    codes, names = codes_of(table["kernel_instruction_name"])
    found: dict[str, tuple[int, int]] = {}
    for code, name in enumerate(names):
        rows = is_dma & (codes == code)
        if name in place and rows.any():
            bytes_before, count_before = found.get(place[name][1], (0, 0))
            found[place[name][1]] = (bytes_before + int(moved[rows].sum()), count_before + int(rows.sum()))
    return found


def _key(source: str) -> str:
    """file name and line: a capture's paths are those of the machine it was taken on."""
    path, _, line = source.rpartition(":")
    return f"{PurePath(path.replace(chr(92), '/')).name}:{line}"

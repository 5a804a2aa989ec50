"""What the vendor's converted profiles say of themselves, as Metadata.

Explorer's Parquet and the legacy JSON carry the same facts in small tables (Metadata, Summary, NeffHeader, Warning,
DmaQueuesInfo), under names that differ a little. Both readers hand those rows over as plain dicts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal

from trnprof.profile import Core, DmaQueue, Metadata, Provenance, Step, TensorSize
from trnprof.readers.assembly import Window
from trnprof.readers.cells import MAX_CORE, exact_number

Row = Mapping[str, object]

QUEUE_TYPES = frozenset({"instruction", "input", "output", "data", "software_dynamic", "hardware_dynamic", "unknown"})
"""DmaQueueType of schema 7.4.0."""

_QUEUE_TYPE_ALIASES = {"weights": "data", "weight": "data", "in": "input", "out": "output", "instr": "instruction"}

_CLOCKS = {
    "tensor": ("tensor_engine_clock_freq", "pe_clock_freq"),
    "vector": ("vector_engine_clock_freq",),
    "scalar": ("scalar_engine_clock_freq",),
    "gpsimd": ("gpsimd_engine_clock_freq",),
    "base": ("neuroncore_clock_freq", "pe_clock_others"),
}
_VERSIONS = {
    "runtime": ("runtime_version",),
    "driver": ("driver_version",),
    "collectives": ("collectives_version",),
    "compiler": ("compiler_version",),
    "profiler": ("explorer_version", "profiler_version"),
}
_GIGAHERTZ = (10**9, 1)
_SECONDS = (10**9, 1)

_NO_DYNAMIC_DMA = re.compile(r"missing .{0,40}dynamic dma|NEURON_RT_ENABLE_DGE_NOTIFICATIONS", re.IGNORECASE)
_DROPPED = re.compile(
    r"\b(\d[\d,]{0,20}) (?:[a-z]{1,20} ){0,2}(?:events?|records?|notifications?) (?:were|was) (?:dropped|lost)",
    re.IGNORECASE,
)
_EXECUTION = re.compile(r"_exec_(\d{1,6})(?:\.ntff)?$")
_SUBGRAPH = re.compile(r"/?sg(\d{1,5})")


@dataclass
class VendorFacts:
    """The small tables of one converted profile; empty where the file has none."""

    metadata: Row = field(default_factory=dict)
    summary: Row = field(default_factory=dict)
    neff_header: Row = field(default_factory=dict)
    profile_info: Row = field(default_factory=dict)
    """Legacy JSON only: file names."""
    models: list[Row] = field(default_factory=list)
    """Legacy JSON only: one row per physical core, with its subgraph and NeuronCore."""
    warnings: list[str] = field(default_factory=list)
    queues: list[Row] = field(default_factory=list)
    tensors: list[Row] = field(default_factory=list)
    """Explorer's TensorInfo."""
    scales: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Units of the metadata row's columns where the file declares them: (numerator, denominator) to Hz, ns or bytes."""

    def text(self, *names: str) -> str | None:
        """The first non-empty text under one of the names, in the metadata, the summary or the header."""
        for row in (self.metadata, self.summary, self.neff_header, self.profile_info):
            for name in names:
                value = row.get(name)
                if isinstance(value, str) and value.strip():
                    return value
        return None

    def number(self, name: str, scale: tuple[int, int] = (1, 1)) -> int | None:
        """The metadata's number, in the base unit."""
        return exact_number(self.metadata.get(name), self.scales.get(name, scale))

    def window(self) -> Window | None:
        """From the first to the last timestamp of the trace, which is the execution; None where it is not stated."""
        first, last = self.number("first_hw_timestamp"), self.number("last_hw_timestamp")
        return None if first is None or last is None else Window(first, last)

    def total_ns(self) -> int | None:
        """The summary's total time, rounded down to a nanosecond."""
        total = exact_number(self.summary.get("total_time"), _SECONDS)
        return total if total is not None and total > 0 else None

    def declared_cores(self) -> set[int]:
        """The physical cores that the capture says it is of."""
        numbered = {core for row in self.models if (core := core_of(row.get("sg_name"))) is not None}
        count = self.number("num_physical_cores") or self.number("num_subgraphs") or 0
        return numbered | set(range(min(count, MAX_CORE + 1)))

    def count_of(self, names: Iterable[str]) -> int | None:
        """The sum of the summary's counts under the names; None where it lacks one."""
        counts = [exact_number(self.summary.get(name)) for name in names]
        return None if not counts or None in counts else sum(count for count in counts if count is not None)


def core_of(subgraph: object) -> int | None:
    """1 of "sg01" and "/sg01"; None for anything else."""
    match = _SUBGRAPH.fullmatch(subgraph) if isinstance(subgraph, str) else None
    return int(match[1]) if match and int(match[1]) <= MAX_CORE else None


def build_metadata(
    facts: VendorFacts,
    *,
    format: str,
    format_version: str | None,
    window: Window,
    cores: Iterable[int],
    totals_by_core: bool,
    steps: Iterable[Step] = (),
) -> Metadata:
    """Metadata of one converted profile whose clock starts at the window's start.

    window, steps: on the capture's own clock.

    cores: every core that the capture declares or has rows of.
    totals_by_core: False where the instruction rows lack HBM bytes, so that a single core's are the summary's.
    """
    instance = facts.text("instance_type")
    placed = tuple(
        replace(
            step,
            start_ts=step.start_ts - window.start,
            end_ts=None if step.end_ts is None else step.end_ts - window.start,
        )
        for step in steps
    )
    end = window.end - window.start
    numbers = sorted(set(cores) | facts.declared_cores()) or [0]
    models = {core: row for row in facts.models if (core := core_of(row.get("sg_name"))) is not None}
    alone = len(numbers) == 1
    totals = facts.summary if alone and not totals_by_core else {}
    made = []
    for number in numbers:
        # Without a row per core, the capture's one NeuronCore number is this core's only if there is no other.
        model: Row = models.get(number) or ({**facts.summary, **facts.metadata} if alone else {})
        made.append(
            Core(
                core=number,
                subgraph=f"sg{number:02d}",
                window_start_ts=0,
                window_end_ts=end,
                neuroncore_idx=_first_number(model, "nc_idx", "neuroncore_idx"),
                neuron_device_idx=_first_number(model, "nd_idx", "neuron_device_idx"),
                hbm_read_bytes=exact_number(totals.get("hbm_read_bytes")),
                hbm_write_bytes=exact_number(totals.get("hbm_write_bytes")),
            )
        )
    return Metadata(
        format=format,
        format_version=format_version,
        provenance=Provenance.MODELLED if facts.metadata.get("is_simulation") is True else Provenance.MEASURED_DEVICE,
        cores=tuple(made),
        hardware=hardware_of(instance),
        instance_type=instance,
        neff_uuid=facts.text("uuid"),
        neff_path=facts.text("neff_name", "network_name"),
        versions={part: text for part, names in _VERSIONS.items() if (text := facts.text(*names)) is not None},
        hbm_bandwidth_bytes_per_s=facts.number("hbm_ddr_bandwidth"),
        dma_bandwidth_bytes_per_s=facts.number("dma_ddr_bandwidth"),
        clock_hz=_clocks(facts),
        execution_index=_execution_index(facts),
        dge_notifications=False if any(_NO_DYNAMIC_DMA.search(text[:1000]) for text in facts.warnings) else None,
        dropped_record_count=_dropped_count(facts.warnings),
        has_step_markers=bool(placed),
        steps=placed,
        summary=summary_values(facts.summary),
        static_dma=tuple(_queues(facts.queues)),
        tensors=tuple(_tensors(facts.tensors)),
    )


_TENSOR_KINDS = {
    "IN": "input",
    "INPUT": "input",
    "OUT": "output",
    "OUTPUT": "output",
    "WEIGHT": "weight",
    "FILE": "weight",
}


def _tensors(rows: Iterable[Row]) -> Iterable[TensorSize]:
    """The program's own tensors, each once (both physical cores list them); spill buffers are none."""
    seen: set[str] = set()
    for row in rows:
        name, kind, size = row.get("variable_name"), row.get("type"), exact_number(row.get("size"))
        known = _TENSOR_KINDS.get(kind.upper()) if isinstance(kind, str) else None
        if isinstance(name, str) and name and name not in seen and known is not None and size is not None and size > 0:
            seen.add(name)
            yield TensorSize(name=name, kind=known, size_bytes=size)


def hardware_of(instance_type: str | None) -> str | None:
    """trn2 of "trn2.3xlarge"; None for instances whose table trnprof does not have."""
    match = re.match(r"trn([123])", instance_type or "")
    return match[0] if match else None


def summary_values(row: Row) -> dict[str, int | float | str]:
    """The summary's metrics with finite values, in its own names and units."""
    values: dict[str, int | float | str] = {}
    for name, value in row.items():
        if isinstance(value, Decimal):
            value = float(value) if value.is_finite() else math.nan
        if isinstance(value, float) and not math.isfinite(value):
            continue
        if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 63:
            continue
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            values[str(name)] = value
    return values


def _first_number(row: Row, *names: str) -> int | None:
    for name in names:
        number = exact_number(row.get(name))
        if number is not None:
            return number
    return None


def _clocks(facts: VendorFacts) -> dict[str, int]:
    clocks = {}
    for part, names in _CLOCKS.items():
        for name in names:
            hertz = facts.number(name, _GIGAHERTZ)
            if hertz is not None and hertz > 0:
                clocks[part] = hertz
                break
    return clocks


def _execution_index(facts: VendorFacts) -> int | None:
    # neuron-profile capture --profile-nth-exec=2 writes profile_exec_2.ntff.
    name = facts.profile_info.get("ntff_filename")
    match = _EXECUTION.search(name[-200:]) if isinstance(name, str) else None
    return int(match[1]) if match else None


def _dropped_count(warnings: Iterable[str]) -> int | None:
    matches = [match for text in warnings if (match := _DROPPED.search(text[:1000]))]
    return sum(int(match[1].replace(",", "")) for match in matches) if matches else None


def _queues(rows: Iterable[Row]) -> Iterable[DmaQueue]:
    for row in rows:
        core = core_of(row.get("subgraph"))
        if core is None:
            core = exact_number(row.get("pcore_idx"))
        engine = _first_number(row, "engine_idx", "q_eng_idx", "eng_idx")
        ring = _first_number(row, "idx", "q_idx")
        name, kind = row.get("name", row.get("q_name")), row.get("type", row.get("q_type"))
        if core is None or engine is None or ring is None or not 0 <= core <= MAX_CORE:
            continue
        kind = _QUEUE_TYPE_ALIASES.get(str(kind).lower(), str(kind).lower())
        yield DmaQueue(
            core=core,
            engine_idx=engine,
            queue_idx=ring,
            name=name if isinstance(name, str) else "",
            type=kind if kind in QUEUE_TYPES else "unknown",
        )

"""Stable codes: what is wrong with a capture (DQ...), and what holds a step back (findings).

One registry: the command line, the JSON envelope and docs/codes.md read it, and a test keeps the page in step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Severity(StrEnum):
    """How far a data-quality entry limits the numbers beside it."""

    ERROR = "error"
    """The numbers it touches are wrong or absent."""
    WARNING = "warning"
    """The numbers it touches are bounds, or need care."""
    INFO = "info"
    """Worth knowing; no number suffers."""


@dataclass(frozen=True)
class DataQualityCode:
    """What a data-quality code means."""

    code: str
    severity: Severity
    title: str
    cause: str
    effect: str
    """What the reader may still believe."""
    fix: str
    """The command or step that would cure it."""


@dataclass(frozen=True)
class DataQuality:
    """One data-quality entry of one capture."""

    code: str
    severity: Severity
    message: str
    count: int | None
    fix: str


@dataclass(frozen=True)
class Finding:
    """One thing that holds a step back: evidence, cost and a ceiling, never a promised gain."""

    code: str
    title: str
    cost_ns: int | None
    """Time that the symptom takes; None: not known."""
    share: float | None
    """The cost's share of the window."""
    evidence: dict[str, object] = field(default_factory=dict)
    advice: str = ""
    ceiling_ns: int | None = None
    """What no change of this kind alone can save more than; None: not known. Never a promised gain."""


_CAPTURE_AGAIN = "capture again: neuron-explorer capture -n model.neff -s step.ntff --profile-nth-exec=2"

_DATA_QUALITY = (
    DataQualityCode(
        "DQ001",
        Severity.WARNING,
        "records were dropped",
        "The capture says that notifications were lost: a buffer overflowed (software or hardware overflow flag).",
        "Work is a lower bound, and waits and idle an upper bound.",
        "capture a shorter window or larger notification buffers (NEURON_RT_INSPECT_* sizes), then analyse again",
    ),
    DataQualityCode(
        "DQ002",
        Severity.WARNING,
        "records without a partner",
        "A start has no end or an end no start: the capture began or stopped in the middle, or records were lost.",
        "Unpaired records are left out of every sum.",
        _CAPTURE_AGAIN,
    ),
    DataQualityCode(
        "DQ003",
        Severity.WARNING,
        "a core has no events",
        "The process opened more cores than the program ran on, or the core was not captured.",
        "The core is listed and left out of every mean.",
        "run on all cores that were opened, or capture with NEURON_RT_VISIBLE_CORES set to those that run",
    ),
    DataQualityCode(
        "DQ004",
        Severity.WARNING,
        "first execution",
        "The first execution of a NEFF also loads libraries (about 1 ms of GpSimd), which later steps do not.",
        "Runtime overhead is larger than in a steady step.",
        "capture a later execution: neuron-explorer capture --profile-nth-exec=2",
    ),
    DataQualityCode(
        "DQ005",
        Severity.WARNING,
        "a table was not captured",
        "The capture's format or settings leave this table out.",
        "What is computed from it is reported as not captured, never as zero.",
        "see `trnprof info FILE` for what each table is needed for",
    ),
    DataQualityCode(
        "DQ006",
        Severity.WARNING,
        "unknown opcodes",
        "The instruction stream has opcodes that no capture with a vendor's profile, and no document, has named.",
        "They count as work of their engine and are printed as OP_0xNN.",
        "compare with the vendor's tool: neuron-explorer view -n model.neff -s step.ntff",
    ),
    DataQualityCode(
        "DQ007",
        Severity.WARNING,
        "DGE notifications were off",
        "Without them a capture cannot say which tensor a dynamic DMA moved, and sizes may be missing.",
        "Bytes of dynamic DMAs whose size is unknown are left out: bytes and floor are lower bounds then.",
        "capture with NEURON_RT_ENABLE_DGE_NOTIFICATIONS=1 (or --enable-dge-notifs); it may time out on large NEFFs",
    ),
    DataQualityCode(
        "DQ008",
        Severity.ERROR,
        "NEFF and capture do not belong together",
        "The uuid in the NEFF's header is not the one in the capture.",
        "The NEFF was not used.",
        "name the NEFF that the capture ran: --neff FILE",
    ),
    DataQualityCode(
        "DQ009",
        Severity.ERROR,
        "memory floor above the work",
        "HBM bytes divided by the bandwidth used is longer than the time in which anything ran: bytes or bandwidth are wrong.",
        "The split into floor and busy beyond floor is not given for this core.",
        "name the bandwidth that this core had: --bandwidth measured|spec|BYTES_PER_S",
    ),
    DataQualityCode(
        "DQ010",
        Severity.WARNING,
        "the chip was throttled",
        "The capture has intervals in which the engines were held below full rate (k of n).",
        "The step is slower than the same step unthrottled; compare only runs with the same throttling.",
        "let the chip cool or keep the tensor engine busy (under 50 % use in about 3 us re-arms the limit), capture again",
    ),
    DataQualityCode(
        "DQ011",
        Severity.WARNING,
        "events were rejected",
        "Rows with impossible values: an end before its start, a time that is not a finite number, a zero timestamp far from all others.",
        "They are left out of every sum.",
        _CAPTURE_AGAIN,
    ),
    DataQualityCode(
        "DQ012",
        Severity.WARNING,
        "events reach beyond the window",
        "An interval starts before or ends after the execution's window.",
        "Only the part inside the window counts.",
        _CAPTURE_AGAIN,
    ),
    DataQualityCode(
        "DQ013",
        Severity.INFO,
        "no step marker",
        "Nothing in the capture marks steps inside the execution.",
        "The whole execution is one window.",
        "none needed where one execution is one step",
    ),
    DataQualityCode(
        "DQ014",
        Severity.WARNING,
        "dynamic DMAs of unknown size",
        "Dynamic DMAs are in the capture without their bytes.",
        "Bytes and memory floor are lower bounds, busy beyond floor an upper bound.",
        "capture with NEURON_RT_ENABLE_DGE_NOTIFICATIONS=1 (or --enable-dge-notifs)",
    ),
    DataQualityCode(
        "DQ015",
        Severity.WARNING,
        "files without a partner",
        "The folder has a NEFF whose capture is not there, or a capture whose NEFF is not there.",
        "The rest is analysed.",
        "put the files of one execution in one folder",
    ),
    DataQualityCode(
        "DQ016",
        Severity.WARNING,
        "schema of another major version",
        "The capture's tables follow a schema whose major version trnprof was not written for.",
        "Columns are bound by name; what was not found is reported as not captured.",
        "upgrade trnprof, or convert with the neuron-explorer version that wrote the capture",
    ),
    DataQualityCode(
        "DQ017",
        Severity.WARNING,
        "DMA transfers without a duration",
        "A DMA's start and end are the same, or it has none.",
        "Its bytes count, its time does not, its rate is not given.",
        _CAPTURE_AGAIN,
    ),
    DataQualityCode(
        "DQ018",
        Severity.WARNING,
        "window approximated",
        "This container version does not record the execution's start and end; the window is taken from markers in the stream.",
        "The window may be up to 0.4 us off.",
        "capture with runtime 2.30 or newer",
    ),
    DataQualityCode(
        "DQ019",
        Severity.WARNING,
        "not every byte is attributed",
        "HBM bytes come from the operands of DMA instructions; static rings need the NEFF.",
        "HBM bytes and the memory floor are lower bounds.",
        "put the NEFF beside the capture or name it: --neff FILE",
    ),
    DataQualityCode(
        "DQ020",
        Severity.WARNING,
        "values of a wrong type",
        "Numbers were written as text, or columns hold empty strings.",
        "They were read as the number they spell; empty ones as null.",
        "convert again with a newer neuron-explorer",
    ),
    DataQualityCode(
        "DQ021",
        Severity.WARNING,
        "instructions overlap beyond their engine's depth",
        "One instruction's interval covers later ones of the same engine that it cannot have run beside.",
        "Unions are exact; sums per opcode exceed the engine's active time and are marked.",
        _CAPTURE_AGAIN,
    ),
    DataQualityCode(
        "DQ022",
        Severity.WARNING,
        "a capture in the folder cannot be read",
        "One file of the folder is damaged or of an unknown version.",
        "It is left out; the others are analysed.",
        "look at it alone: trnprof info FILE",
    ),
    DataQualityCode(
        "DQ024",
        Severity.INFO,
        "semaphore updates were dropped",
        "Overflow flags on semaphore updates: bursts, as when the runtime clears all semaphores, outrun the trace.",
        "A semaphore's value may jump; instructions, DMA packets and every sum of them are complete.",
        "none needed where only the runtime's clearing is hit; else capture a shorter window",
    ),
    DataQualityCode(
        "DQ025",
        Severity.WARNING,
        "a table disagrees with the capture's own summary",
        "The vendor's tool sampled a table (DmaPacket in large profiles), left it out, or counts differently.",
        "What is computed from the table's rows covers only those rows; the summary's totals cover the whole execution.",
        "analyse the .ntff itself, or convert again without sampling and without --ignore-dma-trace",
    ),
    DataQualityCode(
        "DQ030",
        Severity.WARNING,
        "the NEFF does not fit",
        "The NEFF's debug info does not match its own program, or the capture ran other instructions than the NEFF has there.",
        "Names and source lines of those instructions may be missing or wrong; times and counts are the capture's own.",
        "compile again, and capture with that very NEFF",
    ),
    DataQualityCode(
        "DQ040",
        Severity.WARNING,
        "the sides' configurations differ",
        "The captures that are compared come from different machines, software, bandwidths or shapes.",
        "The difference may come from that, and not from the change that the comparison is about.",
        "capture both sides on the same instance, with the same runtime, driver, batch and shapes",
    ),
    DataQualityCode(
        "DQ032",
        Severity.INFO,
        "read in batches",
        "The capture is large, so its account was made in one pass over its columns instead of from whole tables.",
        "The account is the same. Details and the findings that are named need whole tables and are left out, as is what "
        "is odd in columns that no account needs.",
        "none needed; trnprof breakdown and --full read whole tables, which takes memory",
    ),
    DataQualityCode(
        "DQ033",
        Severity.INFO,
        "converted by the vendor's tool",
        "trnprof does not read this container version; the vendor's tool that is installed here was run on it.",
        "The numbers are what that tool decoded.",
        "none needed; upgrade trnprof to read the capture itself",
    ),
    DataQualityCode(
        "DQ034",
        Severity.INFO,
        "steps cut by the capture's edge",
        "The capture begins or ends inside a step that it marks.",
        "The step is accounted as far as it was captured, and is in no mean.",
        "capture a longer window",
    ),
    DataQualityCode(
        "DQ035",
        Severity.WARNING,
        "ranks are missing or empty",
        "The captures' numbers leave gaps, or a rank's capture holds no event.",
        "Those ranks are in no figure; what is said of all ranks is said of the others.",
        "copy the captures of all ranks into the folder; capture every rank: --collectives-profile-id all",
    ),
    DataQualityCode(
        "DQ036",
        Severity.WARNING,
        "collectives differ between ranks",
        "The ranks recorded different numbers of collectives, or different ones: they ran different graphs or windows.",
        "Collectives are not matched across ranks, so transfer and waiting for a late rank are not told apart.",
        "capture the same execution on every rank",
    ),
    DataQualityCode(
        "DQ031",
        Severity.WARNING,
        "records that trnprof cannot decode",
        "The capture has trace records whose layout no public capture has shown: of the collective cores, or of errors.",
        "What they hold is missing: collectives are not captured, and their traffic is not told from other DMA.",
        "look at the vendor's decode too: neuron-explorer view -n model.neff -s step.ntff --output-format parquet",
    ),
)

DATA_QUALITY_CODES: dict[str, DataQualityCode] = {entry.code: entry for entry in _DATA_QUALITY}


def data_quality(code: str, *, count: int | None = None, detail: str = "") -> DataQuality:
    """The entry for `code`: its title, then the detail."""
    known = DATA_QUALITY_CODES[code]
    message = f"{known.title}: {detail}" if detail else known.title
    return DataQuality(code, known.severity, message, count, known.fix)

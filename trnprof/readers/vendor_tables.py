"""What the vendor calls the columns of each Profile table: Neuron Explorer's Parquet tables and the legacy JSON's lists.

Profile uses Explorer's names (schema 7.4.0), so a column's first name is its own; the others are older Explorer names
and the legacy JSON's, tried in order. Readers bind a column to the first name that a file has; writers use the first
name for Parquet and `legacy_names` for JSON. Sources: the vendor's "Profile Parquet Schema Reference"
(tools/neuron-explorer/profile-schema-reference.rst in aws-neuron-sdk), the legacy names in an older copy of that schema,
and the legacy JSON of profiler 2.28; `cc_ops` is known from public tools that read that JSON.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trnprof.profile import TABLE_SPECS

SCHEMA_VERSION = "7.4.0"
"""The Explorer schema whose names these are."""

SCHEMA_MAJOR = 7


@dataclass(frozen=True)
class VendorTable:
    """One Profile table in the vendor's formats."""

    explorer: str
    """Explorer's table, without .parquet."""
    legacy: str
    """The legacy JSON's top-level list."""
    aliases: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Profile column -> its other names, most recent first; the last one is the legacy JSON's."""
    own: frozenset[str] = frozenset()
    """Columns that Explorer's table does not have: written with Profile's name, read back where they are."""

    def names_of(self, column: str) -> tuple[str, ...]:
        """The names under which a file may have the column."""
        return (column, *self.aliases.get(column, ()))

    def legacy_name(self, column: str) -> str:
        """The legacy JSON's name of the column."""
        return self.names_of(column)[-1]


_SPAN = {"start_ts": ("start", "timestamp"), "end_ts": ("end",), "duration_ns": ("duration",)}
_CORE = {"pcore_idx": ("sg_name", "subgraph")}
_SIZES = {
    "read_bytes": ("read_size",),
    "write_bytes": ("write_size",),
    "transfer_bytes": ("transfer_size",),
}
_PICOSECONDS = frozenset({"start_ps", "end_ps"})
_WAITS = frozenset({"wait_semaphore_idx", "wait_condition", "wait_value", "update_semaphore_idx"})

VENDOR_TABLES: dict[str, VendorTable] = {
    "instructions": VendorTable(
        "Instruction",
        "instruction",
        {
            **_SPAN,
            **_CORE,
            "engine": ("subgroup",),
            "evt_wait_time_ns": ("evt_wait_time",),
            "dma_wait_time_ns": ("dma_wait_time",),
            "dma_trigger_start_ts": ("trigger",),
            "dma_trigger_end_ts": ("completion",),
            "tensor_instruction_type": ("instruction_type",),
            "tensor_elements": ("elements",),
            "scalar_activation_fn": ("activation_fn",),
        },
        _PICOSECONDS | _WAITS,
    ),
    "dma_packets": VendorTable(
        "DmaPacket",
        "dma",
        {
            **_SPAN,
            **_CORE,
            **_SIZES,
            "engine_idx": ("dma_engine",),
            "queue_idx": ("dma_queue",),
            "queue_name": ("subgroup",),
        },
        _PICOSECONDS | {"is_cc_dma"},
    ),
    "dma_transfers": VendorTable(
        "DmaPacketAggregated",
        "dma",
        {**_SPAN, **_CORE, **_SIZES, "queue_idx": ("dma_queue",), "queue_name": ("subgroup",)},
    ),
    "semaphores": VendorTable(
        "SemaphoreUpdate",
        "semaphore_update",
        dict(_CORE),
        frozenset({"timestamp_ps", "semaphore_idx"}),
    ),
    "collectives": VendorTable(
        "CcOp",
        "cc_ops",
        {**_SPAN, **_CORE, "trigger_start_ts": ("cc_trigger",)},
        frozenset({"pcore_idx"}),
    ),
    "throttle": VendorTable("Throttle", "ham", dict(_CORE)),
    "kernels": VendorTable("TrnprofKernels", "trnprof_kernels", {**_SPAN, **_CORE}),
    "sources": VendorTable("KernelInstructions", "trnprof_sources", dict(_CORE), frozenset({"function_name"})),
}
"""By Profile's table name. Kernel spans have no table of the vendor's: they are a table file of trnprof's own."""

TIMES = frozenset({"start_ts", "end_ts", "timestamp", "dma_trigger_start_ts", "dma_trigger_end_ts", "trigger_start_ts"})
"""Columns that are instants on the capture's clock, in nanoseconds."""

PICOSECOND_TIMES = frozenset({"start_ps", "end_ps", "timestamp_ps"})
"""Columns that are instants on the same clock, in picoseconds."""

DURATIONS = frozenset({"duration_ns", "duration", "evt_wait_time_ns", "dma_wait_time_ns", "cc_trigger_start_delay"})
"""Columns that are lengths of time, in nanoseconds."""

SIZES = frozenset(
    {
        "input_size",
        "output_size",
        *(column for spec in TABLE_SPECS.values() for column in spec.columns if column.endswith("_bytes")),
    }
)
"""Columns in bytes."""

BANDWIDTHS = frozenset({"bus_bandwidth", "algorithm_bandwidth"})
"""Columns in bytes per second."""


def unit_of(column: str) -> str | None:
    """The unit of a Profile column as Explorer's SchemaFields spells units; None where it has none."""
    if column in TIMES or column in DURATIONS:
        return "nanoseconds"
    if column in PICOSECOND_TIMES:
        return "picoseconds"
    if column in SIZES:
        return "bytes"
    if column in BANDWIDTHS:
        return "bytes_per_second"
    return None


_UNITS: dict[str, dict[str, tuple[int, int]]] = {
    "nanoseconds": {
        "picoseconds": (1, 1000),
        "nanoseconds": (1, 1),
        "microseconds": (1000, 1),
        "milliseconds": (10**6, 1),
        "seconds": (10**9, 1),
    },
    "picoseconds": {"picoseconds": (1, 1), "nanoseconds": (1000, 1)},
    "bytes": {
        "bytes": (1, 1),
        "kilobytes": (1000, 1),
        "kibibytes": (1024, 1),
        "megabytes": (10**6, 1),
        "mebibytes": (2**20, 1),
    },
    "bytes_per_second": {"bytes_per_second": (1, 1), "bytes per second": (1, 1), "gigabytes_per_second": (10**9, 1)},
    "hertz": {"hertz": (1, 1), "kilohertz": (1000, 1), "megahertz": (10**6, 1), "gigahertz": (10**9, 1)},
}


def scale_to(wanted: str, declared: str) -> tuple[int, int] | None:
    """(numerator, denominator) that turns the declared unit into the wanted one; None where that is not known."""
    return _UNITS[wanted].get(declared.strip().lower())

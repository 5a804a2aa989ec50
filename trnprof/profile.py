"""Profile: the tables that every reader fills and every analyzer reads.

Column names and units are Neuron Explorer's (schema 7.4.0), so that what the vendor's documentation says holds here;
columns that only trnprof has are marked "own". Times are int64 nanoseconds on one clock per capture, with zero at the
start of the execution's window where the capture knows it. A table that is None was not captured, which is never the
same as an empty one. Strings come from a capture and are untrusted: only `trnprof.render` may print them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa

ENGINES = ("tensor", "vector", "scalar", "gpsimd", "sync")
"""The compute engines of a NeuronCore, in the order in which results list them."""

WAIT_OPCODES = frozenset({"EVENT_SEMAPHORE"})
"""Opcodes that only wait: their intervals are never compute (the vendor leaves them out of active time too)."""

UNKNOWN_OPCODE = "OP_0x"
"""How the names of opcodes begin that no document or capture names."""


class Provenance(StrEnum):
    """Where a profile's numbers come from. No renderer may drop it."""

    MEASURED_DEVICE = "measured-device"
    MEASURED_CPU = "measured-cpu"
    MODELLED = "modelled"
    PREDICTED = "predicted"


_NAME = pa.dictionary(pa.int32(), pa.string())
"""A string column with few distinct values."""


@dataclass(frozen=True)
class TableSpec:
    """Which columns a table may have, and which it must have."""

    required: dict[str, pa.DataType]
    optional: dict[str, pa.DataType]

    @property
    def columns(self) -> dict[str, pa.DataType]:
        """All columns, required ones first."""
        return self.required | self.optional


INSTRUCTIONS = TableSpec(
    required={
        "start_ts": pa.int64(),  # ns
        "end_ts": pa.int64(),  # ns; end_ts - start_ts is Explorer's duration_ns
        "pcore_idx": pa.int16(),  # physical core inside the capture, joins Core.core
        "engine": _NAME,  # one of ENGINES
        "opcode": _NAME,  # mnemonic; OP_0xNN where no document or capture names it
    },
    optional={
        "start_ps": pa.int64(),  # own: picoseconds on the same clock, where the capture has them
        "end_ps": pa.int64(),  # own
        "id": pa.int64(),
        "pc": pa.int32(),  # index in the device's instruction stream
        "compiler_pc": pa.int32(),  # index in the NEFF's stream; null: the runtime's instruction, not the compiler's
        "compiler_opcode": _NAME,
        "operands": _NAME,
        "compiler_operands": _NAME,
        "evt_wait_time_ns": pa.int64(),
        "dma_wait_time_ns": pa.int64(),
        "dma_trigger_start_ts": pa.int64(),
        "dma_trigger_end_ts": pa.int64(),
        "crc_in": pa.int32(),
        "crc_out": pa.int32(),
        "wait_semaphore_idx": pa.int16(),  # own: the semaphore (or event) this instruction waits for; null: none
        "wait_condition": _NAME,  # own: ">=", "==", "event"
        "wait_value": pa.int64(),  # own
        "update_semaphore_idx": pa.int16(),  # own: the semaphore this instruction updates on completion; null: none
        "bir_id": _NAME,
        "bir_instruction_name": _NAME,
        "kernel_instruction_name": _NAME,
        "penguin_id": _NAME,
        "hlo_name": _NAME,
        "layer": _NAME,
        "nki_source_location": _NAME,  # file:line, innermost first, comma separated
        "bir_debug_info_source_location": _NAME,
        "hbm_read_bytes": pa.int64(),
        "hbm_write_bytes": pa.int64(),
        "sbuf_read_bytes": pa.int64(),
        "sbuf_write_bytes": pa.int64(),
        "spill_save_bytes": pa.int64(),
        "spill_reload_bytes": pa.int64(),
        "psum_read_bytes": pa.int64(),
        "psum_write_bytes": pa.int64(),
        "performance_mode": _NAME,
        "tensor_instruction_type": _NAME,
        "tensor_elements": pa.int64(),
        "raw_flops": pa.int64(),
        "scalar_activation_fn": _NAME,
    },
)

DMA_PACKETS = TableSpec(
    required={
        "start_ts": pa.int64(),
        "end_ts": pa.int64(),
        "pcore_idx": pa.int16(),
        "transfer_bytes": pa.int64(),
    },
    optional={
        "start_ps": pa.int64(),  # own
        "end_ps": pa.int64(),  # own
        "id": pa.int64(),
        "packet_idx": pa.int32(),
        "packet_aggregation_id": pa.int64(),
        "engine_idx": pa.int16(),  # DMA engine as the vendor numbers it: 64..79 are core 0's, 80..95 core 1's
        "queue_idx": pa.int16(),  # ring number within the DMA engine
        "queue_type": _NAME,  # instruction, input, output, data, software_dynamic, hardware_dynamic, unknown
        "queue_name": _NAME,
        "read_bytes": pa.int64(),
        "write_bytes": pa.int64(),
        "variable": _NAME,
        "crc": pa.int32(),
        "is_cc_dma": pa.bool_(),  # traffic of a collective
    },
)

DMA_TRANSFERS = TableSpec(
    required={
        "start_ts": pa.int64(),
        "end_ts": pa.int64(),
        "pcore_idx": pa.int16(),
        "transfer_bytes": pa.int64(),
    },
    optional={
        "id": pa.int64(),
        "queue_idx": pa.int16(),
        "queue_name": _NAME,
        "queue_type": _NAME,
        "op": _NAME,
        "variable": _NAME,
        "read_bytes": pa.int64(),
        "write_bytes": pa.int64(),
        "source": _NAME,
        "dest": _NAME,
        "block_id": pa.int32(),
        "semaphore_id": _NAME,
    },
)

SEMAPHORES = TableSpec(
    required={
        "timestamp": pa.int64(),  # ns
        "pcore_idx": pa.int16(),
        "id": _NAME,  # as the vendor prints it: "2", "S[8] (qSyncDynamicHW)"
        "value": pa.int64(),  # the new value
    },
    optional={
        "timestamp_ps": pa.int64(),  # own
        "semaphore_idx": pa.int16(),  # own: the number inside `id`
        "update_source": _NAME,  # engine, "dma" or "axi"
        "update_operation_type": _NAME,
    },
)

COLLECTIVES = TableSpec(
    required={
        "start_ts": pa.int64(),
        "end_ts": pa.int64(),
        "operation": _NAME,
    },
    optional={
        "pcore_idx": pa.int16(),  # null or absent: the whole logical core, counted on each of its physical cores
        "op_id": pa.int64(),
        "algorithm": _NAME,
        "num_elements": pa.int64(),
        "dtype": _NAME,
        "stream_id": pa.int64(),
        "trigger_engine": _NAME,
        "trigger_start_ts": pa.int64(),
        "cc_trigger_start_delay": pa.int64(),
        "input_size": pa.int64(),
        "output_size": pa.int64(),
        "replica_group": _NAME,
        "bus_bandwidth": pa.float64(),
        "algorithm_bandwidth": pa.float64(),
    },
)

THROTTLE = TableSpec(
    required={
        "timestamp": pa.int64(),  # start, ns
        "duration": pa.int64(),  # ns
        "k": pa.int32(),  # allowed level; k == n is full speed
        "n": pa.int32(),  # full level
    },
    optional={"type": _NAME, "pcore_idx": pa.int16()},
)

KERNELS = TableSpec(
    required={"start_ts": pa.int64(), "end_ts": pa.int64(), "name": _NAME, "pcore_idx": pa.int16()},
    optional={},
)

SOURCES = TableSpec(
    required={"kernel_instruction_name": _NAME},
    optional={
        "pcore_idx": pa.int16(),
        "stack_frame_id": pa.int64(),
        "stack_frame_depth": pa.int64(),
        "file_path": _NAME,
        "line_number": pa.int64(),
        "function_name": _NAME,
    },
)

TABLE_SPECS: dict[str, TableSpec] = {
    "instructions": INSTRUCTIONS,
    "dma_packets": DMA_PACKETS,
    "dma_transfers": DMA_TRANSFERS,
    "semaphores": SEMAPHORES,
    "collectives": COLLECTIVES,
    "throttle": THROTTLE,
    "kernels": KERNELS,
    "sources": SOURCES,
}


@dataclass(frozen=True, kw_only=True)
class Core:
    """One physical core's place in a capture."""

    core: int
    """0-based, in the order of the capture's subgraphs; `pcore_idx` in every table."""
    subgraph: str
    """The capture's name for it: sg00, sg01."""
    window_start_ts: int
    """Start of the execution, ns on the capture's clock (0 wherever the capture knows the execution's start)."""
    window_end_ts: int
    """End of the execution, ns."""
    neuroncore_idx: int | None = None
    neuron_device_idx: int | None = None
    rank: int | None = None
    hbm_read_bytes: int | None = None
    """What the capture itself totals for this core, where it cannot be had from the instruction rows."""
    hbm_write_bytes: int | None = None


@dataclass(frozen=True)
class CaptureIssue:
    """Something a reader found wrong or missing in a capture; the code's text is in trnprof.findings."""

    code: str
    count: int | None = None
    detail: str = ""
    """What exactly, one line; may hold untrusted strings."""


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """What a capture says of itself. None is "the capture does not say"."""

    format: str
    """ntff, explorer-parquet, legacy-json, summary-json, summary-text; or what made it."""
    format_version: str | None = None
    provenance: Provenance
    cores: tuple[Core, ...]
    hardware: str | None = None
    """trn1, trn2, trn3: the name of a table in trnprof.hardware."""
    instance_type: str | None = None
    neff_uuid: str | None = None
    neff_path: str | None = None
    """As the capture recorded it (a path on the capturing machine; untrusted)."""
    versions: dict[str, str] = field(default_factory=dict)
    """runtime, driver, collectives, compiler, profiler: version text each."""
    hbm_bandwidth_bytes_per_s: int | None = None
    """Peak of one HBM stack, as the capture says."""
    dma_bandwidth_bytes_per_s: int | None = None
    """Peak of one core's DMA engines, as the capture says."""
    clock_hz: dict[str, int] = field(default_factory=dict)
    """tensor, vector, scalar, gpsimd, base: clocks as the capture says."""
    execution_index: int | None = None
    """1 is the first execution of the NEFF, which also loads libraries."""
    dge_notifications: bool | None = None
    """Were dynamic DMAs' descriptors recorded? Without them variables and sizes of dynamic DMAs may be unknown."""
    dropped_record_count: int | None = None
    """Records the capture says it lost; None: it does not say."""
    has_step_markers: bool = False
    steps: tuple[Step, ...] = ()
    """The steps that the capture marks inside its window, by start; empty where it marks none."""
    static_dma_attributed: bool = True
    """Do the instructions' hbm_*_bytes include static rings? (They need the NEFF where the capture is an NTFF.)"""
    summary: dict[str, int | float | str] = field(default_factory=dict)
    """The vendor's summary metrics where the capture carries them: its names, its units (seconds, shares)."""
    static_dma: tuple[DmaQueue, ...] = ()
    tensors: tuple[TensorSize, ...] = ()
    """The program's tensors, where the capture lists them; `name` is what the DMA tables' `variable` says."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One execution, or one step, of several in a capture."""

    index: int
    """As the capture numbers it."""
    name: str = ""
    """Of what was executed; untrusted."""
    start_ts: int
    """ns on the capture's clock; may lie before the window's start."""
    end_ts: int | None
    """ns; None: it was not over when the capture ended. May lie beyond the window's end."""


@dataclass(frozen=True, kw_only=True)
class TensorSize:
    """One tensor of the program in HBM."""

    name: str
    kind: str
    """input, output or weight."""
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class DmaQueue:
    """One ring of one DMA engine, as the capture lists it."""

    core: int
    engine_idx: int
    queue_idx: int
    name: str
    type: str
    """One of DmaQueueType (schema 7.4.0)."""
    descriptor_count: int | None = None


class ProfileError(Exception):
    """A reader or writer broke the Profile contract (a programming error, not a user's)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Profile:
    """One capture (or one model of a capture) of one execution on the physical cores that it names.

    Each table is a pyarrow Table with the columns of its TableSpec, or None where it was not captured. Rows are sorted
    by (pcore_idx, start) where the spec has both. Construction checks names and types and casts nothing.
    """

    metadata: Metadata
    instructions: pa.Table | None = None
    dma_packets: pa.Table | None = None
    dma_transfers: pa.Table | None = None
    semaphores: pa.Table | None = None
    collectives: pa.Table | None = None
    throttle: pa.Table | None = None
    kernels: pa.Table | None = None
    sources: pa.Table | None = None
    issues: tuple[CaptureIssue, ...] = ()

    def __post_init__(self) -> None:
        for name, table in self.tables():
            if table is None:
                continue
            spec = TABLE_SPECS[name]
            missing = [column for column in spec.required if column not in table.column_names]
            if missing:
                raise ProfileError(f"{name} lacks {', '.join(missing)}")
            for column in table.column_names:
                wanted = spec.columns.get(column)
                if wanted is None:
                    raise ProfileError(f"{name} has an unknown column {column}")
                if table.schema.field(column).type != wanted:
                    raise ProfileError(f"{name}.{column} is {table.schema.field(column).type}, not {wanted}")

    def tables(self) -> Iterator[tuple[str, pa.Table | None]]:
        """(name, table) of each table in TABLE_SPECS' order."""
        for name in TABLE_SPECS:
            yield name, getattr(self, name)

    def core_rows(self, name: str, core: int) -> pa.Table | None:
        """The rows of one table that belong to one physical core; None where the table was not captured."""
        import pyarrow.compute as pc

        table: pa.Table | None = getattr(self, name)
        if table is None or "pcore_idx" not in table.column_names:
            return table
        mask = pc.equal(table["pcore_idx"], pa.scalar(core, pa.int16()))
        if name == "collectives":
            mask = pc.fill_null(mask, True)
        return table.filter(mask)


def make_table(name: str, columns: dict[str, object]) -> pa.Table:
    """A table of the spec `name` from arrays (numpy, pyarrow or lists) of one length, cast to the spec's types.

    Raises ProfileError for a column that the spec does not have, pa.ArrowInvalid for values that do not fit.
    """
    spec = TABLE_SPECS[name]
    arrays, fields = [], []
    for column, values in columns.items():
        wanted = spec.columns.get(column)
        if wanted is None:
            raise ProfileError(f"{name} has no column {column}")
        array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
        if array.type != wanted:
            if pa.types.is_dictionary(wanted) and not pa.types.is_dictionary(array.type):
                array = array.cast(pa.string()).dictionary_encode()
            array = array.cast(wanted)
        arrays.append(array)
        fields.append(pa.field(column, wanted))
    return pa.table(arrays, schema=pa.schema(fields))


def coded_column(codes: object, names: list[str]) -> pa.DictionaryArray:
    """A name column from integer codes (numpy int32, shape [n]) into `names`."""
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(names, pa.string()))


def codes_of(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.int32], list[str]]:
    """(codes, names) of a name column: codes index into names, -1 is null; shape [n]."""
    unified = column.unify_dictionaries().combine_chunks()
    if isinstance(unified, pa.ChunkedArray):  # zero chunks, or more than one where the indices do not fit one
        unified = pa.concat_arrays(unified.chunks) if unified.num_chunks else pa.array([], column.type)
    codes = unified.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return codes.astype(np.int32, copy=False), unified.dictionary.to_pylist()


def int64_of(column: pa.ChunkedArray, *, null: int = 0) -> npt.NDArray[np.int64]:
    """A numeric column as int64, nulls replaced; shape [n]; no copy where none is needed."""
    if column.null_count:
        column = column.fill_null(pa.scalar(null, column.type))
    return column.to_numpy().astype(np.int64, copy=False)

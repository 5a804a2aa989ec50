"""What a NEFF's program moves by DMA: its variables, its queue sets, and its static rings with their descriptors.

Source: aws-neuron-sdk, neuron-runtime/explore/work-with-neff-files.rst (def.json, {ENGINE}.json). A static ring is started
by a PSEUDO_DMA_TRIGGER in the owning engine's stream, which names the queue and the ring's id; its layout was read off
46,070 triggers of public NEFFs, each of which finds its ring. A dynamic DMA has no ring: it is one instruction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trnprof.readers.isa import AddressSpace, DmaSide, decode_dma_direct2d, is_dma_direct2d
from trnprof.readers.neff_container import MalformedNeff, shown
from trnprof.readers.neff_json import as_list, as_object, as_text, as_whole, optional_text, optional_whole, whole_list

Ints = npt.NDArray[np.int64]

HBM_VARIABLE_TYPES = frozenset({"input", "output", "file", "virtual", "tmp-buf", "pointer"})
"""Variables that lie in HBM; `state-buffer` is the core's SBUF, a `dge-table` is a list of variables."""

DMA_TRIGGER = 0xC1
"""Opcode of PSEUDO_DMA_TRIGGER: 12..47 the queue's name in ASCII, zero padded; u32 at 48 the ring's id."""

_MAX_DIMENSIONS = 8
"""Of an access pattern; the document allows 4."""

VARIABLES = pa.schema(
    {
        "name": pa.string(),
        "type": pa.string(),
        "var_id": pa.int64(),
        "size_bytes": pa.int64(),  # null: the type has none
        "dtype": pa.string(),
        "shape": pa.list_(pa.int64()),
        "layout": pa.string(),  # the compiler's name for the order of dimensions: NC, CRSM
        "file_name": pa.string(),  # the member with the content, of type `file`
        "alignment_bytes": pa.int64(),
        "backing_offset_bytes": pa.int64(),  # in the shared scratchpad, of type `virtual`
        "table_var_ids": pa.list_(pa.int64()),  # of type `dge-table`
    }
)

_SOURCE = pa.struct(
    {
        "variable": pa.string(),
        "offset_bytes": pa.int64(),
        "sizes": pa.list_(pa.int64()),  # the first in bytes, the others in elements
        "steps_bytes": pa.list_(pa.int64()),
        "dtype": pa.string(),
    }
)

RINGS = pa.schema(
    {
        "engine": pa.string(),
        "ring_id": pa.int64(),
        "queue": pa.string(),
        "queue_instance": pa.string(),
        "function": pa.string(),  # the function whose ids start here
        "semaphore": pa.int64(),
        "event": pa.int64(),
        "name": pa.string(),  # of the DMA block in the debug info
        "descriptor_count": pa.int64(),  # rows of DESCRIPTORS
        "read_bytes": pa.int64(),
        "write_bytes": pa.int64(),
        "hbm_read_bytes": pa.int64(),  # null: the type of a variable is not known
        "hbm_write_bytes": pa.int64(),
    }
)

DESCRIPTORS = pa.schema(
    {
        "ring": pa.int64(),  # row of RINGS
        "op": pa.string(),  # copy, cast, add, min, max, fma, transpose
        "sources": pa.list_(_SOURCE),  # more than one only for add, min, max, fma
        "variable": pa.string(),  # destination, as in sources
        "offset_bytes": pa.int64(),
        "sizes": pa.list_(pa.int64()),
        "steps_bytes": pa.list_(pa.int64()),
        "dtype": pa.string(),
        "read_bytes": pa.int64(),
        "write_bytes": pa.int64(),
        "tiling_dimension_count": pa.int64(),
        "transpose_op": pa.string(),
        "transpose_shape": pa.list_(pa.int64()),
        "transpose_element_bytes": pa.int64(),
    }
)


@dataclass(frozen=True, kw_only=True)
class DmaQueueSet:
    """One queue set of a core."""

    name: str
    type: str
    """in, out, data, embedding_update, dynamic."""
    queue_count: int = 1
    """Hardware queues, one DMA engine each."""
    owner: str | None = None
    """Engine that triggers it: pe, act, pool, dve, sp."""
    semaphores: tuple[int, ...] = ()
    instances: tuple[str, ...] = ()
    fabric_path: str = "main"


def read_queue_sets(definition: dict[str, object], place: str) -> tuple[DmaQueueSet, ...]:
    """The queue sets in a def.json, in its order. Raises MalformedNeff."""
    queues = []
    for name, value in as_object(definition.get("dma_queue", {}), f"{place}, dma_queue").items():
        at = f"{place}, queue {shown(name)}"
        item = as_object(value, at)
        semaphores = whole_list(item.get("semaphore_set", []), f"{at}, semaphore_set")
        single = optional_whole(item, "semaphore", at)
        instances = as_list(item.get("queue_instances", []), f"{at}, queue_instances")
        queues.append(
            DmaQueueSet(
                name=name,
                type=as_text(item.get("type", ""), f"{at}, type"),
                queue_count=as_whole(item.get("num_queues", 1), f"{at}, num_queues"),
                owner=optional_text(item, "owner", at),
                semaphores=tuple(semaphores if single is None else [*semaphores, single]),
                instances=tuple(as_text(instance, f"{at}, queue_instances") for instance in instances),
                fabric_path=as_text(item.get("fabric_path", "main"), f"{at}, fabric_path"),
            )
        )
    return tuple(queues)


def read_variables(
    definition: dict[str, object],
    tensor_map: dict[str, object],
    signature: Mapping[str, tuple[str | None, list[int] | None]],
    place: str,
) -> pa.Table:
    """The variables in a def.json, sorted by var_id; columns of VARIABLES.

    tensor_map: the subgraph's tensor_map.json, which knows dtype and shape, by tensor name or by the content's file.
    signature: (dtype, shape) of the program's inputs and outputs, from neff.json, for those the map does not have.

    Raises: MalformedNeff.
    """
    by_file = {
        item["tf_file"]: item
        for item in tensor_map.values()
        if isinstance(item, dict) and isinstance(item.get("tf_file"), str)
    }
    rows = []
    for name, value in as_object(definition.get("var", {}), f"{place}, var").items():
        at = f"{place}, variable {shown(name)}"
        item = as_object(value, at)
        file_name = optional_text(item, "file_name", at)
        known = tensor_map.get(name) or by_file.get(file_name)
        dtype, shape = signature.get(name, (None, None))
        layout = None
        if isinstance(known, dict):
            dtype = optional_text(known, "dtype", at)
            shape = whole_list(known["tf_shape"], f"{at}, tf_shape") if known.get("tf_shape") is not None else None
            layout = optional_text(known, "tf_format", at)
        rows.append(
            {
                "name": name,
                "type": as_text(item.get("type"), f"{at}, type"),
                "var_id": as_whole(item.get("var_id"), f"{at}, var_id"),
                "size_bytes": optional_whole(item, "size", at),
                "dtype": dtype,
                "shape": shape,
                "layout": layout,
                "file_name": file_name,
                "alignment_bytes": optional_whole(item, "alignment", at),
                "backing_offset_bytes": optional_whole(item, "backing_variable_off", at),
                "table_var_ids": None if item.get("list") is None else whole_list(item["list"], f"{at}, list"),
            }
        )
    rows.sort(key=lambda row: (row["var_id"], row["name"]))
    return pa.Table.from_pylist(rows, schema=VARIABLES)


@dataclass(frozen=True, eq=False)
class StaticDma:
    """A core's static rings and their descriptors."""

    rings: pa.Table
    """Columns of RINGS, in the order of the engines and of their JSON."""
    descriptors: pa.Table
    """Columns of DESCRIPTORS, in the order of the rings."""


class _Columns:
    """Rows collected by column, so that no row is ever a Python object of its own in the table."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._columns: dict[str, list[object]] = {name: [] for name in schema.names}
        self.row_count = 0

    def add(self, **values: object) -> None:
        for name, column in self._columns.items():
            column.append(values.get(name))
        self.row_count += 1

    def table(self) -> pa.Table:
        return pa.table(
            [pa.array(column, self._schema.field(name).type) for name, column in self._columns.items()],
            schema=self._schema,
        )


def read_static_dma(dma_lists: dict[str, list[object]], variables: pa.Table, subgraph: str) -> StaticDma:
    """The static rings of one core.

    dma_lists: the `dma` list of each engine's JSON, by engine name.
    variables: the core's variables; their types say which bytes lie in HBM.

    Raises: MalformedNeff.
    """
    types = dict(zip(variables["name"].to_pylist(), variables["type"].to_pylist(), strict=True))
    rings, descriptors = _Columns(RINGS), _Columns(DESCRIPTORS)
    for engine, dma_list in dma_lists.items():
        for index, value in enumerate(dma_list):
            place = f"{subgraph}, DMA ring {index} of {engine}"
            item = as_object(value, place)
            totals = _Totals()
            items = as_list(item.get("desc", []), f"{place}, desc")
            for descriptor in items:
                _add_descriptor(
                    descriptors, rings.row_count, as_object(descriptor, f"{place}, desc"), types, totals, place
                )
            rings.add(
                engine=engine,
                ring_id=as_whole(item.get("id"), f"{place}, id"),
                queue=optional_text(item, "queue", place),
                queue_instance=optional_text(item, "instance_name", place),
                function=optional_text(item, "function_start", place) or None,
                semaphore=optional_whole(item, "semaphore", place),
                event=optional_whole(item, "event", place),
                name=optional_text(item, "#comment", place),
                descriptor_count=len(items),
                read_bytes=_fitting(totals.read, place),
                write_bytes=_fitting(totals.write, place),
                hbm_read_bytes=totals.hbm_read,
                hbm_write_bytes=totals.hbm_write,
            )
    return StaticDma(rings.table(), descriptors.table())


@dataclass
class _Totals:
    read: int = 0
    write: int = 0
    hbm_read: int | None = 0
    hbm_write: int | None = 0


def _add_descriptor(
    table: _Columns, ring: int, item: dict[str, object], types: dict[str, str], totals: _Totals, place: str
) -> None:
    sources = []
    read_bytes = 0
    for source in as_list(item["from_arr"], f"{place}, from_arr") if "from_arr" in item else [item]:
        part = _access_pattern(as_object(source, f"{place}, from_arr"), "from", place)
        sources.append(part)
        count = _byte_count(part["sizes"], place)
        read_bytes += count
        totals.hbm_read = _plus_hbm(totals.hbm_read, types.get(part["variable"]), count)
    to = _access_pattern(item, "to", place)
    write_bytes = _byte_count(to["sizes"], place)
    totals.read += read_bytes
    totals.write += write_bytes
    totals.hbm_write = _plus_hbm(totals.hbm_write, types.get(to["variable"]), write_bytes)
    table.add(
        ring=ring,
        op=as_text(item.get("op", "copy"), f"{place}, op"),
        sources=sources,
        **to,
        read_bytes=_fitting(read_bytes, place),
        write_bytes=write_bytes,
        tiling_dimension_count=optional_whole(item, "num_tiling_dimensions", place),
        transpose_op=optional_text(item, "transpose_op", place),
        transpose_shape=whole_list(item["transpose_shape"], place) if item.get("transpose_shape") is not None else None,
        transpose_element_bytes=optional_whole(item, "transpose_element_size", place),
    )


def _access_pattern(item: dict[str, object], side: str, place: str) -> dict[str, Any]:
    sizes = whole_list(item.get(f"{side}_sizes"), f"{place}, {side}_sizes")
    steps = whole_list(item.get(f"{side}_steps"), f"{place}, {side}_steps")
    if not 0 < len(sizes) <= _MAX_DIMENSIONS or len(steps) != len(sizes) or min(sizes) < 0:
        raise MalformedNeff(f"{place}: {side}_sizes and {side}_steps are no access pattern")
    return {
        "variable": as_text(item.get(side), f"{place}, {side}"),
        "offset_bytes": as_whole(item.get(f"{side}_off", 0), f"{place}, {side}_off"),
        "sizes": sizes,
        "steps_bytes": steps,
        "dtype": as_text(item.get(f"{side}_dtype", "uint8"), f"{place}, {side}_dtype"),
    }


def _byte_count(sizes: list[int], place: str) -> int:
    # The innermost size is in bytes, the others are counts.
    return _fitting(math.prod(sizes), place)


def _fitting(byte_count: int, place: str) -> int:
    if byte_count >= 1 << 48:
        raise MalformedNeff(f"{place} moves an impossible number of bytes")
    return byte_count


def _plus_hbm(total: int | None, variable_type: str | None, byte_count: int) -> int | None:
    if total is None or variable_type is None:
        return None
    return total + byte_count if variable_type in HBM_VARIABLE_TYPES else total


def find_triggered_rings(words: npt.NDArray[np.uint8], engine: str, rings: pa.Table) -> tuple[Ints, Ints, Ints]:
    """(instruction, HBM bytes read, HBM bytes written) of each static DMA trigger in a stream; -1 where not known.

    words: shape [n, 64]. Rings of the same engine, queue and id are started together. Where a queue numbers its rings
    anew for each function, a trigger alone does not say which ring it starts.
    """
    at = np.flatnonzero(words[:, 0] == DMA_TRIGGER)
    none = np.full(len(at), -1, np.int64)
    is_mine = np.array(rings["engine"].to_pylist(), object) == engine
    if not len(at) or not is_mine.any():
        return at, none, none
    mine = rings.filter(pa.array(is_mine))
    names = np.ascontiguousarray(words[at, 12:48]).view("S36").ravel()
    ids = np.ascontiguousarray(words[at, 48:52]).view("<u4").ravel().astype(np.int64)
    queues = mine["queue"].to_pylist()
    instances = mine["queue_instance"].to_pylist()
    labels = [(instance or queue or "").encode() for queue, instance in zip(queues, instances, strict=True)]
    per_function = {
        label for label, function in zip(labels, mine["function"].to_pylist(), strict=True) if function is not None
    }
    known, ring_queue = np.unique(np.array(labels, "S"), return_inverse=True)
    queue = np.searchsorted(known, names)
    queue = np.where(known[np.minimum(queue, len(known) - 1)] == names, queue, -1)
    ring_key = ring_queue.astype(np.int64) << 32 | mine["ring_id"].to_numpy() & 0xFFFFFFFF
    keys, group = np.unique(ring_key, return_inverse=True)
    key = np.where(queue < 0, -1, queue << 32 | ids)
    found = np.searchsorted(keys, key)
    exists = keys[np.minimum(found, len(keys) - 1)] == key
    ambiguous = np.isin(names, np.array(sorted(per_function), "S")) if per_function else np.zeros(len(at), bool)
    result = []
    for column in ("hbm_read_bytes", "hbm_write_bytes"):
        values = mine[column].fill_null(-1).to_numpy()
        total = np.zeros(len(keys), np.int64)
        np.add.at(total, group, np.maximum(values, 0))
        unknown = np.zeros(len(keys), bool)
        unknown[group[values < 0]] = True
        total[unknown] = -1
        result.append(np.where(exists & ~ambiguous, total[np.minimum(found, len(keys) - 1)], -1))
    return at, result[0], result[1]


def dma_hbm_bytes(words: npt.NDArray[np.uint8], engine: str, variables: pa.Table, rings: pa.Table) -> tuple[Ints, Ints]:
    """(HBM bytes read, written) by the DMA that each instruction of a stream starts, static or dynamic. Shape [n].

    -1: the instruction starts none, or the memory that it moves from or to is not known.
    """
    read = np.full(len(words), -1, np.int64)
    write = np.full(len(words), -1, np.int64)
    at, ring_read, ring_write = find_triggered_rings(words, engine, rings)
    read[at], write[at] = ring_read, ring_write
    dynamic = np.flatnonzero(is_dma_direct2d(words))
    if len(dynamic):
        geometry = decode_dma_direct2d(words[dynamic])
        read[dynamic] = _side_hbm_bytes(geometry.source, variables)
        write[dynamic] = _side_hbm_bytes(geometry.dest, variables)
    return read, write


def _side_hbm_bytes(side: DmaSide, variables: pa.Table) -> Ints:
    """HBM bytes of one side of dynamic DMAs, -1 where the memory is not known."""
    types = variables["type"].to_pylist()
    is_hbm = {
        var_id: 1 if kind in HBM_VARIABLE_TYPES else 0
        for var_id, kind in zip(variables["var_id"].to_pylist(), types, strict=True)
        if kind in HBM_VARIABLE_TYPES or kind == "state-buffer"
    }
    used, place = np.unique(side.variable, return_inverse=True)
    of_variable = np.array([is_hbm.get(var_id, -1) for var_id in used.tolist()], np.int64)[place]
    # Entries of the table of tensors are inputs, outputs and other tensors in HBM, which `space` says.
    in_hbm = np.where(side.space == AddressSpace.HBM, 1, 0)
    in_hbm = np.where(side.space == AddressSpace.UNKNOWN, -1, in_hbm)
    in_hbm = np.where(side.space == AddressSpace.VARIABLE, of_variable, in_hbm)
    return np.where(in_hbm < 0, -1, np.where(in_hbm == 1, side.byte_count, 0))

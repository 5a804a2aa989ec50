"""A NEFF's debug info: what each instruction was compiled from.

Two kinds of members. The `.dbg` files are protobuf, one message each and one schema for all (observed, not documented):
1 description, 2 name of the level above, 3 repeated entry, 4 engine, 5 source files, 7 kernel names; an entry is 1 id,
2 name, 3 ids in the level above, 4 and 5 ids of the entries it depends on in its own level (by data, and by the schedule)
with 9 and 10 their kinds, 6 its own kind, 7 a map of attributes. The levels are assembly (entry i is instruction i of
the stream) -> backend (BIR) -> penguin -> HLO -> framework.
NKI kernels add `<kernel>.debuginfo.json`, a tree of functions, loop iterations and instructions.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trnprof.readers import protobuf
from trnprof.readers.neff_container import MalformedNeff, shown
from trnprof.readers.neff_json import as_whole
from trnprof.readers.protobuf_columns import Spans, decode_columns

Ints = npt.NDArray[np.int64]

DEPENDENCY_KINDS = {1: "ORDERED", 2: "ANTI_DEPENDENCE", 3: "OUTPUT_DEPENDENCE", 4: "FLOW_DEPENDENCE"}
"""As the vendor's profiler names them."""

INSTRUCTION_KINDS = {1: "REGULAR", 3: "TRANSPOSE"}
"""As the vendor's profiler names them; 2 is seen on spills only, and no profile names it."""

ENTRIES = pa.schema(
    {
        "id": pa.int64(),
        "name": pa.string(),
        "parent_ids": pa.list_(pa.int64()),
        "dependency_ids": pa.list_(pa.int64()),
        "dependency_kinds": pa.list_(pa.int64()),  # keys of DEPENDENCY_KINDS, beside dependency_ids
        "schedule_ids": pa.list_(pa.int64()),
        "schedule_kinds": pa.list_(pa.int64()),
        "kind": pa.int64(),  # a key of INSTRUCTION_KINDS, or one that is not known; 0: none
        "attributes": pa.map_(pa.string(), pa.string()),
    }
)
_ENTRY_KEY = 3 << 3 | 2
_LIST_FIELDS = {"parent_ids": 3, "dependency_ids": 4, "schedule_ids": 5, "dependency_kinds": 9, "schedule_kinds": 10}


@dataclass(frozen=True, eq=False)
class DebugLevel:
    """One `.dbg` member."""

    description: str
    parent_name: str
    """Name of the level that parent_ids point into."""
    engine_code: int
    """1 PE, 2 Activation, 3 Pool, 4 DMA, 5 DVE, 6 SP; 0 for the levels that are not one engine's."""
    source_files: tuple[str, ...]
    """What the attribute `kernel_file` indexes."""
    kernel_names: tuple[str, ...]
    """What the attribute `kernel_name` indexes."""
    entries: pa.Table
    """Columns of ENTRIES."""


def read_debug_level(content: bytes) -> DebugLevel:
    """A `.dbg` member. Raises WireError if it is not the message described above."""
    header, spans = _split(content)
    columns = decode_columns(spans)
    offsets, pairs = columns.messages(7)
    pair_columns = decode_columns(pairs)
    arrays = {
        "id": pa.array(columns.integers(1)),
        "name": columns.strings(2),
        "kind": pa.array(columns.integers(6)),
        "attributes": pa.MapArray.from_arrays(offsets, pair_columns.strings(1), pair_columns.strings(2)),
    } | {name: columns.integer_lists(number) for name, number in _LIST_FIELDS.items()}

    def texts(number: int) -> tuple[str, ...]:
        return tuple(protobuf.text(value) for field, value in header if field == number)

    return DebugLevel(
        description="".join(texts(1)[-1:]),
        parent_name="".join(texts(2)[-1:]),
        engine_code=next((protobuf.number(value) for field, value in reversed(header) if field == 4), 0),
        source_files=texts(5),
        kernel_names=texts(7),
        entries=pa.table([arrays[name] for name in ENTRIES.names], schema=ENTRIES),
    )


def read_parent_ids(content: bytes) -> Ints:
    """The assembly level, of which only the parents matter: the backend id of each instruction, shape [n]; -1: none.

    Raises: WireError as read_debug_level.
    """
    _, spans = _split(content)
    lists = decode_columns(spans).integer_lists(3)
    return first_of_lists(lists)


def first_of_lists(lists: pa.ListArray) -> Ints:
    """The first value of each list, shape [n]; -1 where it is empty."""
    offsets = lists.offsets.to_numpy()
    values = lists.values.to_numpy(zero_copy_only=False)
    first = np.full(len(lists), -1, np.int64)
    filled = np.flatnonzero(offsets[1:] > offsets[:-1])
    first[filled] = values[offsets[:-1][filled]]
    return first


def _split(content: bytes) -> tuple[list[tuple[int, protobuf.Value]], Spans]:
    """(the other fields, the spans of the entries) of a `.dbg` member."""
    # Entries follow each other in the millions, so this loop takes them without the generality of protobuf.fields.
    view = memoryview(content)
    header: list[tuple[int, protobuf.Value]] = []
    start, end = array("q"), array("q")
    at, size = 0, len(view)
    while at < size:
        key = view[at]
        if at + 1 < size and key & 7 == 2 and key < 0x80 and view[at + 1] < 0x80:
            length, first = view[at + 1], at + 2
        else:
            key, first = protobuf.varint(view, at)
            if key & 7 == 0:
                value, at = protobuf.varint(view, first)
                header.append((key >> 3, value))
                continue
            if key & 7 != 2:
                raise protobuf.WireError(f"wire type {key & 7} at byte {at}")
            length, first = protobuf.varint(view, first)
        if length > size - first:
            raise protobuf.WireError(f"field {key >> 3} at byte {at} claims {length} bytes, {size - first} are left")
        at = first + length
        if key == _ENTRY_KEY:
            start.append(first)
            end.append(at)
        else:
            header.append((key >> 3, view[first:at]))
    return header, Spans(np.frombuffer(content, np.uint8), np.array(start, np.int64), np.array(end, np.int64))


KERNEL_NODES = pa.schema(
    {
        "parent": pa.int32(),  # row of the function or iteration around this node; -1: outermost
        "kind": pa.string(),  # func, iter, inst
        "name": pa.string(),  # of the function, the loop variable or the instruction
        "line": pa.int64(),  # func: where it is defined; iter: the loop; inst: the call that made the instruction
        "file": pa.string(),  # func only
        "value": pa.string(),  # iter only: the loop variable's value
        "program": pa.int32(),  # which entry of the file's list, one for each program of the kernel's grid
    }
)


@dataclass(frozen=True, eq=False)
class KernelTree:
    """Which NKI call, in which function and loop iteration, made each instruction of one kernel."""

    file_name: str
    kernel_name: str
    parent_penguin_id: int
    """Penguin id of the instruction that calls the kernel; the kernel's own BIR instructions have it as their parent."""
    lnc: tuple[int, ...]
    """The `lnc` of each entry of the file's list."""
    nodes: pa.Table
    """Columns of KERNEL_NODES; a parent stands before its children (pre-order)."""


_NODE_KEYS = {"func": "name", "iter": "var", "inst": "name"}


def read_kernel_tree(document: object, *, file_name: str, kernel_name: str, parent_penguin_id: int) -> KernelTree:
    """The tree in a parsed `.debuginfo.json`. Raises MalformedNeff if it is none."""
    place = shown(file_name)
    columns: dict[str, list[object]] = {name: [] for name in KERNEL_NODES.names}
    lnc: list[int] = []
    for program, item in enumerate(document if isinstance(document, list) else [document]):
        if not isinstance(item, dict) or not isinstance(item.get("info"), list):
            raise MalformedNeff(f"{place} has no list `info` of instructions")
        lnc.append(as_whole(item.get("lnc", 0), place))
        pending = [(-1, node) for node in reversed(item["info"])]
        while pending:
            parent, node = pending.pop()
            if not isinstance(node, dict) or len(node) != 1:
                raise MalformedNeff(f"{place}: a node that is neither func, iter nor inst")
            ((kind, content),) = node.items()
            if kind not in _NODE_KEYS or not isinstance(content, dict):
                raise MalformedNeff(f"{place}: a node that is neither func, iter nor inst")
            row = len(columns["parent"])
            columns["parent"].append(parent)
            columns["kind"].append(kind)
            columns["name"].append(str(content.get(_NODE_KEYS[kind], "")))
            columns["line"].append(as_whole(content.get("line", 0), place))
            columns["file"].append(str(content.get("file", "")) if kind == "func" else None)
            columns["value"].append(str(content.get("val", "")) if kind == "iter" else None)
            columns["program"].append(program)
            children = content.get("children", [])
            if not isinstance(children, list):
                raise MalformedNeff(f"{place}: children that are no list")
            pending.extend((row, child) for child in reversed(children))
    nodes = pa.table({name: pa.array(columns[name], KERNEL_NODES.field(name).type) for name in KERNEL_NODES.names})
    return KernelTree(file_name, kernel_name, parent_penguin_id, tuple(lnc), nodes)

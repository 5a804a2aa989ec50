"""Where each instruction of a NEFF comes from: its BIR instruction, penguin, HLO and framework op, source line, bytes.

The chain: instruction i of an engine's stream -> assembly entry i -> BIR instruction -> penguin -> HLO -> framework. An
entry with several parents is followed to its first (no public NEFF has such an entry). All of it is index arithmetic on
columns: nothing here loops over instructions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trnprof.profile import ENGINES, coded_column, make_table
from trnprof.readers.isa import OPCODE_NAMES, is_dma_direct2d
from trnprof.readers.neff import Neff
from trnprof.readers.neff_debug import ENTRIES, INSTRUCTION_KINDS, DebugLevel, KernelTree, first_of_lists
from trnprof.readers.neff_dma import DMA_TRIGGER, dma_hbm_bytes

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Origins:
    """What is known of every instruction of every core of a NEFF."""

    columns: pa.Table
    """One row per instruction, engine after engine and core after core. Columns of trnprof.profile.INSTRUCTIONS:
    compiler_opcode, bir_id, bir_instruction_name, kernel_instruction_name, penguin_id, hlo_name, layer,
    nki_source_location, bir_debug_info_source_location, tensor_instruction_type, hbm_read_bytes, hbm_write_bytes."""
    first_row: Ints
    """Shape [cores, engines] in the order of ENGINES: row of the stream's first instruction."""
    instruction_count: Ints
    """Shape [cores, engines]."""
    is_static_dma: npt.NDArray[np.bool_]
    """Which rows trigger static rings; shape [rows]."""
    is_dma: npt.NDArray[np.bool_]
    """Which rows start a DMA, static or dynamic; shape [rows]."""
    is_pseudo: npt.NDArray[np.bool_]
    """Which rows the runtime replaces by other instructions; shape [rows]."""
    sources: pa.Table
    """Rows of trnprof.profile.SOURCES: each kernel instruction's stack frames, innermost (depth 0) first."""


def trace_origins(neff: Neff) -> Origins:
    """The origins of all instructions of `neff`, which must have been read with its debug info."""
    above = _Above(neff)
    tables, sources = [], []
    first: list[list[int]] = []
    counts: list[list[int]] = []
    opcodes: list[npt.NDArray[np.uint8]] = []
    row = 0
    for core in neff.cores:
        trees = [_KernelIndex(tree, core.core) for tree in neff.kernels]
        first.append([])
        counts.append([])
        for engine in ENGINES:
            stream = core.streams[engine]
            bir = _bir_columns(core.backend.get(engine, _NO_LEVEL), above, trees)
            entries = _rows_of(bir.ids, stream.bir_ids)
            read, write = dma_hbm_bytes(core.streams[engine].words, engine, core.variables, core.static_dma.rings)
            opcode = stream.words[:, 0]
            columns = {"compiler_opcode": coded_column(opcode.astype(np.int32), list(OPCODE_NAMES))}
            columns |= {name: _take(column, entries) for name, column in bir.columns.items()}
            columns |= {
                "hbm_read_bytes": pa.array(read, mask=read < 0),
                "hbm_write_bytes": pa.array(write, mask=write < 0),
            }
            tables.append(make_table("instructions", columns))
            opcodes.append(opcode)
            first[-1].append(row)
            counts[-1].append(len(opcode))
            row += len(opcode)
            sources.append(_sources(bir, entries, core.core))
    all_opcodes = np.concatenate(opcodes)
    is_static = all_opcodes == DMA_TRIGGER
    return Origins(
        columns=pa.concat_tables(tables).unify_dictionaries().combine_chunks(),
        first_row=np.array(first, np.int64),
        instruction_count=np.array(counts, np.int64),
        is_static_dma=is_static,
        is_dma=is_static | is_dma_direct2d(all_opcodes[:, None]),
        is_pseudo=(all_opcodes >= 0xC1) & (all_opcodes <= 0xDF),
        sources=pa.concat_tables(sources).unify_dictionaries().combine_chunks(),
    )


def _rows_of(ids: Ints, wanted: Ints) -> Ints:
    """The row of each wanted id in `ids`, shape as wanted; -1 where it is not there, the last where it repeats.

    HLO levels give a computation and its instructions ids of one sequence, computations first: hence the last.
    """
    if not len(ids):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(ids, kind="stable")
    found = order[np.maximum(np.searchsorted(ids[order], wanted, side="right") - 1, 0)]
    return np.where(ids[found] == wanted, found, -1)


def _take(column: pa.Array, rows: Ints) -> pa.Array:
    """The column's values at `rows`, null where a row is -1."""
    return column.take(pa.array(rows, mask=rows < 0))


def _ids(level: DebugLevel) -> Ints:
    return level.entries["id"].to_numpy()


def _parents(level: DebugLevel) -> Ints:
    return first_of_lists(level.entries["parent_ids"].combine_chunks())


def _attribute(level: DebugLevel, key: str) -> pa.Array:
    """An attribute of each entry, null where the entry has none of that name; shape [entries]."""
    maps = level.entries["attributes"].combine_chunks()
    at = np.flatnonzero(pc.equal(maps.keys, key).to_numpy(zero_copy_only=False))
    rows = np.full(len(maps), -1, np.int64)
    rows[np.searchsorted(maps.offsets.to_numpy(), at, side="right") - 1] = at
    return _take(maps.items, rows)


def _indexed(level: DebugLevel, key: str) -> Ints:
    """An attribute that is a small number, shape [entries]; -1 where there is none."""
    text = _attribute(level, key)
    is_number = pc.match_substring_regex(text, r"^[0-9]{1,9}$")
    return pc.if_else(is_number, text, None).cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)


def _locations(level: DebugLevel) -> pa.Array:
    """`file:line` of the kernel source that each entry names, null where it names none; shape [entries]."""
    file, line = _indexed(level, "kernel_file"), _indexed(level, "kernel_line")
    known = (file >= 0) & (file < len(level.source_files)) & (line >= 0)
    pairs, code = np.unique(np.where(known, file << 32 | line, -1), return_inverse=True)
    texts = [f"{level.source_files[pair >> 32]}:{pair & 0xFFFFFFFF}" if pair >= 0 else None for pair in pairs.tolist()]
    return pa.array(texts, pa.string()).take(pa.array(code))


_NO_LEVEL = DebugLevel("", "", 0, (), (), ENTRIES.empty_table())


class _Above:
    """What lies above BIR: of each penguin instruction its HLO name, framework op and source line."""

    def __init__(self, neff: Neff) -> None:
        # Members are named debug_info_<level>.dbg_sgNNNNFF, one set for each compiled function; the digits are read as
        # subgraph and function, as the upper half of a BIR id has them (only sg000000 occurs in public NEFFs).
        found: dict[str, dict[str, DebugLevel]] = {}
        for name, level in neff.levels.items():
            match = re.fullmatch(r"debug_info_(penguin|hlo|pttf)\.dbg_?(?:sg(\d+))?", name)
            if match:
                found.setdefault(match[2] or "", {})[match[1]] = level
        self._sets = {
            (int(digits[:4] or 0), int(digits[4:] or 0)): _Penguin(levels)
            for digits, levels in sorted(found.items())
            if "penguin" in levels and len(digits) <= 9
        }

    def columns(self, bir_ids: Ints, penguin_ids: Ints) -> dict[str, pa.Array]:
        """hlo_name, layer and location of each penguin id, null where unknown; shape [n]."""
        parts = list(self._sets.items())
        if len(parts) == 1:
            return parts[0][1].columns(penguin_ids)
        result = {name: pa.nulls(len(penguin_ids), pa.string()) for name in ("hlo_name", "layer", "location")}
        for (subgraph, function), penguin in parts:
            mine = (bir_ids >> 48 == subgraph) & (bir_ids >> 32 & 0xFFFF == function)
            if mine.any():
                found = penguin.columns(np.where(mine, penguin_ids, -1))
                result = {name: pc.coalesce(column, found[name]) for name, column in result.items()}
        return result


class _Penguin:
    """One penguin level and the levels above it."""

    def __init__(self, levels: dict[str, DebugLevel]) -> None:
        level = levels["penguin"]
        self._ids = _ids(level)
        hlo, framework = levels.get("hlo"), levels.get("pttf")
        nothing = pa.nulls(len(self._ids), pa.string())
        self._columns = {"hlo_name": nothing, "layer": nothing, "location": _locations(level)}
        if hlo is not None:
            rows = _rows_of(_ids(hlo), _parents(level))
            # An HLO entry is named by its text, `%dot.1 = dot(%x, %y)`; the vendor's tables show `dot.1`.
            names = pc.replace_substring_regex(hlo.entries["name"].combine_chunks(), r"(?s)^%?(\S+) = .*$", r"\1")
            self._columns["hlo_name"] = _take(names, rows)
            if framework is not None:
                layer_rows = _rows_of(_ids(framework), _parents(hlo))
                layers = _take(framework.entries["name"].combine_chunks(), layer_rows)
                self._columns["layer"] = _take(layers, rows)

    def columns(self, penguin_ids: Ints) -> dict[str, pa.Array]:
        rows = _rows_of(self._ids, penguin_ids)
        return {name: _take(column, rows) for name, column in self._columns.items()}


class _KernelIndex:
    """The instructions of one kernel's tree as one core runs them."""

    def __init__(self, tree: KernelTree, core: int) -> None:
        # A tree with a list for each program of the grid: program i runs on core i (no public NEFF has two).
        program = core if len(tree.lnc) > 1 else 0
        nodes = tree.nodes
        self.parent_penguin_id = tree.parent_penguin_id
        self.parent = nodes["parent"].to_numpy().astype(np.int64)
        self.is_function = pc.equal(nodes["kind"], "func").to_numpy()
        is_instruction = pc.equal(nodes["kind"], "inst").to_numpy()
        self.rows = np.flatnonzero(is_instruction & (nodes["program"].to_numpy() == program))
        self.names = nodes["name"].combine_chunks().take(pa.array(self.rows))
        self.lines = nodes["line"].to_numpy()[self.rows]
        self.function_names = nodes["name"].combine_chunks()
        self.files = nodes["file"].combine_chunks()

    def function_around(self, rows: Ints) -> Ints:
        """The function node around each node, shape as rows; -1: none."""
        around = np.where(rows >= 0, self.parent[np.maximum(rows, 0)], -1)
        while True:
            climbing = (around >= 0) & ~self.is_function[np.maximum(around, 0)]
            if not climbing.any():
                return around
            around[climbing] = self.parent[around[climbing]]


@dataclass(frozen=True, eq=False)
class _BirColumns:
    ids: Ints
    columns: dict[str, pa.Array]
    """Profile columns of each BIR instruction of one engine."""
    source_rows: pa.Table
    """Columns of SOURCES without pcore_idx, and `entry`: row in `ids`."""


def _bir_columns(level: DebugLevel, above: _Above, trees: list[_KernelIndex]) -> _BirColumns:
    """What is known of each BIR instruction of one engine."""
    ids, penguin_ids = _ids(level), _parents(level)
    names = level.entries["name"].combine_chunks()
    higher = above.columns(ids, penguin_ids)
    bir_location = _locations(level)
    kernel_location, frames = _kernel_frames(level, names, penguin_ids, trees)
    nki_location = pc.coalesce(kernel_location, bir_location, higher["location"])
    penguin_text = pc.if_else(pa.array(penguin_ids >= 0), pa.array(penguin_ids).cast(pa.string()), None)
    kernel_name = pc.binary_join_element_wise(names, penguin_text, ":")
    kernel_name = pc.if_else(pc.is_valid(nki_location), kernel_name, None)
    kind = level.entries["kind"].to_numpy()
    kinds = sorted(INSTRUCTION_KINDS)
    kind_row = _rows_of(np.array(kinds, np.int64), kind)
    columns = {
        "bir_id": _context_ids(ids, ids),
        "bir_instruction_name": names,
        "kernel_instruction_name": kernel_name,
        "penguin_id": pc.if_else(pa.array(penguin_ids >= 0), _context_ids(ids, penguin_ids), None),
        "hlo_name": higher["hlo_name"],
        "layer": higher["layer"],
        "nki_source_location": nki_location,
        "bir_debug_info_source_location": bir_location,
        "tensor_instruction_type": _take(pa.array([INSTRUCTION_KINDS[kind] for kind in kinds]), kind_row),
    }
    return _BirColumns(ids, columns, _source_rows(level, kernel_name, nki_location, frames))


def _context_ids(bir_ids: Ints, ids: Ints) -> pa.Array:
    """Ids as the vendor prints them: sgNNNN:id, the subgraph from the upper 16 bits of the BIR id, 32 bits of id."""
    subgraphs, code = np.unique(bir_ids >> 48, return_inverse=True)
    prefix = pa.array([f"sg{subgraph:04d}" for subgraph in subgraphs.tolist()], pa.string()).take(pa.array(code))
    return pc.binary_join_element_wise(prefix, pa.array(ids & 0xFFFFFFFF).cast(pa.string()), ":")


_SOURCE_ROWS = pa.schema(
    {
        "entry": pa.int64(),
        "kernel_instruction_name": pa.string(),
        "stack_frame_id": pa.int64(),
        "stack_frame_depth": pa.int64(),
        "file_path": pa.string(),
        "line_number": pa.int64(),
        "function_name": pa.string(),
    }
)


def _kernel_frames(
    level: DebugLevel, names: pa.Array, penguin_ids: Ints, trees: list[_KernelIndex]
) -> tuple[pa.Array, list[pa.Table]]:
    """(`file:line` of each BIR instruction by its kernel's tree, the stack frames of those that have one)."""
    location = pa.nulls(level.entries.num_rows, pa.string())
    frames = []
    frame_base = 0
    for tree in trees:
        found = pc.index_in(names, value_set=tree.names).fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        if tree.parent_penguin_id >= 0:
            found = np.where(penguin_ids == tree.parent_penguin_id, found, -1)
        entry = np.flatnonzero(found >= 0)
        line = tree.lines[found[entry]]
        function = tree.function_around(tree.rows[found[entry]])
        files = _take(tree.files, function)
        text = pc.binary_join_element_wise(files, pa.array(line).cast(pa.string()), ":")
        at = np.full(len(found), -1, np.int64)
        at[entry] = np.arange(len(entry))
        location = pc.coalesce(location, _take(text, at))
        for depth in range(_MAX_FRAMES):
            is_frame = function >= 0
            if not is_frame.any():
                break
            entry, line, function = entry[is_frame], line[is_frame], function[is_frame]
            frames.append(
                pa.table(
                    [
                        pa.array(entry),
                        pa.nulls(len(entry), pa.string()),
                        pa.array(function + frame_base),
                        pa.array(np.full(len(entry), depth, np.int64)),
                        _take(tree.files, function),
                        # The tree has the line of the call that made the instruction; of the callers only where they
                        # are defined, which is no place in the call stack.
                        pa.array(line) if depth == 0 else pa.nulls(len(entry), pa.int64()),
                        _take(tree.function_names, function),
                    ],
                    schema=_SOURCE_ROWS,
                )
            )
            function = tree.function_around(function)
        frame_base += len(tree.parent)
    return location, frames


_MAX_FRAMES = 64
"""Stack frames that are kept of one instruction."""


def _source_rows(level: DebugLevel, kernel_name: pa.Array, location: pa.Array, frames: list[pa.Table]) -> pa.Table:
    """The stack frames of every BIR instruction with a kernel source line: from its kernel's tree, else just the line."""
    in_tree = np.zeros(len(kernel_name), bool)
    for frame in frames:
        in_tree[frame["entry"].to_numpy()] = True
    entry = np.flatnonzero(pc.is_valid(location).to_numpy(zero_copy_only=False) & ~in_tree)
    place = location.take(pa.array(entry))
    function = _indexed(level, "kernel_name")[entry]
    function = np.where(function < len(level.kernel_names), function, -1)
    split = pc.extract_regex(place, r"(?s)^(?P<file>.*):(?P<line>\d+)$")
    lines = pa.table(
        [
            pa.array(entry),
            pa.nulls(len(entry), pa.string()),
            pa.nulls(len(entry), pa.int64()),
            pa.array(np.zeros(len(entry), np.int64)),
            pc.struct_field(split, "file"),
            pc.struct_field(split, "line").cast(pa.int64()),
            _take(pa.array(level.kernel_names, pa.string()), function),
        ],
        schema=_SOURCE_ROWS,
    )
    table = pa.concat_tables([*frames, lines])
    named = kernel_name.take(table["entry"].combine_chunks())
    return table.set_column(1, "kernel_instruction_name", named)


def _sources(bir: _BirColumns, entries: Ints, core: int) -> pa.Table:
    """The rows of SOURCES for the BIR instructions that the stream has, sorted by instruction and depth."""
    used = np.zeros(len(bir.ids), bool)
    used[entries[entries >= 0]] = True
    rows = bir.source_rows.filter(pa.array(used[bir.source_rows["entry"].to_numpy()]))
    rows = rows.filter(pc.is_valid(rows["kernel_instruction_name"]))
    rows = rows.sort_by([("entry", "ascending"), ("stack_frame_depth", "ascending")]).drop_columns("entry")
    columns = {name: rows[name].combine_chunks() for name in rows.column_names}
    return make_table("sources", {"pcore_idx": np.full(rows.num_rows, core, np.int16), **columns})

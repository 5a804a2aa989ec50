"""What source lines, layers and kernels cost: engine time, in-kernel waits and HBM bytes, each split without remainder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from trnprof.analyzers.account_sets import NOT_ATTRIBUTED, InstructionRows, data_of, packets_of, sets_of
from trnprof.analyzers.boundaries import BETWEEN_KERNELS, KernelCalls
from trnprof.analyzers.waits import releasing_instructions
from trnprof.intervals import Int64Array, charged_lengths
from trnprof.profile import ENGINES, Core, Profile, codes_of, int64_of

SourceKey = Literal["line", "layer", "kernel", "instruction"]
"""What instructions are grouped by: the innermost source line, the framework's op path, the kernel call that was open,
or the compiler's own instruction (which loops run many times)."""

_COLUMNS: dict[str, tuple[str, ...]] = {
    "line": ("nki_source_location", "bir_debug_info_source_location"),
    "layer": ("layer",),
    "instruction": ("bir_instruction_name",),
}

RUNTIME = "runtime"
"""Instructions that the runtime put around the compiler's: no line, layer or compiler instruction is theirs."""

_NO_NAME = ("", "unknown", "Unknown")
"""What the vendor's profiler writes where it does not know."""


@dataclass(frozen=True)
class SourceCost:
    """One line, layer, kernel or compiler instruction on one core."""

    name: str
    """Untrusted. NOT_ATTRIBUTED: the capture does not say. RUNTIME: no compiler's instruction."""
    instruction_count: int
    engine_ns: dict[str, int]
    """By engine: its share of the engine's active time; where instructions overlap the one that began first is charged."""
    wait_ns: int
    """In-kernel wait that ended with one of its instructions."""
    hbm_read_bytes: int
    hbm_write_bytes: int
    """Of the DMA instructions in it that began in the body."""

    @property
    def busy_ns(self) -> int:
        """Engine time in all: engines run side by side, so this is no wall-clock time."""
        return sum(self.engine_ns.values())


@dataclass(frozen=True)
class CoreSourceCost:
    """One physical core. Over the rows engine times sum to the anatomy's active_ns, waits to its in_kernel_wait_ns."""

    core: int
    rows: tuple[SourceCost, ...]
    """Most engine time and wait first."""

    @property
    def attributed_share(self) -> float | None:
        """Share of engine time and waits that has a name, of all that could have one; None: there is none."""
        total = sum(row.busy_ns + row.wait_ns for row in self.rows if row.name != RUNTIME)
        missing = sum(row.busy_ns + row.wait_ns for row in self.rows if row.name == NOT_ATTRIBUTED)
        return None if not total else 1 - missing / total


@dataclass(frozen=True)
class SourceCosts:
    """Every core's costs by one key."""

    key: SourceKey
    cores: tuple[CoreSourceCost, ...]


def measure_source_cost(profile: Profile, key: SourceKey) -> SourceCosts | None:
    """Engine time, waits and HBM bytes by source line, layer, kernel or compiler instruction.

    None where instructions were not captured, or for "kernel" where kernels were not. Where the capture has instructions
    without the names asked for, everything is in the row NOT_ATTRIBUTED.

    Reads:  profile.instructions (start_ts, end_ts, engine, opcode, nki_source_location, bir_debug_info_source_location,
            layer, bir_instruction_name, hbm_read_bytes, hbm_write_bytes), kernels; the account's sets; ns.
    """
    if profile.instructions is None or (key == "kernel" and profile.kernels is None):
        return None
    return SourceCosts(key, tuple(_measure_core(profile, core, key) for core in profile.metadata.cores))


def _measure_core(profile: Profile, core: Core, key: SourceKey) -> CoreSourceCost:
    table = profile.core_rows("instructions", core.core)
    assert table is not None
    window = (core.window_start_ts, core.window_end_ts)
    rows = InstructionRows(table, window)
    sets = sets_of(profile, core, rows, data_of(packets_of(profile, core.core), window))
    codes, names = _keys(profile, core, table, key)
    size = len(names)

    def total(values: Int64Array, chosen: np.ndarray | None = None) -> Int64Array:
        if chosen is not None:
            return np.bincount(codes[chosen], weights=values[chosen], minlength=size).astype(np.int64)
        return np.bincount(codes, weights=values, minlength=size).astype(np.int64)

    engine_ns = {}
    for engine in ENGINES:
        working = rows.of(engine) & ~rows.waits
        charged = np.zeros(len(rows.start), np.int64)
        charged[working] = charged_lengths(rows.start[working], rows.end[working])
        engine_ns[engine] = total(charged, working)
    wait_start, wait_end, wait_row = releasing_instructions(sets.wait, table)
    if key == "kernel":
        wait_code = _kernel_codes(profile, core, wait_start, names)
    else:
        # -1: no engine is blocked, so the wait has no instruction.
        wait_code = np.append(codes, names.index(NOT_ATTRIBUTED))[wait_row]
    wait_ns = np.bincount(wait_code, weights=wait_end - wait_start, minlength=size).astype(np.int64)
    inside = (rows.start >= sets.body[0]) & (rows.end <= sets.body[1])
    moved = {
        name: total(int64_of(table[name]), inside) if name in table.column_names else np.zeros(size, np.int64)
        for name in ("hbm_read_bytes", "hbm_write_bytes")
    }
    counts = np.bincount(codes, minlength=size)
    found = [
        SourceCost(
            names[code],
            int(counts[code]),
            {engine: int(values[code]) for engine, values in engine_ns.items()},
            int(wait_ns[code]),
            int(moved["hbm_read_bytes"][code]),
            int(moved["hbm_write_bytes"][code]),
        )
        for code in np.flatnonzero((counts > 0) | (wait_ns > 0)).tolist()
    ]
    return CoreSourceCost(core.core, tuple(sorted(found, key=lambda row: (-(row.busy_ns + row.wait_ns), row.name))))


def _keys(profile: Profile, core: Core, table: pa.Table, key: SourceKey) -> tuple[np.ndarray, list[str]]:
    """(code of each instruction, names)."""
    if key == "kernel":
        kernels = profile.core_rows("kernels", core.core)
        assert kernels is not None
        names = [*codes_of(kernels["name"])[1], BETWEEN_KERNELS]
        return _kernel_codes(profile, core, int64_of(table["start_ts"]), names), names
    result = np.full(len(table), -1, np.int64)
    names = []
    index: dict[str, int] = {}
    for column in _COLUMNS[key]:
        if column not in table.column_names:
            continue
        codes, texts = codes_of(table[column])
        places = []
        for text in texts:
            name = innermost(text) if key == "line" else text
            if name in _NO_NAME:
                places.append(-1)
                continue
            if name not in index:
                index[name] = len(names)
                names.append(name)
            places.append(index[name])
        # The first column that names a row wins: an NKI kernel's line before the compiler's own.
        result = np.where(result < 0, np.array([*places, -1], np.int64)[codes], result)
    unnamed = np.full(len(table), len(names), np.int64)
    if "compiler_pc" in table.column_names:
        unnamed += table["compiler_pc"].is_null().to_numpy()
    return np.where(result < 0, unnamed, result), [*names, NOT_ATTRIBUTED, RUNTIME]


def _kernel_codes(profile: Profile, core: Core, time: Int64Array, names: list[str]) -> np.ndarray:
    kernels = profile.core_rows("kernels", core.core)
    assert kernels is not None
    calls = KernelCalls(kernels)
    return np.append(calls.code, len(names) - 1).astype(np.int64)[calls.at(time)]


def innermost(location: str) -> str:
    """The innermost `file:line` of a comma separated list, without its folders: kernels/mlp.py:57,run.py:9 is mlp.py:57."""
    return location.split(",", 1)[0].strip("[] '\"").replace("\\", "/").rpartition("/")[2]

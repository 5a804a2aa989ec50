"""Profiles that an NTFF can hold whole, drawn at random, and the comparison of two of them row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from trnprof.profile import (
    TABLE_SPECS,
    Core,
    DmaQueue,
    Metadata,
    Profile,
    Provenance,
    make_table,
)
from trnprof.readers import isa
from trnprof.readers.ntff_tables import ENGINE_NAMES

TABLES = ("instructions", "dma_packets", "semaphores", "throttle")

RING_OF_QUEUE = {"qSyncDynamicHW": 0, "qGpSimdDynamic": 1, "qSyncIO0": 2, "qScalarSpillReload0": 3}
TYPE_OF_QUEUE = {
    "qSyncDynamicHW": "hardware_dynamic",
    "qGpSimdDynamic": "software_dynamic",
    "qSyncIO0": "input",
    "qScalarSpillReload0": "data",
}

any_text = st.text(max_size=12)
maybe_uuid = st.none() | st.binary(min_size=16, max_size=16).map(bytes.hex)


@st.composite
def profiles(draw: st.DrawFn, *, max_rows: int = 25) -> Profile:
    """A profile of one to three cores with every column that NTFF has, in picoseconds."""
    window_ns = draw(st.integers(1, 10**9))
    core_count = draw(st.integers(1, 3))
    neuroncores = draw(st.lists(st.integers(0, 1), min_size=1, max_size=1))[0]
    cores = tuple(
        Core(
            core=core,
            subgraph=f"sg{core:02d}",
            window_start_ts=0,
            window_end_ts=window_ns,
            neuroncore_idx=2 * neuroncores + core,
            neuron_device_idx=draw(st.integers(0, 15)),
        )
        for core in range(core_count)
    )
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    tables = {
        name: make_table(
            name, _stacked([build(random, draw(st.integers(0, max_rows)), core, window_ns) for core in cores])
        )
        for name, build in (
            ("instructions", _instructions),
            ("dma_packets", _packets),
            ("semaphores", _semaphores),
            ("throttle", _throttle),
        )
    }
    metadata = Metadata(
        format="ntff",
        format_version="6",
        provenance=draw(st.sampled_from(list(Provenance))),
        cores=cores,
        hardware=draw(st.sampled_from([None, "trn1", "trn2"])),
        instance_type=draw(st.none() | any_text),
        neff_uuid=draw(maybe_uuid),
        neff_path=draw(st.none() | any_text),
        versions=draw(st.sampled_from([{}, {"runtime": "2.30.51 (abc)", "driver": "2.26.0"}])),
        static_dma=tuple(
            DmaQueue(
                core=core.core,
                engine_idx=32 * ((core.neuroncore_idx or 0) // 2) + engine,
                queue_idx=ring,
                name=name,
                type=TYPE_OF_QUEUE[name],
                descriptor_count=7 if name == "qSyncIO0" else None,
            )
            for core in cores
            for engine in range(3)
            for name, ring in RING_OF_QUEUE.items()
        ),
    )
    return Profile(metadata=metadata, **tables)


def _stacked(parts: list[dict[str, list[Any]]]) -> dict[str, object]:
    return {name: [value for part in parts for value in part[name]] for name in parts[0]}


def _times(random: np.random.Generator, count: int, window_ns: int, keys: list[Any]) -> tuple[list[int], list[int]]:
    """Starts in order, and ends by which no row of one key ends before an earlier one."""
    window_ps = 1000 * window_ns
    starts = sorted(random.integers(0, window_ps, count).tolist())
    ends, latest = [], dict.fromkeys(keys, 0)
    for start, key in zip(starts, keys, strict=True):
        latest[key] = max(latest[key], int(random.integers(start, window_ps, endpoint=True)))
        ends.append(latest[key])
    return starts, ends


def _span_columns(starts: list[int], ends: list[int], core: Core) -> dict[str, list[Any]]:
    return {
        "start_ts": [start // 1000 for start in starts],
        "end_ts": [start // 1000 + (end - start) // 1000 for start, end in zip(starts, ends, strict=True)],
        "start_ps": starts,
        "end_ps": ends,
        "pcore_idx": [core.core] * len(starts),
    }


def _instructions(random: np.random.Generator, count: int, core: Core, window_ns: int) -> dict[str, list[Any]]:
    """Executions of a program of up to 12 instructions on each engine, in any order."""
    programs = {engine: _program(random) for engine in ENGINE_NAMES}
    engines = random.choice(list(ENGINE_NAMES), count).tolist()
    words = [programs[engine][int(random.integers(0, len(programs[engine])))] for engine in engines]
    keys = [(engine, word["pc"]) for engine, word in zip(engines, words, strict=True)]
    columns = _span_columns(*_times(random, count, window_ns, keys), core)
    columns |= {
        "engine": engines,
        # 54,612 ns is the longest wait that the 16-bit counter holds on Trainium2, 46,810 on Trainium1.
        "evt_wait_time_ns": random.integers(0, 46_000, count).tolist(),
        "crc_in": random.integers(0, 1 << 16, count).tolist(),
        "crc_out": random.integers(0, 1 << 16, count).tolist(),
    }
    return columns | {name: [word[name] for word in words] for name in programs["tensor"][0]}


def _program(random: np.random.Generator) -> list[dict[str, Any]]:
    length = int(random.integers(1, 12))
    pcs = sorted(random.choice(40, length, replace=False).tolist())
    compiler_pcs = sorted(random.choice(60, length, replace=False).tolist())
    return [_word(random, pc, compiler_pc) for pc, compiler_pc in zip(pcs, compiler_pcs, strict=True)]


def _word(random: np.random.Generator, pc: int, compiler_pc: int) -> dict[str, Any]:
    opcode = str(random.choice([*isa.OPCODE_NAMES, *["MATMUL", "DMA_DIRECT2D", "EVENT_SEMAPHORE"] * 60]))
    condition = (None, ">=", "==", "event")[int(random.integers(0, 4))]
    is_dma = opcode in ("DMA_DIRECT2D", "PSEUDO_DMA_DIRECT2D")
    macs = int(np.prod(random.integers(1, 128, 4))) if opcode == "MATMUL" and random.random() < 0.8 else None
    return {
        "opcode": opcode,
        "pc": pc,
        "compiler_pc": compiler_pc if random.random() < 0.8 else None,
        "wait_semaphore_idx": None if condition is None else int(random.integers(0, 256)),
        "wait_condition": condition,
        "wait_value": int(random.integers(0, 1 << 32)) if condition in (">=", "==") else None,
        "update_semaphore_idx": int(random.integers(0, 256)) if random.random() < 0.5 else None,
        "hbm_read_bytes": _dma_bytes(random) if is_dma else None,
        "hbm_write_bytes": _dma_bytes(random) if is_dma else None,
        "tensor_elements": macs,
        "raw_flops": None if macs is None else 2 * macs,
    }


def _dma_bytes(random: np.random.Generator) -> int | None:
    return [None, 0, int(np.prod(random.integers(1, 4096, 3)))][int(random.integers(0, 3))]


def _packets(random: np.random.Generator, count: int, core: Core, window_ns: int) -> dict[str, list[Any]]:
    names: list[str] = random.choice(list(RING_OF_QUEUE), count).tolist()
    engines = random.integers(0, 3, count).tolist()
    keys = [(engine, name) for engine, name in zip(engines, names, strict=True)]
    first = 32 * ((core.neuroncore_idx or 0) // 2)
    return _span_columns(*_times(random, count, window_ns, keys), core) | {
        "transfer_bytes": random.integers(0, 1 << 16, count).tolist(),
        "engine_idx": [first + engine for engine in engines],
        "queue_idx": [RING_OF_QUEUE[name] for name in names],
        "queue_type": [TYPE_OF_QUEUE[name] for name in names],
        "queue_name": names,
        "crc": random.integers(0, 1 << 16, count).tolist(),
    }


def _semaphores(random: np.random.Generator, count: int, core: Core, window_ns: int) -> dict[str, list[Any]]:
    times = sorted(random.integers(0, 1000 * window_ns, count, endpoint=True).tolist())
    index = random.integers(0, 256, count).tolist()
    return {
        "timestamp": [time // 1000 for time in times],
        "timestamp_ps": times,
        "pcore_idx": [core.core] * count,
        "id": [str(number) for number in index],
        "semaphore_idx": index,
        "value": random.integers(0, 1 << 32, count).tolist(),
        "update_source": random.choice(ENGINE_NAMES, count).tolist(),
        "update_operation_type": random.choice(["sem_inc", "sem_dec", "sem_set", "sem_add", "unknown"], count).tolist(),
    }


def _throttle(random: np.random.Generator, count: int, core: Core, window_ns: int) -> dict[str, list[Any]]:
    """Levels that each hold until the next, cut to whole ns like a reader cuts them."""
    times = sorted(set(random.integers(0, 1000 * window_ns, count).tolist()))
    untils = [*times[1:], 1000 * window_ns][: len(times)]
    return {
        "timestamp": [time // 1000 for time in times],
        "duration": [(until - time) // 1000 for time, until in zip(times, untils, strict=True)],
        "k": random.integers(0, 9, len(times)).tolist(),
        "n": [8] * len(times),
        "type": [f"activity_{kind}" for kind in random.integers(0, 4, len(times)).tolist()],
        "pcore_idx": [core.core] * len(times),
    }


def rows_of(profile: Profile, table: str, columns: list[str]) -> list[tuple[Any, ...]]:
    """The rows of a table, sorted, None before any value."""
    found = getattr(profile, table)
    assert found is not None, table
    rows = zip(*(found[name].to_pylist() for name in columns), strict=True)
    return sorted(rows, key=lambda row: tuple((value is not None, value) for value in row))


def assert_same(before: Profile, after: Profile, *, ignore: frozenset[str] = frozenset()) -> None:
    """Equal metadata, and equal rows in every column that `before` has; rows that start together may change places."""
    for table in TABLES:
        held = getattr(before, table)
        if held is None:
            continue
        columns = [name for name in held.column_names if name not in ignore]
        assert rows_of(before, table, columns) == rows_of(after, table, columns), table
        time = "timestamp" if "timestamp" in TABLE_SPECS[table].required else "start_ts"
        got = getattr(after, table)
        assert held["pcore_idx"].to_pylist() == got["pcore_idx"].to_pylist()
        assert held[time].to_pylist() == got[time].to_pylist()
    assert after.metadata == before.metadata

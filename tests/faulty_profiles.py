"""A step without a known fault, and the same step with one fault of each kind written into its events.

The clean step: two physical cores, 200 us, weights streaming in 4 KiB packets over all 16 DMA engines under matmuls at the
peak rate, with vector, scalar and collective work under them. A fault changes events only; nothing here knows what the
analyzers say of it. FAULTS maps each finding code to the function that makes its fault.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from trnprof.profile import Core, Metadata, Profile, Provenance, TensorSize, make_table

WINDOW_NS = 200_000
BODY = (2_000, 198_000)
CORES = (0, 1)
BLOCK_NS = 20_000
"""A kernel call and a collective each."""

MATMUL_NS, MATMUL_FLOPS = 214, 2 * 128 * 128 * 512  # 213.3 ns at 78.6 TFLOP/s
STREAM_PERIOD_NS, PACKET_BYTES = 1_280, 4_096
PACKET_NS = 159  # 8 ns + 4,096 B / 27.2 B/ns
DMA_ENGINES = 16

QUIET = (120_000, 160_000)
"""Where faults that stop the step put their hole."""

Rows = list[dict[str, object]]


def clean_step() -> Profile:
    """The step without a fault."""
    instructions: Rows = []
    packets: Rows = []
    transfers: Rows = []
    collectives: Rows = []
    kernels: Rows = []
    for core in CORES:
        instructions += [_instruction(core, "sync", "NOTIFY", 100, 150, compiler_pc=None)]
        instructions += [
            _instruction(core, "tensor", "MATMUL", at, at + MATMUL_NS, raw_flops=MATMUL_FLOPS)
            for at in range(BODY[0], BODY[1] - MATMUL_NS, MATMUL_NS)
        ]
        for engine, opcode, length in (("vector", "TENSOR_TENSOR", 900), ("scalar", "ACTIVATE", 700)):
            instructions += [
                _instruction(core, engine, opcode, at, at + length) for at in range(BODY[0], BODY[1] - length, 1_000)
            ]
        for block, at in enumerate(range(BODY[0], BODY[1] - STREAM_PERIOD_NS, STREAM_PERIOD_NS)):
            moved = DMA_ENGINES * PACKET_BYTES
            instructions.append(_instruction(core, "sync", "DMA_DIRECT2D", at, at + 60, hbm_read_bytes=moved))
            transfers.append(_transfer(core, at, at + PACKET_NS, f"weights{core}", "[[INPUT]]", "[SB]", moved, block))
            packets += [_packet(core, engine, at, at + PACKET_NS, PACKET_BYTES) for engine in range(DMA_ENGINES)]
        for at in range(BODY[0], BODY[1], BLOCK_NS):
            kernels.append({"pcore_idx": core, "start_ts": at, "end_ts": min(at + BLOCK_NS, BODY[1]), "name": "layer"})
            collectives.append(_collective(core, at + 5_000, at + 10_000))
    moved = {
        core: sum(_number(row["transfer_bytes"]) for row in transfers if row["pcore_idx"] == core) for core in CORES
    }
    metadata = Metadata(
        format="explorer-parquet",
        provenance=Provenance.MODELLED,
        cores=tuple(
            Core(core=core, subgraph=f"sg{core:02d}", window_start_ts=0, window_end_ts=WINDOW_NS) for core in CORES
        ),
        hardware="trn2",
        instance_type="trn2.48xlarge",
        versions={"compiler": "2.27.0", "runtime": "2.32.0"},
        execution_index=2,
        dge_notifications=True,
        has_step_markers=True,
        summary={"inputs_outputs_weights_size_bytes": sum(moved.values())},
        tensors=tuple(TensorSize(name=f"weights{core}", kind="weight", size_bytes=moved[core]) for core in CORES),
    )
    return Profile(
        metadata=metadata,
        instructions=_table("instructions", instructions),
        dma_packets=_table("dma_packets", packets),
        dma_transfers=_table("dma_transfers", transfers),
        semaphores=_table("semaphores", [_semaphore(core, BODY[0], 5, "S[5] (Tensor)") for core in CORES]),
        collectives=_table("collectives", collectives),
        throttle=_table(
            "throttle",
            [
                {"timestamp": 0, "duration": WINDOW_NS, "k": 8, "n": 8, "type": "activity_0", "pcore_idx": core}
                for core in CORES
            ],
        ),
        kernels=_table("kernels", kernels),
    )


# --- rows -----------------------------------------------------------------------------------------------------------


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value


def _instruction(core: int, engine: str, opcode: str, start: int, end: int, **more: object) -> dict[str, object]:
    return {
        "pcore_idx": core,
        "engine": engine,
        "opcode": opcode,
        "start_ts": start,
        "end_ts": end,
        "compiler_pc": 0,
        "wait_semaphore_idx": None,
        "hbm_read_bytes": 0,
        "hbm_write_bytes": 0,
        "spill_save_bytes": 0,
        "spill_reload_bytes": 0,
        "raw_flops": None,
        "tensor_instruction_type": "REGULAR" if opcode == "MATMUL" else None,
        "nki_source_location": f"kernels/layer.py:{10 + len(opcode)}",
        "layer": "model/layer",
    } | more


def _packet(core: int, engine: int, start: int, end: int, size: int) -> dict[str, object]:
    return {
        "pcore_idx": core,
        "engine_idx": 64 + DMA_ENGINES * core + engine,
        "queue_idx": 0,
        "queue_type": "data",
        "queue_name": "qSyncIO0",
        "start_ts": start,
        "end_ts": end,
        "transfer_bytes": size,
        "is_cc_dma": False,
    }


def _transfer(
    core: int, start: int, end: int, variable: str, source: str, dest: str, size: int, block: int
) -> dict[str, object]:
    return {
        "pcore_idx": core,
        "start_ts": start,
        "end_ts": end,
        "variable": variable,
        "source": source,
        "dest": dest,
        "transfer_bytes": size,
        "read_bytes": size,
        "write_bytes": size,
        "block_id": block,
    }


def _collective(core: int, start: int, end: int) -> dict[str, object]:
    return {"pcore_idx": core, "start_ts": start, "end_ts": end, "operation": "AllReduce"}


def _semaphore(core: int, at: int, index: int, name: str) -> dict[str, object]:
    return {"pcore_idx": core, "timestamp": at, "id": name, "value": 1, "semaphore_idx": index}


def _table(name: str, rows: Rows) -> pa.Table:
    time = "timestamp" if "timestamp" in rows[0] else "start_ts"
    rows = sorted(rows, key=lambda row: (_number(row["pcore_idx"]), _number(row[time])))
    return make_table(name, {column: [row[column] for row in rows] for column in rows[0]})


def _changed(profile: Profile, name: str, change: Callable[[Rows], Rows]) -> Profile:
    """The profile with one table's rows changed."""
    table: pa.Table = getattr(profile, name)
    return dataclasses.replace(profile, **{name: _table(name, change(table.to_pylist()))})


def _with_metadata(profile: Profile, **more: object) -> Profile:
    return dataclasses.replace(profile, metadata=dataclasses.replace(profile.metadata, **more))  # type: ignore[arg-type]


def _quiet(profile: Profile, start: int, end: int, *, core: int | None = None, keep_kernels: bool = True) -> Profile:
    """The profile with nothing that runs, moves or communicates in [start, end), on one core or on all."""
    changed = {}
    for name in (
        "instructions",
        "dma_packets",
        "dma_transfers",
        "collectives",
        *(() if keep_kernels else ("kernels",)),
    ):
        table: pa.Table = getattr(profile, name)
        inside = pc.and_(pc.less(table["start_ts"], end), pc.greater(table["end_ts"], start))
        if core is not None:
            inside = pc.and_(inside, pc.equal(table["pcore_idx"], core))
        changed[name] = table.filter(pc.invert(inside))
    return dataclasses.replace(profile, **changed)


def _filled(profile: Profile, engine: str, opcode: str, length: int, *, start: int, end: int) -> Profile:
    """Instructions of one engine, end to end in [start, end), on both cores."""
    return _changed(
        profile,
        "instructions",
        lambda rows: (
            rows
            + [
                _instruction(core, engine, opcode, at, at + length)
                for core in CORES
                for at in range(start, end - length, length)
            ]
        ),
    )


# --- faults ---------------------------------------------------------------------------------------------------------


def small_packets(profile: Profile) -> Profile:
    """Each 4 KiB packet becomes 16 packets of 256 B, 17 ns each."""

    def split(rows: Rows) -> Rows:
        return [
            row | {"start_ts": at, "end_ts": at + 17, "transfer_bytes": PACKET_BYTES // 16}
            for row in rows
            for at in range(_number(row["start_ts"]), _number(row["start_ts"]) + 16 * 17, 17)
        ]

    return _changed(profile, "dma_packets", split)


def few_dma_engines(profile: Profile) -> Profile:
    """All packets on two of the sixteen DMA engines, one after the other."""

    def move(rows: Rows) -> Rows:
        moved = []
        for row in rows:
            core = _number(row["pcore_idx"])
            engine = _number(row["engine_idx"]) - 64 - DMA_ENGINES * core
            start = _number(row["start_ts"]) + engine // 2 * PACKET_NS
            place = {"engine_idx": 64 + DMA_ENGINES * core + engine % 2, "start_ts": start, "end_ts": start + PACKET_NS}
            moved.append(row | place)
        return moved

    return _changed(profile, "dma_packets", move)


def slow_packets(profile: Profile) -> Profile:
    """Packets take five times what their size explains."""
    return _changed(
        profile,
        "dma_packets",
        lambda rows: [row | {"end_ts": _number(row["start_ts"]) + 5 * PACKET_NS} for row in rows],
    )


def spill(profile: Profile) -> Profile:
    """128 KiB saved and reloaded five times over the step on each core."""
    size = 128 * 1024

    def more(rows: Rows) -> Rows:
        for core in CORES:
            for at in range(20_000, 180_000, 32_000):
                saved = {"hbm_write_bytes": size, "spill_save_bytes": size}
                loaded = {"hbm_read_bytes": size, "spill_reload_bytes": size}
                rows.append(_instruction(core, "sync", "DMA_DIRECT2D", at, at + 60, **saved))
                rows.append(_instruction(core, "sync", "DMA_DIRECT2D", at + 9_000, at + 9_060, **loaded))
        return rows

    return _changed(profile, "instructions", more)


def reloads(profile: Profile) -> Profile:
    """The weights are 40 % of what is loaded: each byte comes in two and a half times."""
    tensors = tuple(dataclasses.replace(t, size_bytes=t.size_bytes * 2 // 5) for t in profile.metadata.tensors)
    size = sum(tensor.size_bytes for tensor in tensors)
    return _with_metadata(profile, tensors=tensors, summary={"inputs_outputs_weights_size_bytes": size})


def kernel_round_trips(profile: Profile) -> Profile:
    """Each kernel call writes 256 KiB that the next one reads back."""
    size = 256 * 1024

    def more(rows: Rows) -> Rows:
        for core in CORES:
            for block, at in enumerate(range(BODY[0], BODY[1] - BLOCK_NS, BLOCK_NS)):
                written, read = at + 18_000, at + BLOCK_NS + 1_000
                rows.append(
                    _transfer(core, written, written + 800, f"hidden{block}", "[SB]", "[[TMP]]", size, 900 + block)
                )
                rows.append(_transfer(core, read, read + 800, f"hidden{block}", "[[TMP]]", "[SB]", size, 950 + block))
        return rows

    return _changed(profile, "dma_transfers", more)


def unbalanced_pair(profile: Profile) -> Profile:
    """Core 1 is done after 60 % of the step and waits for core 0 at a barrier."""
    start, end = 120_000, BODY[1] - 1_000
    profile = _quiet(profile, start, end, core=1)
    wait = _instruction(1, "vector", "EVENT_SEMAPHORE", start, end, wait_semaphore_idx=2)
    profile = _changed(profile, "instructions", lambda rows: [*rows, wait])
    return _signalled_from_outside(profile, [(1, end)])


def lone_core(profile: Profile) -> Profile:
    """Core 1 does a few instructions at the start and at the end."""
    return _quiet(profile, 4_000, BODY[1] - 2_000, core=1)


def exposed_collectives(profile: Profile) -> Profile:
    """Nothing runs under the all-reduces."""
    collectives = profile.collectives
    for at in range(BODY[0], BODY[1], BLOCK_NS):
        profile = _quiet(profile, at + 5_000, at + 10_000)
    return dataclasses.replace(profile, collectives=collectives)


def late_rank(profile: Profile) -> Profile:
    """One all-reduce of ten takes 14 us instead of 5."""

    def stretch(rows: Rows) -> Rows:
        late = BODY[0] + 5_000
        return [row | ({"end_ts": late + 14_000} if row["start_ts"] == late else {}) for row in rows]

    return _changed(profile, "collectives", stretch)


def vector_chain(profile: Profile) -> Profile:
    """40 us in which only the vector engine runs, in instructions of 130 ns."""
    return _filled(_quiet(profile, *QUIET), "vector", "TENSOR_SCALAR", 130, start=QUIET[0], end=QUIET[1])


def scalar_chain(profile: Profile) -> Profile:
    """40 us in which only the scalar engine runs, in instructions of 110 ns."""
    return _filled(_quiet(profile, *QUIET), "scalar", "COPY", 110, start=QUIET[0], end=QUIET[1])


def gpsimd_alone(profile: Profile) -> Profile:
    """40 us in which only GpSimd runs."""
    return _filled(_quiet(profile, *QUIET), "gpsimd", "IOTA", 4_000, start=QUIET[0], end=QUIET[1] + 4_000)


def skinny_matmuls(profile: Profile) -> Profile:
    """Matmuls of an eighth of the array's work in the same time."""
    return _changed(
        profile,
        "instructions",
        lambda rows: [row | {"raw_flops": row["raw_flops"] and _number(row["raw_flops"]) // 8} for row in rows],
    )


def transposes(profile: Profile) -> Profile:
    """Every fourth matmul only transposes."""

    def mark(rows: Rows) -> Rows:
        number = 0
        for row in rows:
            if row["opcode"] == "MATMUL":
                number += 1
                row["tensor_instruction_type"] = "TRANSPOSE" if number % 4 == 0 else "REGULAR"
        return rows

    return _changed(profile, "instructions", mark)


def throttled(profile: Profile) -> Profile:
    """60 us at half rate."""
    limit = {"timestamp": 50_000, "duration": 60_000, "k": 4, "n": 8, "type": "activity_1"}
    return _changed(profile, "throttle", lambda rows: rows + [limit | {"pcore_idx": core} for core in CORES])


def _waiting(profile: Profile, index: int | None, name: str | None) -> Profile:
    profile = _quiet(profile, *QUIET)
    waits = [_instruction(core, "vector", "EVENT_SEMAPHORE", *QUIET, wait_semaphore_idx=index) for core in CORES]
    profile = _changed(profile, "instructions", lambda rows: rows + waits)
    if name is None:
        return profile
    assert index is not None
    updates = [_semaphore(core, QUIET[1], index, name) for core in CORES]
    return _changed(profile, "semaphores", lambda rows: rows + updates)


def _signalled_from_outside(profile: Profile, signals: list[tuple[int, int]]) -> Profile:
    """Updates of semaphore 2 that come over the bus, at (core, time)."""

    def more(rows: Rows) -> Rows:
        updates = [_semaphore(core, at, 2, "2") | {"update_source": "axi"} for core, at in signals]
        return [row | {"update_source": "tensor"} for row in rows] + updates

    return _changed(profile, "semaphores", more)


def waits_for_dma(profile: Profile) -> Profile:
    """40 us in which the vector engine waits for a DMA."""
    return _waiting(profile, 8, "S[8] (qSyncIO0)")


def waits_for_engine(profile: Profile) -> Profile:
    """40 us in which the vector engine waits for the tensor engine."""
    return _waiting(profile, 5, "S[5] (Tensor)")


def waits_for_other_core(profile: Profile) -> Profile:
    """40 us in which the vector engine waits for a signal from outside."""
    return _signalled_from_outside(_waiting(profile, 2, None), [(core, QUIET[1]) for core in CORES])


def unexplained_waits(profile: Profile) -> Profile:
    """40 us in which an engine waits, for what the capture does not say."""
    return _waiting(profile, None, None)


def no_overlap(profile: Profile) -> Profile:
    """Ten times over the core computes for 17.4 us, then loads for 2.6 us."""
    load_at = 17_400
    instructions, packets = [], []
    for row in profile.instructions.to_pylist():
        ends_at = (row["start_ts"] - BODY[0]) % BLOCK_NS + row["end_ts"] - row["start_ts"]
        if row["engine"] == "sync" or ends_at <= load_at:
            instructions.append(row)
    for row in profile.dma_packets.to_pylist():
        block, place = divmod(row["start_ts"] - BODY[0], BLOCK_NS)
        start = BODY[0] + block * BLOCK_NS + load_at + place // STREAM_PERIOD_NS * (PACKET_NS + 1)
        packets.append(row | {"start_ts": start, "end_ts": start + PACKET_NS})
    return dataclasses.replace(
        profile, instructions=_table("instructions", instructions), dma_packets=_table("dma_packets", packets)
    )


def idle_gap(profile: Profile) -> Profile:
    """40 us between two kernels in which nothing happens."""
    return _quiet(profile, *QUIET, keep_kernels=False)


def runtime_overhead(profile: Profile) -> Profile:
    """The execution's window begins 60 us before the compiler's first instruction."""
    cores = tuple(dataclasses.replace(core, window_start_ts=-60_000) for core in profile.metadata.cores)
    return _with_metadata(profile, cores=cores)


FAULTS: dict[str, Callable[[Profile], Profile]] = {
    "DMA001": small_packets,
    "DMA020": few_dma_engines,
    "DMA021": slow_packets,
    "HBM001": spill,
    "HBM002": reloads,
    "HBM003": kernel_round_trips,
    "LNC001": unbalanced_pair,
    "LNC002": lone_core,
    "CC001": exposed_collectives,
    "CC002": late_rank,
    "VEC001": vector_chain,
    "ACT001": scalar_chain,
    "GPS001": gpsimd_alone,
    "PE001": skinny_matmuls,
    "PE002": transposes,
    "THR001": throttled,
    "WAIT001": waits_for_dma,
    "WAIT002": waits_for_engine,
    "WAIT003": waits_for_other_core,
    "WAIT004": unexplained_waits,
    "PIPE001": no_overlap,
    "IDLE001": idle_gap,
    "RUN001": runtime_overhead,
}
"""One fault for each finding code."""

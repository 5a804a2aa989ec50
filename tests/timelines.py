"""Small hand-written timelines as Profiles: the notation of the users' cases (PE, DVE, SEM, CC, DMA rows in ns)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from trnprof.profile import Core, Metadata, Profile, Provenance, make_table

Interval = tuple[int, int]

ENGINE_OF = {"PE": "tensor", "DVE": "vector", "ACT": "scalar", "POOL": "gpsimd", "SP": "sync"}


def timeline(
    window: Interval,
    *,
    instructions: list[tuple[str, int, int]] = (),  # type: ignore[assignment]
    waits: list[tuple[str, int, int]] = (),  # type: ignore[assignment]
    packets: list[tuple[int, int, int]] = (),  # type: ignore[assignment]
    packet_types: list[str] | None = None,
    collectives: list[Interval] = (),  # type: ignore[assignment]
    kernels: list[Interval] = (),  # type: ignore[assignment]
    hbm_bytes: int | None = None,
    cores: int = 1,
    core_of: list[int] | None = None,
    **metadata: object,
) -> Profile:
    """A profile of one window: instruction rows (engine, start, end), SEM rows, packets (start, end, bytes), CC rows.

    core_of: the core of each instruction row, then of each wait row; all on core 0 without it.
    """
    rows = [(engine, "MATMUL" if engine == "PE" else "TENSOR_TENSOR", a, b) for engine, a, b in instructions]
    rows += [(engine, "EVENT_SEMAPHORE", a, b) for engine, a, b in waits]
    places = core_of or [0] * len(rows)
    order = sorted(range(len(rows)), key=lambda i: (places[i], rows[i][2]))
    columns: dict[str, object] = {
        "start_ts": np.array([rows[i][2] for i in order], np.int64),
        "end_ts": np.array([rows[i][3] for i in order], np.int64),
        "pcore_idx": np.array([places[i] for i in order], np.int16),
        "engine": pa.array([ENGINE_OF[rows[i][0]] for i in order], pa.string()),
        "opcode": pa.array([rows[i][1] for i in order], pa.string()),
    }
    packets = sorted(packets)
    types = packet_types or ["data"] * len(packets)
    return Profile(
        metadata=Metadata(
            format="test",
            provenance=Provenance.MODELLED,
            cores=tuple(
                Core(
                    core=core,
                    subgraph=f"sg{core:02d}",
                    window_start_ts=window[0],
                    window_end_ts=window[1],
                    hbm_read_bytes=hbm_bytes,
                    hbm_write_bytes=None if hbm_bytes is None else 0,
                )
                for core in range(cores)
            ),
            **metadata,  # type: ignore[arg-type]
        ),
        instructions=make_table("instructions", columns),
        dma_packets=make_table(
            "dma_packets",
            {
                "start_ts": np.array([p[0] for p in packets], np.int64),
                "end_ts": np.array([p[1] for p in packets], np.int64),
                "transfer_bytes": np.array([p[2] for p in packets], np.int64),
                "pcore_idx": np.zeros(len(packets), np.int16),
                "queue_type": pa.array(types, pa.string()),
            },
        ),
        collectives=make_table(
            "collectives",
            {
                "start_ts": np.array([c[0] for c in collectives], np.int64),
                "end_ts": np.array([c[1] for c in collectives], np.int64),
                "operation": pa.array(["AllReduce"] * len(collectives), pa.string()),
            },
        ),
        kernels=make_table(
            "kernels",
            {
                "start_ts": np.array([k[0] for k in kernels], np.int64),
                "end_ts": np.array([k[1] for k in kernels], np.int64),
                "name": pa.array(["kernel"] * len(kernels), pa.string()),
                "pcore_idx": np.zeros(len(kernels), np.int16),
            },
        ),
    )


def core_profile(
    window: Interval,
    *,
    instructions: list[tuple] = (),  # type: ignore[assignment, type-arg]
    packets: list[tuple[Interval, int, str, int]] = (),  # type: ignore[assignment]
    updates: list[tuple[int, int, str, str | None, int]] = (),  # type: ignore[assignment]
    collectives: list[Interval] = (),  # type: ignore[assignment]
    collective_group: str = "",
    kernels: list[Interval] = (),  # type: ignore[assignment]
    throttle: list[tuple[Interval, int]] = (),  # type: ignore[assignment]
    cores: int = 1,
    **metadata: object,
) -> Profile:
    """A profile with all that an account reads, rows of cores that it does not have left out.

    instructions: (span, engine, opcode, core, emitted, waits for, evt_wait, updates, HBM bytes) rows.
    packets: (span, bytes, queue type, core). updates: (time, semaphore, id, source, core). throttle: (span, k of 8).
    Collectives are of the whole logical core, kernels and throttling of core 0.
    """
    rows = sorted((row for row in instructions if row[3] < cores), key=lambda row: (row[3], row[0][0]))
    moved = sorted((row for row in packets if row[3] < cores), key=lambda row: (row[3], row[0][0]))
    sent = sorted((row for row in updates if row[4] < cores), key=lambda row: (row[4], row[0]))
    held = sorted(throttle)

    def spans(found: list[Interval]) -> dict[str, object]:
        return {
            "start_ts": np.array([span[0] for span in found], np.int64),
            "end_ts": np.array([span[1] for span in found], np.int64),
        }

    def text(values: list[str | None]) -> pa.Array:
        return pa.array(values, pa.string())

    return Profile(
        metadata=Metadata(
            format="test",
            provenance=Provenance.MODELLED,
            cores=tuple(
                Core(core=core, subgraph=f"sg{core:02d}", window_start_ts=window[0], window_end_ts=window[1])
                for core in range(cores)
            ),
            **metadata,  # type: ignore[arg-type]
        ),
        instructions=make_table(
            "instructions",
            {
                **spans([row[0] for row in rows]),
                "pcore_idx": np.array([row[3] for row in rows], np.int16),
                "engine": text([row[1] for row in rows]),
                "opcode": text([row[2] for row in rows]),
                "compiler_pc": pa.array([7 if row[4] else None for row in rows], pa.int32()),
                "wait_semaphore_idx": pa.array([row[5] for row in rows], pa.int16()),
                "evt_wait_time_ns": np.array([row[6] for row in rows], np.int64),
                "update_semaphore_idx": pa.array([row[7] for row in rows], pa.int16()),
                "hbm_read_bytes": np.array([row[8] for row in rows], np.int64),
                "hbm_write_bytes": np.zeros(len(rows), np.int64),
            },
        ),
        dma_packets=make_table(
            "dma_packets",
            {
                **spans([row[0] for row in moved]),
                "pcore_idx": np.array([row[3] for row in moved], np.int16),
                "transfer_bytes": np.array([row[1] for row in moved], np.int64),
                "queue_type": text([row[2] for row in moved]),
            },
        ),
        semaphores=make_table(
            "semaphores",
            {
                "timestamp": np.array([row[0] for row in sent], np.int64),
                "pcore_idx": np.array([row[4] for row in sent], np.int16),
                "id": text([row[2] for row in sent]),
                "value": np.ones(len(sent), np.int64),
                "semaphore_idx": pa.array([row[1] for row in sent], pa.int16()),
                "update_source": text([row[3] for row in sent]),
            },
        ),
        collectives=make_table(
            "collectives",
            {
                **spans(sorted(collectives)),
                "operation": text(["AllReduce"] * len(collectives)),
                "replica_group": text([collective_group] * len(collectives)),
            },
        ),
        kernels=make_table(
            "kernels",
            {
                **spans(sorted(kernels)),
                "name": text(["kernel"] * len(kernels)),
                "pcore_idx": np.zeros(len(kernels), np.int16),
            },
        ),
        throttle=make_table(
            "throttle",
            {
                "timestamp": np.array([span[0] for span, _ in held], np.int64),
                "duration": np.array([span[1] - span[0] for span, _ in held], np.int64),
                "k": np.array([k for _, k in held], np.int32),
                "n": np.full(len(held), 8, np.int32),
                "pcore_idx": np.zeros(len(held), np.int16),
            },
        ),
    )

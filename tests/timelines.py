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

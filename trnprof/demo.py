"""The bundled examples: a decode step of the bundled engine put together from its NKI kernels, the printed anatomy of a real
capture, and a step laid out to published figures.

The last one is the anatomy that TrnRT published for GLM-5.3-Flash. Published, per physical core: 24.2 ms = 6.1 memory floor (2,038 MB at 336 GB/s) + 10.0 busy beyond it + 4.6 in-kernel
waits + 2.8 exposed collectives (125 of them) + 0.7 idle; vector engine 9.9 ms in instructions of about 153 ns, tensor
engine 5.7 ms. Only those figures come from the post; how they are laid out in time is ours. Nothing here knows the
parts: they come out of the events.
"""

from __future__ import annotations

from importlib import resources

import numpy as np
import pyarrow as pa

from trnprof.profile import Core, Metadata, Profile, Provenance, coded_column, make_table

ENGINE_MODEL, ENGINE_ROWS, ENGINE_CONTEXT, ENGINE_RANKS = "tiny-gdn-moe", 8, 4096, 4

CORE_COUNT = 2
LAYER_COUNT = 125
"""One collective a layer here."""

STEP_NS = 24_200_000
LAYER_NS = STEP_NS // LAYER_COUNT  # 193,600

DMA_ENGINE_COUNT = 16
PACKETS_PER_ENGINE = 20
PACKET_BYTES = 50_950  # x 20 packets x 16 engines x 125 layers = 2,038,000,000 B
PACKET_NS = 2_425  # 16 engines x 50,950 B in 2,425 ns = 336 GB/s: the rate of a core in a busy pair
STREAM_NS = PACKETS_PER_ENGINE * PACKET_NS  # 48,500: the layer's weights

MATMUL_NS, MATMUL_COUNT = 120, 380  # 45,600 ns a layer x 125 = 5.7 ms; they run while the weights arrive
VECTOR_NS, VECTOR_COUNT = 153, 517  # 79,101 ns a layer x 125 = 9.9 ms
SCALAR_NS = 1_199

COLLECTIVE_NS, COLLECTIVE_HIDDEN_NS = 30_000, 7_600
WAITS = (("q_weights", 22_080), ("tensor", 9_200), ("barrier", 5_520))  # 36,800 ns a layer x 125 = 4.6 ms
IDLE_NS = 5_600

SEMAPHORES = {"q_weights": (8, "S[8] (q_weights)"), "tensor": (5, "S[5] (Tensor)"), "barrier": (2, "2")}


def engine_step() -> Profile:
    """One rank's decode step of the engine's own model, as `trnprof engine profile --modelled` makes it."""
    from trnprof.engine.config import presets
    from trnprof.engine.modelled_step import decode_step
    from trnprof.modelled_step import model_device_step

    step = decode_step(presets()[ENGINE_MODEL], rows=ENGINE_ROWS, context=ENGINE_CONTEXT, rank_count=ENGINE_RANKS)
    return model_device_step(step).profile()


def real_capture_transcript() -> str:
    """What `trnprof anatomy` begins to print on a public capture of a trn2.3xlarge (the README has the same)."""
    return resources.files("trnprof").joinpath("real_capture.txt").read_text(encoding="utf-8")


def published_step() -> Profile:
    """The step as a Profile of provenance `modelled`, two physical cores with the same events."""
    cores = [_core_events(core) for core in range(CORE_COUNT)]
    tables = {name: pa.concat_tables([events[name] for events in cores]) for name in cores[0]}
    metadata = Metadata(
        format="explorer-parquet",
        provenance=Provenance.MODELLED,
        cores=tuple(
            Core(core=core, subgraph=f"sg{core:02d}", window_start_ts=0, window_end_ts=STEP_NS)
            for core in range(CORE_COUNT)
        ),
        hardware="trn2",
        instance_type="trn2.48xlarge",
        versions={"profiler": "trnprof demo (modelled)"},
        dge_notifications=True,
        has_step_markers=True,
    )
    throttle = make_table(
        "throttle",
        {"timestamp": [0], "duration": [STEP_NS], "k": [8], "n": [8], "type": ["activity_0"], "pcore_idx": [0]},
    )
    return Profile(metadata=metadata, throttle=throttle, **tables)


def _core_events(core: int) -> dict[str, pa.Table]:
    """One layer's events, laid end to end LAYER_COUNT times."""
    rows: list[tuple[str, str, np.ndarray, int, str | None]] = []  # engine, opcode, starts, length, waits for

    # The weights stream in; the tensor engine works on them as they arrive and is done 2,900 ns before the last packet.
    rows.append(("tensor", "MATMUL", np.arange(MATMUL_COUNT) * MATMUL_NS, MATMUL_NS, None))
    rows.append(("sync", "DMA_DIRECT2D", np.arange(PACKETS_PER_ENGINE) * PACKET_NS, 60, None))
    at = STREAM_NS
    vector_starts = []
    per_run = -(-VECTOR_COUNT // (len(WAITS) + 1))
    placed = 0
    for producer, wait_ns in WAITS:
        vector_starts.append(at + np.arange(per_run) * VECTOR_NS)
        placed += per_run
        at += per_run * VECTOR_NS
        rows.append(("vector", "EVENT_SEMAPHORE", np.array([at]), wait_ns, producer))
        at += wait_ns
    vector_starts.append(at + np.arange(VECTOR_COUNT - placed) * VECTOR_NS)
    at += (VECTOR_COUNT - placed) * VECTOR_NS
    rows.append(("vector", "TENSOR_TENSOR", np.concatenate(vector_starts), VECTOR_NS, None))
    # The all-reduce starts under the last vector instructions, and nothing runs until it ends.
    collective_start = at - COLLECTIVE_HIDDEN_NS
    at += COLLECTIVE_NS - COLLECTIVE_HIDDEN_NS + IDLE_NS
    rows.append(("scalar", "ACTIVATE", np.array([at]), SCALAR_NS, None))
    assert at + SCALAR_NS == LAYER_NS, (at + SCALAR_NS, LAYER_NS)

    layers = np.arange(LAYER_COUNT, dtype=np.int64) * LAYER_NS
    return {
        "instructions": _instructions(core, rows, layers),
        "dma_packets": _packets(core, layers),
        "semaphores": _semaphores(core, rows, layers),
        "collectives": make_table(
            "collectives",
            {
                "start_ts": layers + collective_start,
                "end_ts": layers + collective_start + COLLECTIVE_NS,
                "operation": ["AllReduce"] * LAYER_COUNT,
                "pcore_idx": np.full(LAYER_COUNT, core, np.int16),
                "op_id": np.arange(LAYER_COUNT),
            },
        ),
    }


def _instructions(core: int, rows: list[tuple[str, str, np.ndarray, int, str | None]], layers: np.ndarray) -> pa.Table:
    engines = sorted({row[0] for row in rows})
    opcodes = sorted({row[1] for row in rows})
    starts, ends, engine, opcode, wait, hbm_read = [], [], [], [], [], []
    for name, mnemonic, offsets, length, producer in rows:
        start = (layers[:, None] + offsets[None, :]).ravel()
        starts.append(start)
        ends.append(start + length)
        engine.append(np.full(len(start), engines.index(name), np.int32))
        opcode.append(np.full(len(start), opcodes.index(mnemonic), np.int32))
        wait.append(np.full(len(start), SEMAPHORES[producer][0] if producer else -1))
        moved = DMA_ENGINE_COUNT * PACKET_BYTES if mnemonic == "DMA_DIRECT2D" else 0
        hbm_read.append(np.full(len(start), moved))
    order = np.argsort(np.concatenate(starts), kind="stable")
    semaphore = np.concatenate(wait)[order]
    count = len(order)
    return make_table(
        "instructions",
        {
            "start_ts": np.concatenate(starts)[order],
            "end_ts": np.concatenate(ends)[order],
            "pcore_idx": np.full(count, core, np.int16),
            "engine": coded_column(np.concatenate(engine)[order], engines),
            "opcode": coded_column(np.concatenate(opcode)[order], opcodes),
            "compiler_pc": np.arange(count),
            "wait_semaphore_idx": pa.array(semaphore, pa.int16(), mask=semaphore < 0),
            "hbm_read_bytes": np.concatenate(hbm_read)[order],
            "hbm_write_bytes": np.zeros(count, np.int64),
        },
    )


def _packets(core: int, layers: np.ndarray) -> pa.Table:
    engines = 64 + DMA_ENGINE_COUNT * core + np.arange(DMA_ENGINE_COUNT)
    start = layers[:, None, None] + np.arange(PACKETS_PER_ENGINE)[None, :, None] * PACKET_NS + np.zeros_like(engines)
    engine = np.broadcast_to(engines, start.shape).ravel()
    start = start.ravel()
    return make_table(
        "dma_packets",
        {
            "start_ts": start,
            "end_ts": start + PACKET_NS,
            "pcore_idx": np.full(len(start), core, np.int16),
            "engine_idx": engine,
            "queue_idx": np.zeros(len(start), np.int16),
            "queue_type": coded_column(np.zeros(len(start), np.int32), ["data"]),
            "queue_name": coded_column(np.zeros(len(start), np.int32), ["q_weights"]),
            "transfer_bytes": np.full(len(start), PACKET_BYTES),
            "read_bytes": np.full(len(start), PACKET_BYTES),
            "write_bytes": np.full(len(start), PACKET_BYTES),
        },
    )


def _semaphores(core: int, rows: list[tuple[str, str, np.ndarray, int, str | None]], layers: np.ndarray) -> pa.Table:
    """The update that ends each wait, from whom the layer says."""
    times, index, names = [], [], []
    for _, _, offsets, length, producer in rows:
        if producer is None:
            continue
        times.append(layers + int(offsets[0]) + length)
        index.append(np.full(LAYER_COUNT, SEMAPHORES[producer][0]))
        names.append(np.full(LAYER_COUNT, list(SEMAPHORES).index(producer), np.int32))
    order = np.argsort(np.concatenate(times), kind="stable")
    name_codes = np.concatenate(names)[order]
    return make_table(
        "semaphores",
        {
            "timestamp": np.concatenate(times)[order],
            "pcore_idx": np.full(len(order), core, np.int16),
            "id": coded_column(name_codes, [text for _, text in SEMAPHORES.values()]),
            "semaphore_idx": np.concatenate(index)[order],
            "value": np.repeat(1, len(order)),
            "update_source": coded_column(name_codes, ["axi", "tensor", "axi"]),
        },
    )

"""NTFF decode against its floor: the same bytes seen as records and put in the order of time by one stable sort.

The capture is synthetic, close to the record mix of a real one (of 16-byte records: DMA packets two thirds, instructions
a fifth, semaphore updates the rest), written by trnprof at three sizes. Memory is the growth of the reading process's
peak, the mapped file's pages included.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from trnprof.profile import Core, DmaQueue, Metadata, Profile, Provenance, coded_column, make_table
from trnprof.readers.ntff_records import RECORD, RECORD_BYTES
from trnprof.readers.ntff_tables import ENGINE_NAMES

BASE_PACKETS = 90_000
SCALES = (1, 4, 16)
_QUEUES = ("qSyncDynamicHW", "qScalarDynamicHW", "qGpSimdDynamic")
_OPCODES = ("MATMUL", "LDWEIGHTS", "ACTIVATE", "TENSOR_REDUCE", "COPY", "EVENT_SEMAPHORE", "DMA_DIRECT2D")


def make_capture(packet_count: int, *, seed: int = 1) -> Profile:
    """A capture of one core with this many DMA packets, a third as many instructions, half as many semaphore updates."""
    random = np.random.default_rng(seed)
    duration_ns = 20 * packet_count
    return Profile(
        metadata=Metadata(
            format="synthetic",
            provenance=Provenance.MODELLED,
            cores=(Core(core=0, subgraph="sg00", window_start_ts=0, window_end_ts=duration_ns, neuroncore_idx=0),),
            hardware="trn2",
            static_dma=tuple(
                DmaQueue(core=0, engine_idx=engine, queue_idx=ring, name=name, type=_queue_type(name))
                for engine in range(16)
                for ring, name in enumerate(_QUEUES)
            ),
        ),
        instructions=_instructions(random, packet_count // 3, duration_ns),
        dma_packets=_packets(random, packet_count, duration_ns),
        semaphores=_semaphores(random, packet_count // 3, duration_ns),
    )


def _queue_type(name: str) -> str:
    return "hardware_dynamic" if name.endswith("HW") else "software_dynamic"


def _instructions(random: np.random.Generator, count: int, duration_ns: int) -> object:
    engine = random.integers(0, len(ENGINE_NAMES), count)
    start = np.sort(random.integers(0, 1000 * (duration_ns - 1000), count))
    # Each engine runs one loop over 4,000 instructions, one at a time.
    pc = np.zeros(count, np.int64)
    end = np.zeros(count, np.int64)
    for number in range(len(ENGINE_NAMES)):
        rows = np.flatnonzero(engine == number)
        pc[rows] = np.arange(len(rows)) % 4000
        end[rows] = np.append(start[rows][1:], start[rows][-1] + 1000)
    opcode = (pc % len(_OPCODES)).astype(np.int32)
    is_dma = opcode == _OPCODES.index("DMA_DIRECT2D")
    return make_table(
        "instructions",
        {
            "start_ts": start // 1000,
            "end_ts": start // 1000 + (end - start) // 1000,
            "start_ps": start,
            "end_ps": end,
            "pcore_idx": np.zeros(count, np.int16),
            "engine": coded_column(engine.astype(np.int32), list(ENGINE_NAMES)),
            "opcode": coded_column(opcode, list(_OPCODES)),
            "pc": pc.astype(np.int32),
            "compiler_pc": pc.astype(np.int32),
            "evt_wait_time_ns": random.integers(0, 50_000, count),
            "update_semaphore_idx": np.where(is_dma, 8, 4 + pc % 3).astype(np.int16),
            "hbm_read_bytes": np.where(is_dma, 65536, -1),
            "hbm_write_bytes": np.where(is_dma, 0, -1),
            "tensor_elements": np.where(opcode == 0, 128 * 128 * 512, -1),
        },
    )


def _packets(random: np.random.Generator, count: int, duration_ns: int) -> object:
    start = np.sort(random.integers(0, 1000 * (duration_ns - 1000), count))
    engine = np.arange(count) % 16
    ring = random.integers(0, len(_QUEUES), count)
    end = start + random.integers(20_000, 60_000)  # one duration: packets of one ring never overtake each other
    return make_table(
        "dma_packets",
        {
            "start_ts": start // 1000,
            "end_ts": start // 1000 + (end - start) // 1000,
            "start_ps": start,
            "end_ps": end,
            "pcore_idx": np.zeros(count, np.int16),
            "transfer_bytes": random.choice([4, 512, 4096], count),
            "engine_idx": engine.astype(np.int16),
            "queue_idx": ring.astype(np.int16),
            "crc": random.integers(0, 1 << 16, count).astype(np.int32),
        },
    )


def _semaphores(random: np.random.Generator, count: int, duration_ns: int) -> object:
    index = random.integers(3, 40, count)
    at = np.sort(random.integers(0, 1000 * duration_ns, count))
    return make_table(
        "semaphores",
        {
            "timestamp": at // 1000,
            "timestamp_ps": at,
            "pcore_idx": np.zeros(count, np.int16),
            "id": [str(number) for number in index.tolist()],
            "semaphore_idx": index.astype(np.int16),
            "value": random.integers(0, 64, count),
            "update_source": ["axi"] * count,
            "update_operation_type": ["sem_inc"] * count,
        },
    )


_MEASURE = """
import sys
from pathlib import Path
from trnprof.readers.ntff import read_ntff_alone
def peak():
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])
read_ntff_alone(Path(sys.argv[1]))
# ru_maxrss begins with what the parent had when it forked; the high-water mark of /proc can be reset.
Path("/proc/self/clear_refs").write_text("5")
before = peak()
profile = read_ntff_alone(Path(sys.argv[2]))
print(peak() - before)
"""


def run() -> str:
    """A table: size, records/s, MB/s, time as a multiple of the floor, peak memory as a multiple of the file."""
    from trnprof.readers.ntff import read_ntff_alone
    from trnprof.writers.ntff import write_ntff

    lines = [
        f"{'scale':>5} {'MB':>7} {'records':>9} {'M records/s':>11} {'MB/s':>6} {'x floor':>8} {'peak / file':>11}"
    ]
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / "small.ntff"
        write_ntff(make_capture(1000), small)
        for scale in SCALES:
            path = Path(folder) / f"{scale}.ntff"
            write_ntff(make_capture(scale * BASE_PACKETS), path)
            size = path.stat().st_size
            floor, decode = _fastest(partial(_floor, path)), _fastest(partial(read_ntff_alone, path))
            command = [sys.executable, "-c", _MEASURE, str(small), str(path)]
            peak = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            count = size // RECORD_BYTES
            lines.append(
                f"{scale:>5} {size / 1e6:>7.1f} {count:>9} {count / decode / 1e6:>11.1f} {size / decode / 1e6:>6.0f} "
                f"{decode / floor:>8.2f} {peak / size:>11.2f}"
            )
    return "\n".join(lines)


def _floor(path: Path) -> np.ndarray:
    data = np.fromfile(path, np.uint8)
    records = data[len(data) % RECORD_BYTES :].view(RECORD)
    return records[np.argsort(records["stamp"], kind="stable")]


def _fastest(work: Callable[[], object], *, rounds: int = 5) -> float:
    """Seconds of the fastest of some rounds: the least disturbed one."""
    times = []
    for _ in range(rounds):
        before = time.perf_counter()
        work()
        times.append(time.perf_counter() - before)
    return min(times)

"""Large captures: the account against reading its columns with pyarrow, and against DuckDB's union of the same intervals.

Every figure is of a process of its own, libraries imported before the clock starts. The checksum is the length of the
union of each engine's instructions and of the data packets on each core: trnprof's account, trnprof's union and DuckDB
must give the same numbers. The union is compared twice: alone, on the same intervals in memory, and as DuckDB makes it
from the files beside the whole account, which has far more in it. TRNPROF_BENCH_ROWS changes the size;
TRNPROF_BENCH_FULL=1 adds 100 million rows, and 64 ranks of a million.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.bench._measure import ROOT, Measurement, measure, megabytes, table
from tests.bench._timelines import NEEDED, SHAPES, write_capture

ROWS = int(os.environ.get("TRNPROF_BENCH_ROWS", 10_000_000))
FULL_ROWS = 100_000_000
RANKS, RANK_ROWS = 64, 1_000_000

_PREPARE_PYARROW = f"""
import pyarrow as pa, pyarrow.parquet as pq
needed = {NEEDED!r}
"""
_PYARROW = """
result = sum(len(pq.read_table(f"{sys.argv[1]}/{name}.parquet", columns=columns)) for name, columns in needed.items())
"""
_PYARROW_DICTIONARIES = """
result = 0
for name, columns in needed.items():
    path = f"{sys.argv[1]}/{name}.parquet"
    text = [part.name for part in pq.read_schema(path) if pa.types.is_string(part.type) and part.name in columns]
    result += len(pq.ParquetFile(path, read_dictionary=text).read(columns=columns))
"""

_PREPARE_TRNPROF = """
from pathlib import Path
from trnprof.lean_start import give_memory_back, leave_pandas_out, share_one_heap
give_memory_back()
leave_pandas_out()
share_one_heap()
from trnprof.hardware import Bandwidth, load_hardware
from trnprof.readers.explorer_batches import ExplorerBatches
from trnprof.streamed import account_batches
"""
_TRNPROF = """
account = account_batches(ExplorerBatches(Path(sys.argv[1])), load_hardware("trn2"), Bandwidth(336 * 10**9, "", "")).anatomy
result = {
    f"{core.core} {name}": ns
    for core in account.cores
    for name, ns in [*((name, engine.active_ns) for name, engine in core.engines.items()), ("data", core.dma.data_ns)]
}
"""

_SPANS = """
    select pcore_idx as core, lower(engine) as track, start_ts as s, end_ts as e
    from read_parquet('{0}/Instruction.parquet') where opcode <> 'EVENT_SEMAPHORE'
    union all
    select pcore_idx, 'data', start_ts, end_ts from read_parquet('{0}/DmaPacket.parquet')
    where transfer_bytes <> 4 and queue_type <> 'instruction'
"""
_UNION = """
    with reached as (
        select *, max(e) over (
            partition by core, track order by s, e rows between unbounded preceding and 1 preceding
        ) as reach from {0}
    )
    select core, track, sum(greatest(e - greatest(s, coalesce(reach, s)), 0))::bigint from reached group by all
"""
"""What an interval adds to the union is what of it lies after the furthest end so far: one window, one pass."""

_PREPARE_DUCKDB = f"import duckdb\nspans = {_SPANS!r}\nunion = {_UNION!r}"
_DUCKDB = """
rows = duckdb.sql(union.format(f"({spans.format(sys.argv[1])})")).fetchall()
result = {f"{core} {track}": ns for core, track, ns in rows}
"""
_PREPARE_DUCKDB_ALONE = _PREPARE_DUCKDB + '\nduckdb.sql("create table spans as " + spans.format(sys.argv[1]))\n'
_DUCKDB_ALONE = """
result = {f"{core} {track}": ns for core, track, ns in duckdb.sql(union.format("spans")).fetchall()}
"""
_PREPARE_UNION = (
    _PREPARE_DUCKDB
    + """
import numpy as np
from trnprof.intervals import union_lengths
columns = duckdb.sql(spans.format(sys.argv[1])).order("s").fetchnumpy()
tracks, track = np.unique(np.asarray(columns["track"], str), return_inverse=True)
core, start, end = (np.asarray(columns[name], np.int64) for name in ("core", "s", "e"))
group = core * len(tracks) + track
"""
)
_UNION_ALONE = """
lengths = union_lengths(group, start, end, 2 * len(tracks)).tolist()
result = {f"{place // len(tracks)} {tracks[place % len(tracks)]}": ns for place, ns in enumerate(lengths)}
"""


def run() -> str:
    """The tables; raises if a checksum differs."""
    blocks = []
    with tempfile.TemporaryDirectory(prefix="trnprof-bench-") as folder:
        rows = []
        for shape in SHAPES:
            rows.append(_compare(Path(folder) / shape, ROWS, shape))
        rows.append(_compare(Path(folder) / "unrolled", ROWS, "dense", unrolled=True))
        blocks.append(table(_HEADER, rows))
        if os.environ.get("TRNPROF_BENCH_FULL") == "1":
            blocks.append(table(["rows", "trnprof", "peak"], [_alone(Path(folder) / "large", FULL_ROWS)]))
            blocks.append(_ranks(Path(folder)))
    return "\n\n".join(blocks)


_HEADER = [
    *("timeline", "rows", "pyarrow reads", "with dictionaries", "trnprof", "÷ pyarrow", "÷ with dictionaries", "peak"),
    *("DuckDB's union", "trnprof ÷ DuckDB", "DuckDB's peak"),
    *("union alone, DuckDB", "union alone, trnprof", "trnprof ÷ DuckDB"),
]


def _compare(directory: Path, rows: int, shape: str, *, unrolled: bool = False) -> list[str]:
    write_capture(directory, rows, shape, unrolled=unrolled)
    plain = measure(_PREPARE_PYARROW, _PYARROW, directory, repeat=3)
    coded = measure(_PREPARE_PYARROW, _PYARROW_DICTIONARIES, directory, repeat=3)
    ours = measure(_PREPARE_TRNPROF, _TRNPROF, directory, repeat=3)
    theirs = measure(_PREPARE_DUCKDB, _DUCKDB, directory, repeat=3)
    alone = measure(_PREPARE_DUCKDB_ALONE, _DUCKDB_ALONE, directory, repeat=3)
    union = measure(_PREPARE_UNION, _UNION_ALONE, directory, repeat=3)
    _remove(directory)
    for other in (theirs, alone, union):
        if ours.result != other.result:
            raise AssertionError(f"{shape}: {ours.result} is not {other.result}")
    return [
        shape + (", unrolled" if unrolled else ""),
        f"{rows:,}",
        f"{plain.seconds:.2f} s",
        f"{coded.seconds:.2f} s",
        f"{ours.seconds:.2f} s",
        f"{ours.seconds / plain.seconds:.2f}",
        f"{ours.seconds / coded.seconds:.2f}",
        megabytes(ours.peak_bytes),
        f"{theirs.seconds:.2f} s",
        f"{ours.seconds / theirs.seconds:.2f}",
        megabytes(theirs.peak_bytes),
        f"{alone.seconds:.2f} s",
        f"{union.seconds:.2f} s",
        f"{union.seconds / alone.seconds:.2f}",
    ]


def _alone(directory: Path, rows: int) -> list[str]:
    write_capture(directory, rows, "dense")
    ours: Measurement = measure(_PREPARE_TRNPROF, _TRNPROF, directory)
    _remove(directory)
    return [f"{rows:,}", f"{ours.seconds:.1f} s", megabytes(ours.peak_bytes)]


def _ranks(folder: Path) -> str:
    """`trnprof anatomy` on a folder of ranks: seconds, and the memory of all its processes together."""
    ranks = folder / "ranks"
    write_capture(folder / "rank", RANK_ROWS, "dense")
    for rank in range(RANKS):
        directory = ranks / f"rank_{rank}@latest"
        directory.mkdir(parents=True)
        for file in (folder / "rank").iterdir():
            (directory / file.name).hardlink_to(file)
    begun = time.perf_counter()
    command = [sys.executable, "-m", "trnprof", "anatomy", str(ranks), "--no-cache", "--format", "json"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT)
    peak = [0]
    watcher = threading.Thread(target=_watch, args=(process, peak))
    watcher.start()
    code = process.wait()
    watcher.join()
    assert code == 0, code
    seconds = time.perf_counter() - begun
    _remove(ranks)
    header = ["ranks", "rows", "trnprof anatomy", "all processes' peak together"]
    return table(header, [[str(RANKS), f"{RANKS * RANK_ROWS:,}", f"{seconds:.1f} s", megabytes(peak[0])]])


def _watch(process: subprocess.Popen[bytes], peak: list[int]) -> None:
    """The most that the process and those it started hold in memory at once (Linux)."""
    while process.poll() is None:
        parents: dict[int, int] = {}
        resident: dict[int, int] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    resident[int(entry.name)] = int((entry / "statm").read_text().split()[1]) * os.sysconf(
                        "SC_PAGESIZE"
                    )
                    parents[int(entry.name)] = int(fields[1])
                except (OSError, IndexError, ValueError):
                    continue
        family = {process.pid}
        while grown := {pid for pid, parent in parents.items() if parent in family} - family:
            family |= grown
        peak[0] = max(peak[0], sum(resident.get(pid, 0) for pid in family))
        time.sleep(0.05)


def _remove(directory: Path) -> None:
    import shutil

    shutil.rmtree(directory)

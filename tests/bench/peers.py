"""One million instructions end to end beside HolisticTraceAnalysis and xprof, each reading the same intervals in its format.

End to end is a process of its own from its start to its result: `trnprof anatomy` on Explorer Parquet; HTA's
TraceAnalysis and temporal breakdown on the Kineto JSON (HTA_DISABLE_NS_ROUNDING=1: its default rounding makes compute
time negative); xprof's kernel_stats and trace_viewer on the XSpace. Checksums: HTA's compute time is the union that
trnprof accounts; xprof's kernel times are the sum of the durations, the only figure of its that overlaps do not touch.
Both peers are installed from the public index into an environment under build/; what does not install is left out, with
the reason.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.bench._measure import ROOT, Measurement, megabytes, run_command, table
from tests.bench._timelines import SHAPES
from trnprof.intervals import union
from trnprof.writers.protobuf import field, varint

ROWS = int(os.environ.get("TRNPROF_BENCH_PEER_ROWS", 1_000_000))
ENVIRONMENT = ROOT / "build" / "peers"
ENGINES = ("Tensor", "Vector", "Scalar", "GpSimd", "Sync")
OPCODES = ("MATMUL", "LDWEIGHTS", "ACTIVATE", "TENSOR_TENSOR", "COPY", "CAST")

_HTA = """
import json, sys
from hta.trace_analysis import TraceAnalysis
found = TraceAnalysis(trace_dir=sys.argv[1]).get_temporal_breakdown(visualize=False)
print("RESULT " + json.dumps(int(found["compute_time(us)"].sum())))
"""
_XPROF = """
import json, sys
from xprof.convert import raw_to_tool_data
data, _ = raw_to_tool_data.xspace_to_tool_data([sys.argv[1]], sys.argv[2], {"use_saved_result": False, "host": "host"})
total = len(data)
if sys.argv[2] == "kernel_stats":
    document = json.loads(data)
    place = [column["id"] for column in document["cols"]].index("total_duration_us")
    total = round(sum(row["c"][place]["v"] for row in document["rows"]) * 1000)
print("RESULT " + json.dumps(total))
"""


def run() -> str:
    """The table, and why a peer is not in it; raises if a checksum differs."""
    python, missing = _peers()
    rows, notes = [], [f"{name}: not compared, {why}" for name, why in missing.items()]
    for shape in SHAPES:
        with tempfile.TemporaryDirectory(prefix="trnprof-bench-") as folder:
            rows += _compare(Path(folder), shape, python, missing)
    header = ["timeline", "tool", "seconds", "peak", "its time ÷ trnprof's", "its memory ÷ trnprof's"]
    return "\n".join([table(header, rows), *notes])


def _peers() -> tuple[Path, dict[str, str]]:
    """(the environment's interpreter, what could not be installed and why)."""
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        venv.create(ENVIRONMENT, with_pip=True)
    missing = {}
    for package, module in (("HolisticTraceAnalysis", "hta"), ("xprof", "xprof")):
        if _failure([str(python), "-c", f"import {module}"]) is None:
            continue
        failed = _failure([str(python), "-m", "pip", "install", "--quiet", package])
        if failed is not None:
            missing[package] = failed
    return python, missing


def _failure(command: list[str]) -> str | None:
    """None if the command succeeds, else the last line of what it said."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return None if not done.returncode else (done.stderr.strip().splitlines() or ["no reason given"])[-1]


def _compare(folder: Path, shape: str, python: Path, missing: dict[str, str]) -> list[list[str]]:
    start, end, engine, opcode = _intervals(shape)
    compute_ns, sum_ns = union(start, end).length(), int((end - start).sum())
    _write_parquet(folder / "step@latest", start, end, engine, opcode)
    ours = _timed([sys.executable, "-m", "trnprof", "anatomy", str(folder / "step@latest"), "--format", "json"])
    _agree(_anatomy(ours), compute_ns)
    found = [(shape, "trnprof anatomy", ours)]
    if "HolisticTraceAnalysis" not in missing:
        _write_kineto(folder / "kineto", start, end, engine, opcode)
        theirs = _timed([str(python), "-c", _HTA, str(folder / "kineto")])
        _agree(_printed(theirs), compute_ns)
        found.append(("", "HolisticTraceAnalysis", theirs))
    if "xprof" not in missing:
        path = folder / "host.xplane.pb"
        path.write_bytes(_xspace(start, end, engine, opcode))
        for tool in ("kernel_stats", "trace_viewer"):
            theirs = _timed([str(python), "-c", _XPROF, str(path), tool])
            if tool == "kernel_stats":
                _agree(_printed(theirs), sum_ns)
            found.append(("", f"xprof {tool}", theirs))
    return [
        [
            *(name, tool, f"{each.seconds:.2f} s", megabytes(each.peak_bytes)),
            *(f"{each.seconds / ours.seconds:.1f}", f"{each.peak_bytes / ours.peak_bytes:.1f}"),
        ]
        for name, tool, each in found
    ]


def _timed(command: list[str]) -> Measurement:
    return run_command(command, repeat=3, HTA_DISABLE_NS_ROUNDING="1")


def _agree(found: int, expected: int) -> None:
    if found != expected:
        raise AssertionError(f"checksum {found:,} is not {expected:,}")


def _anatomy(found: Measurement) -> int:
    (core,) = json.loads(str(found.result))["result"]["cores"]
    return (core["parts_ns"]["memory_floor"] or 0) + core["parts_ns"]["busy_beyond_floor"]


def _printed(found: Measurement) -> int:
    (line,) = [line for line in str(found.result).splitlines() if line.startswith("RESULT ")]
    return json.loads(line.removeprefix("RESULT "))


def _intervals(shape: str) -> tuple[np.ndarray, ...]:
    """(start, end, engine, opcode), sorted by start; ns."""
    random = np.random.default_rng(7)
    if shape == "sparse":
        start = np.arange(ROWS, dtype=np.int64) * 40
        end = start + random.integers(1, 30, ROWS)
    else:
        start = np.sort(random.integers(0, 40 * ROWS, ROWS))
        length = random.integers(20, 200, ROWS)
        if shape == "nested":
            length = np.where(np.arange(ROWS) % 50 == 0, 5_000, length)
        end = start + length
        if shape == "tied":
            start, end = start // 100 * 100, end // 100 * 100 + 100
    return start, end, random.integers(0, len(ENGINES), ROWS), random.integers(0, len(OPCODES), ROWS)


def _write_parquet(directory: Path, start: np.ndarray, end: np.ndarray, engine: np.ndarray, opcode: np.ndarray) -> None:
    directory.mkdir()
    columns = {
        "start_ts": start,
        "end_ts": end,
        "pcore_idx": np.zeros(ROWS, np.int64),
        "engine": pa.array(np.array(ENGINES)[engine]),
        "opcode": pa.array(np.array(OPCODES)[opcode]),
        "operands": pa.array([""] * ROWS),
        "compiler_pc": np.arange(ROWS),
    }
    pq.write_table(pa.table(columns), directory / "Instruction.parquet")
    facts = {
        "profile_schema_version": ["7.4.0"],
        "num_physical_cores": [1],
        "first_hw_timestamp": [0],
        "last_hw_timestamp": [int(end.max())],
        "is_simulation": [True],
    }
    pq.write_table(pa.table(facts), directory / "Metadata.parquet")


def _write_kineto(folder: Path, start: np.ndarray, end: np.ndarray, engine: np.ndarray, opcode: np.ndarray) -> None:
    """One stream an engine; our nanoseconds stand for its microseconds, so that both count whole numbers."""
    folder.mkdir()
    with (folder / "rank0.json").open("w", encoding="utf-8") as file:
        file.write(
            '{"schemaVersion":1,"distributedInfo":{"rank":0,"world_size":1},"deviceProperties":[],"traceEvents":['
        )
        rows = zip(start.tolist(), (end - start).tolist(), engine.tolist(), opcode.tolist(), strict=True)
        file.write(
            ",".join(
                f'{{"ph":"X","cat":"kernel","name":"{OPCODES[o]}","pid":0,"tid":{7 + e},"ts":{s},"dur":{d},'
                f'"args":{{"stream":{7 + e},"device":0,"context":1,"correlation":{number}}}}}'
                for number, (s, d, e, o) in enumerate(rows, 1)
            )
        )
        file.write("]}")


def _xspace(start: np.ndarray, end: np.ndarray, engine: np.ndarray, opcode: np.ndarray) -> bytes:
    """One plane of a GPU with a line an engine; field numbers of tensorflow's xplane.proto."""
    details = "regs:32 static_shared:0 dynamic_shared:0 grid:1,1,1 block:128,1,1 occ_pct:100"
    lines = []
    for number, name in enumerate(ENGINES):
        own = engine == number
        events = _xevents(opcode[own] + 1, 1000 * start[own], 1000 * (end - start)[own])
        lines.append(
            field(3, field(1, 7 + number) + field(2, f"Stream #{7 + number}({name})") + field(3, 1000) + events)
        )
    names = [field(4, field(1, key) + field(2, field(1, key) + field(2, name))) for key, name in enumerate(OPCODES, 1)]
    stats = [
        field(5, field(1, key) + field(2, field(1, key) + field(2, name)))
        for key, name in enumerate(("kernel_details", details), 1)
    ]
    return field(1, field(1, 1) + field(2, "/device:GPU:0") + b"".join([*lines, *names, *stats]))


def _xevents(kind: np.ndarray, offset_ps: np.ndarray, duration_ps: np.ndarray) -> bytes:
    """XEvents of one length: numbers as varints of ten bytes, which are read like shorter ones."""
    count = len(kind)
    stat = field(4, field(1, 1) + field(7, 2))

    def constant(value: bytes) -> np.ndarray:
        return np.broadcast_to(np.frombuffer(value, np.uint8), (count, len(value)))

    def wide(values: np.ndarray) -> np.ndarray:
        septets = values.astype(np.uint64)[:, None] >> np.arange(0, 70, 7, dtype=np.uint64) & np.uint64(127)
        septets[:, :9] |= np.uint64(128)
        return septets.astype(np.uint8)

    body = np.concatenate(
        [
            *(constant(varint(1 << 3)), kind[:, None].astype(np.uint8), constant(varint(2 << 3)), wide(offset_ps)),
            *(constant(varint(3 << 3)), wide(duration_ps), constant(stat)),
        ],
        axis=1,
    )
    return np.concatenate([constant(varint(4 << 3 | 2) + varint(body.shape[1])), body], axis=1).tobytes()

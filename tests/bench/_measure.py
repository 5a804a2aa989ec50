"""One measurement in a process of its own: seconds and the peak of its memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

_FRAME = """
import json, resource, sys, time
{prepare}
begun = time.perf_counter()
{timed}
seconds = time.perf_counter() - begun
try:
    # ru_maxrss still has what the parent held when it forked; this is the new program's own.
    (line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    peak = int(line.split()[1]) * 1024
except OSError:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(json.dumps({{"seconds": seconds, "peak_bytes": peak, "result": result}}))
"""


def _environment() -> dict[str, str]:
    """Nothing kept from an earlier run, and Python's compiled files used: an installed package has them."""
    return os.environ | {"TRNPROF_CACHE_DIR": "", "PYTHONDONTWRITEBYTECODE": ""}


@dataclass(frozen=True)
class Measurement:
    """What one process took."""

    seconds: float
    peak_bytes: int
    """Of the whole process, interpreter and libraries included."""
    result: object


def measure(
    prepare: str, timed: str, *arguments: object, python: Path | None = None, repeat: int = 1, **environment: str
) -> Measurement:
    """Run `timed`, which sets `result`, after `prepare`; sys.argv[1:] are the arguments. The quickest of `repeat` runs."""
    runs = []
    for _ in range(repeat):
        done = subprocess.run(
            [str(python or sys.executable), "-c", _FRAME.format(prepare=prepare, timed=timed), *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=_environment() | environment,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        runs.append(Measurement(**json.loads(done.stdout.splitlines()[-1])))
    return min(runs, key=lambda run: run.seconds)


_LAUNCHER = """
import json, os, subprocess, sys, time
begun = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
printed = process.stdout.read()
process.stdout.close()
_, status, used = os.wait4(process.pid, 0)
seconds = time.perf_counter() - begun
peak = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(json.dumps({"seconds": seconds, "peak_bytes": peak, "result": printed, "status": status}))
"""


def run_command(command: list[str], *, repeat: int = 1, **environment: str) -> Measurement:
    """A command from its start to its end, what it printed as the result. The quickest of `repeat` runs.

    A small process starts it and asks for its memory: Linux counts what the starting process held as the new one's peak.
    """
    runs = []
    for _ in range(repeat):
        done = subprocess.run(
            [sys.executable, "-c", _LAUNCHER, *command],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=_environment() | environment,
            check=True,
        )
        found = json.loads(done.stdout)
        if found.pop("status"):
            raise RuntimeError(f"{command[:4]} failed")
        runs.append(Measurement(**found))
    return min(runs, key=lambda run: run.seconds)


def megabytes(count: int) -> str:
    """Bytes as MB of 1e6."""
    return f"{count / 1e6:,.0f} MB"


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|---|" + "---:|" * (len(header) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])

"""Start-up: `trnprof --help` and a 400 kB capture, beside a bare interpreter in the same run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

REPEATS = 7


def seconds(command: list[str]) -> float:
    """Best wall time of REPEATS runs."""
    best = float("inf")
    for _ in range(REPEATS):
        begin = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        best = min(best, time.perf_counter() - begin)
    return best


def run() -> str:
    """A table of wall times and their ratio to `python -c pass`."""
    trnprof = [sys.executable, "-m", "trnprof"]
    commands = {"python -c pass": [sys.executable, "-c", "pass"], "trnprof --help": [*trnprof, "--help"]}
    commands["import numpy, pyarrow.compute"] = [sys.executable, "-c", "import numpy, pyarrow.compute"]
    folder = os.environ.get("TRNPROF_CAPTURES")
    if folder:
        capture = Path(folder) / "baseline_fp32_s1024" / "step.ntff"
        commands[f"trnprof anatomy, {capture.stat().st_size // 1000} kB NTFF"] = [*trnprof, "anatomy", str(capture)]
    floor = None
    lines = [f"{'command':<40}{'best s':>8}{'x bare python':>15}"]
    for name, command in commands.items():
        best = seconds(command)
        floor = floor or best
        lines.append(f"{name:<40}{best:8.3f}{best / floor:15.1f}")
    if not folder:
        lines.append("TRNPROF_CAPTURES is not set: no real capture timed")
    return "\n".join(lines)

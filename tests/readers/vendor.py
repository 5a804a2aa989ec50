"""The vendor's own decode of a capture (legacy profiler JSON), as plain arrays: the oracle of the NTFF tests."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

ENGINE_OF_LABEL = {
    "Tensor": "tensor",
    "TensorMatrix": "tensor",
    "Scalar": "scalar",
    "GpSimd": "gpsimd",
    "Vector": "vector",
    "Sync": "sync",
}


def load(path: Path) -> dict[str, Any]:
    """The JSON at `path`, plain or gzip."""
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)


def core_of(row: dict[str, Any]) -> int:
    """The core of a row: sg01 is 1."""
    return int(row["subgraph"][2:])


def decoded_captures(folder: Path) -> list[tuple[Path, Path]]:
    """(capture, the vendor's JSON) for every capture under TRNPROF_CAPTURES that has one."""
    return [(report.with_name("step.ntff"), report) for report in sorted(folder.glob("*/neuron_profile.json.gz"))]


def decoded_public_captures(folder: Path) -> list[tuple[Path, Path]]:
    """(capture, the vendor's JSON) for every capture under TRNPROF_PUBLIC that has one."""
    found = []
    for report in sorted(folder.rglob("*_profile_full.json")):
        found += [(capture, report) for capture in sorted(report.parent.parent.glob("*.ntff"))]
    return found

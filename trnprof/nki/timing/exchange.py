"""A MachineProgram across processes: JSON data for what is small, a .npz file of plain arrays for the rest.

The child that makes it runs the user's code, so that what comes back is checked before anything is indexed with it.
"""

from __future__ import annotations

import zipfile
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from trnprof.errors import InconsistencyError, InputDataError
from trnprof.nki.timing.program import (
    COLLECTIVE,
    DMA,
    DMA_ENGINE_COUNT,
    DmaTable,
    HbmTensor,
    KernelSpan,
    MachineProgram,
    RepeatedLoop,
)
from trnprof.nki.timing.work import Work
from trnprof.profile import ENGINES

FILE_NAME = "program.npz"
MAX_ARRAY_BYTES = 1 << 30
"""Of all arrays together: about 8 million operations."""

_PER_OPERATION = (
    "kind", "core", "engine", "work", "opcode", "source", "dma", "hbm_read_bytes", "hbm_write_bytes", "sbuf_bytes", "macs",
    "is_transpose", "table", "nest", "times", "partner",
)  # fmt: skip
_PER_DMA = tuple(field.name for field in fields(DmaTable))


def save(program: MachineProgram, folder: Path) -> dict[str, Any]:
    """Write the arrays to `folder`/program.npz; returns the rest as JSON data."""
    arrays = {name: getattr(program, name) for name in _PER_OPERATION}
    arrays |= {name: getattr(program, name) for name in ("dependency_first", "dependency", "dependency_kind")}
    arrays |= {f"dmas_{name}": getattr(program.dmas, name) for name in _PER_DMA}
    np.savez(folder / FILE_NAME, **arrays)
    return {
        "generation": program.generation,
        "core_count": program.core_count,
        "works": [asdict(work) for work in program.works],
        "opcodes": list(program.opcodes),
        "sources": list(program.sources),
        "functions": list(program.functions),
        "tables": list(program.tables),
        "kernels": [asdict(kernel) for kernel in program.kernels],
        "loops": [asdict(loop) for loop in program.loops],
        "tensors": [asdict(tensor) for tensor in program.tensors],
        "unknown": program.unknown,
        "notes": list(program.notes),
        "written_count": program.written_count,
    }


def load(folder: Path, document: dict[str, Any]) -> MachineProgram:
    """The program that save() wrote.

    Raises: InputDataError if it is too large; InconsistencyError if it is not what save() writes.
    """
    try:
        arrays = _arrays(folder / FILE_NAME)
        count = len(arrays["kind"])
        texts: dict[str, Any] = {
            name: tuple(map(str, document[name])) for name in ("opcodes", "sources", "functions", "tables", "notes")
        }
        per_operation: dict[str, Any] = {name: arrays[name] for name in _PER_OPERATION}
        program = MachineProgram(
            generation=str(document["generation"]),
            core_count=int(document["core_count"]),
            works=tuple(Work(**work) for work in document["works"]),
            dmas=DmaTable(**{name: arrays[f"dmas_{name}"] for name in _PER_DMA}),
            kernels=tuple(KernelSpan(**kernel) for kernel in document["kernels"]),
            loops=tuple(RepeatedLoop(**loop) for loop in document["loops"]),
            tensors=tuple(HbmTensor(**tensor) for tensor in document["tensors"]),
            unknown={str(name): int(number) for name, number in document["unknown"].items()},
            written_count=int(document["written_count"]),
            dependency_first=arrays["dependency_first"],
            dependency=arrays["dependency"],
            dependency_kind=arrays["dependency_kind"],
            **texts,
            **per_operation,
        )
        _check(program, count)
    except (OSError, KeyError, TypeError, ValueError, IndexError, AttributeError, zipfile.BadZipFile) as error:
        raise InconsistencyError(f"the child process sent no valid program ({error})") from None
    return program


def _arrays(path: Path) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(path) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > MAX_ARRAY_BYTES:
            raise InputDataError("the kernel has too many operations for a timeline; use smaller shapes")
    with np.load(path, allow_pickle=False) as loaded:
        return {name: loaded[name] for name in loaded.files}


def _check(program: MachineProgram, count: int) -> None:
    """Raises ValueError where an index leads nowhere."""
    if program.core_count not in (1, 2):
        raise ValueError("cores")
    for name in _PER_OPERATION:
        if getattr(program, name).shape != (count,):
            raise ValueError(name)
    dmas = program.dmas
    dma_count = len(dmas.mode)
    for name in _PER_DMA:
        shape = (dma_count, DMA_ENGINE_COUNT) if name in ("packets", "engine_bytes") else (dma_count,)
        if getattr(dmas, name).shape != shape:
            raise ValueError(f"dmas.{name}")
    is_dma = program.kind == DMA
    limits = {
        "kind": (0, COLLECTIVE + 1),
        "core": (0, program.core_count),
        "engine": (-1, len(ENGINES)),
        "work": (-1, len(program.works)),
        "opcode": (-1, len(program.opcodes)),
        "source": (-1, len(program.sources)),
        "dma": (-1, dma_count),
        "table": (-1, len(program.tables)),
        "partner": (-1, count),
    }
    for name, (low, high) in limits.items():
        values = getattr(program, name)
        if count and (values.min() < low or values.max() >= high):
            raise ValueError(name)
    first = program.dependency_first
    if (
        first.shape != (count + 1,)
        or first[0] != 0
        or np.any(np.diff(first) < 0)
        or first[-1] != len(program.dependency)
    ):
        raise ValueError("dependencies")
    if len(program.dependency) and (program.dependency.min() < 0 or program.dependency.max() >= count):
        raise ValueError("dependencies")
    if len(program.dependency_kind) != len(program.dependency) or np.any(program.dma[is_dma] < 0):
        raise ValueError("dependencies")
    if len(program.functions) != len(program.sources):
        raise ValueError("functions")

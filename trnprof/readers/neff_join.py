"""A capture and the NEFF that it ran: found by uuid, joined by the compiler's instruction index."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trnprof.errors import InputDataError, InputMissingError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from trnprof.profile import Profile, TensorSize
    from trnprof.readers.neff import Neff
    from trnprof.readers.neff_origins import Origins

MAX_CANDIDATES = 1000
"""Files beside a capture whose header is looked at."""

_BYTE_COLUMNS = ("hbm_read_bytes", "hbm_write_bytes")


def find_neff(ntff_path: Path, uuid: str | None) -> Path | None:
    """The NEFF with this uuid (hex) in the capture's folder, or None. Told by content, whatever its name.

    Reads 1024 bytes of at most MAX_CANDIDATES files: those with the capture's own stem first, then *.neff, then others.
    """
    from trnprof.readers.neff import read_neff_uuid
    from trnprof.readers.ntff_container import uuid_matches

    if not uuid:
        return None

    def order(entry: os.DirEntry[str]) -> tuple[bool, bool, str]:
        return (Path(entry.name).stem != ntff_path.stem, not entry.name.endswith(".neff"), entry.name)

    try:
        with os.scandir(ntff_path.parent) as entries:
            files = sorted((entry for entry in entries if entry.name != ntff_path.name and entry.is_file()), key=order)
    except OSError:
        return None
    for entry in files[:MAX_CANDIDATES]:
        path = ntff_path.parent / entry.name
        try:
            if uuid_matches(_same_length(uuid), read_neff_uuid(path)):
                return path
        except (InputDataError, InputMissingError):
            continue
    return None


_TENSOR_KINDS = {"input": "input", "output": "output", "file": "weight"}
"""Variable types of the program's tensors."""


def _tensors(neff: Neff) -> tuple[TensorSize, ...]:
    """Inputs, outputs and weights with their sizes; both cores of a pair list the same ones."""
    from trnprof.profile import TensorSize

    found = {
        row["name"]: TensorSize(name=row["name"], kind=_TENSOR_KINDS[row["type"]], size_bytes=row["size_bytes"])
        for core in neff.cores
        for row in core.variables.select(["name", "type", "size_bytes"]).to_pylist()
        if row["type"] in _TENSOR_KINDS and row["size_bytes"]
    }
    return tuple(found.values())


def _same_length(uuid: str) -> str:
    # A capture stores more bytes after the NEFF's 16.
    return uuid.lower().replace("-", "")[:32]


def attach_neff(profile: Profile, neff_path: Path) -> Profile:
    """The profile with what the NEFF knows of each of the compiler's instructions.

    Reads: profile.instructions (pcore_idx, engine, opcode, compiler_pc), profile.metadata.neff_uuid.
    Adds to profile.instructions, null where compiler_pc is: compiler_opcode, bir_id, bir_instruction_name,
    kernel_instruction_name, penguin_id, hlo_name, layer, nki_source_location, bir_debug_info_source_location,
    tensor_instruction_type; and fills hbm_read_bytes and hbm_write_bytes in bytes: of static rings from the ring, of
    dynamic DMAs where the capture does not say. Names the semaphores of DMA queues in profile.semaphores. Adds
    profile.sources, metadata.versions["compiler"] and metadata.tensors.

    Raises: InputDataError (DQ008) if the NEFF is not the one that the capture ran, or as read_neff.
    """
    import pyarrow as pa

    from trnprof.profile import INSTRUCTIONS, CaptureIssue
    from trnprof.readers.neff import read_neff
    from trnprof.readers.neff_origins import trace_origins
    from trnprof.readers.neff_semaphores import name_queue_semaphores
    from trnprof.readers.ntff_container import uuid_matches

    neff = read_neff(neff_path)
    captured = profile.metadata.neff_uuid
    if captured is not None and not uuid_matches(_same_length(captured), neff.header.uuid):
        raise InputDataError(
            f"this NEFF has uuid {neff.header.uuid}, the capture ran {_same_length(captured)}; "
            "name the NEFF that the capture ran: --neff FILE",
            path=neff_path,
            code="DQ008",
        )
    # A capture alone says that the bytes of static rings are not attributed; with the NEFF they are.
    issues = [issue for issue in profile.issues if issue.code != "DQ019"] + list(neff.issues)
    versions = dict(profile.metadata.versions)
    if neff.compiler_version is not None:
        versions["compiler"] = neff.compiler_version
    metadata = replace(
        profile.metadata,
        versions=versions,
        hardware=profile.metadata.hardware or neff.hardware,
        tensors=profile.metadata.tensors or _tensors(neff),
    )
    table = profile.instructions
    if table is None or "compiler_pc" not in table.column_names:
        return replace(profile, metadata=metadata, issues=(*profile.issues, *neff.issues))
    origins = trace_origins(neff)
    rows, outside = _origin_rows(table, origins)
    if outside:
        issues.append(CaptureIssue("DQ030", outside, "the capture counts more instructions than the NEFF has"))
    elsewhere = _count_other_opcodes(table, origins, rows)
    if elsewhere:
        issues.append(CaptureIssue("DQ030", elsewhere, "the capture ran other instructions than the NEFF has there"))
    found = origins.columns.take(pa.array(rows, mask=rows < 0))
    columns = {name: table[name] for name in table.column_names}
    columns |= {name: found[name] for name in found.column_names if name not in _BYTE_COLUMNS}
    unknown = 0
    for name in _BYTE_COLUMNS:
        columns[name], missing = _fill_bytes(columns.get(name), found[name], origins, rows)
        unknown = max(unknown, missing)
    if unknown:
        issues.append(CaptureIssue("DQ019", unknown, "DMAs whose bytes neither the capture nor the NEFF tells"))
    order = [name for name in INSTRUCTIONS.columns if name in columns]
    return replace(
        profile,
        instructions=pa.table([columns[name] for name in order], names=order),
        semaphores=None if profile.semaphores is None else name_queue_semaphores(profile.semaphores, neff),
        sources=origins.sources if origins.sources.num_rows else profile.sources,
        metadata=metadata,
        issues=tuple(issues),
    )


def _origin_rows(table: pa.Table, origins: Origins) -> tuple[npt.NDArray[np.int64], int]:
    """(the row in origins of each instruction, shape [n], -1: none; how many compiler_pc the NEFF does not have)."""
    import numpy as np

    from trnprof.profile import ENGINES, codes_of, int64_of

    codes, names = codes_of(table["engine"])
    # The last row and column stand for what is not there: an engine or a core that the NEFF does not have.
    engine_of_code = np.array(
        [ENGINES.index(name) if name in ENGINES else len(ENGINES) for name in names] + [len(ENGINES)]
    )
    engine = engine_of_code[codes]
    core_count = len(origins.first_row)
    core = int64_of(table["pcore_idx"], null=-1)
    core = np.where((core >= 0) & (core < core_count), core, core_count)
    first = np.pad(origins.first_row, ((0, 1), (0, 1)))[core, engine]
    count = np.pad(origins.instruction_count, ((0, 1), (0, 1)))[core, engine]
    compiler_pc = int64_of(table["compiler_pc"], null=-1)
    inside = (compiler_pc >= 0) & (compiler_pc < count)
    outside = int(np.count_nonzero((compiler_pc >= 0) & ~inside))
    return np.where(inside, first + compiler_pc, -1), outside


def _count_other_opcodes(table: pa.Table, origins: Origins, rows: npt.NDArray[np.int64]) -> int:
    """Instructions whose opcode is not the NEFF's, although the runtime does not rewrite that opcode."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    kept = np.flatnonzero(rows >= 0)
    kept = kept[~origins.is_pseudo[rows[kept]]]
    ran = table["opcode"].take(pa.array(kept)).cast(pa.string())
    compiled = origins.columns["compiler_opcode"].take(pa.array(rows[kept])).cast(pa.string())
    return len(kept) - (pc.sum(pc.equal(ran, compiled)).as_py() or 0)


def _fill_bytes(
    captured: pa.ChunkedArray | None, found: pa.ChunkedArray, origins: Origins, rows: npt.NDArray[np.int64]
) -> tuple[pa.ChunkedArray, int]:
    """(the column, how many DMAs are null in it): the NEFF's bytes for static rings, else the capture's, else the NEFF's."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    is_origin = rows >= 0
    is_static = is_origin & origins.is_static_dma[rows] if len(origins.is_static_dma) else is_origin
    is_dma = is_origin & origins.is_dma[rows] if len(origins.is_dma) else is_origin
    column = found if captured is None else pc.if_else(pa.array(is_static), found, pc.coalesce(captured, found))
    missing = int(np.count_nonzero(is_dma & pc.is_null(column).to_numpy(zero_copy_only=False)))
    return column, missing

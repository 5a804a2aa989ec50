"""A modelled Profile as an NTFF and the NEFF beside it: what a runtime and a compiler would have left, marked as modelled."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from trnprof.profile import ENGINES, Profile, coded_column, codes_of, int64_of
from trnprof.readers import isa
from trnprof.readers.neff import EngineStream, Neff, NeffCore
from trnprof.readers.neff_container import NeffHeader
from trnprof.readers.neff_debug import ENTRIES, DebugLevel
from trnprof.readers.neff_dma import DESCRIPTORS, RINGS, VARIABLES, DmaQueueSet, StaticDma
from trnprof.writers.neff import write_neff
from trnprof.writers.ntff import write_ntff
from trnprof.writers.ntff_program import synthesise
from trnprof.writers.ntff_records import instruction_facts
from trnprof.writers.output import replaced_file

_STAND_IN = {
    "tensor": "MATMUL",
    "vector": "TENSOR_TENSOR",
    "scalar": "ACTIVATE",
    "gpsimd": "AFFINE_SELECT",
    "sync": "NOP",
}
"""Opcode of an engine's instruction whose own byte no capture has shown."""

_ENGINE_CODES = {"tensor": 1, "scalar": 2, "gpsimd": 3, "vector": 5, "sync": 6}
_TARGETS = {"trn1": "sunda", "trn2": "cayman"}
_TRANSPOSE, _REGULAR = 3, 1


@dataclass(frozen=True)
class WrittenCapture:
    """What was written."""

    ntff: Path
    neff: Path
    stand_ins: dict[str, int]
    """Opcodes for which no byte is known, written as another one of their engine, with their instructions."""


def write_modelled_capture(profile: Profile, path: Path, kernel: str, *, overwrite: bool = False) -> WrittenCapture:
    """Write `path` (an .ntff) and the .neff of the same name.

    profile: one core window for all cores, every instruction the compiler's, with nki_source_location.
    Raises: UsageError if one of the files cannot or must not be written; ProfileError for what NTFF cannot hold.
    """
    known, stand_ins = _with_known_opcodes(profile)
    uuid = hashlib.md5(
        f"{kernel} {known.instructions.num_rows if known.instructions else 0}".encode(), usedforsecurity=False
    ).hexdigest()
    known = replace(
        known,
        metadata=replace(
            known.metadata, format="ntff", format_version="6", neff_uuid=uuid, neff_path=f"{path.stem}.neff"
        ),
    )
    neff_path = path.with_suffix(".neff")
    with (
        replaced_file(path, overwrite=overwrite) as new_ntff,
        replaced_file(neff_path, overwrite=overwrite) as new_neff,
    ):
        write_ntff(known, new_ntff)
        write_neff(_neff(known, uuid, kernel), new_neff)
    return WrittenCapture(path, neff_path, stand_ins)


def _with_known_opcodes(profile: Profile) -> tuple[Profile, dict[str, int]]:
    """The profile with opcodes that have a byte, and what was replaced."""
    table = profile.instructions
    assert table is not None
    codes, names = codes_of(table["opcode"])
    engines, engine_names = codes_of(table["engine"])
    known = np.array([name in isa.OPCODE_OF_NAME for name in names] or [True])
    rows = np.flatnonzero(~known[codes])
    counts = np.bincount(codes[rows], minlength=len(names))
    stand_ins = {names[code]: int(counts[code]) for code in np.flatnonzero(counts).tolist()}
    codes = codes.copy()
    codes[rows] = len(names) + engines[rows]
    column = coded_column(codes, [*names, *(_STAND_IN[name] for name in engine_names)])
    at = table.schema.get_field_index("opcode")
    # Encoded anew, so that the column names only opcodes that occur.
    changed = table.set_column(at, table.schema.field(at), column.cast(pa.string()).dictionary_encode())
    return replace(profile, instructions=changed), stand_ins


def _neff(profile: Profile, uuid: str, kernel: str) -> Neff:
    cores = tuple(_core(profile, core.core, core.subgraph, kernel) for core in profile.metadata.cores)
    return Neff(
        header=NeffHeader(
            uuid=uuid,
            name="modelled",
            num_tpb=len(cores),
            tpb_per_node=(len(cores),),
            lnc_size=max(len(cores), 1),
        ),
        compiler_version=profile.metadata.versions.get("profiler"),
        target=_TARGETS.get(profile.metadata.hardware or ""),
        hardware=profile.metadata.hardware,
        cores=cores,
    )


def _core(profile: Profile, core: int, subgraph: str, kernel: str) -> NeffCore:
    table = profile.core_rows("instructions", core)
    assert table is not None
    codes, names = codes_of(table["engine"])
    facts = instruction_facts(table)
    place = int64_of(table["compiler_pc"])
    streams, backend = {}, {}
    for engine in ENGINES:
        rows = np.flatnonzero(codes == names.index(engine)) if engine in names else np.zeros(0, np.int64)
        rows = rows[np.argsort(place[rows], kind="stable")]
        words, _ = (
            synthesise(facts.take(rows), place[rows]) if len(rows) else (np.zeros((0, isa.WORD_BYTES), np.uint8), [])
        )
        ids, level = _debug(table.take(pa.array(rows)), engine, kernel)
        streams[engine] = EngineStream(words, ids)
        if level is not None:
            backend[engine] = level
    return NeffCore(
        core=core,
        subgraph=subgraph,
        streams=streams,
        variables=VARIABLES.empty_table(),
        queue_sets=_queue_sets(profile, core),
        static_dma=StaticDma(RINGS.empty_table(), DESCRIPTORS.empty_table()),
        backend=backend,
    )


def _queue_sets(profile: Profile, core: int) -> tuple[DmaQueueSet, ...]:
    """The queues that the DMA instructions name by their semaphores, which are theirs alone."""
    semaphores = profile.core_rows("semaphores", core)
    if semaphores is None:
        return ()
    found: dict[str, set[int]] = {}
    labels = zip(semaphores["id"].to_pylist(), semaphores["semaphore_idx"].to_pylist(), strict=True)
    for label, index in set(labels):
        queue = label.partition("(")[2].rstrip(")")
        if queue.startswith("q"):
            found.setdefault(queue, set()).add(index)
    owners = {"qSync": "sp", "qScal": "act", "qGpSi": "pool"}
    return tuple(
        DmaQueueSet(
            name=queue,
            type="dynamic",
            queue_count=16,
            owner=owners.get(queue[:5], "sp"),
            semaphores=tuple(sorted(numbers)),
        )
        for queue, numbers in sorted(found.items())
    )


def _debug(table: pa.Table, engine: str, kernel: str) -> tuple[np.ndarray, DebugLevel | None]:
    """(the backend id of each instruction, -1: none; the level with one entry a call site and kind)."""
    codes, texts = codes_of(table["nki_source_location"])
    opcodes, opcode_names = codes_of(table["opcode"])
    is_transpose = np.zeros(len(codes), np.int64)
    if "tensor_instruction_type" in table.column_names:
        kinds, kind_names = codes_of(table["tensor_instruction_type"])
        is_transpose = np.array([*(name == "TRANSPOSE" for name in kind_names), False])[kinds].astype(np.int64)
    entries: dict[tuple[int, int, int], int] = {}
    ids = np.full(len(codes), -1, np.int64)
    files: list[str] = []
    rows = []
    for row, key in enumerate(zip(codes.tolist(), is_transpose.tolist(), opcodes.tolist(), strict=True)):
        if key[0] < 0 or not texts[key[0]]:
            continue
        if key not in entries:
            entries[key] = len(entries) + 1
            file, _, line = texts[key[0]].split(",")[0].rpartition(":")
            if file not in files:
                files.append(file)
            attributes = [("kernel_file", str(files.index(file))), ("kernel_line", line), ("kernel_name", "0")]
            rows.append(
                {
                    "id": entries[key],
                    "name": f"{opcode_names[key[2]]}.{entries[key]}",
                    "parent_ids": [],
                    "dependency_ids": [],
                    "dependency_kinds": [],
                    "schedule_ids": [],
                    "schedule_kinds": [],
                    "kind": _TRANSPOSE if key[1] else _REGULAR,
                    "attributes": attributes,
                }
            )
        ids[row] = entries[key]
    if not rows:
        return ids, None
    level = DebugLevel(
        "modelled by trnprof",
        "",
        _ENGINE_CODES[engine],
        tuple(files),
        (kernel,),
        pa.Table.from_pylist(rows, schema=ENTRIES),
    )
    return ids, level

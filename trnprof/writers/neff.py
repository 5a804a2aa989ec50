"""The mirror of readers/neff.py: a Neff to a file that the reader reads back the same, marked as modelled.

For tests and examples. No Neuron runtime can run the result: engine tables, constants and library code are not in it.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from trnprof.profile import ENGINES
from trnprof.readers.neff import ENGINE_FILES, ENGINE_KEYS, MODELLED_MARK, Neff, NeffCore
from trnprof.readers.neff_container import HEADER_BYTES, pack_header
from trnprof.readers.neff_debug import DebugLevel, KernelTree
from trnprof.version import __version__
from trnprof.writers import protobuf

_ARCHIVE_BLOCK_BYTES = 10_240
"""What tar pads an archive to."""

_ASSEMBLY = "assembly instructions of one engine, in the order of its stream"

BUILD_VERSION = f"{MODELLED_MARK} {__version__} modelled"
"""The header's build version in every NEFF that trnprof writes."""


def write_neff(neff: Neff, path: Path) -> None:
    """Write `neff` to `path`: header, streams, variables, rings and debug info, all that the reader reads.

    The header's sizes, hash and build version are made here; everything else is `neff`'s own. Reading the file gives
    `neff` back with `modelled` set and without the issues of the file that it came from.

    Raises: ValueError for a text that the header cannot hold, struct.error for a number that it cannot hold.
    """
    members = {
        "info.json": _json(
            {
                "tool_version": neff.compiler_version,
                "name": neff.header.name,
                "num_tpb": neff.header.num_tpb,
                MODELLED_MARK: {"provenance": "modelled", "version": __version__},
            }
        ),
        "kelf-0.json": _json(
            {
                "graphs": [{"definition": f"{core.subgraph}/def.json", "name": core.subgraph} for core in neff.cores],
                "version": "0.5",
                "target": neff.target,
            }
        ),
    }
    if neff.hlo_stats:
        members["hlo_stats.json"] = _json(neff.hlo_stats)
    members |= {f"debug_info/{name}": _debug_level(level) for name, level in sorted(neff.levels.items())}
    if neff.kernels:
        members["kernel_debug_info.json"] = _json(
            {
                "debug_info_files": [
                    {
                        "file_name": kernel.file_name,
                        "kernel_name": kernel.kernel_name,
                        "parent_tensorizer_id": kernel.parent_penguin_id,
                    }
                    for kernel in neff.kernels
                ]
            }
        )
        members |= {kernel.file_name: _json(_kernel_document(kernel)) for kernel in neff.kernels}
    for core in neff.cores:
        members |= _core_members(core)
    data = pack_members(members)
    header = replace(
        neff.header,
        header_size=HEADER_BYTES,
        data_size=len(data),
        neff_build_version=BUILD_VERSION,
        pkg_version=2,
        hash=hashlib.md5(data, usedforsecurity=False).hexdigest().ljust(64, "0"),
    )
    path.write_bytes(pack_header(header) + data)


def pack_members(members: dict[str, bytes]) -> bytes:
    """A NEFF's data: a gzip-compressed tar of the members, zero padded. Same members, same bytes: no clock in it."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    compressor = zlib.compressobj(level=6, wbits=31)
    packed = compressor.compress(archive.getvalue()) + compressor.flush()
    return packed + b"\0" * (-len(packed) % _ARCHIVE_BLOCK_BYTES)


def _json(document: object) -> bytes:
    return json.dumps(document, sort_keys=False, separators=(",", ":")).encode()


def _core_members(core: NeffCore) -> dict[str, bytes]:
    definition: dict[str, object] = {
        "name": "definition",
        "version": "0.6",
        "neff_features": list(core.features),
        "dma_queue": {
            queue.name: {
                "type": queue.type,
                "num_queues": queue.queue_count,
                "semaphore_set": list(queue.semaphores),
                "queue_instances": list(queue.instances),
                "fabric_path": queue.fabric_path,
                **({} if queue.owner is None else {"owner": queue.owner}),
            }
            for queue in core.queue_sets
        },
        "var": {row["name"]: _variable(row) for row in core.variables.to_pylist()},
    }
    members = {}
    for engine in ENGINES:
        key, stem = ENGINE_KEYS[engine], ENGINE_FILES[engine]
        stream = core.streams[engine]
        settings: dict[str, object] = {"name": f"{stem}.json", "instr": f"{stem}.bin", "dma": _rings(core, engine)}
        if engine == "scalar":
            settings["activation_function_sets"] = list(core.activation_functions)
        definition |= {key: f"{stem}.json", f"{key}_instr": f"{stem}.bin"}
        members[f"{stem}.json"] = _json(settings)
        members[f"{stem}.bin"] = stream.words.tobytes()
        if (stream.bir_ids >= 0).any():
            definition[f"{key}_asm_dbg"] = [f"debug_info_asm_{stem}.dbg"]
            members[f"debug_info_asm_{stem}.dbg"] = _assembly(stream.bir_ids.tolist())
        if engine in core.backend:
            definition[f"{key}_dbg"] = [f"debug_info_backend_{stem}.dbg"]
            members[f"debug_info_backend_{stem}.dbg"] = _debug_level(core.backend[engine])
    if "dma" in core.backend:
        definition["dma_dbg"] = ["debug_info_backend_DMA.dbg"]
        members["debug_info_backend_DMA.dbg"] = _debug_level(core.backend["dma"])
    members["def.json"] = _json(definition)
    members["tensor_map.json"] = _json(
        {
            row["name"]: {"dtype": row["dtype"], "tf_shape": row["shape"], "tf_format": row["layout"]}
            for row in core.variables.to_pylist()
            if any(row[name] is not None for name in ("dtype", "shape", "layout"))
        }
    )
    return {f"{core.subgraph}/{name}": content for name, content in members.items()}


def _variable(row: dict[str, Any]) -> dict[str, object]:
    fields = {
        "type": row["type"],
        "var_id": row["var_id"],
        "size": row["size_bytes"],
        "file_name": row["file_name"],
        "alignment": row["alignment_bytes"],
        "backing_variable_off": row["backing_offset_bytes"],
        "list": row["table_var_ids"],
    }
    return {name: value for name, value in fields.items() if value is not None}


def _rings(core: NeffCore, engine: str) -> list[dict[str, object]]:
    descriptors: dict[int, list[dict[str, object]]] = {}
    for row in core.static_dma.descriptors.to_pylist():
        descriptors.setdefault(row["ring"], []).append(_descriptor(row))
    rings = []
    for index, row in enumerate(core.static_dma.rings.to_pylist()):
        if row["engine"] != engine:
            continue
        fields = {
            "id": row["ring_id"],
            "queue": row["queue"],
            "instance_name": row["queue_instance"],
            "function_start": row["function"],
            "semaphore": row["semaphore"],
            "event": row["event"],
            "#comment": row["name"],
            "desc": descriptors.get(index, []),
        }
        rings.append({name: value for name, value in fields.items() if value is not None})
    return rings


def _descriptor(row: dict[str, Any]) -> dict[str, object]:
    patterns = [_pattern(source, "from") for source in row["sources"]]
    fields = {
        "op": row["op"],
        **(patterns[0] if len(patterns) == 1 else {"from_arr": patterns}),
        **_pattern(row, "to"),
        "num_tiling_dimensions": row["tiling_dimension_count"],
        "transpose_op": row["transpose_op"],
        "transpose_shape": row["transpose_shape"],
        "transpose_element_size": row["transpose_element_bytes"],
    }
    return {name: value for name, value in fields.items() if value is not None}


def _pattern(row: dict[str, Any], side: str) -> dict[str, object]:
    return {
        side: row["variable"],
        f"{side}_off": row["offset_bytes"],
        f"{side}_sizes": row["sizes"],
        f"{side}_steps": row["steps_bytes"],
        f"{side}_dtype": row["dtype"],
    }


def _assembly(bir_ids: list[int]) -> bytes:
    entries = (protobuf.field(3, protobuf.packed(3, [bir_id] if bir_id >= 0 else [])) for bir_id in bir_ids)
    return protobuf.field(1, _ASSEMBLY) + b"".join(entries)


def _debug_level(level: DebugLevel) -> bytes:
    parts = [protobuf.field(1, level.description), protobuf.field(2, level.parent_name)]
    parts += [protobuf.field(3, _debug_entry(row)) for row in level.entries.to_pylist()]
    parts.append(protobuf.field(4, level.engine_code))
    parts += [protobuf.field(5, name) for name in level.source_files]
    parts += [protobuf.field(7, name) for name in level.kernel_names]
    return b"".join(parts)


def _debug_entry(row: dict[str, Any]) -> bytes:
    lists = {
        3: row["parent_ids"],
        4: row["dependency_ids"],
        5: row["schedule_ids"],
        9: row["dependency_kinds"],
        10: row["schedule_kinds"],
    }
    parts = [protobuf.field(1, row["id"]), protobuf.field(2, row["name"])]
    parts += [protobuf.packed(number, values) for number, values in lists.items()]
    parts.append(protobuf.field(6, row["kind"]))
    parts += [protobuf.field(7, protobuf.field(1, key) + protobuf.field(2, value)) for key, value in row["attributes"]]
    return b"".join(parts)


def _kernel_document(kernel: KernelTree) -> list[dict[str, object]]:
    """The nested lists that the flat, pre-ordered table of nodes came from."""
    programs: list[dict[str, Any]] = [{"lnc": lnc, "info": []} for lnc in kernel.lnc]
    children: list[list[object]] = []
    for node in kernel.nodes.to_pylist():
        mine: list[object] = []
        content: dict[str, object] = {"line": node["line"]}
        match node["kind"]:
            case "func":
                content |= {"name": node["name"], "file": node["file"], "children": mine}
            case "iter":
                content |= {"var": node["name"], "val": node["value"], "children": mine}
            case _:
                content["name"] = node["name"]
        above = children[node["parent"]] if node["parent"] >= 0 else programs[node["program"]]["info"]
        above.append({node["kind"]: content})
        children.append(mine)
    return programs

"""A NEFF, the program that the Neuron compiler wrote: streams per core and engine, tensors, DMA rings, debug info.

Source: aws-neuron-sdk, neuron-runtime/explore/work-with-neff-files.rst for the container, def.json and engine JSON; the
debug info's layout was observed from public NEFFs (compilers 2.0 to 2.23) and is not supported by the vendor.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trnprof.errors import InputDataError
from trnprof.profile import ENGINES, CaptureIssue
from trnprof.readers.isa import split_words
from trnprof.readers.neff_container import (
    MalformedNeff,
    NeffHeader,
    open_neff,
    parse_header,
    read_header,
    read_members,
    shown,
)
from trnprof.readers.neff_debug import (
    DebugLevel,
    KernelTree,
    read_debug_level,
    read_kernel_tree,
    read_parent_ids,
)
from trnprof.readers.neff_dma import DmaQueueSet, StaticDma, read_queue_sets, read_static_dma, read_variables
from trnprof.readers.neff_json import as_list, as_object, as_text, as_whole, optional_text, parse_json, whole_list
from trnprof.readers.protobuf import WireError

ENGINE_FILES = {"tensor": "PE", "vector": "DVE", "scalar": "Activation", "gpsimd": "Pool", "sync": "SP"}
"""What the members of each engine are named after."""

ENGINE_KEYS = {"tensor": "pe", "vector": "dve", "scalar": "act", "gpsimd": "pool", "sync": "sp"}
"""What def.json calls each engine, and queue sets their owner."""

HARDWARE_OF_TARGET = {"sunda": "trn1", "cayman": "trn2"}
"""The compiler's names of its targets; others are not known."""

MODELLED_MARK = "trnprof"
"""Key in info.json, and start of the build version, of a NEFF that trnprof wrote."""

_PROGRAM = re.compile(
    r"(info|neff|hlo_stats|kelf-\d+)\.json|[^/]+/(def\.json|tensor_map\.json|(PE|DVE|Activation|Pool|SP)\.(json|bin))"
)
_DEBUG_INFO = re.compile(r"kernel_debug_info\.json|[^/]+\.debuginfo\.json|debug_info/[^/]+|[^/]+/debug_info_[^/]*\.dbg")
"""Members that are read at once; what else def.json names is read in a second pass."""

MAX_CORES = 64
"""Subgraphs of one NEFF; public ones have one for each physical core of the logical core, so 1 or 2."""


@dataclass(frozen=True, eq=False)
class EngineStream:
    """What one engine of one core runs."""

    words: npt.NDArray[np.uint8]
    """Instructions as the compiler wrote them, shape [n, 64]; the runtime adds its own around them and rewrites some."""
    bir_ids: npt.NDArray[np.int64]
    """Backend id of each instruction, shape [n]; -1: none, or no debug info."""


@dataclass(frozen=True, kw_only=True, eq=False)
class NeffCore:
    """The program of one physical core of the logical core."""

    core: int
    """0-based, in the order of the NEFF's subgraphs."""
    subgraph: str
    """sg00, sg01."""
    streams: dict[str, EngineStream]
    """By engine, in the order of trnprof.profile.ENGINES."""
    variables: pa.Table
    """Columns of neff_dma.VARIABLES."""
    queue_sets: tuple[DmaQueueSet, ...] = ()
    static_dma: StaticDma
    backend: dict[str, DebugLevel] = field(default_factory=dict)
    """Debug info of the BIR instructions, by engine; "dma": of the static DMA blocks."""
    activation_functions: tuple[str, ...] = ()
    """Activation function sets that the program loads."""
    features: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Neff:
    """One NEFF."""

    header: NeffHeader
    compiler_version: str | None = None
    target: str | None = None
    """What the compiler compiled for, in its own words: sunda, cayman."""
    hardware: str | None = None
    """trn1, trn2; None: a target that is not known."""
    cores: tuple[NeffCore, ...] = ()
    levels: dict[str, DebugLevel] = field(default_factory=dict)
    """Debug info above BIR, by member name (debug_info_penguin.dbg_sg000000), sorted."""
    kernels: tuple[KernelTree, ...] = ()
    """NKI kernels with their own debug info."""
    hlo_stats: dict[str, float] = field(default_factory=dict)
    """The compiler's statistics of the HLO module, under its names."""
    modelled: bool = False
    """Written by trnprof, not by the compiler."""
    issues: tuple[CaptureIssue, ...] = ()


def read_neff_uuid(path: Path) -> str:
    """The uuid in a NEFF's header, 32 hex digits: a capture of this NEFF carries the same. Reads 1024 bytes.

    Raises: InputMissingError if nothing can be read at `path`; InputDataError if it is no NEFF.
    """
    return read_header(path).uuid


def read_neff(path: Path, *, debug_info: bool = True) -> Neff:
    """The program in the NEFF at `path`.

    debug_info: read what instructions were compiled from; half of the time, and not needed for counts and bytes.

    Raises: InputMissingError if nothing can be read at `path`; InputDataError if it is no NEFF, is damaged, or inflates
            far beyond any real one.
    """
    with open_neff(path) as file:
        try:
            header = parse_header(file.read(1024))
            members = read_members(
                file, lambda name: bool(_PROGRAM.fullmatch(name) or (debug_info and _DEBUG_INFO.fullmatch(name)))
            )
            more = _named_elsewhere(members, debug_info=debug_info)
            if more:
                again = read_members(file, more.__contains__)
                members |= {name: again[name] for name in more}
            return _Archive(members).neff(header, debug_info=debug_info)
        except (MalformedNeff, WireError) as error:
            reason = str(error)
        except (UnicodeError, pa.ArrowInvalid):
            reason = "it holds text that is not Unicode"
        except OSError as error:
            reason = f"it cannot be read ({error.strerror or error})"
    raise InputDataError(f"{reason}; copy the file again or compile again", path=path)


def _named_elsewhere(members: dict[str, bytes | None], *, debug_info: bool) -> set[str]:
    """Members that a def.json names and that have not been read."""
    archive = _Archive(members)
    return {
        name
        for subgraph, definition in archive.definitions()
        for engine in ENGINES
        for name in archive.engine_members(subgraph, definition, engine)[: None if debug_info else 2]
        if name in members and members[name] is None
    }


class _Archive:
    """A NEFF's members, and how they refer to each other."""

    def __init__(self, members: dict[str, bytes | None]) -> None:
        self._members = members
        self._issues: list[CaptureIssue] = []

    def neff(self, header: NeffHeader, *, debug_info: bool) -> Neff:
        """The NEFF that these members make up."""
        info = self._json("info.json", optional=True)
        target = next((optional_text(kelf, "target", "kelf-0.json") for kelf in self._kelfs()), None)
        signature = self._signature()
        cores = tuple(
            self._core(index, subgraph, definition, signature, debug_info=debug_info)
            for index, (subgraph, definition) in enumerate(self.definitions())
        )
        return Neff(
            header=header,
            compiler_version=optional_text(info, "tool_version", "info.json"),
            target=target,
            hardware=HARDWARE_OF_TARGET.get(target or ""),
            cores=cores,
            levels=self._levels() if debug_info else {},
            kernels=self._kernels() if debug_info else (),
            hlo_stats={
                name: value
                for name, value in self._json("hlo_stats.json", optional=True).items()
                if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63
            },
            modelled=MODELLED_MARK in info or header.neff_build_version.startswith(MODELLED_MARK),
            issues=tuple(self._issues),
        )

    def definitions(self) -> list[tuple[str, dict[str, object]]]:
        """(subgraph, its def.json) of each core, in the order of the kelf."""
        found: list[tuple[str, dict[str, object]]] = []
        for kelf in self._kelfs():
            for graph in as_list(kelf.get("graphs"), "kelf-0.json, graphs"):
                name = as_text(as_object(graph, "kelf-0.json, graphs").get("definition"), "kelf-0.json, definition")
                folder, slash, _ = name.rpartition("/")
                if not slash:
                    raise MalformedNeff(f"kelf-0.json: definition {shown(name)} is in no subgraph")
                if folder in [known for known, _ in found] or len(found) == MAX_CORES:
                    raise MalformedNeff(f"kelf-0.json lists a subgraph twice, or more than {MAX_CORES}")
                found.append((folder, self._json(name)))
        if not found:
            raise MalformedNeff("kelf-0.json lists no subgraph")
        return found

    def engine_members(self, subgraph: str, definition: dict[str, object], engine: str) -> list[str]:
        """The members of one engine: its JSON, its stream, its assembly and backend debug info."""
        key, stem = ENGINE_KEYS[engine], ENGINE_FILES[engine]
        place = f"{subgraph}/def.json"
        names = [
            optional_text(definition, key, place) or f"{stem}.json",
            optional_text(definition, f"{key}_instr", place) or f"{stem}.bin",
        ]
        for debug_key in (f"{key}_asm_dbg", f"{key}_dbg"):
            files = as_list(definition.get(debug_key, []), f"{place}, {debug_key}")
            if len(files) > 1:
                raise MalformedNeff(f"{place}, {debug_key}: {len(files)} files where one belongs")
            names += [as_text(name, f"{place}, {debug_key}") for name in files] or [""]
        return [f"{subgraph}/{name}" if name else "" for name in names]

    def _core(
        self,
        core: int,
        subgraph: str,
        definition: dict[str, object],
        signature: dict[str, tuple[str, list[int]]],
        *,
        debug_info: bool,
    ) -> NeffCore:
        place = f"{subgraph}/def.json"
        variables = read_variables(
            definition, self._json(f"{subgraph}/tensor_map.json", optional=True), signature, place
        )
        streams: dict[str, EngineStream] = {}
        backend: dict[str, DebugLevel] = {}
        dma_lists: dict[str, list[object]] = {}
        functions: list[object] = []
        for engine in ENGINES:
            json_name, stream_name, assembly_name, backend_name = self.engine_members(subgraph, definition, engine)
            settings = self._json(json_name)
            dma_lists[engine] = as_list(settings.get("dma", []), f"{json_name}, dma")
            functions += as_list(settings.get("activation_function_sets", []), f"{json_name}, activation_function_sets")
            words = self._stream(stream_name)
            bir_ids = np.full(len(words), -1, np.int64)
            if debug_info:
                bir_ids = self._bir_ids(assembly_name, bir_ids)
                if (content := self._members.get(backend_name)) is not None:
                    backend[engine] = self._level(backend_name, content)
            streams[engine] = EngineStream(words, bir_ids)
        if debug_info:
            for name in as_list(definition.get("dma_dbg", []), f"{place}, dma_dbg")[:1]:
                member = f"{subgraph}/{as_text(name, f'{place}, dma_dbg')}"
                if (content := self._members.get(member)) is not None:
                    backend["dma"] = self._level(member, content)
        features = as_list(definition.get("neff_features", []), f"{place}, neff_features")
        return NeffCore(
            core=core,
            subgraph=subgraph,
            streams=streams,
            variables=variables,
            queue_sets=read_queue_sets(definition, place),
            static_dma=read_static_dma(dma_lists, variables, subgraph),
            backend=backend,
            activation_functions=tuple(as_text(name, "activation_function_sets") for name in functions),
            features=tuple(as_text(name, f"{place}, neff_features") for name in features),
        )

    def _stream(self, name: str) -> npt.NDArray[np.uint8]:
        content = self._members.get(name)
        if content is None:
            raise MalformedNeff(f"the archive has no {shown(name)}")
        try:
            return split_words(content)
        except ValueError as error:
            raise MalformedNeff(f"{shown(name)}: {error}") from None

    def _bir_ids(self, name: str, none: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        content = self._members.get(name)
        if content is None:
            return none
        try:
            ids = read_parent_ids(content)
        except WireError as error:
            raise MalformedNeff(f"{shown(name)}: {error}") from None
        if len(ids) != len(none):
            detail = f"{shown(name)} has {len(ids)} entries for {len(none)} instructions"
            self._issues.append(CaptureIssue("DQ030", abs(len(ids) - len(none)), detail))
            return none
        return ids

    def _level(self, name: str, content: bytes) -> DebugLevel:
        try:
            return read_debug_level(content)
        except WireError as error:
            raise MalformedNeff(f"{shown(name)}: {error}") from None

    def _levels(self) -> dict[str, DebugLevel]:
        return {
            name.removeprefix("debug_info/"): self._level(name, content)
            for name, content in sorted(self._members.items())
            if name.startswith("debug_info/") and ".dbg" in name and content is not None
        }

    def _kernels(self) -> tuple[KernelTree, ...]:
        index = self._json("kernel_debug_info.json", optional=True)
        trees: dict[str, KernelTree] = {}
        for item in as_list(index.get("debug_info_files", []), "kernel_debug_info.json, debug_info_files"):
            kernel = as_object(item, "kernel_debug_info.json")
            name = as_text(kernel.get("file_name"), "kernel_debug_info.json, file_name")
            content = self._members.get(name)
            if content is None:
                self._issues.append(CaptureIssue("DQ030", None, f"the archive has no {shown(name)}"))
                continue
            if name in trees:
                raise MalformedNeff(f"kernel_debug_info.json lists {shown(name)} twice")
            trees[name] = read_kernel_tree(
                parse_json(content, name),
                file_name=name,
                kernel_name=optional_text(kernel, "kernel_name", name) or "",
                parent_penguin_id=as_whole(kernel.get("parent_tensorizer_id", -1), "parent_tensorizer_id"),
            )
        return tuple(trees.values())

    def _kelfs(self) -> list[dict[str, object]]:
        names = sorted(name for name in self._members if re.fullmatch(r"kelf-\d+\.json", name))
        if not names:
            raise MalformedNeff("the archive has no kelf-0.json: is it a NEFF?")
        return [self._json(name) for name in names]

    def _signature(self) -> dict[str, tuple[str, list[int]]]:
        """(dtype, shape) of each input and output, by name, from neff.json's node table."""
        graph = self._json("neff.json", optional=True)
        if not graph:
            return {}
        attributes = as_object(graph.get("attrs", {}), "neff.json, attrs")
        dtypes, shapes = (
            as_list(as_list(attributes.get(key, ["", []]), f"neff.json, {key}")[-1], f"neff.json, {key}")
            for key in ("dltype", "shape")
        )
        names: list[str] = []
        for node in as_list(graph.get("nodes", []), "neff.json, nodes"):
            outputs = as_list(as_object(node, "neff.json, nodes").get("output_names", []), "neff.json, output_names")
            names += [as_text(name, "neff.json, output_names") for name in outputs]
        return {
            name: (as_text(dtype, "neff.json, dltype"), whole_list(shape, "neff.json, shape"))
            for name, dtype, shape in zip(names, dtypes, shapes, strict=False)
        }

    def _json(self, name: str, *, optional: bool = False) -> dict[str, object]:
        content = self._members.get(name)
        if content is None:
            if optional:
                return {}
            raise MalformedNeff(f"the archive has no {shown(name)}")
        return as_object(parse_json(content, name), shown(name))

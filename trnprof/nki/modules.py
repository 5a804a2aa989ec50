"""The modules that a kernel imports: nki, nki.isa, nki.language, ... and neuronxcc.nki.*, put into sys.modules.

Every name of the operation table is an attribute; a name that nothing here knows is a callable that records an
Unmodelled event with its line when it is called, so that an operation we do not know is never silence.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from trnprof.nki import launch, objects
from trnprof.nki.dtypes import DTYPES, as_dtype
from trnprof.nki.index_tensors import MeshGrid, arange
from trnprof.nki.loops import KernelRange
from trnprof.nki.operations import ALL, table
from trnprof.nki.operations.creation import Allocator, ParDim
from trnprof.nki.operations.sync import ReplicaGroup
from trnprof.nki.recorder import current_recorder
from trnprof.nki.recording import ComputeRecord
from trnprof.nki.registers import DynamicRange, VirtualRegister
from trnprof.nki.tensor import Ds, Tensor

MODULES = ("isa", "language", "collectives", "typing", "compiler", "dtype", "kernels", "profile", "simulator")
"""Submodules of nki and neuronxcc.nki that are filled in below; others exist and hold only unknown names."""


class LanguageFunction:
    """One operation as a kernel sees it: a function, and a value to pass as op=."""

    def __init__(self, operation: table.Operation, generation: int) -> None:
        self.operation = operation
        self.generation = generation
        self.__name__ = self.__qualname__ = operation.name
        self.__module__ = f"nki.{operation.module}"
        self.__doc__ = f"{operation.name}({', '.join(operation.second.names)})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return table.perform(self.operation, self.generation, args, kwargs)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, LanguageFunction) and other.__name__ == self.__name__)

    def __hash__(self) -> int:
        return hash(self.__name__)

    def __repr__(self) -> str:
        return f"nki.{self.operation.module}.{self.__name__}"

    def __nki_state__(self, _: Any) -> Any:
        return ("operation", self.__name__)


class UnknownName:
    """A name that is not in the table. Calling it records an Unmodelled event."""

    def __init__(self, module: str, name: str) -> None:
        self.__module__ = module
        self.__name__ = self.__qualname__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return table.unmodelled(
            self.__module__, self.__name__, args, kwargs, f"nki.{self.__module__} has no operation {self.__name__} here"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return UnknownName(self.__module__, f"{self.__name__}.{name}")

    def __repr__(self) -> str:
        return f"<unknown nki.{self.__module__}.{self.__name__}>"

    def __nki_state__(self, _: Any) -> Any:
        return ("unknown", self.__name__)


class NkiModule(ModuleType):
    """A module whose missing names are UnknownName. It is a package: anything below it imports."""

    def __init__(self, name: str, short: str) -> None:
        super().__init__(name)
        self.__dict__["_short"] = short
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        child = sys.modules.get(f"{self.__name__}.{name}")
        return child if child is not None else UnknownName(self._short, name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes nki.anything.else importable, as a module of unknown names."""

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        if fullname.partition(".")[0] not in ("nki", "neuronxcc"):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return NkiModule(spec.name, spec.name.rpartition(".")[2])

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


class _Context:
    """A context manager that only groups: nl.no_reorder(), nki.trace(...)."""

    def __enter__(self) -> _Context:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __call__(self, function: Any) -> Any:
        return function

    def __nki_state__(self, _: Any) -> Any:
        return "context"


class _TypingTensor:
    """nki.typing.tensor: an annotation, subscripted or called with a shape."""

    def __getitem__(self, _: Any) -> _TypingTensor:
        return self

    def __call__(self, *_: Any, **__: Any) -> _TypingTensor:
        return self


def _range(kind: str) -> Callable[..., Any]:
    def make(*bounds: Any, **_: Any) -> Any:
        if any(isinstance(bound, VirtualRegister) for bound in bounds):
            return dynamic_range(*bounds)
        return KernelRange(*bounds, kind=kind)

    make.__name__ = kind
    return make


def dynamic_range(*bounds: Any, **named: Any) -> Any:
    """nl.dynamic_range: a loop on the device."""
    recorder = current_recorder()
    values = bounds or tuple(named[key] for key in ("start", "stop", "step") if key in named)
    if recorder is None:
        return range(*values)
    return DynamicRange(recorder, values)


def fori_loop(lower: Any, upper: Any, body_fun: Callable[[Any], Any], step: int = 1) -> None:
    """nl.fori_loop: the body once, standing for all iterations."""
    for index in dynamic_range(lower, upper, step):
        body_fun(index)


def while_loop(init: Any, body_fun: Callable[[Any], Any]) -> None:
    """nl.while_loop: the body once, standing for as many as the device says."""
    recorder = current_recorder()
    if recorder is None:
        return
    if recorder.machine is not None:
        while recorder.machine.integer(init) != 0:
            init = body_fun(init)
        return
    for _ in DynamicRange(recorder, (0, VirtualRegister(), 1)):
        body_fun(init)


def _device_print(*args: Any, **kwargs: Any) -> None:
    """nl.device_print reads a tile on the device."""
    recorder = current_recorder()
    tensors = [tensor for value in (*args, *kwargs.values()) for tensor in table.tensors_in(value)]
    if recorder is not None and recorder.machine is not None:
        for tensor in tensors:
            print(*[value for value in args if isinstance(value, str)], recorder.machine.bits(tensor))
    elif recorder is not None:
        fields = {"op": "device_print", "module": "language", "engine": "gpsimd", "engines": ("gpsimd",)}
        recorder.emit(ComputeRecord, fields | {"reads": tuple(recorder.access(tensor) for tensor in tensors)})


def static_cast(value: Any, dtype: Any = None) -> Any:
    """nl.static_cast: a tile copied to another type; arrays of the host as they are."""
    return table.call("language", "copy", value, dtype=dtype) if isinstance(value, Tensor) else value


class _Fp32:
    """nl.fp32.min and max."""

    min = -3.4028234663852886e38
    max = 3.4028234663852886e38
    dtype = DTYPES["float32"]


def _is_region(*names: str) -> Callable[[Any], bool]:
    def check(buffer: Any) -> bool:
        region, _ = objects.as_region(buffer)
        return region.value in names

    return check


def _language(target: str) -> dict[str, Any]:
    """nki.language beside the table: types, memories, indices, loops, program ids."""
    region = objects.MemoryRegion
    names: dict[str, Any] = {name: dtype for name, dtype in DTYPES.items() if name != "bool"}
    names |= {
        "bool_": DTYPES["bool"],
        "fp32": _Fp32,
        "float8": DTYPES["float8_e4m3"],
        "sbuf": region.sbuf,
        "psum": region.psum,
        "hbm": region.hbm,
        "private_hbm": region.private_hbm,
        "shared_hbm": region.shared_hbm,
        "MemoryRegion": region,
        "tile_size": objects.TileSize(target),
        "NKIObject": objects.NKIObject,
        "NkiTensor": Tensor,
        "tensor": _TypingTensor(),
        "mgrid": MeshGrid(),
        "arange": arange,
        "par_dim": ParDim,
        "ds": Ds,
        "DynamicSlice": Ds,
        "range": _range("static_range"),
        "affine_range": _range("affine_range"),
        "sequential_range": _range("sequential_range"),
        "static_range": _range("static_range"),
        "dynamic_range": dynamic_range,
        "fori_loop": fori_loop,
        "while_loop": while_loop,
        "program_id": launch.program_id,
        "num_programs": launch.num_programs,
        "program_ndim": launch.program_ndim,
        "nc": launch.ProgramDim,
        "spmd_dim": lambda left, right: launch.ProgramDim(int(left) * int(right)),
        "no_reorder": _Context,
        "device_print": _device_print,
        "static_cast": static_cast,
        "is_hbm": _is_region("hbm", "private_hbm", "shared_hbm"),
        "is_sbuf": _is_region("sbuf"),
        "is_psum": _is_region("psum"),
        "is_on_chip": _is_region("sbuf", "psum"),
        "bypass": LanguageFunction(table.TABLE["language", "bypass"], 2),
    }
    return names


def _isa(target: str) -> dict[str, Any]:
    """nki.isa beside the table: enums, registers, versions."""
    version = objects.NC_VERSION[target]
    names: dict[str, Any] = {
        kind.__name__: kind
        for kind in (
            objects.engine,
            objects.reduce_cmd,
            objects.dge_mode,
            objects.oob_mode,
            objects.matmul_perf_mode,
            objects.nc_version,
            objects.dma_engine,
        )
    }
    for member in objects.engine:
        if member.name != "dma":  # dma_engine is an enum of its own
            names[f"{member.name}_engine"] = member
    names |= {
        "activation_engine": objects.engine.scalar,
        "pool_engine": objects.engine.gpsimd,
        "VirtualRegister": VirtualRegister,
        "NkiInstruction": table.Instruction,
        "NkiValidationError": type("NkiValidationError", (Exception,), {}),
        "get_nc_version": lambda: version,
        "get_nc_sub_version": lambda: 0,
    }
    return names


def _build(root: str, generation: int, target: str) -> dict[str, ModuleType]:
    """All modules under one root name (nki, or neuronxcc.nki)."""
    modules: dict[str, ModuleType] = {root: NkiModule(root, "nki")}
    for name in MODULES:
        modules[f"{root}.{name}"] = NkiModule(f"{root}.{name}", name)
    language, isa = modules[f"{root}.language"], modules[f"{root}.isa"]
    language.__dict__.update(_language(target))
    isa.__dict__.update(_isa(target))
    for (module, name), operation in table.TABLE.items():
        modules[f"{root}.{module}"].__dict__[name] = LanguageFunction(operation, generation)
    constants = modules[f"{root}.isa.constants"] = NkiModule(f"{root}.isa.constants", "isa")
    constants.__dict__.update(_isa(target))
    modules[f"{root}.language.constants"] = language
    modules[f"{root}.collectives"].__dict__["ReplicaGroup"] = ReplicaGroup
    modules[f"{root}.typing"].__dict__.update(tensor=_TypingTensor(), NkiTensor=Tensor)
    modules[f"{root}.dtype"].__dict__.update(dict(DTYPES.items()), as_dtype=as_dtype)
    modules[f"{root}.compiler"].__dict__.update(
        sbuf=Allocator(objects.MemoryRegion.sbuf),
        psum=Allocator(objects.MemoryRegion.psum),
        no_reorder=_Context,
        **dict.fromkeys(
            ("enable_stack_allocator", "force_auto_alloc", "skip_middle_end_transformations"), _pass_through
        ),
    )
    top = modules[root].__dict__
    jit = launch.jit if generation == 2 else launch.first_generation_jit
    top.update(
        jit=jit,
        baremetal=jit,
        benchmark=jit,
        profile=jit,
        nki_jit=jit,
        simulate_kernel=launch.simulate_kernel,
        simulate=launch.simulate,
        trace=lambda *args, **kwargs: args[0] if args and callable(args[0]) else _Context(),
        tensor=_TypingTensor(),
        NKIObject=objects.NKIObject,
        __version__="0.0",
    )
    for name in MODULES:
        if name != "profile":
            top[name] = modules[f"{root}.{name}"]
    isa.__dict__["constants"] = constants
    language.__dict__["constants"] = language
    return modules


def _pass_through(*args: Any, **_: Any) -> Any:
    """A decorator of the compiler's that changes nothing here, with or without arguments."""
    return args[0] if args and callable(args[0]) else _pass_through


def _numpy_support() -> dict[str, ModuleType]:
    """neuronxcc.starfish.support: helpers that drivers import."""
    names = ("neuronxcc.starfish", "neuronxcc.starfish.support", "neuronxcc.starfish.support.dtype")
    modules: dict[str, ModuleType] = {name: NkiModule(name, "starfish") for name in names}
    modules[names[2]].__dict__.update(static_cast=static_cast, **dict(DTYPES))
    util = modules["neuronxcc.starfish.support.util"] = NkiModule("neuronxcc.starfish.support.util", "starfish")
    util.__dict__["allclose"] = np.allclose
    return modules


@contextmanager
def install_nki_modules(target: str = "trn2") -> Iterator[None]:
    """Put our nki and neuronxcc into sys.modules while the context is open; what was there before comes back after it.

    Import the user's file and call trace() inside one and the same context. Re-entrant. Meant for the child process.
    Inside it dataclasses of NKIObject classes get NKI's constructor (fields without a value are None).
    Raises: ValueError for an unknown target.
    """
    if target not in objects.NC_VERSION:
        raise ValueError(f"target is {', '.join(objects.NC_VERSION)}, not {target!r}")
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        yield
        return
    before = {name: module for name, module in sys.modules.items() if _is_ours(name)}
    for name in before:
        del sys.modules[name]
    neuronxcc = NkiModule("neuronxcc", "neuronxcc")
    sys.modules.update(_build("nki", 2, target))
    sys.modules["neuronxcc"] = neuronxcc
    first = _build("neuronxcc.nki", 1, target)
    sys.modules.update(first)
    neuronxcc.__dict__["nki"] = first["neuronxcc.nki"]
    sys.modules.update(_numpy_support())
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    plain_dataclass = dataclasses.dataclass
    dataclasses.dataclass = _dataclass(plain_dataclass)
    try:
        yield
    finally:
        dataclasses.dataclass = plain_dataclass
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if _is_ours(name)]:
            del sys.modules[name]
        sys.modules.update(before)


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] in ("nki", "neuronxcc")


def _dataclass(plain: Any) -> Any:
    """dataclasses.dataclass, which leaves the constructor of NKIObject classes to NKI."""

    def dataclass(cls: Any = None, /, **options: Any) -> Any:
        def apply(kind: Any) -> Any:
            if isinstance(kind, type) and issubclass(kind, objects.NKIObject) and not issubclass(kind, enum.Enum):
                return plain(**{**options, "init": False, "eq": False, "repr": False, "slots": False})(kind)
            return plain(**options)(kind)

        return apply if cls is None else apply(cls)

    return dataclass


assert ALL  # the table is filled

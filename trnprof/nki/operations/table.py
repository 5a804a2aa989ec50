"""The operation table: one entry an operation, and the one way in which a call becomes a record.

An entry says how each generation spells the call, which arguments are read and written, which engines can run it, and
what a call that names no destination returns. The recorder, and whatever comes to compute values or times from the same
calls, read the entry; nothing about an operation stands anywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from trnprof.nki.dtypes import DType, as_dtype
from trnprof.nki.index_tensors import IndexTensor, Mask
from trnprof.nki.indexing import masked
from trnprof.nki.loop_index import LoopIndex, value_of
from trnprof.nki.objects import MemoryRegion
from trnprof.nki.recorder import Recorder, current_recorder
from trnprof.nki.recording import Access, ComputeRecord, Unmodelled
from trnprof.nki.storage import Storage
from trnprof.nki.tensor import Tensor

Bound = dict[str, Any]
"""A call's arguments by name; what was not given is absent."""


@dataclass(frozen=True)
class Parameters:
    """One generation's spelling of a call."""

    names: tuple[str, ...]
    required: frozenset[str]
    positional: int
    """How many of `names` may be given by position."""


@dataclass(frozen=True)
class Operation:
    """One operation of the language."""

    name: str
    module: str
    """isa, language, collectives: the module whose attribute it is."""
    second: Parameters
    """As nki (the second generation) spells it."""
    first: Parameters | None
    """As neuronxcc.nki spells it, where that differs: it returns a tile instead of writing `dst`."""
    reads: tuple[str, ...]
    """Arguments that are read: tensors, or lists of them; scalars among them are immediates."""
    writes: tuple[str, ...]
    engines: tuple[str, ...]
    """Engines that can run it, the one that the compiler is taken to choose first."""
    result: Callable[[Bound], tuple[tuple[int, ...], DType, MemoryRegion]] | None
    """(shape, dtype, memory) of what a call without a destination returns."""
    run: Callable[[Recorder, Operation, Bound], Any] | None
    """How it is recorded where it is not one compute instruction: DMA, synchronisation, allocation, views."""
    rule: Callable[[Recorder, Bound], None] | None
    """Rules of the memory and the engine; notes what breaks them."""


TABLE: dict[tuple[str, str], Operation] = {}
"""(module, name) -> Operation."""


def parameters(text: str) -> Parameters:
    """Parse "dst, data, axis, negate=, *, mask=": a name with = is optional, names after * are by keyword only."""
    names: list[str] = []
    required: set[str] = set()
    positional: int | None = None
    for word in (part.strip() for part in text.split(",")):
        if not word:
            continue
        if word == "*":
            positional = len(names)
            continue
        name = word.rstrip("=")
        names.append(name)
        if not word.endswith("="):
            required.add(name)
    return Parameters(tuple(names), frozenset(required), len(names) if positional is None else positional)


def define(
    module: str,
    name: str,
    second: str,
    *,
    first: str | None = None,
    reads: str = "",
    writes: str = "",
    engines: str = "",
    result: Callable[[Bound], tuple[tuple[int, ...], DType, MemoryRegion]] | None = None,
    run: Callable[[Recorder, Operation, Bound], Any] | None = None,
    rule: Callable[[Recorder, Bound], None] | None = None,
) -> None:
    """Add an entry; parameter lists as in parameters(), the other texts are words."""
    TABLE[module, name] = Operation(
        name,
        module,
        parameters(second),
        None if first is None else parameters(first),
        tuple(reads.split()),
        tuple(writes.split()),
        tuple(engines.split()),
        result,
        run,
        rule,
    )


EVERYWHERE = frozenset({"name", "mask", "dtype", "engine", "priority"})
"""Keywords that every call may have."""


def bind(operation: Operation, generation: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Bound:
    """The call's arguments by name, in the spelling that fits: the module's own generation first.

    Raises TypeError, naming what is missing, when neither fits. Unknown keywords are kept: they become attributes.
    """
    spellings = [operation.second, operation.first]
    if generation == 1:
        spellings.reverse()
    problem = ""
    for tolerant in (False, True):
        for spelling in spellings:
            if spelling is None:
                continue
            bound = _fit(spelling, args, kwargs, tolerant)
            if isinstance(bound, dict):
                return bound
            problem = problem or bound
    raise TypeError(f"{operation.name}() {problem}")


def _fit(spelling: Parameters, args: tuple[Any, ...], kwargs: Mapping[str, Any], tolerant: bool) -> Bound | str:
    """The bound arguments, or why they do not fit."""
    if len(args) > spelling.positional:
        return f"takes {spelling.positional} positional arguments, got {len(args)}"
    bound: Bound = dict(zip(spelling.names, args, strict=False))
    for key, value in kwargs.items():
        if key in bound:
            return f"got two values for {key}"
        if not tolerant and key not in spelling.names and key not in EVERYWHERE:
            return f"got an unexpected argument {key}"
        bound[key] = value
    for name in spelling.required:
        if name not in bound:
            return f"needs {name}"
    return bound


class Instruction:
    """What a call that writes a destination returns: something to order other instructions after."""

    __slots__ = ()

    def depends_on(self, *_: Any) -> Instruction:
        """Scheduling only: nothing here changes."""
        return self

    def __nki_state__(self, _: Any) -> Any:
        return "instruction"


INSTRUCTION = Instruction()


class OutsideKernelError(RuntimeError):
    """An operation of the language was called while no kernel runs."""


def call(module: str, name: str, *args: Any, **kwargs: Any) -> Any:
    """Run one operation of the table in the open recording (second generation's spelling)."""
    return perform(TABLE[module, name], 2, args, kwargs)


def perform(operation: Operation, generation: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Record one call. Returns what the language returns: a tile, a view, an Instruction."""
    recorder = current_recorder()
    if recorder is None:
        raise OutsideKernelError(f"nki.{operation.module}.{operation.name} was called outside a kernel")
    bound = bind(operation, generation, args, kwargs)
    if recorder.machine is not None:
        return recorder.machine.perform(operation, bound)
    if operation.rule is not None:
        operation.rule(recorder, bound)
    if operation.run is not None:
        return operation.run(recorder, operation, bound)
    return compute(recorder, operation, bound)


def compute(recorder: Recorder, operation: Operation, bound: Bound, *, op: str | None = None) -> Any:
    """Record one compute instruction; returns the result tile when the call names no destination."""
    if recorder.machine is not None:
        return recorder.machine.perform(operation, bound)
    outcome: Any = INSTRUCTION
    made: Tensor | None = None
    if operation.result is not None and bound.get("dst") is None:
        made = outcome = result_tensor(recorder, operation, bound, op or operation.name)
    mask = bound.get("mask")
    reads = [recorder.access(tensor) for name in operation.reads for tensor in tensors_in(bound.get(name))]
    writes: list[Access] = []
    for name in operation.writes:
        for tensor in tensors_in(bound.get(name)):
            writes.append(recorder.access(masked(tensor, mask) if name == "dst" else tensor, write=True))
            tensor.storage.writer = operation.name
            tensor.storage.values = None
    if made is not None:
        made.storage.writer = operation.name
        writes.insert(0, recorder.access(made, write=True))
    fields: dict[str, Any] = {
        "op": op or operation.name,
        "module": operation.module,
        "name": bound.get("name"),
        "engine": engine_name(bound.get("engine")),
        "engines": operation.engines,
        "reads": tuple(reads),
        "writes": tuple(writes),
        "attributes": attributes(operation, bound),
    }
    if len(operation.engines) == 1:
        fields["engine"] = operation.engines[0]
    recorder.emit(ComputeRecord, fields)
    if made is not None:
        made.storage.producer = (fields, recorder.nest)
    return outcome


def result_tensor(recorder: Recorder, operation: Operation, bound: Bound, name: str = "") -> Tensor:
    """The tile that a call without a destination returns."""
    assert operation.result is not None
    shape, dtype, region = operation.result(bound)
    if bound.get("dtype") is not None:
        dtype = as_dtype(bound["dtype"])
    if isinstance(bound.get("buffer"), MemoryRegion):
        region = bound["buffer"]
    return new_tensor(recorder, shape, dtype, region, name=name or operation.name, kind="result")


def new_tensor(
    recorder: Recorder,
    shape: Any,
    dtype: Any,
    region: MemoryRegion = MemoryRegion.sbuf,
    *,
    name: str = "",
    kind: str = "tensor",
    partition_axis: int = 0,
    address: tuple[int, int] | None = None,
) -> Tensor:
    """Allocate a storage in the open program and return the view of all of it."""
    sizes = tuple([int(size) for size in shape])
    if any(size < 0 for size in sizes):
        raise ValueError(f"a tensor of shape {sizes}")
    storage = Storage(
        len(recorder.storages),
        sizes,
        as_dtype(dtype),
        region,
        name=name,
        site=recorder.site(),
        kind=kind,
        partition_axis=partition_axis,
        address=address,
    )
    recorder.storages.append(storage)
    tensor = Tensor(storage, sizes, storage.strides)
    if recorder.machine is not None:
        recorder.machine.world.share(recorder, tensor)
    return tensor


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors of an argument: itself, or those in a list or tuple, lists of lists too."""
    if type(value) is Tensor:
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in tensors_in(item)]
    view = getattr(value, "get_view", None)
    if view is not None and not isinstance(value, type):
        return tensors_in(view())
    return []


def engine_name(value: Any) -> str:
    """tensor, vector, scalar, gpsimd, sync, dma, unknown."""
    if value is None:
        return "unknown"
    return value.name if isinstance(value, Enum) else str(value)


def op_name(value: Any) -> str:
    """The name of an op argument: nl.add, np.add, 'add'."""
    if isinstance(value, str):
        return value
    return str(getattr(value, "__name__", None) or getattr(value, "name", None) or value)


_NOT_ATTRIBUTES = frozenset({"name", "engine", "mask", "dst", "priority", "buffer"})


def attributes(operation: Operation, bound: Bound) -> tuple[tuple[str, Any], ...]:
    """What else the call says: operators by name, numbers, tuples of numbers; tensors and None left out."""
    found: list[tuple[str, Any]] = []
    for name, value in bound.items():
        if value is None or name in _NOT_ATTRIBUTES or type(value) is Tensor:
            continue
        plain = _plain_attribute(value)
        if plain is not None:
            found.append((name, plain))
    if isinstance(bound.get("mask"), Mask):
        found.append(("masked", True))
    return tuple(found)


def _plain_attribute(value: Any) -> Any:
    if isinstance(value, LoopIndex):
        return value_of(value)
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, list | tuple):
        items = [_plain_attribute(item) for item in value]
        return None if any(item is None for item in items) else tuple(items)
    if isinstance(value, IndexTensor | Mask):
        return None
    name = getattr(value, "__name__", None)
    return name if isinstance(name, str) else None


def unmodelled(module: str, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], reason: str) -> Any:
    """Record a call that the table does not have. Returns its destination if it names one."""
    recorder = current_recorder()
    if recorder is None:
        raise OutsideKernelError(f"nki.{module}.{name} was called outside a kernel")
    tensors = [tensor for value in (*args, *kwargs.values()) for tensor in tensors_in(value)]
    recorder.emit(
        Unmodelled,
        {
            "op": name,
            "module": module,
            "reason": reason,
            "tensors": tuple(recorder.access(tensor) for tensor in tensors),
        },
    )
    if "dst" in kwargs or not tensors:
        return INSTRUCTION
    first = tensors[0]
    return new_tensor(recorder, first.shape, first.dtype, MemoryRegion.sbuf, name=name, kind="result")

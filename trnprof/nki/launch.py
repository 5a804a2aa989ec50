"""nki.jit and launches: which programs run, with which ids, on which arguments."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from trnprof.nki.dtypes import as_dtype
from trnprof.nki.objects import MemoryRegion, NKIObject
from trnprof.nki.operations.table import OutsideKernelError, new_tensor, tensors_in
from trnprof.nki.recorder import Recorder, current_recorder
from trnprof.nki.recording import Note, ProgramTrace, TensorSpec
from trnprof.nki.tensor import Tensor

if TYPE_CHECKING:
    from trnprof.nki.state import _Walker

PROGRAM_LIMIT = 64
"""Programs of one grid that are run; of a larger grid the first, second, middle and last."""

_session: ContextVar[Session | None] = ContextVar("nki_session", default=None)


class ProgramDim(int):
    """nl.nc(n), nl.spmd_dim(n, nl.nc(2)): a grid dimension; n programs, some of them on the two cores of a pair."""

    def __mul__(self, other: Any) -> Any:
        return ProgramDim(int(self) * int(other))

    __rmul__ = __mul__


class Kernel:
    """What nki.jit returns: call it, or kernel[grid] it first."""

    def __init__(
        self, function: Callable[..., Any], grid: tuple[int, ...] | None = None, *, generation: int = 2
    ) -> None:
        self.function = function
        self.grid = grid
        self.generation = generation
        """2: kernel[2] are the programs of a pair; 1: any grid of programs."""
        functools.update_wrapper(self, function)

    func = property(lambda self: self.function)

    def __getitem__(self, grid: Any) -> Kernel:
        sizes = grid if isinstance(grid, list | tuple) else (grid,)
        return Kernel(self.function, tuple(int(size) for size in sizes), generation=self.generation)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        return Kernel(functools.partial(self.function, instance), self.grid, generation=self.generation)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        recorder = current_recorder()
        session = _session.get()
        if session is None:
            raise OutsideKernelError(f"kernel {self.__name__} was called outside trace()")  # type: ignore[attr-defined]
        if recorder is not None and not (recorder.is_host and not recorder.entries):
            return self.function(*args, **kwargs)
        return session.launch(self.function, self.grid, args, kwargs, generation=self.generation)

    def __nki_state__(self, walker: _Walker) -> Any:
        return ("kernel", walker.token(self.function))

    @property
    def benchmark_result(self) -> Any:
        """What nki.benchmark measures on a device: nothing here."""
        return _NothingMeasured()


class _NothingMeasured:
    """Every attribute and call of a benchmark's result: not measured."""

    def __getattr__(self, name: str) -> _NothingMeasured:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> float:
        return float("nan")


def jit(function: Any = None, *_: Any, generation: int = 2, **options: Any) -> Any:
    """nki.jit, with or without arguments; also nki.baremetal, benchmark, profile, trace as decorators."""
    if isinstance(function, Kernel):
        return function
    if callable(function):
        return Kernel(function, generation=generation)
    wrapped = options.get("func") or options.get("kernel")
    if callable(wrapped):
        return Kernel(wrapped, generation=generation)
    return functools.partial(jit, generation=generation)


def first_generation_jit(function: Any = None, *args: Any, **options: Any) -> Any:
    """neuronxcc.nki.jit."""
    return jit(function, *args, **options, generation=1)


def simulate_kernel(kernel: Any, *args: Any, **kwargs: Any) -> Any:
    """nki.simulate_kernel(kernel, *args): a launch."""
    return jit(kernel)(*args, **kwargs)


def simulate(kernel: Any) -> Any:
    """nki.simulate(kernel)(*args)."""
    return jit(kernel)


def _program() -> Recorder:
    recorder = current_recorder()
    if recorder is None:
        raise OutsideKernelError("nl.program_id and its like were called outside a kernel")
    return recorder


def program_id(axis: int = 0) -> int:
    """This program's index along `axis`."""
    ids = _program().program_id
    return ids[axis] if axis < len(ids) else 0


def num_programs(axes: Any = None) -> Any:
    """Programs along `axes`; of the whole grid without."""
    grid = _program().grid
    if isinstance(axes, list | tuple):
        return tuple(grid[axis] if axis < len(grid) else 1 for axis in axes)
    if axes is not None:
        return grid[axes] if axes < len(grid) else 1
    total = 1
    for size in grid:
        total *= size
    return total


def program_ndim() -> int:
    """Dimensions of the launch grid; 0 for a kernel launched without one."""
    return len(_program().grid)


class Session:
    """One trace(): its options, and the programs that ran."""

    def __init__(
        self,
        *,
        lnc: int,
        grid: tuple[int, ...] | None,
        exact: bool,
        trips: Mapping[str, int],
        values: Mapping[str, Any],
        target: str,
        worthwhile_operations: int | None = None,
    ) -> None:
        self.lnc = lnc
        self.grid = grid
        self.exact = exact
        self.trips = trips
        self.values = values
        self.target = target
        self.worthwhile_operations = worthwhile_operations
        self.programs: list[ProgramTrace] = []
        self.used_trips: set[str] = set()
        self.notes: dict[tuple[str, str], Note] = {}
        self.outputs: tuple[tuple[str, tuple[int, ...], str], ...] = ()

    def __enter__(self) -> Session:
        self._token = _session.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _session.reset(self._token)

    def run_host(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Run a plain function: a kernel without decorator, or a host function that launches kernels."""
        before = len(self.programs)
        grid = self._grid(None)
        first = self._recorder(function, (0,) * len(grid), grid)
        first.is_host = True
        outcome = self._run(first, function, args, kwargs)
        if len(self.programs) > before and not first.entries:
            return
        self._keep(first, outcome)
        for ids in program_ids(grid)[1:]:
            recorder = self._recorder(function, ids, grid)
            self._keep(recorder, self._run(recorder, function, args, kwargs))

    def launch(
        self,
        function: Callable[..., Any],
        grid: tuple[int, ...] | None,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        generation: int = 2,
    ) -> Any:
        """Run every program of one launch; returns the first program's outputs as the caller's tensors."""
        sizes = self._grid(grid)
        if generation == 2 and sizes == (2,):
            self.lnc = 2
        outcome: Any = None
        ids = program_ids(sizes)
        sampled = _sample(ids)
        for position, (program, stands_for) in enumerate(sampled):
            recorder = self._recorder(function, program, sizes)
            result = self._run(recorder, function, args, kwargs)
            self._keep(recorder, result, stands_for)
            if position == 0:
                outcome = result
        if len(sampled) < len(ids):
            note = Note(
                code="grid-sampled",
                message=f"{len(ids)} programs: the first, second, middle and last ran, the second stands for the rest",
            )
            self.notes.setdefault((note.code, ""), note)
        return self._for_caller(outcome)

    def _grid(self, grid: tuple[int, ...] | None) -> tuple[int, ...]:
        if self.grid is not None:
            return self.grid
        if grid is not None:
            return (self.lnc,) if grid == (1,) and self.lnc > 1 else grid
        return (self.lnc,) if self.lnc > 1 else ()

    def _recorder(self, function: Callable[..., Any], ids: tuple[int, ...], grid: tuple[int, ...]) -> Recorder:
        recorder = Recorder(
            kernel=getattr(function, "__name__", "kernel"),
            program_id=ids,
            grid=grid,
            lnc=self.lnc,
            target=self.target,
            exact=self.exact,
            trips=self.trips,
            boundary=Session._call.__code__,
        )
        if self.worthwhile_operations is not None:
            recorder.worthwhile_operations = self.worthwhile_operations
        return recorder

    def _run(
        self, recorder: Recorder, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        with recorder:
            return self._call(recorder, function, args, kwargs)

    def _call(
        self, recorder: Recorder, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """The kernel on tensors of the open recording."""
        given, named = self._binder(recorder).bind(function, args, kwargs)
        return function(*given, **named)

    def _binder(self, recorder: Recorder) -> ArgumentBinder:
        return ArgumentBinder(recorder, self.values)

    def _keep(self, recorder: Recorder, outcome: Any, stands_for: int = 1) -> None:
        returned = returned_tensors(outcome)
        self.programs.append(recorder.finish({tensor.storage.number for tensor in returned}, stands_for=stands_for))
        self.used_trips |= recorder.used_trips
        for key, note in recorder.notes.items():
            self.notes.setdefault(key, note)
        if not self.outputs:
            self.outputs = tuple((tensor.name, tensor.shape, str(tensor.dtype)) for tensor in returned)

    def note_unused_trips(self) -> None:
        """A trip count that no loop took is a name misspelt."""
        for name in self.trips.keys() - self.used_trips:
            bounds = sorted(
                {span.loop.bound for p in self.programs for e in p.events for span in e.loops if span.loop.bound}
            )
            there = f"those there: {', '.join(bounds)}" if bounds else "no loop's length is known only on the device"
            note = Note(code="trip-unused", message=f"no loop is bound by {name!r}; {there}")
            self.notes.setdefault((note.code, name), note)

    def _for_caller(self, outcome: Any) -> Any:
        """Outputs of a launch as specs: what a host function passes to its next kernel."""
        if isinstance(outcome, Tensor):
            return TensorSpec(outcome.shape, str(outcome.dtype), outcome.name)
        if isinstance(outcome, list | tuple):
            return type(outcome)([self._for_caller(item) for item in outcome])
        if isinstance(outcome, dict):
            return {key: self._for_caller(item) for key, item in outcome.items()}
        return outcome


def program_ids(grid: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Every index of a grid, last dimension fastest; one program for a launch without a grid."""
    ids: list[tuple[int, ...]] = [()]
    for size in grid:
        ids = [(*before, index) for before in ids for index in range(size)]
        if len(ids) > 1_000_000:
            raise ValueError(f"a launch grid of {grid} programs")
    return ids


def _sample(ids: list[tuple[int, ...]]) -> list[tuple[tuple[int, ...], int]]:
    """(program, how many it stands for)."""
    if len(ids) <= PROGRAM_LIMIT:
        return [(program, 1) for program in ids]
    middle = ids[len(ids) // 2]
    return [(ids[0], 1), (ids[1], len(ids) - 3), (middle, 1), (ids[-1], 1)]


def returned_tensors(outcome: Any) -> list[Tensor]:
    if isinstance(outcome, dict):
        return [tensor for value in outcome.values() for tensor in returned_tensors(value)]
    return tensors_in(outcome)


class ArgumentBinder:
    """Makes a program's tensors from the caller's specs and arrays."""

    def __init__(self, recorder: Recorder, values: Mapping[str, Any]) -> None:
        self.recorder = recorder
        self.values = values
        self.made: dict[int, Tensor] = {}
        self.keep: list[Any] = []

    def bind(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The arguments with tensors in place, named after the parameters they are bound to."""
        names: list[str] = []
        try:
            parameters = list(inspect.signature(function).parameters.values())
            for parameter in parameters:
                if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                    names.append(parameter.name)
        except (TypeError, ValueError):
            pass
        given = [self.convert(value, names[at] if at < len(names) else f"arg{at}") for at, value in enumerate(args)]
        return given, {name: self.convert(value, name) for name, value in kwargs.items()}

    def convert(self, value: Any, name: str, depth: int = 0) -> Any:
        """`value` with every tensor-like part replaced."""
        if isinstance(value, Tensor):
            storages, number = self.recorder.storages, value.storage.number
            if number < len(storages) and storages[number] is value.storage:
                return value
            return self._tensor(value, name, value.shape, value.dtype)
        if isinstance(value, TensorSpec):
            return self._tensor(value, value.name or name, value.shape, value.dtype)
        if isinstance(value, str | bytes | int | float | bool | type | None):
            return value
        if _is_array(value):
            return self._tensor(value, name, tuple(value.shape), value.dtype)
        if depth > 8:
            return value
        if isinstance(value, list | tuple) and type(value) in (list, tuple):
            return type(value)([self.convert(item, f"{name}_{at}", depth + 1) for at, item in enumerate(value)])
        if type(value) is dict:
            return {key: self.convert(item, f"{name}_{key}", depth + 1) for key, item in value.items()}
        if is_dataclass(value) or isinstance(value, NKIObject):
            return self._object(value, name, depth)
        return value

    def _object(self, value: Any, name: str, depth: int) -> Any:
        """A copy of a configuration object, if it holds tensors."""
        names = [field.name for field in fields(value)] if is_dataclass(value) else list(value.__dict__)
        changed = {}
        for attribute in names:
            old = getattr(value, attribute, None)
            new = self.convert(old, attribute, depth + 1)
            if new is not old:
                changed[attribute] = new
        if not changed:
            return value
        clone = copy.copy(value)
        for attribute, new in changed.items():
            object.__setattr__(clone, attribute, new)
        return clone

    def _tensor(self, source: Any, name: str, shape: tuple[int, ...], dtype: Any) -> Tensor:
        # One array passed twice is one tensor; a spec only describes one, so each place it stands in is another tensor.
        known = None if isinstance(source, TensorSpec) else self.made.get(id(source))
        if known is not None:
            return known
        sizes = tuple(int(size) for size in shape)
        tensor = new_tensor(self.recorder, sizes, as_dtype(dtype), MemoryRegion.shared_hbm, name=name, kind="argument")
        tensor.storage.site = None
        tensor.storage.values = self.values.get(name)
        self.made[id(source)] = tensor
        self.keep.append(source)
        return tensor


def _is_array(value: Any) -> bool:
    """A numpy, torch or jax array (or a stand-in for one), told by what it has; a numpy number is a number."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    return isinstance(shape, Sequence) and len(shape) > 0 and dtype is not None and not isinstance(value, type)

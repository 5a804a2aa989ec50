"""Run a kernel's programs with values: the one entry of this package."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trnprof.nki.dtypes import as_dtype
from trnprof.nki.launch import ArgumentBinder, Session, program_ids, returned_tensors
from trnprof.nki.recorder import Recorder
from trnprof.nki.recording import Event, Note, Unmodelled
from trnprof.nki.storage import Storage
from trnprof.nki.tensor import Tensor
from trnprof.nki.values import FAMILIES
from trnprof.nki.values.kinds import NUMPY, PACKED, dtype_of
from trnprof.nki.values.machine import Machine
from trnprof.nki.values.registry import NoValuesError
from trnprof.nki.values.schedule import Program
from trnprof.nki.values.world import World

if TYPE_CHECKING:
    from trnprof.nki.recording import Access

Arguments = tuple[Sequence[Any], Mapping[str, Any]]


@dataclass(frozen=True)
class OutputValue:
    """One tensor that the kernel returned, or an argument that it wrote."""

    name: str
    array: np.ndarray
    """As the device holds it (bfloat16 and float8 by ml_dtypes); float64 for float types when not precise."""
    dtype: str
    """The NKI type."""
    missing: np.ndarray | None
    """bool, True where nothing wrote; None: every element was written."""
    is_argument: bool = False
    """An argument that was written and not returned."""

    @property
    def missing_count(self) -> int:
        """Elements that nothing wrote."""
        return 0 if self.missing is None else int(np.count_nonzero(self.missing))


@dataclass(frozen=True)
class ValueRun:
    """What a kernel computed."""

    outputs: tuple[tuple[OutputValue, ...], ...]
    """Per rank: what the launch returned, in order, then the arguments it wrote."""
    inputs: tuple[dict[str, np.ndarray], ...]
    """Per rank: the tensor arguments' contents after the run."""
    notes: tuple[Note, ...]
    program_count: int
    """Programs that ran, of all ranks and launches."""


class _LiveStorages(list[Storage]):
    """The storages of a program by number, kept alive by the kernel's own tensors only: tiles that it has dropped are gone,
    and their contents with them."""

    def __init__(self) -> None:
        super().__init__()
        self._references: list[weakref.ref[Storage]] = []

    def append(self, storage: Storage) -> None:
        self._references.append(weakref.ref(storage))

    def __len__(self) -> int:
        return len(self._references)

    def __getitem__(self, number: Any) -> Any:
        return self._references[number]()


class ValueRecorder(Recorder):
    """A program whose operations are computed and not recorded."""

    machine: Machine

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.storages = _LiveStorages()

    def emit(self, cls: type[Event], fields: dict[str, Any]) -> dict[str, Any]:
        """Nothing is kept: a run may have any number of operations.

        Raises: NoValuesError for what the operation table does not have.
        """
        if cls is Unmodelled:
            raise NoValuesError(
                f"{fields['reason']}, so its values are unknown; check the name, or express it with operations that "
                "`trnprof nki run` knows"
            )
        return fields

    def access(self, tensor: Tensor, *, write: bool = False) -> Access:
        """Nothing asks for the addresses."""
        return None  # type: ignore[return-value]


class ValueSession(Session):
    """One run: launches go to machines that compute."""

    def __init__(
        self,
        *,
        world: World,
        lnc: int,
        grid: tuple[int, ...] | None,
        target: str,
        arguments_of_rank: Callable[[int], Arguments] | None = None,
        is_host: bool = False,
    ) -> None:
        super().__init__(lnc=lnc, grid=grid, exact=True, trips={}, values={}, target=target)
        self.world = world
        self.arguments_of_rank = arguments_of_rank
        self.is_host = is_host
        self.returned: list[list[Tensor]] = [[] for _ in range(world.ranks)]
        self.program_count = 0

    def run_host(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """A function without a decorator: a kernel, unless the caller says that it is a host function."""
        if self.is_host:
            function(*args, **kwargs)
        else:
            self.launch(function, None, args, kwargs)

    def launch(
        self,
        function: Callable[..., Any],
        grid: tuple[int, ...] | None,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        generation: int = 2,
    ) -> Any:
        """Run every program of every rank; returns rank 0's outputs as arrays."""
        world = self.world
        world.launches += 1
        world.machines = {}
        sizes = self._grid(grid)
        programs: list[Program] = []
        outcomes: dict[int, Any] = {}
        for rank in range(world.ranks):
            if rank == 0:
                given, named = args, kwargs
            elif self.arguments_of_rank is not None:
                given, named = self.arguments_of_rank(rank)
            else:  # before any program runs and writes to them
                given, named = _own(args), _own(kwargs)
            for position, ids in enumerate(program_ids(sizes)):
                recorder = self._recorder(function, ids, sizes)
                machine = Machine(recorder, world, precise=world.precise, seed=world.seed, place=(rank, position))
                recorder.machine = world.machines[rank, position] = machine
                label = f"program {position}" if world.ranks == 1 else f"rank {rank} program {position}"

                def body(
                    machine: Machine = machine, given: Sequence[Any] = given, named: Mapping[str, Any] = named
                ) -> Any:
                    with np.errstate(all="ignore"):
                        outcome = self._compute(machine, function, given, named)
                    if machine.program == 0:
                        outcomes[machine.rank] = outcome
                    return None

                programs.append(Program(label, body))
        self.program_count += len(programs)
        world.schedule.run(programs)
        for machine in world.machines.values():
            for key, note in machine.recorder.notes.items():
                self.notes.setdefault(key, note)
        for rank, outcome in outcomes.items():
            self.returned[rank] = returned_tensors(outcome)
        return self._for_caller(outcomes.get(0))

    def _compute(
        self, machine: Machine, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        recorder = machine.recorder
        with recorder:
            outcome = self._call(recorder, function, args, kwargs)
            machine.finish()
        return outcome

    def _recorder(self, function: Callable[..., Any], ids: tuple[int, ...], grid: tuple[int, ...]) -> Recorder:
        return ValueRecorder(
            kernel=getattr(function, "__name__", "kernel"),
            program_id=ids,
            grid=grid,
            lnc=self.lnc,
            target=self.target,
            exact=True,
            boundary=Session._call.__code__,
        )

    def _binder(self, recorder: Recorder) -> ArgumentBinder:
        return _ValueBinder(recorder, self.world)

    def _for_caller(self, outcome: Any) -> Any:
        """Outputs as arrays: what a host function passes on."""
        if isinstance(outcome, Tensor):
            return self.value_of(outcome)
        if isinstance(outcome, list | tuple):
            return type(outcome)([self._for_caller(item) for item in outcome])
        if isinstance(outcome, dict):
            return {key: self._for_caller(item) for key, item in outcome.items()}
        return outcome

    def value_of(self, tensor: Tensor) -> np.ndarray:
        """The elements of a tensor after its launch, a copy."""
        cells = tensor.storage.cells
        if cells is None:
            machine = next(iter(self.world.machines.values()))
            cells = machine.cells(tensor.storage)
        values = np.array(cells.load(tensor.dtype, tensor.shape, tensor.strides, tensor.offset))
        return values.view(np.dtype([(str(tensor.dtype), NUMPY[tensor.dtype])])) if tensor.dtype in PACKED else values


class _ValueBinder(ArgumentBinder):
    """Arguments whose contents are the caller's arrays, or random for specs."""

    def __init__(self, recorder: Recorder, world: World) -> None:
        super().__init__(recorder, {})
        self.world = world

    def _tensor(self, source: Any, name: str, shape: tuple[int, ...], dtype: Any) -> Tensor:
        known = self.made.get(id(source))
        if known is not None and isinstance(source, np.ndarray):
            return known
        kind = dtype_of(source) if isinstance(source, np.ndarray) else as_dtype(dtype)
        tensor = super()._tensor(source, name, shape, kind)
        rank = self.recorder.machine.rank if self.recorder.machine is not None else 0
        tensor.storage.cells = self.world.argument(rank, source, name, tensor.shape, kind)
        return tensor


def compute(
    kernel: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    lnc: int = 1,
    grid: Sequence[int] | None = None,
    target: str = "trn2",
    precise: bool = True,
    seed: int = 0,
    ranks: int = 1,
    arguments_of_rank: Callable[[int], Arguments] | None = None,
    is_host: bool = False,
    zeroed: bool = False,
) -> ValueRun:
    """Run `kernel` on values.

    kernel, lnc, grid, target: as trace() takes them. args, kwargs: numpy arrays (ml_dtypes for the types numpy lacks) are
        tensors in HBM with those values and are updated in place where the kernel writes them; a TensorSpec gets seeded
        random values; everything else is passed on.
    precise: round where the hardware rounds; False: float64 everywhere, which tells rounding from a mistake.
    ranks, arguments_of_rank: simulated ranks for in-kernel collectives, and each one's arguments (rank 0 gets args, kwargs).
    is_host: `kernel` is a host function that launches kernels, on the arrays themselves; the last launch's outputs count.
    zeroed: memory that nothing has written reads as 0 instead of NaN: does it matter what is in it?
    Raises KernelError, with the user's line.
    """
    from trnprof.nki.trace import run_session

    world = World(precise=precise, seed=seed, ranks=ranks, zeroed=zeroed)
    session = ValueSession(
        world=world,
        lnc=lnc,
        grid=None if grid is None else tuple(int(size) for size in grid),
        target=target,
        arguments_of_rank=arguments_of_rank,
        is_host=is_host,
    )
    run_session(session, kernel, args, kwargs or {})
    outputs = []
    inputs = []
    for rank in range(world.ranks):
        found = [_output(session, tensor) for tensor in session.returned[rank]]
        taken = {id(tensor.storage.cells) for tensor in session.returned[rank]}
        contents = {}
        for (at, _, _), (name, cells, shape) in world.arguments.items():
            if at != rank:
                continue
            contents[name] = cells.array.reshape(shape)
            if cells.is_changed and id(cells) not in taken:
                found.append(OutputValue(name, contents[name], str(cells.dtype), None, is_argument=True))
        outputs.append(tuple(found))
        inputs.append(contents)
    return ValueRun(tuple(outputs), tuple(inputs), tuple(session.notes.values()), session.program_count)


def _own(value: Any) -> Any:
    """Arguments with arrays of their own."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if type(value) in (list, tuple):
        return type(value)([_own(item) for item in value])
    if isinstance(value, Mapping):
        return {key: _own(item) for key, item in value.items()}
    return value


def _output(session: ValueSession, tensor: Tensor) -> OutputValue:
    array = session.value_of(tensor)
    cells = tensor.storage.cells
    missing = None
    if cells is not None and cells.missing is not None:
        missing = np.array(cells.missing_at(tensor.dtype, tensor.shape, tensor.strides, tensor.offset).any(-1))
    return OutputValue(tensor.name, array, str(tensor.dtype), missing)


assert FAMILIES  # the registry is filled

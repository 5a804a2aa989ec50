"""Everything that the programs of one run share: arguments, shared HBM, the schedule, and what passes between programs."""

from __future__ import annotations

import zlib
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from trnprof.nki.dtypes import DType
from trnprof.nki.objects import MemoryRegion
from trnprof.nki.recording import TensorSpec
from trnprof.nki.tensor import Storage
from trnprof.nki.values import kinds
from trnprof.nki.values.cells import Cells
from trnprof.nki.values.schedule import Schedule

if TYPE_CHECKING:
    from trnprof.nki.recorder import Recorder
    from trnprof.nki.tensor import Tensor
    from trnprof.nki.values.machine import Machine

RANDOM_INTEGERS = 8
"""Integer inputs without contents are uniform in [0, 8)."""


class World:
    """One run: `ranks` simulated ranks, each with the programs of its logical core."""

    def __init__(self, *, precise: bool, seed: int, ranks: int, zeroed: bool = False) -> None:
        self.precise = precise
        self.zeroed = zeroed
        """Does memory that nothing has written read as 0, and not as NaN?"""
        self.seed = seed
        self.ranks = ranks
        self.schedule = Schedule()
        self.machines: dict[tuple[int, int], Machine] = {}
        """(rank, position of the program in its grid) -> its machine, of the launch that runs."""
        self.arguments: dict[tuple[int, int, str], tuple[str, Cells, tuple[int, ...]]] = {}
        """(rank, id of the caller's object, parameter of a spec) -> (its name, its contents, its shape)."""
        self._kept: list[Any] = []
        self._shared: dict[tuple[Any, ...], Cells] = {}
        self._seen: dict[int, dict[tuple[Any, ...], int]] = defaultdict(lambda: defaultdict(int))
        self.launches = 0
        self.barriers: dict[int, int] = defaultdict(int)
        """Rank -> barriers that its programs have passed together."""
        self.arrived: dict[int, set[int]] = defaultdict(set)
        self.mail: dict[tuple[int, Any, int, int], list[np.ndarray]] = defaultdict(list)
        """(rank, pipe, from, to) -> what was sent, in order."""
        self.received: dict[tuple[int, Any, int, int], int] = defaultdict(int)
        self.collectives: dict[tuple[Any, ...], dict[tuple[int, int], Any]] = defaultdict(dict)
        """(group, number of the call) -> (rank, program) -> its operands, until the last of them arrives."""
        self.collective_calls: dict[tuple[int, int, tuple[int, ...]], int] = defaultdict(int)
        """(rank, program, ranks of the group) -> collectives issued."""
        self.finished: set[tuple[Any, ...]] = set()

    def cells_of(self, recorder: Recorder, storage: Storage, count: int, *, loose: bool) -> Cells:
        """Contents for a storage that has none yet: of its own, or in shared HBM what the other programs of the rank
        allocated at the same place of the kernel."""
        if storage.region is not MemoryRegion.shared_hbm or storage.kind == "constant":
            return Cells(count, storage.dtype, storage.name, loose=loose, zeroed=self.zeroed)
        frames = () if storage.site is None else tuple((frame.file, frame.line) for frame in storage.site.frames)
        rank = recorder.machine.rank if recorder.machine is not None else 0
        place = (self.launches, rank, frames, storage.name, storage.shape, str(storage.dtype))
        seen = self._seen[id(recorder)]
        key = (*place, seen[place])
        seen[place] += 1
        known = self._shared.get(key)
        if known is None:
            known = Cells(count, storage.dtype, storage.name, loose=loose, zeroed=self.zeroed)
            self._shared[key] = known
        return known

    def share(self, recorder: Recorder, tensor: Tensor) -> None:
        """Give a tensor in shared HBM its contents when it is allocated, so that the n-th allocation of a place is the n-th
        of every program."""
        storage = tensor.storage
        if storage.cells is None and storage.region is MemoryRegion.shared_hbm:
            count = int(np.prod(storage.shape, dtype=np.int64))
            storage.cells = self.cells_of(recorder, storage, count, loose=not self.precise)

    def argument(self, rank: int, source: Any, name: str, shape: tuple[int, ...], dtype: DType) -> Cells:
        """Contents of an argument: the caller's array, or seeded random numbers for a TensorSpec."""
        # A spec only describes a tensor: each parameter that it stands for is another one.
        key = (rank, id(source), name if isinstance(source, TensorSpec) else "")
        known = self.arguments.get(key)
        if known is None:
            array = self.random(rank, name, shape, dtype) if isinstance(source, TensorSpec) else np.asarray(source)
            self._kept.append(source)
            cells = Cells.of(array, dtype, name, loose=not self.precise)
            known = self.arguments[key] = (name, cells, shape)
        return known[1]

    def random(self, rank: int, name: str, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
        """Standard normal numbers rounded to the type; integers uniform in [0, 8); packed types random bits of small
        numbers. The same for the same seed, name and rank."""
        return random_array(shape, dtype, seed=self.seed, name=name, rank=rank)


def random_array(shape: tuple[int, ...], dtype: DType, *, seed: int, name: str = "", rank: int = 0) -> np.ndarray:
    """What a tensor without contents gets: see World.random."""
    generator = np.random.default_rng((seed, rank, zlib.crc32(name.encode())))
    if kinds.is_integer(dtype):
        most = 2 if dtype == "bool" else RANDOM_INTEGERS
        return generator.integers(0, most, shape).astype(kinds.NUMPY[dtype])
    if dtype in kinds.PACKED:
        return kinds.packed(generator.standard_normal((*shape, 4)), dtype)
    if dtype == "float8_e8m0fnu":
        return generator.integers(126, 129, shape).astype(np.uint8).view(kinds.NUMPY[dtype])
    if dtype == "float64":
        return generator.standard_normal(shape)
    return kinds.rounded(generator.standard_normal(shape, np.float32), dtype)

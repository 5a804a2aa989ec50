"""The open recording of one program: sites, loop nest, storages and events while the kernel's Python runs."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from trnprof.nki.loop_index import LoopIndex, LoopRun
from trnprof.nki.loops import WORTHWHILE_OPERATIONS
from trnprof.nki.origin import is_user_code
from trnprof.nki.recording import (
    Access,
    Allocation,
    DmaRecord,
    Event,
    Frame,
    Indirection,
    Loop,
    LoopSpan,
    Memory,
    Note,
    ProgramTrace,
    Site,
)
from trnprof.nki.state import state_after_iteration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trnprof.nki.storage import Storage
    from trnprof.nki.tensor import Tensor
    from trnprof.nki.values.machine import Machine

EVENT_LIMIT = 1_000_000
"""Operations one program may record one by one (about 1 KB each); repeated loop bodies count once."""

_current: list[Recorder] = []


def current_recorder() -> Recorder | None:
    """The recording that operations go to: the innermost open program."""
    return _current[-1] if _current else None


class RecordingLimitError(Exception):
    """The kernel records more than trnprof is willing to hold."""


class Recorder:
    """One program's recording while it is open."""

    def __init__(
        self,
        *,
        kernel: str,
        program_id: tuple[int, ...],
        grid: tuple[int, ...],
        lnc: int = 1,
        target: str = "trn2",
        exact: bool = False,
        trips: Mapping[str, int] | None = None,
        boundary: CodeType | None = None,
    ) -> None:
        """`boundary`: the code object below which frames are not the user's (what called the kernel)."""
        self.kernel = kernel
        self.program_id = program_id
        self.grid = grid
        self.lnc = lnc
        self.target = target
        self.multiplies = not exact
        self.worthwhile_operations = WORTHWHILE_OPERATIONS
        self.trips = dict(trips or {})
        self.boundary = boundary
        self.is_host = False
        """The function may turn out to be a host function that launches kernels."""
        self.entries: list[tuple[type[Event], dict[str, Any], tuple[tuple[LoopRun, int], ...]]] = []
        self.storages: list[Storage] = []
        self.loops: list[LoopRun] = []
        self.loop_count = 0
        self._nest: tuple[tuple[LoopRun, int], ...] | None = ()
        self.weight = 0
        self.notes: dict[tuple[str, str], Note] = {}
        self.identities: set[int] = set()
        self.used_trips: set[str] = set()
        self.registers = 0
        self.machine: Machine | None = None
        """What computes the operations' values, where they are computed and not recorded."""
        self.moving: list[Any] = []
        """[storage, first, last element, steps] of blocked views that watched loops move."""
        self._first_storage: dict[LoopRun, int] = {}
        self._codes: dict[int, CodeType | None] = {}
        """By id: the user's code objects; None: not the user's. (Hashing a code object hashes its constants.)"""
        self._sites: dict[tuple[int, ...], Site] = {}
        self._frames: dict[tuple[int, int], Frame] = {}

    def __enter__(self) -> Recorder:
        _current.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _current.remove(self)

    # Sites

    def site(self) -> Site:
        """The user's lines on the stack, innermost first."""
        key: list[int] = []
        codes = self._codes
        boundary = self.boundary
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            if code is boundary:
                break
            number = id(code)
            if number not in codes:
                codes[number] = code if is_user_code(code) else None
            if codes[number] is not None:
                key.append(number)
                key.append(frame.f_lasti)
            frame = frame.f_back
        wanted = tuple(key)
        known = self._sites.get(wanted)
        if known is None:
            frames = [self.frame(codes[at], place) for at, place in zip(key[::2], key[1::2], strict=True)]
            known = self._sites[wanted] = Site(tuple(frames) or (Frame("?", 0, "?"),))
        return known

    def frame(self, code: CodeType | None, position: int) -> Frame:
        """One line of the user's code."""
        assert code is not None
        key = (id(code), position)
        known = self._frames.get(key)
        if known is None:
            known = self._frames[key] = Frame(code.co_filename, _line(code, position), code.co_name)
            self._codes.setdefault(id(code), code)
        return known

    def note(self, code: str, message: str) -> None:
        """Keep a note once a line and code."""
        site = self.site()
        self.notes.setdefault((code, str(site)), Note(code=code, message=message, site=site))

    # Loops

    def open_loop(
        self, kind: str, count: int | None, bound: str = "", *, place: tuple[CodeType, int] | None = None
    ) -> LoopRun:
        """Start a loop statement; iterations are announced by start_iteration(). `place`: where it stands, if known."""
        if place is None:
            frame = self.user_frame()
            place = (frame.f_code, frame.f_lasti) if frame is not None else None
        loop = LoopRun(self.loop_count, kind, place, count, bound)
        self.loop_count += 1
        self.loops.append(loop)
        self._first_storage[loop] = len(self.storages) + self.registers
        loop.start_storage = len(self.storages) + self.registers
        loop.start_weight = self.weight
        self._nest = None
        return loop

    def user_frame(self) -> FrameType | None:
        """The user's innermost frame."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not is_user_code(frame.f_code):
            frame = frame.f_back
        return frame

    def start_iteration(self, loop: LoopRun) -> None:
        """The loop's `iteration` begins; loops inside it that were left by an exception are closed."""
        loops = self.loops
        while loops and loops[-1] is not loop:
            if loop not in loops:
                return
            loops.pop().closed = True
        loop.start_storage = len(self.storages) + self.registers
        loop.start_weight = self.weight
        loop.start_moving = len(self.moving)
        self._nest = None

    def close_loop(self, loop: LoopRun) -> None:
        """The statement is left."""
        loop.closed = True
        if loop in self.loops:
            while self.loops and self.loops[-1] is not loop:
                self.loops.pop().closed = True
            self.loops.pop()
            self._nest = None
            if not self.loops:
                self.moving.clear()

    @property
    def nest(self) -> tuple[tuple[LoopRun, int], ...]:
        """(loop, iteration) of the open loops, outermost first; one and the same object within an iteration."""
        if self._nest is None:
            self._nest = tuple([(loop, loop.iteration) for loop in self.loops])
        return self._nest

    def loop_first_storage(self, loop: LoopRun) -> int:
        """Storages from this number on were made inside the loop."""
        return self._first_storage[loop]

    def state_after_iteration(self, frame: FrameType, loop: LoopRun) -> Any:
        """See state.py."""
        return state_after_iteration(self, frame, loop)

    def serial(self) -> int:
        """A number for something created now, ordered with the storages."""
        self.registers += 1
        return len(self.storages) + self.registers - 1

    # Events

    @contextmanager
    def hoisted(self) -> Iterator[None]:
        """Events inside run once, outside of every loop."""
        before, self._nest = self.nest, ()
        try:
            yield
        finally:
            self._nest = before

    def emit(self, cls: type[Event], fields: dict[str, Any]) -> dict[str, Any]:
        """Add a record; `fields` is everything but sequence and loops, and may still be changed by the caller."""
        if len(self.entries) >= EVENT_LIMIT:
            raise RecordingLimitError(
                f"more than {EVENT_LIMIT:,} operations that do not repeat: trace a smaller shape, or fewer iterations"
            )
        if "site" not in fields:
            fields["site"] = self.site()
        self.weight += 1
        self.entries.append((cls, fields, self.nest))
        return fields

    def access(self, tensor: Tensor, *, write: bool = False) -> Access:
        """The tensor's addresses now, and that its storage is in use here."""
        storage = tensor.storage
        if storage.partition_axis:
            self._use_blocks(tensor)
        else:
            storage.use(len(self.entries), 0, 0)
        if write:
            storage.written = True
        else:
            storage.producer = None
        offset = tensor.offset
        nest = self.nest
        if type(offset) is LoopIndex:
            moves = offset.steps()
            steps = tuple([moves.get(loop, 0) for loop, _ in nest])
            offset = offset.value
        else:
            steps = (0,) * len(nest)
        elements = storage.partition_elements
        dtype = tensor.dtype
        if elements and dtype.itemsize != storage.dtype.itemsize:
            elements = elements * storage.dtype.itemsize // dtype.itemsize
        indirect = tensor.indirection
        return Access(
            storage.number,
            storage.name,
            storage.memory,
            str(dtype),
            dtype.itemsize,
            tensor.shape,
            offset,
            tuple(zip(tensor.strides, tensor.shape, strict=True)),
            elements,
            steps,
            Indirection.NONE if indirect is None else indirect.kind,
            None if indirect is None else indirect.axis,
            tensor.offsets,
        )

    def _use_blocks(self, tensor: Tensor) -> None:
        """Which blocks a view of a blocked storage touches; where a watched loop moves it, remember that for its jumps."""
        storage = tensor.storage
        elements = max(storage.partition_elements, 1)
        first, last = 0, elements - 1
        if tensor.dtype == storage.dtype and tensor.offsets is None:
            offset = tensor.offset
            first = last = (offset.value if type(offset) is LoopIndex else offset) % elements
            for stride, size in zip(tensor.strides, tensor.shape, strict=True):
                if stride < elements:
                    last += stride * (size - 1)
            if type(offset) is LoopIndex:
                self.moving.append([storage, first, last, offset.steps()])
        storage.use(len(self.entries), first, last)

    def skip_iterations(self, loop: LoopRun, skipped: int) -> None:
        """The iteration of `loop` that just ended stands for `skipped` more: their blocks were used too."""
        for item in self.moving[loop.start_moving :]:
            storage, first, last, steps = item
            step = steps.get(loop, 0)
            if step:
                low, high = sorted((step * 1, step * skipped))
                storage.use(len(self.entries), first + low, last + high, skipped=True)
                item[1], item[2] = first + min(low, 0), last + max(high, 0)

    # Result

    def finish(self, returned: set[int], *, stands_for: int = 1) -> ProgramTrace:
        """Close the recording: frozen events with their loops resolved."""
        allocations = tuple(storage.as_allocation(storage.number in returned) for storage in self.storages)
        spans: dict[int, tuple[LoopSpan, ...]] = {}
        loops: dict[LoopRun, Loop] = {}
        events = []
        for sequence, (cls, fields, nest) in enumerate(self.entries):
            known = spans.get(id(nest))
            if known is None:
                known = spans[id(nest)] = tuple([self._span(loop, iteration, loops) for loop, iteration in nest])
            if cls is DmaRecord:
                fields["assumed_mode"] = assumed_mode(fields, allocations, self.target)
            events.append(cls(sequence=sequence, loops=known, **fields))
        return ProgramTrace(
            kernel=self.kernel,
            program_id=self.program_id,
            grid=self.grid,
            events=tuple(events),
            allocations=allocations,
            sbuf_peak_bytes_per_partition=self._peak(Memory.SBUF),
            psum_peak_bytes_per_partition=self._peak(Memory.PSUM),
            stands_for=stands_for,
        )

    def _span(self, loop: LoopRun, iteration: int, loops: dict[LoopRun, Loop]) -> LoopSpan:
        known = loops.get(loop)
        if known is None:
            site = Site((self.frame(*loop.place) if loop.place is not None else Frame("?", 0, "?"),))
            known = loops[loop] = Loop(loop.id, loop.kind, site, loop.count, loop.bound)
        return LoopSpan(known, iteration, loop.repeats.get(iteration, 1))

    def _peak(self, memory: Memory) -> int:
        """Most bytes of a partition live at once, and no less than where the kernel placed tensors."""
        changes: dict[int, int] = {}
        placed = 0
        for storage in self.storages:
            if storage.memory is not memory:
                continue
            if storage.address is not None and storage.uses:
                placed = max(placed, storage.address[1] + storage.bytes_per_partition)
                continue
            size = storage.bytes_per_partition // max(storage.block_count, 1)
            for first, last in storage.lifetimes():
                changes[first] = changes.get(first, 0) + size
                changes[last + 1] = changes.get(last + 1, 0) - size
        live = peak = 0
        for _, change in sorted(changes.items()):
            live += change
            peak = max(peak, live)
        return max(peak, placed)


def assumed_mode(fields: dict[str, Any], allocations: tuple[Allocation, ...], target: str) -> str:
    """Who makes the descriptors: as the kernel says; else as the public trn2 captures show it.

    Those 8 captures run copies between a kernel's arguments or results and SBUF on the software queue (GpSimd), copies
    of tensors that live inside the kernel, and the compiler's constants, on the hardware queues. trn1 has no DGE.
    """
    accesses = (*fields["reads"], fields["write"])
    if any(access.indirection is Indirection.GATHER for access in accesses):
        return "swdge"
    if fields.get("dge_mode", "unknown") != "unknown":
        return str(fields["dge_mode"])
    if target == "trn1":
        return "none"
    for access in accesses:
        allocation = allocations[access.storage]
        if access.memory is Memory.HBM and (allocation.kind == "argument" or allocation.returned):
            return "swdge"
    return "hwdge"


def _line(code: CodeType, position: int) -> int:
    """The source line of an instruction."""
    for start, end, line in code.co_lines():
        if start <= position < end and line is not None:
            return line
    return code.co_firstlineno


def source_line(file: str, line: int) -> str:
    """The text of a line, '' where it is not there."""
    return linecache.getline(file, line).strip()

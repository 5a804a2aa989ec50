"""MachineProgram and costs -> Schedule: a list schedule on the engines, DMA queues and semaphores of one or two cores."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from trnprof.errors import InconsistencyError
from trnprof.hardware.dma_model import DmaModel
from trnprof.hardware.instruction_costs import Case, InstructionCosts
from trnprof.nki.timing.dma_queues import DmaQueues
from trnprof.nki.timing.formulas import CostModel
from trnprof.nki.timing.program import (
    BARRIER,
    COLLECTIVE,
    COMPUTE,
    DMA,
    EXCHANGE,
    HWDGE,
    RESULT,
    STATIC,
    SWDGE,
    VIRTUAL,
    Ints,
    MachineProgram,
)
from trnprof.nki.timing.throttle import Throttle
from trnprof.profile import ENGINES

TENSOR, VECTOR, SCALAR, GPSIMD, SYNC = range(len(ENGINES))
COLLECTIVES = len(ENGINES)
"""The resource that collectives of a core follow each other on."""
_RESOURCES = COLLECTIVES + 1
_NEVER = 1 << 62


class Order(StrEnum):
    """How far an engine may leave the program order: what the compiler makes of it is not known."""

    FREE = "free"
    """An engine that is free takes, of all instructions that are ready, the first in program order."""
    NESTS = "nests"
    """The same within one outermost loop nest; an engine ends its part of a nest before it begins the next."""
    PROGRAM = "program"
    """As written."""


@dataclass(frozen=True, eq=False)
class Schedule:
    """When every operation runs, in picoseconds from the start of the kernel's body. Columns have the shape [n]."""

    program: MachineProgram
    case: Case
    engine: Ints
    """Index into ENGINES, -1: none: the program's, or where the compiler chooses a DMA's queue the one that low takes."""
    mode: Ints
    """Of each DMA: HWDGE, SWDGE or STATIC, chosen likewise; shape [DMAs]."""
    start_ps: Ints
    """When the engine begins it."""
    issued_ps: Ints
    """When the engine may begin the next."""
    end_ps: Ints
    """When its result is there; of a DMA: when its semaphore has its last increment."""
    array_start_ps: Ints
    """Tensor engine: when the first column streams, after the weights; a DMA: when it is triggered, after its address was
    computed; others: start_ps."""
    ready_ps: Ints
    """When everything that it waited for was there."""
    waited_for: Ints
    """The operation whose end came last; -1: none."""
    queues: tuple[DmaQueues, ...]
    """By core."""
    throttle: tuple[tuple[tuple[int, bool], ...], ...]
    """By core: (from when, at full rate?)."""
    table_load_ps: tuple[int, ...]
    """By core: length of the activation table load at the start; 0: no activation."""
    end_of_body_ps: int


def schedule(program: MachineProgram, costs: InstructionCosts, law: DmaModel, case: Case, *, order: Order) -> Schedule:
    """Start every operation as early as its engine, its dependencies and `order` allow.

    Near-linear in operations and dependencies.
    Raises: InconsistencyError if operations wait for each other in a circle.
    """
    return _Simulation(program, costs, law, case, order).run()


class _Simulation:
    """One run over time."""

    def __init__(
        self, program: MachineProgram, costs: InstructionCosts, law: DmaModel, case: Case, order: Order
    ) -> None:
        self.program = program
        self.case = case
        # In program order every instruction is a group of its own.
        groups = {Order.FREE: None, Order.NESTS: program.nest, Order.PROGRAM: np.arange(len(program))}[order]
        self.group = [0] * len(program) if groups is None else groups.tolist()
        self.model = model = CostModel(costs, case)
        count = len(program)
        self.kind = program.kind.tolist()
        self.core = program.core.tolist()
        self.engine = program.engine.tolist()
        self.work = program.work.tolist()
        self.dma = program.dma.tolist()
        self.table = program.table.tolist()
        self.start = [0] * count
        self.issued = [0] * count
        self.end = [0] * count
        self.array_start = [0] * count
        self.ready = [0] * count
        self.waited_for = [-1] * count
        self.left = np.diff(program.dependency_first).tolist()
        self.modes = program.dmas.mode.tolist()
        if case is Case.LOW:
            self._spread_dmas()
        self._reverse()
        self.queues = [
            DmaQueues(program.dmas, self.modes, law, costs, case, is_pair_busy=program.core_count > 1)
            for _ in range(program.core_count)
        ]
        self.throttles = [Throttle(costs, case) for _ in range(program.core_count)]
        self.array_free = [0] * program.core_count
        self.loaded_table = [-1] * program.core_count
        self.signal = model.ps("fixed.semaphore_signal_ns")
        self.semaphore_start = [model.semaphore_start_ps(name) for name in ENGINES] + [0]
        self.issue_of_mode = [
            model.ps("dma.hwdge_issue_ns"),
            model.ps("dma.swdge_issue_ns"),
            model.ps("dma.static_issue_ns"),
        ]
        self.swdge_trigger = model.ps("dma.swdge_trigger_ns")
        self.is_dynamic = program.dmas.is_dynamic.tolist()
        self.dynamic_address = model.ps("dma.dynamic_address_ns")
        self.first_swdge = model.ps("fixed.first_swdge_ns")
        self.table_load = model.ps("fixed.activation_table_ns")
        resources = program.core_count * _RESOURCES
        self.free = [0] * resources
        self.pending: list[list[tuple[int, int]]] = [[] for _ in range(resources)]
        """By resource: (ready, operation) of those that wait for their time."""
        self.waiting: list[list[int]] = [[] for _ in range(resources)]
        """By resource: operations that are ready; in program order."""
        self.table_loads = [0] * program.core_count
        for core in range(program.core_count):
            if any(table >= 0 and own == core for table, own in zip(self.table, self.core, strict=True)):
                self.table_loads[core] = self.table_load
                self.free[core * _RESOURCES + SCALAR] = self.table_load
        self.met: set[int] = set()
        """Barriers and exchanges that are over."""
        self.groups: list[list[tuple[int, int]]] = [[] for _ in range(resources)]
        """By resource: (group, instructions of it that have not begun), the current group last."""
        self.deferred: list[dict[int, list[int]]] = [{} for _ in range(resources)]
        """By resource and group: operations that are ready before their group's turn."""
        self._count_groups()

    def _spread_dmas(self) -> None:
        """Where the compiler chooses who makes a DMA's descriptors, low takes the two idle queues in turn.

        Not where the address is computed on the device: the capture of such a kernel has all of those on GpSimd.
        """
        dmas = self.program.dmas
        may_move = (dmas.is_assumed & ~dmas.is_dynamic).tolist()
        turn = 0
        for number, dma in enumerate(self.dma):
            if dma >= 0 and may_move[dma] and self.modes[dma] != STATIC:
                self.engine[number], self.modes[dma] = ((SYNC, HWDGE), (GPSIMD, SWDGE))[turn]
                turn = 1 - turn

    def _count_groups(self) -> None:
        counts: list[dict[int, int]] = [{} for _ in self.free]
        for number, kind in enumerate(self.kind):
            if kind in (COMPUTE, DMA, COLLECTIVE):
                found = counts[self._resource(number)]
                found[self.group[number]] = found.get(self.group[number], 0) + 1
        self.groups = [sorted(found.items(), reverse=True) for found in counts]

    def _reverse(self) -> None:
        """Successors of each operation, from the dependencies."""
        program = self.program
        count = len(program)
        consumer = np.repeat(np.arange(count), np.diff(program.dependency_first))
        order = np.argsort(program.dependency, kind="stable")
        first = np.searchsorted(program.dependency[order], np.arange(count + 1))
        self.successor_first = first.tolist()
        self.successor = consumer[order].tolist()
        self.successor_kind = program.dependency_kind[order].tolist()

    def _resource(self, number: int) -> int:
        engine = self.engine[number] if self.kind[number] != COLLECTIVE else COLLECTIVES
        return self.core[number] * _RESOURCES + engine

    def run(self) -> Schedule:
        """The whole schedule."""
        for number, left in enumerate(self.left):
            if not left:
                self._became_ready(number)
        left = sum(kind in (COMPUTE, DMA, COLLECTIVE) for kind in self.kind)
        while left:
            resource, at = self._next_resource()
            if at >= _NEVER:
                raise InconsistencyError("the modelled instructions wait for each other in a circle")
            self._execute(self._take(resource, at), resource, at)
            left -= 1
        if any(self.left):
            raise InconsistencyError("the modelled instructions wait for each other in a circle")
        return self._result()

    # Choosing

    def _next_resource(self) -> tuple[int, int]:
        """(the resource that can start something first, when)."""
        best, best_at = -1, _NEVER
        for resource, free in enumerate(self.free):
            if self.waiting[resource]:
                at = free
            elif self.pending[resource]:
                ready = self.pending[resource][0][0]
                at = max(free, ready)
            else:
                continue
            if at < best_at:
                best, best_at = resource, at
        return best, best_at

    def _take(self, resource: int, at: int) -> int:
        """The operation to start on `resource` at `at`: of those ready, the first in program order."""
        pending, waiting = self.pending[resource], self.waiting[resource]
        while pending and pending[0][0] <= at:
            heapq.heappush(waiting, heapq.heappop(pending)[1])
        number = heapq.heappop(waiting)
        group, left = self.groups[resource].pop()
        if left > 1:
            self.groups[resource].append((group, left - 1))
        elif self.groups[resource]:
            for other in self.deferred[resource].pop(self.groups[resource][-1][0], ()):
                heapq.heappush(pending, (self.ready[other], other))
        return number

    def _became_ready(self, number: int) -> None:
        """All dependencies of an operation are known."""
        stack = [number]
        while stack:
            number = stack.pop()
            kind = self.kind[number]
            if kind in (VIRTUAL, BARRIER, EXCHANGE):
                stack.extend(self._meet(number))
                continue
            resource = self._resource(number)
            if self.group[number] == self.groups[resource][-1][0]:
                heapq.heappush(self.pending[resource], (self.ready[number], number))
            else:
                self.deferred[resource].setdefault(self.group[number], []).append(number)

    def _meet(self, number: int) -> list[int]:
        """A virtual operation ends when it is ready; a barrier or exchange when both cores have come to it."""
        kind = self.kind[number]
        if kind == VIRTUAL:
            self.start[number] = self.issued[number] = self.end[number] = self.ready[number]
            return self._release(number)
        partner = int(self.program.partner[number])
        both = [number] if partner < 0 else [number, partner]
        if number in self.met or any(self.left[one] for one in both):
            return []
        self.met.update(both)
        start = max(self.ready[one] for one in both)
        length = self.model.ps("fixed.core_barrier_ns" if kind == BARRIER else "fixed.sendrecv_ns")
        if kind == EXCHANGE:
            moved = max(int(self.program.sbuf_bytes[one]) for one in both)
            length += round(moved / (16 * self.model.costs["dma.engine_bytes_per_ns"].at(self.case)) * 1000)
        released = []
        for one in both:
            self.start[one], self.issued[one], self.end[one] = self.ready[one], start, start + length
            released += self._release(one)
        return released

    # Running

    def _execute(self, number: int, resource: int, at: int) -> None:
        self.start[number] = self.array_start[number] = at
        kind = self.kind[number]
        if kind == DMA:
            self._trigger(number, resource, at)
        elif kind == COLLECTIVE:
            self.issued[number] = self.end[number] = at + self._collective_ps(number)
            self.free[resource] = self.end[number]
        elif self.engine[number] == TENSOR:
            self._multiply(number, resource, at)
        else:
            cost = self.model.cost(ENGINES[self.engine[number]], self.program.works[self.work[number]])
            issue, latency = cost.issue_ps, cost.latency_ps
            table = self.table[number]
            if table >= 0:
                core = self.core[number]
                if self.case is Case.HIGH and self.loaded_table[core] not in (-1, table):
                    issue, latency = issue + self.table_load, latency + self.table_load
                self.loaded_table[core] = table
            self.issued[number] = self.free[resource] = at + issue
            self.end[number] = at + latency
        for released in self._release(number):
            self._became_ready(released)

    def _multiply(self, number: int, resource: int, at: int) -> None:
        """Weights load behind the instruction before; then the columns stream at the rate that the limit allows."""
        core = self.core[number]
        work = self.program.works[self.work[number]]
        cost = self.model.cost("tensor", work)
        begin = max(self.array_free[core], at + cost.setup_ps)
        done = self.throttles[core].run(begin, cost.issue_ps, work.partitions)
        self.array_start[number] = begin
        self.array_free[core] = done
        self.issued[number] = done
        self.end[number] = done + cost.latency_ps - cost.issue_ps
        # The next one's weights may load while this one streams.
        self.free[resource] = max(done - cost.setup_ps, at)

    def _trigger(self, number: int, resource: int, at: int) -> None:
        dma = self.dma[number]
        mode = self.modes[dma]
        if mode == SWDGE and at < self.first_swdge:
            at = self.first_swdge
            self.start[number] = at
        if self.is_dynamic[dma]:
            at += self.dynamic_address
        self.array_start[number] = at
        self.free[resource] = at + self.issue_of_mode[mode]
        self.issued[number] = at + (self.swdge_trigger if mode == SWDGE else self.issue_of_mode[mode])
        self.end[number] = self.queues[self.core[number]].transfer(dma, at)

    def _collective_ps(self, number: int) -> int:
        name = self.program.opcodes[self.program.opcode[number]].lower()
        path = next(
            (
                f"collective.{kind}_alpha_ns"
                for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute")
                if kind in name
            ),
            "collective.in_kernel_alpha_ns",
        )
        if int(self.program.source[number]) >= 0:
            path = "collective.in_kernel_alpha_ns"
        moved = int(self.program.sbuf_bytes[number])
        return self.model.ps(path) + round(moved / self.model.costs["collective.bytes_per_ns"].at(self.case) * 1000)

    def _release(self, number: int) -> list[int]:
        """Tell the successors; returns those that wait for nothing else."""
        released = []
        end = self.end[number]
        is_virtual = self.kind[number] == VIRTUAL
        # A DMA's end is its semaphore's last increment already.
        signalled = end if is_virtual or self.kind[number] == DMA else end + self.signal
        for place in range(self.successor_first[number], self.successor_first[number + 1]):
            other = self.successor[place]
            if self.successor_kind[place] != RESULT:
                at = self.start[number]  # the engine itself keeps them apart
            elif self.kind[other] in (VIRTUAL, BARRIER, EXCHANGE):
                at = signalled
            else:
                at = signalled + self.semaphore_start[self.engine[other]]
            if at >= self.ready[other]:
                self.ready[other] = at
                self.waited_for[other] = number
            self.left[other] -= 1
            if not self.left[other]:
                released.append(other)
        return released

    def _result(self) -> Schedule:
        body = [end for end, kind in zip(self.end, self.kind, strict=True) if kind != VIRTUAL]
        end_of_body = max(body, default=0) + self.model.ps("fixed.end_of_kernel_ns")

        def column(values: list[int]) -> Ints:
            return np.array(values, np.int64)

        return Schedule(
            program=self.program,
            case=self.case,
            engine=column(self.engine),
            mode=column(self.modes),
            start_ps=column(self.start),
            issued_ps=column(self.issued),
            end_ps=column(self.end),
            array_start_ps=column(self.array_start),
            ready_ps=column(self.ready),
            waited_for=column(self.waited_for),
            queues=tuple(self.queues),
            throttle=tuple(tuple(throttle.finish(end_of_body)) for throttle in self.throttles),
            table_load_ps=tuple(self.table_loads),
            end_of_body_ps=end_of_body,
        )

"""Cycles of work by formula id, and what an instruction costs in all: the code behind instruction_costs.toml."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trnprof.errors import InconsistencyError
from trnprof.hardware.instruction_costs import Case, InstructionCost, InstructionCosts
from trnprof.nki.timing.work import Work


@dataclass(frozen=True, slots=True)
class Cost:
    """One instruction on its engine, in picoseconds."""

    issue_ps: int
    """The engine starts nothing else for this long."""
    latency_ps: int
    """From its start to its result."""
    part_count: int = 1
    """Machine instructions that it consists of, one after the other (float32 products: two)."""
    setup_ps: int = 0
    """Before it may start once its operands are there: a matmul's weights; hidden behind the instruction before."""


class CostModel:
    """Costs of one generation under one case; equal works are computed once."""

    def __init__(self, costs: InstructionCosts, case: Case) -> None:
        self.costs = costs
        self.case = case
        self._known: dict[tuple[str, Work], Cost] = {}

    def cost(self, engine: str, work: Work) -> Cost:
        """What `work` costs on `engine`.

        Raises: InconsistencyError for an instruction or formula that the table does not have.
        """
        known = self._known.get((engine, work))
        if known is None:
            known = self._known[engine, work] = self._compute(engine, work)
        return known

    def ps(self, path: str) -> int:
        """A constant of the table given in ns, as picoseconds."""
        return self.costs.ps(path, self.case)

    def semaphore_start_ps(self, engine: str) -> int:
        """From a semaphore's new value to the start of what waits for it on `engine`."""
        return round(self.costs.engines[engine].constants["semaphore_start"].at(self.case) * 1000)

    def instruction(self, name: str) -> InstructionCost:
        """The table's entry for an instruction."""
        found = self.costs.instructions.get(name)
        if found is None:
            raise InconsistencyError(f"instruction_costs.toml has no instruction {name!r}")
        return found

    def _compute(self, engine: str, work: Work) -> Cost:
        entry = self.instruction(work.instruction)
        if entry.formula == "register":
            length = self.ps("fixed.register_ns")
            return Cost(length, length)
        formula = FORMULAS.get(entry.formula)
        if formula is None:
            raise InconsistencyError(f"instruction_costs.toml names a formula {entry.formula!r} that nothing computes")
        cycles = formula(self, entry, work)
        of_engine = self.costs.engines[engine]
        overhead = {name: bracket.at(self.case) for name, bracket in of_engine.constants.items()}
        parts = 1
        if engine == "tensor":
            parts = int(self.costs["tensor_engine.instructions_fp32"].mid) if _is_split(entry, work) else 1
            issue = max(overhead["issue_floor"], cycles + parts * overhead["issue_overhead"])
            # Few columns hold the engine for the floor, but come out as soon as they are through.
            streamed = _passes(self, work, transpose=entry.formula == "transpose") * _columns(entry, work)
            latency = max(issue, streamed + parts * overhead["issue_overhead"] + overhead["latency_overhead"])
            weights = self.costs[f"tensor_engine.weights_{'fp32' if work.passes_fp32 else '2byte'}"].at(self.case)
            return Cost(of_engine.cycles_ps(issue), of_engine.cycles_ps(latency), parts, of_engine.cycles_ps(weights))
        if work.wide_stride:
            cycles *= self.costs["fixed.stride_penalty"].at(self.case)
        floor = overhead["issue_floor"]
        if entry.dynamic:
            floor = max(floor, self.costs["fixed.dynamic_floor_cycles"].at(self.case))
        issue = cycles + overhead["issue_overhead"]
        latency = cycles + overhead["latency_overhead"]
        if work.pointer:
            issue += overhead["pointer_issue"]
            latency += overhead["pointer_latency"]
        issue = max(floor, issue)
        return Cost(of_engine.cycles_ps(issue), of_engine.cycles_ps(max(latency, issue)))


def _is_split(entry: InstructionCost, work: Work) -> bool:
    return work.passes_fp32 and entry.formula == "matmul"


def _per_element(model: CostModel, entry: InstructionCost, work: Work) -> float:
    cycles = entry.constants["cycles"].at(model.case) * work.elements
    if entry.mode == "fast_modes":
        cycles *= model.costs[f"fast_modes.{work.operand_class()}"].at(model.case)
    elif entry.mode == "two_inputs":
        kind = "psum" if work.in_psum else "sbuf_16bit" if work.itemsize <= 2 and work.contiguous else "other"
        cycles *= model.costs[f"two_inputs.{kind}"].at(model.case)
    elif entry.half_16bit and work.itemsize <= 2:
        cycles /= 2
    extra = entry.constants.get("extra")
    return cycles + (extra.at(model.case) if extra is not None else 0.0)


def _passes(model: CostModel, work: Work, *, transpose: bool) -> float:
    if not work.passes_fp32:
        return model.costs["tensor_engine.passes_2byte"].at(model.case)
    return model.costs["tensor_engine.passes_fp32_transpose" if transpose else "tensor_engine.passes_fp32"].at(
        model.case
    )


def _columns(entry: InstructionCost, work: Work) -> int:
    """Columns that a pass of the tensor engine streams."""
    return work.partitions if entry.formula == "transpose" else work.elements


def _matmul(model: CostModel, entry: InstructionCost, work: Work) -> float:
    return _passes(model, work, transpose=False) * max(min(64, work.rows), _columns(entry, work))


def _transpose(model: CostModel, entry: InstructionCost, work: Work) -> float:
    return _passes(model, work, transpose=True) * max(min(64, work.rows), _columns(entry, work))


def _local_gather(model: CostModel, entry: InstructionCost, work: Work) -> float:
    """elements = indices fetched a partition times elements an index (work.groups)."""
    wide = 4 * work.groups
    slowness = ((entry.constants["setup"].at(model.case) + wide) / wide) / min(4 / work.itemsize, work.groups)
    return float(work.elements * slowness ** entry.constants["power"].at(model.case))


def _topk(model: CostModel, entry: InstructionCost, work: Work) -> float:
    """elements = what a 16-partition snake holds; groups = results."""
    return entry.constants["cycles"].at(model.case) * work.elements + work.groups


FORMULAS: dict[str, Callable[[CostModel, InstructionCost, Work], float]] = {
    "per_element": _per_element,
    "matmul": _matmul,
    "transpose": _transpose,
    "local_gather": _local_gather,
    "topk": _topk,
}
"""Formula id -> cycles of work."""

"""A serving step of the bundled engine through the timing model: every kernel recorded once, laid out as often as it runs."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from trnprof.analyzers.predicted_dma import TimeRange
from trnprof.engine.modelled_step import KERNEL_FOLDER, DeviceStep, KernelUse, Role
from trnprof.errors import InputDataError, UsageError
from trnprof.hardware import load_hardware
from trnprof.hardware.instruction_costs import Case, InstructionCosts, load_instruction_costs
from trnprof.nki.modules import install_nki_modules
from trnprof.nki.recording import Recording, TensorSpec
from trnprof.nki.timing.model import KernelModel, model_recording
from trnprof.nki.timing.step import (
    Layout,
    StepCollective,
    StepEntry,
    collective_ns,
    model_step,
    step_range,
    step_traffic,
)
from trnprof.nki.trace import trace
from trnprof.profile import Profile, TensorSize

MAX_OPERATIONS = 150_000
"""Of a step's distinct kernels together: recording and scheduling so many takes about a minute of a core."""

MAX_LAID_OUT = 8_000_000
"""Instructions and DMA packets of a step that are laid out as a profile: about 3 GB while it is put together."""


_NOT_NEEDED = (Role.ACTIVATIONS, Role.AGAIN)


@dataclass(frozen=True)
class PartTime:
    """One part of the step: all runs of one kernel with the same shapes."""

    name: str
    kernel: str
    """file:function."""
    run_count: int
    each_ns: TimeRange
    """One run, without its collective."""
    hbm_read_bytes: int
    """Of one run."""
    hbm_write_bytes: int
    instruction_count: int
    packet_count: int
    """DMA packets that move data, of one run."""
    collective: StepCollective | None
    """After every run."""
    collective_ns: TimeRange
    """One; nothing hides it."""


@dataclass(frozen=True, eq=False)
class ModelledStep:
    """The step's times and traffic on one rank. Nothing here was measured."""

    step: DeviceStep
    hardware: str
    parts: tuple[PartTime, ...]
    """In the order of their first run."""
    total_ns: TimeRange
    boundary_ns: TimeRange
    """Between kernels, all together."""
    traffic_bytes: dict[str, int]
    """HBM bytes moved, by role; `constants` are no tensors: identity matrices that transposes make the compiler load."""
    needed_bytes: dict[str, int]
    """HBM bytes that must move whatever the kernels are, by role: weights, states and caches once each way."""
    resident_bytes: dict[str, int]
    """What a rank keeps in HBM, by role: weights, states and caches whole, of all layers."""
    core_hbm_bytes: int
    """A physical core's share of the chip's HBM."""
    bandwidth_bytes_per_s: int
    """A core's, in the middle schedule."""
    unknown: dict[str, int]
    """Operations whose cost no source gives, with how often they run."""
    notes: tuple[str, ...]
    entries: tuple[StepEntry, ...]
    layout: Layout

    @property
    def fits(self) -> bool:
        """Does what a rank keeps fit its core's share of HBM?"""
        return sum(self.resident_bytes.values()) <= self.core_hbm_bytes

    @property
    def floor_ns(self) -> int:
        """The needed bytes at the core's bandwidth."""
        return round(sum(self.needed_bytes.values()) * 1e9 / self.bandwidth_bytes_per_s)

    def profile(self, case: Case = Case.MID) -> Profile:
        """One schedule as a Profile of provenance `modelled`.

        Raises: UsageError for a step of more than MAX_LAID_OUT instructions and packets.
        """
        rows = sum(part.run_count * (part.instruction_count + part.packet_count) for part in self.parts)
        if rows > MAX_LAID_OUT:
            raise UsageError(
                f"the step has about {rows:,} instructions and DMA packets, more than the {MAX_LAID_OUT:,} that are written; "
                "leave --output out (the summary needs no profile), or take fewer rows or tokens, or more ranks"
            )
        places = {part.name: place for place, part in enumerate(self.parts)}
        profile = model_step(
            self.entries, layout=self.layout, case=case, order=[places[call.part] for call in self.step.calls]
        )
        tensors = _needed_tensors(self.step, self.entries)
        summary = {
            "inputs_outputs_weights_size_bytes": sum(tensor.size_bytes for tensor in tensors),
            "inputs_and_weights_size_bytes": sum(one.size_bytes for one in tensors if one.kind != "output"),
            "weight_size_bytes": sum(one.size_bytes for one in tensors if one.kind == "weight"),
            **{f"modelled_total_{case}_ns": getattr(self.total_ns, case) for case in Case},
        }
        return replace(profile, metadata=replace(profile.metadata, tensors=tensors, summary=summary))


def model_device_step(
    step: DeviceStep, hardware: str = "trn2", *, advance: Callable[[int, int], None] | None = None
) -> ModelledStep:
    """Every distinct kernel of the step, recorded and scheduled, and their sum.

    advance: called with (1, number of kernels) after each.
    Raises: UsageError for an unknown generation or a kernel file that is not there; InputDataError for a kernel that does
            not take these shapes, naming its line.
    """
    costs, chip = load_instruction_costs(hardware), load_hardware(hardware)
    parts = step.parts()
    uses = list(dict.fromkeys(use.without_roles() for use, _ in parts.values()))
    missing = sorted({use.kernel for use in uses if not _has_kernel(use, hardware)})
    if missing:
        raise UsageError(f"the engine has no NKI kernel yet for {', '.join(missing)}, which this step needs")
    first: dict[KernelUse, Recording] = {}
    operations = 0
    for use in uses:
        first[use] = _recorded(use, hardware, exact=False)
        operations += _operation_count(first[use])
        if operations > MAX_OPERATIONS:
            largest = max(first, key=lambda one: _operation_count(first[one]))
            raise UsageError(
                f"the step's kernels have {operations:,} operations or more, most in {largest.kernel}; {MAX_OPERATIONS:,} are "
                "scheduled at most: take fewer rows or tokens, a shorter context or more ranks"
            )
    models: dict[KernelUse, KernelModel] = {}
    notes: list[str] = []
    for use, recording in first.items():
        events = sum(len(program.events) for program in recording.programs)
        whole = recording if _operation_count(recording) == events else _recorded(use, hardware, exact=True)
        models[use] = model_recording(whole)
        said = [f"{note.code}: {note.message}" for note in whole.notes] + list(models[use].program.notes)
        notes += [f"{use.kernel}: {note}" for note in said]
        if advance is not None:
            advance(1, len(uses))
    entries: list[StepEntry] = [(models[use.without_roles()], name, count) for name, (use, count) in parts.items()]
    layout = Layout(
        f"tensor parallel over {step.rank_count} ranks",
        step.rank_count,
        {part: StepCollective(one.operation, one.byte_count) for part, one in step.collectives.items()},
    )
    roles = {f"{name}.{tensor.name}": str(tensor.role) for name, (use, _) in parts.items() for tensor in use.tensors}
    needed: dict[str, int] = {}
    for name, tensor, _, size in _needed(step, entries):
        role = roles[f"{name}.{tensor}"]
        needed[role] = needed.get(role, 0) + size
    resident: dict[str, int] = {}
    for entry, part, count in entries:
        assert isinstance(entry, KernelModel)
        for hbm in entry.program.tensors:
            role = roles.get(f"{part}.{hbm.name}", str(Role.ACTIVATIONS))
            if role not in _NOT_NEEDED:
                resident[role] = resident.get(role, 0) + count * hbm.size_bytes
    unknown: dict[str, int] = {}
    for use, count in parts.values():
        for operation, number in models[use.without_roles()].unknown.items():
            unknown[operation] = unknown.get(operation, 0) + number * count
    traffic = step_traffic(entries, roles)
    constants = sum(count * _constant_bytes(models[use.without_roles()]) for use, count in parts.values())
    boundary = costs["fixed.kernel_boundary_ns"]
    return ModelledStep(
        step=step,
        hardware=hardware,
        parts=tuple(
            _part_time(name, use, count, models[use.without_roles()], layout, costs)
            for name, (use, count) in parts.items()
        ),
        total_ns=step_range(entries, layout=layout),
        boundary_ns=TimeRange(*(max(len(step.calls) - 1, 0) * round(boundary.at(case)) for case in Case)),
        traffic_bytes=traffic | ({"constants": constants} if constants else {}),
        needed_bytes=needed,
        resident_bytes=resident,
        core_hbm_bytes=int(str(chip["hbm.chip_bytes"].value)) // int(str(chip["chip.core_count_per_chip"].value)),
        bandwidth_bytes_per_s=next(iter(models.values())).bandwidth_bytes_per_s[Case.MID],
        unknown=unknown,
        notes=tuple(dict.fromkeys(notes)),
        entries=tuple(entries),
        layout=layout,
    )


def _recorded(use: KernelUse, hardware: str, *, exact: bool) -> Recording:
    """What the kernel does, in this process, since the files are our own."""
    arguments = {one.name: TensorSpec(one.shape, one.dtype, one.name) for one in use.tensors} | dict(use.arguments)
    try:
        return trace(_kernel(use.file, use.kernel, hardware), (), arguments, exact=exact, target=hardware)
    except InputDataError as error:
        shapes = ", ".join(f"{one.name}={'x'.join(map(str, one.shape))}" for one in use.tensors)
        raise InputDataError(f"{use.kernel} does not take {shapes}: {error.message}", path=use.file) from None


def _operation_count(recording: Recording) -> int:
    return sum(event.execution_count for program in recording.programs for event in program.events)


def _has_kernel(use: KernelUse, hardware: str) -> bool:
    return (KERNEL_FOLDER / use.file).is_file() and hasattr(_kernel_file(use.file, hardware), use.kernel)


@cache
def _kernel(file: str, name: str, hardware: str) -> Any:
    return getattr(_kernel_file(file, hardware), name)


@cache
def _kernel_file(file: str, hardware: str) -> types.ModuleType:
    """The file executed with our `nki` in the vendor's place, under a relative name so that its lines are told from ours."""
    module = types.ModuleType(f"step_{file.removesuffix('.py')}")
    module.__file__ = str(KERNEL_FOLDER / file)
    with install_nki_modules(hardware):
        exec(compile((KERNEL_FOLDER / file).read_text(encoding="utf-8"), f"nki/{file}", "exec"), module.__dict__)
    return module


def _part_time(
    name: str, use: KernelUse, count: int, model: KernelModel, layout: Layout, costs: InstructionCosts
) -> PartTime:
    after = layout.after(name)
    times = [0, 0, 0] if after is None else [collective_ns(after, costs, case) for case in Case]
    return PartTime(
        name=name,
        kernel=f"{use.file}:{use.kernel}",
        run_count=count,
        each_ns=model.total_ns,
        hbm_read_bytes=sum(core.hbm_read_bytes for core in model.cores),
        hbm_write_bytes=sum(core.hbm_write_bytes for core in model.cores),
        instruction_count=sum(sum(core.instruction_count.values()) for core in model.cores),
        packet_count=int(model.program.dmas.packets.sum()),
        collective=after,
        collective_ns=TimeRange(*times),
    )


def _constant_bytes(model: KernelModel) -> int:
    """HBM bytes of one run that are of no argument or result."""
    moved = sum(core.hbm_read_bytes + core.hbm_write_bytes for core in model.cores)
    return moved - sum(tensor.read_bytes + tensor.written_bytes for tensor in model.program.tensors)


def _needed(step: DeviceStep, entries: Sequence[StepEntry]) -> list[tuple[str, str, str, int]]:
    """(part, tensor, kind, bytes of all runs) of all but activations: no more than its size, and no more than is moved of
    it, since of a table or of many experts a step reads a part."""
    found = []
    roles = {name: {one.name: one.role for one in use.tensors} for name, (use, _) in step.parts().items()}
    for model, part, count in entries:
        assert isinstance(model, KernelModel)
        for tensor in model.program.tensors:
            role = roles[part].get(tensor.name, Role.ACTIVATIONS)
            if role in _NOT_NEEDED:
                continue
            kinds = {"weight" if role is Role.WEIGHTS else "input": tensor.read_bytes, "output": tensor.written_bytes}
            for kind, moved in kinds.items():
                if moved:
                    found.append((part, tensor.name, kind, count * min(moved, tensor.size_bytes)))
    return found


def _needed_tensors(step: DeviceStep, entries: Sequence[StepEntry]) -> tuple[TensorSize, ...]:
    return tuple(
        TensorSize(name=f"{part}.{name}" + (" written" if kind == "output" else ""), kind=kind, size_bytes=size)
        for part, name, kind, size in _needed(step, entries)
    )

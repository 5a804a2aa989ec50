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
from trnprof.nki.recording import TensorSpec
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
        """One schedule as a Profile of provenance `modelled`; raises what nki.timing.step.model_step raises."""
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
    uses = list(dict.fromkeys(use for use, _ in parts.values()))
    missing = sorted({use.file for use in uses if not (KERNEL_FOLDER / use.file).is_file()})
    if missing:
        raise UsageError(f"this step needs kernels that the engine does not have: {', '.join(missing)}")
    models: dict[KernelUse, KernelModel] = {}
    notes: list[str] = []
    for use in uses:
        models[use], said = _modelled(use, hardware)
        notes += said
        if advance is not None:
            advance(1, len(uses))
    entries: list[StepEntry] = [(models[use], name, count) for name, (use, count) in parts.items()]
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
            if role != Role.ACTIVATIONS:
                resident[role] = resident.get(role, 0) + count * hbm.size_bytes
    unknown: dict[str, int] = {}
    for use, count in parts.values():
        for operation, number in models[use].unknown.items():
            unknown[operation] = unknown.get(operation, 0) + number * count
    traffic = step_traffic(entries, roles)
    constants = sum(count * _constant_bytes(models[use]) for use, count in parts.values())
    boundary = costs["fixed.kernel_boundary_ns"]
    return ModelledStep(
        step=step,
        hardware=hardware,
        parts=tuple(_part_time(name, use, count, models[use], layout, costs) for name, (use, count) in parts.items()),
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


def _modelled(use: KernelUse, hardware: str) -> tuple[KernelModel, list[str]]:
    """(the kernel's timeline, what its recording has to say); in this process, since the files are our own."""
    arguments = {one.name: TensorSpec(one.shape, one.dtype, one.name) for one in use.tensors} | dict(use.arguments)
    try:
        recording = trace(_kernel(use.file, use.kernel, hardware), (), arguments, exact=True, target=hardware)
    except InputDataError as error:
        shapes = ", ".join(f"{one.name}={'x'.join(map(str, one.shape))}" for one in use.tensors)
        raise InputDataError(f"{use.kernel} does not take {shapes}: {error.message}", path=use.file) from None
    model = model_recording(recording)
    said = [f"{note.code}: {note.message}" for note in recording.notes] + list(model.program.notes)
    return model, [f"{use.kernel}: {note}" for note in said]


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
            if role is Role.ACTIVATIONS:
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

"""The modelled timeline of a kernel: three schedules, the account of each, and what is not in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trnprof.analyzers.anatomy import Anatomy, CoreAnatomy, measure_anatomy
from trnprof.analyzers.predicted_dma import TimeRange
from trnprof.hardware import Bandwidth, load_hardware
from trnprof.hardware.dma_model import load_dma_model
from trnprof.hardware.instruction_costs import Bracket, Case, InstructionCosts, load_instruction_costs
from trnprof.nki.recording import Recording
from trnprof.nki.timing.events import draw
from trnprof.nki.timing.extrapolation import whole_body_ps
from trnprof.nki.timing.lowering import lower
from trnprof.nki.timing.program import DMA, DMA_ENGINE_COUNT, MachineProgram, RepeatedLoop
from trnprof.nki.timing.schedule import Order, Schedule, schedule
from trnprof.profile import ENGINES, Core, Metadata, Profile, Provenance, TensorSize
from trnprof.version import __version__

ORDER_OF_CASE = {Case.LOW: Order.FREE, Case.MID: Order.NESTS, Case.HIGH: Order.PROGRAM}
"""How far the compiler may reorder is as unknown as the costs: low takes the best order, high the kernel's own."""

PARTS = ("memory_floor", "busy_beyond_floor", "in_kernel_wait", "exposed_collective", "idle")
"""Parts of a core's body; the runtime's preamble and postamble are not modelled."""

NOT_MODELLED = (
    "the compiler's order: low lets an engine take any instruction that is ready, mid any of one outermost loop nest, high "
    "runs the kernel as written; the compiler's merging of small operations over iterations and dead loads it drops",
    "spills and reloads of what does not fit SBUF",
    "arbitration: bank conflicts in SBUF and PSUM, engines that share a port, HBM traffic of other cores",
    "clocks that drop for heat or power; of the tensor engine's throttling only the dI/dt limit",
    "the runtime around the kernel: 13 to 15 us before and 1.5 to 2 us after it in the public captures",
)


@dataclass(frozen=True)
class ModelledCore:
    """One physical core, in ns; every figure as low, mid and high of the three schedules."""

    core: int
    parts_ns: dict[str, TimeRange]
    """By PARTS: the smallest, the middle schedule's and the largest."""
    engine_active_ns: dict[str, TimeRange]
    instruction_count: dict[str, int]
    data_ns: TimeRange
    """Time in which DMA packets move tensor data."""
    hbm_read_bytes: int
    hbm_write_bytes: int
    dma_count: int


@dataclass(frozen=True, eq=False)
class KernelModel:
    """A kernel's modelled timeline. Nothing here was measured."""

    program: MachineProgram
    schedules: Mapping[Case, Schedule]
    total_ns: TimeRange
    """The kernel's body, extrapolated iterations included."""
    laid_out_ns: TimeRange
    """What the schedules lay out."""
    cores: tuple[ModelledCore, ...]
    """Of what is laid out."""
    extrapolated: tuple[RepeatedLoop, ...]
    """Loops of which some iterations were laid out; total_ns goes on from these."""
    costs: InstructionCosts
    bandwidth_bytes_per_s: Mapping[Case, int]
    """A core's HBM bandwidth in each schedule, which the floors are computed with."""

    @property
    def unknown(self) -> dict[str, int]:
        """Operations whose cost no source gives, with how often they run."""
        return self.program.unknown

    def profile(self, case: Case = Case.MID) -> Profile:
        """One schedule as a Profile of provenance `modelled`."""
        return profile_of(self.schedules[case], self.bandwidth_bytes_per_s[case], self.total_ns)

    def used_constants(self) -> tuple[Bracket, ...]:
        """The constants behind the schedules: all of hand-offs, DMA and engines, and of the instructions that occur."""
        names = {work.instruction for work in self.program.works}
        of_instructions = [
            bracket for name in sorted(names) for bracket in self.costs.instructions[name].constants.values()
        ]
        engines = {ENGINES[number] for number in set(self.program.engine.tolist()) if number >= 0}
        kept = [
            bracket
            for bracket in self.costs.entries()
            if not bracket.name.startswith("engine.") or bracket.name.split(".")[1] in engines
        ]
        return (*kept, *of_instructions)


def model_recording(recording: Recording) -> KernelModel:
    """The modelled timeline of a recording (trnprof.nki.trace).

    Record with exact=True, or with enough iterations of every loop (least_iterations): what was not recorded cannot be
    laid out, and is extrapolated from the steady state.
    Raises: InputDataError if the programs of a pair do not meet at the same barriers.
    """
    hardware = load_hardware(recording.target)
    sizes = {name: hardware[f"{name}.partition_bytes"].value for name in ("sbuf", "psum")}
    program = lower(
        recording,
        sbuf_bytes_per_partition=int(str(sizes["sbuf"])),
        psum_bytes_per_partition=int(str(sizes["psum"])),
    )
    return model_program(program)


def model_program(program: MachineProgram) -> KernelModel:
    """The same from machine instructions."""
    costs, law = load_instruction_costs(program.generation), load_dma_model(program.generation)
    found = {case: schedule(program, costs, law, case, order=order) for case, order in ORDER_OF_CASE.items()}
    total = {case: whole_body_ps(one) for case, one in found.items()}
    # A list schedule may come out longer with shorter instructions; the range is what the three schedules span.
    in_order = sorted(Case, key=lambda case: (total[case], list(Case).index(case)))
    found = {case: found[other] for case, other in zip(Case, in_order, strict=True)}
    total = {case: total[other] for case, other in zip(Case, in_order, strict=True)}
    path = "dma.pair_engine_bytes_per_ns" if program.core_count > 1 else "dma.engine_bytes_per_ns"
    bandwidth = {case: round(DMA_ENGINE_COUNT * costs[path].at(one.case) * 1e9) for case, one in found.items()}
    accounts = {case: _account(one, bandwidth[case]) for case, one in found.items()}
    return KernelModel(
        program=program,
        schedules=found,
        # Whole nanoseconds as the profile's window has them, so that its parts add up to these.
        total_ns=TimeRange(*(total[case] // 1000 for case in Case)),
        laid_out_ns=TimeRange(*(found[case].end_of_body_ps // 1000 for case in Case)),
        cores=tuple(
            _modelled_core(program, number, {case: accounts[case].cores[number] for case in Case})
            for number in range(program.core_count)
        ),
        extrapolated=program.loops,
        costs=costs,
        bandwidth_bytes_per_s=bandwidth,
    )


def profile_of(one: Schedule, bandwidth_bytes_per_s: int, total_ns: TimeRange | None = None) -> Profile:
    """A schedule as a Profile; its window is the kernel's body."""
    program = one.program
    tables = draw(one)
    hardware = load_hardware(program.generation)
    end = one.end_of_body_ps // 1000
    clocks = {
        name: int(str(quantity.value))
        for name in ("tensor", "vector", "scalar", "gpsimd", "base")
        if (quantity := hardware.get(f"clock_hz.{name}")) is not None
    }
    ranges = {} if total_ns is None else {f"modelled_total_{case}_ns": getattr(total_ns, case) for case in Case}
    metadata = Metadata(
        format="explorer-parquet",
        provenance=Provenance.MODELLED,
        cores=tuple(
            Core(
                core=number,
                subgraph=f"sg{number:02d}",
                window_start_ts=0,
                window_end_ts=end,
                neuroncore_idx=4 + number,  # the pair whose DMA engines are numbered 64 to 95
                neuron_device_idx=0,
            )
            for number in range(program.core_count)
        ),
        hardware=program.generation,
        versions={"profiler": f"trnprof {__version__} (modelled)"},
        # Two cores on a stack: what the model lets each of them stream.
        hbm_bandwidth_bytes_per_s=2 * bandwidth_bytes_per_s,
        clock_hz=clocks,
        dge_notifications=True,
        summary=ranges,
        tensors=tuple(TensorSize(name=one.name, kind=one.kind, size_bytes=one.size_bytes) for one in program.tensors),
    )
    return Profile(
        metadata=metadata,
        instructions=tables.instructions,
        dma_packets=tables.dma_packets,
        semaphores=tables.semaphores,
        collectives=tables.collectives,
        throttle=tables.throttle,
        kernels=tables.kernels,
        sources=tables.sources,
    )


def _account(one: Schedule, bandwidth_bytes_per_s: int) -> Anatomy:
    bandwidth = Bandwidth(bandwidth_bytes_per_s, "the model's own, in this schedule", "derived")
    return measure_anatomy(profile_of(one, bandwidth_bytes_per_s), one.program.generation, bandwidth)


def _modelled_core(program: MachineProgram, number: int, cores: dict[Case, CoreAnatomy]) -> ModelledCore:
    mid = cores[Case.MID]
    parts = {name: _range({case: _part(core, name) for case, core in cores.items()}) for name in PARTS}
    hbm = mid.hbm
    return ModelledCore(
        core=number,
        parts_ns=parts,
        engine_active_ns={
            name: _range({case: core.engines[name].active_ns for case, core in cores.items()}) for name in ENGINES
        },
        instruction_count={name: mid.engines[name].instruction_count for name in ENGINES},
        data_ns=_range({case: core.dma.data_ns if core.dma else 0 for case, core in cores.items()}),
        hbm_read_bytes=hbm.read_bytes if hbm else 0,
        hbm_write_bytes=hbm.write_bytes if hbm else 0,
        dma_count=int(((program.kind == DMA) & (program.core == number)).sum()),
    )


def _part(core: CoreAnatomy, name: str) -> int:
    value = getattr(core.parts, f"{name}_ns")
    # The floor never exceeds the work here (the DMA engines move no faster); a core without traffic has none.
    return 0 if value is None else int(value)


def _range(values: dict[Case, int]) -> TimeRange:
    """Smallest, the middle schedule's, largest."""
    return TimeRange(min(values.values()), values[Case.MID], max(values.values()))

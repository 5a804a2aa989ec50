"""The vendor's bounds: how long a core would take if one kind of overhead, then the next, were gone."""

from __future__ import annotations

from dataclasses import dataclass

from trnprof.analyzers.anatomy import Anatomy, CoreAnatomy, duration_ns
from trnprof.analyzers.roofline import core_peak_flop_per_s, matrix_flops
from trnprof.hardware import Hardware
from trnprof.profile import Metadata, Profile

BOUND_MEANING = {
    "total_time": "the window as measured",
    "memory_bound": "only DMA: its active time, everything else behind it",
    "memory_bound_ideal": "the same bytes at the DMA engines' peak",
    "memory_bound_ideal_no_reloads": "only the needed bytes, each once, at the DMA engines' peak",
    "compute_bound": "only the tensor engine: its active time, everything else behind it",
    "compute_bound_ideal_flops": "the same FLOPs at the tensor engine's bf16 peak",
    "compute_bound_ideal_useful_flops": "only the FLOPs that are no transposes, at the peak",
    "perfect_pipeline": "the slowest of engines and DMA, all others behind it",
}
"""The ladder, in the vendor's order and with its names."""


@dataclass(frozen=True)
class CoreBounds:
    """One physical core's ladder. A bound is a time under an assumption, no promise: engines depend on each other."""

    core: int
    bounds_ns: dict[str, int | None]
    """By the names of BOUND_MEANING; None: the capture lacks what it is computed from."""
    bottleneck: str
    """dma or the engine whose active time is perfect_pipeline."""

    def gaps_ns(self) -> dict[str, int | None]:
        """What the vendor reads from neighbouring bounds; None where one is missing. A negative gap: peak or bytes wrong."""

        def gap(first: str, second: str) -> int | None:
            above, below = self.bounds_ns[first], self.bounds_ns[second]
            return None if above is None or below is None else above - below

        return {
            "dma_idle": gap("total_time", "memory_bound"),
            "dma_inefficiency": gap("memory_bound", "memory_bound_ideal"),
            "excess_traffic": gap("memory_bound_ideal", "memory_bound_ideal_no_reloads"),
            "tensor_idle": gap("total_time", "compute_bound"),
            "tensor_underutilization": gap("compute_bound", "compute_bound_ideal_flops"),
            "transposes": gap("compute_bound_ideal_flops", "compute_bound_ideal_useful_flops"),
            "serialization": gap("total_time", "perfect_pipeline"),
        }


@dataclass(frozen=True)
class Bounds:
    """Every core's ladder and the peaks it was computed with."""

    cores: tuple[CoreBounds, ...]
    dma_peak_bytes_per_s: int
    dma_peak_source: str
    core_peak_flop_per_s: int
    peak_source: str


def measure_bounds(profile: Profile, anatomy: Anatomy, hardware: Hardware) -> Bounds:
    """The ladder of each core.

    Reads:  the anatomy's windows, active times, data bytes and needed traffic; instructions (raw_flops,
            tensor_instruction_type).
    Source: definitions of the vendor's profile-querying skill (performance bounds). It takes one core; where a program
            runs on several, the needed bytes are shared out in proportion to the bytes that each core moved.
    """
    dma_peak, dma_source = _dma_peak(profile.metadata, hardware)
    peak, peak_source = core_peak_flop_per_s(profile.metadata, hardware)
    cores = tuple(_core_bounds(profile, anatomy, account, dma_peak, peak) for account in anatomy.cores)
    return Bounds(cores, dma_peak, dma_source, peak, peak_source)


def _core_bounds(profile: Profile, anatomy: Anatomy, account: CoreAnatomy, dma_peak: int, peak: int) -> CoreBounds:
    active: dict[str, int | None] = {name: engine.active_ns for name, engine in account.engines.items()}
    if profile.instructions is None:
        active = dict.fromkeys(active)
    active["dma"] = None if account.dma is None else account.dma.active_ns
    flops = matrix_flops(profile, account.core)
    needed = None
    if anatomy.needed is not None and account.hbm is not None and anatomy.needed.moved_bytes:
        needed = anatomy.needed.needed_bytes * account.hbm.total_bytes() // anatomy.needed.moved_bytes
    known = {name: value for name, value in active.items() if value is not None}
    bottleneck = max(known, key=lambda name: (known[name], name)) if known else "none"
    useful = None if flops is None else flops.useful_flops
    bounds: dict[str, int | None] = {
        "total_time": account.window_ns,
        "memory_bound": active["dma"],
        "memory_bound_ideal": None if account.dma is None else duration_ns(account.dma.data_bytes, dma_peak),
        "memory_bound_ideal_no_reloads": None if needed is None else duration_ns(needed, dma_peak),
        "compute_bound": active["tensor"],
        "compute_bound_ideal_flops": None if flops is None else duration_ns(flops.hardware_flops, peak),
        "compute_bound_ideal_useful_flops": None if useful is None else duration_ns(useful, peak),
        "perfect_pipeline": known.get(bottleneck),
    }
    return CoreBounds(account.core, bounds, bottleneck)


def _dma_peak(metadata: Metadata, hardware: Hardware) -> tuple[int, str]:
    """The vendor's denominator: the capture's dma_ddr_bandwidth, else the table's link rate of one core's DMA engines."""
    if metadata.dma_bandwidth_bytes_per_s:
        return metadata.dma_bandwidth_bytes_per_s, "the capture's metadata"
    nominal = hardware.get("dma.core_nominal_bytes_per_s")
    if nominal is None:
        engines, rate = hardware["dma.engine_count_per_core"], hardware["dma.engine_nominal_bytes_per_s"]
        assert isinstance(engines.value, int) and isinstance(rate.value, int)
        return engines.value * rate.value, f"{engines.value} DMA engines at the {hardware.name} table's link rate"
    assert isinstance(nominal.value, int)
    return nominal.value, f"the {hardware.name} table ({hardware.sources.get(nominal.source, nominal.source)})"

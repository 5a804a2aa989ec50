"""Roofline: matrix work against HBM traffic, with AWS's utilisation metrics under their names and definitions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trnprof.analyzers.account_sets import InstructionRows
from trnprof.analyzers.anatomy import Anatomy
from trnprof.hardware import Bandwidth, Hardware
from trnprof.profile import Metadata, Profile, codes_of, int64_of


@dataclass(frozen=True)
class MatrixFlops:
    """FLOPs of one core's matmul instructions as the capture counts them: a multiply-add is two."""

    hardware_flops: int
    """All of them."""
    transpose_flops: int | None
    """Of these, matmuls that only transpose; None: the capture does not mark them (an NTFF without its NEFF)."""

    @property
    def useful_flops(self) -> int | None:
        """What is no transpose; None: not known."""
        return None if self.transpose_flops is None else self.hardware_flops - self.transpose_flops

    @property
    def most_useful_flops(self) -> int:
        """The useful FLOPs, or where transposes are not marked all of them: an upper bound then."""
        return self.hardware_flops - (self.transpose_flops or 0)


@dataclass(frozen=True)
class CoreRoofline:
    """One physical core under its two ceilings. What a capture does not tell is None, never 0."""

    core: int
    flops: MatrixFlops | None
    """None: the capture has no flops."""
    hbm_bytes: int | None
    arithmetic_intensity: float | None
    """Useful FLOPs a HBM byte; with transposes where these are not marked."""
    achieved_flop_per_s: float | None
    """The same FLOPs ÷ the window."""
    attainable_flop_per_s: float | None
    """The lower of the two ceilings at this intensity."""
    bound: str | None
    """"memory" or "compute": the lower ceiling."""
    impossible: str | None
    """Why the numbers cannot be right; None: they can."""


@dataclass(frozen=True)
class Roofline:
    """A capture's cores, and AWS's metrics of the whole logical core."""

    cores: tuple[CoreRoofline, ...]
    core_peak_flop_per_s: int
    """bf16, of one core: rows x columns x 2 x the clock."""
    peak_source: str
    bandwidth: Bandwidth
    """Of one core: the memory ceiling."""
    metrics: dict[str, float | None]
    """AWS's names, definitions and units (shares, not percent). None: not captured."""


def measure_roofline(profile: Profile, anatomy: Anatomy, hardware: Hardware) -> Roofline:
    """Where each core stands under the matrix engine's peak and the HBM bandwidth used.

    Reads:  profile.instructions (raw_flops, tensor_instruction_type), the anatomy's HBM bytes and windows, metadata.
    Source: metric definitions of Neuron Explorer's schema 7.4.0 (Summary). FLOPs are not scaled to bf16: fp32 matmuls
            count as they are, as the vendor's own mfu_inst and hfu do.
    """
    peak, peak_source = core_peak_flop_per_s(profile.metadata, hardware)
    limit = largest_peak_flop_per_s(hardware)
    cores = []
    for account in anatomy.cores:
        flops = matrix_flops(profile, account.core)
        moved = None if account.hbm is None else account.hbm.total_bytes()
        intensity = achieved = attainable = bound = impossible = None
        seconds = account.window_ns / 1e9
        if flops is not None:
            achieved = flops.most_useful_flops / seconds
            impossible = reject_measurement(
                account.window_ns, hardware, flop_count=flops.hardware_flops, peak_flop_per_s=limit
            )
        if flops is not None and moved:
            intensity = flops.most_useful_flops / moved
            memory_ceiling = intensity * anatomy.bandwidth.bytes_per_s
            attainable = min(float(peak), memory_ceiling)
            bound = "memory" if memory_ceiling < peak else "compute"
        cores.append(CoreRoofline(account.core, flops, moved, intensity, achieved, attainable, bound, impossible))
    return Roofline(
        tuple(cores), peak, peak_source, anatomy.bandwidth, _metrics(profile, anatomy, hardware, tuple(cores), peak)
    )


def matrix_flops(profile: Profile, core: int) -> MatrixFlops | None:
    """FLOPs of one core's matmuls; None where the capture has no flops."""
    table = profile.core_rows("instructions", core)
    if table is None or "raw_flops" not in table.column_names:
        return None
    flops = int64_of(table["raw_flops"])
    if table["raw_flops"].null_count == len(table) and bool(InstructionRows(table, (0, 0)).of("tensor").any()):
        return None  # matmuls ran, and none has flops
    if "tensor_instruction_type" not in table.column_names:
        return MatrixFlops(int(flops.sum()), None if flops.any() else 0)
    codes, names = codes_of(table["tensor_instruction_type"])
    transposes = np.isin(codes, [code for code, name in enumerate(names) if name.upper() == "TRANSPOSE"])
    return MatrixFlops(int(flops.sum()), int(flops[transposes].sum()))


def core_peak_flop_per_s(metadata: Metadata, hardware: Hardware) -> tuple[int, str]:
    """(bf16 peak of one core's matrix engine, where it comes from): the capture's clock if it has one."""
    rows, columns = hardware["tensor_engine.rows"].value, hardware["tensor_engine.cols"].value
    clock, source = metadata.clock_hz.get("tensor"), "the capture's clock"
    if not clock:
        clock, source = hardware["clock_hz.tensor"].value, f"the {hardware.name} table's clock"  # type: ignore[assignment]
    assert isinstance(rows, int) and isinstance(columns, int) and isinstance(clock, int)
    return rows * columns * 2 * clock, f"{rows} x {columns} x 2 x {clock / 1e9:g} GHz ({source})"


def largest_peak_flop_per_s(hardware: Hardware) -> int:
    """The highest peak of one core that the table has, of any data type: nothing real is above it."""
    peaks = [
        entry.value
        for path, entry in hardware.quantities.items()
        if path.startswith("tensor_engine.peak_core_flop_per_s.") and isinstance(entry.value, int)
    ]
    return max(peaks)


def reject_measurement(
    duration_ns: int,
    hardware: Hardware,
    *,
    flop_count: int | None = None,
    byte_count: int | None = None,
    core_count: int = 1,
    peak_flop_per_s: int | None = None,
) -> str | None:
    """Why a measured time cannot be right for the work it is said to have done; None if it can.

    duration_ns: of the work on `core_count` physical cores; peak_flop_per_s: of one core, any data type if not given.
    """
    if duration_ns <= 0:
        return "no duration: unsynchronised timing"
    if flop_count is not None:
        peak = (peak_flop_per_s or largest_peak_flop_per_s(hardware)) * core_count
        rate = flop_count * 1e9 / duration_ns
        if rate > peak:
            return (
                f"above device peak: unsynchronised timing ({rate / 1e12:,.1f} TFLOP/s of at most "
                f"{peak / 1e12:,.1f} on {core_count} cores)"
            )
    if byte_count is not None:
        # The DMA engines' link rate bounds every stream of a core; the HBM stack's share may be less.
        nominal = hardware.get("dma.core_nominal_bytes_per_s") or hardware["dma.core_effective_bytes_per_s"]
        assert isinstance(nominal.value, int)
        ceiling = nominal.value * core_count
        rate = byte_count * 1e9 / duration_ns
        if rate > ceiling:
            return (
                f"above hardware ceiling ({rate / 1e9:,.0f} GB/s of at most {ceiling / 1e9:,.0f} on {core_count} cores)"
            )
    return None


def _metrics(
    profile: Profile, anatomy: Anatomy, hardware: Hardware, cores: tuple[CoreRoofline, ...], core_peak: int
) -> dict[str, float | None]:
    """AWS's metrics over the cores of the logical core, whose peaks add up and whose HBM stack is one."""
    seconds = max(account.window_ns for account in anatomy.cores) / 1e9
    peak = core_peak * len(cores)
    stack = profile.metadata.hbm_bandwidth_bytes_per_s or _stack_bytes_per_s(hardware)
    known = [core.flops for core in cores if core.flops is not None]
    hardware_flops = sum(flops.hardware_flops for flops in known) if known else None
    marked = [flops.useful_flops for flops in known if flops.useful_flops is not None]
    useful = sum(marked) if known and len(marked) == len(known) else None
    measured = [account.hbm for account in anatomy.cores if account.hbm is not None]
    moved = sum(hbm.total_bytes() for hbm in measured) if len(measured) == len(anatomy.cores) else None
    model_flops = profile.metadata.summary.get("model_flops")
    model = int(model_flops) if isinstance(model_flops, int | float) and model_flops > 0 else None
    listed = sum(tensor.size_bytes for tensor in profile.metadata.tensors if tensor.kind != "output")
    read_once = profile.metadata.summary.get("inputs_and_weights_size_bytes", listed or None)
    ratio = core_peak / stack if stack else None

    def share(flops: int | None) -> float | None:
        return None if flops is None else flops / (peak * seconds)

    def achievable(flops: int | None) -> float | None:
        # The vendor caps it at 1: traffic does not limit the engine then.
        return None if flops is None or not moved or not stack else min(1.0, flops / moved / (peak / stack))

    return {
        "mm_arithmetic_intensity": None if useful is None or not moved else useful / moved,
        "peak_flops_bandwidth_ratio": ratio,
        "mfu_estimated_percent": share(model if model is not None else useful),
        "mfu_max_achievable_estimated_percent": achievable(model if model is not None else useful),
        "mfu_hlo_estimated_percent": share(model),
        "mfu_hlo_max_achievable_estimated_percent": achievable(model),
        "mfu_inst_estimated_percent": share(useful),
        "mfu_inst_max_achievable_estimated_percent": achievable(useful),
        "hfu_estimated_percent": share(hardware_flops),
        "mbu_estimated_percent": None if moved is None or not stack else moved / seconds / stack,
        "mbu_min_read_util_percent": None
        if not isinstance(read_once, int) or not stack
        else read_once / seconds / stack,
    }


def _stack_bytes_per_s(hardware: Hardware) -> int | None:
    chip, stacks = hardware.get("hbm.chip_bytes_per_s"), hardware.get("hbm.stack_count")
    if chip is None or stacks is None or not isinstance(chip.value, int) or not isinstance(stacks.value, int):
        return None
    return chip.value // stacks.value

"""Predicted DMA time and bytes beside what was published as measured, on kernels of our own that move data alike.

Sources: attention, allenkchau/trainium-kernel-fusion (DMA-active time of trn2 profiles, 7 to 8 us of it instruction fetch
in each); matmuls and mixed modes, AWS's profile-querying skill in uw-syfi/vibesys; single loads, the vendor's DMA overview;
silu, rope and adamw, bytes only, Jerry2423/kda-for-trainium (its times exceed the engines' peak: another time base).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.nki.running import settings_for
from trnprof.analyzers.predicted_dma import Traffic
from trnprof.nki.guard import KernelRun, predict_guarded
from trnprof.nki.inputs import parse_inputs

KERNELS = Path(__file__).parents[2] / "examples" / "kernels"


@dataclass(frozen=True)
class Case:
    """One published measurement."""

    name: str
    file: str
    kernel: str
    inputs: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    measured_ns: int | None = None
    measured_read_bytes: int | None = None
    measured_write_bytes: int | None = None
    tolerance_bytes: int = 0
    """Published in whole MB: 500,000."""


def _attention(kind: str, dtype: str, size: int, active_us: float, read: int, written: int) -> Case:
    shape = f"128x{size}:{'float32' if dtype == 'fp32' else 'bfloat16'}"
    return Case(
        f"attention {kind} {dtype} {size}",
        "attention_phases.py",
        f"{kind}_attention",
        tuple(f"{name}={shape}" for name in "qkv"),
        measured_ns=round(active_us * 1000),
        measured_read_bytes=read,
        measured_write_bytes=written,
    )


_SQUARE = ("lhs_t=4096x4096:bfloat16", "rhs=4096x4096:bfloat16")
_MB = 500_000

CASES = (
    _attention("unfused", "fp32", 512, 25.3, 2_949_120, 2_359_296),
    _attention("unfused", "fp32", 1024, 65.9, 10_027_008, 8_912_896),
    _attention("unfused", "bf16", 512, 24.2, 2_588_672, 2_228_224),
    _attention("unfused", "bf16", 1024, 62.5, 9_273_344, 8_650_752),
    _attention("fused", "fp32", 512, 11.7, 851_968, 262_144),
    _attention("fused", "fp32", 1024, 15.0, 1_638_400, 524_288),
    _attention("fused", "bf16", 512, 11.0, 491_520, 131_072),
    _attention("fused", "bf16", 1024, 12.0, 884_736, 262_144),
    # V0's bytes: the compiler dropped about 63 % of the lhs_t loads, so that only the time is comparable as written.
    Case("matmul V0 tiled", "matmul_tilings.py", "tiled", _SQUARE, measured_ns=7_906_000),
    Case("matmul V1 blocked", "matmul_tilings.py", "blocked", _SQUARE, (), 1_325_000, 201_326_592 - 33_554_432, 33_554_432),
    Case("matmul V2 row loads", "matmul_tilings.py", "row_loads", _SQUARE, (), 819_000, 201_326_592 - 33_554_432, 33_554_432),
    Case("mixed DGE modes, 1 KiB", "dma_streams.py", "mixed_modes", ("a=128x8192:bfloat16",), ("width=512",), 16_000),
    Case("mixed DGE modes, 4 KiB", "dma_streams.py", "mixed_modes", ("a=128x32768:bfloat16",), ("width=2048",), 47_000),
    Case("load [4,4096] bf16", "dma_streams.py", "load", ("a=4x4096:bfloat16",), (), 1_416, 32_768),
    Case("load [128,128] bf16", "dma_streams.py", "load", ("a=128x128:bfloat16",), (), 97, 32_768),
    Case("silu fp32", "dma_streams.py", "combine", ("a=4096x7168:float32",), (), None, 117_000_000, 117_000_000, _MB),
    Case("rope fp32", "dma_streams.py", "combine", ("a=8192x4096:float32", "b=8192x4096:float32"), (), None, 268_400_000, 134_200_000, _MB),
    Case(
        "adamw fp32",
        "dma_streams.py",
        "combine",
        tuple(f"{name}=10944x2048:float32" for name in "abcd"),
        (),
        None,
        359_000_000,
        90_000_000,
        _MB,
    ),
)  # fmt: skip


def predict_case(case: Case) -> Traffic:
    """The prediction of one case's kernel."""
    run = KernelRun(
        kernel_file=KERNELS / case.file,
        kernel=case.kernel,
        inputs=parse_inputs(inputs=case.inputs, arguments=case.arguments),
        settings=settings_for(),
    )
    total = predict_guarded(run).prediction.predicted.total
    assert total is not None
    return total


def within(case: Case, total: Traffic) -> bool | None:
    """Does the measured time lie in the predicted range? None: no time was published."""
    if case.measured_ns is None:
        return None
    return total.time_ns.low <= case.measured_ns <= total.time_ns.high


def bytes_agree(case: Case, total: Traffic) -> bool | None:
    """Do bytes agree as exactly as they were published? None: none were."""
    pairs = (
        (case.measured_read_bytes, total.hbm_read_bytes),
        (case.measured_write_bytes, total.hbm_write_bytes),
    )
    known = [(measured, predicted) for measured, predicted in pairs if measured is not None]
    if not known:
        return None
    return all(abs(measured - predicted) <= case.tolerance_bytes for measured, predicted in known)


def run() -> str:
    """The table: measured, low, mid, high in us, and bytes."""
    lines = [f"{'case':<26}{'measured':>10}{'low':>10}{'mid':>10}{'high':>10}  {'time':<8}{'bytes':<6} mid off by"]
    for case in CASES:
        total = predict_case(case)
        time = total.time_ns
        cells = [f"{value / 1000:10,.2f}" for value in (time.low, time.mid, time.high)]
        measured = "-" if case.measured_ns is None else f"{case.measured_ns / 1000:,.2f}"
        off = "" if case.measured_ns is None else f"{100 * (time.mid - case.measured_ns) / case.measured_ns:+.0f} %"
        fits = {None: "-", True: "inside", False: "OUTSIDE"}[within(case, total)]
        exact = {None: "-", True: "agree", False: "DIFFER"}[bytes_agree(case, total)]
        lines.append(f"{case.name:<26}{measured:>10}{''.join(cells)}  {fits:<8}{exact:<6} {off}")
    return "\n".join(lines)

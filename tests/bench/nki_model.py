"""Modelled kernels beside what was measured: low, mid, high, the parts, and whether variants rank right.

Sources: attention, eight trn2.3xlarge captures of allenkchau/trainium-kernel-fusion@d709ddf, read with trnprof (times of
the kernel's body, without the runtime around it); the expert layer, six variants of KevGomes1403/nki-moe-megakernel@90c3c94
(trn2.3xlarge); matmuls, tile rates and mixed DGE modes, AWS's profile-querying skill in uw-syfi/vibesys@a22af55e; single
loads, the vendor's DMA overview; the two loop orders of a state-space layer of 4,096 channels, the vendor's tutorial, which
does not name its chip and links to the first generation's guide. The kernels are our own (examples/kernels), which move and compute the same; with
TRNPROF_PUBLIC set the captures' own sources are modelled too.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from tests.nki.timing.kernels import EXAMPLES, record
from trnprof.analyzers.predicted_dma import TimeRange
from trnprof.hardware.instruction_costs import Case
from trnprof.nki.timing.model import KernelModel, model_recording
from trnprof.nki.timing.schedule import Schedule

_WIDTH = 30

DIFFERENT = 1.10
"""Measured variants whose times are further apart than this must rank right."""


@dataclass(frozen=True)
class Measured:
    """One published measurement and the kernel that stands for it."""

    name: str
    file: str
    kernel: str
    tensors: dict[str, tuple[tuple[int, ...], str]]
    measured_ns: int
    what: str = "body"
    """body, or the part that was measured: tensor, data, or engine (the work of the busiest DMA engine)."""
    parts_ns: dict[str, int] = field(default_factory=dict)
    """Of the body, as measured: tensor, vector, scalar, data, still (waits and idle)."""
    arguments: dict[str, object] = field(default_factory=dict)
    family: str = ""
    """Variants of one family are ranked."""


def _attention(kind: str, dtype: str, size: int, body_ns: int, **parts_ns: int) -> Measured:
    element = "float32" if dtype == "fp32" else "bfloat16"
    name = "unfused" if kind == "baseline" else kind
    return Measured(
        f"{kind} {dtype} s{size}",
        "attention_phases.py",
        f"{name}_attention",
        dict.fromkeys("qkv", ((128, size), element)),
        body_ns,
        parts_ns=parts_ns,
        family="attention",
    )


ATTENTION = (
    _attention("baseline", "fp32", 512, 43_483, tensor=14_805, vector=8_970, scalar=10_305, data=18_724, still=3_661),
    _attention(
        "baseline", "fp32", 1024, 101_261, tensor=43_297, vector=33_791, scalar=34_266, data=57_565, still=2_648
    ),
    _attention("baseline", "bf16", 512, 39_162, tensor=10_044, vector=8_980, scalar=10_449, data=17_592, still=3_732),
    _attention("baseline", "bf16", 1024, 87_821, tensor=32_102, vector=33_610, scalar=34_597, data=54_543, still=2_885),
    _attention("fused", "fp32", 512, 23_196, tensor=13_175, vector=7_763, scalar=5_776, data=4_677, still=2_664),
    _attention("fused", "fp32", 1024, 58_237, tensor=42_135, vector=28_973, scalar=19_418, data=6_701, still=2_696),
    _attention("fused", "bf16", 512, 21_039, tensor=10_964, vector=7_491, scalar=6_092, data=3_788, still=2_485),
    _attention("fused", "bf16", 1024, 51_336, tensor=31_807, vector=29_167, scalar=19_479, data=5_425, still=2_645),
)

_SQUARE = dict.fromkeys(("lhs_t", "rhs"), ((4096, 4096), "bfloat16"))
_TILES = {"left": ((128, 128), "bfloat16"), "right": ((128, 512), "bfloat16")}

_EXPERTS = {
    "hidden": ((1, 2048), "bfloat16"),
    "gate_up": ((128, 2048, 512), "bfloat16"),
    "down": ((128, 256, 2048), "bfloat16"),
    "chosen": ((1, 8), "int32"),
    "shares": ((1, 8), "float32"),
}


def _experts(variant: str, total_us: float, gate_up: int, down: int, product: int, tensor_us: float) -> Measured:
    """The runtime around the kernel takes 13.1 us in the capture of v6b."""
    return Measured(
        f"experts {gate_up}/{down}/{product} ({variant})",
        "sparse_experts.py",
        "experts",
        _EXPERTS,
        round((total_us - 13.1) * 1000),
        parts_ns={"tensor": round(tensor_us * 1000)},
        arguments={"gate_up_columns": gate_up, "down_columns": down, "product_columns": product},
        family="experts",
    )


EXPERTS = (
    _experts("v5", 1000, 128, 128, 128, 167.59),
    _experts("v5b", 751.88, 128, 512, 512, 137.14),
    _experts("v5a", 530.66, 512, 128, 128, 103.36),
    _experts("v6a", 278.65, 512, 512, 512, 76.59),
    _experts("v6b", 274.76, 512, 2048, 128, 69.64),
    _experts("v7a", 220.81, 512, 2048, 512, 65.36),
)

_STATES = {
    "step": ((4096, 512), "float32"),
    "x": ((4096, 512), "float32"),
    "decay": ((4096, 16), "float32"),
    "b": ((16, 512), "float32"),
    "c": ((16, 512), "float32"),
}


def _states(target: str) -> tuple[Measured, Measured]:
    """VectorE was active 92.16 % and 99.63 % of the time."""
    family = f"states {target}"
    return (
        Measured(f"{family}, channels inside", "state_space.py", "channels_inside", _STATES, 2_340_000, parts_ns={"vector": 2_156_544}, arguments={"target": target}, family=family),
        Measured(f"{family}, states inside", "state_space.py", "states_inside", _STATES, 1_610_000, parts_ns={"vector": 1_604_043}, arguments={"target": target}, family=family),
    )  # fmt: skip


PUBLISHED = (
    *EXPERTS,
    *_states("trn1"),
    *_states("trn2"),
    Measured("matmul V0 tiled", "matmul_tilings.py", "tiled", _SQUARE, 8_602_000, parts_ns={"tensor": 4_806_000, "data": 7_906_000}, family="matmul"),
    Measured("matmul V1 blocked", "matmul_tilings.py", "blocked", _SQUARE, 2_451_000, parts_ns={"tensor": 2_163_000, "data": 1_325_000}, family="matmul"),
    Measured("matmul V2 row loads", "matmul_tilings.py", "row_loads", _SQUARE, 1_801_000, parts_ns={"tensor": 1_781_000, "data": 819_000}, family="matmul"),
    # 2,048 products of 2 x 128 x 128 x 512 at 77.2 TFLOPS.
    Measured("2048 full tiles", "matmul_rates.py", "full_tiles", _TILES, 445_074, "tensor"),
    Measured("512 each of four tile sizes", "matmul_rates.py", "mixed_tiles", _TILES, 453_000, "tensor"),
    Measured("mixed DGE modes, 1 KiB", "dma_streams.py", "mixed_modes", {"a": ((128, 8192), "bfloat16")}, 16_000, "data", arguments={"width": 512}, family="stream"),
    Measured("mixed DGE modes, 4 KiB", "dma_streams.py", "mixed_modes", {"a": ((128, 32768), "bfloat16")}, 47_000, "data", arguments={"width": 2048}, family="stream"),
    Measured("load [4,4096] bf16", "dma_streams.py", "load", {"a": ((4, 4096), "bfloat16")}, 1_416, "engine", family="load"),
    Measured("load [128,128] bf16", "dma_streams.py", "load", {"a": ((128, 128), "bfloat16")}, 97, "engine", family="load"),
)  # fmt: skip

CASES = (*ATTENTION, *PUBLISHED)


def model_case(case: Measured, *, source: str | None = None, kernel: str | None = None) -> KernelModel:
    """The model of one case's kernel, or of another source with the same inputs."""
    tensors = case.tensors if kernel is None else {f"{name}_ref": spec for name, spec in case.tensors.items()}
    with tempfile.TemporaryDirectory() as folder:
        recording = record(
            source or (EXAMPLES / case.file).read_text(),
            Path(folder),
            tensors,
            kernel=kernel or case.kernel,
            **case.arguments,  # type: ignore[arg-type]
        )
    return model_recording(recording)


def part_of(found: KernelModel, what: str) -> TimeRange:
    """The modelled counterpart of a measured part."""
    core = found.cores[0]
    if what == "body":
        return found.total_ns
    if what == "data":
        return core.data_ns
    if what == "engine":
        return TimeRange(*(_busiest_engine_ns(found.schedules[case]) for case in Case))
    if what == "still":
        wait, idle = core.parts_ns["in_kernel_wait"], core.parts_ns["idle"]
        return TimeRange(wait.low + idle.low, wait.mid + idle.mid, wait.high + idle.high)
    return core.engine_active_ns[what]


def _busiest_engine_ns(one: Schedule) -> int:
    """Work of the busiest DMA engine. The overview states the time of one engine's descriptors, without its start."""
    return round(int(one.queues[0].work_ps.sum(axis=0).max()) / 1000)


def off(measured: int, modelled: int) -> float:
    """By how much the model misses, in percent of what was measured."""
    return 100 * (modelled - measured) / measured


def ranked_pairs(times: dict[str, tuple[Measured, TimeRange]]) -> list[tuple[str, str, bool]]:
    """(slower, faster, right?) of every two variants of a family whose measured times differ."""
    found = []
    for (left, one), (right, other) in itertools.combinations(times.values(), 2):
        if not left.family or left.family != right.family or left.what != right.what:
            continue
        slow, fast = (
            ((left, one), (right, other)) if left.measured_ns > right.measured_ns else ((right, other), (left, one))
        )
        if slow[0].measured_ns > DIFFERENT * fast[0].measured_ns:
            found.append((slow[0].name, fast[0].name, slow[1].mid > fast[1].mid))
    return found


def run() -> str:
    """The tables."""
    models = {case.name: model_case(case) for case in CASES}
    lines = [
        f"{'case':<{_WIDTH}}{'what':<8}{'measured':>11}{'low':>11}{'mid':>11}{'high':>11}  {'range':<8} mid off by"
    ]
    times: dict[str, tuple[Measured, TimeRange]] = {}
    for case in CASES:
        time = part_of(models[case.name], case.what)
        times[case.name] = (case, time)
        lines.append(_row(case.name, case.what, case.measured_ns, time))
    lines += ["", "parts (mid against measured):"]
    for case in CASES:
        for name, measured in case.parts_ns.items():
            lines.append(_row(case.name, name, measured, part_of(models[case.name], name)))
    pairs = ranked_pairs(times)
    right = sum(is_right for _, _, is_right in pairs)
    lines += ["", f"rank order: {right} of {len(pairs)} pairs of variants more than 10 % apart are right"]
    lines += [f"  wrong: {slow} was slower than {fast}" for slow, fast, is_right in pairs if not is_right]
    attention = [off(case.measured_ns, times[case.name][1].mid) for case in ATTENTION]
    lines.append(
        f"attention: mid off by {min(attention):+.0f} to {max(attention):+.0f} %, "
        f"{sum(abs(value) for value in attention) / len(attention):.0f} % on average"
    )
    public = os.environ.get("TRNPROF_PUBLIC")
    if public:
        lines += ["", "the captures' own sources:"]
        for case in ATTENTION:
            kind = case.name.split()[0]
            path = Path(public) / "trainium-kernel-fusion" / "kernels" / kind / "attention.py"
            if path.is_file():
                found = model_case(case, source=path.read_text(), kernel=f"{kind}_attention")
                lines.append(_row(case.name, "body", case.measured_ns, found.total_ns))
    return "\n".join(lines)


def _row(name: str, what: str, measured: int, time: TimeRange) -> str:
    cells = "".join(f"{value / 1000:11,.2f}" for value in (time.low, time.mid, time.high))
    fits = "inside" if time.low <= measured <= time.high else "OUTSIDE"
    return f"{name:<{_WIDTH}}{what:<8}{measured / 1000:11,.2f}{cells}  {fits:<8} {off(measured, time.mid):+.0f} %"

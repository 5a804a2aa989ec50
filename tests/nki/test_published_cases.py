"""Published measurements, on kernels of our own that move data alike: bytes agree, times lie in the range."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.dma_predict import CASES, KERNELS, Case, bytes_agree, predict_case, within
from tests.nki.running import settings_for
from trnprof.analyzers.anatomy import measure_anatomy
from trnprof.analyzers.prediction_error import compare_prediction
from trnprof.hardware import bandwidth_for, load_hardware
from trnprof.nki.guard import GuardedResult, KernelRun, predict_guarded
from trnprof.nki.inputs import parse_inputs
from trnprof.readers import read_profile

SHAPE = {"fp32": "float32", "bf16": "bfloat16"}
CAPTURES = ("baseline_bf16_s1024", "baseline_fp32_s1024", "baseline_fp32_s512", "fused_bf16_s512", "fused_fp32_s1024", "fused_fp32_s512")  # fmt: skip


def example(file: str, kernel: str, *inputs: str) -> GuardedResult:
    run = KernelRun(
        kernel_file=KERNELS / file, kernel=kernel, inputs=parse_inputs(inputs=inputs), settings=settings_for()
    )
    return predict_guarded(run)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_bytes_agree_and_times_lie_in_the_range(case: Case) -> None:
    total = predict_case(case)
    assert bytes_agree(case, total) is not False, total
    assert within(case, total) is not False, (case.measured_ns, total.time_ns)


def test_v0_loads_and_stores_by_line() -> None:
    # AWS's example: rhs 1,073,741,824 B (32 times), out 33,554,432 B as tiles; of lhs_t's loads the compiler drops 63 %.
    result = example("matmul_tilings.py", "tiled", "lhs_t=4096x4096:bfloat16", "rhs=4096x4096:bfloat16")
    lines = {line.tensors[0]: line for line in result.prediction.predicted.lines}
    assert (lines["rhs"].bytes, lines["rhs"].reload_factor) == (1_073_741_824, 32.0)
    assert (lines["lhs_t"].bytes, lines["lhs_t"].reload_factor) == (268_435_456, 8.0)
    assert lines["out"].bytes == 33_554_432


@pytest.mark.parametrize("name", CAPTURES)
def test_attention_captures(captures: Path, name: str) -> None:
    kind, dtype, size = name.split("_")
    kernel = f"{'unfused' if kind == 'baseline' else 'fused'}_attention"
    shape = f"128x{size[1:]}:{SHAPE[dtype]}"
    predicted = example("attention_phases.py", kernel, *(f"{tensor}={shape}" for tensor in "qkv")).prediction.predicted
    profile = read_profile(captures / name / "step.ntff")
    hardware = load_hardware("trn2")
    anatomy = measure_anatomy(profile, "trn2", bandwidth_for(profile.metadata, hardware))
    error = compare_prediction(predicted, profile, anatomy)
    for count in error.counts[:2]:
        assert count.predicted == count.measured, count
    assert error.times[0].within, error.times[0]
    for entry in error.packets:
        if name.startswith("baseline") and name.endswith("1024") and (entry.mode, entry.bytes) == ("swdge", 4):
            # Here the compiler joined four 512-B output tiles to a DMA where eight would fit: 16 packets more.
            assert (entry.predicted, entry.measured) == (64, 80)
            continue
        assert entry.predicted == entry.measured, entry

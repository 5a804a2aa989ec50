"""The authors' own attention kernels against their captures: bytes and packets to the byte, time within the range.

Needs a checkout of allenkchau/trainium-kernel-fusion in the folder that TRNPROF_PUBLIC names; nothing of it is kept here.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nki.running import settings_for
from trnprof.analyzers.anatomy import measure_anatomy
from trnprof.analyzers.prediction_error import PredictionError, compare_prediction
from trnprof.hardware import bandwidth_for, load_hardware
from trnprof.nki.guard import KernelRun, predict_guarded
from trnprof.nki.inputs import parse_inputs
from trnprof.readers import read_profile

CASES = [(kind, dtype, size) for kind in ("baseline", "fused") for dtype in ("fp32", "bf16") for size in (512, 1024)]


def comparison(checkout: Path, kind: str, dtype: str, size: int) -> PredictionError:
    shape = f"128x{size}:{'float32' if dtype == 'fp32' else 'bfloat16'}"
    run = KernelRun(
        kernel_file=checkout / "kernels" / kind / "attention.py",
        kernel=f"{kind}_attention",
        inputs=parse_inputs(inputs=[f"{name}={shape}" for name in ("q_ref", "k_ref", "v_ref")]),
        settings=settings_for(),
    )
    capture = checkout / "profiling" / "artifacts" / f"{kind}_{dtype}_s{size}" / f"{kind}_exec_2.ntff"
    profile = read_profile(capture)
    hardware = load_hardware("trn2")
    anatomy = measure_anatomy(profile, "trn2", bandwidth_for(profile.metadata, hardware))
    return compare_prediction(predict_guarded(run).prediction.predicted, profile, anatomy)


@pytest.mark.parametrize(("kind", "dtype", "size"), CASES)
def test_a_prediction_is_what_the_device_did(public_captures: Path, kind: str, dtype: str, size: int) -> None:
    checkout = public_captures / "trainium-kernel-fusion"
    if not checkout.is_dir():
        pytest.skip("TRNPROF_PUBLIC has no trainium-kernel-fusion")
    error = comparison(checkout, kind, dtype, size)
    for count in error.counts[:2]:
        assert count.predicted == count.measured, count
    assert error.times[0].within, error.times[0]
    for entry in error.packets:
        if entry.bytes == 4 and entry.mode == "swdge" and (kind, size) == ("baseline", 1024):
            # Two captures join four 512-B output tiles to a DMA where eight would fit: 16 semaphore packets more.
            assert (entry.predicted, entry.measured) == (64, 80)
            continue
        assert entry.predicted == entry.measured, entry

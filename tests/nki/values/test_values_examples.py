"""Example kernels against the references beside them, on inputs that they can take."""

from __future__ import annotations

import runpy

import numpy as np
import pytest

from tests.nki.timing.kernels import EXAMPLES
from trnprof.nki.modules import install_nki_modules
from trnprof.nki.values.run import compute


@pytest.mark.parametrize("kernel", ["channels_inside", "states_inside"])
def test_both_loop_orders_of_a_state_space_layer(kernel: str) -> None:
    """decay < 0 < step, as in a trained layer: the state fades."""
    generator = np.random.default_rng(3)
    step, x = (generator.random((256, 64)).astype(np.float32) for _ in range(2))
    decay = -generator.random((256, 4)).astype(np.float32)
    b, c = (generator.standard_normal((4, 64)).astype(np.float32) for _ in range(2))
    with install_nki_modules():
        space = runpy.run_path(str(EXAMPLES / "state_space.py"))
        run = compute(space[kernel], [step, x, decay, b, c])
    expected = runpy.run_path(str(EXAMPLES / "references.py"))["state_space"](step, x, decay, b, c)
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(run.outputs[0][0].array, expected, rtol=2e-5, atol=2e-5)

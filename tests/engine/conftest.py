"""The engine's tests need its extra; without torch the files that need it are skipped, and say so."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]
else:
    # Two cores are shared with other tests; one thread is also what makes sums independent of the machine's load.
    torch.set_num_threads(1)

os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Keeps a test that changed the thread count from slowing the others."""
    if torch is not None:
        torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _denormals_of_one_test() -> Iterator[None]:
    """The engine flushes denormals in its thread; tests of other parts run in the same process and count on them."""
    if torch is not None:
        torch.set_flush_denormal(True)
    yield
    if torch is not None:
        torch.set_flush_denormal(False)

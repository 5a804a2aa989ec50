"""Fixtures that every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Machines are noisy: an example's time decides nothing. In CI the same examples run every time, so that a change is
# judged by what it changes; elsewhere they are new ones at each run.
settings.register_profile(
    "trnprof", deadline=None, derandomize=bool(os.environ.get("CI")), suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("trnprof")


@pytest.fixture(scope="session")
def captures() -> Path:
    """The folder of real captures; with TRNPROF_CAPTURES set a missing capture is a failure, not a skip."""
    folder = os.environ.get("TRNPROF_CAPTURES")
    if not folder:
        pytest.skip("TRNPROF_CAPTURES is not set: no real captures here")
    path = Path(folder).resolve()
    assert path.is_dir(), f"TRNPROF_CAPTURES names no folder: {folder}"
    return path


@pytest.fixture(scope="session")
def public_captures() -> Path:
    """A folder of further public captures (older container versions, NEFFs), for local runs only."""
    folder = os.environ.get("TRNPROF_PUBLIC")
    if not folder:
        pytest.skip("TRNPROF_PUBLIC is not set: no fetched public captures here")
    path = Path(folder).resolve()
    assert path.is_dir(), f"TRNPROF_PUBLIC names no folder: {folder}"
    return path


# No test finds what another run kept, and none fills the user's folder; tests of the cache name a folder of their own.
os.environ["TRNPROF_CACHE_DIR"] = ""

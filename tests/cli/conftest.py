"""A bundled example on disk, and the command as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trnprof.demo import published_step
from trnprof.writers.explorer_parquet import write_explorer_parquet

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's Explorer Parquet directory."""
    directory = tmp_path_factory.mktemp("example") / "decode-step@latest"
    write_explorer_parquet(published_step(), directory)
    return directory


@pytest.fixture
def trnprof(tmp_path: Path) -> Run:
    """Run `trnprof ARGUMENTS` in an empty folder; text in and out, a minute at most."""

    def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "trnprof", *map(str, arguments)],
            cwd=tmp_path,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=60,
            check=False,
        )

    return run

"""Starting without what is not needed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import ModuleType

_M_ARENA_MAX = -8
"""glibc's malloc.h."""


def give_memory_back() -> None:
    """Let pyarrow, which is not imported yet, use the system's allocator.

    Its own keeps what is freed for later: 50 MB more at the peak of a million rows, for no time gained.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")


def share_one_heap() -> None:
    """Let the process's threads share one heap of glibc's (elsewhere nothing happens): with one each, what one thread frees
    is of no use to the other. That is up to 120 MB of a large capture with long texts, for no time."""
    if sys.platform == "linux":
        import ctypes

        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def leave_pandas_out() -> None:
    """Keep pyarrow from importing pandas in this process: it does so when it makes its first array, and needs it only for
    data frames. That is 40 MB and a fifth of a second of every command. pandas itself can still be imported."""
    if "pandas" in sys.modules:
        return
    blocker = _NoPandas()
    sys.meta_path.insert(0, blocker)
    try:
        import pyarrow as pa

        pa.array([0])  # it looks once and remembers
    finally:
        sys.meta_path.remove(blocker)


class _NoPandas:
    """A finder that has every module but one found by the others."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        if name == "pandas":
            raise ImportError("left out while pyarrow starts")

"""A progress bar on stderr: on a terminal only, and only for what takes longer than a second."""

from __future__ import annotations

import sys
import time
from typing import TextIO

QUIET_SECONDS = 1.0
"""Nothing is drawn before this."""

_REDRAW_SECONDS = 0.1
_BAR_WIDTH = 30


class Progress:
    """A bar that is gone when it is done. Use as a context."""

    def __init__(self, what: str, *, stream: TextIO | None = None) -> None:
        """what: a word or two before the bar."""
        self._what = what
        self._stream = sys.stderr if stream is None else stream
        self._shown = self._stream.isatty()
        self._begun = time.monotonic()
        self._drawn_at = 0.0
        self._drawn = False
        self._done = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def advance(self, steps: int, total: int) -> None:
        """Some more steps of `total` are done."""
        self._done += steps
        now = time.monotonic()
        if not self._shown or now - self._begun < QUIET_SECONDS or now - self._drawn_at < _REDRAW_SECONDS:
            return
        self._drawn_at, self._drawn = now, True
        share = min(1.0, self._done / total) if total else 1.0
        filled = int(share * _BAR_WIDTH)
        bar = "█" * filled + "·" * (_BAR_WIDTH - filled)
        self._stream.write(f"\r{self._what} {bar} {100 * share:3.0f} %\x1b[K")
        self._stream.flush()

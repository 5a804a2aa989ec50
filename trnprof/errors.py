"""The errors a user can meet: one line each, an exit code each (DESIGN.md section 5).

A message names the file, the place, what was found and what to do next. The command line prints it on stderr as one
line, or in the JSON envelope's `error`; a traceback is shown only with --debug.
"""

from __future__ import annotations


class TrnprofError(Exception):
    """Base of every error that trnprof raises on purpose; never raised itself."""

    exit_code = 70
    """Process exit code."""
    kind = "internal"
    """Stable word for the JSON envelope's `error.kind`."""

    def __init__(self, message: str, *, path: object = None, code: str | None = None) -> None:
        """`message` says what was found and what to do; `path` is the file it is about; `code` a stable finding code."""
        super().__init__(message)
        self.message = message
        self.path = None if path is None else str(path)
        self.code = code


class UsageError(TrnprofError):
    """The command line asks for something that cannot be meant."""

    exit_code = 2
    kind = "usage"


class InputDataError(TrnprofError):
    """A file is there but is not what it should be: damaged, unknown version, wrong content."""

    exit_code = 65
    kind = "bad-input"


class InputMissingError(TrnprofError):
    """A file or folder that was named is not there or cannot be read, or holds nothing to read."""

    exit_code = 66
    kind = "input-missing"


class ToolMissingError(TrnprofError):
    """An external tool or an optional extra that the request needs is not installed."""

    exit_code = 69
    kind = "tool-missing"


class InconsistencyError(TrnprofError):
    """trnprof's own numbers contradict each other (parts that do not sum): a bug, never the user's mistake."""

    exit_code = 70
    kind = "inconsistency"

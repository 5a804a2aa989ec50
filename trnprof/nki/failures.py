"""Any failure of a kernel's code as one line: the user's file and line, what happened, what to do.

Code of the kernel is compiled under relative file names (loader.py), which tells its frames from everybody else's.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

from trnprof.errors import TrnprofError

_MESSAGE_LIMIT = 300


class Refused(PermissionError):
    """The guard does not let a kernel do this. A PermissionError, so that code that expects one goes on without."""


class PrintedTooMuch(RuntimeError):
    """The kernel printed more than any reader reads."""


def is_user_code(file_name: str) -> bool:
    """Does a code object's file name belong to the kernel's files?"""
    return not file_name.startswith("<") and not Path(file_name).is_absolute()


def describe_failure(error: BaseException, *, stage: str, limits: dict[str, Any], kernel_file: str) -> dict[str, Any]:
    """The error document for an exception that came out of loading, running or counting a kernel.

    Keys: kind (a TrnprofError's, or "bad-input"), message (one line), path (file the line is in).
    """
    chain = _chain(error)
    for cause in chain:
        known = _wording(cause, stage, limits)
        # An import that fails without a line of the user's on the stack is one of ours.
        if known is not None and not (isinstance(cause, ImportError) and _place(chain, kernel_file)[1] is None):
            return _document("bad-input", known, _place(chain, kernel_file))
    if isinstance(error, TrnprofError):
        # A UsageError's message speaks for itself; a KernelError's has its line in it already.
        message = _one_line(error.message) + _caller_of(getattr(error, "site", None))
        return {"kind": error.kind, "message": message, "path": error.path or kernel_file}
    text = _one_line(str(error))
    what = f"{type(error).__name__}: {text}" if text else type(error).__name__
    place = _place(chain, kernel_file)
    if place[1] is None:
        # Nothing of the user's on the stack: our own mistake, and said so.
        inner = traceback.extract_tb(error.__traceback__)[-1:]
        where = f" ({Path(inner[0].filename).name}:{inner[0].lineno})" if inner else ""
        return {
            "kind": "inconsistency",
            "message": f"while {stage}: {what}{where}; please report this",
            "path": kernel_file,
        }
    who = "the kernel fails while" if stage.startswith(("running", "loading")) and "reference" not in stage else "while"
    return _document("bad-input", f"{what}; {who} {stage} with these inputs", place)


def describe_timeout(frame: FrameType | None, *, stage: str, limits: dict[str, Any]) -> dict[str, Any]:
    """The error document for a run that used up its time, with the line it stands at."""
    message = f"still {stage} after {limits['wall_s']:g} s; an endless loop? if it is only long, raise --timeout"
    return _document("bad-input", message, _standing_at(frame))


def describe_overflow(frame: FrameType | None, *, limits: dict[str, Any]) -> dict[str, Any]:
    """The error document for a run that prints without end, with the line it stands at."""
    return _document("bad-input", _too_much_printed(limits), _standing_at(frame))


def _standing_at(frame: FrameType | None) -> tuple[str | None, int | None, str, str]:
    frame = _users_frame(frame)
    if frame is None:  # the programs of a pair run in threads of their own, all but one waiting
        running = [one for one in sys._current_frames().values() if Path(one.f_code.co_filename).name != "threading.py"]
        frame = next((found for found in map(_users_frame, running) if found is not None), None)
    return (
        (None, None, "", "") if frame is None else (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, "")
    )


def _users_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the kernel's files."""
    while frame is not None and not is_user_code(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _too_much_printed(limits: dict[str, Any]) -> str:
    return f"prints more than {limits['output_bytes'] >> 10} KiB; remove the print"


def _wording(error: BaseException, stage: str, limits: dict[str, Any]) -> str | None:
    """What to say of an exception whose meaning is known; None: nothing better than its own text."""
    from trnprof.nki.standins import StandInUsed

    match error:
        case Refused():
            return (
                f"{error}, which the guard refuses while {stage}; move it under if __name__ == '__main__' or remove it"
            )
        case PrintedTooMuch():
            return _too_much_printed(limits)
        case StandInUsed():
            return f"{_one_line(str(error))}; pass the value with --arg, or build it without the framework in an --inputs file"
        case MemoryError():
            return f"needs more than {limits['memory_bytes'] / 2**30:.3g} GiB of memory; a tensor of real values? else raise --memory"
        case RecursionError():
            return "calls itself without end (recursion limit); look for a missing end condition"
        case SystemExit():
            return (
                f"exits the process while {stage} (SystemExit {error.code}); does the file parse arguments when it is "
                "imported? move that under if __name__ == '__main__'"
            )
        case KeyboardInterrupt():
            return "interrupted"
        case ModuleNotFoundError():
            return f"cannot import: {_one_line(str(error))}"
        case ImportError():
            return f"cannot import: {_one_line(str(error))}; does the kernel need another version of that module?"
        case SyntaxError():
            return f"does not parse ({error.msg}, line {error.lineno} of {Path(error.filename or '?').name})"
    return None


def _document(kind: str, message: str, place: tuple[str | None, int | None, str, str]) -> dict[str, Any]:
    path, line, function, called_from = place
    where = (
        ""
        if line is None
        else f"line {line}" + (f" (in {function})" if function not in ("", "<module>") else "") + ": "
    )
    return {"kind": kind, "message": f"{where}{message}{called_from}", "path": path}


def _chain(error: BaseException) -> list[BaseException]:
    """The error and what caused it, outermost first."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain and len(chain) < 20:
        chain.append(current)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return chain


def _place(chain: list[BaseException], kernel_file: str) -> tuple[str, int | None, str, str]:
    """(file, line, function, " called from ...") of the innermost user line the errors passed through."""
    for error in reversed(chain):
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_user_code(frame.filename)]
        if not frames:
            continue
        last = frames[-1]
        # In a helper (an assert wrapper, say) the caller's line is what the reader looks for.
        caller = next((frame for frame in reversed(frames) if frame.filename != last.filename), None)
        called_from = f" (called from {caller.filename} line {caller.lineno})" if caller else ""
        return last.filename, last.lineno, last.name, called_from
    return kernel_file, None, "", ""


def _caller_of(site: Any) -> str:
    """The same for a KernelError's site."""
    frames = [] if site is None else list(site.frames)
    caller = next((frame for frame in frames if frame.file != frames[0].file), None)
    return "" if caller is None else f" (called from {caller.file} line {caller.line})"


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MESSAGE_LIMIT else line[: _MESSAGE_LIMIT - 1] + "…"

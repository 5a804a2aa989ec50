"""Run a kernel's programs and return what they did: the one entry of the NKI front end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType, TracebackType
from typing import Any

from trnprof.errors import InputDataError
from trnprof.nki.launch import Kernel, Session
from trnprof.nki.loops import KernelRange
from trnprof.nki.modules import install_nki_modules
from trnprof.nki.operations.table import OutsideKernelError
from trnprof.nki.origin import is_user_code, is_user_file
from trnprof.nki.recorder import RecordingLimitError
from trnprof.nki.recording import Frame, Recording, Site
from trnprof.nki.tensor import DeviceValueError


class KernelError(InputDataError):
    """The kernel could not be run to its end: the message names the user's line, what happened and what to do."""

    def __init__(self, message: str, *, reason: str, site: Site | None = None) -> None:
        """`reason` is a stable word: assertion, device-value, unsupported, limit, exception; of values also
        hardware-limit, out-of-bounds, shape-mismatch, deadlock."""
        super().__init__(message, path=site.file if site else None)
        self.reason = reason
        self.site = site


def trace(
    kernel: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    lnc: int = 1,
    grid: Sequence[int] | None = None,
    exact: bool = False,
    trips: Mapping[str, int] | None = None,
    values: Mapping[str, Any] | None = None,
    target: str = "trn2",
    worthwhile_operations: int | None = None,
) -> Recording:
    """Run `kernel` once per program and record every operation.

    kernel: what nki.jit returned, a plain function that is a kernel, or a host function that launches kernel[grid](...).
    args, kwargs: the kernel's arguments; a TensorSpec (or a numpy array) anywhere inside lists, tuples, dicts or
        dataclasses becomes a tensor in HBM; everything else is passed on.
    lnc: programs of a logical core (1 or 2): program_id(0) runs over them. grid: a first-generation SPMD grid instead.
    exact: run every loop iteration; otherwise repeated bodies are run a few times and multiplied, with equal counts.
    trips: trip counts of loops whose length is known only on the device, by the source text of their bound.
    values: contents of integer input tensors by parameter name, numpy arrays of the tensor's shape.
    target: trn1, trn2 or trn3.
    worthwhile_operations: loops are watched for repetition from this many further operations on (tests use 0).
    Raises KernelError, with the user's line.
    """
    options = Session(
        lnc=lnc,
        grid=None if grid is None else tuple(int(size) for size in grid),
        exact=exact,
        trips=trips or {},
        values=values or {},
        target=target,
        worthwhile_operations=worthwhile_operations,
    )
    with _ranges_are_loops(kernel):
        run_session(options, kernel, args, kwargs or {})
    return Recording(
        programs=tuple(options.programs),
        target=target,
        lnc=options.lnc,
        exact=exact,
        notes=tuple(options.notes.values()),
        outputs=options.outputs,
    )


def run_session(session: Session, kernel: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Launch the kernel, or call the host function that does, in a session. Raises KernelError, with the user's line."""
    with install_nki_modules(session.target), session:
        try:
            if isinstance(kernel, Kernel):
                session.launch(kernel.function, kernel.grid, args, kwargs, generation=kernel.generation)
            else:
                session.run_host(kernel, args, kwargs)
            session.note_unused_trips()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise _kernel_error(error) from error


@contextmanager
def _ranges_are_loops(kernel: Any) -> Iterator[None]:
    """While a kernel runs, `range` in the user's modules is a range whose `for` loops the recording knows."""
    spaces: list[dict[str, Any]] = []
    function = kernel.function if isinstance(kernel, Kernel) else kernel
    namespace = getattr(function, "__globals__", None)
    if namespace is not None:
        spaces.append(namespace)
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and name != "__main__" and is_user_file(getattr(module, "__file__", None)):
            spaces.append(module.__dict__)
    changed = []
    for space in spaces:
        if "range" not in space:
            space["range"] = KernelRange
            changed.append(space)
    try:
        yield
    finally:
        for space in changed:
            space.pop("range", None)


def _kernel_error(error: BaseException) -> KernelError:
    """The exception as one line about the user's line."""
    site = _site_of(error.__traceback__)
    what = str(error) or type(error).__name__
    where = f"line {site.line} (in {site.frames[0].function}): " if site is not None else ""
    if isinstance(error, KernelError):
        return error
    if isinstance(error, AssertionError):
        return KernelError(f"{where}the kernel's own check fails: {what}", reason="assertion", site=site)
    if isinstance(error, DeviceValueError):
        advice = "decide it from shapes or arguments, or keep it on the device"
        return KernelError(
            f"{where}{what}, which is known on the device only: {advice}", reason="device-value", site=site
        )
    if isinstance(error, RecordingLimitError | MemoryError | RecursionError):
        return KernelError(f"{where}{type(error).__name__}: {what}", reason="limit", site=site)
    if isinstance(error, OutsideKernelError):
        return KernelError(f"{where}{what}", reason="unsupported", site=site)
    if isinstance(getattr(error, "reason", None), str):  # errors of trnprof.nki.values say what they are
        return KernelError(f"{where}{what}", reason=error.reason, site=site)  # type: ignore[attr-defined]
    return KernelError(f"{where}{type(error).__name__}: {what}", reason="exception", site=site)


def _site_of(traceback: TracebackType | None) -> Site | None:
    """The user's frames of a traceback, innermost first."""
    frames: list[Frame] = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if is_user_code(code):
            frames.append(Frame(code.co_filename, traceback.tb_lineno, code.co_name))
        traceback = traceback.tb_next
    return Site(tuple(reversed(frames))) if frames else None

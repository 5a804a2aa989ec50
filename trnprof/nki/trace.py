"""Run a kernel's programs and return what they did: the one entry of the NKI front end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trnprof.errors import InputDataError
from trnprof.nki.recording import Recording, Site


class KernelError(InputDataError):
    """The kernel could not be run to its end: the message names the user's line, what happened and what to do."""

    def __init__(self, message: str, *, reason: str, site: Site | None = None) -> None:
        """`reason` is a stable word: assertion, device-value, unsupported, limit, exception."""
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
    Raises KernelError, with the user's line.
    """
    raise NotImplementedError

"""What a kernel is called with: --input, --arg, --grid, --trip, --values and the inputs file, parsed and checked.

    --input q=128x512:bfloat16     a tensor in HBM, by parameter name
    --arg tile=4                   a Python literal; a dotted name (nl.bfloat16, NormType.RMS_NORM) is looked up in the
                                   kernel's file
    --inputs FILE.py               for everything else: a function `inputs()` that returns the arguments

An inputs file runs in the guarded child under the kernel's own import policy, so it can build the kernel's config
objects. `inputs` returns a dict of keyword arguments, a tuple or list of positional ones, or (positional, keyword):

    from trnprof.nki.inputs import tensor
    from mykernels.config import Config

    def inputs():
        return {"x": tensor("128x512:bfloat16"), "config": Config(tile=4)}
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trnprof.errors import InputMissingError, UsageError
from trnprof.nki.dtypes import DTYPES, as_dtype
from trnprof.nki.recording import TensorSpec

MAX_ELEMENTS = 1 << 48
"""Elements of one tensor: 256 Ti, far above any HBM; more is a typing error."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


@dataclass(frozen=True, kw_only=True)
class KernelInputs:
    """Everything a kernel is run with, as plain data (it crosses into the child process as JSON)."""

    tensors: dict[str, TensorSpec] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    """Source text of a literal or a dotted name, by parameter."""
    inputs_file: Path | None = None
    lnc: int = 1
    grid: tuple[int, ...] | None = None
    trips: dict[str, int] = field(default_factory=dict)
    values: dict[str, Path] = field(default_factory=dict)

    @property
    def given(self) -> bool:
        """Was any argument named?"""
        return bool(self.tensors or self.arguments or self.inputs_file)


def parse_inputs(
    *,
    inputs: Iterable[str] = (),
    arguments: Iterable[str] = (),
    inputs_file: Path | None = None,
    lnc: int = 1,
    grid: str | None = None,
    trips: Iterable[str] = (),
    values: Iterable[str] = (),
) -> KernelInputs:
    """The command line's texts as KernelInputs.

    Raises: UsageError for a text that does not parse or a name given twice; InputMissingError for a file that is not there.
    """
    tensors: dict[str, TensorSpec] = {}
    for text in inputs:
        name, shape = _split(text, "--input", "q=128x512:bfloat16")
        _once(name, tensors, "--input")
        tensors[name] = parse_tensor(shape, name)
    literals: dict[str, str] = {}
    for text in arguments:
        name, value = _split(text, "--arg", "tile=4")
        _once(name, tensors | literals, "--arg")
        check_literal(value, f"--arg {name}")
        literals[name] = value
    trip_counts: dict[str, int] = {}
    for text in trips:
        name, _, count = text.rpartition("=")
        if not name or not _is_positive(count):
            raise UsageError(
                f"--trip {text!r}: write the loop's bound and a positive count, for example --trip n_reg=16"
            )
        _once(name, trip_counts, "--trip")
        trip_counts[name] = int(count)
    files: dict[str, Path] = {}
    for text in values:
        name, file = _split(text, "--values", "idx=indices.npy")
        _once(name, files, "--values")
        files[name] = Path(file)
        if not Path(file).is_file():
            raise InputMissingError(f"--values {name}: no such file; save the indices with numpy.save", path=file)
    if lnc not in (1, 2):
        raise UsageError(f"--lnc is 1 or 2 (NeuronCores to a logical core), not {lnc}")
    if inputs_file is not None and not inputs_file.is_file():
        raise InputMissingError(
            "--inputs: no such file; it holds a function inputs() that returns the arguments", path=inputs_file
        )
    return KernelInputs(
        tensors=tensors,
        arguments=literals,
        inputs_file=inputs_file,
        lnc=lnc,
        grid=_parse_grid(grid) if grid is not None else None,
        trips=trip_counts,
        values=files,
    )


def parse_tensor(text: str, name: str = "") -> TensorSpec:
    """A TensorSpec from `128x512:bfloat16`.

    Raises: UsageError with what is wrong and an example.
    """
    label = f"--input {name}={text}" if name else repr(text)
    dimensions, colon, dtype = text.strip().partition(":")
    if not colon or not dtype:
        raise UsageError(f"{label}: the element type is missing; write for example 128x512:bfloat16")
    sizes = dimensions.lower().replace("×", "x").replace(",", "x").strip("()[] ").split("x")
    if not all(_is_positive(size) for size in sizes):
        raise UsageError(f"{label}: the shape is positive integers joined by x; write for example 128x512:bfloat16")
    shape = tuple(int(size) for size in sizes)
    count = 1
    for size in shape:
        count *= size
    if count > MAX_ELEMENTS or len(shape) > 16:
        raise UsageError(
            f"{label}: {count:,} elements in {len(shape)} dimensions is more than any memory holds; check the shape"
        )
    try:
        known = as_dtype(dtype.strip().lower())
    except TypeError:
        raise UsageError(f"{label}: unknown element type {dtype!r}; known: {', '.join(DTYPES)}") from None
    return TensorSpec(shape, str(known), name)


def tensor(shape: str | Iterable[int], dtype: str | None = None) -> TensorSpec:
    """A tensor argument for an inputs file: tensor("128x512:bfloat16") or tensor((128, 512), "bfloat16").

    Raises: UsageError with what is wrong.
    """
    if isinstance(shape, str) and dtype is None:
        return parse_tensor(shape)
    return parse_tensor(f"{'x'.join(str(size) for size in shape)}:{dtype}")


def check_literal(text: str, label: str) -> None:
    """Is `text` a Python literal or a dotted name?

    Raises: UsageError if not.
    """
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        if _NAME.fullmatch(text) and "." in text:
            return
        hint = f"; quote a text: {label.split()[-1]}='\"{text}\"'" if _NAME.fullmatch(text) else ""
        raise UsageError(f"{label}={text}: not a Python literal (4, 1e-6, True, None, (2, 3), 'text'){hint}") from None


def resolve_argument(text: str, namespace: dict[str, Any]) -> Any:
    """The value of an --arg text; a dotted name is looked up from `namespace` by attributes only.

    Raises: UsageError if the name is not there.
    """
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        pass
    first, *rest = text.split(".")
    if first not in namespace:
        raise UsageError(f"--arg value {text}: the kernel's file has no name {first!r}; names are looked up there")
    value = namespace[first]
    for part in rest:
        if not hasattr(value, part):
            raise UsageError(f"--arg value {text}: {first!r} of the kernel's file has no {part!r}")
        value = getattr(value, part)
    return value


def arguments_of(returned: Any, path: Path) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments from what an inputs file's function returned.

    Raises: UsageError if it is none of the accepted forms.
    """
    if isinstance(returned, dict):
        return [], _named(returned)
    if (
        isinstance(returned, tuple)
        and len(returned) == 2
        and isinstance(returned[0], tuple | list)
        and isinstance(returned[1], dict)
    ):
        return list(returned[0]), _named(returned[1])
    if isinstance(returned, tuple | list):
        return list(returned), {}
    raise UsageError(
        f"{path.name}: inputs() returned {type(returned).__name__}; return a dict of keyword arguments, a tuple of "
        "positional ones, or (positional, keyword)"
    )


def _named(arguments: dict[str, Any]) -> dict[str, Any]:
    """Tensors without a name take their parameter's."""
    return {
        name: TensorSpec(value.shape, value.dtype, name) if isinstance(value, TensorSpec) and not value.name else value
        for name, value in arguments.items()
    }


def _split(text: str, option: str, example: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not value or not name.strip().isidentifier():
        raise UsageError(f"{option} {text!r}: write NAME=VALUE, for example {option} {example}")
    return name.strip(), value.strip()


def _once(name: str, known: Iterable[str], option: str) -> None:
    if name in known:
        raise UsageError(f"{option} {name}: given twice; give each argument once")


def _parse_grid(text: str) -> tuple[int, ...]:
    sizes = text.lower().replace("×", "x").replace(",", "x").strip("()[] ").split("x")
    if not all(_is_positive(size) for size in sizes):
        raise UsageError(f"--grid {text!r}: positive integers joined by x, for example --grid 4x2")
    return tuple(int(size) for size in sizes)


def _is_positive(text: str) -> bool:
    """A positive decimal number of at most 18 digits?"""
    digits = text.strip()
    return digits.isascii() and digits.isdigit() and len(digits) <= 18 and int(digits) > 0

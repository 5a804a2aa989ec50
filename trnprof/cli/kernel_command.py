"""What commands that run a kernel share: which kernel is meant, a line while it runs, what it printed."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trnprof.nki.discovery import KernelSource


def choose_kernel(found: tuple[KernelSource, ...], name: str | None, path: Path, *, given: bool) -> KernelSource | None:
    """The kernel that is meant; None: list them.

    Raises: UsageError if inputs were given and no kernel or no single one can be meant.
    """
    from trnprof.errors import UsageError
    from trnprof.nki.discovery import KernelKind, KernelSource

    if name is not None:
        known = next((kernel for kernel in found if kernel.name == name), None)
        if known is not None:
            return known if given or not any(parameter.required for parameter in known.parameters) else None
        if given:
            # A function that the syntax tree does not show as a kernel may be one all the same (imported, wrapped).
            return KernelSource(name, KernelKind.PLAIN, 0, (), ())
        raise UsageError(
            f"no kernel {name!r}; found: {', '.join(kernel.name for kernel in found) or 'none'}", path=path
        )
    for kind in (KernelKind.JIT, KernelKind.HOST, KernelKind.PLAIN):
        of_kind = [kernel for kernel in found if kernel.kind is kind]
        if len(of_kind) == 1:
            only = of_kind[0]
            return only if given or not any(parameter.required for parameter in only.parameters) else None
        if of_kind:
            break
    if given:
        names = ", ".join(kernel.name for kernel in found) or "none"
        raise UsageError(f"which kernel? name it with --kernel; found: {names}", path=path)
    return None


def needed_kernel(path: Path, name: str | None, *, given: bool) -> str:
    """The name of the kernel in the file that is meant, for a command that cannot do without inputs.

    Raises: UsageError if none or several can be meant, or if it needs inputs and none were given: the message says which.
    """
    from trnprof.errors import UsageError
    from trnprof.nki.discovery import find_kernels, parse_source, read_source

    found = find_kernels(parse_source(read_source(path), path))
    chosen = choose_kernel(found, name, path, given=given)
    if chosen is not None:
        return chosen.name
    wanted = [kernel for kernel in found if name in (None, kernel.name)]
    if not wanted:
        raise UsageError("no kernel found in it; name one with --kernel", path=path)
    needs = "; ".join(
        f"{kernel.name}({', '.join(parameter.name for parameter in kernel.parameters)})" for kernel in wanted[:6]
    )
    raise UsageError(
        f"which kernel, on which inputs? --kernel NAME --input NAME=128x512:bfloat16 ...; found: {needs}", path=path
    )


def run_status(text: str) -> AbstractContextManager[object]:
    """A line that says what is going on, on a terminal only."""
    if not sys.stderr.isatty():
        return nullcontext()
    try:
        from rich.console import Console
        from rich.markup import escape
    except ImportError:  # typer brings it; a slim installation may not
        return nullcontext()
    return Console(stderr=True).status(escape(text))


def show_printed(text: str, byte_count: int) -> None:
    """What the kernel printed, a few lines of it, on stderr."""
    from trnprof.render.text import printable

    lines = text.splitlines()
    if not lines:
        return
    print(f"trnprof: the kernel printed {byte_count:,} bytes:", file=sys.stderr)
    for line in lines[:10]:
        print(f"  | {printable(line, 200)}", file=sys.stderr)
    if len(lines) > 10:
        print(f"  | and {len(lines) - 10} more lines", file=sys.stderr)

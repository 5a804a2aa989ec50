"""Where a kernel file moves data, from its syntax tree alone: what --no-exec reports. Nothing of the file runs.

Shapes, trip counts and calls through other modules are not known this way; what is here is where to look.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from trnprof.nki.discovery import MOVES_DATA, ImportedNames, find_kernels


@dataclass(frozen=True)
class EnclosingLoop:
    """One loop statement around a call."""

    line: int
    target: str
    iterates: str
    """Source text of what it iterates over, or of a while's condition."""


@dataclass(frozen=True)
class CallSite:
    """One call that moves data."""

    line: int
    function: str
    """Dotted name of the function it stands in; empty at module level."""
    in_kernel: bool
    """Is that function a kernel itself (and not a helper)?"""
    operation: str
    destination: str | None
    """Source text of the operand."""
    source: str | None
    dge_mode: str | None
    indirect: bool
    """Does an operand name a scalar_offset or vector_offset?"""
    masked: bool
    loops: tuple[EnclosingLoop, ...]
    """Outermost first."""


def find_call_sites(tree: ast.Module) -> tuple[CallSite, ...]:
    """All calls of data-moving operations in a file, by line."""
    names = ImportedNames(tree)
    kernels = {kernel.name for kernel in find_kernels(tree)}
    found: list[CallSite] = []
    pending: list[tuple[ast.AST, str, tuple[EnclosingLoop, ...]]] = [(tree, "", ())]
    while pending:  # a stack and not recursion: nesting is the file's choice
        node, function, loops = pending.pop()
        if isinstance(node, ast.Call):
            name = names.dotted(node.func)
            if name in MOVES_DATA:
                found.append(_call_site(node, name.rpartition(".")[2], function, kernels, loops))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            function, loops = (f"{function}.{node.name}" if function else node.name), ()
        elif isinstance(node, ast.For | ast.AsyncFor):
            loops = (*loops, EnclosingLoop(node.lineno, _text(node.target), _text(node.iter)))
        elif isinstance(node, ast.While):
            loops = (*loops, EnclosingLoop(node.lineno, "", _text(node.test)))
        pending.extend((child, function, loops) for child in ast.iter_child_nodes(node))
    return tuple(sorted(found, key=lambda site: (site.line, site.operation)))


def _call_site(
    node: ast.Call, operation: str, function: str, kernels: set[str], loops: tuple[EnclosingLoop, ...]
) -> CallSite:
    keywords = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
    positional = list(node.args)
    if operation in ("load", "load_transpose2d"):
        destination, source = None, keywords.get("src") or (positional[0] if positional else None)
    else:
        destination = keywords.get("dst") or (positional[0] if positional else None)
        source = keywords.get("src") or keywords.get("value") or keywords.get("srcs")
        if source is None and len(positional) > 1:
            source = positional[1]
    offsets = {"scalar_offset", "vector_offset", "vector_select"}
    return CallSite(
        line=node.lineno,
        function=function,
        in_kernel=function in kernels,
        operation=operation,
        destination=None if destination is None else _text(destination),
        source=None if source is None else _text(source),
        dge_mode=_text(keywords["dge_mode"]) if "dge_mode" in keywords else None,
        indirect=any(
            (isinstance(part, ast.keyword) and part.arg in offsets)
            or (isinstance(part, ast.Attribute) and part.attr in offsets)
            for part in ast.walk(node)
        ),
        masked="mask" in keywords,
        loops=loops,
    )


def _text(node: ast.expr, limit: int = 80) -> str:
    try:
        text = " ".join(ast.unparse(node).split())
    except RecursionError:
        return "..."
    return text if len(text) <= limit else text[: limit - 1] + "…"

"""Give one assignment of a kernel file another value, through its syntax tree: how a sweep varies a constant or a local.

Line numbers stay as they are, so results of every point name the same lines.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from trnprof.errors import UsageError


@dataclass(frozen=True)
class Rewrite:
    """One assignment and its new value."""

    scope: str | None
    """The function that holds it, by its dotted name (`kernel`, `Class.method`); None: module level."""
    name: str
    value: str
    """Source text of a Python literal."""


@dataclass(frozen=True)
class Assignment:
    """Where a name is assigned."""

    scope: str | None
    name: str
    line: int
    value: str
    """Source text of the value it has now."""


def find_assignments(tree: ast.Module, name: str) -> tuple[Assignment, ...]:
    """All plain assignments of `name` (or `function.name`), module level first, each with its line."""
    scope_asked, _, plain = name.rpartition(".")
    return tuple(
        Assignment(scope, plain, node.lineno, ast.unparse(node.value))
        for scope, node in _assignments(tree)
        if _target(node) == plain and node.value is not None and scope_asked in ("", scope)
    )


def pick_assignment(tree: ast.Module, name: str, kernel: str | None) -> Assignment:
    """The one assignment that `--sweep name=...` means: a module constant, else a local of the kernel, else the only one.

    Raises: UsageError if there is none, or if several are left, with their lines.
    """
    found = find_assignments(tree, name)
    for choice in (
        [one for one in found if one.scope is None],
        [one for one in found if one.scope == kernel and kernel],
        list(found),
    ):
        if len(choice) == 1:
            return choice[0]
        if choice:
            lines = ", ".join(f"line {one.line}" + (f" in {one.scope}" if one.scope else "") for one in choice)
            raise UsageError(
                f"{name} is assigned {len(choice)} times ({lines}), so a sweep cannot tell which is meant; "
                "name the function (function.NAME=...) or make it a parameter"
            )
    raise UsageError(
        f"nothing to sweep is called {name}: it is neither a parameter of the kernel nor assigned once in the file "
        f"({name} = ...)"
    )


def apply_rewrites(tree: ast.Module, rewrites: tuple[Rewrite, ...]) -> ast.Module:
    """`tree` with the rewrites' values in place; the tree is changed and returned."""
    for rewrite in rewrites:
        value = ast.parse(rewrite.value, mode="eval").body
        for scope, node in _assignments(tree):
            if scope == rewrite.scope and _target(node) == rewrite.name:
                for part in ast.walk(value):
                    ast.copy_location(part, node)
                node.value = value
    return tree


def _assignments(tree: ast.Module) -> list[tuple[str | None, ast.Assign | ast.AnnAssign]]:
    """Every plain assignment with the function it stands in, in source order."""
    found: list[tuple[str | None, ast.Assign | ast.AnnAssign]] = []
    pending: list[tuple[str | None, ast.AST]] = [(None, tree)]
    while pending:  # a stack and not recursion: nesting is the file's choice
        scope, node = pending.pop()
        if isinstance(node, ast.Assign | ast.AnnAssign):
            found.append((scope, node))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            scope = node.name if scope is None else f"{scope}.{node.name}"
        pending.extend((scope, child) for child in ast.iter_child_nodes(node))
    return sorted(found, key=lambda entry: (entry[1].lineno, entry[1].col_offset))


def _target(node: ast.Assign | ast.AnnAssign) -> str | None:
    target = (
        node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else getattr(node, "target", None)
    )
    return target.id if isinstance(target, ast.Name) else None

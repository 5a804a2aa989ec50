"""Giving one assignment another value."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from trnprof.errors import UsageError
from trnprof.nki.discovery import parse_source
from trnprof.nki.rewriting import Rewrite, apply_rewrites, find_assignments, pick_assignment

SOURCE = """TILE = 128
OTHER: int = 4
def kernel(a):
    CH = 512
    width = TILE * CH
    width = width + 1
    return width
def helper(a):
    CH = 7
    return CH
"""


def tree() -> ast.Module:
    return parse_source(SOURCE, Path("kernel.py"))


def run(rewrites: tuple[Rewrite, ...]) -> tuple[int, int]:
    namespace: dict = {}
    exec(compile(apply_rewrites(tree(), rewrites), "kernel.py", "exec"), namespace)
    return namespace["kernel"](None), namespace["helper"](None)


def test_each_kind_of_assignment_is_found() -> None:
    assert [(one.scope, one.line, one.value) for one in find_assignments(tree(), "CH")] == [
        ("kernel", 4, "512"),
        ("helper", 9, "7"),
    ]
    assert pick_assignment(tree(), "TILE", "kernel").scope is None
    assert pick_assignment(tree(), "OTHER", "kernel").line == 2
    assert pick_assignment(tree(), "CH", "kernel").scope == "kernel"
    assert pick_assignment(tree(), "helper.CH", "kernel").scope == "helper"


def test_a_rewrite_changes_that_assignment_alone() -> None:
    assert run(()) == (128 * 512 + 1, 7)
    assert run((Rewrite("kernel", "CH", "2"), Rewrite(None, "TILE", "3"))) == (3 * 2 + 1, 7)
    assert run((Rewrite("helper", "CH", "-1"),)) == (128 * 512 + 1, -1)


def test_lines_stay_where_they_are() -> None:
    changed = apply_rewrites(tree(), (Rewrite("kernel", "CH", "(1, 2)"),))
    assert [node.lineno for node in ast.walk(changed) if isinstance(node, ast.Return)] == [7, 10]


def test_names_that_are_ambiguous_or_not_there() -> None:
    with pytest.raises(UsageError, match=r"assigned 2 times \(line 5 in kernel, line 6 in kernel\)"):
        pick_assignment(tree(), "width", "kernel")
    with pytest.raises(UsageError, match="nothing to sweep is called NONE"):
        pick_assignment(tree(), "NONE", "kernel")

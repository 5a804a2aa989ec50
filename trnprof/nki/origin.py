"""Whose code is it: the user's, ours, or a library's? Sites, loop states and range substitution ask."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from types import CodeType
from typing import Any

_OWN = str(Path(__file__).resolve().parent.parent)
_STDLIB = sysconfig.get_path("stdlib")

_known: dict[int, tuple[bool, CodeType]] = {}
"""By id(code): hashing a code object hashes its constants. The object is kept so that its id stays its own."""


def is_user_code(code: CodeType) -> bool:
    """Is it the user's line, not ours, the standard library's, numpy's or generated code?"""
    known = _known.get(id(code))
    if known is None:
        name = code.co_filename
        library = name.startswith(_STDLIB) and "-packages" not in name
        users = not (library or name.startswith((_OWN, "<")) or "-packages/numpy/" in name)
        known = _known[id(code)] = (users, code)
    return known[0]


def is_user_file(name: Any) -> bool:
    """Is a module's file neither ours, nor the standard library's, nor an installed package's?"""
    if not isinstance(name, str):
        return False
    return not (name.startswith((_OWN, _STDLIB)) or "site-packages" in name or "dist-packages" in name)

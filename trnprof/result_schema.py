"""JSON Schema (draft 2020-12) of what each command prints with --format json."""

from __future__ import annotations

import json
import re
from importlib import resources
from typing import Any

from trnprof.errors import UsageError

_ENVELOPE = "envelope"


def commands_with_schema() -> tuple[str, ...]:
    """The commands whose result has a schema, by name; a group's command is written group-command."""
    names = (entry.name for entry in resources.files("trnprof.schemas").iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in names if name.endswith(".json") and name[0] != "_"))


def schema_of(command: str) -> dict[str, Any]:
    """The schema of `command`'s whole answer: the envelope with its result; `envelope` is the part common to all.

    Raises: UsageError for a command without one.
    """
    known = commands_with_schema()
    if command not in known:
        raise UsageError(f"no schema of {command!r}; there are {', '.join(known)}")
    envelope = _read(_ENVELOPE)
    if command == _ENVELOPE:
        return envelope
    result = _read(command)
    words = re.sub(r"^(skills|nki)-", r"\1 ", command)
    envelope["title"] = f"trnprof {words} --format json"
    envelope["$defs"] |= result.pop("$defs", {})
    envelope["properties"]["schema"] = {"const": f"trnprof.{command}/1"}
    envelope["properties"]["result"] = {"anyOf": [{"type": "null", "description": "With an error."}, result]}
    return envelope


def _read(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        resources.files("trnprof.schemas").joinpath(f"{name}.json").read_text(encoding="utf-8")
    )
    return document

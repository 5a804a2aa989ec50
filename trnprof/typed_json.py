"""Frozen dataclasses as JSON and back, every value checked against its declared type: a file is never trusted."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints


def to_plain(value: object) -> object:
    """The value in dicts, lists and what JSON has; a dataclass by its fields' names, an Enum by its value."""
    if is_dataclass(value) and not isinstance(value, type):
        return {part.name: to_plain(getattr(value, part.name)) for part in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {str(name): to_plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(entry) for entry in value]
    return value


def from_plain(hint: Any, value: Any) -> Any:
    """`value`, parsed from JSON, as the type that `hint` names.

    hint: a dataclass, tuple[T, ...], dict[str, T], a union, an Enum, int, float, str, bool, None, Any or object. Fields
          with a default may be missing; numbers have at most 64 bits.

    Raises: TypeError, ValueError or LookupError where it is none.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any or hint is object:
        return value
    if origin is UnionType or origin is Union:
        return _one_of(arguments, value)
    if origin is tuple:
        return tuple(from_plain(arguments[0], item) for item in from_plain(list, value))
    if origin is dict:
        return {from_plain(str, name): from_plain(arguments[1], item) for name, item in from_plain(dict, value).items()}
    if isinstance(hint, type) and is_dataclass(hint):
        hints, row = get_type_hints(hint), from_plain(dict, value)
        return hint(
            **{part.name: from_plain(hints[part.name], row[part.name]) for part in fields(hint) if part.name in row}
        )
    if issubclass(hint, Enum):
        return hint(value)
    if not _suits(hint, value):
        raise TypeError(f"{type(value).__name__} where {hint.__name__} belongs")
    return value


def _one_of(arms: tuple[Any, ...], value: Any) -> Any:
    """The value as one of the types. A union has None and plain types, and at most one type made of others."""
    if value is None and NoneType in arms:
        return None
    for arm in arms:
        if isinstance(arm, type) and _suits(arm, value):
            return value
    made = [arm for arm in arms if get_origin(arm) is not None or is_dataclass(arm)]
    if len(made) != 1:
        raise TypeError(f"{type(value).__name__} where it does not belong")
    return from_plain(made[0], value)


def _suits(kind: type, value: object) -> bool:
    return type(value) is kind and not (isinstance(value, int) and value.bit_length() > 63)

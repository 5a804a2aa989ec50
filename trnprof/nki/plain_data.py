"""Frozen dataclasses to JSON data and back, checked: what comes out of the child process is not trusted to be well formed.

Knows dataclasses, tuples, dicts with text keys, unions with None, and scalars; nothing that could run code.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from functools import cache
from typing import Any, TypeVar

from trnprof.errors import InconsistencyError

T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """`value` as dicts, lists and scalars."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [to_plain(entry) for entry in value]
    if isinstance(value, dict):
        return {str(key): to_plain(entry) for key, entry in value.items()}
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    return str(value)


def from_plain(kind: type[T], data: Any) -> T:
    """A `kind` from what to_plain made of one.

    Raises: InconsistencyError if the data has not that form.
    """
    try:
        return typing.cast(T, _build(kind, data))
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise InconsistencyError(f"the child process sent no valid {kind.__name__} ({error})") from None


@cache
def _field_types(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _build(kind: Any, data: Any) -> Any:
    origin = typing.get_origin(kind)
    if kind is Any or kind is object:
        return data
    if origin in (typing.Union, types.UnionType):
        options = typing.get_args(kind)
        if data is None and type(None) in options:
            return None
        return _build(next(option for option in options if option is not type(None)), data)
    if origin is tuple:
        entries = typing.get_args(kind)
        if not isinstance(data, list):
            raise TypeError(f"expected a list, found {type(data).__name__}")
        if len(entries) == 2 and entries[1] is Ellipsis:
            return tuple(_build(entries[0], entry) for entry in data)
        return tuple(_build(entry, value) for entry, value in zip(entries, data, strict=True))
    if origin is dict:
        return {str(key): _build(typing.get_args(kind)[1], entry) for key, entry in data.items()}
    if dataclasses.is_dataclass(kind):
        if not isinstance(data, dict):
            raise TypeError(f"expected an object for {kind.__name__}")  # type: ignore[union-attr]
        hints = _field_types(kind)  # type: ignore[arg-type]
        return kind(**{name: _build(hints[name], value) for name, value in data.items()})  # type: ignore[operator]
    if kind is float and isinstance(data, int | float) and not isinstance(data, bool):
        return data
    if kind is int and isinstance(data, bool):
        raise TypeError("expected a number, found a truth value")
    if not isinstance(data, kind):
        raise TypeError(f"expected {kind.__name__}, found {type(data).__name__}")
    return data

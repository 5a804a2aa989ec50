"""The JSON members of a NEFF as typed values: what is not of the type that the format asks for is named with its place."""

from __future__ import annotations

import json

from trnprof.readers.neff_container import MalformedNeff, shown


def parse_json(content: bytes, name: str) -> object:
    """A JSON member. Raises MalformedNeff if it is none, or is nested too deep."""
    try:
        return json.loads(content)
    except RecursionError:
        raise MalformedNeff(f"{shown(name)} is nested too deep") from None
    except ValueError as error:  # not JSON, not UTF-8, or a number of thousands of digits
        raise MalformedNeff(f"{shown(name)} is not JSON ({shown(str(error))})") from None


def as_object(value: object, place: str) -> dict[str, object]:
    """`value` as a JSON object, or MalformedNeff."""
    if not isinstance(value, dict):
        raise MalformedNeff(f"{place} is {_kind(value)} where an object belongs")
    return value


def as_list(value: object, place: str) -> list[object]:
    """`value` as a JSON list, or MalformedNeff."""
    if not isinstance(value, list):
        raise MalformedNeff(f"{place} is {_kind(value)} where a list belongs")
    return value


def as_text(value: object, place: str) -> str:
    """`value` as text, or MalformedNeff."""
    if not isinstance(value, str):
        raise MalformedNeff(f"{place} is {_kind(value)} where text belongs")
    return value


def as_whole(value: object, place: str) -> int:
    """`value` as a whole number within int64, or MalformedNeff."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise MalformedNeff(f"{place} is {_kind(value)} where a whole number belongs")
    if not -(2**63) <= value < 2**63:
        raise MalformedNeff(f"{place} is a number of more than 64 bits")
    return value


def optional_whole(item: dict[str, object], key: str, place: str) -> int | None:
    """`item[key]` as a whole number; None where it is absent or null."""
    return None if item.get(key) is None else as_whole(item[key], f"{place}, {key}")


def optional_text(item: dict[str, object], key: str, place: str) -> str | None:
    """`item[key]` as text; None where it is absent or null."""
    return None if item.get(key) is None else as_text(item[key], f"{place}, {key}")


def whole_list(value: object, place: str) -> list[int]:
    """`value` as a list of whole numbers, or MalformedNeff."""
    return [as_whole(number, place) for number in as_list(value, place)]


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__

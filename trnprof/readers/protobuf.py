"""A reader of the protobuf wire format, for messages whose schema is known by field number only.

Source: https://protobuf.dev/programming-guides/encoding/. The input is hostile until proved otherwise: every length is
checked against the message that holds it, nesting happens only where the caller descends, and nothing is copied until
it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator

Value = int | memoryview
"""A field's value: an int (varint, fixed32, fixed64; unsigned) or the bytes of a string, message or packed list."""


class WireError(ValueError):
    """Not a protobuf message; the text says what was found, the caller knows which file."""


def fields(message: bytes | memoryview) -> Iterator[tuple[int, Value]]:
    """Yield (field number, value) in the order of the wire.

    Raises: WireError for a varint over 64 bits, a length beyond the message, a wire type that is not known.
    """
    view = memoryview(message)
    at, size = 0, len(view)
    while at < size:
        key, at = varint(view, at)
        number, wire_type = key >> 3, key & 7
        if number == 0:
            raise WireError(f"field number 0 at byte {at}")
        if wire_type == 0:
            value, at = varint(view, at)
            yield number, value
            continue
        if wire_type == 2:
            length, at = varint(view, at)
        elif wire_type in (1, 5):
            length = 8 if wire_type == 1 else 4
        else:
            raise WireError(f"wire type {wire_type} at byte {at}")
        if length > size - at:
            raise WireError(f"field {number} at byte {at} claims {length} bytes, {size - at} are left")
        yield number, view[at : at + length] if wire_type == 2 else int.from_bytes(view[at : at + length], "little")
        at += length


def packed_varints(value: Value) -> list[int]:
    """The numbers of a packed repeated field (or the one number of an unpacked one)."""
    if isinstance(value, int):
        return [value]
    numbers, at = [], 0
    while at < len(value):
        number, at = varint(value, at)
        numbers.append(number)
    return numbers


def text(value: Value) -> str:
    """A string field; bytes that are not UTF-8 are kept as escapes, since names are only printed."""
    if isinstance(value, int):
        raise WireError(f"number {value} where a string belongs")
    return bytes(value).decode("utf-8", "backslashreplace")


def number(value: Value) -> int:
    """A numeric field."""
    if not isinstance(value, int):
        raise WireError(f"{len(value)} bytes where a number belongs")
    return value


def message(value: Value) -> memoryview:
    """A nested message."""
    if isinstance(value, int):
        raise WireError(f"number {value} where a message belongs")
    return value


def varint(view: memoryview, at: int) -> tuple[int, int]:
    """(value, first byte after it) of the varint at `at`. Raises WireError if there is none of at most 64 bits."""
    value = shift = 0
    for index in range(at, min(at + 10, len(view))):
        byte = view[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= 1 << 64:
                break
            return value, index + 1
        shift += 7
    raise WireError(f"no varint at byte {at}")

"""The mirror of readers/protobuf.py: fields to wire bytes."""

from __future__ import annotations


def varint(value: int) -> bytes:
    """An unsigned varint (negative numbers as their 64-bit two's complement)."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, value: int | str | bytes) -> bytes:
    """One field: an int as a varint, text or bytes (a nested message, a packed list) with its length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    payload = value.encode("utf-8") if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def packed(number: int, values: list[int]) -> bytes:
    """A packed repeated varint field; nothing for an empty list."""
    return field(number, b"".join(varint(value) for value in values)) if values else b""

"""A JSON file, plain or gzip, as Python values: bounded, exact in its numbers, and damaged ones told by place.

Floats come back as Decimal, so that a timestamp written as 1747123456789012.25 keeps its digits. NaN and Infinity,
which Python's and the vendor's writers let through, come back as floats, for the caller to count.
"""

from __future__ import annotations

import json
import zlib
from decimal import Decimal
from pathlib import Path

from trnprof.errors import InputDataError, InputMissingError

MAX_BYTES = 4 << 30
"""No JSON larger than this is read (the largest known full profile is 1.7 GB)."""

MAX_GZIP_RATIO = 200
"""Unpacked to packed size up to which a gzip file is believed (real profiles: 8 to 10); small files may be anything."""

_ALWAYS_UNPACKED = 64 << 20
_CHUNK = 1 << 20
_SNIPPET_CHARS = 24


def read_json(path: Path) -> tuple[object, int]:
    """(the file's value, how many bytes were not UTF-8 and were replaced).

    Raises: InputMissingError if it cannot be read; InputDataError if it is empty, too large, damaged gzip or no JSON,
            with line, byte offset and what stands there.
    """
    return parse_json(read_maybe_gzip(path), path)


def parse_json(data: bytes, path: Path) -> tuple[object, int]:
    """`read_json` of bytes that were read from `path`."""
    replaced = 0
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("utf-8-sig", "replace")
        replaced = text.count("\ufffd")
    if not text.strip():
        raise InputDataError("the file holds only blanks; was the conversion interrupted? convert again", path=path)
    try:
        return json.loads(text, parse_float=Decimal), replaced
    except json.JSONDecodeError as error:
        offset = len(text[: error.pos].encode("utf-8", "surrogatepass"))
        snippet = text[max(0, error.pos - _SNIPPET_CHARS) : error.pos + _SNIPPET_CHARS]
        raise InputDataError(
            f"not valid JSON: {error.msg} at line {error.lineno}, byte {offset:,}, near {json.dumps(snippet)}; "
            "convert the capture again, or give the .ntff itself",
            path=path,
        ) from None
    except RecursionError:
        raise InputDataError(
            "JSON nested too deeply to be a profile; give the file the profiler wrote", path=path
        ) from None
    except ValueError as error:  # an integer of thousands of digits
        raise InputDataError(f"not a profile's JSON: {str(error).splitlines()[0][:80]}", path=path) from None


def read_maybe_gzip(path: Path) -> bytes:
    """The file's bytes, unpacked where it is gzip.

    Raises: InputMissingError if it cannot be read; InputDataError if it is empty, too large or damaged gzip.
    """
    try:
        if path.is_dir():
            raise InputMissingError("a directory where a file belongs; name the file", path=path)
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise InputDataError(
                f"{size:,} bytes of JSON are more than trnprof reads ({MAX_BYTES:,}); give the .ntff or its Parquet",
                path=path,
            )
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise InputMissingError("no such file; check the path", path=path) from None
    except OSError as error:
        raise InputMissingError(f"cannot be read ({error.strerror or error})", path=path) from None
    if not data:
        raise InputDataError("the file is empty (0 bytes); was the conversion interrupted? convert again", path=path)
    return _gunzip(data, path) if data[:2] == b"\x1f\x8b" else data


def _gunzip(packed: bytes, path: Path) -> bytes:
    limit = min(MAX_BYTES, max(_ALWAYS_UNPACKED, MAX_GZIP_RATIO * len(packed)))
    parts: list[bytes] = []
    total, rest = 0, packed
    try:
        while rest[:2] == b"\x1f\x8b":  # gzip files may be concatenated
            member = zlib.decompressobj(wbits=31)
            while not member.eof:
                part = member.decompress(rest, _CHUNK)
                rest = member.unconsumed_tail
                total += len(part)
                if total > limit:
                    raise InputDataError(
                        f"the gzip file unpacks to more than {limit:,} bytes; no profile does, so it was not read",
                        path=path,
                    )
                if not part and not rest and not member.eof:
                    raise InputDataError("the gzip file ends in the middle; copy or download it again", path=path)
                parts.append(part)
            rest = member.unused_data
    except zlib.error:
        raise InputDataError("a damaged gzip file; copy or download it again", path=path) from None
    return b"".join(parts)

"""What a path holds, told from its content."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from enum import StrEnum
from pathlib import Path

from trnprof.errors import InputDataError, InputMissingError

NTFF_VERSIONS = (4, 5, 6)
"""Container versions whose layout has been observed; any other is refused by name."""

_HEAD_BYTES = 4096
_NEFF_HEADER_BYTES = 1024


class Format(StrEnum):
    """The formats trnprof reads."""

    NTFF = "ntff"
    NEFF = "neff"
    EXPLORER_PARQUET = "explorer-parquet"
    LEGACY_JSON = "legacy-json"
    SUMMARY_JSON = "summary-json"
    SUMMARY_TEXT = "summary-text"


def detect_format(path: Path) -> Format:
    """The format of the file or directory at `path`.

    Raises: InputMissingError if nothing can be read there; InputDataError if it is none of the formats, with what was
            found instead.
    """
    try:
        if path.is_dir():
            return _detect_directory(path)
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
            size = file.seek(0, 2)
    except FileNotFoundError:
        raise InputMissingError("no such file; check the path", path=path) from None
    except OSError as error:
        raise InputMissingError(f"cannot be read ({error.strerror or error})", path=path) from None
    if not head:
        raise InputDataError("the file is empty (0 bytes); was the capture interrupted? capture again", path=path)
    if _is_neff(head):
        return Format.NEFF
    if head[:2] == b"\x1f\x8b":
        head = _gunzip_head(path, head)
    if head.lstrip()[:1] in (b"{", b"["):
        return _detect_json(head)
    if _looks_like_ntff(head, size):
        return Format.NTFF
    if _looks_like_summary_text(head):
        return Format.SUMMARY_TEXT
    raise InputDataError(
        f"not a capture: neither NTFF, NEFF, profiler JSON, summary nor Explorer Parquet ({_describe(head)}); "
        "give the .ntff that neuron-explorer capture wrote, or its Parquet directory",
        path=path,
    )


def _detect_directory(path: Path) -> Format:
    if (path / "steps.parquet").is_file():
        raise InputDataError(
            "the step log of an engine's run on a CPU, no device profile; look at it with `trnprof anatomy`", path=path
        )
    if any(path.glob("*.parquet")):
        return Format.EXPLORER_PARQUET
    inner = sorted(child for child in path.iterdir() if child.is_dir() and any(child.glob("*.parquet")))
    if len(inner) == 1:
        return Format.EXPLORER_PARQUET
    raise InputDataError("a directory without Explorer Parquet tables; name one capture in it", path=path)


def _is_neff(head: bytes) -> bool:
    # A NEFF has no magic number: package version 1 or 2, header size 1024, and a gzip member right after the header.
    return (
        len(head) > _NEFF_HEADER_BYTES + 2
        and int.from_bytes(head[0:8], "little") in (1, 2)
        and int.from_bytes(head[8:16], "little") == _NEFF_HEADER_BYTES
        and head[_NEFF_HEADER_BYTES : _NEFF_HEADER_BYTES + 2] == b"\x1f\x8b"
    )


def _looks_like_ntff(head: bytes, size: int) -> bool:
    # An NTFF has no magic number either: a version byte, then the length of its metadata, unaligned. An unknown version
    # with a plausible length is still an NTFF, so that it can be refused by its number.
    metadata_bytes = int.from_bytes(head[1:9], "little")
    return (
        0 < head[0] < 32 and head[0] not in b"\t\n\r" and metadata_bytes > 0 and size >= 9 and metadata_bytes < 1 << 40
    )


def _gunzip_head(path: Path, head: bytes) -> bytes:
    try:
        unpacked = zlib.decompressobj(wbits=31).decompress(head, _HEAD_BYTES)
    except zlib.error:
        unpacked = b""
    if not unpacked:
        raise InputDataError("a damaged or empty gzip file; copy or download it again", path=path)
    return unpacked


def _detect_json(head: bytes) -> Format:
    # The full profile is an object of lists; the summary is an object of numbers, or a list with one such object.
    if re.match(rb'\s*\{\s*(\}|"[^"]*"\s*:\s*\[)', head):
        return Format.LEGACY_JSON
    if re.match(rb'\s*\{\s*"[^"]*"\s*:\s*\{', head) or re.match(rb"\s*\[?\s*\{", head):
        return Format.SUMMARY_JSON
    return Format.LEGACY_JSON


def _looks_like_summary_text(head: bytes) -> bool:
    lines = head.decode("utf-8", "replace").splitlines()[:-1]
    return sum(bool(re.fullmatch(r"\s*[a-z][a-z0-9_]*\s+\S+.*", line)) for line in lines) >= 5


def _describe(head: bytes) -> str:
    printable = sum(32 <= byte < 127 or byte in b"\t\r\n" for byte in head)
    if printable >= 0.95 * len(head):
        return f"it is text that begins {json.dumps(head[:24].decode('ascii', 'replace'))}"
    return f"it begins with bytes {head[:8].hex(' ')}"


def open_maybe_gzip(path: Path) -> gzip.GzipFile | object:
    """The file's bytes as a stream, unpacked where it is gzip."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if packed else path.open("rb")

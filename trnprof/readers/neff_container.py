"""A NEFF's container: a header of 1024 bytes, then a gzip-compressed tar of JSON, instruction streams and debug info.

Source: aws-neuron-sdk, neuron-runtime/explore/work-with-neff-files.rst (header fields, members). The archive is read as
one stream: members that nobody asked for are inflated and dropped, nothing is written to disk, and everything that a
hostile file could make large is bounded by the file's own size (see the constants).
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from trnprof.errors import InputDataError, InputMissingError

HEADER_BYTES = 1024

_HEADER = struct.Struct("<5Q128sI32s16s256sI64sQI")
"""The fields of neff_header_t in the document's order, packed; the rest of the 1024 bytes is padding."""

FEATURE_NAMES = {10: "virtual-core", 11: "v3-2x-4x-dve-perf-mode"}
"""Feature bits whose names are known: the vendor's profiler prints 0xc00 as these two, in this order. Which name is
which bit is taken from the order."""

# Real NEFFs inflate to 5-11 times their size. A file may claim far more (identical instructions pack 300 to 1), but what
# grows again when it is parsed is held shorter, so that a small file cannot ask for much memory. The floors keep small
# files usable.
MAX_UNPACKED_RATIO, MIN_UNPACKED_BYTES, MAX_UNPACKED_BYTES = 256, 64 << 20, 32 << 30
"""The archive may inflate to ratio × file size, but to at least and at most these."""
MAX_PARSED_RATIO, MIN_PARSED_BYTES, MAX_PARSED_BYTES = 24, 4 << 20, 4 << 30
"""Members that are parsed (JSON and debug info, all but streams), together; likewise. Public NEFFs reach 6.8."""
MAX_STREAM_BYTES = 4 << 30
"""Instruction streams (*.bin) that are kept, together."""
MAX_JSON_BYTES = 512 << 20
"""One JSON member: its Python objects take some ten times as much memory."""
MAX_MEMBERS = 65_536
MAX_TAIL_BYTES = 1 << 20
"""Zeros after the end of the archive: tar pads to blocks of 10240."""
_MAX_EXTENDED_BYTES = 1 << 16
"""A long name or an extended (pax) header."""
_CHUNK_BYTES = 1 << 18
_BLOCK_BYTES = 512


class MalformedNeff(ValueError):
    """The content of a NEFF is not what the format asks for; the text says what and where, the caller knows the file."""


@dataclass(frozen=True, kw_only=True)
class NeffHeader:
    """The header's fields, under the names of the vendor's document."""

    pkg_version: int = 2
    """1: the hash is SHA-256, 2: MD5."""
    header_size: int = HEADER_BYTES
    data_size: int = 0
    """Bytes after the header, zero padding included."""
    neff_version_major: int = 2
    neff_version_minor: int = 0
    neff_build_version: str = ""
    num_tpb: int = 1
    hash: str = "00" * 32
    """Hex. Compilers since 2.18 hash something else than the data that follows, so it identifies and proves nothing."""
    uuid: str = "00" * 16
    """Hex; a capture of this NEFF carries the same 16 bytes."""
    name: str = ""
    requested_tpb_count: int = 1
    tpb_per_node: tuple[int, ...] = (1,)
    """Without trailing zeros."""
    feature_bits: int = 0
    lnc_size: int = 1
    """Physical cores in one logical core."""

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the feature bits that are set, lowest first; `bit-N` where no name is known."""
        return tuple(FEATURE_NAMES.get(bit, f"bit-{bit}") for bit in range(64) if self.feature_bits >> bit & 1)


def parse_header(head: bytes) -> NeffHeader:
    """The header in the first 1024 bytes of a NEFF.

    Raises: MalformedNeff if they are not one.
    """
    if len(head) < HEADER_BYTES:
        raise MalformedNeff(f"{len(head)} bytes are too few for a NEFF header of {HEADER_BYTES}")
    (
        pkg_version,
        header_size,
        data_size,
        major,
        minor,
        build_version,
        num_tpb,
        digest,
        uuid,
        name,
        requested_tpb_count,
        tpb_per_node,
        feature_bits,
        lnc_size,
    ) = _HEADER.unpack_from(head)
    if pkg_version not in (1, 2) or header_size != HEADER_BYTES:
        raise MalformedNeff(
            f"no NEFF header: package version {pkg_version} and header size {header_size}, where 1 or 2 and {HEADER_BYTES} belong"
        )
    if not 0 < lnc_size <= 64:
        raise MalformedNeff(f"the header asks for {lnc_size} physical cores in a logical core")
    return NeffHeader(
        pkg_version=pkg_version,
        header_size=header_size,
        data_size=data_size,
        neff_version_major=major,
        neff_version_minor=minor,
        neff_build_version=_padded_text(build_version),
        num_tpb=num_tpb,
        hash=digest.hex(),
        uuid=uuid.hex(),
        name=_padded_text(name),
        requested_tpb_count=requested_tpb_count,
        tpb_per_node=tuple(tpb_per_node.rstrip(b"\0")),
        feature_bits=feature_bits,
        lnc_size=lnc_size,
    )


def pack_header(header: NeffHeader) -> bytes:
    """The 1024 bytes of a header: the inverse of parse_header.

    Raises: struct.error for a number that its field cannot hold; ValueError for a text longer than its field.
    """
    fields = _HEADER.pack(
        header.pkg_version,
        header.header_size,
        header.data_size,
        header.neff_version_major,
        header.neff_version_minor,
        _text_field(header.neff_build_version, 128),
        header.num_tpb,
        bytes.fromhex(header.hash),
        bytes.fromhex(header.uuid),
        _text_field(header.name, 256),
        header.requested_tpb_count,
        bytes(header.tpb_per_node),
        header.feature_bits,
        header.lnc_size,
    )
    return fields.ljust(HEADER_BYTES, b"\0")


def _padded_text(field: bytes) -> str:
    # Escapes keep bytes that are not UTF-8: a name is only printed.
    return field.split(b"\0", 1)[0].decode("utf-8", "backslashreplace")


def _text_field(text: str, size: int) -> bytes:
    encoded = text.encode("utf-8")
    if len(encoded) >= size or b"\0" in encoded:
        raise ValueError(f"{shown(text)} does not fit a header field of {size} bytes")
    return encoded


def read_header(path: Path) -> NeffHeader:
    """The header of the NEFF at `path`; nothing after it is read.

    Raises: InputMissingError if nothing can be read there; InputDataError if it is no NEFF.
    """
    with open_neff(path) as file:
        try:
            return parse_header(file.read(HEADER_BYTES))
        except MalformedNeff as error:
            raise InputDataError(f"{error}; give the .neff that the compiler wrote", path=path) from None


def open_neff(path: Path) -> BinaryIO:
    """The file at `path`, open for reading. Raises InputMissingError if that cannot be done."""
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise InputMissingError("no such file; check the path", path=path) from None
    except OSError as error:
        raise InputMissingError(f"cannot be read ({error.strerror or error})", path=path) from None


def read_members(file: BinaryIO, wanted: Callable[[str], bool]) -> dict[str, bytes | None]:
    """The archive's members in their order: content of those whose name is `wanted`, None for the others.

    file: an open NEFF; read from its header on.

    Raises: MalformedNeff for a file that is cut off or inflates without end, for names that point outside the archive
            or stand twice, for members that are no plain files, and for sizes that the file cannot hold.
    """
    file.seek(0)
    header = parse_header(file.read(HEADER_BYTES))
    file_bytes = file.seek(0, 2)
    if file_bytes < HEADER_BYTES + header.data_size:
        raise MalformedNeff(
            f"the file is cut off: its header announces {HEADER_BYTES + header.data_size} bytes, {file_bytes} are there"
        )
    file.seek(HEADER_BYTES)
    stream = _Inflater(
        file, header.data_size, _bound(file_bytes, MAX_UNPACKED_RATIO, MIN_UNPACKED_BYTES, MAX_UNPACKED_BYTES)
    )
    left = {
        True: MAX_STREAM_BYTES,
        False: _bound(file_bytes, MAX_PARSED_RATIO, MIN_PARSED_BYTES, MAX_PARSED_BYTES),
    }
    members: dict[str, bytes | None] = {}
    while (entry := _next_entry(stream)) is not None:
        name, size = entry
        if name in members:
            raise MalformedNeff(f"two members of the archive are named {shown(name)}")
        if len(members) == MAX_MEMBERS:
            raise MalformedNeff(f"the archive has more than {MAX_MEMBERS} members")
        if not wanted(name):
            stream.skip(size)
            members[name] = None
        else:
            is_stream = name.endswith(".bin")
            left[is_stream] -= size
            if left[is_stream] < 0 or (name.endswith(".json") and size > MAX_JSON_BYTES):
                raise MalformedNeff(
                    f"member {shown(name)} of {size} bytes is too large for a NEFF of {file_bytes} bytes"
                )
            members[name] = stream.read(size)
        stream.skip(-size % _BLOCK_BYTES)
    stream.finish()
    return members


def _bound(file_bytes: int, ratio: int, floor: int, cap: int) -> int:
    return min(max(ratio * file_bytes, floor), cap)


class _Inflater:
    """The unpacked stream of the gzip member in the next `packed_bytes` of a file, bounded."""

    def __init__(self, file: BinaryIO, packed_bytes: int, limit: int) -> None:
        self._file = file
        self._packed_left = packed_bytes
        self._limit = limit
        self._left = limit
        self._decoder = zlib.decompressobj(wbits=31)
        self._buffer = b""
        self._at = 0

    def read(self, size: int) -> bytes:
        """The next `size` bytes."""
        parts = []
        while size:
            if self._at == len(self._buffer):
                self._fill()
            part = self._buffer[self._at : self._at + size]
            self._at += len(part)
            size -= len(part)
            parts.append(part)
        return b"".join(parts)

    def skip(self, size: int) -> None:
        """Drop the next `size` bytes."""
        while size:
            if self._at == len(self._buffer):
                self._fill()
            step = min(size, len(self._buffer) - self._at)
            self._at += step
            size -= step

    def finish(self) -> None:
        """Read what is left, which must be a few zeros, so that gzip's own checksum is checked."""
        left = MAX_TAIL_BYTES
        while True:
            tail = self._buffer[self._at :]
            left -= len(tail)
            if left < 0 or tail.strip(b"\0"):
                raise MalformedNeff("there is data after the end of the archive")
            self._at = len(self._buffer)
            if self._decoder.eof:
                return
            self._fill()

    def _fill(self) -> None:
        """Put the next piece, at most a chunk, into the buffer."""
        while True:
            if self._decoder.eof:
                raise MalformedNeff("the archive ends in the middle of a member")
            packed = self._decoder.unconsumed_tail
            if not packed:
                packed = self._file.read(min(_CHUNK_BYTES, self._packed_left))
                self._packed_left -= len(packed)
            try:
                self._buffer = self._decoder.decompress(packed, _CHUNK_BYTES)
            except zlib.error as error:
                raise MalformedNeff(f"the compressed data is damaged ({error})") from None
            self._at = 0
            self._left -= len(self._buffer)
            if self._left < 0:
                raise MalformedNeff(f"the archive inflates to more than {self._limit} bytes, far beyond any real NEFF")
            if self._buffer or self._decoder.eof:
                return
            if not packed:
                raise MalformedNeff("the compressed data ends too early")


def _next_entry(stream: _Inflater) -> tuple[str, int] | None:
    """(name, size) of the next file in the archive, whose content follows; None at its end."""
    long_name: str | None = None
    long_size: int | None = None
    while True:
        block = stream.read(_BLOCK_BYTES)
        if not block.strip(b"\0"):
            return None
        if _octal(block[148:156]) != sum(block) - sum(block[148:156]) + 8 * ord(" "):
            raise MalformedNeff("a member's header in the archive fails its checksum")
        kind, size = block[156:157], _octal(block[124:136])
        if kind in (b"L", b"x", b"g"):
            if size > _MAX_EXTENDED_BYTES:
                raise MalformedNeff(f"an extended header of {size} bytes in the archive")
            extension = stream.read(size)
            stream.skip(-size % _BLOCK_BYTES)
            if kind == b"L":
                long_name = _member_name(extension.rstrip(b"\0"))
            elif kind == b"x":
                records = _pax_records(extension)
                long_name = _member_name(records[b"path"]) if b"path" in records else long_name
                long_size = _decimal(records[b"size"]) if b"size" in records else long_size
            continue
        if long_name is None:
            prefix = block[345:500].split(b"\0", 1)[0] if block[257:262] == b"ustar" else b""
            name = block[:100].split(b"\0", 1)[0]
            long_name = _member_name(prefix + b"/" + name if prefix else name)
        if kind == b"5":
            long_name, long_size = None, None
            continue
        if kind not in (b"0", b"\0"):
            raise MalformedNeff(
                f"member {shown(long_name)} is no plain file (tar type {shown(kind.decode('latin-1'))})"
            )
        return long_name, size if long_size is None else long_size


def _member_name(raw: bytes) -> str:
    """A name that stays inside the archive, or MalformedNeff."""
    text = raw.decode("utf-8", "backslashreplace")
    name = text.removeprefix("./")
    if (
        not name
        or name.startswith("/")
        or "\\" in name
        or len(name) > 1024
        or not name.isprintable()
        or ".." in name.split("/")
    ):
        raise MalformedNeff(f"a member's name points outside the archive or has odd characters: {shown(text)}")
    return name


def _octal(field: bytes) -> int:
    """A number of a tar header: octal text, or big-endian binary where the first bit is set."""
    if field[:1] in (b"\x80", b"\xff"):
        number = int.from_bytes(field[1:], "big")
        if field[0] == 0xFF or number >= 1 << 62:
            raise MalformedNeff("a member's size in the archive is impossible")
        return number
    digits = field.strip(b" \0")
    if not digits:
        return 0
    if not all(48 <= digit < 56 for digit in digits):
        raise MalformedNeff("a member's header in the archive is damaged")
    return int(digits, 8)


def _decimal(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > 18:
        raise MalformedNeff("a member's size in the archive is impossible")
    return int(digits)


def _pax_records(extension: bytes) -> dict[bytes, bytes]:
    """The `length key=value` records of an extended header."""
    records = {}
    at = 0
    while at < len(extension) and extension[at] != 0:
        digits, space, _ = extension[at : at + 20].partition(b" ")
        size = _decimal(digits)
        record = extension[at : at + size]
        key, equals, value = record[len(digits) + 1 :].partition(b"=")
        if not space or not equals or len(record) != size or not value.endswith(b"\n"):
            raise MalformedNeff("an extended header in the archive is damaged")
        records[key] = value[:-1]
        at += size
    return records


def shown(text: str) -> str:
    """An untrusted text as one short, quoted piece of ASCII for a message."""
    return json.dumps(text if len(text) <= 80 else text[:77] + "...")

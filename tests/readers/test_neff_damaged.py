"""Hostile and damaged NEFFs: one line that names what was found, in bounded time and memory; never another exception."""

from __future__ import annotations

import io
import json
import os
import random
import tarfile
import time
import tracemalloc
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.neffs import small_neff
from trnprof.analyzers.neff_summary import summarize_neff
from trnprof.errors import InputDataError
from trnprof.readers.neff import Neff, read_neff, read_neff_uuid
from trnprof.readers.neff_container import NeffHeader, pack_header, parse_header, read_members
from trnprof.readers.neff_origins import trace_origins
from trnprof.writers.neff import pack_members, write_neff


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small NEFF as a file."""
    path = tmp_path_factory.mktemp("neff") / "by_hand.neff"
    write_neff(small_neff(), path)
    return path


@pytest.fixture(scope="module")
def members(small: Path) -> dict[str, bytes]:
    """Its members."""
    with small.open("rb") as file:
        return {name: content for name, content in read_members(file, lambda name: True).items() if content is not None}


def pack(data: bytes) -> bytes:
    """A NEFF with this data."""
    return pack_header(NeffHeader(data_size=len(data))) + data


def gzipped(content: bytes) -> bytes:
    """Content as a gzip stream."""
    compressor = zlib.compressobj(wbits=31)
    return compressor.compress(content) + compressor.flush()


def refusal(path: Path, content: bytes) -> str:
    """The message with which the content is refused: one line, not long, with the file's path beside it."""
    path.write_bytes(content)
    with pytest.raises(InputDataError) as caught:
        read_neff(path)
    message = str(caught.value)
    assert "\n" not in message and message.isprintable() and len(message) < 500
    assert caught.value.path == str(path)
    return message


def use(path: Path) -> Neff | None:
    """Everything that is done with a NEFF; None where it is refused."""
    try:
        neff = read_neff(path)
    except InputDataError as error:
        assert "\n" not in str(error) and len(str(error)) < 500
        return None
    trace_origins(neff)
    summarize_neff(neff)
    return neff


# Cut off.


def test_cut_off_anywhere(small: Path, tmp_path: Path) -> None:
    """The header announces the size, so that no missing byte goes unseen, not even of the padding."""
    content = small.read_bytes()
    path = tmp_path / "cut.neff"
    path.write_bytes(content)
    for size in range(len(content) - 1, -1, -1):
        os.truncate(path, size)
        with pytest.raises(InputDataError, match=r"cut off|too few"):
            read_neff(path)


def test_cut_off_where_the_header_agrees(small: Path, tmp_path: Path) -> None:
    """With a header that announces the cut size, the compressed data itself ends too early."""
    content = small.read_bytes()
    data = content[1024:].rstrip(b"\0")
    header = parse_header(content)
    path = tmp_path / "cut.neff"
    for size in range(0, len(data), 7):
        path.write_bytes(pack_header(replace(header, data_size=size)) + data[:size])
        with pytest.raises(InputDataError, match="ends too early"):
            read_neff(path)


def test_bytes_after_the_announced_size_do_not_matter(small: Path, tmp_path: Path) -> None:
    path = tmp_path / "longer.neff"
    path.write_bytes(small.read_bytes() + b"more")
    assert read_neff(path).header.uuid == small_neff().header.uuid


# Other content.


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=3000))
def test_random_bytes(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("neff") / "random.neff"
    refusal(path, content)
    refusal(path, pack(content))
    refusal(path, pack(gzipped(content)))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (NeffHeader(pkg_version=3), "package version 3"),
        (NeffHeader(header_size=512), "header size 512"),
        (NeffHeader(lnc_size=0), "0 physical cores"),
        (NeffHeader(data_size=2**63), "cut off"),
    ],
)
def test_header_that_is_none(tmp_path: Path, header: NeffHeader, message: str) -> None:
    assert message in refusal(tmp_path / "x.neff", pack_header(header))


def test_uuid_of_what_is_no_neff(tmp_path: Path) -> None:
    path = tmp_path / "x.neff"
    path.write_bytes(b"\x06" + bytes(2000))
    with pytest.raises(InputDataError, match="no NEFF header"):
        read_neff_uuid(path)


def test_flipped_bit_in_the_compressed_data(small: Path, tmp_path: Path) -> None:
    """Behind gzip's own 10 bytes a flipped bit is found by its checksum, unless it unpacks to the very same bytes.

    Which a few do: the distance of a copy within a run of zeros does not matter.
    """
    content = bytearray(small.read_bytes())
    path = tmp_path / "x.neff"
    packed_bytes = len(content[1024:].rstrip(b"\0"))
    unpacked = zlib.decompressobj(wbits=31).decompress(content[1024:])
    refused = 0
    for at in range(1024 + 10, 1024 + packed_bytes, 5):
        content[at] ^= 8
        path.write_bytes(content)
        try:
            read_neff(path)
        except InputDataError:
            refused += 1
        else:
            assert zlib.decompressobj(wbits=31).decompress(content[1024:]) == unpacked
        content[at] ^= 8
    assert refused > 400


# Archives.


def archive(*entries: tuple[tarfile.TarInfo, bytes], form: int = tarfile.GNU_FORMAT) -> bytes:
    """A NEFF whose archive has these entries."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=form) as tar:
        for info, body in entries:
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    return pack(gzipped(content.getvalue()))


@pytest.mark.parametrize(
    "name",
    [
        "../kelf-0.json",
        "sg00/../../kelf-0.json",
        "/etc/kelf-0.json",
        "sg00\\..\\kelf-0.json",
        "kelf\x1b[31m.json",
        "kelf\n.json",
        "kelf\u202e.json",
        "..",
        "sg00/..",
        "x/" * 600,
    ],
)
def test_names_that_point_outside_or_hide(tmp_path: Path, name: str) -> None:
    message = refusal(tmp_path / "x.neff", archive((tarfile.TarInfo(name), b"{}")))
    assert "points outside the archive or has odd characters" in message
    assert list(tmp_path.iterdir()) == [tmp_path / "x.neff"], "nothing is unpacked"


def test_name_that_stands_twice(tmp_path: Path) -> None:
    twice = archive((tarfile.TarInfo("info.json"), b"{}"), (tarfile.TarInfo("info.json"), b"[]"))
    assert 'two members of the archive are named "info.json"' in refusal(tmp_path / "x.neff", twice)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, b"S", b"Z"])
def test_member_that_is_no_file(tmp_path: Path, kind: bytes) -> None:
    info = tarfile.TarInfo("info.json")
    info.type, info.linkname = kind, "/etc/passwd"
    assert "is no plain file" in refusal(tmp_path / "x.neff", archive((info, b"")))


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_archives_of_other_tools(members: dict[str, bytes], tmp_path: Path, form: int) -> None:
    """Folders, a leading ./ and names over 100 characters are no reason to refuse."""
    folder = tarfile.TarInfo("./sg00")
    folder.type = tarfile.DIRTYPE
    long_name = "sg00/" + "a" * 60 + "/" + "b" * 60 + ".npy"
    entries = [(folder, b""), (tarfile.TarInfo(long_name), b"content")]
    entries += [(tarfile.TarInfo(f"./{name}"), content) for name, content in members.items()]
    (tmp_path / "x.neff").write_bytes(archive(*entries, form=form))
    assert len(read_neff(tmp_path / "x.neff").cores) == 2
    with (tmp_path / "x.neff").open("rb") as file:
        assert long_name in read_members(file, lambda name: False)


@pytest.mark.parametrize(
    ("at", "field", "message"),
    [
        (124, b"77777777777\0", "inflates|too large|ends in the middle"),  # 8 GiB announced
        (124, b"\x80" + b"\x01" * 11, "impossible"),  # in binary
        (124, b"\xff" * 12, "impossible"),
        (124, b"not a size \0", "damaged"),
        (124, b"00000000007\0", "checksum|ends in the middle|damaged"),  # smaller than it is
    ],
)
def test_sizes_that_lie(tmp_path: Path, at: int, field: bytes, message: str) -> None:
    info = tarfile.TarInfo("info.json")
    info.size = 600
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[at : at + len(field)] = field
    block[148:156] = b" " * 8
    block[148:156] = f"{sum(block):06o}\0 ".encode()
    content = bytes(block) + b"x" * 1024 + bytes(1024)
    path = tmp_path / "x.neff"
    path.write_bytes(pack(gzipped(content)))
    with pytest.raises(InputDataError, match=message):
        read_neff(path)


@pytest.mark.parametrize(
    "records", [b"9 path=x", b"0 path=x\n", b"99 path=x\n", b"-5 path=x\n", b"12 size=zz\n  ", b"\xff"]
)
def test_extended_headers_that_lie(tmp_path: Path, records: bytes) -> None:
    info = tarfile.TarInfo("header")
    info.type = tarfile.XHDTYPE
    refusal(tmp_path / "x.neff", archive((info, records), (tarfile.TarInfo("info.json"), b"{}")))


def test_data_after_the_end_of_the_archive(members: dict[str, bytes], tmp_path: Path) -> None:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name, body in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    message = refusal(tmp_path / "x.neff", pack(gzipped(content.getvalue() + b"hidden")))
    assert "data after the end of the archive" in message


# Bombs.


def _refused_within(path: Path, content: bytes, *, seconds: float, peak_bytes: int) -> str:
    path.write_bytes(content)
    tracemalloc.start()
    began = time.perf_counter()
    try:
        with pytest.raises(InputDataError) as caught:
            read_neff(path)
        elapsed = time.perf_counter() - began
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert elapsed < seconds
    assert peak < peak_bytes
    return str(caught.value)


@pytest.fixture(scope="module")
def zeros() -> bytes:
    """The head of a member of 100 MiB of zeros, and 80 MiB of them: 80 KiB compressed."""
    info = tarfile.TarInfo("sg00/value_constant.npy")
    info.size = 100 << 20
    return gzipped(info.tobuf(tarfile.GNU_FORMAT) + bytes(80 << 20))


def test_archive_that_inflates_without_end(zeros: bytes, tmp_path: Path) -> None:
    """A member that nobody needs is inflated and dropped, up to 64 MiB here: 256 times the file would be less."""
    message = _refused_within(tmp_path / "x.neff", pack(zeros), seconds=10, peak_bytes=16 << 20)
    assert "inflates to more than 67108864 bytes" in message


def test_member_that_is_too_large_to_parse(tmp_path: Path) -> None:
    info = tarfile.TarInfo("sg00/PE.json")
    info.size = 40 << 20
    content = gzipped(info.tobuf(tarfile.GNU_FORMAT) + bytes(40 << 20))
    message = _refused_within(tmp_path / "x.neff", pack(content), seconds=5, peak_bytes=16 << 20)
    assert 'member "sg00/PE.json" of 41943040 bytes is too large for a NEFF of' in message


def test_a_million_times_the_same_instruction_is_no_bomb(members: dict[str, bytes], tmp_path: Path) -> None:
    """A microbenchmark's stream packs 300 to 1 and is still read: 600,000 instructions of 64 bytes, 38 MB, in 124 kB."""
    path = tmp_path / "x.neff"
    stream = members["sg00/PE.bin"][:64] * 600_000
    path.write_bytes(_with(members, {"sg00/PE.bin": stream, "sg00/debug_info_asm_PE.dbg": None}))
    assert path.stat().st_size < 130_000
    assert len(read_neff(path).cores[0].streams["tensor"].words) == 600_000


def test_more_members_than_any_neff_has(tmp_path: Path) -> None:
    names = (tarfile.TarInfo(f"x{index}").tobuf(tarfile.GNU_FORMAT) for index in range(65_600))
    message = _refused_within(tmp_path / "x.neff", pack(gzipped(b"".join(names))), seconds=20, peak_bytes=64 << 20)
    assert "more than 65536 members" in message


def test_zeros_after_the_archive_without_end(members: dict[str, bytes], tmp_path: Path) -> None:
    archive_bytes = zlib.decompressobj(wbits=31).decompress(pack_members(members))
    content = pack(gzipped(archive_bytes + bytes(30 << 20)))
    assert "after the end" in _refused_within(tmp_path / "x.neff", content, seconds=5, peak_bytes=16 << 20)


# Content of members.


def _with(members: dict[str, bytes], changes: dict[str, bytes | None]) -> bytes:
    changed = {name: content for name, content in (members | changes).items() if content is not None}
    return pack(pack_members(changed))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kelf-0.json": None}, "has no kelf-0.json"),
        ({"kelf-0.json": b"[]"}, '"kelf-0.json" is list where an object belongs'),
        ({"kelf-0.json": b"{"}, '"kelf-0.json" is not JSON'),
        ({"kelf-0.json": b"\xff\xfe"}, '"kelf-0.json" is not JSON'),
        ({"kelf-0.json": b"[" * 200_000}, '"kelf-0.json" is nested too deep'),
        ({"kelf-0.json": b'{"graphs": []}'}, "lists no subgraph"),
        ({"kelf-0.json": b'{"graphs": [{"definition": "def.json"}]}'}, "is in no subgraph"),
        ({"kelf-0.json": b'{"graphs": [{"definition": "sg00/def.json"}, {"definition": "sg00/def.json"}]}'}, "twice"),
        ({"kelf-0.json": b'{"graphs": [{"definition": "sg07/def.json"}]}'}, 'has no "sg07/def.json"'),
        ({"info.json": b'{"tool_version": 7}'}, "info.json, tool_version is int where text belongs"),
        ({"sg00/PE.bin": None}, 'has no "sg00/PE.bin"'),
        ({"sg00/PE.bin": bytes(65)}, "65 bytes are not a whole number of 64-byte instructions"),
        ({"sg00/SP.json": b'{"dma": [{"id": "0"}]}'}, "id is str where a whole number belongs"),
        ({"sg00/SP.json": b'{"dma": [{"id": 0, "desc": [{}]}]}'}, "from_sizes is null where a list belongs"),
        ({"sg00/debug_info_backend_PE.dbg": b"\x1a\x05\x08"}, 'debug_info_backend_PE.dbg": field 3 at byte 0 claims 5'),
        ({"sg00/debug_info_asm_PE.dbg": b"\x1a\x02\x1a\x7f"}, "longer than the message that holds it"),
        ({"attention.debuginfo.json": b"[1]"}, "has no list `info`"),
    ],
)
def test_message_names_the_place(
    members: dict[str, bytes], tmp_path: Path, changes: dict[str, bytes | None], message: str
) -> None:
    assert message in refusal(tmp_path / "x.neff", _with(members, changes))


@pytest.mark.parametrize("size", [-1, 2**63, 2**48, 1.5, True, None, "4000"])
def test_sizes_of_access_patterns_that_cannot_be(members: dict[str, bytes], tmp_path: Path, size: object) -> None:
    document = json.loads(members["sg00/SP.json"])
    document["dma"][0]["desc"][0]["from_sizes"] = [size, 128]
    refusal(tmp_path / "x.neff", _with(members, {"sg00/SP.json": json.dumps(document).encode()}))


def test_debug_info_that_does_not_fit_is_left_out_and_named(members: dict[str, bytes], tmp_path: Path) -> None:
    """One entry too many for the tensor engine's three instructions: its names are not used, the others' are."""
    path = tmp_path / "x.neff"
    longer = members["sg00/debug_info_asm_PE.dbg"] + b"\x1a\x00"
    path.write_bytes(_with(members, {"sg00/debug_info_asm_PE.dbg": longer}))
    neff = read_neff(path)
    assert [(issue.code, issue.count) for issue in neff.issues] == [("DQ030", 1)]
    assert (neff.cores[0].streams["tensor"].bir_ids == -1).all()
    assert (neff.cores[0].streams["sync"].bir_ids >= 0).any()


def test_kernel_tree_that_is_not_there_is_named(members: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "x.neff"
    path.write_bytes(_with(members, {"attention.debuginfo.json": None}))
    assert [issue.code for issue in read_neff(path).issues] == ["DQ030"]


def test_stream_under_a_name_of_its_own_is_found(members: dict[str, bytes], tmp_path: Path) -> None:
    """def.json says what the stream is called; it may be called anything."""
    definition = json.loads(members["sg00/def.json"]) | {"pe_instr": "tensor_program"}
    changes = {"sg00/def.json": json.dumps(definition).encode(), "sg00/tensor_program": members["sg00/PE.bin"]}
    (tmp_path / "x.neff").write_bytes(_with(members, {"sg00/PE.bin": None, **changes}))
    assert len(read_neff(tmp_path / "x.neff").cores[0].streams["tensor"].words) == 3


def test_deep_kernel_tree_is_read_in_time(members: dict[str, bytes], tmp_path: Path) -> None:
    """300 nested loops around each of 2,000 instructions: what is climbed is climbed for all of them together."""
    node: dict[str, object] = {"func": {"name": "f", "line": 1, "file": "/f.py", "children": []}}
    inner = node["func"]["children"]  # type: ignore[index]
    for depth in range(300):
        inner.append({"iter": {"var": f"i{depth}", "val": "0", "line": depth, "children": []}})
        inner = inner[0]["iter"]["children"]
    inner.extend({"inst": {"name": f"inst.{index}", "line": 9}} for index in range(2000))
    tree = json.dumps([{"lnc": 1, "info": [node]}]).encode()
    (tmp_path / "x.neff").write_bytes(_with(members, {"attention.debuginfo.json": tree}))
    began = time.perf_counter()
    neff = use(tmp_path / "x.neff")
    assert neff is not None
    assert neff.kernels[0].nodes.num_rows == 2301
    assert time.perf_counter() - began < 5


_VALUES = ["null", "-1", "1e400", "NaN", "99999999999999999999", '"\\ud800"', '"x"', "[]", "{}", "[1]", "true", "0"]


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 4))
def test_mutated_members(
    members: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory, seed: int, count: int
) -> None:
    """Whatever stands in the members: a NEFF or a refusal, and what is read can be traced and summarised."""
    rng = random.Random(seed)
    changed = dict(members)
    for _ in range(count):
        name = rng.choice(sorted(changed))
        content = bytearray(changed[name])
        at = rng.randrange(len(content) + 1)
        match rng.randrange(5):
            case 0:
                content[at : at + 1] = bytes([rng.choice([0, 1, 127, 128, 255])])
            case 1:
                del content[at:]
            case 2:
                content[at:at] = rng.randbytes(rng.randrange(1, 16))
            case 3:
                del content[at : at + rng.randrange(1, 70)]
            case _:
                if name.endswith(".json"):
                    content = _with_value_replaced(content, rng)
        changed[name] = bytes(content)
    path = tmp_path_factory.mktemp("neff") / "x.neff"
    path.write_bytes(pack(pack_members(changed)))
    use(path)


def _with_value_replaced(content: bytearray, rng: random.Random) -> bytearray:
    """JSON with one of its values replaced by another."""
    try:
        document = json.loads(content)
    except ValueError:
        return content
    places: list[tuple[object, object]] = []
    pending = [document]
    while pending:
        item = pending.pop()
        if isinstance(item, dict | list):
            keys = list(item) if isinstance(item, dict) else list(range(len(item)))
            places += [(item, key) for key in keys]
            pending += [item[key] for key in keys]
    if places:
        item, key = rng.choice(places)
        item[key] = "\0value\0"  # type: ignore[index]
    return bytearray(json.dumps(document).replace('"\\u0000value\\u0000"', rng.choice(_VALUES)).encode())

"""Instruction words: hand-made ones, and every instruction of real captures against the vendor's printed operands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.readers import vendor
from trnprof.readers import isa
from trnprof.readers.ntff_container import read_container
from trnprof.readers.ntff_tables import ENGINE_NAMES


def word(**fields: tuple[int, int]) -> isa.Words:
    """One instruction from (value, bytes) at byte offsets: word(at0=(0xA4, 1))."""
    made = bytearray(isa.WORD_BYTES)
    for name, (value, size) in fields.items():
        at = int(name.removeprefix("at"))
        made[at : at + size] = value.to_bytes(size, "little")
    return isa.split_words(bytes(made))


def test_every_byte_has_one_name() -> None:
    assert len(isa.OPCODE_NAMES) == len(set(isa.OPCODE_NAMES)) == 256
    assert all(isa.OPCODE_NAMES[opcode] == name for name, opcode in isa.OPCODE_OF_NAME.items())
    assert isa.OPCODE_NAMES[0xEE] == "OP_0xEE"
    assert not isa.CONFIRMED_OPCODES.keys() & isa.UNCONFIRMED_OPCODES.keys()


def test_stream_must_be_whole_words() -> None:
    assert isa.split_words(b"").shape == (0, 64)
    with pytest.raises(ValueError, match="65 bytes"):
        isa.split_words(bytes(65))


def test_wait_and_increment() -> None:
    """COPY that waits for S[5] >= 3 and increments S[4]."""
    events = isa.decode_events(word(at0=(0x46, 1), at4=(5, 1), at5=(5, 1), at6=(0x13, 1), at7=(4, 1), at8=(3, 4)))
    assert isa.WAIT_CONDITIONS[events.wait_mode[0]] == ">="
    assert (events.wait_idx[0], events.wait_value[0]) == (5, 3)
    assert isa.UPDATE_OPERATIONS[events.update_mode[0]] == "sem_inc"
    assert (events.update_idx[0], events.update_value[0]) == (4, 1)


def test_second_block_of_event_semaphore() -> None:
    """$S[2]==8, then $S[2]=0: both in the second block. Only EVENT_SEMAPHORE has one."""
    fields = {"at32": (1, 1), "at33": (2, 1), "at34": (0x19, 1), "at35": (2, 1), "at36": (8, 4), "at40": (0, 4)}
    events = isa.decode_events(word(at0=(0xA0, 1), **fields))
    assert (events.wait_mode[0], events.wait_idx[0], events.wait_value[0]) == (1, 2, 8)
    assert (events.update_mode[0], events.update_idx[0], events.update_value[0]) == (0x19, 2, 0)
    assert isa.decode_events(word(at0=(0x46, 1), **fields)).wait_mode[0] == 0


def test_event_semaphore_with_two_waits() -> None:
    """S[24]>=16 in the first block, S[10]>=32 in the second."""
    words = word(at0=(0xA0, 1), at4=(5, 1), at5=(24, 1), at8=(16, 4), at32=(5, 1), at33=(10, 1), at36=(32, 4))
    first = isa.decode_events(words)
    assert (first.wait_idx[0], first.wait_value[0]) == (24, 16)
    assert [values[0] for values in isa.decode_second_wait(words)] == [5, 10, 32]


def test_dma_geometry() -> None:
    """128 rows of 4 elements of 512 bytes from SBUF, cast to 256 bytes each in HBM: 262,144 bytes read, 131,072 written."""
    words = word(
        at0=(0xB8, 1), at13=(27, 1), at14=(16, 2),
        at16=(0x802000008850, 8), at24=(512, 4), at28=(262144, 4), at32=(4, 2), at34=(128, 2), at36=(512, 2),
        at40=(0x800001000000, 8), at48=(32768, 4), at52=(256, 4), at56=(4, 2), at58=(128, 2), at60=(256, 2),
        at62=(10, 1), at63=(6, 1),
    )  # fmt: skip
    geometry = isa.decode_dma_direct2d(words)
    assert (geometry.semaphore[0], geometry.increment[0]) == (27, 16)
    assert (geometry.source.space[0], geometry.dest.space[0]) == (isa.AddressSpace.SBUF, isa.AddressSpace.HBM)
    assert geometry.source.stride.tolist() == [[512, 262144]]
    assert geometry.dest.count.tolist() == [[4, 128]]
    assert (geometry.source.descriptor_count[0], geometry.dest.descriptor_count[0]) == (512, 512)
    assert (geometry.source.byte_count[0], geometry.dest.byte_count[0]) == (262144, 131072)
    assert (geometry.hbm_read_bytes()[0], geometry.hbm_write_bytes()[0]) == (0, 131072)
    assert [isa.DTYPE_NAMES[code] for code in (geometry.source.dtype[0], geometry.dest.dtype[0])] == ["fp32", "bf16"]
    events = isa.decode_events(words)
    assert (events.update_mode[0], events.update_idx[0], events.update_value[0]) == (0x15, 27, 16)


def test_dma_of_the_neff_form() -> None:
    """Source: the bound tensor with index 3, at offset 64 plus a register. Destination: variable 7, not placed yet."""
    words = word(
        at0=(0xD4, 1), at16=(64, 4), at20=(3, 3), at23=(0x28, 1), at32=(1, 2), at34=(128, 2), at36=(2048, 2),
        at40=(4096, 4), at44=(7, 3), at47=(0x10, 1), at56=(1, 2), at58=(128, 2), at60=(2048, 2),
    )  # fmt: skip
    geometry = isa.decode_dma_direct2d(words)
    source, dest = geometry.source, geometry.dest
    assert (source.is_table[0], source.is_register_offset[0], source.variable[0], source.address[0]) == (1, 1, 3, 64)
    assert (dest.is_table[0], dest.is_register_offset[0], dest.variable[0], dest.address[0]) == (0, 0, 7, 4096)
    assert (source.space[0], dest.space[0]) == (isa.AddressSpace.HBM, isa.AddressSpace.VARIABLE)
    assert (geometry.hbm_read_bytes()[0], geometry.hbm_write_bytes()[0]) == (262144, -1)


@pytest.mark.parametrize(
    ("address", "space"),
    [
        (0x8005C03B0000, isa.AddressSpace.HBM),
        (0x8020000377F8, isa.AddressSpace.SBUF),
        (0x802002000000, isa.AddressSpace.PSUM),
        (0x80100252F038, isa.AddressSpace.REGISTERS),
        (0x12345678, isa.AddressSpace.UNKNOWN),
    ],
)
def test_device_addresses(address: int, space: isa.AddressSpace) -> None:
    assert isa.device_address_space(np.array([address])).tolist() == [space]


def test_matmul_size() -> None:
    """128 x 128 array, 512 columns streamed: 8,388,608 multiply-accumulates."""
    fields = {"at26": (512, 2), "at28": (1, 2), "at30": (1, 2), "at38": (128, 1), "at39": (128, 1)}
    assert isa.matmul_macs(word(at0=(0x02, 1), **fields)).tolist() == [8_388_608]
    assert isa.matmul_macs(word(at0=(0x01, 1), **fields)).tolist() == [0]


def test_operand_spaces() -> None:
    """ACTIVATE from PSUM bank 1 to SBUF; a byte of unknown layout says nothing."""
    source, dest = isa.operand_spaces(word(at0=(0x21, 1), at16=(0x2000800, 4), at48=(0x4000, 4)))
    assert (source[0], dest[0]) == (isa.AddressSpace.PSUM, isa.AddressSpace.SBUF)
    source, dest = isa.operand_spaces(word(at0=(0xEE, 1), at16=(0x2000800, 4)))
    assert (source[0], dest[0]) == (isa.AddressSpace.UNKNOWN, isa.AddressSpace.UNKNOWN)


@given(arrays(np.uint8, st.tuples(st.integers(0, 40), st.just(64))))
def test_any_bytes_decode(words: isa.Words) -> None:
    """No word is too odd: values stay in the range of their fields."""
    events = isa.decode_events(words)
    assert all(len(values) == len(words) for values in vars(events).values())
    assert np.all(events.wait_value >> 32 == 0)
    geometry = isa.decode_dma_direct2d(words)
    assert np.all(geometry.source.byte_count >= 0)
    assert np.all(geometry.hbm_read_bytes() >= -1)
    assert np.all(isa.matmul_macs(words) >= 0)
    isa.operand_spaces(words)


# --- against what the vendor's profiler printed


@pytest.fixture(scope="module")
def printed(captures: Path) -> list[tuple[dict[str, Any], isa.Words]]:
    """(row of the vendor's JSON, its word) for every instruction of the captures that have the JSON."""
    found = []
    for capture, report in vendor.decoded_captures(captures):
        streams = [subgraph.streams for subgraph in read_container(capture).subgraphs]
        for row in vendor.load(report)["instruction"]:
            engine = ENGINE_NAMES.index(vendor.ENGINE_OF_LABEL[row["label"]])
            words = streams[vendor.core_of(row)][engine].words
            found.append((row, words[row["pc"] : row["pc"] + 1]))
    assert len(found) > 3000
    return found


def together(rows: list[tuple[dict[str, Any], isa.Words]]) -> isa.Words:
    return np.concatenate([words for _, words in rows])


def test_opcodes_as_printed(printed: list[tuple[dict[str, Any], isa.Words]]) -> None:
    names = [isa.OPCODE_NAMES[opcode] for opcode in together(printed)[:, 0]]
    assert names == [row["opcode"] for row, _ in printed]


_WAIT = re.compile(r"\$?S\[(\d+)\](?: \(\w+\))?(>=|==)(\d+)|\$E\[(\d+)\]==1-")


def test_waits_as_printed(printed: list[tuple[dict[str, Any], isa.Words]]) -> None:
    words = together(printed)
    events = isa.decode_events(words)
    second_mode, second_idx, second_value = isa.decode_second_wait(words)
    waits = 0
    for place, (row, _) in enumerate(printed):
        theirs = []
        for index, condition, value, event in _WAIT.findall(row["operands"]):
            theirs.append(("event", int(event), None) if event else (condition, int(index), int(value)))
        ours = []
        for mode, index, value in (
            (events.wait_mode[place], events.wait_idx[place], events.wait_value[place]),
            (second_mode[place], second_idx[place], second_value[place]),
        ):
            if mode:
                condition = isa.WAIT_CONDITIONS[mode]
                ours.append((condition, index, None if condition == "event" else value))
        assert ours == theirs, row["operands"]
        waits += len(ours)
    assert waits > 800


_UPDATE = re.compile(r"S\[(\d+)\](?: \(\w+\))?(\+\+|--|\+=\d+|=\d+)@complete")
_OPERATION = {"+": "sem_add", "=": "sem_set", "++": "sem_inc", "--": "sem_dec"}


def test_updates_as_printed(printed: list[tuple[dict[str, Any], isa.Words]]) -> None:
    events = isa.decode_events(together(printed))
    updates = 0
    for place, (row, _) in enumerate(printed):
        if row["opcode"] == "DMA_DIRECT2D":
            named = re.search(r"semaphore=(\d+) sem_increment=(\d+)", row["operands"])
            assert named is not None
            theirs = [("sem_add", int(named[1]), int(named[2]))]
        else:
            theirs = []
            for index, text in _UPDATE.findall(row["operands"]):
                operation = _OPERATION.get(text) or _OPERATION[text[0]]
                theirs.append((operation, int(index), int(re.sub(r"\D", "", text) or 1)))
        mode = events.update_mode[place]
        ours = []
        if mode in isa.SEMAPHORE_UPDATES:
            ours = [(isa.UPDATE_OPERATIONS[mode], events.update_idx[place], events.update_value[place])]
        assert ours == theirs, row["operands"]
        updates += len(theirs)
    assert updates > 1000


def test_dma_geometry_as_printed(printed: list[tuple[dict[str, Any], isa.Words]]) -> None:
    rows = [(row, words) for row, words in printed if row["opcode"] == "DMA_DIRECT2D"]
    geometry = isa.decode_dma_direct2d(together(rows))
    for place, (row, _) in enumerate(rows):
        text = row["operands"]
        for side, name in ((geometry.source, "src"), (geometry.dest, "dst")):
            pattern = re.search(rf"{name}_pattern=\[(\d+),(\d+)\]\[(\d+),(\d+)\]", text)
            size = re.search(rf"{name}_elem_size=(\d+)", text)
            assert pattern is not None
            assert size is not None
            assert [*side.stride[place], *side.count[place]] == [int(pattern[group]) for group in (1, 2, 3, 4)]
            assert side.element_bytes[place] == int(size[1])
            address = re.search(rf"{name}_addr_imm=(0x[0-9a-f]+)", text)
            table = re.search(rf"{name}_table_index=(\d+)", text)
            assert bool(side.is_table[place]) == (table is not None)
            named = table or address
            assert named is not None
            assert (side.variable[place] if table else side.address[place]) == int(named[1], 0)
        casts = re.search(r"in_dtype=(\w+) out_dtype=(\w+)", text)
        if casts:
            ours = {"fp32": "fp32", "bfloat16": "bf16"}
            assert isa.DTYPE_NAMES[geometry.source.dtype[place]] == ours[casts[1]]
            assert isa.DTYPE_NAMES[geometry.dest.dtype[place]] == ours[casts[2]]
        # The vendor leaves out what is 0.
        assert geometry.hbm_read_bytes()[place] == row.get("hbm_read_bytes", 0)
        assert geometry.hbm_write_bytes()[place] == row.get("hbm_write_bytes", 0)
    assert len(rows) > 90


def test_work_as_printed(printed: list[tuple[dict[str, Any], isa.Words]]) -> None:
    words = together(printed)
    assert isa.matmul_macs(words).tolist() == [row.get("elements", 0) for row, _ in printed]
    source, dest = isa.operand_spaces(words)
    assert (source == isa.AddressSpace.PSUM).tolist() == ["psum_read_bytes" in row for row, _ in printed]
    assert (dest == isa.AddressSpace.PSUM).tolist() == ["psum_write_bytes" in row for row, _ in printed]

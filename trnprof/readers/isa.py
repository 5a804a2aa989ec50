"""Instruction words of a NeuronCore's engines: opcode, events, DMA geometry, matmul size; vectorised over a stream.

Every instruction of every engine is one word of 64 bytes, little endian. The layout is not documented by the vendor: it
was read off by setting the bytes of public captures beside what the vendor's own profiler printed of them. Names come
in three kinds: confirmed (a vendor's profile printed them for that byte), unconfirmed (inferred from a NEFF alone), and
OP_0xNN where nothing names the byte.

A stream is a uint8 array of shape [n, 64]; every function takes one and returns arrays of length n.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

WORD_BYTES = 64
"""Length of an instruction."""

CONFIRMED_OPCODES = {
    0x01: "LDWEIGHTS",
    0x02: "MATMUL",
    0x21: "ACTIVATE",
    0x23: "ACT_TABLE_LOAD",
    0x42: "TENSOR_REDUCE",
    0x43: "TENSOR_SCALAR",
    0x46: "COPY",
    0x47: "CAST",
    0x48: "RECIPROCAL",
    0xA0: "EVENT_SEMAPHORE",
    0xA2: "DRAIN",
    0xA4: "NOP",
    0xA5: "WRITE",
    0xA6: "NOTIFY",
    0xA9: "COMPARE_BRANCH",
    0xAA: "TENSOR_LOAD",
    0xB0: "EVENT_SEMAPHORE_RANGE_CLEAR",
    0xB1: "SET_ORDERING_MODE",
    0xB8: "DMA_DIRECT2D",
    0xD4: "PSEUDO_DMA_DIRECT2D",
}
"""Mnemonics that the vendor's profiler printed for the byte."""

UNCONFIRMED_OPCODES = {
    0x41: "TENSOR_TENSOR",
    0x49: "MEMSET",
    0x92: "AFFINE_SELECT",
    0xA7: "MOVE",
    0xA8: "ALU_OP",
    0xC1: "PSEUDO_DMA_TRIGGER",
    0xC8: "PSEUDO_TRIGGER_COLLECTIVE",
}
"""Mnemonics inferred from NEFFs; no profile of the vendor's has shown them."""

OPCODE_NAMES: tuple[str, ...] = tuple(
    CONFIRMED_OPCODES.get(opcode) or UNCONFIRMED_OPCODES.get(opcode) or f"OP_0x{opcode:02X}" for opcode in range(256)
)
"""The name of each opcode byte."""

OPCODE_OF_NAME: dict[str, int] = {name: opcode for opcode, name in enumerate(OPCODE_NAMES)}
"""The byte of each name."""

LDWEIGHTS, MATMUL = 0x01, 0x02
EVENT_SEMAPHORE, NOTIFY = 0xA0, 0xA6
DMA_DIRECT2D, PSEUDO_DMA_DIRECT2D = 0xB8, 0xD4

EVENT_WAIT = 7
WAIT_CONDITIONS = {1: "==", 5: ">=", EVENT_WAIT: "event"}
"""Wait mode to condition. `event`: until the event is set, which the wait then clears."""

SEMAPHORE_INCREMENT = 0x13
UPDATE_OPERATIONS = {0x11: "event_set", 0x13: "sem_inc", 0x14: "sem_dec", 0x15: "sem_add", 0x19: "sem_set"}
"""Update mode to operation, each on completion of the instruction."""

SEMAPHORE_UPDATES = (SEMAPHORE_INCREMENT, 0x14, 0x15, 0x19)
"""Update modes whose index is a semaphore's."""

DTYPE_NAMES = {6: "bf16", 7: "fp16", 9: "uint32", 10: "fp32"}
"""Data type codes whose meaning is known."""


class AddressSpace(IntEnum):
    """What memory an operand lies in."""

    UNKNOWN = 0
    HBM = 1
    SBUF = 2
    PSUM = 3
    REGISTERS = 4
    """Doorbells, semaphores and the like."""
    VARIABLE = 5
    """A variable of the NEFF, not placed yet: its var_id says which memory."""


def split_words(stream: bytes | memoryview) -> Words:
    """The instructions of a stream, shape [n, 64], without copying it.

    Raises: ValueError if the stream is not a whole number of words.
    """
    if len(stream) % WORD_BYTES:
        raise ValueError(f"{len(stream)} bytes are not a whole number of {WORD_BYTES}-byte instructions")
    return np.frombuffer(stream, np.uint8).reshape(-1, WORD_BYTES)


@dataclass(frozen=True, eq=False)
class Events:
    """What each instruction waits for before it starts, and what it updates when it completes. Shape [n] each."""

    wait_mode: Ints
    """0: none, else a key of WAIT_CONDITIONS (or a mode that is not known)."""
    wait_idx: Ints
    """Semaphore, or event where the mode is 7."""
    wait_value: Ints
    update_mode: Ints
    """0: none, else a key of UPDATE_OPERATIONS (or a mode that is not known)."""
    update_idx: Ints
    update_value: Ints
    """Operand of sem_add and sem_set; 1 where the operation has none."""


def decode_events(words: Words) -> Events:
    """The first wait and the first update of each instruction.

    EVENT_SEMAPHORE has a second block of both at byte 32: it counts where the first block is empty. A DMA's completion
    semaphore counts as its update: its rings add to it when the data has arrived (sem_add of the increment).
    """
    first = _event_block(words, modes_at=4, wait_value_at=8, update_value_at=8)
    second = _event_block(words, modes_at=32, wait_value_at=36, update_value_at=40)
    is_pair = words[:, 0] == EVENT_SEMAPHORE
    use_wait = is_pair & (first.wait_mode == 0)
    use_update = is_pair & (first.update_mode == 0)
    increment = _unsigned(words, 14, 2)
    is_dma = is_dma_direct2d(words) & (first.update_mode == 0) & (increment != 0)
    update_mode = np.where(use_update, second.update_mode, first.update_mode)
    update_idx = np.where(use_update, second.update_idx, first.update_idx)
    update_value = np.where(use_update, second.update_value, first.update_value)
    return Events(
        wait_mode=np.where(use_wait, second.wait_mode, first.wait_mode),
        wait_idx=np.where(use_wait, second.wait_idx, first.wait_idx),
        wait_value=np.where(use_wait, second.wait_value, first.wait_value),
        update_mode=np.where(is_dma, 0x15, update_mode),
        update_idx=np.where(is_dma, words[:, 13], update_idx),
        update_value=np.where(is_dma, increment, update_value),
    )


def decode_second_wait(words: Words) -> tuple[Ints, Ints, Ints]:
    """(mode, index, value) of the second wait of those EVENT_SEMAPHOREs that wait for two; mode 0 elsewhere."""
    block = _event_block(words, modes_at=32, wait_value_at=36, update_value_at=40)
    both = (words[:, 0] == EVENT_SEMAPHORE) & (words[:, 4] != 0)
    return np.where(both, block.wait_mode, 0), block.wait_idx, block.wait_value


def _event_block(words: Words, *, modes_at: int, wait_value_at: int, update_value_at: int) -> Events:
    modes = words[:, modes_at : modes_at + 4].astype(np.int64)
    update_value = _unsigned(words, update_value_at, 4)
    has_operand = (modes[:, 2] == 0x15) | (modes[:, 2] == 0x19)
    return Events(
        wait_mode=modes[:, 0],
        wait_idx=modes[:, 1],
        wait_value=_unsigned(words, wait_value_at, 4),
        update_mode=modes[:, 2],
        update_idx=modes[:, 3],
        update_value=np.where(has_operand, update_value, 1),
    )


def is_dma_direct2d(words: Words) -> npt.NDArray[np.bool_]:
    """Which instructions are dynamic DMAs, in their device or their NEFF form."""
    return (words[:, 0] == DMA_DIRECT2D) | (words[:, 0] == PSEUDO_DMA_DIRECT2D)


@dataclass(frozen=True, eq=False)
class DmaSide:
    """Source or destination of each DMA. Shape [n] each; strides in bytes, counts in elements."""

    space: Ints
    """An AddressSpace."""
    address: Ints
    """Device address (device form), or offset in the variable or table entry (NEFF form, tables); bytes."""
    variable: Ints
    """var_id of the NEFF, or the index in the table of tensors; -1 where the address is immediate."""
    is_table: npt.NDArray[np.bool_]
    """Does `variable` index the table of tensors that the runtime binds at each call?"""
    is_register_offset: npt.NDArray[np.bool_]
    """Is the offset in a register, so that `address` does not say it?"""
    stride: Ints
    """Shape [n, 2]: bytes from one element to the next in each dimension."""
    count: Ints
    """Shape [n, 2]: elements in each dimension; their product is the number of descriptors."""
    element_bytes: Ints
    """Contiguous bytes of one element: one descriptor moves one element."""
    dtype: Ints
    """A key of DTYPE_NAMES, or a code that is not known."""

    @property
    def descriptor_count(self) -> Ints:
        """Elements, one descriptor each."""
        return self.count[:, 0] * self.count[:, 1]

    @property
    def byte_count(self) -> Ints:
        """Bytes that this side reads or writes."""
        return self.descriptor_count * self.element_bytes


@dataclass(frozen=True, eq=False)
class DmaGeometry:
    """What each dynamic DMA moves. Only rows where is_dma_direct2d holds mean anything."""

    source: DmaSide
    dest: DmaSide
    semaphore: Ints
    """Completion semaphore."""
    increment: Ints
    """What the rings add to it together (16: one each)."""

    def hbm_read_bytes(self) -> Ints:
        """Bytes read from HBM; -1 where the source's memory is not known."""
        return _hbm_bytes(self.source)

    def hbm_write_bytes(self) -> Ints:
        """Bytes written to HBM; -1 where the destination's memory is not known."""
        return _hbm_bytes(self.dest)


def decode_dma_direct2d(words: Words) -> DmaGeometry:
    """Source, destination and completion of DMA_DIRECT2D (0xb8, on the device) and PSEUDO_DMA_DIRECT2D (0xd4, NEFF)."""
    return DmaGeometry(
        source=_dma_side(words, address_at=16, strides_at=24, dtype_at=62),
        dest=_dma_side(words, address_at=40, strides_at=48, dtype_at=63),
        semaphore=words[:, 13].astype(np.int64),
        increment=_unsigned(words, 14, 2),
    )


def _dma_side(words: Words, *, address_at: int, strides_at: int, dtype_at: int) -> DmaSide:
    # The top byte of the 8-byte address says what it is: 0x10 a variable of the NEFF, 0x20 a table entry, 0x08 beside
    # either an offset in a register; 0 an immediate device address, whose other 7 bytes are address.
    kind = words[:, address_at + 7]
    is_table = (kind & 0x20) != 0
    is_variable = (kind & 0x10) != 0
    indexed = is_table | is_variable
    immediate = _unsigned(words, address_at, 7)
    space = np.where(is_table, AddressSpace.HBM, device_address_space(immediate))
    return DmaSide(
        space=np.where(is_variable, AddressSpace.VARIABLE, space),
        address=np.where(indexed, _unsigned(words, address_at, 4), immediate),
        variable=np.where(indexed, _unsigned(words, address_at + 4, 3), -1),
        is_table=is_table,
        is_register_offset=indexed & ((kind & 0x08) != 0),
        stride=np.stack((_unsigned(words, strides_at, 4), _unsigned(words, strides_at + 4, 4)), axis=1),
        count=np.stack((_unsigned(words, strides_at + 8, 2), _unsigned(words, strides_at + 10, 2)), axis=1),
        element_bytes=_unsigned(words, strides_at + 12, 2),
        dtype=words[:, dtype_at].astype(np.int64),
    )


def device_address_space(address: Ints) -> Ints:
    """The memory behind a device address, as DMA sees it; shape as given.

    On Trainium2 bits 36-47 are 0x800 for HBM, 0x801 for registers, 0x802 for a core's memory: SBUF, and PSUM from
    offset 32 MiB. Other windows have not been seen and are UNKNOWN.
    """
    window = address >> 36
    in_core = np.where((address & 0x02000000) != 0, AddressSpace.PSUM, AddressSpace.SBUF)
    space = np.where(window == 0x802, in_core, AddressSpace.UNKNOWN)
    space = np.where(window == 0x800, AddressSpace.HBM, space)
    return np.where(window == 0x801, AddressSpace.REGISTERS, space)


def _hbm_bytes(side: DmaSide) -> Ints:
    known = (side.space != AddressSpace.UNKNOWN) & (side.space != AddressSpace.VARIABLE)
    return np.where(side.space == AddressSpace.HBM, side.byte_count, np.where(known, 0, -1))


def matmul_macs(words: Words) -> Ints:
    """Multiply-accumulates of each MATMUL (the vendor's `elements`; flops are twice that); 0 for other opcodes.

    A matmul streams num[0] * num[1] * num[2] columns through `rows` x `cols` of the array.
    """
    columns = _unsigned(words, 26, 2) * _unsigned(words, 28, 2) * _unsigned(words, 30, 2)
    macs = columns * words[:, 38].astype(np.int64) * words[:, 39].astype(np.int64)
    return np.where(words[:, 0] == MATMUL, macs, 0)


_OPERANDS_AT = {
    # opcode: (first source, destination); 0 where it has none.
    0x01: (16, 0),
    0x02: (16, 48),
    0x21: (16, 48),
    0x41: (16, 48),
    0x42: (12, 44),
    0x43: (16, 48),
    0x46: (12, 44),
    0x47: (12, 44),
    0x48: (12, 44),
}
"""Where the compute instructions keep the on-chip addresses of their operands."""


def operand_spaces(words: Words) -> tuple[Ints, Ints]:
    """(first source's, destination's) AddressSpace of compute instructions; UNKNOWN for opcodes whose layout is not known.

    On-chip addresses are SBUF from 0 and PSUM from 0x2000000, bytes within a partition.
    """
    spaces = np.full((2, len(words)), AddressSpace.UNKNOWN, np.int64)
    for opcode, places in _OPERANDS_AT.items():
        rows = np.flatnonzero(words[:, 0] == opcode)
        for side, place in enumerate(places):
            if place and len(rows):
                address = _unsigned(words[rows], place, 4)
                spaces[side, rows] = np.where(address >= 0x2000000, AddressSpace.PSUM, AddressSpace.SBUF)
    return spaces[0], spaces[1]


def _unsigned(words: Words, at: int, size: int) -> Ints:
    """The little-endian unsigned number of `size` (at most 7) bytes at byte `at` of each word."""
    value = np.zeros(len(words), np.int64)
    for index in range(size):
        value |= words[:, at + index].astype(np.int64) << (8 * index)
    return value

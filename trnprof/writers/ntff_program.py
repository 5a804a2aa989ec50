"""Instruction streams and patch lists that decode back to the instruction rows of a Profile.

The mirror of readers/ntff_program.py: for each engine one stream of 64-byte words, in which the word at a row's pc has
the row's opcode, events, DMA size and matmul size, and the runtime's edits that give each word its compiler_pc.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from trnprof.profile import ProfileError
from trnprof.readers import isa
from trnprof.readers.ntff_container import DELETE, INSERT, Patch

Ints = npt.NDArray[np.int64]

MAX_INSTRUCTIONS = 1 << 20
"""Trace records carry 20 bits of an instruction's index."""

_NONE = -1
_HBM_ADDRESS, _SBUF_ADDRESS = 0x800000000000, 0x802000000000
_MODE_OF_CONDITION = {name: mode for mode, name in isa.WAIT_CONDITIONS.items()}


@dataclass(frozen=True, eq=False)
class Facts:
    """What the rows of one engine say of their instructions; shape [n] each, -1 where a row says nothing."""

    opcode: Ints
    """Opcode byte, -1 for an instruction that no stream covers."""
    pc: Ints
    compiler_pc: Ints
    wait_mode: Ints
    wait_idx: Ints
    wait_value: Ints
    update_idx: Ints
    hbm_read_bytes: Ints
    hbm_write_bytes: Ints
    macs: Ints

    def columns(self) -> list[tuple[str, Ints]]:
        """(name, values) of what a word holds."""
        return [(name, values) for name, values in vars(self).items() if name != "pc"]

    def take(self, rows: Ints) -> Facts:
        """The facts of some rows."""
        return Facts(**{name: values[rows] for name, values in vars(self).items()})


def wait_modes(conditions: list[str]) -> Ints:
    """Wait mode of each condition name, and 0 (none) for code -1, at the end. Raises ProfileError for other names."""
    unknown = [name for name in conditions if name not in _MODE_OF_CONDITION]
    if unknown:
        raise ProfileError(f"NTFF has no wait condition {unknown[0]!r}")
    return np.array([*(_MODE_OF_CONDITION[name] for name in conditions), 0], np.int64)


def assign_pcs(facts: Facts) -> Ints:
    """The index of each row's word: the row's own pc, or one for each distinct instruction where rows have none.

    Rows that no stream covers get indices from the end of the 20-bit range. Raises ProfileError if they do not fit.
    """
    located = facts.opcode != _NONE
    pc = np.where(located, facts.pc, _NONE)
    if np.any(pc[located] == _NONE):
        if np.any(pc != _NONE):
            raise ProfileError("some instructions of an engine have a pc and some have none")
        # In the compiler's order, so that the patch list can only skip forward; the runtime's own come first.
        keys = np.stack([facts.compiler_pc, *(values for _, values in facts.columns())], axis=1)[located]
        _, inverse = np.unique(keys, axis=0, return_inverse=True)
        pc[located] = inverse.reshape(-1)
    pc[~located] = MAX_INSTRUCTIONS - 1 - np.arange(int(np.count_nonzero(~located)))
    if np.any(pc < 0) or len(np.unique(pc)) > MAX_INSTRUCTIONS or np.any(pc >= MAX_INSTRUCTIONS):
        raise ProfileError(f"an engine has instructions beyond index {MAX_INSTRUCTIONS}, which NTFF cannot hold")
    return pc


def synthesise(facts: Facts, pc: Ints) -> tuple[isa.Words, list[Patch]]:
    """(words of shape [n, 64], patches) that decode to the facts at each pc.

    Raises: ProfileError where two rows of one pc differ, compiler_pc runs backward, or a size has no layout.
    """
    located = np.flatnonzero(facts.opcode != _NONE)
    facts, pc = facts.take(located), pc[located]
    where, first, inverse = np.unique(pc, return_index=True, return_inverse=True)
    once = facts.take(first)
    for (name, values), (_, held) in zip(facts.columns(), once.columns(), strict=True):
        if not np.array_equal(values, held[inverse]):
            raise ProfileError(f"instructions of one engine and pc differ in {name}: NTFF holds one word for each pc")
    length = int(where[-1]) + 1 if len(where) else 0
    words = np.zeros((length, isa.WORD_BYTES), np.uint8)
    words[:, 0] = isa.OPCODE_OF_NAME["NOP"]
    words[:, 1] = isa.WORD_BYTES // 4
    words[where] = _words(once)
    return words, _patches(where, once.compiler_pc, length)


def _words(facts: Facts) -> isa.Words:
    words = np.zeros((len(facts.opcode), isa.WORD_BYTES), np.uint8)
    words[:, 0] = facts.opcode
    words[:, 1] = isa.WORD_BYTES // 4
    words[:, 4] = facts.wait_mode
    _put(words, 5, 1, np.maximum(facts.wait_idx, 0), "a semaphore index")
    _put(words, 8, 4, np.maximum(facts.wait_value, 0), "a semaphore value")
    updates = facts.update_idx != _NONE
    is_dma = isa.is_dma_direct2d(words)
    words[:, 6] = np.where(updates & ~is_dma, isa.SEMAPHORE_INCREMENT, 0)
    _put(words, 7, 1, np.where(updates & ~is_dma, facts.update_idx, 0), "a semaphore index")
    _put(words, 13, 1, np.where(updates & is_dma, facts.update_idx, words[:, 13]), "a semaphore index")
    words[:, 14] = np.where(updates & is_dma, 16, 0)
    for row in np.flatnonzero(is_dma):
        _put_dma(words[row], int(facts.hbm_read_bytes[row]), 16)
        _put_dma(words[row], int(facts.hbm_write_bytes[row]), 40)
    for row in np.flatnonzero((facts.opcode == isa.MATMUL) & (facts.macs > 0)):
        rows, cols, *columns = _factors(int(facts.macs[row]), (255, 255, 65535, 65535, 65535), "multiply-accumulates")
        words[row, 38:40] = rows, cols
        words[row, 26:32] = np.array(columns, "<u2").view(np.uint8)
    return words


def _put(words: isa.Words, at: int, size: int, values: Ints, what: str) -> None:
    if np.any(values < 0) or np.any(values >= 1 << (8 * size)):
        raise ProfileError(f"{what} of {int(values.max(initial=0))} does not fit the {size} bytes that NTFF has for it")
    words[:, at : at + size] = values.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :size]


def _put_dma(word: npt.NDArray[np.uint8], hbm_bytes: int, at: int) -> None:
    """One side of a DMA: bytes of HBM, 0 for on-chip memory, -1 for memory that is not known."""
    if hbm_bytes == _NONE:
        return
    address = _HBM_ADDRESS if hbm_bytes else _SBUF_ADDRESS
    word[at : at + 8] = np.array([address], "<u8").view(np.uint8)
    outer, inner, element = _factors(hbm_bytes, (65535, 65535, 65535), "bytes") if hbm_bytes else (1, 1, 0)
    word[at + 16 : at + 22] = np.array([inner, outer, element], "<u2").view(np.uint8)


@lru_cache(maxsize=4096)
def _factors(product: int, limits: tuple[int, ...], what: str) -> tuple[int, ...]:
    """Factors of `product`, each at most its limit, the last one taken first."""
    factors = []
    rest = product
    for limit in reversed(limits):
        candidates = np.arange(1, min(limit, rest) + 1)
        factors.append(int(candidates[rest % candidates == 0][-1]))
        rest //= factors[-1]
    if rest != 1:
        raise ProfileError(f"NTFF cannot hold {product} {what} in one instruction: no sizes multiply to it")
    return tuple(reversed(factors))


def _patches(where: Ints, compiler_pc: Ints, length: int) -> list[Patch]:
    """The runtime's edits by which words at `where` (ascending) have these compiler_pc, words between them none."""
    pcs = np.full(length, _NONE)
    pcs[where] = compiler_pc
    kept = np.flatnonzero(pcs >= 0)
    skipped = np.diff(pcs[kept], prepend=_NONE) - 1
    if np.any(skipped < 0):
        raise ProfileError("compiler_pc runs backward along an engine's pc: NTFF's patch list only skips forward")
    is_foreign = np.concatenate(([False], pcs < 0, [False]))
    edges = np.flatnonzero(is_foreign[1:] != is_foreign[:-1])
    patches = [
        Patch(isa.WORD_BYTES * begin, end - begin, INSERT)
        for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    ]
    patches += [
        Patch(isa.WORD_BYTES * int(kept[place]), int(skipped[place]), DELETE) for place in np.flatnonzero(skipped)
    ]
    return sorted(patches, key=lambda patch: (patch.offset_bytes, patch.kind))

"""What a core's instruction streams say of each instruction, as columns to gather by place."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trnprof.readers import isa
from trnprof.readers.ntff_columns import coded, nullable
from trnprof.readers.ntff_container import EngineStream, compiler_pcs

Ints = npt.NDArray[np.int64]
Places = npt.NDArray[np.int32]

UNKNOWN_OPCODE = "UNKNOWN"
"""Opcode of an instruction whose address no stream of the capture covers."""

OPCODE_NAMES = (*isa.OPCODE_NAMES, UNKNOWN_OPCODE)

_CONDITIONS = list(dict.fromkeys(isa.WAIT_CONDITIONS.values()))
_NONE = -1
_NO_STREAM = EngineStream(0, np.zeros((0, isa.WORD_BYTES), np.uint8), (), False)


class Program:
    """The streams of a core's engines laid end to end; a place is an instruction's index in that row.

    The last place, `unlocated`, stands for instructions that no stream covers.
    """

    def __init__(self, streams: dict[int, EngineStream], engine_count: int) -> None:
        ordered = [streams.get(engine, _NO_STREAM) for engine in range(engine_count)]
        self.lengths = [len(stream.words) for stream in ordered]
        self.bases = np.cumsum([0, *self.lengths]).tolist()
        self.addresses = [stream.device_address for stream in ordered]
        self.unlocated: int = self.bases[-1]
        words = np.concatenate([stream.words for stream in ordered])
        self._pc = _per_place(np.concatenate([np.arange(length) for length in self.lengths]), np.int32)
        self._compiler_pc = _per_place(np.concatenate([_compiler_pcs(stream) for stream in ordered]), np.int32)
        self.opcode = np.concatenate([words[:, 0], [len(isa.OPCODE_NAMES)]], dtype=np.int32)
        self._read_events(words)
        self._read_work(words)

    def _read_events(self, words: isa.Words) -> None:
        events = isa.decode_events(words)
        condition = np.full(256, _NONE)
        for mode, name in isa.WAIT_CONDITIONS.items():
            condition[mode] = _CONDITIONS.index(name)
        waits = condition[events.wait_mode] != _NONE
        # An event is awaited as such: it has no value to reach.
        has_value = waits & (events.wait_mode != isa.EVENT_WAIT)
        is_update = np.isin(events.update_mode, isa.SEMAPHORE_UPDATES)
        self._wait_condition = _per_place(condition[events.wait_mode], np.int32)
        self._wait_idx = _per_place(np.where(waits, events.wait_idx, _NONE), np.int16)
        self._wait_value = _per_place(np.where(has_value, events.wait_value, _NONE), np.int64)
        self._update_idx = _per_place(np.where(is_update, events.update_idx, _NONE), np.int16)

    def _read_work(self, words: isa.Words) -> None:
        is_dma = isa.is_dma_direct2d(words)
        geometry = isa.decode_dma_direct2d(words)
        macs = isa.matmul_macs(words)
        self._hbm_read = _per_place(np.where(is_dma, geometry.hbm_read_bytes(), _NONE), np.int64)
        self._hbm_write = _per_place(np.where(is_dma, geometry.hbm_write_bytes(), _NONE), np.int64)
        self._macs = _per_place(np.where(macs > 0, macs, _NONE), np.int64)

    def columns(self, place: Places) -> dict[str, pa.Array]:
        """The columns that depend on the instruction alone, for the instructions at `place`."""
        macs = self._macs[place]
        return {
            "opcode": coded(self.opcode[place], OPCODE_NAMES),
            "pc": nullable(self._pc[place]),
            "compiler_pc": nullable(self._compiler_pc[place]),
            "wait_semaphore_idx": nullable(self._wait_idx[place]),
            "wait_condition": coded(self._wait_condition[place], _CONDITIONS),
            "wait_value": nullable(self._wait_value[place]),
            "update_semaphore_idx": nullable(self._update_idx[place]),
            "hbm_read_bytes": nullable(self._hbm_read[place]),
            "hbm_write_bytes": nullable(self._hbm_write[place]),
            "tensor_elements": nullable(macs),
            "raw_flops": nullable(np.where(macs < 0, _NONE, 2 * macs)),
        }


def _compiler_pcs(stream: EngineStream) -> Ints:
    if not stream.is_patch_known:
        return np.full(len(stream.words), _NONE)
    return compiler_pcs(stream)


def _per_place(values: Ints, dtype: type[np.signedinteger]) -> npt.NDArray[np.signedinteger]:
    """One value for each place, "none" for the unlocated one."""
    return np.append(values, _NONE).astype(dtype)

"""Tables of a Profile as NTFF trace records, in the order of time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trnprof.profile import ProfileError, codes_of, int64_of
from trnprof.readers import isa
from trnprof.readers import ntff_records as rec
from trnprof.readers.ntff_program import UNKNOWN_OPCODE
from trnprof.readers.ntff_tables import ENGINE_NAMES, WAIT_TICK_NS
from trnprof.writers.ntff_program import Facts, wait_modes

Ints = npt.NDArray[np.int64]

_NONE = -1
_NO_HASH = 0xFFFF
"""What the device writes where it computes no hash."""
_PHASE = 0x80
_OPERATION_CODES = {name: 0xE0 | mode for mode, name in isa.UPDATE_OPERATIONS.items()}


def optional(table: pa.Table, column: str, *, missing: int) -> Ints:
    """A numeric column as int64, `missing` for nulls and where the table has no such column."""
    if column not in table.column_names:
        return np.full(table.num_rows, missing, np.int64)
    return int64_of(table[column], null=missing)


def names_of(table: pa.Table, column: str) -> tuple[Ints, list[str]]:
    """(codes, names) of a name column; -1 for nulls, and throughout where the table has no such column."""
    if column not in table.column_names:
        return np.full(table.num_rows, _NONE, np.int64), []
    codes, names = codes_of(table[column])
    return codes.astype(np.int64), names


def times_ps(table: pa.Table, ps: str, ns: str) -> Ints:
    """A time in ps, from the ps column or else the ns column."""
    if ps in table.column_names:
        return int64_of(table[ps])
    return 1000 * int64_of(table[ns])


def spans_ps(table: pa.Table) -> tuple[Ints, Ints]:
    """(start, end) of each row, ps. Raises ProfileError for a row that ends before it starts."""
    start, end = times_ps(table, "start_ps", "start_ts"), times_ps(table, "end_ps", "end_ts")
    if np.any(end < start):
        raise ProfileError("a row ends before it starts")
    return start, end


def engine_numbers(table: pa.Table) -> Ints:
    """NTFF engine of each instruction. Raises ProfileError for an engine that NTFF does not have."""
    codes, names = names_of(table, "engine")
    unknown = [name for name in names if name not in ENGINE_NAMES]
    if unknown or np.any(codes == _NONE):
        raise ProfileError(f"NTFF has no engine {unknown[0] if unknown else None!r}")
    return np.array([ENGINE_NAMES.index(name) for name in names] or [0])[codes]


def instruction_facts(table: pa.Table) -> Facts:
    """What the rows say of their instructions. Raises ProfileError for an opcode without a byte."""
    codes, names = names_of(table, "opcode")
    unknown = sorted(name for name in names if name not in isa.OPCODE_OF_NAME and name != UNKNOWN_OPCODE)
    if unknown:
        raise ProfileError(f"no opcode byte is known for {', '.join(map(repr, unknown[:8]))}")
    opcode_of_code = np.array([*(isa.OPCODE_OF_NAME.get(name, _NONE) for name in names), _NONE])
    condition, conditions = names_of(table, "wait_condition")
    opcode = opcode_of_code[codes]
    is_dma = (opcode == isa.DMA_DIRECT2D) | (opcode == isa.PSEUDO_DMA_DIRECT2D)
    return Facts(
        opcode=opcode,
        pc=optional(table, "pc", missing=_NONE),
        compiler_pc=optional(table, "compiler_pc", missing=_NONE),
        wait_mode=wait_modes(conditions)[condition],
        wait_idx=optional(table, "wait_semaphore_idx", missing=_NONE),
        wait_value=optional(table, "wait_value", missing=_NONE),
        update_idx=optional(table, "update_semaphore_idx", missing=_NONE),
        hbm_read_bytes=np.where(is_dma, optional(table, "hbm_read_bytes", missing=_NONE), _NONE),
        hbm_write_bytes=np.where(is_dma, optional(table, "hbm_write_bytes", missing=_NONE), _NONE),
        macs=np.where(opcode == isa.MATMUL, optional(table, "tensor_elements", missing=_NONE), _NONE),
    )


def instruction_records(table: pa.Table, engine: Ints, pc: Ints, architecture: int, origin_ps: int) -> rec.Records:
    """Start and end records of each row; stamps from `origin_ps`."""
    start, end = spans_ps(table)
    _check_first_in_first_out(start, end, engine << 20 | pc, "instructions of one pc")
    nanoseconds, ticks = WAIT_TICK_NS.get(architecture, WAIT_TICK_NS[2])
    # The fewest ticks that read back as the wait; the device's counter stops at its largest value too.
    wait = np.minimum(-(-optional(table, "evt_wait_time_ns", missing=0) * ticks // nanoseconds), 0xFFFF)
    kind = rec.FIRST_ENGINE_TYPE + 4 * engine
    hashes = optional(table, "crc_in", missing=_NO_HASH) | optional(table, "crc_out", missing=_NO_HASH) << 16
    word = {"key": pc & 0xFFFF, "op": pc >> 16}
    starts = _records(start + origin_ps, header=_PHASE | kind, payload=wait << 16, **word)
    ends = _records(end + origin_ps, header=_PHASE | (kind + 1), payload=hashes, **word)
    return in_time_order(starts, ends)


def dma_records(table: pa.Table, key: Ints, origin_ps: int) -> rec.Records:
    """Start and data records of each packet, whose (engine within the pair) * 16 + ring is `key`."""
    start, end = spans_ps(table)
    _check_first_in_first_out(start, end, key, "packets of one DMA ring")
    size = optional(table, "transfer_bytes", missing=0)
    header, ring = _PHASE | key >> 4, (key & 15) << 4
    hashes = optional(table, "crc", missing=_NO_HASH) << 16
    starts = _records(start + origin_ps, header=header, payload=ring | rec.DMA_START)
    ends = _records(end + origin_ps, header=header, key=size, payload=hashes | ring | rec.DMA_DATA_DONE)
    return in_time_order(starts, ends)


def semaphore_records(table: pa.Table, origin_ps: int) -> rec.Records:
    """One record for each update."""
    index = optional(table, "semaphore_idx", missing=_NONE)
    if np.any(index == _NONE):
        codes, labels = names_of(table, "id")
        index = np.array([*(_label_index(label) for label in labels), _NONE])[codes]
    sources, source_names = names_of(table, "update_source")
    kinds = [
        rec.FIRST_ENGINE_TYPE + 4 * ENGINE_NAMES.index(name) + 3 if name in ENGINE_NAMES else rec.HOST_TYPE
        for name in source_names
    ]
    operations, operation_names = names_of(table, "update_operation_type")
    operation_codes = [_OPERATION_CODES.get(name, 0) for name in operation_names]
    return in_time_order(
        _records(
            times_ps(table, "timestamp_ps", "timestamp") + origin_ps,
            key=rec.SEMAPHORE_BANK << 8 | _fitting(index, 8, "a semaphore index"),
            op=np.array([*operation_codes, 0])[operations],
            header=_PHASE | np.array([*kinds, rec.HOST_TYPE])[sources],
            payload=int64_of(table["value"]),
        )
    )


def throttle_records(table: pa.Table, window_end_ns: int, origin_ps: int) -> rec.Records:
    """One record for each level: NTFF holds it until the next one, the last until the window ends.

    The table has nanoseconds only, rounded down; the fractions chosen are those that give its durations back.
    Raises ProfileError for levels that overlap or leave a gap.
    """
    start, duration = int64_of(table["timestamp"]), int64_of(table["duration"])
    kinds, names = names_of(table, "type")
    kind = np.array([*(_kind_number(name) for name in names), 0])[kinds]
    level = _fitting(int64_of(table["k"]), 8, "a throttle level")
    records = _records(
        1000 * start + _fractions(start, duration, window_end_ns) + origin_ps,
        op=_fitting(int64_of(table["n"]), 8, "a throttle level"),
        header=np.full(len(start), _PHASE | rec.THROTTLE_TYPE),
        payload=level | _fitting(kind, 8, "a throttle kind") << 8,
    )
    return in_time_order(records)


def _fractions(start: Ints, duration: Ints, window_end_ns: int) -> Ints:
    """Picoseconds to add to each start so that starts and distances, rounded down, are these; shape [n]."""
    lost = np.append(start[1:], window_end_ns)[: len(start)] - start - duration
    if np.any((lost < 0) | (lost > 1)):
        raise ProfileError("throttle levels overlap or leave a gap: NTFF holds each until the next one")
    # A ns lost to rounding means that the next fraction is smaller: each is the number of such steps that follow.
    kept = np.append(np.flatnonzero(lost == 0), len(start))
    here = np.arange(len(start))
    return kept[np.searchsorted(kept, here)] - here


def _kind_number(name: str) -> int:
    digits = name.removeprefix("activity_")
    return int(digits) if digits.isdecimal() and len(digits) <= 3 else 0


def _label_index(label: str) -> int:
    digits = label.removeprefix("S[").partition("]")[0]
    if not digits.isdecimal():
        raise ProfileError(f"semaphore id {label!r} has no number")
    return int(digits)


def _check_first_in_first_out(start: Ints, end: Ints, key: Ints, what: str) -> None:
    order = np.lexsort((end, start, key))
    key, end = key[order], end[order]
    if np.any((key[1:] == key[:-1]) & (end[1:] < end[:-1])):
        raise ProfileError(f"{what} overtake each other: NTFF pairs their records first in, first out")


def _fitting(values: Ints, bits: int, what: str) -> Ints:
    if len(values) and (values.min() < 0 or values.max() >= 1 << bits):
        raise ProfileError(f"{what} outside 0..{(1 << bits) - 1}")
    return values


def _records(stamp: Ints, *, header: Ints, payload: Ints, key: Ints | int = 0, op: Ints | int = 0) -> rec.Records:
    records = np.zeros(len(stamp), rec.RECORD)
    records["key"] = _fitting(np.asarray(key).reshape(-1), 16, "a record's size or index")
    records["op"] = op
    records["header"] = header
    records["payload"] = _fitting(payload, 32, "a record's value")
    records["stamp"] = stamp
    return records


def flag_losses(records: rec.Records, count: int, end_ps: int) -> int:
    """Set the overflow flag on the first records, at most `count`, that lie before `end_ps`; returns how many are left."""
    flagged = records[: min(count, int(np.searchsorted(records["stamp"], end_ps)))]
    flagged["header"] |= rec.HARDWARE_OVERFLOW
    return count - len(flagged)


def in_time_order(*parts: rec.Records) -> rec.Records:
    """All records by time; at one instant in the order given."""
    records = np.concatenate(parts)
    return records[np.argsort(records["stamp"], kind="stable")]

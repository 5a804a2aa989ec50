"""Exact conversion of a capture's cells to typed columns, with a count of everything that was odd about them.

A cell may be a number, text that spells one ("4096", "1747123456789012.100"), empty, NaN, or anything else a hostile
file holds. Nothing here goes through float64: text and decimals are converted in integers, so that a nanosecond in an
absolute timestamp (19 digits, float64 has 15) is not lost. A value that cannot be had exactly becomes null and is
counted.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

RawColumn: TypeAlias = list[object] | pa.Array
"""A column as read: Python values of one JSON table, or an arrow array of one Parquet file."""

UNITY = (1, 1)

MAX_CORE = 127
"""Physical cores are numbered from 0; one instance has at most 128 (trn2.48xlarge: 16 chips of 8)."""

_NUMBER = re.compile(r"\s{0,8}[+-]?(?:\d{1,400}(?:\.\d{0,400})?|\.\d{1,400})(?:[eE][+-]?\d{1,3})?\s{0,8}", re.ASCII)
_NON_FINITE = frozenset({"nan", "-nan", "inf", "+inf", "-inf", "infinity", "+infinity", "-infinity"})
_SUBGRAPH = re.compile(r"(?:/?sg)?(\d{1,5})", re.ASCII)
_FLOAT_EXACT = {16: 2**11, 32: 2**24, 64: 2**53}
"""Largest magnitude up to which every integer is a float of that width."""


@dataclass
class Oddities:
    """Cells of one column that were not plain values of the wanted type."""

    text: int = 0
    """Numbers that were written as text (read as the number they spell)."""
    empty: int = 0
    """Empty text (read as null)."""
    non_finite: int = 0
    """NaN or infinite (read as null)."""
    inexact: int = 0
    """Floats too large to tell integers apart (read as null)."""
    unreadable: int = 0
    """Not numbers, or too large for the column (read as null)."""

    def describe(self) -> tuple[int, str]:
        """(how many cells, what they were) of all but the non-finite ones."""
        parts = [
            f"{count:,} {what}"
            for count, what in (
                (self.text, "as text"),
                (self.empty, "empty"),
                (self.inexact, "inexact"),
                (self.unreadable, "unreadable"),
            )
            if count
        ]
        return self.text + self.empty + self.inexact + self.unreadable, ", ".join(parts)


def integers(
    raw: RawColumn, wanted: pa.DataType | None = None, scale: tuple[int, int] = UNITY
) -> tuple[pa.Array, Oddities]:
    """The cells as integers of type `wanted` (default int64), each multiplied by scale[0] / scale[1], rounded down.

    Null where a cell is null, is no finite number, or does not fit.
    """
    found = Oddities()
    wanted = wanted or pa.int64()
    if isinstance(raw, pa.Array) and scale == UNITY and pa.types.is_signed_integer(raw.type) and _fits(raw, wanted):
        return raw.cast(wanted), found
    values, valid = _int64_cells(raw, scale, found)
    if wanted != pa.int64():
        limits = np.iinfo(wanted.to_pandas_dtype())
        fits = (values >= limits.min) & (values <= limits.max)
        found.unreadable += int((valid & ~fits).sum())
        valid = valid & fits
        values = np.where(valid, values, 0)
    return pa.array(values, pa.int64(), mask=~valid).cast(wanted), found


def names(raw: RawColumn, *, empty_is_null: bool = False) -> pa.DictionaryArray:
    """The cells as a name column; numbers and lists as the text that spells them."""
    if isinstance(raw, list):
        try:
            strings = pa.array(raw, pa.string())
        except (pa.ArrowException, ValueError, TypeError):
            strings = pa.array([_as_text(value) for value in raw], pa.string())
    elif pa.types.is_dictionary(raw.type):
        # The rows are never spelled out: a dictionary of one long name may stand for a million rows.
        distinct = names(raw.dictionary)
        rows = distinct.indices.take(raw.indices)
        return _without_empty(pa.DictionaryArray.from_arrays(rows, distinct.dictionary), empty_is_null)
    elif _is_text(raw.type):
        strings = _valid_utf8(raw)
    elif pa.types.is_integer(raw.type) or pa.types.is_boolean(raw.type):
        strings = raw.cast(pa.string())
    else:
        strings = pa.array([_as_text(value) for value in raw.to_pylist()], pa.string())
    return _without_empty(strings.dictionary_encode(), empty_is_null)


def booleans(raw: RawColumn) -> pa.Array:
    """The cells as booleans: true and false, yes and no, 1 and 0; anything else is null."""
    if isinstance(raw, pa.Array) and pa.types.is_boolean(raw.type):
        return raw
    encoded = names(raw)
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    meaning = [None if word is None else words.get(word.lower()) for word in encoded.dictionary.to_pylist()]
    return pa.array(meaning, pa.bool_()).take(encoded.indices)


def floats(raw: RawColumn) -> pa.Array:
    """The cells as finite float64; null where they are none."""
    if isinstance(raw, pa.Array) and (pa.types.is_floating(raw.type) or pa.types.is_integer(raw.type)):
        values = raw.cast(pa.float64(), safe=False)
    else:
        cells = raw if isinstance(raw, list) else raw.to_pylist()
        values = pa.array([_as_float(value) for value in cells], pa.float64())
    return pc.if_else(pc.is_finite(values), values, pa.scalar(None, pa.float64()))


def cores(raw: RawColumn) -> tuple[pa.Array, Oddities]:
    """The cells as physical core numbers: 1, "1", "sg01" and "/sg01" are core 1; null where a cell names none."""
    if isinstance(raw, pa.Array) and pa.types.is_integer(raw.type):
        if pa.types.is_signed_integer(raw.type) and _fits(raw, pa.int16(), low=0, high=MAX_CORE):
            return raw.cast(pa.int16()), Oddities()
        numbers, found = integers(raw)
    else:
        encoded, found = names(raw, empty_is_null=True), Oddities()
        matches = [
            None if name is None else _SUBGRAPH.fullmatch(name.strip()) for name in encoded.dictionary.to_pylist()
        ]
        numbers = pa.array([int(match[1]) if match else None for match in matches], pa.int64()).take(encoded.indices)
        found.unreadable = numbers.null_count - encoded.null_count
    known = pc.and_(pc.greater_equal(numbers, 0), pc.less_equal(numbers, MAX_CORE))
    fitting = pc.if_else(known, numbers, pa.scalar(None, pa.int64()))
    found.unreadable += fitting.null_count - numbers.null_count
    return fitting.cast(pa.int16()), found


def _fits(raw: pa.Array, wanted: pa.DataType, *, low: int | None = None, high: int | None = None) -> bool:
    """Do all numbers of an integer column fit the type (and the bounds, where given)?"""
    if low is None and wanted.bit_width >= raw.type.bit_width:
        return True
    limits = np.iinfo(wanted.to_pandas_dtype())
    extremes = pc.min_max(raw)
    least, most = extremes["min"].as_py(), extremes["max"].as_py()
    if least is None:
        return True
    return (limits.min if low is None else low) <= least <= most <= (limits.max if high is None else high)


def canonical_names(column: pa.Array | pa.ChunkedArray) -> pa.DictionaryArray:
    """The same name column with its dictionary sorted and free of unused entries, whatever order the rows were read in."""
    array = column
    if isinstance(column, pa.ChunkedArray):
        unified = column.unify_dictionaries()
        array = pa.concat_arrays(unified.chunks) if unified.num_chunks else pa.array([], column.type)
    codes = array.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    used = np.unique(codes[codes >= 0])
    dictionary = array.dictionary.take(pa.array(used, pa.int64()))
    order = pc.array_sort_indices(dictionary).to_numpy(zero_copy_only=False)
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    remap = np.full(len(array.dictionary) + 1, -1, np.int32)
    remap[used] = rank
    recoded = remap[codes]  # code -1 reads the last entry, which stays -1
    indices = pa.array(recoded, pa.int32(), mask=recoded < 0)
    return pa.DictionaryArray.from_arrays(indices, dictionary.take(pa.array(order, pa.int64())))


def exact_number(value: object, scale: tuple[int, int] = UNITY) -> int | None:
    """One cell as an integer, as `integers` reads it; None where it is no finite number."""
    return _convert(value, scale)[0]


def _int64_cells(
    raw: RawColumn, scale: tuple[int, int], found: Oddities
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """(values, which of them are valid); invalid ones are 0."""
    if isinstance(raw, list):
        kinds = set(map(type, raw))
        if kinds <= {int, type(None)}:
            try:
                array = pa.array(raw, pa.int64())
            except OverflowError:
                return _each(raw, scale, found)
        elif kinds <= {str, type(None)}:
            try:
                array = pa.array(raw, pa.string())
            except ValueError:  # a lone surrogate
                return _each(raw, scale, found)
        else:
            return _each(raw, scale, found)
    else:
        array = raw
    kind = array.type
    if pa.types.is_dictionary(kind) or _is_text(kind):
        return _text_cells(array, scale, found)
    if pa.types.is_temporal(kind) and hasattr(kind, "unit"):
        # A timestamp or duration carries its unit in its type.
        scale = {"s": (10**9, 1), "ms": (10**6, 1), "us": (10**3, 1), "ns": UNITY}[kind.unit]
        array = array.cast(pa.int64())
        kind = array.type
    if pa.types.is_null(kind):
        array, kind = array.cast(pa.int64()), pa.int64()
    if pa.types.is_integer(kind):
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        if kind == pa.uint64():
            fits = pc.less_equal(array, pa.scalar(2**63 - 1, pa.uint64())).fill_null(True)
            found.unreadable += len(array) - pc.sum(fits).as_py() if len(array) else 0
            valid = valid & fits.to_numpy(zero_copy_only=False)
            array = pc.if_else(fits, array, pa.scalar(0, pa.uint64()))
        values = array.fill_null(0).cast(pa.int64()).to_numpy(zero_copy_only=False)
        return _scaled(values, valid, scale, found)
    if pa.types.is_floating(kind):
        return _float_cells(array, scale, found)
    return _each(array.to_pylist(), scale, found)


def _scaled(
    values: npt.NDArray[np.int64], valid: npt.NDArray[np.bool_], scale: tuple[int, int], found: Oddities
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    numerator, denominator = scale
    if scale == UNITY:
        return values, valid
    limit = (2**63 - 1) // numerator
    fits = (values >= -limit) & (values <= limit)
    found.unreadable += int((valid & ~fits).sum())
    valid = valid & fits
    return np.where(valid, values, 0) * numerator // denominator, valid


def _text_cells(
    array: pa.Array, scale: tuple[int, int], found: Oddities
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Text is converted once per distinct value."""
    encoded = array if pa.types.is_dictionary(array.type) else array.cast(pa.binary()).dictionary_encode()
    codes = encoded.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    distinct = encoded.dictionary
    if _is_text(distinct.type):
        distinct = distinct.cast(pa.binary())  # the bytes may not be UTF-8
    converted = [_convert(value, scale) for value in distinct.to_pylist()]
    uses = np.bincount(codes[codes >= 0], minlength=len(converted)) if len(converted) else np.zeros(0, np.int64)
    for (_, oddity), count in zip(converted, uses.tolist(), strict=True):
        if oddity:
            setattr(found, oddity, getattr(found, oddity) + count)
    # One more entry for null, which code -1 reads.
    values = np.array([value or 0 for value, _ in converted] + [0], np.int64)
    valid = np.array([value is not None for value, _ in converted] + [False], bool)
    return values[codes], valid[codes]


def _float_cells(
    array: pa.Array, scale: tuple[int, int], found: Oddities
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    exact = _FLOAT_EXACT[array.type.bit_width]
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    numbers = array.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
    finite = np.isfinite(numbers)
    found.non_finite += int((valid & ~finite).sum())
    valid = valid & finite
    numbers = np.where(valid, numbers, 0.0)
    if scale != UNITY:
        # A scaled float means what its shortest decimal says: 1.23e-05 s is 12,300 ns, not 12,299.
        shortest = [str(number) for number in array.fill_null(0.0).to_numpy(zero_copy_only=False)]
        values, readable = _text_cells(pa.array(shortest, pa.string()), scale, Oddities())
        return np.where(valid, values, 0), valid & readable
    fits = np.abs(numbers) <= exact
    found.inexact += int((valid & ~fits).sum())
    valid = valid & fits
    return np.where(valid, np.floor(numbers), 0).astype(np.int64), valid


def _each(
    cells: list[object], scale: tuple[int, int], found: Oddities
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Cells of mixed types, one by one: what is left when a column has no one type."""
    values = np.zeros(len(cells), np.int64)
    valid = np.zeros(len(cells), bool)
    for row, cell in enumerate(cells):
        value, oddity = _convert(cell, scale)
        if oddity:
            setattr(found, oddity, getattr(found, oddity) + 1)
        if value is not None:
            values[row], valid[row] = value, True
    return values, valid


def _convert(cell: object, scale: tuple[int, int]) -> tuple[int | None, str | None]:
    """(the exact integer or None, which of Oddities' counts it adds to)."""
    number: int | Fraction
    oddity = None
    if cell is None:
        return None, None
    if isinstance(cell, bytes):
        cell = cell.decode("utf-8", "replace")
    if isinstance(cell, bool):
        return None, "unreadable"
    if isinstance(cell, int):
        number = cell
    elif isinstance(cell, str):
        text = cell.strip()
        if not text:
            return None, "empty"
        if text.lower() in _NON_FINITE:
            return None, "non_finite"
        if not _NUMBER.fullmatch(text):
            return None, "unreadable"
        number, oddity = Fraction(text), "text"
    elif isinstance(cell, Decimal):
        if not cell.is_finite():
            return None, "non_finite"
        # The exponent is bounded before anything is raised to it: "1e999999999" is ten bytes.
        if cell and not -400 <= cell.adjusted() <= 400:
            return (0, None) if cell.adjusted() < 0 else (None, "unreadable")
        number = Fraction(cell)
    elif isinstance(cell, float):
        if not math.isfinite(cell):
            return None, "non_finite"
        if scale == UNITY and abs(cell) > _FLOAT_EXACT[64]:
            return None, "inexact"
        number = Fraction(repr(cell))
    else:
        return None, "unreadable"
    value = math.floor(number * scale[0] / scale[1]) if scale != UNITY else math.floor(number)
    return (value, oddity) if -(2**63) <= value < 2**63 else (None, "unreadable")


def _as_float(cell: object) -> float | None:
    if isinstance(cell, bool) or not isinstance(cell, int | float | Decimal | str):
        return None
    try:
        return float(cell)
    except (ValueError, OverflowError):
        return None


def _as_text(cell: object, depth: int = 0) -> str | None:
    if cell is None:
        return None
    if isinstance(cell, str):
        return cell.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(cell, bytes):
        return cell.decode("utf-8", "backslashreplace")
    if isinstance(cell, list) and depth < 8:
        return "[" + ", ".join(_as_text(part, depth + 1) or "" for part in cell) + "]"
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, int) and cell.bit_length() > 128:
        return "a number of more than 128 bits"
    if isinstance(cell, int | float | Decimal):
        return str(cell)
    return type(cell).__name__


def _is_text(kind: pa.DataType) -> bool:
    return (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or kind == pa.string_view()
        or kind == pa.binary_view()
    )


def plain(column: pa.Array) -> pa.Array:
    """A name column as plain strings, anything else as it is."""
    return column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column


def _valid_utf8(array: pa.Array) -> pa.Array:
    """Text with any bytes that are not UTF-8 as escapes: names are only printed, never looked up."""
    binary = array.cast(pa.binary())
    try:
        return binary.cast(pa.string())  # the cast checks, where a string array out of a file was never checked
    except pa.ArrowInvalid:
        return pa.array([_as_text(value) for value in binary.to_pylist()], pa.string())


def _without_empty(encoded: pa.DictionaryArray, wanted: bool) -> pa.DictionaryArray:
    """Empty text as null, where that is wanted."""
    position = pc.index(encoded.dictionary, pa.scalar("", pa.string())).as_py() if wanted else -1
    if position < 0:
        return encoded
    indices = pc.if_else(pc.equal(encoded.indices, position), pa.scalar(None, pa.int32()), encoded.indices)
    return pa.DictionaryArray.from_arrays(indices, encoded.dictionary)

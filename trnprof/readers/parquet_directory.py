"""The Parquet files of one Explorer directory: which table is in which, read by column and within bounds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trnprof.errors import InputDataError, InputMissingError
from trnprof.readers.cells import names

MAX_ROWS_PER_BYTE = 64
"""Rows that one byte of a Parquet file may stand for (real tables: under 1; a run-length bomb: millions)."""

MAX_UNPACKED_RATIO = 1000
"""Unpacked to file size up to which a file is believed."""

BATCH_ROWS = 1 << 17
"""Rows read at once where a table is read in batches: 1 MB a column, which the processor's caches hold. Half as many cost
a tenth more time, in calls; twice as many gain nothing."""

_DECODE_ROWS = 1 << 18
_BUFFER_BYTES = 1 << 20
_FEW_ROWS = 1 << 14
"""A piece with fewer rows is read with dictionaries whatever they hold."""
_ALWAYS_READ_ROWS = 1_000_000
_ALWAYS_READ_BYTES = 1 << 30
_SMALL_TABLE_ROWS = 100_000
"""Tables about the capture (warnings, queues) are read up to here."""

_FILE_NAME = re.compile(r"([A-Za-z]{1,60})(?:_(\d{1,6}))?", re.ASCII)
_WHOLE = -1
"""The part number of an unsplit table's file."""


def find_directory(path: Path) -> Path:
    """The directory itself, or the one directory in it that has tables.

    Raises: InputMissingError if it cannot be read; InputDataError if it is a file, has no tables or several profiles.
    """
    if not path.exists():
        raise InputMissingError("no such directory; check the path", path=path)
    if not path.is_dir():
        raise InputDataError("a file where an Explorer directory belongs; name the directory that holds it", path=path)
    try:
        if any(path.glob("*.parquet")):
            return path
        inner = sorted(child for child in path.iterdir() if child.is_dir() and any(child.glob("*.parquet")))
    except OSError as error:
        raise InputMissingError(f"cannot be read ({error.strerror or error})", path=path) from None
    if len(inner) == 1:
        return inner[0]
    if inner:
        shown = ", ".join(ascii(child.name) for child in inner[:5]) + (", ..." if len(inner) > 5 else "")
        raise InputDataError(f"{len(inner)} profiles in it ({shown}); name one", path=path)
    raise InputDataError("a directory without Explorer Parquet tables; name the one that the profiler wrote", path=path)


@dataclass(frozen=True)
class RowGroup:
    """One row group of one file."""

    file: Path
    number: int


class ParquetDirectory:
    """The tables of one Explorer directory; a large table may be split into Table_0, Table_1 and so on."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._parts: dict[str, dict[int, Path]] = {}
        try:
            found = sorted(file for file in directory.iterdir() if file.suffix == ".parquet" and file.is_file())
        except OSError as error:
            raise InputMissingError(f"cannot be read ({error.strerror or error})", path=directory) from None
        for file in found:
            match = _FILE_NAME.fullmatch(file.stem)
            if match:
                self._parts.setdefault(match[1], {})[_WHOLE if match[2] is None else int(match[2])] = file

    def preview(self) -> str:
        """A few of the tables' names."""
        found = sorted(self._parts)
        return ", ".join(found[:8]) + (", ..." if len(found) > 8 else "")

    def columns(
        self, table: str, wanted: Mapping[str, tuple[str, ...]]
    ) -> Iterator[tuple[Path, int, dict[str, tuple[str, pa.Array]]]]:
        """(file, its row count, {column: (its name in the file, its values)}) of each of the table's files, in order.

        wanted: column -> the names under which it may stand, most preferred first. Only these are read; text comes as
        dictionaries.

        Raises: InputDataError for a missing part, a file that is not a whole Parquet file, or one that claims more
                than its size can hold.
        """
        for file in self._files(table):
            with reading(file):
                opened, present, bound = _bind(file, wanted)
                read = pq.ParquetFile(file, read_dictionary=_text_names(opened.schema_arrow, present)).read(
                    columns=present
                )
                count = opened.metadata.num_rows
                arrays = _named_arrays(read, bound)
            yield file, count, arrays

    def batches(
        self, table: str, wanted: Mapping[str, tuple[str, ...]], *, rows: int = BATCH_ROWS
    ) -> Iterator[tuple[Path, int, dict[str, tuple[str, pa.Array]]]]:
        """As `columns`, but at most `rows` rows at a time; how a table is cut depends on nothing but the table and `rows`."""
        for place in self.row_groups(table):
            yield from self.group_batches(place, wanted, rows=rows)

    def holds(self, table: str) -> bool:
        """Does the directory have a file of the table?"""
        return table in self._parts

    def row_count(self, table: str) -> int:
        """Rows of the table, by its files' footers. Raises: as `columns`."""
        count = 0
        for file in self._files(table):
            with reading(file):
                metadata = pq.read_metadata(file)
                _check_claims(metadata, file)
                count += metadata.num_rows
        return count

    def empty_columns(
        self, table: str, wanted: Mapping[str, tuple[str, ...]]
    ) -> Iterator[tuple[Path, dict[str, tuple[str, pa.Array]]]]:
        """As `columns`, without rows: which columns each file has, and of what type. Raises: as `columns`."""
        for file in self._files(table):
            with reading(file):
                opened, present, bound = _bind(file, wanted)
                kinds = pa.schema([opened.schema_arrow.field(name) for name in present])
                arrays = _named_arrays(kinds.empty_table(), bound)
            yield file, arrays

    def row_groups(self, table: str) -> list[RowGroup]:
        """Where the table's rows stand, in order. Raises: as `columns`."""
        places = []
        for file in self._files(table):
            with reading(file):
                metadata = pq.read_metadata(file)
                _check_claims(metadata, file)
                places += [RowGroup(file, number) for number in range(metadata.num_row_groups)]
        return places

    def group_batches(
        self, place: RowGroup, wanted: Mapping[str, tuple[str, ...]], *, rows: int = BATCH_ROWS
    ) -> Iterator[tuple[Path, int, dict[str, tuple[str, pa.Array]]]]:
        """As `batches`, of one row group."""
        file = place.file
        with reading(file):
            opened, present, bound = _bind(file, wanted)
            left = opened.metadata.row_group(place.number).num_rows
            texts = _text_names(opened.schema_arrow, present)
            parts = _decoded(file, place, present, texts, max(rows, _DECODE_ROWS))
            first = next(parts, None) if texts else None
            unlike = _unlike(first, texts)
            if unlike:
                texts = [name for name in texts if name not in unlike]
                parts, first = (
                    _decoded(file, place, present, texts, rows),
                    None,
                )  # long texts: no more than is given out
        held: list[pa.RecordBatch] = [] if first is None else [first]
        while left:
            # A piece may be shorter where a dictionary changes.
            size = min(left, rows)
            while present and sum(part.num_rows for part in held) < size:
                with reading(file):
                    part = next(parts, None)
                    if part is None:
                        raise pa.ArrowInvalid("fewer rows than its footer says")
                    held.append(part)
            with reading(file):
                read = pa.Table.from_batches(held) if held else pa.table({})
                arrays = _named_arrays(read.slice(0, size), bound)
                held = read.slice(size).to_batches()
            left -= size
            yield file, size, arrays

    def rows(self, table: str) -> list[dict[str, object]]:
        """The rows of a small table as dicts.

        Raises: as `columns`; InputDataError if the table is not small.
        """
        rows: list[dict[str, object]] = []
        for file in self._files(table):
            with reading(file):
                opened = pq.ParquetFile(file)
                if opened.metadata.num_rows > _SMALL_TABLE_ROWS:
                    raise InputDataError(
                        f"{opened.metadata.num_rows:,} rows where a few belong; not a profile", path=file
                    )
                _check_claims(opened.metadata, file)
                read = opened.read()
                cells = [_cells(_one_array(column)) for column in read.columns]
            rows += [dict(zip(read.column_names, row, strict=True)) for row in zip(*cells, strict=True)]
        return rows

    def _files(self, table: str) -> list[Path]:
        parts = self._parts.get(table, {})
        numbered = set(parts) - {_WHOLE}
        missing = next((number for number in range(len(numbered)) if number not in numbered), None)
        if missing is not None:
            raise InputDataError(
                f"{table}_{missing}.parquet is missing though {parts[max(numbered)].name} is there; copy the whole directory",
                path=self.directory,
            )
        return [parts[number] for number in sorted(parts)]


def _bind(file: Path, wanted: Mapping[str, tuple[str, ...]]) -> tuple[pq.ParquetFile, list[str], dict[str, str | None]]:
    """(the file, the names of its columns to read, column -> its name in the file)."""
    opened = pq.ParquetFile(file)
    # A list in one cell may stand for any number of values; no column that is wanted is one.
    held = [part.name for part in opened.schema_arrow if not pa.types.is_nested(part.type)]
    bound = {column: next((name for name in aliases if name in held), None) for column, aliases in wanted.items()}
    _check_claims(opened.metadata, file)
    return opened, list(dict.fromkeys(name for name in bound.values() if name is not None)), bound


def _named_arrays(read: pa.Table, bound: Mapping[str, str | None]) -> dict[str, tuple[str, pa.Array]]:
    return {column: (name, _one_array(read.column(name))) for column, name in bound.items() if name is not None}


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Turn whatever pyarrow raises while it reads `file` into an error that a user can act on."""
    try:
        yield
    except (PermissionError, FileNotFoundError) as error:
        raise InputMissingError(f"cannot be read ({error.strerror})", path=file) from None
    except (pa.ArrowException, OSError, ValueError, KeyError, MemoryError, OverflowError) as error:
        if file.exists() and not file.stat().st_size:
            raise InputDataError(
                "empty (0 bytes); did the conversion finish? convert the capture again", path=file
            ) from None
        reason = ascii((str(error).splitlines() or [""])[0][:100])[1:-1]
        raise InputDataError(
            f"not a whole Parquet file ({reason}); did the conversion finish? convert the capture again", path=file
        ) from None


def _check_claims(metadata: pq.FileMetaData, file: Path) -> None:
    size = file.stat().st_size
    if metadata.num_rows > max(_ALWAYS_READ_ROWS, MAX_ROWS_PER_BYTE * size):
        raise InputDataError(
            f"claims {metadata.num_rows:,} rows in {size:,} bytes; damaged, or not a profile", path=file
        )
    # Not by column: pyarrow aborts the process when a damaged column chunk is looked at.
    unpacked = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    if unpacked > max(_ALWAYS_READ_BYTES, MAX_UNPACKED_RATIO * size):
        raise InputDataError(f"unpacks to {unpacked:,} bytes from {size:,}; damaged, or not a profile", path=file)


def _decoded(file: Path, place: RowGroup, present: list[str], coded: list[str], rows: int) -> Iterator[pa.RecordBatch]:
    """The pieces of a row group, the columns in `coded` as dictionaries.

    Column chunks are read through small buffers, not whole: a row group may be as large as the table. Pieces are longer
    than they are given out in: each has a dictionary to build.
    """
    reader = pq.ParquetFile(file, read_dictionary=coded, pre_buffer=False, buffer_size=_BUFFER_BYTES)
    parts: Iterator[pa.RecordBatch] = reader.iter_batches(batch_size=rows, row_groups=[place.number], columns=present)
    return parts


def _unlike(piece: pa.RecordBatch | None, coded: list[str]) -> set[str]:
    """Text columns whose cells mostly differ, as an unrolled program's operands do.

    pyarrow's dictionary of a row group grows from piece to piece and stays in memory: for these it would be the whole column.
    """
    if piece is None or piece.num_rows < _FEW_ROWS:
        return set()
    return {name for name in coded if 4 * len(piece.column(name).dictionary) > piece.num_rows}


def _text_names(schema: pa.Schema, present: list[str]) -> list[str]:
    kinds = {name: schema.field(name).type for name in present}
    return [name for name, kind in kinds.items() if pa.types.is_string(kind) or pa.types.is_binary(kind)]


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        for chunk in column.chunks:
            _check_codes(chunk)
    if column.num_chunks == 1:
        return column.chunk(0)
    if not column.num_chunks:
        return pa.array([], column.type)
    if pa.types.is_dictionary(column.type):
        column = column.unify_dictionaries()
    return pa.concat_arrays(column.chunks)


def _check_codes(array: pa.DictionaryArray) -> None:
    """pyarrow trusts the codes in a file; a damaged one would be looked up beyond its dictionary."""
    extremes = pc.min_max(array.indices)
    low, high = extremes["min"].as_py(), extremes["max"].as_py()
    if low is not None and not 0 <= low <= high < len(array.dictionary):
        raise pa.ArrowInvalid("a dictionary code beyond its dictionary")


def _cells(array: pa.Array) -> list[object]:
    """A small column's cells; a float32 as the float that its shortest decimal spells (2.4, not 2.4000000954)."""
    if pa.types.is_float32(array.type):
        numbers = array.to_numpy(zero_copy_only=False).astype(np.float32)
        valid = array.is_valid().to_pylist()
        return [float(str(number)) if real else None for number, real in zip(numbers, valid, strict=True)]
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type) or pa.types.is_dictionary(array.type):
        return names(array).to_pylist()
    return array.to_pylist()

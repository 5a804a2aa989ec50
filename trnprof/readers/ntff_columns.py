"""Columns from numpy arrays, straight from their memory.

pa.array() does the same but imports pandas the first time it is called, 0.3 s that decoding does not need, and copies
an array that has a mask.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers = npt.NDArray[np.integer]


def column(values: Numbers) -> pa.Array:
    """The values as a column of their own type; shape [n], shared, not copied."""
    return _from_memory(values, None)


def nullable(values: Numbers) -> pa.Array:
    """The values as a column, negative ones as null."""
    missing = values < 0
    return _from_memory(values, missing if missing.any() else None)


def coded(codes: npt.NDArray[np.int32], names: Sequence[str]) -> pa.DictionaryArray:
    """A name column from codes into `names` (negative: null), its dictionary cut to the names that occur."""
    used = np.flatnonzero(np.bincount(codes[codes >= 0], minlength=1))
    short = np.full(len(names) + 1, -1, np.int32)
    short[used] = np.arange(len(used), dtype=np.int32)
    return pa.DictionaryArray.from_arrays(nullable(short[codes]), _texts([names[code] for code in used.tolist()]))


def _from_memory(values: Numbers, missing: npt.NDArray[np.bool_] | None) -> pa.Array:
    valid = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [valid, data])


def _texts(names: list[str]) -> pa.Array:
    encoded = [name.encode("utf-8") for name in names]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(names), buffers)

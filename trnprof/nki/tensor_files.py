"""Tensors in files: .npy and .safetensors, read and written without any package beside NumPy.

A safetensors file is eight bytes of header length (little endian), a JSON object {name: {dtype, shape, data_offsets}}, and
the data. It keeps bfloat16 and float8; an .npy file does not, so those types are written to it as float32, which holds
their values exactly.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from trnprof.errors import InputDataError, UsageError
from trnprof.nki.dtypes import as_dtype
from trnprof.nki.recording import TensorSpec
from trnprof.nki.values.kinds import NUMPY, PACKED, dtype_of, is_integer, rounded

if TYPE_CHECKING:
    from trnprof.nki.values.run import OutputValue

SAFETENSORS = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U16": np.dtype(np.uint16),
    "I16": np.dtype(np.int16),
    "U32": np.dtype(np.uint32),
    "I32": np.dtype(np.int32),
    "U64": np.dtype(np.uint64),
    "I64": np.dtype(np.int64),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
}
"""The format's names of types."""
_HEADER_LIMIT = 64 << 20


def load_tensor(path: Path, name: str, spec: Any = None) -> np.ndarray:
    """The tensor in an .npy file, or called `name` in a .safetensors file (its only one, if there is one).

    spec: a TensorSpec with the shape it must have and the type it is rounded to.
    Raises: InputDataError for a file that is none of the two or does not fit the spec.
    """
    try:
        array = _from_safetensors(path, name) if path.suffix == ".safetensors" else np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputDataError(
            f"--load {name}: {reason}; save the array with numpy.save, or as .safetensors", path=path.name
        ) from None
    if not isinstance(array, np.ndarray):
        raise InputDataError(f"--load {name}: an archive of several arrays; save one with numpy.save", path=path.name)
    if not isinstance(spec, TensorSpec):
        try:
            dtype_of(array)
        except TypeError as error:
            raise InputDataError(f"--load {name}: {error}; convert it first", path=path.name) from None
        return array
    if array.shape != spec.shape:
        raise InputDataError(
            f"--load {name}: shape {'x'.join(map(str, array.shape))}, and --input says {'x'.join(map(str, spec.shape))}",
            path=path.name,
        )
    dtype = as_dtype(spec.dtype)
    if dtype in PACKED:
        return array.astype(NUMPY[dtype]).view(np.dtype([(str(dtype), NUMPY[dtype])]))
    if is_integer(dtype) and array.dtype.kind in "iub":
        return array.astype(NUMPY[dtype])
    return rounded(array.astype(np.float64), dtype)


def _from_safetensors(path: Path, name: str) -> np.ndarray:
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    if length > min(_HEADER_LIMIT, len(raw) - 8):
        raise ValueError("no safetensors file: its header does not fit")
    header = json.loads(raw[8 : 8 + length])
    tensors = {key: value for key, value in header.items() if key != "__metadata__"}
    entry = tensors.get(name) or (next(iter(tensors.values())) if len(tensors) == 1 else None)
    if not isinstance(entry, dict):
        raise ValueError(f"no tensor {name!r} among {', '.join(sorted(tensors)[:8])}")
    kind = SAFETENSORS.get(str(entry.get("dtype")))
    if kind is None:
        raise ValueError(f"element type {entry.get('dtype')!r} is not known")
    first, last = (int(place) for place in entry["data_offsets"])
    shape = tuple(int(size) for size in entry["shape"])
    data = raw[8 + length + first : 8 + length + last]
    return np.frombuffer(data, kind).reshape(shape).copy()


def save_outputs(outputs: Sequence[Sequence[OutputValue]], folder: Path, form: str) -> None:
    """Write every output: NAME.npy (rank1.NAME.npy, ...), or one outputs.safetensors.

    Raises: UsageError for an output name that is no file name.
    """
    folder.mkdir(exist_ok=True)
    named: dict[str, np.ndarray] = {}
    for rank, of_rank in enumerate(outputs):
        for position, output in enumerate(of_rank):
            name = output.name.replace("/", "_").strip(".") or f"output{position}"
            name = f"rank{rank}.{name}" if rank else name
            if name in named:
                name = f"{name}.{position}"
            if "\0" in name or len(name) > 200:
                raise UsageError(f"output {output.name[:80]!r} is no file name; name the tensor otherwise")
            named[name] = output.array
    if form == "safetensors":
        (folder / "outputs.safetensors").write_bytes(safetensors(named))
        return
    for name, array in named.items():
        plain = array
        if array.dtype.names:
            plain = array.view(array.dtype[0])
        elif array.dtype.kind not in "iufb":
            plain = array.astype(np.float32)
        np.save(folder / f"{name}.npy", plain, allow_pickle=False)


def safetensors(tensors: dict[str, np.ndarray]) -> bytes:
    """The bytes of a safetensors file; types it has no name for as float32."""
    names = {kind: name for name, kind in SAFETENSORS.items()}
    header: dict[str, Any] = {}
    parts: list[bytes] = []
    place = 0
    for name, array in sorted(tensors.items()):
        plain = array.view(array.dtype[0]) if array.dtype.names else array
        plain = plain if plain.dtype in names else plain.astype(np.float32)
        data = np.ascontiguousarray(plain).tobytes()
        header[name] = {
            "dtype": names[plain.dtype],
            "shape": list(plain.shape),
            "data_offsets": [place, place + len(data)],
        }
        parts.append(data)
        place += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(parts)

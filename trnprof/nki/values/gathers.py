"""nki.isa across elements and partitions of SBUF: gathers, shuffles, sequence bounds."""

from __future__ import annotations

import numpy as np

from trnprof.nki.operations.table import Bound, Operation
from trnprof.nki.tensor import Tensor
from trnprof.nki.values.limits import HardwareLimitError
from trnprof.nki.values.machine import Machine
from trnprof.nki.values.registry import instruction
from trnprof.nki.values.search import CORE_PARTITIONS

QUADRANT = 32
UNCHANGED = 255
"""A shuffle mask's entry for partitions that keep what they have."""


@instruction("isa", "nc_n_gather")
def nc_n_gather(machine: Machine, operation: Operation, bound: Bound, dst: Tensor) -> None:
    """Within each partition: the elements that the indices name."""
    data, indices = bound["data"], bound["indices"]
    values, places = machine.bits(data), machine.bits(indices).astype(np.int64)
    flat = values.reshape(values.shape[0], -1)
    rows = places.reshape(places.shape[0], -1)
    _check_indices("nc_n_gather", indices, rows, flat.shape[1])
    machine.put(dst, machine.fitted(np.take_along_axis(flat, rows, axis=1), dst.shape))


def _check_indices(name: str, indices: Tensor, values: np.ndarray, count: int) -> None:
    if values.size and (values.min() < 0 or values.max() >= count):
        raise IndexError(
            f"{name}: indices {int(values.min())}..{int(values.max())} of {indices.name!r} into {count} elements a partition"
        )


@instruction("isa", "local_gather")
def local_gather(machine: Machine, operation: Operation, bound: Bound, dst: Tensor) -> None:
    """Each group of 16 partitions gathers with the indices that its own partitions hold, column by column."""
    source, index = bound["src_buffer"], bound["index"]
    width = machine.integer(bound.get("num_elem_per_idx") or 1)
    values, places = machine.bits(source), machine.bits(index).astype(np.int64)
    flat, rows = values.reshape(values.shape[0], -1), places.reshape(places.shape[0], -1)
    if flat.shape[0] != rows.shape[0] or flat.shape[0] % CORE_PARTITIONS:
        raise HardwareLimitError(
            f"local_gather: src_buffer has {flat.shape[0]} partitions and index {rows.shape[0]}; as many, in sixteens"
        )
    valid = bound.get("num_valid_indices")
    count = rows.shape[1] * CORE_PARTITIONS if valid is None else machine.integer(valid)
    result = np.empty((flat.shape[0], count * width), flat.dtype)
    for first in range(0, flat.shape[0], CORE_PARTITIONS):
        wanted = rows[first : first + CORE_PARTITIONS].T.reshape(-1)[:count]
        _check_indices("local_gather", index, wanted, flat.shape[1] - width + 1)
        columns = (wanted[:, None] + np.arange(width)).reshape(-1)
        result[first : first + CORE_PARTITIONS] = flat[first : first + CORE_PARTITIONS, columns]
    machine.put(dst, machine.fitted(result, dst.shape))


@instruction("isa", "nc_stream_shuffle")
def nc_stream_shuffle(machine: Machine, operation: Operation, bound: Bound, dst: Tensor) -> None:
    """Within each quadrant of 32 partitions: output partition i takes input partition mask[i]; 255 leaves it as it is."""
    mask = [machine.integer(entry) for entry in bound["shuffle_mask"]]
    if len(mask) != QUADRANT:
        raise HardwareLimitError(f"nc_stream_shuffle mask has {len(mask)} entries; it needs {QUADRANT}")
    src = bound["src"]
    if src.dtype != dst.dtype:
        raise HardwareLimitError(f"nc_stream_shuffle moves bits: src is {src.dtype} and dst {dst.dtype}")
    values = machine.bits(src)
    flat = values.reshape(values.shape[0], -1)
    partitions = dst.shape[0]
    take = np.zeros(partitions, np.int64)
    moves = np.zeros(partitions, bool)
    for partition in range(partitions):
        entry = mask[partition % QUADRANT]
        if entry == UNCHANGED:
            continue
        source = partition // QUADRANT * QUADRANT + entry
        if source >= flat.shape[0]:
            raise HardwareLimitError(
                f"nc_stream_shuffle: partition {partition} takes partition {source}, and src has {flat.shape[0]}"
            )
        take[partition], moves[partition] = source, True
    result = flat[take]
    machine.put(dst, machine.fitted(result, dst.shape), machine.fitted(np.repeat(moves, result.shape[1]), dst.shape))


@instruction("isa", "sequence_bounds")
def sequence_bounds(machine: Machine, operation: Operation, bound: Bound, dst: Tensor) -> None:
    """Start and end of the run of equal ids around each element; for id 0 the length and -1."""
    ids = machine.number(bound["segment_ids"])
    flat = ids.reshape(ids.shape[0], -1)
    count = flat.shape[1]
    place = np.arange(count)
    result = np.empty((flat.shape[0], 2, count), machine.work)
    for row, line in enumerate(flat):
        changes = np.flatnonzero(np.diff(line) != 0) + 1
        starts = np.concatenate([[0], changes])
        ends = np.concatenate([changes, [count]])
        run = np.searchsorted(starts, place, side="right") - 1
        result[row, 0] = np.where(line == 0, count, starts[run])
        result[row, 1] = np.where(line == 0, -1, ends[run])
    machine.write(dst, machine.fitted(result, dst.shape))

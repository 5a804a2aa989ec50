"""Greedy choice of the next token: the place of each row's largest logit, the lowest of equals.

    trnprof nki model engine/kernels/nki/sampling.py --kernel greedy --input logits=8x151936:float32

A row's vocabulary is cut into as many runs as leave every partition something to do: 8 rows are 16 partitions each. Each
partition finds the largest of its run; the candidates of a row are turned onto one partition and compared there.
"""

import nki
import nki.isa as nisa
import nki.language as nl

P = 128
COLUMNS = 4096  # logits of a partition looked at in one go (an instruction takes 8 to 16,384)
FEWEST = 8
LEAST = float("-inf")
SMALLEST = -3.0e38  # the tensor engine turns finite numbers only
BEYOND = 1.0e9  # added to the places of candidates that are not the largest


@nki.jit
def greedy(logits):
    """logits [rows, X]: the index of each row's largest, [rows, 1] int32. X is less than 2^24."""
    rows, size = logits.shape
    assert size < 1 << 24, f"{size} places are more than float32 counts"
    out = nl.ndarray((rows, 1), dtype=nl.int32, buffer=nl.shared_hbm)
    for first in range(0, rows, P):
        choose(out, logits, first, min(P, rows - first))
    return out


def choose(out, logits, first_row, rows):
    """The choice for rows [first_row, first_row + rows)."""
    size = logits.shape[1]
    parts = min(P // rows, max(1, size // FEWEST))
    run = (size + parts - 1) // parts
    parts = (size + run - 1) // run
    best = nl.ndarray((rows * parts, 1), dtype=nl.float32, buffer=nl.sbuf)
    place = nl.ndarray((rows * parts, 1), dtype=nl.float32, buffer=nl.sbuf)
    for first in range(0, run, COLUMNS):
        count = min(COLUMNS, run - first)
        tile = load(logits, first_row, rows, parts, run, first, count)
        values, found = largest(tile, first)
        if first == 0:
            nisa.tensor_copy(dst=best, src=values)
            nisa.tensor_copy(dst=place, src=found)
        else:
            keep_larger(best, place, values, found)
    nisa.tensor_scalar(dst=best, data=best, op0=nl.maximum, operand0=SMALLEST)
    pick(out, turned(best), turned(place), first_row, rows, parts, run)


def load(logits, first_row, rows, parts, run, first, count):
    """Columns [first, first + count) of every run: [rows * parts, max(count, 8)]; what lies beyond a row's end is LEAST."""
    size = logits.shape[1]
    tile = nl.ndarray((rows * parts, max(count, FEWEST)), dtype=logits.dtype, buffer=nl.sbuf)
    last = min(max(size - (parts - 1) * run - first, 0), count)  # columns of the last run, which may be shorter
    if last < count or count < FEWEST:
        nisa.memset(dst=tile, value=LEAST)
    if last == count:
        source = logits.ap(pattern=[[size, rows], [run, parts], [1, count]], offset=first_row * size + first)
        nisa.dma_copy(dst=tile[:, 0:count], src=source)
        return tile
    for row in range(rows):
        start = (first_row + row) * size + first
        whole = logits.ap(pattern=[[run, parts - 1], [1, count]], offset=start)
        if parts > 1:
            nisa.dma_copy(dst=tile[row * parts : row * parts + parts - 1, 0:count], src=whole)
        if last > 0:
            ragged = logits.ap(pattern=[[run, 1], [1, last]], offset=start + (parts - 1) * run)
            nisa.dma_copy(dst=tile[row * parts + parts - 1 : (row + 1) * parts, 0:last], src=ragged)
    return tile


def largest(tile, first):
    """The largest of each partition and its column counted from `first`, both float32 [partitions, 1]."""
    lanes = tile.shape[0]
    eight = nl.ndarray((lanes, 8), dtype=tile.dtype, buffer=nl.sbuf)
    places = nl.ndarray((lanes, 8), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.max8(dst=eight, src=tile)
    nisa.nc_find_index8(dst=places, data=tile, vals=eight)
    found = nl.ndarray((lanes, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=found, data=places[:, 0:1], op0=nl.add, operand0=float(first))
    return eight[:, 0:1], found


def keep_larger(best, place, values, found):
    """Take over what is larger than the best so far; an equal one stands further right."""
    lanes = best.shape[0]
    better = nl.ndarray((lanes, 1), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=better, data1=values, data2=best, op=nl.greater)
    nisa.tensor_copy_predicated(dst=place, src=found, predicate=better)
    nisa.tensor_tensor(dst=best, data1=best, data2=values, op=nl.maximum)


def turned(column):
    """[lanes, 1] as [1, lanes]."""
    lanes = column.shape[0]
    row = nl.ndarray((1, lanes), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=row, data=column)
    copied = nl.ndarray((1, lanes), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=copied, src=row)
    return copied


def pick(out, best, place, first_row, rows, parts, run):
    """Of each row's candidates [1, rows * parts] the place of the largest, the lowest of equals."""
    values, places = best.reshape((1, rows, parts)), place.reshape((1, rows, parts))
    starts = nl.ndarray((1, rows, parts), dtype=nl.int32, buffer=nl.sbuf)
    nisa.iota(dst=starts, pattern=[[0, rows], [run, parts]], offset=0, channel_multiplier=0)
    nisa.tensor_tensor(dst=places, data1=places, data2=starts, op=nl.add)
    top = nl.ndarray((1, rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=top, op=nl.maximum, data=values, axis=2, keepdims=True)
    lost = nl.ndarray((1, rows, parts), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=lost, data1=values, data2=top.broadcast(2, parts), op=nl.less)
    nisa.scalar_tensor_tensor(dst=places, data=lost, op0=nl.multiply, operand0=BEYOND, op1=nl.add, operand1=places)
    token = nl.ndarray((1, rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=token, op=nl.minimum, data=places, axis=2, keepdims=True)
    whole = nl.ndarray((1, rows), dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=whole, src=token.reshape((1, rows)))
    nisa.dma_copy(dst=out[first_row : first_row + rows, :].reshape((1, rows)), src=whole)

"""Mixture of experts for a step's rows: a chosen expert's weights for each (row, expert) pair, or each expert's once for all.

    trnprof nki model engine/kernels/nki/experts.py --kernel experts_selective --input x=1x2048:bfloat16 \\
        --input weights=1x8:bfloat16 --input chosen=1x8:int32 --input gate_up=128x128x6x2x16x128:bfloat16 \\
        --input down=128x128x16x6x128:bfloat16

Both forms run one expert in the same way: weights stay in the tensor engine and rows stream past them. Rows are columns
throughout (hidden channels, then inner ones, in the partitions), so nothing between the two projections is transposed, and
what the vector engine adds up fills all partitions however few the rows are.

Weights come in the order in which they are used, so that a partition's part of a DMA is one long run (experts_calls arranges
them when they are first used). With D = J * P hidden and I = C * Q inner channels, P and Q at most 128:
    gate_up [E, P, C, 2, J, Q]   channel j * P + p of the input, channel c * Q + q of the gate (0) and of up (1)
    down    [E, Q, J, C, P]      channel c * Q + q of the input, channel j * P + p of the output
"""

import nki
import nki.isa as nisa
import nki.language as nl

PARTITIONS = 128
BANK = 512  # float32 columns of a PSUM bank, and so the most rows of a call
LOAD_BYTES = 8 * 1024  # of a partition, in one DMA of weights: 1 MiB on 128


@nki.jit
def experts_selective(x, weights, chosen, gate_up, down):
    """For each row the sum over its experts of weight * down(silu(gate x) * up x); a pair's weights are read for it alone.

    x [T, D]; weights [T, K]; chosen [T, K] int32; gate_up and down as above. Returns [T, D] of x's type.
    """
    rows, top_k = chosen.shape
    columns = load_columns(x, gate_up.shape[1])
    numbers = load_row(chosen, rows * top_k)
    shares = on_every_partition(as_float32(load_row(weights, rows * top_k)), gate_up.shape[5])
    total = zeros((columns.shape[0], columns.shape[1], rows))
    for row in range(rows):
        for place in range(top_k):
            pair = row * top_k + place
            share = shares[:, pair : pair + 1]
            add_expert(total, columns, row, 1, gate_up, down, numbers[0:1, pair : pair + 1], 0, share)
    return store_columns(total, x)


@nki.jit
def experts_once(x, weights, chosen, gate_up, down, numbers=None, first_expert=0):
    """The same sum, expert by expert: an expert's weights are read once and all rows take part, with weight 0 unless chosen.

    numbers [N] int32: the experts to run, each once, among them all that a row chose; one that no row chose adds nothing.
    None: every expert, at addresses known beforehand. first_expert: what `chosen` calls gate_up's first, where the experts
    are spread over ranks; then the result is this rank's part of the sum.
    """
    rows, top_k = chosen.shape
    inner = gate_up.shape[5]
    columns = load_columns(x, gate_up.shape[1])
    shares = on_every_partition(as_float32(load_row(weights, rows * top_k)), inner)
    choices = on_every_partition(as_float32(load_row(chosen, rows * top_k)), inner)
    total = zeros((columns.shape[0], columns.shape[1], rows))
    count = gate_up.shape[0] if numbers is None else numbers.shape[0]
    if numbers is not None:
        listed = load_row(numbers, count)
        wanted = on_every_partition(as_float32(listed), inner)
        nisa.tensor_scalar(dst=wanted, data=wanted, op0=nl.add, operand0=float(first_expert))
    for place in range(count):
        if numbers is None:
            number, expert, wanted_here = None, place, first_expert + place
        else:
            number, expert, wanted_here = listed[0:1, place : place + 1], 0, wanted[:, place : place + 1]
        share = share_of_expert(choices, shares, wanted_here, rows, top_k)
        add_expert(total, columns, 0, rows, gate_up, down, number, expert, share)
    return store_columns(total, x)


# One expert


def add_expert(total, columns, first, rows, gate_up, down, number, expert, share):
    """total[:, :, first : first + rows] += share * expert(columns of those rows).

    number: an element in SBUF that tells the expert, or None where `expert` does. share [Q, rows].
    """
    hidden_size, hidden_count = gate_up.shape[1], gate_up.shape[4]
    inner_count, inner_size = gate_up.shape[2], gate_up.shape[5]
    products = nl.ndarray((inner_size, inner_count, rows), dtype=nl.float32, buffer=nl.sbuf)
    step = tiles_of_load(2 * hidden_count * inner_size, gate_up, inner_count)
    for begin in range(0, inner_count, step):
        some = min(step, inner_count - begin)
        loaded = nl.ndarray((hidden_size, some, 2, hidden_count, inner_size), dtype=gate_up.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=loaded, src=part_of_expert(gate_up, number, expert, begin, some))
        for tile in range(some):
            sums = []
            for which in range(2):
                tile_sum = nl.ndarray((inner_size, rows), dtype=nl.float32, buffer=nl.psum)
                for j in range(hidden_count):
                    moving = columns[:, j, first : first + rows]
                    nisa.nc_matmul(dst=tile_sum, stationary=loaded[:, tile, which, j, :], moving=moving)
                sums.append(tile_sum)
            active = nl.ndarray((inner_size, rows), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(dst=active, op=nl.silu, data=sums[0])
            nisa.tensor_tensor(dst=products[:, begin + tile, :], data1=active, data2=sums[1], op=nl.multiply)
    inner = nl.ndarray((inner_size, inner_count, rows), dtype=down.dtype, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=inner, data1=products, data2=repeated(share, inner_count), op=nl.multiply)
    step = tiles_of_load(inner_count * hidden_size, down, hidden_count)
    for begin in range(0, hidden_count, step):
        some = min(step, hidden_count - begin)
        loaded = nl.ndarray((inner_size, some, inner_count, hidden_size), dtype=down.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=loaded, src=part_of_expert(down, number, expert, begin, some))
        for tile in range(some):
            tile_sum = nl.ndarray((hidden_size, rows), dtype=nl.float32, buffer=nl.psum)
            for c in range(inner_count):
                nisa.nc_matmul(dst=tile_sum, stationary=loaded[:, tile, c, :], moving=inner[:, c, :])
            part = total[:, begin + tile, first : first + rows]
            nisa.tensor_tensor(dst=part, data1=part, data2=tile_sum, op=nl.add)


def share_of_expert(choices, shares, wanted, rows, top_k):
    """[Q, rows]: the weight that each row gives the expert, 0 where it did not choose it."""
    partitions = choices.shape[0]
    hits = nl.ndarray((partitions, rows, top_k), dtype=nl.float32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=hits.reshape((partitions, rows * top_k)),
        data=choices,
        op0=nl.equal,
        operand0=wanted,
        op1=nl.multiply,
        operand1=shares,
    )
    share = nl.ndarray((partitions, rows), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=share, op=nl.add, data=hits, axis=2)
    return share


def tiles_of_load(tile_elements, weights, count):
    """How many tiles of a partition one DMA takes, about as many each time: LOAD_BYTES, or one tile where that is more."""
    most = max(1, LOAD_BYTES // (tile_elements * weights.dtype.itemsize))
    loads = -(-count // most)
    return -(-count // loads)


def part_of_expert(weights, number, expert, begin, count):
    """Tiles begin to begin + count of an expert's weights, one run a partition; weights [E, partitions, tiles, ...]."""
    partitions, tiles = weights.shape[1], weights.shape[2]
    elements = 1
    for size in weights.shape[3:]:
        elements = elements * size
    pattern = [[tiles * elements, partitions], [1, count * elements]]
    offset = begin * elements
    if number is None:
        return weights.ap(pattern=pattern, offset=expert * partitions * tiles * elements + offset)
    return weights.ap(pattern=pattern, offset=offset, scalar_offset=number, indirect_dim=0)


# Rows in and out


def load_columns(x, size):
    """x [T, D] as [size, D / size, T] in SBUF: rows become columns."""
    rows, channels = x.shape
    count = channels // size
    columns = nl.ndarray((size, count, rows), dtype=x.dtype, buffer=nl.sbuf)
    for first in range(0, rows, PARTITIONS):
        some = min(PARTITIONS, rows - first)
        lines = nl.ndarray((some, channels), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=lines, src=x[first : first + some, :])
        for tile in range(count):
            turned = nl.ndarray((size, some), dtype=x.dtype, buffer=nl.psum)
            nisa.nc_transpose(dst=turned, data=lines[:, tile * size : (tile + 1) * size])
            nisa.tensor_copy(dst=columns[:, tile, first : first + some], src=turned)
    return columns


def store_columns(total, x):
    """total [P, J, T] as a tensor of HBM like x, [T, J * P]."""
    rows, channels = x.shape
    size, count = total.shape[0], total.shape[1]
    out = nl.ndarray((rows, channels), dtype=x.dtype, buffer=nl.shared_hbm)
    for first in range(0, rows, PARTITIONS):
        some = min(PARTITIONS, rows - first)
        lines = nl.ndarray((some, channels), dtype=x.dtype, buffer=nl.sbuf)
        for tile in range(count):
            turned = nl.ndarray((some, size), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_transpose(dst=turned, data=total[:, tile, first : first + some])
            nisa.tensor_copy(dst=lines[:, tile * size : (tile + 1) * size], src=turned)
        nisa.dma_copy(dst=out[first : first + some, :], src=lines)
    return out


def zeros(shape):
    """A float32 tile of zeros."""
    tile = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=0.0)
    return tile


def load_row(numbers, count):
    """A small tensor of HBM as [1, count] in SBUF, in its type."""
    tile = nl.ndarray((1, count), dtype=numbers.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=numbers.reshape((1, count)))
    return tile


def as_float32(tile):
    """The tile itself, or a copy of it in float32; numbers of experts are exact in it."""
    if tile.dtype == nl.float32:
        return tile
    wide = nl.ndarray(tile.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=wide, src=tile)
    return wide


def on_every_partition(row, partitions):
    """[1, n] as [partitions, n]: a product with a column of ones, which leaves float32 as it is."""
    size = row.shape[1]
    ones = nl.ndarray((1, partitions), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    wide = nl.ndarray((partitions, size), dtype=nl.float32, buffer=nl.sbuf)
    for first in range(0, size, BANK):
        some = min(BANK, size - first)
        product = nl.ndarray((partitions, some), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=product, stationary=ones, moving=row[:, first : first + some])
        nisa.tensor_copy(dst=wide[:, first : first + some], src=product)
    return wide


def repeated(tile, count):
    """[partitions, n] as a view [partitions, count, n] that repeats it."""
    return tile.expand_dim(1).broadcast(1, count)

"""RMSNorm, plain and with a gate: one pass, float32 inside whatever the activations are.

    trnprof nki model engine/kernels/nki/rms_norm.py --kernel rms_norm --input x=8x4096:bfloat16 \\
        --input weight=4096:bfloat16 --arg eps=1e-6

Two layouts, both [128 partitions, rows, columns]. Few long rows (a decode step's hidden states) are spread: a partition has
a part of every row, and a product with ones adds the partitions' sums up. Many rows are folded: a partition has one or more
whole rows, and the weight, read once, is put on every partition by a product with ones (a DMA that reads one row for 128
partitions moves it 128 times).
"""

import nki
import nki.isa as nisa
import nki.language as nl

P = 128
BANK = 512  # float32 columns of a PSUM bank
SPREAD_ROWS = 32  # at most; a row's part of a partition is one descriptor
SPREAD_COLUMNS = 1024  # at least
FOLDED = 1024  # elements of a partition: short rows are taken together


@nki.jit
def rms_norm(x, weight, eps):
    """x [rows, D], weight [D]: x / sqrt(mean(x^2) + eps) * weight, [rows, D] of x's type."""
    rows, size = x.shape
    out = nl.ndarray((rows, size), dtype=x.dtype, buffer=nl.shared_hbm)
    if rows <= SPREAD_ROWS and size >= SPREAD_COLUMNS and size % P == 0:
        part = size // P
        weights = nl.ndarray((P, part), dtype=weight.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=weights, src=weight.reshape((P, part)))
        data = load(spread_rows(x))
        sums = nl.ndarray((P, rows), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=sums, stationary=ones((P, P), nl.float32), moving=sums_of_squares(data))
        store(spread_rows(out), scaled(data, sums, weights, size, eps, x.dtype))
        return out
    source, target = folded_rows(x), folded_rows(out)
    lanes = source.shape[0]
    weights = on_every_partition(weight, min(lanes, P))
    for first in range(0, lanes, P):
        count = min(P, lanes - first)
        data = load(source[first : first + count])
        result = scaled(data, sums_of_squares(data), weights[0:count, :], size, eps, x.dtype)
        store(target[first : first + count], result)
    return out


@nki.jit
def gated_rms_norm(x, gate, weight, eps, sigmoid):
    """x [rows, V] float32, gate [rows, V], weight [V]: rms_norm(x) * act(gate), [rows, V] of the gate's type."""
    rows, size = x.shape
    out = nl.ndarray((rows, size), dtype=gate.dtype, buffer=nl.shared_hbm)
    source, gates, target = folded_rows(x), folded_rows(gate), folded_rows(out)
    lanes = source.shape[0]
    weights = on_every_partition(weight, min(lanes, P))
    for first in range(0, lanes, P):
        count = min(P, lanes - first)
        data, opened = load(source[first : first + count]), load(gates[first : first + count])
        active = nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=active, op=nl.sigmoid if sigmoid else nl.silu, data=opened)
        normed = scaled(data, sums_of_squares(data), weights[0:count, :], size, eps, nl.float32)
        result = nl.ndarray(data.shape, dtype=gate.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=result, data1=normed, data2=active, op=nl.multiply)
        store(target[first : first + count], result)
    return out


def spread_rows(x):
    """[rows, D] of HBM as [128, rows, D / 128]."""
    rows, size = x.shape
    return x.reshape((rows, P, size // P)).permute((1, 0, 2))


def folded_rows(x):
    """[rows, D] of HBM as [lanes, rows of a lane, D], lanes as few as FOLDED allows and 128 need."""
    rows, size = x.shape
    together = max(1, min((rows + P - 1) // P, FOLDED // size))
    while rows % together:
        together -= 1
    return x.reshape((rows // together, together, size))


def load(source):
    """A tile of HBM in SBUF."""
    tile = nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=source)
    return tile


def store(target, tile):
    """A tile of SBUF to HBM."""
    nisa.dma_copy(dst=target, src=tile)


def sums_of_squares(data):
    """Of each partition's each row, [lanes, rows] float32."""
    lanes, rows, _ = data.shape
    squares = nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf)
    total = nl.ndarray((lanes, rows), dtype=nl.float32, buffer=nl.sbuf)
    if rows == 1:  # one instruction squares and adds up
        nisa.activation_reduce(dst=squares, op=nl.square, data=data, reduce_op=nl.add, reduce_res=total)
    else:
        nisa.tensor_tensor(dst=squares, data1=data, data2=data, op=nl.multiply)
        nisa.tensor_reduce(dst=total, op=nl.add, data=squares, axis=2)
    return total


def scaled(data, total, weights, size, eps, dtype):
    """data / sqrt(total / size + eps) * weights: data [lanes, rows, columns], total [lanes, rows], weights [lanes, columns]."""
    lanes, rows, columns = data.shape
    mean = nl.ndarray((lanes, rows), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=mean, data=total, op0=nl.multiply, operand0=1.0 / size, op1=nl.add, operand1=eps)
    inverse = nl.ndarray((lanes, rows), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=inverse, op=nl.rsqrt, data=mean)
    result = nl.ndarray(data.shape, dtype=dtype, buffer=nl.sbuf)
    if rows == 1:
        nisa.scalar_tensor_tensor(
            dst=result[:, 0, :],
            data=data[:, 0, :],
            op0=nl.multiply,
            operand0=inverse,
            op1=nl.multiply,
            operand1=weights,
        )
        return result
    normed = nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=normed, data1=data, data2=inverse.expand_dim(2).broadcast(2, columns), op=nl.multiply)
    nisa.tensor_tensor(dst=result, data1=normed, data2=weights.expand_dim(1).broadcast(1, rows), op=nl.multiply)
    return result


def on_every_partition(vector, lanes):
    """A vector of HBM [D] as [lanes, D] float32 in SBUF."""
    size = vector.shape[0]
    row = load(vector.reshape((1, size)))
    column = ones((1, lanes), vector.dtype)
    wide = nl.ndarray((lanes, size), dtype=nl.float32, buffer=nl.sbuf)
    for first in range(0, size, BANK):
        end = min(first + BANK, size)
        product = nl.ndarray((lanes, end - first), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=product, stationary=column, moving=row[:, first:end])
        nisa.tensor_copy(dst=wide[:, first:end], src=product)
    return wide


def ones(shape, dtype):
    """A tile of ones."""
    tile = nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=1.0)
    return tile

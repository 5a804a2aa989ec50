"""Attention of one head in one pass over the keys, in second-generation NKI: running maxima and sums, no score matrix.

    trnprof nki run examples/kernels/flash_attention.py --reference examples/kernels/references.py:attention \\
        --input q=128x512:bfloat16 --input k=128x512:bfloat16 --input v=128x512:bfloat16

q, k and v are [128, S] with the head's 128 dimensions in the partitions; the result is softmax(q.T @ k) @ v.T, [S, 128].
"""

import nki
import nki.isa as nisa
import nki.language as nl

P = 128  # queries worked on at a time, and the head's dimensions
BLOCK = 512  # keys of one block: a PSUM bank of float32 scores
LEAST = -3.0e38  # below every score


@nki.jit
def flash_attention(q, k, v):
    """For each 128 queries: scores of a block of keys, what they add to the running sums, and a correction of the rest."""
    size = q.shape[1]
    out = nl.ndarray((size, P), dtype=q.dtype, buffer=nl.shared_hbm)
    queries, keys = load(q), load(k)
    values = rows_of(load(v), v.dtype)
    for row in nl.affine_range(size // P):
        largest, total = column(LEAST), column(0.0)
        result = nl.ndarray((P, P), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=result, value=0.0)
        for block in range(size // BLOCK):
            scores = nl.ndarray((P, BLOCK), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(
                dst=scores, stationary=queries[:, nl.ds(row * P, P)], moving=keys[:, nl.ds(block * BLOCK, BLOCK)]
            )
            weights, correction = weights_of(scores, largest, total, v.dtype)
            added = weighted_sum(weights, values, block)
            nisa.scalar_tensor_tensor(
                dst=result, data=result, op0=nl.multiply, operand0=correction, op1=nl.add, operand1=added
            )
        inverse = column(0.0)
        nisa.reciprocal(dst=inverse, data=total)
        scaled = nl.ndarray((P, P), dtype=q.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=scaled, data=result, op0=nl.multiply, operand0=inverse)
        nisa.dma_copy(dst=out[nl.ds(row * P, P), :], src=scaled)
    return out


def load(matrix):
    """A whole [128, S] tensor in SBUF."""
    tile = nl.ndarray(matrix.shape, dtype=matrix.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=matrix)
    return tile


def column(value):
    """One float32 a partition."""
    tile = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=value)
    return tile


def weights_of(scores, largest, total, dtype):
    """exp(scores - largest so far), and what earlier results must be multiplied by; updates `largest` and `total`."""
    block_largest, negative, correction, added = (column(0.0) for _ in range(4))
    nisa.tensor_reduce(dst=block_largest, op=nl.maximum, data=scores, axis=1)
    nisa.tensor_tensor(dst=block_largest, data1=block_largest, data2=largest, op=nl.maximum)
    nisa.tensor_scalar(dst=negative, data=block_largest, op0=nl.multiply, operand0=-1.0)
    nisa.activation(dst=correction, op=nl.exp, data=largest, bias=negative)
    weights = nl.ndarray(scores.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.activation_reduce(dst=weights, op=nl.exp, data=scores, bias=negative, reduce_op=nl.add, reduce_res=added)
    nisa.scalar_tensor_tensor(dst=total, data=total, op0=nl.multiply, operand0=correction, op1=nl.add, operand1=added)
    nisa.tensor_copy(dst=largest, src=block_largest)
    return weights, correction


def weighted_sum(weights, values, block):
    """weights @ values of one block of keys, [128, 128] in PSUM: 128 keys at a time are contracted."""
    total = nl.ndarray((P, P), dtype=nl.float32, buffer=nl.psum)
    turned = rows_of(weights, weights.dtype)
    for piece in nl.affine_range(BLOCK // P):
        nisa.nc_matmul(dst=total, stationary=turned[:, piece, :], moving=values[:, block * (BLOCK // P) + piece, :])
    return total


def rows_of(tile, dtype):
    """[128, S] transposed in blocks: [128 of S, S / 128, 128]."""
    pieces = tile.shape[1] // P
    turned = nl.ndarray((P, pieces, P), dtype=dtype, buffer=nl.sbuf)
    for piece in nl.affine_range(pieces):
        block = nl.ndarray((P, P), dtype=dtype, buffer=nl.psum)
        nisa.nc_transpose(dst=block, data=tile[:, nl.ds(piece * P, P)])
        nisa.tensor_copy(dst=turned[:, piece, :], src=block)
    return turned

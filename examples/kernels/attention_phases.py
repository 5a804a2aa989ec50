"""Attention of one head, softmax(q.T @ k) @ v.T, with its phases apart and in one: what HBM round trips cost.

    trnprof dma-predict examples/kernels/attention_phases.py --kernel unfused_attention \\
        --input q=128x512:float32 --input k=128x512:float32 --input v=128x512:float32

q, k and v are [128, S] with the head's 128 dimensions in the partitions; the result is [S, 128]. Scores are [S, S] float32:
apart, they go to HBM and back twice; in one, they never leave the core. First-generation NKI (neuronxcc).
"""

import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl

P = 128  # partitions: rows of scores that are worked on at a time
F = 512  # columns of one matmul's result, a PSUM bank of float32


@nki.jit
def unfused_attention(q, k, v):
    """Scores, softmax and output one after the other, each reading and writing the whole score matrix in HBM."""
    size = q.shape[1]
    blocks = size // P
    out = nl.ndarray((size, P), dtype=q.dtype, buffer=nl.shared_hbm)
    matrix = nl.ndarray((blocks, P, size), dtype=nl.float32, buffer=nl.shared_hbm)
    q_tile, k_tile, v_tile = nl.load(q), nl.load(k), nl.load(v)

    for row in nl.affine_range(blocks):
        nl.store(matrix[row], score_rows(q_tile, k_tile, row))

    for row in nl.affine_range(blocks):
        scores = nl.ndarray((nl.par_dim(P), size), dtype=nl.float32, buffer=nl.sbuf)
        scores[...] = nl.load(matrix[row])
        exponents, inverse = softmax_parts(scores)
        weights = nl.ndarray((nl.par_dim(P), size), dtype=nl.float32, buffer=nl.sbuf)
        weights[...] = nisa.tensor_scalar(data=exponents, op0=nl.multiply, operand0=inverse)
        nl.store(matrix[row], weights)

    v_columns = transposed(v_tile)
    for row in nl.affine_range(blocks):
        weights = nl.ndarray((nl.par_dim(P), size), dtype=nl.float32, buffer=nl.sbuf)
        weights[...] = nl.load(matrix[row])
        result = nl.ndarray((nl.par_dim(P), P), dtype=nl.float32, buffer=nl.sbuf)
        result[...] = nisa.tensor_copy(weighted_sum(transposed(weights), v_columns), dtype=nl.float32)
        nl.store(out[nl.ds(row * P, P), :], value=result)
    return out


@nki.jit
def fused_attention(q, k, v):
    """One pass over the rows: scores stay in SBUF, and the division by the row's sum comes last, on 128 columns."""
    size = q.shape[1]
    out = nl.ndarray((size, P), dtype=q.dtype, buffer=nl.shared_hbm)
    q_tile, k_tile, v_tile = nl.load(q), nl.load(k), nl.load(v)
    v_columns = transposed(v_tile)
    for row in nl.affine_range(size // P):
        exponents, inverse = softmax_parts(score_rows(q_tile, k_tile, row))
        result = nl.ndarray((nl.par_dim(P), P), dtype=nl.float32, buffer=nl.sbuf)
        total = weighted_sum(transposed(exponents), v_columns)
        result[...] = nisa.tensor_scalar(data=total, op0=nl.multiply, operand0=inverse)
        nl.store(out[nl.ds(row * P, P), :], value=result)
    return out


def score_rows(q_tile, k_tile, row):
    """128 rows of q.T @ k, [128, S] float32 in SBUF."""
    size = k_tile.shape[1]
    scores = nl.ndarray((nl.par_dim(P), size), dtype=nl.float32, buffer=nl.sbuf)
    for part in nl.affine_range(size // F):
        product = nl.ndarray((nl.par_dim(P), F), dtype=nl.float32, buffer=nl.psum)
        product[...] = nisa.nc_matmul(q_tile[:, nl.ds(row * P, P)], k_tile[:, nl.ds(part * F, F)])
        scores[:, nl.ds(part * F, F)] = nisa.tensor_copy(product, dtype=nl.float32)
    return scores


def softmax_parts(scores):
    """(exp(scores - max), 1 / sum) by row."""
    negative_max = nisa.tensor_reduce(op=nl.max, data=scores, axis=1, negate=True)
    exponents = nl.ndarray(scores.shape, dtype=nl.float32, buffer=nl.sbuf)
    exponents[...] = nisa.activation(op=nl.exp, data=scores, bias=negative_max, scale=1.0)
    return exponents, nisa.reciprocal(data=nisa.tensor_reduce(op=nl.add, data=exponents, axis=1))


def transposed(tile):
    """[128, S] as [128, S / 128, 128]: each square turned on the tensor engine."""
    squares = tile.shape[1] // P
    turned = nl.ndarray((nl.par_dim(P), squares, P), dtype=nl.float32, buffer=nl.sbuf)
    for square in nl.affine_range(squares):
        turned[:, square, :] = nisa.tensor_copy(nisa.nc_transpose(tile[:, nl.ds(square * P, P)]), dtype=nl.float32)
    return turned


def weighted_sum(weights, values):
    """Sum over S of weights times values, [128, 128] in PSUM."""
    total = nl.zeros((P, P), dtype=nl.float32, buffer=nl.psum)
    for square in nl.affine_range(values.shape[1]):
        total += nisa.nc_matmul(weights[:, square, :], values[:, square, :])
    return total

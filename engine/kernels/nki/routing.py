"""A token's experts: router logits, scores, the K largest and their weights, in one kernel.

    trnprof nki model engine/kernels/nki/routing.py --kernel route --input x=8x2048:bfloat16 \\
        --input weight=2048x128:bfloat16 --input bias=1x128:float32 --arg top_k=8 --arg sigmoid=False \\
        --arg renormalise=True --arg scale=1.0

Tokens are partitions and experts columns; eight experts are found by one instruction, and of equal scores the lowest comes
first. The weight lies with the contracted axis outermost, as projection.py has it.
"""

import nki
import nki.isa as nisa
import nki.language as nl

P = 128
BANK = 512  # experts: float32 columns of a PSUM bank
EIGHT = 8  # what one instruction finds
LEAST = -3.0e38  # below every score
PIECE_BYTES = 32 * 1024  # of a partition, of one weight DMA


@nki.jit
def route(x, weight, bias, top_k, sigmoid, renormalise, scale):
    """x [T, D], weight [D, E], bias [1, E] float32: weights [T, K] of x's type and experts [T, K] int32, the best first.

    softmax: weights are probabilities. sigmoid: weights are sigmoids, chosen by sigmoid + bias. renormalise: they sum to 1;
    then times scale. D is a multiple of 128, E at most 512.
    """
    tokens, size = x.shape
    experts = weight.shape[1]
    assert size % P == 0, f"D = {size} is no multiple of {P}; pad it with zeros"
    assert top_k <= experts <= BANK, f"{top_k} of {experts} experts; a PSUM bank holds the scores of {BANK}"
    weights = nl.ndarray((tokens, top_k), dtype=x.dtype, buffer=nl.shared_hbm)
    chosen = nl.ndarray((tokens, top_k), dtype=nl.int32, buffer=nl.shared_hbm)
    for first in range(0, tokens, P):
        count = min(P, tokens - first)
        logits = product(x, weight, first, count)
        scores = nl.ndarray((count, experts), dtype=nl.float32, buffer=nl.sbuf)
        ranked = nl.ndarray((count, max(experts, EIGHT)), dtype=nl.float32, buffer=nl.sbuf)
        if experts < EIGHT:
            nisa.memset(dst=ranked, value=LEAST)
        if sigmoid:
            nisa.activation(dst=scores, op=nl.sigmoid, data=logits)
            add_bias(ranked[:, 0:experts], scores, bias)
        else:
            softmax(scores, logits)
            nisa.tensor_copy(dst=ranked[:, 0:experts], src=scores)
        places = best_places(ranked, top_k)
        values = values_at(scores, places, top_k)
        result = normalised(values, sigmoid, renormalise, scale, x.dtype)
        numbers = nl.ndarray((count, top_k), dtype=nl.int32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=numbers, src=places[:, 0:top_k])
        nisa.dma_copy(dst=weights[first : first + count, :], src=result)
        nisa.dma_copy(dst=chosen[first : first + count, :], src=numbers)
    return weights, chosen


def product(x, weight, first, count):
    """Router logits of some tokens in PSUM, [count, E]."""
    size, experts = weight.shape
    channels = size // P
    rows = nl.ndarray((P, count, channels), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=rows, src=x.ap(pattern=[[channels, P], [size, count], [1, channels]], offset=first * size))
    logits = nl.ndarray((count, experts), dtype=nl.float32, buffer=nl.psum)
    depth = max(1, min(channels, PIECE_BYTES // (experts * (4 if weight.dtype == nl.float32 else 2))))
    for channel in range(0, channels, depth):
        deep = min(depth, channels - channel)
        piece = nl.ndarray((P, deep, experts), dtype=weight.dtype, buffer=nl.sbuf)
        source = weight.ap(pattern=[[channels * experts, P], [experts, deep], [1, experts]], offset=channel * experts)
        nisa.dma_copy(dst=piece, src=source)
        for place in range(deep):
            nisa.nc_matmul(dst=logits, stationary=rows[:, :, channel + place], moving=piece[:, place, :])
    return logits


def softmax(scores, logits):
    """Probabilities of each token's experts."""
    count = logits.shape[0]
    lowered = column(count)
    nisa.tensor_reduce(dst=lowered, op=nl.maximum, data=logits, axis=1, negate=True)
    total, inverse = column(count), column(count)
    nisa.activation_reduce(dst=scores, op=nl.exp, data=logits, bias=lowered, reduce_op=nl.add, reduce_res=total)
    nisa.reciprocal(dst=inverse, data=total)
    nisa.tensor_scalar(dst=scores, data=scores, op0=nl.multiply, operand0=inverse)


def add_bias(ranked, scores, bias):
    """ranked = scores + bias [1, E]; a product with ones puts the bias on every partition."""
    count, experts = scores.shape
    row = nl.ndarray((1, experts), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=row, src=bias)
    ones = nl.ndarray((1, count), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    wide = nl.ndarray((count, experts), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=wide, stationary=ones, moving=row)
    nisa.tensor_tensor(dst=ranked, data1=scores, data2=wide, op=nl.add)


def best_places(ranked, top_k):
    """Columns of each partition's largest, the largest first: uint32 [tokens, top_k and up to 7 more]. Empties `ranked`."""
    count, rounds = ranked.shape[0], (top_k + EIGHT - 1) // EIGHT
    places = nl.ndarray((count, rounds * EIGHT), dtype=nl.uint32, buffer=nl.sbuf)
    for at in range(rounds):
        eight = nl.ndarray((count, EIGHT), dtype=nl.float32, buffer=nl.sbuf)
        nisa.max8(dst=eight, src=ranked)
        nisa.nc_find_index8(dst=places[:, at * EIGHT : (at + 1) * EIGHT], data=ranked, vals=eight)
        if at + 1 < rounds:
            nisa.nc_match_replace8(dst=ranked, data=ranked, vals=eight, imm=LEAST)
    return places


def values_at(scores, places, top_k):
    """The scores in those columns, [tokens, top_k]: each picked out by comparing the columns' numbers with its place."""
    count, experts = scores.shape
    counted = nl.ndarray((count, experts), dtype=nl.int32, buffer=nl.sbuf)
    nisa.iota(dst=counted, pattern=[[1, experts]], offset=0, channel_multiplier=0)
    numbers = nl.ndarray((count, experts), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=numbers, src=counted)
    wanted = nl.ndarray((count, top_k), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=wanted, src=places[:, 0:top_k])
    picked = nl.ndarray((count, top_k, experts), dtype=nl.float32, buffer=nl.sbuf)
    for at in range(top_k):
        nisa.scalar_tensor_tensor(
            dst=picked[:, at, :],
            data=numbers,
            op0=nl.equal,
            operand0=wanted[:, at : at + 1],
            op1=nl.multiply,
            operand1=scores,
        )
    values = nl.ndarray((count, top_k), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=values, op=nl.add, data=picked, axis=2)
    return values


def normalised(values, sigmoid, renormalise, scale, dtype):
    """values (/ their sum) * scale, in the result's type."""
    count = values.shape[0]
    result = nl.ndarray(values.shape, dtype=dtype, buffer=nl.sbuf)
    if not renormalise:
        nisa.tensor_scalar(dst=result, data=values, op0=nl.multiply, operand0=scale)
        return result
    total, inverse = column(count), column(count)
    nisa.tensor_reduce(dst=total, op=nl.add, data=values, axis=1)
    if sigmoid:  # whose sum may be 0
        nisa.tensor_scalar(dst=total, data=total, op0=nl.add, operand0=1e-20)
    nisa.reciprocal(dst=inverse, data=total)
    nisa.tensor_scalar(dst=result, data=values, op0=nl.multiply, operand0=inverse, op1=nl.multiply, operand1=scale)
    return result


def column(count):
    """A float32 tile of one value a partition, to be written."""
    return nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)

"""Attention over the paged cache with grouped queries: a decode step's, and a prefill chunk's.

    trnprof nki model engine/kernels/nki/attention.py --kernel attention_decode \\
        --input key_pages=2049x4x128x16:bfloat16 --input value_pages=2049x4x16x128:bfloat16 \\
        --input pages=256x8:int32 --input positions=1x8:int32 --input key_places=128x1:int32 \\
        --input value_places=32x1:int32 --input q=8x1x32x128:bfloat16 --input k=8x1x4x128:bfloat16 \\
        --input v=8x1x4x128:bfloat16 --arg scale=0.0884 --arg window=0 --arg value_dim=128

A page of one head is D x S keys and S x V values, some KiB each in one piece. A gather puts 128 pages into 128 partitions,
one descriptor a page (with the channels in partitions it would be one for every S keys of a channel, 32 B of bfloat16 where
a page has 16 tokens). Then for each of the S places in a page there are 128 tokens, one a page:

    values    are in place: the tokens of a place, in partitions, are what a product contracts
    keys      are turned on the tensor engine, 128 tokens at a time, and are the stationary operand of the scores
    scores    come out with the tokens in partitions, so that the softmax uses every lane and its weights are the stationary
              operand of the second product as they are

Decode keeps all scores of a row (T x columns float32 a partition), so there is one maximum, and no running correction.
Prefill has queries for every partition: they lie there, up to 128 tokens of one head, and meet one part of the context after
the other with running maxima and sums. There the softmax weights are turned, place by place, to meet the values.
"""

import nki
import nki.isa as nisa
import nki.language as nl

P = 128
BANK = 512  # float32 columns of a PSUM bank
BANK_BYTES = 2048
PAGE_BYTES = 32 * 1024  # of a partition, of one gather
SCORE_BYTES = 64 * 1024  # of a partition
KEPT_BYTES = 64 * 1024  # of a partition, for keys that are used as values too
RESULT_BYTES = 16 * 1024  # of a partition, of one store
HEADS = 4  # key heads of one pass: each adds up its values in a PSUM bank of its own
HIDDEN = -1.0e30  # added to the scores of tokens that a query does not see
PREFILL_TOKENS = 2048  # of the context at a time: four PSUM banks of scores
STATE_BYTES = 48 * 1024  # of a partition, for the queries and running results that use one gather's keys


@nki.jit
def attention_decode(
    key_pages, value_pages, pages, positions, key_places, value_places, q, k, v, scale, window, value_dim
):
    """Write the step's keys and values to the cache, then attend to it. R rows of W tokens.

    key_pages [N, H, D, S] and value_pages [N, H, S, V] are written; value_pages, value_places and v are None where the
    values are the first value_dim channels of the keys.
    pages [P, R] int32: the rows' pages, a page after the other. positions [1, R W] int32: each token's position.
    key_places, value_places [pieces, 1] int32: k and v are cut into equal pieces inside a token's head, in order; the
    element of the cache where each one's first channel goes.
    q [R, W, A, D], k [R, W, H, D], v [R, W, H, V]. A token sees those at or before it, within window (0: all).
    Returns [R, W, A, value_dim].
    """
    rows, width, query_heads, _ = q.shape
    heads, size = key_pages.shape[1], key_pages.shape[3]
    out = nl.ndarray((rows, width, query_heads, value_dim), dtype=q.dtype, buffer=nl.shared_hbm)
    write_tokens(key_pages, key_places, k, size)
    if value_pages is not None:
        write_tokens(value_pages, value_places, v, 1)
    queries = turned_queries(q)
    numbers = load_page_numbers(pages, P)
    chunks = numbers.shape[1]
    place = token_places(chunks, size)
    last = on_every_partition(positions)
    identity = unit_matrix()
    columns = width * (query_heads // heads)
    together = heads_together(key_pages, value_pages, chunks * size * columns)
    rows_stored = max(1, RESULT_BYTES // (heads * value_dim * bytes_of(q.dtype)))
    for first_row in range(0, rows, rows_stored):
        row_count = min(rows_stored, rows - first_row)
        results = nl.ndarray((columns, row_count, heads, value_dim), dtype=q.dtype, buffer=nl.sbuf)
        for row in range(first_row, first_row + row_count):
            hidden = []
            for token in range(width):
                at = row * width + token
                hidden.append(hidden_tokens(place, last[:, at : at + 1], window))
            for head in range(0, heads, together):
                count = min(together, heads - head)
                attend(
                    results[:, row - first_row, head : head + count, :],
                    (key_pages, value_pages, pages.shape[0], numbers, row, head, count),
                    queries,
                    (width, query_heads // heads),
                    hidden,
                    identity,
                    scale,
                )
        store(out, results, first_row)
    return out


def attend(results, cache, queries, shape, hidden, identity, scale):
    """Results [columns, heads, V] of some key heads of one row."""
    key_pages, value_pages, page_count, numbers, row, head, count = cache
    width, group = shape
    dim, size = key_pages.shape[2], key_pages.shape[3]
    chunks, columns = numbers.shape[1], width * group
    scores = nl.ndarray((P, chunks * size, count * columns), dtype=nl.float32, buffer=nl.sbuf)
    keep = value_pages is None and chunks * dim * size * count * bytes_of(key_pages.dtype) <= KEPT_BYTES
    kept = []
    for chunk in range(chunks):
        there = min(P, page_count - chunk * P)
        first = chunk * size
        if there < P:
            nisa.memset(dst=scores[:, first : first + size, :], value=HIDDEN)
        keys = gather(key_pages, numbers[0:there, chunk, row : row + 1], head, count)
        keys = keys.reshape((there, count, dim, size))
        if keep:
            kept.append(keys)
        for one in range(count):
            wanted = []
            for block in range(len(queries)):
                at = (head + one) * group
                wanted.append(queries[block][:, row * width : (row + 1) * width, at : at + group])
            score(
                scores[:, first : first + size, one * columns : (one + 1) * columns],
                keys[:, one],
                wanted,
                hidden,
                first,
            )
    weights, total = softmax(scores, identity, scale, key_pages.dtype)
    value_dim = results.shape[2]
    sums = []
    for _one in range(count):  # a PSUM tile each: accumulation groups that take turns must not share a bank
        sums.append(nl.ndarray((columns, value_dim), dtype=nl.float32, buffer=nl.psum))
    for chunk in range(chunks):
        there = min(P, page_count - chunk * P)
        index = numbers[0:there, chunk, row : row + 1]
        if value_pages is not None:
            values = gather(value_pages, index, head, count).reshape((there, count, size, value_dim))
        elif keep:
            values = kept[chunk]
        else:
            values = gather(key_pages, index, head, count).reshape((there, count, dim, size))
        for one in range(count):
            for token in range(size):
                moving = values[:, one, token, :] if value_pages is not None else values[:, one, 0:value_dim, token]
                nisa.nc_matmul(
                    dst=sums[one],
                    stationary=weights[0:there, chunk * size + token, one * columns : (one + 1) * columns],
                    moving=moving,
                )
    for one in range(count):
        inverse = inverse_totals(total[:, one * columns : (one + 1) * columns])
        nisa.tensor_scalar(
            dst=results[:, one, :],
            data=sums[one],
            op0=nl.multiply,
            operand0=inverse,
        )


def gather(cache, index, head, count):
    """Heads [head, head + count) of the pages whose numbers stand in the partitions: [pages, elements]."""
    heads, rows, columns = cache.shape[1], cache.shape[2], cache.shape[3]
    there, elements = index.shape[0], count * rows * columns
    tile = nl.ndarray((there, elements), dtype=cache.dtype, buffer=nl.sbuf)
    source = cache.ap(
        pattern=[[heads * rows * columns, there], [1, elements]],
        offset=head * rows * columns,
        vector_offset=index,
        indirect_dim=0,
    )
    nisa.dma_copy(dst=tile, src=source)
    return tile


def score(scores, keys, queries, hidden, first):
    """scores [128, S, columns] of one head: keys [pages, D, S] times queries, a list of [D of a block, W, G]."""
    there, _, size = keys.shape
    width, group = queries[0].shape[1], queries[0].shape[2]
    together = min(size, BANK_BYTES // (P * bytes_of(keys.dtype)), max(1, BANK // (width * group)))
    for token in range(0, size, together):
        count = min(together, size - token)
        product = nl.ndarray((there, count, width, group), dtype=nl.float32, buffer=nl.psum)
        turned = []
        for block in range(len(queries)):
            channels = queries[block].shape[0]
            bank = nl.ndarray((channels, count, there), dtype=keys.dtype, buffer=nl.psum)
            for place in range(count):
                nisa.nc_transpose(dst=bank[:, place, :], data=keys[:, block * P : block * P + channels, token + place])
            tile = nl.ndarray((channels, count, there), dtype=keys.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=tile, src=bank)
            turned.append(tile)
        for place in range(count):
            for block in range(len(queries)):
                nisa.nc_matmul(dst=product[:, place], stationary=turned[block][:, place, :], moving=queries[block])
        for at in range(width):
            mask = hidden[at][0:there, first + token : first + token + count]
            nisa.tensor_tensor(
                dst=scores[0:there, token : token + count, at * group : (at + 1) * group],
                data1=product[:, :, at, :],
                data2=mask.expand_dim(2).broadcast(2, group),
                op=nl.add,
            )


def softmax(scores, identity, scale, dtype):
    """exp(scale * (scores - their largest)) over partitions and tokens, and each partition's sums [128, columns]."""
    tokens, columns = scores.shape[1], scores.shape[2]
    largest = nl.ndarray((P, columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=largest, op=nl.maximum, data=scores.permute((0, 2, 1)), axis=2)
    for first in range(0, columns, P):
        count = min(P, columns - first)
        shift = largest_of_partitions(largest[:, first : first + count], identity)
        part = scores[:, :, first : first + count]
        nisa.tensor_tensor(dst=part, data1=part, data2=shift.expand_dim(1).broadcast(1, tokens), op=nl.subtract)
    weights = nl.ndarray((P, tokens, columns), dtype=dtype, buffer=nl.sbuf)
    nisa.activation(dst=weights, op=nl.exp, data=scores, scale=scale)
    total = nl.ndarray((P, columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=total, op=nl.add, data=weights.permute((0, 2, 1)), axis=2)
    return weights, total


def largest_of_partitions(largest, identity):
    """The largest of each column over all partitions, on every partition: [128, columns] in PSUM.

    Turned, reduced, spread on a diagonal and added up by a product with ones: columns become partitions and come back.
    """
    count = largest.shape[1]
    turned = nl.ndarray((count, P), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=turned, data=largest)
    top = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=top, op=nl.maximum, data=turned, axis=1)
    diagonal = nl.ndarray((count, count), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=diagonal, data=identity[0:count, 0:count], op0=nl.multiply, operand0=top)
    spread = nl.ndarray((P, count), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=spread, stationary=constant((count, P), 1.0), moving=diagonal)
    return spread


def inverse_totals(total):
    """1 / the sum over partitions of each column, [columns, 1]."""
    columns = total.shape[1]
    added = nl.ndarray((columns, 1), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=added, stationary=total, moving=constant((P, 1), 1.0))
    inverse = nl.ndarray((columns, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.reciprocal(dst=inverse, data=added)
    return inverse


def hidden_tokens(place, last, window):
    """HIDDEN where a token's place is after `last` [128, 1] or outside its window, 0 elsewhere: place's shape."""
    hidden = nl.ndarray(place.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=hidden, data=place, op0=nl.greater, operand0=last, op1=nl.multiply, operand1=HIDDEN)
    if window:
        oldest = nl.ndarray(last.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=oldest, data=last, op0=nl.subtract, operand0=float(window))
        outside = nl.ndarray(place.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(
            dst=outside, data=place, op0=nl.less_equal, operand0=oldest, op1=nl.multiply, operand1=HIDDEN
        )
        nisa.tensor_tensor(dst=hidden, data1=hidden, data2=outside, op=nl.add)
    return hidden


def token_places(chunks, size):
    """The position of the token in each page slot's each place, float32 [128, chunks * S]: slots count over partitions."""
    counted = nl.ndarray((P, chunks, size), dtype=nl.int32, buffer=nl.sbuf)
    nisa.iota(dst=counted, pattern=[[P * size, chunks], [1, size]], offset=0, channel_multiplier=size)
    place = nl.ndarray((P, chunks, size), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=place, src=counted)
    return place.reshape((P, chunks * size))


def on_every_partition(positions):
    """Integers [1, count] of HBM as float32 [128, count] in SBUF."""
    count = positions.shape[1]
    whole = nl.ndarray((1, count), dtype=positions.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=whole, src=positions)
    numbers = nl.ndarray((1, count), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=numbers, src=whole)
    ones = constant((1, P), 1.0)
    wide = nl.ndarray((P, count), dtype=nl.float32, buffer=nl.sbuf)
    for first in range(0, count, BANK):
        end = min(first + BANK, count)
        product = nl.ndarray((P, end - first), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=product, stationary=ones, moving=numbers[:, first:end])
        nisa.tensor_copy(dst=wide[:, first:end], src=product)
    return wide


def unit_matrix():
    """float32 [128, 128] with ones on the diagonal."""
    identity = nl.ndarray((P, P), dtype=nl.float32, buffer=nl.sbuf)
    nisa.affine_select(
        dst=identity,
        pattern=[[-1, P]],
        channel_multiplier=1,
        on_true_tile=constant((P, P), 1.0),
        on_false_value=0.0,
        cmp_op=nl.equal,
        offset=0,
    )
    return identity


def constant(shape, value):
    """A float32 tile of one value."""
    tile = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=value)
    return tile


def load_page_numbers(pages, slots):
    """Page numbers [P, R] with the slots of a chunk in partitions: [slots, chunks, R]."""
    count, rows = pages.shape
    chunks = (count + slots - 1) // slots
    numbers = nl.ndarray((slots, chunks, rows), dtype=pages.dtype, buffer=nl.sbuf)
    for chunk in range(chunks):
        there = min(slots, count - chunk * slots)
        nisa.dma_copy(dst=numbers[0:there, chunk, :], src=pages[chunk * slots : chunk * slots + there, :])
    return numbers


def turned_queries(q):
    """Queries with their channels in partitions: for each block of 128 channels [channels, R W, A]."""
    rows, width, heads, dim = q.shape
    flat = q.reshape((rows * width * heads, dim))
    blocks = []
    for channel in range(0, dim, P):
        channels = min(P, dim - channel)
        blocks.append(nl.ndarray((channels, rows * width * heads), dtype=q.dtype, buffer=nl.sbuf))
    for first in range(0, rows * width * heads, P):
        count = min(P, rows * width * heads - first)
        arrived = nl.ndarray((count, dim), dtype=q.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=arrived, src=flat[first : first + count, :])
        for block in range(len(blocks)):
            channels = blocks[block].shape[0]
            bank = nl.ndarray((channels, count), dtype=q.dtype, buffer=nl.psum)
            nisa.nc_transpose(dst=bank, data=arrived[:, block * P : block * P + channels])
            nisa.tensor_copy(dst=blocks[block][:, first : first + count], src=bank)
    turned = []
    for block in range(len(blocks)):
        turned.append(blocks[block].reshape((blocks[block].shape[0], rows * width, heads)))
    return turned


@nki.jit
def attention_prefill(
    key_pages, value_pages, pages, positions, key_places, value_places, q, k, v, scale, window, value_dim
):
    """As attention_decode, for rows of many tokens; scale is at most 1."""
    rows, width, query_heads, dim = q.shape
    heads, size = key_pages.shape[1], key_pages.shape[3]
    out = nl.ndarray((rows, width, query_heads, value_dim), dtype=q.dtype, buffer=nl.shared_hbm)
    write_tokens(key_pages, key_places, k, size)
    if value_pages is not None:
        write_tokens(value_pages, value_places, v, 1)
    slots = max(1, min(P, PREFILL_TOKENS // size))
    numbers = load_page_numbers(pages, slots)
    state_bytes = 4 * value_dim + bytes_of(q.dtype) * min(P, width) * ((dim + P - 1) // P)
    together = max(1, STATE_BYTES // state_bytes)
    for row in range(rows):
        bounds = visible_ranges(positions, row, width, window)
        for head in range(heads):
            blocks = query_blocks(width, head, query_heads // heads)
            for first in range(0, len(blocks), together):
                states = []
                for token, count, query_head in blocks[first : first + together]:
                    states.append(begin(q, row, token, count, query_head, bounds[token // P], value_dim))
                for chunk in range(numbers.shape[1]):
                    there = min(slots, pages.shape[0] - chunk * slots)
                    index = numbers[0:there, chunk, row : row + 1]
                    keys = gather(key_pages, index, head, 1).reshape((there, dim, size))
                    values = keys
                    if value_pages is not None:
                        values = gather(value_pages, index, head, 1).reshape((there, size, value_dim))
                    turned = turned_keys(keys)
                    for state in states:
                        meet(state, turned, values, chunk * slots * size, scale, value_pages is None)
                for at in range(len(states)):
                    token, count, query_head = blocks[first + at]
                    finish(out[row, token : token + count, query_head, :], states[at])
    return out


def query_blocks(width, head, group):
    """(first token, tokens, query head) of each block of queries that one key head serves."""
    blocks = []
    for query_head in range(head * group, (head + 1) * group):
        for token in range(0, width, P):
            blocks.append((token, min(P, width - token), query_head))
    return blocks


def visible_ranges(positions, row, width, window):
    """For each block of 128 tokens of a row: the place before the first that a token sees, and the last, [tokens, 1]."""
    bounds = []
    for token in range(0, width, P):
        count = min(P, width - token)
        numbers = nl.ndarray((count, 1), dtype=positions.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=numbers, src=positions.ap(pattern=[[1, count], [1, 1]], offset=row * width + token))
        last = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=last, src=numbers)
        before = constant((count, 1), -1.0)
        if window:
            nisa.tensor_scalar(dst=before, data=last, op0=nl.subtract, operand0=float(window))
        bounds.append((before, last))
    return bounds


def begin(q, row, token, count, query_head, bounds, value_dim):
    """A block's queries with channels in partitions, what they see, and their running result, maximum and sum."""
    dim = q.shape[3]
    arrived = nl.ndarray((count, dim), dtype=q.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=arrived, src=q[row, token : token + count, query_head, :])
    queries = []
    for channel in range(0, dim, P):
        channels = min(P, dim - channel)
        bank = nl.ndarray((channels, count), dtype=q.dtype, buffer=nl.psum)
        nisa.nc_transpose(dst=bank, data=arrived[:, channel : channel + channels])
        block = nl.ndarray((channels, count), dtype=q.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=block, src=bank)
        queries.append(block)
    result, total = constant((count, value_dim), 0.0), constant((count, 1), 0.0)
    return queries, bounds, result, constant((count, 1), nl.fp32.min), total


def turned_keys(keys):
    """Keys [pages, D, S] with their channels in partitions, tokens in order: for each block of 128 [channels, pages * S]."""
    there, dim, size = keys.shape
    together = min(size, BANK_BYTES // (P * bytes_of(keys.dtype)))
    blocks = []
    for channel in range(0, dim, P):
        channels = min(P, dim - channel)
        block = nl.ndarray((channels, there, size), dtype=keys.dtype, buffer=nl.sbuf)
        for token in range(0, size, together):
            count = min(together, size - token)
            bank = nl.ndarray((channels, count, there), dtype=keys.dtype, buffer=nl.psum)
            for place in range(count):
                nisa.nc_transpose(dst=bank[:, place, :], data=keys[:, channel : channel + channels, token + place])
            nisa.tensor_copy(dst=block[:, :, token : token + count], src=bank.permute((0, 2, 1)))
        blocks.append(block.reshape((channels, there * size)))
    return blocks


def meet(state, keys, values, first, scale, latent):
    """Add one part of the context, tokens [first, first + T), to a block's running result."""
    queries, (before, last), result, largest, total = state
    columns, value_dim = result.shape
    there = values.shape[0]
    tokens = keys[0].shape[1]
    size = tokens // there
    scores = nl.ndarray((columns, tokens), dtype=nl.float32, buffer=nl.psum)
    for token in range(0, tokens, BANK):
        end = min(token + BANK, tokens)
        for block in range(len(keys)):
            nisa.nc_matmul(dst=scores[:, token:end], stationary=queries[block], moving=keys[block][:, token:end])
    visible = nl.ndarray((columns, tokens), dtype=nl.float32, buffer=nl.sbuf)
    now, negative, correction, added = (nl.ndarray((columns, 1), dtype=nl.float32, buffer=nl.sbuf) for _ in range(4))
    nisa.range_select(
        dst=visible,
        on_true_tile=scores,
        comp_op0=nl.greater,
        comp_op1=nl.less_equal,
        bound0=before,
        bound1=last,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
        reduce_res=now,
        reduce_op=nl.maximum,
        range_start=first,
        on_false_value=nl.fp32.min,
    )
    nisa.tensor_tensor(dst=now, data1=now, data2=largest, op=nl.maximum)
    nisa.tensor_scalar(dst=negative, data=now, op0=nl.multiply, operand0=-scale)
    nisa.activation(dst=correction, op=nl.exp, data=largest, scale=scale, bias=negative)
    weights = nl.ndarray((columns, there, size), dtype=values.dtype, buffer=nl.sbuf)
    nisa.activation_reduce(
        dst=weights,
        op=nl.exp,
        data=visible.reshape((columns, there, size)),
        scale=scale,
        bias=negative,
        reduce_op=nl.add,
        reduce_res=added,
    )
    nisa.scalar_tensor_tensor(dst=total, data=total, op0=nl.multiply, operand0=correction, op1=nl.add, operand1=added)
    nisa.tensor_copy(dst=largest, src=now)
    together = min(size, BANK_BYTES // (P * bytes_of(values.dtype)))
    sums = nl.ndarray((columns, value_dim), dtype=nl.float32, buffer=nl.psum)
    for token in range(0, size, together):
        count = min(together, size - token)
        bank = nl.ndarray((there, count, columns), dtype=values.dtype, buffer=nl.psum)
        for place in range(count):
            nisa.nc_transpose(dst=bank[:, place, :], data=weights[:, :, token + place])
        turned = nl.ndarray((there, count, columns), dtype=values.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=turned, src=bank)
        for place in range(count):
            moving = values[:, 0:value_dim, token + place] if latent else values[:, token + place, :]
            nisa.nc_matmul(dst=sums, stationary=turned[:, place, :], moving=moving)
    nisa.scalar_tensor_tensor(dst=result, data=result, op0=nl.multiply, operand0=correction, op1=nl.add, operand1=sums)


def finish(target, state):
    """A block's result divided by its sums, to its place in HBM [tokens, V]."""
    _, _, result, _, total = state
    inverse = nl.ndarray(total.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.reciprocal(dst=inverse, data=total)
    scaled = nl.ndarray(result.shape, dtype=target.dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=scaled, data=result, op0=nl.multiply, operand0=inverse)
    nisa.dma_copy(dst=target, src=scaled)


def write_tokens(cache, places, rows, step):
    """The step's keys or values in equal pieces [pieces, length] to the cache's elements `places` [pieces, 1] and on.

    step: elements from one of a piece to its next. A piece lies in one partition, so 128 of them keep every DMA engine busy
    with what is, for keys, one descriptor an element.
    """
    pages, heads, first_axis, second_axis = cache.shape
    flat = cache.reshape((pages * heads * first_axis * second_axis, 1))
    pieces = places.shape[0]
    length = product_of(rows.shape) // pieces
    rows = rows.reshape((pieces, length))
    for first in range(0, pieces, P):
        count = min(P, pieces - first)
        index = nl.ndarray((count, 1), dtype=places.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=index, src=places[first : first + count, :])
        tile = nl.ndarray((count, length), dtype=rows.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=rows[first : first + count, :])
        target = flat.ap(pattern=[[1, count], [step, length]], offset=0, vector_offset=index, indirect_dim=0)
        nisa.dma_copy(dst=target, src=tile)


def product_of(sizes):
    """Elements of a shape."""
    elements = 1
    for size in sizes:
        elements *= size
    return elements


def store(out, results, first_row):
    """Results [columns, rows, H, V] to their rows; a column is a token and a query head of the group."""
    _, row_count, heads, dim = results.shape
    width, query_heads = out.shape[1], out.shape[2]
    group = query_heads // heads
    for token in range(width):
        target = out.ap(
            pattern=[[dim, group], [width * query_heads * dim, row_count], [group * dim, heads], [1, dim]],
            offset=(first_row * width + token) * query_heads * dim,
        )
        nisa.dma_copy(dst=target, src=results[token * group : (token + 1) * group, :, :, :])


def heads_together(key_pages, value_pages, scores_of_a_head):
    """Key heads that one pass takes: as many as a gather and the scores have room for."""
    heads, dim, size = key_pages.shape[1], key_pages.shape[2], key_pages.shape[3]
    elements = dim * size if value_pages is None else max(dim * size, size * value_pages.shape[3])
    by_pages = PAGE_BYTES // (elements * bytes_of(key_pages.dtype))
    by_scores = SCORE_BYTES // (scores_of_a_head * 4)
    assert by_scores, f"{scores_of_a_head} scores a partition and head are more than are kept: split the context"
    return max(1, min(heads, HEADS, by_pages, by_scores))


def bytes_of(dtype):
    """Bytes of one element of a type that the tensor engine multiplies here."""
    return 4 if dtype == nl.float32 else 2

"""The gated delta rule (GDN, KDA): decode in one pass over each row's packed state page, long rows in chunks (below).

    trnprof nki model engine/kernels/nki/delta_rule.py --kernel delta_rule_decode --input bank=32x548864:float32 \\
        --input read_slots=8:int32 --input write_slots=8x1:int32 --input qkv=8x1x8192:bfloat16 \\
        --input conv_weight=4x8192:bfloat16 --input log_decay=8x1x32x1:float32 --input beta=8x1x32:float32 \\
        --arg key_heads=16 --arg value_heads=32 --arg key_dim=128 --arg value_dim=128

A page is [K - 1 last inputs of the convolution | S[key, value] of every head]. Each head's S has its key channels in the
partitions. With a the decay, both products of a head's S are taken before it changes, so that it is read once:

    [p | r] = S^T [a k | a q]        delta = b (v - p)        o = r + (q . k) delta        S <- a S + k delta^T

Everything of a token but S is small, and lies with channels in the partitions and (token, head) along the free dimension:
a head's vector is then a column that products and per-partition scalars take as it is, and no instruction uses a few
partitions only. S itself is float32 throughout.

Slots come from tensors, so only the device knows the pages' addresses. Pages are read a group of rows ahead of the writes:
a row may write the slot that it reads, but none that a later group reads (the caller sees to that).
"""

import nki
import nki.isa as nisa
import nki.language as nl

P = 128
BANK = 512  # float32 columns of a PSUM bank
STATE_BYTES = 64 * 1024  # of a partition, for the states of one group of rows; two groups are held at a time
GROUP_TOKENS = 8  # of one group of rows
CHUNK_HEADS = 16  # heads whose states are one DMA: 1 MiB at 128 x 128
NORM_EPS = 1e-6


@nki.jit
def delta_rule_decode(
    bank, read_slots, write_slots, qkv, conv_weight, log_decay, beta, key_heads, value_heads, key_dim, value_dim
):
    """Token by token from the page in read_slots; the page after token j goes to write_slots[:, j].

    bank [S, E] float32, written in place; read_slots [R], write_slots [R, W] int32; qkv [R, W, C]; conv_weight [K, C];
    log_decay [R, W, H, 1 or key_dim], beta [R, W, H] float32. Returns [R, W, H, value_dim] float32.
    """
    rows, width = qkv.shape[0], qkv.shape[1]
    assert value_heads % key_heads == 0, f"{value_heads} value heads do not share {key_heads} key heads"
    assert key_dim <= P and value_dim <= P, f"a head of {key_dim} x {value_dim} does not fit {P} partitions"
    out = nl.ndarray((rows, width, value_heads, value_dim), dtype=nl.float32, buffer=nl.shared_hbm)
    runs = channel_runs(key_heads, value_heads, key_dim, value_dim)
    weights = [load_weight(conv_weight, run) for run in runs]
    reads, writes = load_row(read_slots, rows), load_row(write_slots, rows * width)
    sizes = (key_heads, value_heads, key_dim, value_dim)
    identity = identity_matrix(P)
    group_rows = rows_of_group(rows, width, value_heads * value_dim * 4)
    taps = conv_weight.shape[0]
    behind = (taps - 1) * qkv.shape[2]
    loaded = load_group(bank, reads, qkv, runs, sizes, taps, 0, min(group_rows, rows))
    for first in range(0, rows, group_rows):
        windows, states = loaded
        following = first + group_rows
        if following < rows:
            loaded = load_group(bank, reads, qkv, runs, sizes, taps, following, min(group_rows, rows - following))
        count = min(group_rows, rows - first)
        store_histories(bank, writes, windows, runs, qkv.shape[2], first, count, width)
        heads = convolved_heads(windows, weights, runs, sizes, count, width)
        vectors = token_vectors(heads, log_decay, beta, sizes, first * width, count * width)
        results = nl.ndarray((value_dim, count * width, value_heads), dtype=nl.float32, buffer=nl.sbuf)
        for row in range(count):
            for token in range(width):
                at = row * width + token
                slot = element(writes, first * width + at)
                states[row] = step(bank, slot, states[row], vectors, results, at, sizes, behind, identity)
        store_rows(out, results, first * width)
    return out


def channel_runs(key_heads, value_heads, key_dim, value_dim):
    """Heads that lie one after the other in the channels: (first channel, heads, dimensions, 0 keys or 1 values, first head).

    A run has at most 128 heads, one a partition. Where keys and values have one size, all heads of q, k and v are one list.
    """
    lists = [(0, 2 * key_heads + value_heads, key_dim, 0)]
    if key_dim != value_dim:
        lists = [(0, 2 * key_heads, key_dim, 0), (2 * key_heads * key_dim, value_heads, value_dim, 1)]
    runs = []
    for channel, heads, size, kind in lists:
        for head in range(0, heads, P):
            runs.append((channel + head * size, min(P, heads - head), size, kind, head))
    return runs


def rows_of_group(rows, width, state_bytes):
    """Rows whose states and inputs are held at a time, groups as equal as they can be."""
    most = max(1, min(STATE_BYTES // state_bytes, GROUP_TOKENS // width))
    groups = -(-rows // most)
    return -(-rows // groups)


# What is read


def load_row(numbers, count):
    """A small tensor of HBM as [1, count] in SBUF, in its type."""
    tile = nl.ndarray((1, count), dtype=numbers.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=numbers.reshape((1, count)))
    return tile


def element(row, at):
    """One element of a [1, n] tile, as the offset of a DMA."""
    return row[0:1, at : at + 1]


def as_float32(tile):
    """The tile itself, or a copy of it in float32."""
    if tile.dtype == nl.float32:
        return tile
    wide = nl.ndarray(tile.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=wide, src=tile)
    return wide


def load_weight(conv_weight, run):
    """The convolution's weight of a run's channels, [heads, K, dimensions] float32."""
    channel, heads, size = run[0], run[1], run[2]
    taps, channels = conv_weight.shape
    tile = nl.ndarray((heads, taps, size), dtype=conv_weight.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=conv_weight.ap(pattern=[[size, heads], [channels, taps], [1, size]], offset=channel))
    return as_float32(tile)


def load_windows(bank, slots, qkv, runs, taps, first, count, tokens):
    """Convolution inputs of rows [first, first + count): the history in their pages, then `tokens` new ones.

    A tile [heads, rows, K - 1 + tokens, dimensions] float32 for each run.
    """
    width, channels = qkv.shape[1], qkv.shape[2]
    kept = taps - 1
    windows = []
    for channel, heads, size, _kind, _head in runs:
        window = nl.ndarray((heads, count, kept + tokens, size), dtype=nl.float32, buffer=nl.sbuf)
        for row in range(count):
            history = bank.ap(
                pattern=[[size, heads], [channels, kept], [1, size]],
                offset=channel,
                scalar_offset=element(slots, first + row),
                indirect_dim=0,
            )
            nisa.dma_copy(dst=window[:, row, 0:kept, :], src=history)
        inputs = nl.ndarray((heads, count, tokens, size), dtype=qkv.dtype, buffer=nl.sbuf)
        new = qkv.ap(
            pattern=[[size, heads], [width * channels, count], [channels, tokens], [1, size]],
            offset=first * width * channels + channel,
        )
        nisa.dma_copy(dst=inputs, src=new)
        nisa.tensor_copy(dst=window[:, :, kept : kept + tokens, :], src=inputs)
        windows.append(window)
    return windows


def load_group(bank, slots, qkv, runs, sizes, taps, first, count):
    """(a window of convolution inputs for each run, the tiles of S for each row) of rows [first, first + count)."""
    windows = load_windows(bank, slots, qkv, runs, taps, first, count, qkv.shape[1])
    behind = (taps - 1) * qkv.shape[2]
    states = [load_states(bank, element(slots, first + row), behind, sizes) for row in range(count)]
    return windows, states


def load_states(bank, slot, behind, sizes):
    """S of every head of one page, CHUNK_HEADS heads a tile [key_dim, heads, value_dim]; `behind` the page's history."""
    value_heads, key_dim, value_dim = sizes[1], sizes[2], sizes[3]
    tiles = []
    for head in range(0, value_heads, CHUNK_HEADS):
        heads = min(CHUNK_HEADS, value_heads - head)
        tile = nl.ndarray((key_dim, heads, value_dim), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=state_in_page(bank, slot, behind, head, heads, key_dim, value_dim))
        tiles.append(tile)
    return tiles


def state_in_page(bank, slot, behind, head, heads, key_dim, value_dim):
    """S of `heads` heads in a slot of the bank, key channels first."""
    return bank.ap(
        pattern=[[value_dim, key_dim], [key_dim * value_dim, heads], [1, value_dim]],
        offset=behind + head * key_dim * value_dim,
        scalar_offset=slot,
        indirect_dim=0,
    )


# Small vectors: channels in the partitions, (token, head) along the free dimension


def convolved_heads(windows, weights, runs, sizes, count, width):
    """silu of the convolution, [dimensions, tokens, heads]: of q, k and v if they have one size, else of q and k, and of v."""
    key_heads, value_heads, key_dim, value_dim = sizes
    tokens = count * width
    if key_dim == value_dim:
        turned = [nl.ndarray((key_dim, tokens, 2 * key_heads + value_heads), dtype=nl.float32, buffer=nl.sbuf)]
    else:
        turned = [
            nl.ndarray((key_dim, tokens, 2 * key_heads), dtype=nl.float32, buffer=nl.sbuf),
            nl.ndarray((value_dim, tokens, value_heads), dtype=nl.float32, buffer=nl.sbuf),
        ]
    for number in range(len(runs)):
        _channel, heads, size, kind, head = runs[number]
        active = convolved(windows[number], weights[number], width)
        per_bank = max(1, BANK // heads)
        for first in range(0, tokens, per_bank):
            some = min(per_bank, tokens - first)
            columns = nl.ndarray((size, some, heads), dtype=nl.float32, buffer=nl.psum)
            for token in range(some):
                nisa.nc_transpose(dst=columns[:, token, :], data=active[:, first + token, :])
            nisa.tensor_copy(dst=turned[kind][:, first : first + some, head : head + heads], src=columns)
    return turned


def convolved(window, weight, width):
    """silu of sum over taps of weight[tap] * window[token + tap], [heads, tokens, dimensions]: heads in the partitions."""
    heads, count, length, size = window.shape
    taps = weight.shape[1]
    products = nl.ndarray((heads, count, width, taps, size), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(
        dst=products,
        data1=window.ap(
            pattern=[[count * length * size, heads], [length * size, count], [size, width], [size, taps], [1, size]]
        ),
        data2=weight.ap(pattern=[[taps * size, heads], [0, count], [0, width], [size, taps], [1, size]]),
        op=nl.multiply,
    )
    tokens = count * width
    total = nl.ndarray((heads, tokens, size), dtype=nl.float32, buffer=nl.sbuf)
    by_tap = products.ap(pattern=[[tokens * taps * size, heads], [taps * size, tokens], [1, size], [size, taps]])
    nisa.tensor_reduce(dst=total, op=nl.add, data=by_tap, axis=3)
    active = nl.ndarray((heads, tokens, size), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=active, op=nl.silu, data=total)
    return active


def token_vectors(heads, log_decay, beta, sizes, first, tokens):
    """What the steps need of `tokens` tokens from `first` on.

    (keys [key_dim, tokens, key heads] of unit length, decayed k and q [key_dim, tokens, value heads, 2], decay [key_dim,
    tokens, value heads], values and b and q . k [value_dim, tokens, value heads])
    """
    key_heads, value_heads, key_dim, value_dim = sizes
    shared = value_heads // key_heads
    unit = unit_vectors(heads[0][:, :, 0 : 2 * key_heads])
    scale(unit[:, :, 0:key_heads], key_dim**-0.5)
    products = nl.ndarray((key_dim, tokens, key_heads), dtype=nl.float32, buffer=nl.sbuf)
    keys = unit[:, :, key_heads : 2 * key_heads]
    nisa.tensor_tensor(dst=products, data1=unit[:, :, 0:key_heads], data2=keys, op=nl.multiply)
    overlap = sum_of_partitions(products, value_dim, shared)
    decay = decays(log_decay, sizes, first, tokens)
    decayed = nl.ndarray((key_dim, tokens, value_heads, 2), dtype=nl.float32, buffer=nl.sbuf)
    for place in range(2):  # k, then q
        nisa.tensor_tensor(
            dst=decayed.ap(
                pattern=[
                    [tokens * value_heads * 2, key_dim],
                    [value_heads * 2, tokens],
                    [shared * 2, key_heads],
                    [2, shared],
                ],
                offset=place,
            ),
            data1=unit.ap(
                pattern=[[tokens * 2 * key_heads, key_dim], [2 * key_heads, tokens], [1, key_heads], [0, shared]],
                offset=(1 - place) * key_heads,
            ),
            data2=decay.ap(
                pattern=[[tokens * value_heads, key_dim], [value_heads, tokens], [shared, key_heads], [1, shared]]
            ),
            op=nl.multiply,
        )
    strength = on_every_partition(load_part(beta, first * value_heads, tokens * value_heads), value_dim)
    values = heads[0][:, :, 2 * key_heads : 2 * key_heads + value_heads] if len(heads) == 1 else heads[1]
    return keys, decayed, decay, values, strength.reshape((value_dim, tokens, value_heads)), overlap


def unit_vectors(vectors):
    """Columns [key_dim, a, b] divided by their lengths."""
    squares = nl.ndarray(vectors.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=squares, data1=vectors, data2=vectors, op=nl.multiply)
    total = sum_of_partitions(squares, vectors.shape[0], 1)
    nisa.tensor_scalar(dst=total, data=total, op0=nl.add, operand0=NORM_EPS)
    inverse = nl.ndarray(vectors.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=inverse, op=nl.rsqrt, data=total)
    unit = nl.ndarray(vectors.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=unit, data1=vectors, data2=inverse, op=nl.multiply)
    return unit


def scale(vectors, factor):
    """vectors *= factor."""
    nisa.tensor_scalar(dst=vectors, data=vectors, op0=nl.multiply, operand0=factor)


def sum_of_partitions(tile, partitions, repeat):
    """The sum over the partitions of [rows, tokens, n], on each of `partitions`: [partitions, tokens, n * repeat].

    A product with ones adds over the partitions and leaves the sum on every one. repeat: each of the n so many times.
    """
    rows, tokens, columns = tile.shape
    ones = nl.ndarray((rows, partitions), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    total = nl.ndarray((partitions, tokens, columns * repeat), dtype=nl.float32, buffer=nl.sbuf)
    per_bank = max(1, BANK // columns)
    for first in range(0, tokens, per_bank):
        some = min(per_bank, tokens - first)
        sums = nl.ndarray((partitions, some, columns), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=sums, stationary=ones, moving=tile[:, first : first + some, :])
        spread = sums.ap(pattern=[[some * columns, partitions], [columns, some], [1, columns], [0, repeat]])
        nisa.tensor_copy(dst=total[:, first : first + some, :], src=spread)
    return total


def decays(log_decay, sizes, first, tokens):
    """exp(log_decay) as [key_dim, tokens, value heads]: GDN has one a head for all channels, KDA one a channel."""
    value_heads, key_dim = sizes[1], sizes[2]
    count = tokens * value_heads
    if log_decay.shape[3] == 1:
        row = load_part(log_decay, first * value_heads, count)
        nisa.activation(dst=row, op=nl.exp, data=row)
        return on_every_partition(row, key_dim).reshape((key_dim, tokens, value_heads))
    decay = nl.ndarray((key_dim, count), dtype=nl.float32, buffer=nl.sbuf)
    for line in range(0, count, P):
        some = min(P, count - line)
        lines = nl.ndarray((some, key_dim), dtype=nl.float32, buffer=nl.sbuf)
        begin = (first * value_heads + line) * key_dim
        nisa.dma_copy(dst=lines, src=log_decay.ap(pattern=[[key_dim, some], [1, key_dim]], offset=begin))
        turned = nl.ndarray((key_dim, some), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_transpose(dst=turned, data=lines)
        nisa.activation(dst=decay[:, line : line + some], op=nl.exp, data=turned)
    return decay.reshape((key_dim, tokens, value_heads))


def load_part(numbers, first, count):
    """`count` numbers of a tensor of HBM from `first` on, [1, count]."""
    row = nl.ndarray((1, count), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=row, src=numbers.ap(pattern=[[count, 1], [1, count]], offset=first))
    return row


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


def identity_matrix(size):
    """float32 [size, size]."""
    ones = nl.ndarray((size, size), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    matrix = nl.ndarray((size, size), dtype=nl.float32, buffer=nl.sbuf)
    nisa.affine_select(
        dst=matrix, pattern=[[-1, size]], channel_multiplier=1, on_true_tile=ones, on_false_value=0.0, cmp_op=nl.equal
    )
    return matrix


# The recurrence


def step(bank, slot, states, vectors, results, at, sizes, behind, identity):
    """Token `at` of one row: its result to `results`, the new states to the slot's page and as the tiles returned."""
    key_heads, value_heads, key_dim, value_dim = sizes
    keys, decayed, decay, values, strength, overlap = vectors
    shared = value_heads // key_heads
    following = []
    for number in range(len(states)):
        state = states[number]
        first, heads = number * CHUNK_HEADS, state.shape[1]
        part = slice(first, first + heads)
        both = nl.ndarray(
            (value_dim, heads, 2), dtype=nl.float32, buffer=nl.psum
        )  # what k and q read of the decayed state
        for head in range(heads):
            nisa.nc_matmul(dst=both[:, head, :], stationary=state[:, head, :], moving=decayed[:, at, first + head, :])
        delta = nl.ndarray((value_dim, heads), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=delta, data1=values[:, at, part], data2=both[:, :, 0], op=nl.subtract)
        nisa.tensor_tensor(dst=delta, data1=delta, data2=strength[:, at, part], op=nl.multiply)
        added = nl.ndarray((value_dim, heads), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=added, data1=delta, data2=overlap[:, at, part], op=nl.multiply)
        nisa.tensor_tensor(dst=results[:, at, part], data1=added, data2=both[:, :, 1], op=nl.add)
        new = nl.ndarray((key_dim, heads, value_dim), dtype=nl.float32, buffer=nl.sbuf)
        per_bank = BANK // value_dim
        for begin in range(0, heads, per_bank):
            some = min(per_bank, heads - begin)
            spread = nl.ndarray((key_dim, some, value_dim), dtype=nl.float32, buffer=nl.psum)
            for place in range(some):
                # delta of the head on every partition: its column as all columns of the weights, past an identity.
                column = delta.ap(pattern=[[heads, value_dim], [0, key_dim]], offset=begin + place)
                nisa.nc_matmul(dst=spread[:, place, :], stationary=column, moving=identity[0:value_dim, 0:value_dim])
            for place in range(some):
                head = begin + place
                fade = decay[:, at, first + head : first + head + 1]
                key_head = (first + head) // shared
                nisa.activation(dst=new[:, head, :], op=nl.copy, data=state[:, head, :], scale=fade)
                nisa.scalar_tensor_tensor(
                    dst=new[:, head, :],
                    data=spread[:, place, :],
                    op0=nl.multiply,
                    operand0=keys[:, at, key_head : key_head + 1],
                    op1=nl.add,
                    operand1=new[:, head, :],
                )
        nisa.dma_copy(dst=state_in_page(bank, slot, behind, first, heads, key_dim, value_dim), src=new)
        following.append(new)
    return following


# What is written


def store_histories(bank, slots, windows, runs, channels, first, count, width):
    """The last K - 1 inputs after each token to its slot."""
    for number in range(len(runs)):
        channel, heads, size = runs[number][0], runs[number][1], runs[number][2]
        window = windows[number]
        kept = window.shape[2] - width
        for row in range(count):
            for token in range(width):
                page = bank.ap(
                    pattern=[[size, heads], [channels, kept], [1, size]],
                    offset=channel,
                    scalar_offset=element(slots, (first + row) * width + token),
                    indirect_dim=0,
                )
                nisa.dma_copy(dst=page, src=window[:, row, token + 1 : token + 1 + kept, :])


def store_rows(out, results, first):
    """results [value_dim, tokens, heads] to the tokens of `out` from `first` on, each head's values contiguous."""
    value_dim, tokens, heads = results.shape
    flat = results.reshape((value_dim, tokens * heads))
    for line in range(0, tokens * heads, P):
        some = min(P, tokens * heads - line)
        turned = nl.ndarray((some, value_dim), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_transpose(dst=turned, data=flat[:, line : line + some])
        lines = nl.ndarray((some, value_dim), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=lines, src=turned)
        begin = (first * heads + line) * value_dim
        nisa.dma_copy(dst=out.ap(pattern=[[value_dim, some], [1, value_dim]], offset=begin), src=lines)


# Long rows: chunks of matrix products
#
# In a chunk of tokens that starts from the state S, with G the sum of the log decay up to a token (its own included), the
# deltas U of all tokens solve a unit lower triangular system (the UT transform), after which everything is a product:
#     (I + L) U = b (V - (K e^G) S)       L[i, j] = b_i (k_i e^(G_i - G_j) . k_j) for j < i
#     O = (Q e^G) S + A U                 A[i, j] = q_i e^(G_i - G_j) . k_j for j <= i
#     S <- e^(G_end) S + (K e^(G_end - G))^T U
# The state after any other number of tokens is the last line with the sums ended there: a stream of its own for each state
# to be saved, and no control flow on what only the device knows. Tokens of padding have log decay 0 and b = 0.

CHUNK = 64  # tokens with one decay a head (GDN)
CHANNEL_CHUNK = 16  # with a decay a channel (KDA), where pairs of tokens differ by channel
BATCH_HEADS = 8  # heads whose vector instructions are one: a PSUM bank of 64 columns each


@nki.jit
def delta_rule_prefill(
    bank,
    read_slots,
    write_slots,
    save_after,
    lengths,
    qkv,
    conv_weight,
    log_decay,
    beta,
    key_heads,
    value_heads,
    key_dim,
    value_dim,
):
    """As delta_rule_decode for long rows; the page after save_after[:, j] tokens (0: none) goes to write_slots[:, j].

    read_slots [R], write_slots and save_after [R, J], lengths [R] int32; tokens from lengths on change nothing. A row's pages
    are written before the next row's are read. Returns [R, W, H, value_dim] float32.
    """
    rows, width, channels = qkv.shape
    saves, taps = write_slots.shape[1], conv_weight.shape[0]
    behind = (taps - 1) * channels
    assert width >= taps - 1, f"rows of {width} tokens are shorter than the convolution's history"
    out = nl.ndarray((rows, width, value_heads, value_dim), dtype=nl.float32, buffer=nl.shared_hbm)
    sizes = (key_heads, value_heads, key_dim, value_dim)
    runs = channel_runs(key_heads, value_heads, key_dim, value_dim)
    weights = [load_weight(conv_weight, run) for run in runs]
    by_channel = turned_runs(weights, runs, sizes)
    reads, writes = load_row(read_slots, rows), load_row(write_slots, rows * saves)
    ends = load_row(save_after, rows * saves)
    saved_at = on_every_partition(as_float32(ends), P)
    real_until = on_every_partition(as_float32(load_row(lengths, rows)), P)
    chunk = CHUNK if log_decay.shape[3] == 1 else CHANNEL_CHUNK
    tables = chunk_tables(chunk)
    for row in range(rows):
        windows = load_windows(bank, reads, qkv, runs, taps, row, 1, taps - 1)
        states = load_states(bank, element(reads, row), behind, sizes)
        history = [window.reshape((window.shape[0], window.shape[2], window.shape[3])) for window in windows]
        tails = turned_runs([window[:, 0 : taps - 1, :] for window in history], runs, sizes)
        streams = [states] + [copies(states) for _save in range(saves)]
        limits = [saved_at[:, row * saves + save : row * saves + save + 1] for save in range(saves)]
        for first in range(0, width, chunk):
            count = min(chunk, width - first)
            real = real_until[:, row : row + 1]
            tails = chunk_step(
                out, streams, tails, by_channel, (qkv, log_decay, beta), sizes, row, first, count, real, limits, tables
            )
        for save in range(saves):
            at = row * saves + save
            slot = element(writes, at)
            store_saved_histories(bank, slot, qkv, history, runs, row, element(ends, at), limits[save], taps)
            for number in range(len(states)):
                tile = streams[1 + save][number]
                head = number * CHUNK_HEADS
                page = state_in_page(bank, slot, behind, head, tile.shape[1], key_dim, value_dim)
                nisa.dma_copy(dst=page, src=tile)
    return out


def copies(tiles):
    """Copies of tiles."""
    made = []
    for tile in tiles:
        copy = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=copy, src=tile)
        made.append(copy)
    return made


def head_tiles(sizes, columns):
    """Empty tiles [dimensions, heads, columns]: of q, k and v if they have one size, else of q and k, and of v."""
    key_heads, value_heads, key_dim, value_dim = sizes
    if key_dim == value_dim:
        return [nl.ndarray((key_dim, 2 * key_heads + value_heads, columns), dtype=nl.float32, buffer=nl.sbuf)]
    return [
        nl.ndarray((key_dim, 2 * key_heads, columns), dtype=nl.float32, buffer=nl.sbuf),
        nl.ndarray((value_dim, value_heads, columns), dtype=nl.float32, buffer=nl.sbuf),
    ]


def turned_runs(tiles, runs, sizes):
    """Tiles [heads, n, dimensions] of each run as [dimensions, heads, n]."""
    count = tiles[0].shape[1]
    turned = head_tiles(sizes, count)
    for number in range(len(runs)):
        _channel, heads, size, kind, head = runs[number]
        for at in range(count):
            columns = nl.ndarray((size, heads), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_transpose(dst=columns, data=tiles[number][:, at, :])
            nisa.tensor_copy(dst=turned[kind][:, head : head + heads, at], src=columns)
    return turned


def chunk_tables(size):
    """What every chunk of `size` tokens needs, tables [size, size] float32 with the row in the partitions.

    (1 where row <= column, 1 where row < column, ones, the number of the token as [size, 1], and for blocks of 1, 2, 4, ...
    the part of L below the diagonal that joins two of them, as it is and transposed)
    """
    ones = nl.ndarray((size, size), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    upper, strict, lower = where(ones, 1, -1, 0), where(ones, 1, -1, -1), where(ones, -1, 1, -1)
    numbers = nl.ndarray((size, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.iota(dst=numbers, pattern=[[0, 1]], offset=0, channel_multiplier=1)
    joins = []
    block = 1
    smaller = same_block(size, block)
    while block < size:
        block = 2 * block
        larger = same_block(size, block)
        pair = []
        for side in (lower, strict):
            join = nl.ndarray((size, size), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=join, data1=larger, data2=smaller, op=nl.subtract)
            nisa.tensor_tensor(dst=join, data1=join, data2=side, op=nl.multiply)
            pair.append(join)
        joins.append(pair)
        smaller = larger
    return upper, strict, ones, as_float32(numbers), joins, identity_matrix(size)


def where(ones, column_step, row_step, offset):
    """1 where column_step * column + row_step * row + offset >= 0, else 0."""
    table = nl.ndarray(ones.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.affine_select(
        dst=table,
        pattern=[[column_step, ones.shape[1]]],
        offset=offset,
        channel_multiplier=row_step,
        on_true_tile=ones,
        on_false_value=0.0,
        cmp_op=nl.greater_equal,
    )
    return table


def same_block(size, block):
    """1 where row and column lie in one block of `block`: a product of [blocks, size] with itself."""
    blocks = -(-size // block)
    ones = nl.ndarray((blocks, size), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    member = where(ones, 1, -block, 0)
    nisa.affine_select(
        dst=member,
        pattern=[[-1, size]],
        offset=block - 1,
        channel_multiplier=block,
        on_true_tile=member,
        on_false_value=0.0,
        cmp_op=nl.greater_equal,
    )
    product = nl.ndarray((size, size), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=product, stationary=member, moving=member)
    return in_sbuf(product)


def in_sbuf(tile):
    """A copy of a PSUM tile."""
    copy = nl.ndarray(tile.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=copy, src=tile)
    return copy


# One chunk of one row


def chunk_step(out, streams, tails, weights, inputs, sizes, row, first, count, real_until, limits, tables):
    """Tokens [first, first + count) of one row: results to `out`, streams advanced; returns the next chunk's tails.

    streams: tiles of the running state, then of each state to be saved. tails: the convolution's inputs before the chunk.
    """
    qkv, log_decay, beta = inputs
    key_heads, value_heads, key_dim = sizes[0], sizes[1], sizes[2]
    decays_of_head = log_decay.shape[3]
    index = tables[3]
    lines = nl.ndarray((count, qkv.shape[2]), dtype=qkv.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=lines, src=qkv[row, first : first + count, :])
    columns, tails = convolved_columns(lines, tails, weights, sizes, count)
    unit = unit_vectors(columns[0][:, 0 : 2 * key_heads, :])
    scale(unit[:, 0:key_heads, :], key_dim**-0.5)
    values = columns[0][:, 2 * key_heads : 2 * key_heads + value_heads, :] if len(columns) == 1 else columns[1]
    # A token of padding neither decays nor writes.
    real = tokens_before(index, real_until, first, count)
    logs = masked_lines(log_decay, row, first, count, value_heads * decays_of_head, real)
    strength = masked_lines(beta, row, first, count, value_heads, real)
    masks = [tables[2][0:count, 0:1]] + [tokens_before(index, limit, first, count) for limit in limits]
    # The first columns add up the log decay to each token, the others to the end of each stream.
    until = nl.ndarray((count, count + len(masks)), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=until[:, 0:count], src=tables[0][0:count, 0:count])
    remainders = []  # of each stream: what the log decay of a later token still does to a token's write
    for number in range(len(masks)):
        nisa.tensor_copy(dst=until[:, count + number : count + number + 1], src=masks[number])
        remainder = nl.ndarray((count, count), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(
            dst=remainder,
            data=tables[0][0:count, 0:count],
            op0=nl.multiply,
            operand0=-1.0,
            op1=nl.add,
            operand1=masks[number],
        )
        remainders.append(remainder)
    for head in range(0, value_heads, BATCH_HEADS):
        heads = min(BATCH_HEADS, value_heads - head)
        batch_step(
            out, streams, unit, values, logs, strength, masks, until, remainders, sizes, row, first, head, heads, tables
        )
    return tails


def tokens_before(index, limit, first, count):
    """[count, 1]: 1 where first + token < limit, else 0."""
    mask = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=mask, data=index[0:count, :], op0=nl.add, operand0=float(first), op1=nl.less, operand1=limit[0:count, :]
    )
    return mask


def masked_lines(numbers, row, first, count, columns, real):
    """Tokens' lines of log decay or b, [count, columns], 0 for padding."""
    width = numbers.shape[1]
    lines = nl.ndarray((count, columns), dtype=nl.float32, buffer=nl.sbuf)
    part = numbers.ap(pattern=[[columns, count], [1, columns]], offset=(row * width + first) * columns)
    nisa.dma_copy(dst=lines, src=part)
    nisa.tensor_scalar(dst=lines, data=lines, op0=nl.multiply, operand0=real)
    return lines


def convolved_columns(lines, tails, weights, sizes, count):
    """(silu of the convolution as [dimensions, heads, count], the last inputs) of a chunk's lines [count, channels]."""
    columns, following = [], []
    channel = 0
    for kind in range(len(tails)):
        size, heads, kept = tails[kind].shape
        window = nl.ndarray((size, heads, kept + count), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=window[:, :, 0:kept], src=tails[kind])
        for head in range(heads):
            turned = nl.ndarray((size, count), dtype=lines.dtype, buffer=nl.psum)
            nisa.nc_transpose(dst=turned, data=lines[:, channel : channel + size])
            nisa.tensor_copy(dst=window[:, head, kept : kept + count], src=turned)
            channel = channel + size
        total = nl.ndarray((size, heads, count), dtype=nl.float32, buffer=nl.sbuf)
        for tap in range(kept + 1):
            weight = weights[kind].ap(pattern=[[heads * (kept + 1), size], [kept + 1, heads], [0, count]], offset=tap)
            product = nl.ndarray((size, heads, count), dtype=nl.float32, buffer=nl.sbuf)
            target = total if tap == 0 else product
            nisa.tensor_tensor(dst=target, data1=window[:, :, tap : tap + count], data2=weight, op=nl.multiply)
            if tap:
                nisa.tensor_tensor(dst=total, data1=total, data2=product, op=nl.add)
        nisa.activation(dst=total, op=nl.silu, data=total)
        tail = nl.ndarray((size, heads, kept), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=tail, src=window[:, :, count : count + kept])
        columns.append(total)
        following.append(tail)
    return columns, following


def batch_step(
    out, streams, unit, values, logs, strength, masks, until, remainders, sizes, row, first, head, heads, tables
):
    """chunk_step for `heads` heads from `head` on: what they share of an instruction is its fixed cost."""
    key_heads, value_heads, key_dim, value_dim = sizes
    shared, decays_of_head = value_heads // key_heads, logs.shape[1] // value_heads
    count, ends = until.shape[0], len(masks)
    # e^G of each token and of each stream's end, for every key channel
    totals = nl.ndarray((key_dim, heads, count + ends), dtype=nl.float32, buffer=nl.sbuf)
    decayed = nl.ndarray((key_dim, heads, 2, count), dtype=nl.float32, buffer=nl.sbuf)
    for at in range(heads):
        sums = nl.ndarray((key_dim, count + ends), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=sums, stationary=log_of_channels(logs, head + at, decays_of_head, key_dim), moving=until)
        nisa.tensor_copy(dst=totals[:, at, :], src=sums)
    grown = nl.ndarray((key_dim, heads, count + ends), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=grown, op=nl.exp, data=totals)
    for at in range(heads):
        key_head = (head + at) // shared
        for place in range(2):  # k, then q
            vector = unit[:, (1 - place) * key_heads + key_head, :]
            nisa.tensor_tensor(dst=decayed[:, at, place, :], data1=vector, data2=grown[:, at, 0:count], op=nl.multiply)
    if decays_of_head == 1:
        pairs = pairs_of_heads(unit, logs, until, sizes, head, heads, tables)
    else:
        pairs = pairs_of_channels(unit, totals, sizes, head, heads, count)
    # Pairs [earlier token, head, k or q, later token]: what the later one reads of the earlier one's write.
    reads = times_table(pairs, 1, tables[0], heads, count)
    below = times_table(pairs, 0, tables[1], heads, count)
    solved = inverse(below, strength, head, heads, count, tables)
    results = nl.ndarray((count, heads, value_dim), dtype=nl.float32, buffer=nl.sbuf)
    fades = []
    for number in range(ends):
        fades.append(fade_lines(logs, remainders[number], masks[number], head, heads, decays_of_head))
    for at in range(heads):
        tile, place = (head + at) // CHUNK_HEADS, (head + at) % CHUNK_HEADS
        state = streams[0][tile][:, place, :]
        b = strength[:, head + at : head + at + 1]
        predicted = nl.ndarray((count, value_dim), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=predicted, stationary=decayed[:, at, 0, :], moving=state)
        rest = nl.ndarray((count, value_dim), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=rest, data1=lines_of(values[:, head + at, :]), data2=predicted, op=nl.subtract)
        nisa.tensor_scalar(dst=rest, data=rest, op0=nl.multiply, operand0=b)
        solution = nl.ndarray((count, value_dim), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=solution, stationary=solved[:, at, :], moving=rest)
        deltas = in_sbuf(solution)
        result = nl.ndarray((count, value_dim), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=result, stationary=decayed[:, at, 1, :], moving=state)
        nisa.nc_matmul(dst=result, stationary=reads[:, at, :], moving=deltas)
        nisa.tensor_copy(dst=results[:, at, :], src=result)
        keys = lines_of(unit[:, key_heads + (head + at) // shared, :])
        for number in range(ends):
            kept = nl.ndarray((count, key_dim), dtype=nl.float32, buffer=nl.sbuf)
            fade = log_of_channels(fades[number], at, decays_of_head, key_dim)
            nisa.tensor_tensor(dst=kept, data1=keys, data2=fade, op=nl.multiply)
            added = nl.ndarray((key_dim, value_dim), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst=added, stationary=kept, moving=deltas)
            stream = streams[number][tile][:, place, :]
            nisa.scalar_tensor_tensor(
                dst=stream,
                data=stream,
                op0=nl.multiply,
                operand0=grown[:, at, count + number : count + number + 1],
                op1=nl.add,
                operand1=added,
            )
    nisa.dma_copy(dst=out[row, first : first + count, head : head + heads, :], src=results)


def log_of_channels(lines, head, decays_of_head, key_dim):
    """A head's part of lines as [tokens, key_dim]: its channels, or its one number for all of them."""
    count, columns = lines.shape
    step = 0 if decays_of_head == 1 else 1
    return lines.ap(pattern=[[columns, count], [step, key_dim]], offset=head * decays_of_head)


def lines_of(columns):
    """[dimensions, tokens] as [tokens, dimensions] in SBUF."""
    size, count = columns.shape
    turned = nl.ndarray((count, size), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=turned, data=columns)
    return in_sbuf(turned)


def fade_lines(logs, remainder, mask, head, heads, decays_of_head):
    """e^(G_end - G) of each token before a stream's end, 0 for those behind it: [tokens, heads * decays of a head]."""
    count = logs.shape[0]
    columns = heads * decays_of_head
    fades = nl.ndarray((count, columns), dtype=nl.float32, buffer=nl.sbuf)
    for begin in range(0, columns, BANK):
        some = min(BANK, columns - begin)
        part = logs[:, head * decays_of_head + begin : head * decays_of_head + begin + some]
        sums = nl.ndarray((count, some), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=sums, stationary=remainder, moving=part)
        # Behind the end the sum is of the wrong sign and could overflow: it is cut off, then masked.
        nisa.tensor_scalar(dst=fades[:, begin : begin + some], data=sums, op0=nl.minimum, operand0=0.0)
    nisa.activation(dst=fades, op=nl.exp, data=fades)
    nisa.tensor_scalar(dst=fades, data=fades, op0=nl.multiply, operand0=mask)
    return fades


def pairs_of_heads(unit, logs, until, sizes, head, heads, tables):
    """k . k and q . k of two tokens times the decay between them: [earlier, heads, 2, later], one decay a head."""
    key_heads, value_heads = sizes[0], sizes[1]
    shared, count = value_heads // key_heads, until.shape[0]
    between = nl.ndarray((count, heads, count), dtype=nl.float32, buffer=nl.sbuf)
    pairs = nl.ndarray((count, heads, 2, count), dtype=nl.float32, buffer=nl.sbuf)
    upper = until[:, 0:count]
    for at in range(heads):
        log = logs[:, head + at : head + at + 1]
        negative = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=negative, data=log, op0=nl.multiply, operand0=-1.0)
        sums = nl.ndarray((count, count), dtype=nl.float32, buffer=nl.psum)  # G of the column - G of the row
        nisa.nc_matmul(dst=sums, stationary=log.broadcast(1, count), moving=upper)
        nisa.nc_matmul(dst=sums, stationary=upper, moving=negative.broadcast(1, count))
        nisa.tensor_scalar(dst=between[:, at, :], data=sums, op0=nl.minimum, operand0=0.0)
    nisa.activation(dst=between, op=nl.exp, data=between)
    for at in range(heads):
        key_head = (head + at) // shared
        keys = unit[:, key_heads + key_head, :]
        for place in range(2):  # k, then q
            products = nl.ndarray((count, count), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst=products, stationary=keys, moving=unit[:, (1 - place) * key_heads + key_head, :])
            nisa.tensor_tensor(dst=pairs[:, at, place, :], data1=between[:, at, :], data2=products, op=nl.multiply)
    return pairs


def pairs_of_channels(unit, totals, sizes, head, heads, count):
    """The same with a decay a channel: it is inside the products' sums."""
    key_heads, value_heads, key_dim = sizes[0], sizes[1], sizes[2]
    shared, columns = value_heads // key_heads, totals.shape[2]
    pairs = nl.ndarray((count, heads, 2, count), dtype=nl.float32, buffer=nl.sbuf)
    for at in range(heads):
        keys = unit[:, key_heads + (head + at) // shared, :]
        both = nl.ndarray((key_dim, count, 2), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=both[:, :, 0], src=keys)
        nisa.tensor_copy(dst=both[:, :, 1], src=unit[:, (head + at) // shared, :])
        total, line = totals[:, at, 0:count], heads * columns
        later = totals.ap(pattern=[[line, key_dim], [1, count], [0, count]], offset=at * columns)
        earlier = total.expand_dim(1).broadcast(1, count)
        between = nl.ndarray((key_dim, count, count), dtype=nl.float32, buffer=nl.sbuf)  # [channel, later, earlier]
        nisa.tensor_tensor(dst=between, data1=later, data2=earlier, op=nl.subtract)
        nisa.tensor_scalar(dst=between, data=between, op0=nl.minimum, operand0=0.0)
        nisa.activation(dst=between, op=nl.exp, data=between)
        nisa.tensor_tensor(dst=between, data1=between, data2=keys.expand_dim(1).broadcast(1, count), op=nl.multiply)
        products = nl.ndarray((count, count, 2), dtype=nl.float32, buffer=nl.psum)  # [earlier, later, k or q]
        for token in range(count):
            nisa.nc_matmul(dst=products[:, token, :], stationary=between[:, token, :], moving=both[:, token, :])
        nisa.tensor_copy(dst=pairs[:, at, :, :], src=products.permute((0, 2, 1)))
    return pairs


def times_table(pairs, place, table, heads, count):
    """The k (0) or q (1) part of pairs where `table` is 1, else 0: [earlier, heads, later]."""
    masked = nl.ndarray((count, heads, count), dtype=nl.float32, buffer=nl.sbuf)
    wide = table[0:count, 0:count].expand_dim(1).broadcast(1, heads)
    nisa.tensor_tensor(dst=masked, data1=pairs[:, :, place, :], data2=wide, op=nl.multiply)
    return masked


def inverse(below, strength, head, heads, count, tables):
    """((I + L)^-1)^T of each head, [count, heads, count]; below: L^T without the factors b.

    The inverse of a block is made of those of its halves and of what joins them, T - T L_join T: as stable as substitution,
    and log2(count) steps instead of count. The inverse and its transpose go together, since products want both.
    """
    joins, identity = tables[4], tables[5]
    lower = nl.ndarray((count, heads, count), dtype=nl.float32, buffer=nl.sbuf)
    upper = nl.ndarray((count, heads, count), dtype=nl.float32, buffer=nl.sbuf)
    for at in range(heads):
        turned = nl.ndarray((count, count), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_transpose(dst=turned, data=below[:, at, :])
        b = strength[:, head + at : head + at + 1]
        nisa.tensor_scalar(dst=lower[:, at, :], data=turned, op0=nl.multiply, operand0=b)
        turned = nl.ndarray((count, count), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_transpose(dst=turned, data=lower[:, at, :])
        nisa.tensor_copy(dst=upper[:, at, :], src=turned)
    part = identity[0:count, 0:count].expand_dim(1).broadcast(1, heads)
    solved, transposed = copies([part, part])
    for pair in joins:
        join = times_view(lower, pair[0], heads, count)
        join_transposed = times_view(upper, pair[1], heads, count)
        solved, transposed = (
            minus(solved, products(transposed, products(join_transposed, solved, heads), heads)),
            minus(transposed, products(solved, products(join, transposed, heads), heads)),
        )
    return transposed


def times_view(tile, table, heads, count):
    """tile [count, heads, count] * table."""
    result = nl.ndarray((count, heads, count), dtype=nl.float32, buffer=nl.sbuf)
    wide = table[0:count, 0:count].expand_dim(1).broadcast(1, heads)
    nisa.tensor_tensor(dst=result, data1=tile, data2=wide, op=nl.multiply)
    return result


def products(stationary, moving, heads):
    """stationary^T @ moving of each head, [count, heads, count]."""
    count = moving.shape[0]
    tile = nl.ndarray((count, heads, count), dtype=nl.float32, buffer=nl.sbuf)
    sums = nl.ndarray((count, heads, count), dtype=nl.float32, buffer=nl.psum)
    for at in range(heads):
        nisa.nc_matmul(dst=sums[:, at, :], stationary=stationary[:, at, :], moving=moving[:, at, :])
    nisa.tensor_copy(dst=tile, src=sums)
    return tile


def minus(first, second):
    """first - second."""
    result = nl.ndarray(first.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=result, data1=first, data2=second, op=nl.subtract)
    return result


def store_saved_histories(bank, slot, qkv, history, runs, row, end, limit, taps):
    """The last K - 1 inputs before token `end` (an element in SBUF; `limit` the same on every partition) to a slot."""
    width, channels = qkv.shape[1], qkv.shape[2]
    kept = taps - 1
    start = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=start, data=end, op0=nl.subtract, operand0=kept, op1=nl.maximum, operand1=0)
    for number in range(len(runs)):
        channel, heads, size = runs[number][0], runs[number][1], runs[number][2]
        inputs = nl.ndarray((heads, kept, size), dtype=qkv.dtype, buffer=nl.sbuf)
        part = qkv.ap(
            pattern=[[size, heads], [channels, kept], [1, size]],
            offset=row * width * channels + channel,
            scalar_offset=start,
            indirect_dim=1,
        )
        nisa.dma_copy(dst=inputs, src=part)
        # Before K - 1 tokens some of it is the page's own history: window inputs from `end` on, and only one `end` counts.
        total = nl.ndarray((heads, kept, size), dtype=nl.float32, buffer=nl.sbuf)
        chosen = nl.ndarray((heads, taps), dtype=nl.float32, buffer=nl.sbuf)
        for case in range(taps):
            op = nl.equal if case < kept else nl.greater_equal
            nisa.tensor_scalar(dst=chosen[:, case : case + 1], data=limit[0:heads, :], op0=op, operand0=float(case))
        nisa.tensor_scalar(dst=total, data=inputs, op0=nl.multiply, operand0=chosen[:, kept : kept + 1])
        for case in range(kept):
            nisa.scalar_tensor_tensor(
                dst=total,
                data=history[number][:, case : case + kept, :],
                op0=nl.multiply,
                operand0=chosen[:, case : case + 1],
                op1=nl.add,
                operand1=total,
            )
        page = bank.ap(
            pattern=[[size, heads], [channels, kept], [1, size]], offset=channel, scalar_offset=slot, indirect_dim=0
        )
        nisa.dma_copy(dst=page, src=total)

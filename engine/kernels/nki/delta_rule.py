"""One token or a few of the gated delta rule for each row (GDN, KDA), in one pass over its packed state page.

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
    loaded = load_group(bank, reads, qkv, runs, sizes, conv_weight.shape[0], 0, min(group_rows, rows))
    for first in range(0, rows, group_rows):
        windows, states = loaded
        following = first + group_rows
        if following < rows:
            count = min(group_rows, rows - following)
            loaded = load_group(bank, reads, qkv, runs, sizes, conv_weight.shape[0], following, count)
        count = min(group_rows, rows - first)
        store_histories(bank, writes, windows, runs, qkv.shape[2], first, count, width)
        heads = convolved_heads(windows, weights, runs, sizes, count, width)
        vectors = token_vectors(heads, log_decay, beta, sizes, first * width, count * width)
        results = nl.ndarray((value_dim, count * width, value_heads), dtype=nl.float32, buffer=nl.sbuf)
        for row in range(count):
            for token in range(width):
                at = row * width + token
                slot = element(writes, first * width + at)
                states[row] = step(bank, slot, states[row], vectors, results, at, sizes, conv_weight.shape, identity)
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


def load_group(bank, slots, qkv, runs, sizes, taps, first, count):
    """(a window of convolution inputs for each run, a list of state tiles for each row) of the rows from `first` on."""
    value_heads, key_dim, value_dim = sizes[1], sizes[2], sizes[3]
    width, channels = qkv.shape[1], qkv.shape[2]
    kept = taps - 1
    windows = []
    for channel, heads, size, _kind, _head in runs:
        window = nl.ndarray((heads, count, kept + width, size), dtype=nl.float32, buffer=nl.sbuf)
        for row in range(count):
            history = bank.ap(
                pattern=[[size, heads], [channels, kept], [1, size]],
                offset=channel,
                scalar_offset=element(slots, first + row),
                indirect_dim=0,
            )
            nisa.dma_copy(dst=window[:, row, 0:kept, :], src=history)
        inputs = nl.ndarray((heads, count, width, size), dtype=qkv.dtype, buffer=nl.sbuf)
        new = qkv.ap(
            pattern=[[size, heads], [width * channels, count], [channels, width], [1, size]],
            offset=first * width * channels + channel,
        )
        nisa.dma_copy(dst=inputs, src=new)
        nisa.tensor_copy(dst=window[:, :, kept : kept + width, :], src=inputs)
        windows.append(window)
    states = []
    for row in range(count):
        tiles = []
        for head in range(0, value_heads, CHUNK_HEADS):
            heads = min(CHUNK_HEADS, value_heads - head)
            tile = nl.ndarray((key_dim, heads, value_dim), dtype=nl.float32, buffer=nl.sbuf)
            page = state_in_page(bank, element(slots, first + row), kept * channels, head, heads, key_dim, value_dim)
            nisa.dma_copy(dst=tile, src=page)
            tiles.append(tile)
        states.append(tiles)
    return windows, states


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
    unit = unit_vectors(heads[0], key_heads, key_dim)
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


def unit_vectors(heads, key_heads, key_dim):
    """q and k divided by their lengths, q also by sqrt(key_dim): [key_dim, tokens, 2 key heads]."""
    tokens = heads.shape[1]
    qk = heads[:, :, 0 : 2 * key_heads]
    squares = nl.ndarray((key_dim, tokens, 2 * key_heads), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=squares, data1=qk, data2=qk, op=nl.multiply)
    total = sum_of_partitions(squares, key_dim, 1)
    nisa.tensor_scalar(dst=total, data=total, op0=nl.add, operand0=NORM_EPS)
    inverse = nl.ndarray(total.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=inverse, op=nl.rsqrt, data=total)
    unit = nl.ndarray((key_dim, tokens, 2 * key_heads), dtype=nl.float32, buffer=nl.sbuf)
    for place in range(2):  # q, then k
        part = slice(place * key_heads, (place + 1) * key_heads)
        nisa.scalar_tensor_tensor(
            dst=unit[:, :, part],
            data=heads[:, :, part],
            op0=nl.multiply,
            operand0=key_dim**-0.5 if place == 0 else 1.0,
            op1=nl.multiply,
            operand1=inverse[:, :, part],
        )
    return unit


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


def step(bank, slot, states, vectors, results, at, sizes, conv_shape, identity):
    """Token `at` of one row: its result to `results`, the new states to the slot's page and as the tiles returned."""
    key_heads, value_heads, key_dim, value_dim = sizes
    keys, decayed, decay, values, strength, overlap = vectors
    shared = value_heads // key_heads
    behind = (conv_shape[0] - 1) * conv_shape[1]
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

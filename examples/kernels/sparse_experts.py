"""A decode step's expert layer: the experts that the router chose, one after the other, each read by its number.

    trnprof nki model examples/kernels/sparse_experts.py --input hidden=1x2048:bfloat16 \\
        --input gate_up=128x2048x512:bfloat16 --input down=128x256x2048:bfloat16 \\
        --input chosen=1x8:int32 --input shares=1x8:float32 --arg gate_up_columns=128

hidden is [T, H], gate_up [E, H, 2 I], down [E, I, H]; chosen and shares are [T, K]: numbers of experts and their shares. An
expert's weights have an address that only the device knows, and the engine that triggers a DMA computes it each time: few
large loads cost less than many small ones. gate_up_columns and down_columns say how much a load takes, product_columns how
many columns one product of the second projection has.
"""

import nki
import nki.isa as nisa
import nki.language as nl

P = 128


@nki.jit
def experts(hidden, gate_up, down, chosen, shares, gate_up_columns=512, down_columns=2048, product_columns=512):
    """Sum over the chosen experts of share x (silu(gate) * up) @ down."""
    tokens, size = hidden.shape
    count = chosen.shape[1]
    out = nl.ndarray((tokens, size), dtype=hidden.dtype, buffer=nl.shared_hbm)
    numbers = nl.ndarray((P, count), dtype=chosen.dtype, buffer=nl.sbuf)
    nisa.memset(dst=numbers, value=0)
    nisa.dma_copy(dst=numbers[0:tokens, 0:count], src=chosen)
    for token in range(tokens):
        states = load_states(hidden, token)
        total = []
        for _part in range(size // product_columns):
            total.append(zeros((1, product_columns), nl.sbuf))
        for place in range(count):
            number = numbers.ap(pattern=[[count, 1], [1, 1]], offset=token * count + place)
            share = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=share, src=shares[token : token + 1, place : place + 1])
            inner = first_projection(states, gate_up, number, gate_up_columns)
            second_projection(inner, down, number, share, total, down_columns, product_columns)
        for part in range(len(total)):
            result = nl.ndarray((1, product_columns), dtype=hidden.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=result, src=total[part])
            first = part * product_columns
            nisa.dma_copy(dst=out[token : token + 1, first : first + product_columns], src=result)
    return out


def load_states(hidden, token):
    """The token's state, 128 values in each tile's partitions."""
    size = hidden.shape[1]
    tiles = []
    for first in range(0, size, P):
        tile = nl.ndarray((P, 1), dtype=hidden.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=hidden.ap(pattern=[[1, P], [size, 1]], offset=token * size + first))
        tiles.append(tile)
    return tiles


def zeros(shape, buffer):
    """A float32 tile of zeros."""
    tile = nl.ndarray(shape, dtype=nl.float32, buffer=buffer)
    nisa.memset(dst=tile, value=0)
    return tile


def expert_rows(weights, number, first_row, first_column, columns):
    """Rows [first_row, first_row + 128) of the expert whose number lies in SBUF."""
    width = weights.shape[2]
    tile = nl.ndarray((P, columns), dtype=weights.dtype, buffer=nl.sbuf)
    source = weights.ap(
        pattern=[[width, P], [1, columns]],
        offset=first_row * width + first_column,
        scalar_offset=number,
        indirect_dim=0,
    )
    nisa.dma_copy(dst=tile, src=source)
    return tile


def first_projection(states, gate_up, number, load_columns):
    """silu(gate) * up, 128 values in each tile's partitions, in the weights' type."""
    width = gate_up.shape[2]
    sums = []
    for _tile in range(width // P):
        sums.append(zeros((P, 1), nl.psum))
    for row in range(len(states)):
        for first in range(0, width, load_columns):
            weights = expert_rows(gate_up, number, row * P, first, load_columns)
            for column in range(0, load_columns, P):
                tile = sums[(first + column) // P]
                nisa.nc_matmul(dst=tile, stationary=weights[0:P, column : column + P], moving=states[row])
    tiles = []
    half = len(sums) // 2
    for place in range(half):
        gate = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
        up = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
        active = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
        product = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=gate, src=sums[place])
        nisa.tensor_copy(dst=up, src=sums[half + place])
        nisa.activation(dst=active, op=nl.silu, data=gate)
        nisa.tensor_tensor(dst=product, data1=active, data2=up, op=nl.multiply)
        narrow = nl.ndarray((P, 1), dtype=gate_up.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=narrow, src=product)
        tiles.append(narrow)
    return tiles


def second_projection(inner, down, number, share, total, load_columns, product_columns):
    """Add share x (inner @ down) to `total`, its columns in tiles of product_columns."""
    size = down.shape[2]
    for first in range(0, size, load_columns):
        rows = []
        for place in range(len(inner)):
            rows.append(expert_rows(down, number, place * P, first, load_columns))
        for column in range(0, load_columns, product_columns):
            product = zeros((1, product_columns), nl.psum)
            for place in range(len(inner)):
                columns = rows[place][0:P, column : column + product_columns]
                nisa.nc_matmul(dst=product, stationary=inner[place], moving=columns)
            add_share(total[(first + column) // product_columns], product, share)


def add_share(total, product, share):
    """total += share x product."""
    copied = nl.ndarray(product.shape, dtype=nl.float32, buffer=nl.sbuf)
    scaled = nl.ndarray(product.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=copied, src=product)
    nisa.tensor_scalar(dst=scaled, data=copied, op0=nl.multiply, operand0=share)
    nisa.tensor_tensor(dst=total, data1=total, data2=scaled, op=nl.add)

"""Linear projection whose weight streams through once: x @ weight, a decode step's largest traffic.

    trnprof nki model engine/kernels/nki/projection.py --kernel project --input x=8x4096:bfloat16 \\
        --input weight=4096x6144:bfloat16

The weight lies with the contracted axis outermost, [D, N] (a checkpoint's [N, D] turned once when it is loaded). Partition p
holds the D / 128 channels from p * D / 128 on, so that a partition's part of the weight is a few long rows: a tile of 2,048
columns moves in pieces of 4 KiB at the DMA engines' full rate. The weight is the moving operand: 128 x 512 of it are one
product, a row of the result is a row in PSUM, and nothing is transposed.
"""

import nki
import nki.isa as nisa
import nki.language as nl

P = 128
BANK = 512  # float32 columns of a PSUM bank
COLUMNS = 2048  # columns of the weight worked on at a time: four banks
PIECE_BYTES = 8 * 1024  # of a partition, of one weight DMA: 1 MiB; larger ones leave a longer tail of products
WEIGHT_BYTES = 64 * 1024  # of a partition, for weights that more than one block of rows uses
INPUT_BYTES = 48 * 1024  # of a partition, for the turned inputs
DIRECT_ROWS = 32  # so many rows are turned by the DMA; more by the tensor engine


@nki.jit
def project(x, weight):
    """x [rows, D], weight [D, N]: x @ weight, [rows, N] of x's type. D is a multiple of 128."""
    rows, size = x.shape
    columns = weight.shape[1]
    assert size % P == 0, f"D = {size} is no multiple of {P}; pad it with zeros"
    out = nl.ndarray((rows, columns), dtype=x.dtype, buffer=nl.shared_hbm)
    item = bytes_of(x.dtype)
    most_rows = max(P, INPUT_BYTES // (size // P * item) // P * P)
    for first in range(0, rows, most_rows):
        project_rows(out, x, weight, first, min(most_rows, rows - first))
    return out


def project_rows(out, x, weight, first, rows):
    """Rows [first, first + rows) of the result; the weight streams through once."""
    size, columns = weight.shape
    channels = size // P
    item = bytes_of(weight.dtype)
    blocks = []
    for row in range(0, rows, P):
        blocks.append(turned_rows(x, first + row, min(P, rows - row)))
    width = COLUMNS
    if rows > P:  # the whole tile of the weight stays until every block of rows has used it
        width = max(BANK, min(COLUMNS, WEIGHT_BYTES // (channels * item) // BANK * BANK))
    for column in range(0, columns, width):
        count = min(width, columns - column)
        depth = max(1, min(channels, PIECE_BYTES // (count * item)))
        if rows <= P:
            sums = nl.ndarray((rows, count), dtype=nl.float32, buffer=nl.psum)
            for channel in range(0, channels, depth):
                piece = weight_piece(weight, channel, min(depth, channels - channel), column, count)
                add_products(sums, blocks[0], piece, channel, count)
            store(out, sums, first, column, count)
        else:
            pieces = []
            for channel in range(0, channels, depth):
                pieces.append(weight_piece(weight, channel, min(depth, channels - channel), column, count))
            for block in range(len(blocks)):
                sums = nl.ndarray((blocks[block].shape[2], count), dtype=nl.float32, buffer=nl.psum)
                for piece in range(len(pieces)):
                    add_products(sums, blocks[block], pieces[piece], piece * depth, count)
                store(out, sums, first + block * P, column, count)


def turned_rows(x, first, rows):
    """Rows of x with the channels in partitions, [128, D / 128, rows]."""
    size = x.shape[1]
    channels = size // P
    if rows <= DIRECT_ROWS:
        arrived = nl.ndarray((P, rows, channels), dtype=x.dtype, buffer=nl.sbuf)
        source = x.ap(pattern=[[channels, P], [size, rows], [1, channels]], offset=first * size)
        nisa.dma_copy(dst=arrived, src=source)
        return arrived.permute((0, 2, 1))
    arrived = nl.ndarray((rows, P, channels), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=arrived, src=x[first : first + rows, :].reshape((rows, P, channels)))
    turned = nl.ndarray((P, channels, rows), dtype=x.dtype, buffer=nl.sbuf)
    together = max(1, 2048 // (rows * bytes_of(x.dtype)))  # turned blocks that one PSUM bank holds
    for channel in range(0, channels, together):
        count = min(together, channels - channel)
        bank = nl.ndarray((P, count, rows), dtype=x.dtype, buffer=nl.psum)
        for place in range(count):
            nisa.nc_transpose(dst=bank[:, place, :], data=arrived[:, :, channel + place])
        nisa.tensor_copy(dst=turned[:, channel : channel + count, :], src=bank)
    return turned


def weight_piece(weight, channel, depth, column, count):
    """Channels [channel, channel + depth) of every partition, columns [column, column + count): [128, depth, count]."""
    size, columns = weight.shape
    piece = nl.ndarray((P, depth, count), dtype=weight.dtype, buffer=nl.sbuf)
    source = weight.ap(
        pattern=[[size // P * columns, P], [columns, depth], [1, count]], offset=channel * columns + column
    )
    nisa.dma_copy(dst=piece, src=source)
    return piece


def add_products(sums, block, piece, channel, count):
    """sums += block.T @ piece over the piece's channels, a bank of columns at a time."""
    for place in range(piece.shape[1]):
        for column in range(0, count, BANK):
            end = min(column + BANK, count)
            nisa.nc_matmul(
                dst=sums[:, column:end], stationary=block[:, channel + place, :], moving=piece[:, place, column:end]
            )


def store(out, sums, row, column, count):
    """Finished sums to their place in HBM, in its type."""
    rows = sums.shape[0]
    result = nl.ndarray((rows, count), dtype=out.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=result, src=sums)
    nisa.dma_copy(dst=out[row : row + rows, column : column + count], src=result)


def bytes_of(dtype):
    """Bytes of one element of a type that the tensor engine multiplies here."""
    return 4 if dtype == nl.float32 else 2

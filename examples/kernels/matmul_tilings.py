"""One matrix product, out = lhs_t.T @ rhs, in three tilings: the same arithmetic, 6 to 40 times the bytes.

    trnprof dma-predict examples/kernels/matmul_tilings.py --kernel tiled \\
        --input lhs_t=4096x4096:bfloat16 --input rhs=4096x4096:bfloat16
    trnprof dma-predict examples/kernels/matmul_tilings.py --kernel row_loads \\
        --input lhs_t=4096x4096:bfloat16 --input rhs=4096x4096:bfloat16 --sweep BLOCK_M=2,4,8,16 --sweep BLOCK_N=1,2,4

lhs_t is [K, M], rhs is [K, N]. The tensor engine contracts 128 rows at a time, holds 128 columns of lhs_t and streams 512
of rhs; a PSUM tile is [128, 512] float32.
"""

import nki
import nki.isa as nisa
import nki.language as nl

TILE_K = 128
TILE_M = 128
TILE_N = 512
BLOCK_M = 8  # tiles of lhs_t's columns that stay in SBUF
BLOCK_N = 2  # tiles of rhs's columns that stay in SBUF


@nki.jit
def tiled(lhs_t, rhs):
    """Load both operands' tiles for every single matmul: rhs is read M / 128 times, lhs_t N / 512 times."""
    depth, rows = lhs_t.shape
    columns = rhs.shape[1]
    out = nl.ndarray((rows, columns), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    for m in nl.affine_range(rows // TILE_M):
        for n in nl.affine_range(columns // TILE_N):
            product = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.psum)
            for k in nl.affine_range(depth // TILE_K):
                left = nl.ndarray((TILE_K, TILE_M), dtype=lhs_t.dtype, buffer=nl.sbuf)
                right = nl.ndarray((TILE_K, TILE_N), dtype=rhs.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=left, src=lhs_t[nl.ds(k * TILE_K, TILE_K), nl.ds(m * TILE_M, TILE_M)])
                nisa.dma_copy(dst=right, src=rhs[nl.ds(k * TILE_K, TILE_K), nl.ds(n * TILE_N, TILE_N)])
                nisa.nc_matmul(dst=product, stationary=left, moving=right)
            store_tile(out, product, m, n)
    return out


@nki.jit
def blocked(lhs_t, rhs):
    """Keep a block of each operand in SBUF, still loaded tile by tile: rhs is read M / (BLOCK_M * 128) times."""
    return blocks(lhs_t, rhs, left_width=TILE_M, right_width=TILE_N)


@nki.jit
def row_loads(lhs_t, rhs):
    """The same blocks, but a whole block's row in one element: 2 KiB a partition instead of 256 B and 1 KiB."""
    return blocks(lhs_t, rhs, left_width=BLOCK_M * TILE_M, right_width=BLOCK_N * TILE_N)


def blocks(lhs_t, rhs, left_width, right_width):
    """For each block of lhs_t's columns, once loaded, stream all of rhs past it in blocks of columns."""
    depth, rows = lhs_t.shape
    columns = rhs.shape[1]
    block_rows, block_columns = BLOCK_M * TILE_M, BLOCK_N * TILE_N
    assert rows % block_rows == 0, f"{rows} rows are no multiple of BLOCK_M * {TILE_M} = {block_rows}"
    assert columns % block_columns == 0, f"{columns} columns are no multiple of BLOCK_N * {TILE_N} = {block_columns}"
    out = nl.ndarray((rows, columns), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    for m in nl.affine_range(rows // block_rows):
        left = load_block(lhs_t, m * block_rows, block_rows, left_width)
        for n in nl.affine_range(columns // block_columns):
            right = load_block(rhs, n * block_columns, block_columns, right_width)
            for i in nl.affine_range(BLOCK_M):
                for j in nl.affine_range(BLOCK_N):
                    product = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.psum)
                    for k in nl.affine_range(depth // TILE_K):
                        nisa.nc_matmul(
                            dst=product,
                            stationary=left[:, k, nl.ds(i * TILE_M, TILE_M)],
                            moving=right[:, k, nl.ds(j * TILE_N, TILE_N)],
                        )
                    store_tile(out, product, m * BLOCK_M + i, n * BLOCK_N + j)
    return out


def load_block(matrix, start, width, piece):
    """All K rows of `width` columns in SBUF as [128, K / 128, width], `piece` columns a DMA."""
    depth = matrix.shape[0]
    block = nl.ndarray((TILE_K, depth // TILE_K, width), dtype=matrix.dtype, buffer=nl.sbuf)
    for k in nl.affine_range(depth // TILE_K):
        for c in nl.affine_range(width // piece):
            nisa.dma_copy(
                dst=block[:, k, nl.ds(c * piece, piece)],
                src=matrix[nl.ds(k * TILE_K, TILE_K), nl.ds(start + c * piece, piece)],
            )
    return block


def store_tile(out, product, m, n):
    """PSUM to SBUF in the output's type, then to HBM."""
    tile = nl.ndarray((TILE_M, TILE_N), dtype=out.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=tile, src=product)
    nisa.dma_copy(dst=out[nl.ds(m * TILE_M, TILE_M), nl.ds(n * TILE_N, TILE_N)], src=tile)

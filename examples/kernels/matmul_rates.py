"""Products of tiles that lie in SBUF: what the tensor engine does when nothing else holds it up.

    trnprof nki model examples/kernels/matmul_rates.py --kernel full_tiles \\
        --input left=128x128:bfloat16 --input right=128x512:bfloat16
    trnprof nki model examples/kernels/matmul_rates.py --kernel mixed_tiles \\
        --input left=128x128:bfloat16 --input right=128x512:bfloat16

A product of 128 x 128 weights with 512 columns takes 512 cycles; fewer rows, fewer weights' columns or less depth take as
long and do less, fewer moving columns take less time but no less than 64 cycles.
"""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def full_tiles(left, right, count=2048):
    """`count` products of 128 x 128 with 128 x 512."""
    weights, columns = tiles(left, right)
    for _group in nl.affine_range(count // 32):
        multiply(weights, columns, 32)


@nki.jit
def mixed_tiles(left, right, count=512):
    """`count` products each of 32 result rows, of 64 columns, of depth 32, and of full tiles, one kind after the other."""
    weights, columns = tiles(left, right)
    for _group in nl.affine_range(count // 32):
        multiply(weights[:, 0:32], columns, 32)
    for _group in nl.affine_range(count // 32):
        multiply(weights, columns[:, 0:64], 32)
    for _group in nl.affine_range(count // 32):
        multiply(weights[0:32, :], columns[0:32, :], 32)
    for _group in nl.affine_range(count // 32):
        multiply(weights, columns, 32)


def tiles(left, right):
    """Both operands in SBUF."""
    weights = nl.ndarray(left.shape, dtype=left.dtype, buffer=nl.sbuf)
    columns = nl.ndarray(right.shape, dtype=right.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=weights, src=left)
    nisa.dma_copy(dst=columns, src=right)
    return weights, columns


def multiply(weights, columns, count):
    """`count` products into one PSUM tile, copied out once."""
    product = nl.ndarray((weights.shape[1], columns.shape[1]), dtype=nl.float32, buffer=nl.psum)
    for _ in range(count):
        nisa.nc_matmul(dst=product, stationary=weights, moving=columns)
    result = nl.ndarray(product.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=result, src=product)

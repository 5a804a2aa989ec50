"""Plain data movement, one pattern a kernel: what `trnprof dma-predict` says of them is in docs/dma-predict.md.

trnprof dma-predict examples/kernels/dma_streams.py --kernel load --input a=4x4096:bfloat16
trnprof dma-predict examples/kernels/dma_streams.py --kernel mixed_modes --input a=128x8192:bfloat16
trnprof dma-predict examples/kernels/dma_streams.py --kernel rows --input w=3088x2560:bfloat16
"""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def load(a):
    """One load of the whole tensor: [4, 4096] keeps one DMA engine busy, [128, 128] all sixteen."""
    tile = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=a)


@nki.jit
def mixed_modes(a, width=512):
    """Copy a [128, N] tensor through SBUF, tile by tile, each tile under another way to make descriptors."""
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    rows, columns = a.shape
    for group in range(columns // (4 * width)):
        start = group * 4 * width
        tile = nl.ndarray((rows, 4, width), dtype=a.dtype, buffer=nl.sbuf)
        # unknown: the compiler decides; none: rings built when the program is loaded; swdge: GpSimd makes them;
        # hwdge: the hardware does
        nisa.dma_copy(dst=tile[:, 0, :], src=a[:, nl.ds(start, width)])
        nisa.dma_copy(dst=tile[:, 1, :], src=a[:, nl.ds(start + width, width)], dge_mode=nisa.dge_mode.none)
        nisa.dma_copy(dst=tile[:, 2, :], src=a[:, nl.ds(start + 2 * width, width)], dge_mode=nisa.dge_mode.swdge)
        nisa.dma_copy(dst=tile[:, 3, :], src=a[:, nl.ds(start + 3 * width, width)], dge_mode=nisa.dge_mode.hwdge)
        nisa.dma_copy(dst=out[:, nl.ds(start, width)], src=tile[:, 0, :])
        nisa.dma_copy(dst=out[:, nl.ds(start + width, width)], src=tile[:, 1, :], dge_mode=nisa.dge_mode.none)
        nisa.dma_copy(dst=out[:, nl.ds(start + 2 * width, width)], src=tile[:, 2, :], dge_mode=nisa.dge_mode.swdge)
        nisa.dma_copy(dst=out[:, nl.ds(start + 3 * width, width)], src=tile[:, 3, :], dge_mode=nisa.dge_mode.hwdge)
    return out


@nki.jit
def rows(w):
    """Load a matrix in tiles of 128 rows; the last one is as high as what is left."""
    height, columns = w.shape
    for start in range(0, height, 128):
        tile_rows = min(128, height - start)
        tile = nl.ndarray((128, columns), dtype=w.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile[0:tile_rows], src=w[start : start + tile_rows])


@nki.jit
def combine(a, b=None, c=None, d=None, width=1024):
    """Stream one to four [rows, columns] tensors through SBUF and store one result of their shape.

    What silu (one tensor), rope (two) and adamw (four) move: the arithmetic in between costs no HBM traffic.
    """
    operands = [operand for operand in (a, b, c, d) if operand is not None]
    height, columns = a.shape
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    for start in nl.affine_range((height + 127) // 128):
        tile_rows = min(128, height - start * 128)
        for column in nl.affine_range(columns // width):
            total = nl.ndarray((128, width), dtype=a.dtype, buffer=nl.sbuf)
            nisa.memset(dst=total, value=0)
            for operand in operands:
                tile = nl.ndarray((128, width), dtype=a.dtype, buffer=nl.sbuf)
                here = operand[nl.ds(start * 128, tile_rows), nl.ds(column * width, width)]
                nisa.dma_copy(dst=tile[0:tile_rows], src=here)
                nisa.tensor_tensor(dst=total[0:tile_rows], data1=total[0:tile_rows], data2=tile[0:tile_rows], op=nl.add)
            nisa.dma_copy(dst=out[nl.ds(start * 128, tile_rows), nl.ds(column * width, width)], src=total[0:tile_rows])
    return out

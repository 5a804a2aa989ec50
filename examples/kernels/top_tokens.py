"""The k largest of each row and their places, eight at a time: what a sampler does with logits.

    trnprof nki run examples/kernels/top_tokens.py --input logits=128x4096:float32 \\
        --reference examples/kernels/references.py:top_tokens
"""

import nki
import nki.isa as nisa
import nki.language as nl

LEAST = -3.0e38  # takes the place of what has been found


@nki.jit
def top_tokens(logits, k: int = 16):
    """Values [rows, k], largest first, and places [rows, k] uint32."""
    rows, columns = logits.shape
    assert k % 8 == 0, f"k = {k} is no multiple of 8, which is what one instruction finds"
    left = nl.ndarray((rows, columns), dtype=logits.dtype, buffer=nl.sbuf)
    values = nl.ndarray((rows, k), dtype=logits.dtype, buffer=nl.sbuf)
    places = nl.ndarray((rows, k), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.dma_copy(dst=left, src=logits)
    for first in range(0, k, 8):
        eight = values[:, nl.ds(first, 8)]
        nisa.max8(dst=eight, src=left)
        nisa.nc_find_index8(dst=places[:, nl.ds(first, 8)], data=left, vals=eight)
        nisa.nc_match_replace8(dst=left, data=left, vals=eight, imm=LEAST)
    out_values = nl.ndarray((rows, k), dtype=logits.dtype, buffer=nl.shared_hbm)
    out_places = nl.ndarray((rows, k), dtype=nl.uint32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out_values, src=values)
    nisa.dma_copy(dst=out_places, src=places)
    return out_values, out_places

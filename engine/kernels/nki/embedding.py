"""Rows of an embedding table by token, gathered by one DMA for up to 128 tokens.

    trnprof nki model engine/kernels/nki/embedding.py --kernel embed --input table=151936x2048:bfloat16 \\
        --input tokens=8x1:int32
"""

import nki
import nki.isa as nisa
import nki.language as nl

P = 128


@nki.jit
def embed(table, tokens):
    """table [vocabulary, D], tokens [rows, 1] int32: table[tokens], [rows, D]."""
    rows = tokens.shape[0]
    size = table.shape[1]
    out = nl.ndarray((rows, size), dtype=table.dtype, buffer=nl.shared_hbm)
    for first in range(0, rows, P):
        count = min(P, rows - first)
        numbers = nl.ndarray((count, 1), dtype=tokens.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=numbers, src=tokens[first : first + count, :])
        found = nl.ndarray((count, size), dtype=table.dtype, buffer=nl.sbuf)
        source = table.ap(pattern=[[size, count], [1, size]], offset=0, vector_offset=numbers, indirect_dim=0)
        nisa.dma_copy(dst=found, src=source)
        nisa.dma_copy(dst=out[first : first + count, :], src=found)
    return out

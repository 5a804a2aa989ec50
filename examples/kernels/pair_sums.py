"""Row sums of a matrix, split over the two programs of a logical core and over ranks.

    trnprof nki run examples/kernels/pair_sums.py --kernel pair_sums --lnc 2 \\
        --input x=128x1024:float32 --reference examples/kernels/references.py:row_sums
    trnprof nki run examples/kernels/pair_sums.py --kernel rank_sums --ranks 4 --arg rank_count=4 \\
        --input x=128x1024:float32 --reference examples/kernels/references.py:rank_sums
"""

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl


@nki.jit
def pair_sums(x):
    """Each program sums its half of the columns, sends the sums to the other one and stores half of the rows."""
    rows, columns = x.shape
    me = nl.program_id(0)
    half = columns // 2
    out = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.shared_hbm)
    sums = sums_of(x[:, nl.ds(me * half, half)], rows, half)
    others = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.sendrecv(src=sums, dst=others, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=0)
    nisa.tensor_tensor(dst=sums, data1=sums, data2=others, op=nl.add)
    nisa.dma_copy(dst=out[nl.ds(me * (rows // 2), rows // 2), :], src=sums[nl.ds(me * (rows // 2), rows // 2), :])
    return out


@nki.jit
def rank_sums(x, rank_count):
    """Row sums of x added over ranks that hold different columns."""
    rows, columns = x.shape
    mine = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.shared_hbm)
    out = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=mine, src=sums_of(x, rows, columns))
    nisa.core_barrier(mine, (0,))
    group = ncc.ReplicaGroup([list(range(rank_count))])
    ncc.all_reduce(srcs=[mine], dsts=[out], replica_group=group, op=nl.add)
    return out


def sums_of(matrix, rows, columns):
    """[rows, columns] in HBM to [rows, 1] in SBUF."""
    tile = nl.ndarray((rows, columns), dtype=matrix.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=matrix)
    sums = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=sums, op=nl.add, data=tile, axis=1)
    return sums

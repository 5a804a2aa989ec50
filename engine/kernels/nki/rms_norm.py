"""RMSNorm, plain and with a gate: rows in the partitions, one pass over each.

    trnprof nki model engine/kernels/nki/rms_norm.py --kernel rms_norm --input x=8x4096:bfloat16 \\
        --input weight=4096:bfloat16 --arg eps=1e-6

Sums are float32 whatever the activations are. The weight is read once and broadcast over the partitions by the tensor
engine (a product with a column of ones), since a DMA that reads one row for 128 partitions moves it 128 times.
"""

import nki
import nki.isa as nisa
import nki.language as nl

P = 128
BANK = 512  # float32 columns of a PSUM bank


@nki.jit
def rms_norm(x, weight, eps):
    """x [rows, D], weight [D]: x / sqrt(mean(x^2) + eps) * weight, [rows, D] of x's type."""
    rows, size = x.shape
    out = nl.ndarray((rows, size), dtype=x.dtype, buffer=nl.shared_hbm)
    weights = on_every_partition(weight, min(rows, P))
    for first in range(0, rows, P):
        count = min(P, rows - first)
        data = nl.ndarray((count, size), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=data, src=x[first : first + count, :])
        inverse = inverse_rms(data, size, eps)
        result = nl.ndarray((count, size), dtype=x.dtype, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(
            dst=result, data=data, op0=nl.multiply, operand0=inverse, op1=nl.multiply, operand1=weights[0:count, :]
        )
        nisa.dma_copy(dst=out[first : first + count, :], src=result)
    return out


@nki.jit
def gated_rms_norm(x, gate, weight, eps, sigmoid):
    """x [rows, V] float32, gate [rows, V], weight [V]: rms_norm(x) * act(gate), [rows, V] of the gate's type."""
    rows, size = x.shape
    out = nl.ndarray((rows, size), dtype=gate.dtype, buffer=nl.shared_hbm)
    weights = on_every_partition(weight, min(rows, P))
    for first in range(0, rows, P):
        count = min(P, rows - first)
        data = nl.ndarray((count, size), dtype=x.dtype, buffer=nl.sbuf)
        gates = nl.ndarray((count, size), dtype=gate.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=data, src=x[first : first + count, :])
        nisa.dma_copy(dst=gates, src=gate[first : first + count, :])
        inverse = inverse_rms(data, size, eps)
        active = nl.ndarray((count, size), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=active, op=nl.sigmoid if sigmoid else nl.silu, data=gates)
        normed = nl.ndarray((count, size), dtype=nl.float32, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(
            dst=normed, data=data, op0=nl.multiply, operand0=inverse, op1=nl.multiply, operand1=weights[0:count, :]
        )
        result = nl.ndarray((count, size), dtype=gate.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=result, data1=normed, data2=active, op=nl.multiply)
        nisa.dma_copy(dst=out[first : first + count, :], src=result)
    return out


def inverse_rms(data, size, eps):
    """1 / sqrt(mean(data^2) + eps) of each partition, [rows, 1] float32."""
    rows = data.shape[0]
    squares = nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf)
    total = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation_reduce(dst=squares, op=nl.square, data=data, reduce_op=nl.add, reduce_res=total)
    mean = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=mean, data=total, op0=nl.multiply, operand0=1.0 / size, op1=nl.add, operand1=eps)
    inverse = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=inverse, op=nl.rsqrt, data=mean)
    return inverse


def on_every_partition(vector, rows):
    """A vector of HBM [D] as [rows, D] float32 in SBUF."""
    size = vector.shape[0]
    row = nl.ndarray((1, size), dtype=vector.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=row, src=vector.reshape((1, size)))
    ones = nl.ndarray((1, rows), dtype=vector.dtype, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    wide = nl.ndarray((rows, size), dtype=nl.float32, buffer=nl.sbuf)
    for first in range(0, size, BANK):
        count = min(BANK, size - first)
        product = nl.ndarray((rows, count), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=product, stationary=ones, moving=row[:, first : first + count])
        nisa.tensor_copy(dst=wide[:, first : first + count], src=product)
    return wide

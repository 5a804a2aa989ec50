"""A selective state-space layer, y = sum over states of c * h with h[t] = exp(step * decay) * h[t - 1] + step * x * b[t].

    trnprof nki model examples/kernels/state_space.py --kernel states_inside \\
        --input step=256x512:float32 --input x=256x512:float32 --input decay=256x16:float32 \\
        --input b=16x512:float32 --input c=16x512:float32

Channels lie in the partitions, time runs along them; step, x and the result are [channels, time]. The two kernels differ in
the order of their loops: with the channels inside, step and x are loaded again for every state; with the states inside,
they are loaded once, and step * x is the same in every iteration. First-generation NKI (neuronxcc).
"""

import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl

P = 128  # partitions: channels that are worked on at a time


@nki.jit
def channels_inside(step, x, decay, b, c):
    """All channels for one state after the other; the sums of all channels stay in SBUF."""
    channels, time = step.shape
    out = nl.ndarray((channels, time), dtype=step.dtype, buffer=nl.shared_hbm)
    sums = nl.zeros((channels // P, nl.par_dim(P), time), dtype=nl.float32, buffer=nl.sbuf)
    for state in nl.affine_range(decay.shape[1]):
        for block in nl.affine_range(channels // P):
            rows = nl.ds(block * P, P)
            step_tile, x_tile = nl.load(step[rows, :]), nl.load(x[rows, :])
            sums[block] += one_state(step_tile, x_tile, decay, b, c, rows, state)
    for block in nl.affine_range(channels // P):
        nl.store(out[nl.ds(block * P, P), :], sums[block])
    return out


@nki.jit
def states_inside(step, x, decay, b, c):
    """All states for one block of channels after the other."""
    channels, time = step.shape
    out = nl.ndarray((channels, time), dtype=step.dtype, buffer=nl.shared_hbm)
    for block in nl.affine_range(channels // P):
        rows = nl.ds(block * P, P)
        step_tile, x_tile = nl.load(step[rows, :]), nl.load(x[rows, :])
        total = nl.zeros((nl.par_dim(P), time), dtype=nl.float32, buffer=nl.sbuf)
        for state in nl.affine_range(decay.shape[1]):
            total += one_state(step_tile, x_tile, decay, b, c, rows, state)
        nl.store(out[rows, :], total)
    return out


def one_state(step_tile, x_tile, decay, b, c, rows, state):
    """c * h of one state, [128, time]."""
    shape = step_tile.shape
    kept = nisa.activation(op=nl.exp, data=step_tile, scale=nl.load(decay[rows, nl.ds(state, 1)]))
    entering = nisa.tensor_tensor(step_tile, x_tile, op=nl.multiply)
    b_row = nl.load(b[nl.ds(state, 1), :]).broadcast_to(shape)
    added = nisa.tensor_tensor(entering, b_row, op=nl.multiply)
    history = nisa.tensor_tensor_scan(kept, added, initial=0, op0=nl.multiply, op1=nl.add)
    c_row = nl.load(c[nl.ds(state, 1), :]).broadcast_to(shape)
    return nisa.tensor_tensor(history, c_row, op=nl.multiply)

"""NumPy references of the example kernels, for `trnprof nki run --reference examples/kernels/references.py:NAME`.

A reference gets the kernel's arguments by name, tensors as float32 arrays, and returns what the kernel returns. With --ranks
each tensor has the ranks as a first axis.
"""

import numpy as np


def attention(q, k, v):
    """softmax(q.T @ k) @ v.T"""
    scores = q.T @ k
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True) @ v.T


def matmul(lhs_t, rhs):
    """lhs_t.T @ rhs"""
    return lhs_t.T @ rhs


def copy(a, width=512):
    """What mixed_modes does to a tensor: nothing."""
    return a


def row_sums(x):
    """[rows, 1]"""
    return x.sum(axis=1, keepdims=True)


def rank_sums(x, rank_count):
    """x is [ranks, rows, columns]: of several ranks the first axis is the rank; each has the sum over all of them."""
    return np.broadcast_to(x.sum(axis=(0, 2))[None, :, None], (rank_count, x.shape[1], 1))


def top_tokens(logits, k=16):
    """The k largest of each row, largest first, and their places."""
    places = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(logits, places, axis=1), places


def state_space(step, x, decay, b, c):
    """The recurrence of state_space.py, one point in time after the other."""
    history = np.zeros((*decay.shape,))
    result = np.empty_like(step)
    for now in range(step.shape[1]):
        kept = np.exp(step[:, now, None] * decay)
        history = kept * history + (step[:, now] * x[:, now])[:, None] * b[None, :, now]
        result[:, now] = history @ c[:, now]
    return result

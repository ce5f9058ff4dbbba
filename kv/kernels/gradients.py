"""Gradients made ready for an optimiser: clipped, and with weight decay added."""

from __future__ import annotations

import math

import numpy as np

from kv.kernels.jit import NONE, ask_rows, burst_of, kernel

FOUR = np.uint64(4)


@kernel
def prepare(data, dim, rows, grads, value, norm, scale, decay, out):
    """out = clipped g + decay w.

    data: float32 (capacity, stride), weights first; rows: int64 (n,); grads: float32 (n, dim), only
    read; value, norm, scale, decay: float32; out: float32 (n, dim), written. Each number is brought
    into ±value, each row to a norm of `norm` at most (either may be infinite), then scaled."""
    count, width = np.uint64(rows.size), np.uint64(dim)
    floats = width
    burst, asked = burst_of(floats), NONE
    for start in range(NONE, count, burst):
        stop = min(start + burst, count)
        asked = ask_rows(data, rows, asked, stop, floats)
        for i in range(start, stop):
            row = np.uint64(rows[i])
            factor = scale
            if norm < np.inf:
                length = np.float32(math.sqrt(clipped_square(grads[i], value)))
                if length > norm:
                    factor *= norm / length
            for j in range(width):
                g = min(max(grads[i, j], -value), value) * factor
                out[i, j] = g + decay * data[row, j]


@kernel
def clipped_square(grads, value):
    """The sum of squares of `grads`, float32 (n,), each brought into ±value; in float64.

    Four partial sums: one chain of additions would cost more than all the rest."""
    count = np.uint64(grads.size)
    whole = count - count % FOUR
    a = b = c = d = 0.0
    for j in range(np.uint64(0), whole, FOUR):
        a += np.float64(min(max(grads[j], -value), value)) ** 2
        b += np.float64(min(max(grads[j + np.uint64(1)], -value), value)) ** 2
        c += np.float64(min(max(grads[j + np.uint64(2)], -value), value)) ** 2
        d += np.float64(min(max(grads[j + np.uint64(3)], -value), value)) ** 2
    for j in range(whole, count):
        a += np.float64(min(max(grads[j], -value), value)) ** 2
    return (a + b) + (c + d)

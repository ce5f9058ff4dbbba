"""Gradients made ready for an optimiser: clipped, and with weight decay added; weights in bounds.

Clipping has an order: each number by value, each row by its norm, then all that is applied together
by its norm, as one scale for all rows.
"""

from __future__ import annotations

import math

import numpy as np

from kv.kernels.jit import NONE, ask_rows, bits_of, burst_of, kernel

FOUR = np.uint64(4)


@kernel
def prepare(data, dim, rows, grads, value, norm, scale, decay, out):
    """out = clipped g + decay w.

    data: float32 (capacity, stride), weights first; rows: int64 (n,); grads: float32 (n, dim), only
    read; value, norm, scale, decay: float32; out: float32 (n, dim), written. Each number is brought
    into ±value, each row to a norm of `norm` at most (either may be infinite), then scaled. Returns
    how many rows `value` or `norm` changed."""
    clipped = np.int64(0)
    count, width = np.uint64(rows.size), np.uint64(dim)
    floats = width
    burst, asked = burst_of(floats), NONE
    for start in range(NONE, count, burst):
        stop = min(start + burst, count)
        asked = ask_rows(data, rows, asked, stop, floats)
        for i in range(start, stop):
            row = np.uint64(rows[i])
            factor = scale
            is_long = False
            if norm < np.inf:
                length = np.float32(math.sqrt(clipped_square(grads[i], value)))
                is_long = length > norm
                if is_long:
                    factor *= norm / length
            if value == np.inf:
                for j in range(width):
                    out[i, j] = grads[i, j] * factor + decay * data[row, j]
                clipped += int(is_long)
                continue
            changed = np.uint32(is_long)
            for j in range(width):
                raw = grads[i, j]
                g = min(max(raw, -value), value)
                changed |= bits_of(raw) ^ bits_of(g)  # cheaper than to compare
                out[i, j] = g * factor + decay * data[row, j]
            clipped += int(changed != 0)
    return clipped


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


@kernel
def clipped_total(grads, value, norm):
    """The sum of squares of all rows after `prepare` has clipped each by `value` and `norm`.

    grads: float32 (n, dim), only read; value, norm: float32, either may be infinite. In float64."""
    total, most = 0.0, np.float64(norm) ** 2
    for i in range(np.uint64(grads.shape[0])):
        total += min(clipped_square(grads[i], value), most)
    return total


@kernel
def clip_rows(grads, value, norm, out):
    """out = grads, each number brought into ±value, each row to a norm of `norm` at most.

    grads: float32 (n, dim), only read; value, norm: float32, either may be infinite; out: float32
    (n, dim), written. Returns how many rows changed and the sum of squares of `out`, in float64."""
    clipped, total, width = np.int64(0), 0.0, np.uint64(grads.shape[1])
    for i in range(np.uint64(grads.shape[0])):
        square, factor = clipped_square(grads[i], value), np.float32(1)
        length = np.float32(math.sqrt(square))
        if length > norm:
            factor, square = norm / length, np.float64(norm) ** 2
        changed = np.uint32(length > norm)
        for j in range(width):
            raw = grads[i, j]
            g = min(max(raw, -value), value)
            changed |= bits_of(raw) ^ bits_of(g)
            out[i, j] = g * factor
        total += square
        clipped += int(changed != 0)
    return clipped, total


@kernel
def clamp(data, dim, rows, low, high):
    """Bring the weights of these rows into [low, high]; NaN stays.

    data: float32 (capacity, stride), weights first, written; rows: int64 (n,); low, high:
    float32."""
    for i in range(np.uint64(rows.size)):
        row = np.uint64(rows[i])
        for j in range(np.uint64(dim)):
            w = data[row, j]
            w = low if w < low else w
            data[row, j] = high if w > high else w

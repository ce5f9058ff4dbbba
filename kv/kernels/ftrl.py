"""FTRL-proximal, per coordinate, with L1 and L2.

Source: McMahan et al., Ad Click Prediction: a View from the Trenches, KDD 2013, algorithm 1.

Instead of z the state holds y = alpha z, so that the learning rate may change: y grows by alpha g
with the alpha of the moment, and without L1 and L2 a step is w -= alpha g / (beta + sqrt(n)), as in
Adagrad. With a constant alpha all this is the paper's algorithm.

A coordinate that has seen no gradient (n = 0) has no y of its own yet: it follows from the weight,
so that an initial or assigned weight is what FTRL goes on from. n never returns to 0.
"""

from __future__ import annotations

import numpy as np

from kv.kernels.jit import NONE, ask_rows, burst_of, kernel


@kernel
def ftrl(data, dim, rows, grads, lr, beta, near, ridge):
    """y += lr g - (sqrt(n + g g) - sqrt(n)) w;  n += g g;  w = 0 where |y| <= near, else
    -(y - sign(y) near) / (beta + sqrt(n) + ridge).

    data: float32 (capacity, stride), weights, y, n; rows: int64 (n,), no row twice; grads: float32
    (n, dim), only read; lr: float32, alpha times a schedule's factor; beta: float32; near, ridge:
    float32, alpha l1 and alpha l2."""
    count, width = np.uint64(rows.size), np.uint64(dim)
    second = width + width
    zero, one = np.float32(0), np.float32(1)
    floats = second + width
    burst, asked = burst_of(floats), NONE
    for start in range(NONE, count, burst):
        stop = min(start + burst, count)
        asked = ask_rows(data, rows, asked, stop, floats)
        for i in range(start, stop):
            row = np.uint64(rows[i])
            for j in range(width):  # without a branch: all is computed, then chosen
                g, w, y, before = (
                    grads[i, j],
                    data[row, j],
                    data[row, width + j],
                    data[row, second + j],
                )
                n = before + g * g
                root = np.sqrt(n)
                sign = (one if w > zero else zero) - (one if w < zero else zero)
                held = -(w * (beta + ridge)) - sign * near
                y = held if before == zero else y
                y += lr * g - (root - np.sqrt(before)) * w
                excess = max(y - near, zero) + min(y + near, zero)
                fresh = (zero - excess) / (beta + root + ridge)
                data[row, j] = w if n == zero else fresh
                data[row, width + j] = y
                data[row, second + j] = n

"""Stochastic gradient descent without state."""

from __future__ import annotations

import numpy as np

from kv.kernels.jit import NONE, ask_rows, burst_of, kernel


@kernel
def sgd(data, dim, rows, grads, lr):
    """w -= lr * g, in place.

    data: float32 (capacity, stride), weights first; rows: int64 (n,), no row twice; grads: float32
    (n, dim), only read; lr: float32."""
    count, width = np.uint64(rows.size), np.uint64(dim)
    floats = width
    burst, asked = burst_of(floats), NONE
    for start in range(NONE, count, burst):
        stop = min(start + burst, count)
        asked = ask_rows(data, rows, asked, stop, floats)
        for i in range(start, stop):
            row = np.uint64(rows[i])
            for j in range(width):
                data[row, j] -= lr * grads[i, j]

"""Stochastic gradient descent without state."""

from __future__ import annotations

import numpy as np

from kv.kernels.jit import ahead_of, kernel, prefetch_row


@kernel
def sgd(data, dim, rows, grads, lr):
    """w -= lr * g, in place.

    data: float32 (capacity, stride), weights first; rows: int64 (n,), no row twice; grads: float32
    (n, dim), only read; lr: float32."""
    count, width = np.uint64(rows.size), np.uint64(dim)
    ahead = ahead_of(width)
    for i in range(count):
        if i + ahead < count:
            prefetch_row(data, rows[i + ahead], width)
        row = np.uint64(rows[i])
        for j in range(width):
            data[row, j] -= lr * grads[i, j]

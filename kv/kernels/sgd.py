"""Stochastic gradient descent without state."""

from __future__ import annotations

import numpy as np

from kv.kernels.jit import kernel


@kernel
def sgd(data, dim, rows, grads, lr):
    """w -= lr * g, in place.

    data: float32 (capacity, stride), weights first; rows: int64 (n,), no row twice; grads: float32
    (n, dim), only read; lr: float32."""
    for i in range(np.uint64(rows.size)):
        row = np.uint64(rows[i])
        for j in range(np.uint64(dim)):
            data[row, j] -= lr * grads[i, j]

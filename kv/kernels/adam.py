"""Adam with a step count of each row, otherwise as torch.optim.Adam.

Source: Kingma, Ba, ICLR 2015, algorithm 1.

A row's moments and count move only when the row is touched ("lazy" Adam, as torch.optim.SparseAdam
is, except that there the count is the table's: a row seen late would start with corrections of a
run-in average).
"""

from __future__ import annotations

import math

import numpy as np

from kv.kernels.jit import kernel


@kernel
def adam(data, dim, rows, grads, lr, beta1, beta2, eps):
    """m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g g;  w -= lr m^ / (sqrt(v^) + eps).

    data: float32 (capacity, stride): weights, m, v, then one float that counts the row's steps (it
    stays at 2^24, where the corrections have long been 1); rows: int64 (n,), no row twice; grads:
    float32 (n, dim), only read; lr, beta1, beta2: float64; eps: float32."""
    width, second = np.uint64(dim), np.uint64(2) * np.uint64(dim)
    keep1, keep2 = np.float32(beta1), np.float32(beta2)
    take1, take2 = np.float32(1.0 - beta1), np.float32(1.0 - beta2)
    for i in range(np.uint64(rows.size)):
        row = np.uint64(rows[i])
        count = data[row, second + width] + np.float32(1)
        data[row, second + width] = count
        rate = np.float32(lr / (1.0 - beta1 ** np.float64(count)))
        scale = np.float32(1.0 / math.sqrt(1.0 - beta2 ** np.float64(count)))
        for j in range(width):
            g = grads[i, j]
            m = keep1 * data[row, width + j] + take1 * g
            v = keep2 * data[row, second + j] + take2 * (g * g)
            data[row, width + j] = m
            data[row, second + j] = v
            data[row, j] -= rate * m / (np.sqrt(v) * scale + eps)

"""Adam with a step count of each row, otherwise as torch.optim.Adam.

Source: Kingma, Ba, ICLR 2015, algorithm 1.

A row's moments and count move only when the row is touched ("lazy" Adam, as torch.optim.SparseAdam
is, except that there the count is the table's: a row seen late would start with corrections of a
run-in average).
"""

from __future__ import annotations

import math

import numpy as np

from kv.kernels.jit import AHEAD, kernel, prefetch_row


@kernel
def adam(data, dim, rows, grads, lr, beta1, beta2, eps):
    """m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g g;  w -= lr m^ / (sqrt(v^) + eps).

    data: float32 (capacity, stride): weights, m, v, then one float that counts the row's steps (it
    stays at 2^24, where the corrections have long been 1); rows: int64 (n,), no row twice; grads:
    float32 (n, dim), only read; lr, beta1, beta2: float64; eps: float32."""
    count, width = np.uint64(rows.size), np.uint64(dim)
    second = width + width
    keep1, keep2 = np.float32(beta1), np.float32(beta2)
    take1, take2 = np.float32(1.0 - beta1), np.float32(1.0 - beta2)
    log1, log2 = np.log(beta1), np.log(beta2)  # -inf of 0, whose powers come out as 0
    for i in range(count):
        if i + AHEAD < count:
            prefetch_row(data, rows[i + AHEAD], second + width)
        row = np.uint64(rows[i])
        steps = data[row, second + width] + np.float32(1)
        data[row, second + width] = steps
        # beta ** steps as an exponential: half the time of a power
        rate = np.float32(lr / (1.0 - math.exp(np.float64(steps) * log1)))
        scale = np.float32(1.0 / math.sqrt(1.0 - math.exp(np.float64(steps) * log2)))
        for j in range(width):
            g = grads[i, j]
            m = keep1 * data[row, width + j] + take1 * g
            v = keep2 * data[row, second + j] + take2 * (g * g)
            data[row, width + j] = m
            data[row, second + j] = v
            data[row, j] -= rate * m / (np.sqrt(v) * scale + eps)

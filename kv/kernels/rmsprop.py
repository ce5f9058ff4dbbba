"""RMSprop, with and without momentum, as torch.optim.RMSprop.

Source: Hinton, Srivastava, Swersky, Neural Networks for Machine Learning, 2012, lecture 6e.
"""

from __future__ import annotations

import numpy as np

from kv.kernels.jit import NONE, ask_rows, burst_of, kernel


@kernel
def rmsprop(data, dim, rows, grads, lr, rho, eps):
    """v = rho v + (1 - rho) g g;  w -= lr g / (sqrt(v) + eps).

    data: float32 (capacity, stride), weights then v; rows: int64 (n,), no row twice; grads: float32
    (n, dim), only read; lr, eps: float32; rho: float64."""
    count, width = np.uint64(rows.size), np.uint64(dim)
    keep, take = np.float32(rho), np.float32(1.0 - rho)
    floats = width + width
    burst, asked = burst_of(floats), NONE
    for start in range(NONE, count, burst):
        stop = min(start + burst, count)
        asked = ask_rows(data, rows, asked, stop, floats)
        for i in range(start, stop):
            row = np.uint64(rows[i])
            for j in range(width):
                g = grads[i, j]
                v = keep * data[row, width + j] + take * (g * g)
                data[row, width + j] = v
                data[row, j] -= lr * g / (np.sqrt(v) + eps)


@kernel
def rmsprop_momentum(data, dim, rows, grads, lr, rho, eps, mu):
    """v = rho v + (1 - rho) g g;  b = mu b + g / (sqrt(v) + eps);  w -= lr b.

    data: weights, v, b; mu: float32; other arguments as for `rmsprop`."""
    count, width = np.uint64(rows.size), np.uint64(dim)
    second = width + width
    keep, take = np.float32(rho), np.float32(1.0 - rho)
    floats = second + width
    burst, asked = burst_of(floats), NONE
    for start in range(NONE, count, burst):
        stop = min(start + burst, count)
        asked = ask_rows(data, rows, asked, stop, floats)
        for i in range(start, stop):
            row = np.uint64(rows[i])
            for j in range(width):
                g = grads[i, j]
                v = keep * data[row, width + j] + take * (g * g)
                b = mu * data[row, second + j] + g / (np.sqrt(v) + eps)
                data[row, width + j] = v
                data[row, second + j] = b
                data[row, j] -= lr * b

"""Adadelta, as torch.optim.Adadelta.

Source: Zeiler, ADADELTA: An Adaptive Learning Rate Method, 2012, algorithm 1.
"""

from __future__ import annotations

import numpy as np

from kv.kernels.jit import NONE, ask_rows, burst_of, kernel


@kernel
def adadelta(data, dim, rows, grads, lr, rho, eps):
    """v = rho v + (1 - rho) g g;  d = sqrt(u + eps) / sqrt(v + eps) g;  u = rho u + (1 - rho) d d;
    w -= lr d.

    data: float32 (capacity, stride), weights, v, u; rows: int64 (n,), no row twice; grads: float32
    (n, dim), only read; lr, eps: float32; rho: float64."""
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
                u = data[row, second + j]
                delta = np.sqrt((u + eps) / (v + eps)) * g
                data[row, width + j] = v
                data[row, second + j] = keep * u + take * (delta * delta)
                data[row, j] -= lr * delta

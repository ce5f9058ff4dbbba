"""Descent with momentum, classical and Nesterov's, in the form of torch.optim.SGD.

Source: Sutskever, Martens, Dahl, Hinton, ICML 2013; torch folds the learning rate in later, so that
changing it does not change the velocity. The velocity starts at zero, which makes the first step
equal to torch's, where it starts as the first gradient.
"""

from __future__ import annotations

import numpy as np

from kv.kernels.jit import NONE, ask_rows, burst_of, kernel


@kernel
def momentum(data, dim, rows, grads, lr, mu):
    """v = mu v + g;  w -= lr v.

    data: float32 (capacity, stride), weights then velocities; rows: int64 (n,), no row twice;
    grads: float32 (n, dim), only read; lr, mu: float32."""
    count, width = np.uint64(rows.size), np.uint64(dim)
    floats = width + width
    burst, asked = burst_of(floats), NONE
    for start in range(NONE, count, burst):
        stop = min(start + burst, count)
        asked = ask_rows(data, rows, asked, stop, floats)
        for i in range(start, stop):
            row = np.uint64(rows[i])
            for j in range(width):
                velocity = mu * data[row, width + j] + grads[i, j]
                data[row, width + j] = velocity
                data[row, j] -= lr * velocity


@kernel
def nesterov(data, dim, rows, grads, lr, mu):
    """v = mu v + g;  w -= lr (g + mu v).  Arguments as for `momentum`."""
    count, width = np.uint64(rows.size), np.uint64(dim)
    floats = width + width
    burst, asked = burst_of(floats), NONE
    for start in range(NONE, count, burst):
        stop = min(start + burst, count)
        asked = ask_rows(data, rows, asked, stop, floats)
        for i in range(start, stop):
            row = np.uint64(rows[i])
            for j in range(width):
                g = grads[i, j]
                velocity = mu * data[row, width + j] + g
                data[row, width + j] = velocity
                data[row, j] -= lr * (g + mu * velocity)

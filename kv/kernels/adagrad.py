"""Adagrad, the diagonal form, as torch.optim.Adagrad.

Source: Duchi, Hazan, Singer, JMLR 12 (2011), figure 1.
"""

from __future__ import annotations

import numpy as np

from kv.kernels.jit import NONE, ask_rows, burst_of, kernel


@kernel
def adagrad(data, dim, rows, grads, lr, eps):
    """s += g g;  w -= lr g / (sqrt(s) + eps).

    data: float32 (capacity, stride), weights then sums of squares; rows: int64 (n,), no row twice;
    grads: float32 (n, dim), only read; lr, eps: float32."""
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
                squares = data[row, width + j] + g * g
                data[row, width + j] = squares
                data[row, j] -= lr * g / (np.sqrt(squares) + eps)

"""Adagrad, the diagonal form, as torch.optim.Adagrad.

Source: Duchi, Hazan, Singer, JMLR 12 (2011), figure 1.
"""

from __future__ import annotations

import numpy as np

from kv.kernels.jit import ahead_of, kernel, prefetch_row


@kernel
def adagrad(data, dim, rows, grads, lr, eps):
    """s += g g;  w -= lr g / (sqrt(s) + eps).

    data: float32 (capacity, stride), weights then sums of squares; rows: int64 (n,), no row twice;
    grads: float32 (n, dim), only read; lr, eps: float32."""
    count, width = np.uint64(rows.size), np.uint64(dim)
    ahead = ahead_of(width + width)
    for i in range(count):
        if i + ahead < count:
            prefetch_row(data, rows[i + ahead], width + width)
        row = np.uint64(rows[i])
        for j in range(width):
            g = grads[i, j]
            squares = data[row, width + j] + g * g
            data[row, width + j] = squares
            data[row, j] -= lr * g / (np.sqrt(squares) + eps)

"""Row-wise Adagrad: one accumulator a row, which makes the state of an embedding next to nothing.

Source: FBGEMM, fbgemm_gpu/codegen/genscript/optimizers.py, `rowwise_adagrad`, which TorchRec's
RowWiseAdagrad stands for: the accumulator grows by the mean of the row's squared gradient.
"""

from __future__ import annotations

import numpy as np

from kv.kernels.jit import NONE, ask_rows, burst_of, kernel

FOUR = np.uint64(4)


@kernel
def rowwise_adagrad(data, dim, rows, grads, lr, eps):
    """s += mean(g g);  w -= lr g / (sqrt(s) + eps).

    data: float32 (capacity, stride), weights then one sum; rows: int64 (n,), no row twice; grads:
    float32 (n, dim), only read; lr, eps: float32.

    Four partial sums: one chain of additions would cost more than all the rest."""
    count, width = np.uint64(rows.size), np.uint64(dim)
    whole = width - width % FOUR
    floats = width + np.uint64(1)
    burst, asked = burst_of(floats), NONE
    for start in range(NONE, count, burst):
        stop = min(start + burst, count)
        asked = ask_rows(data, rows, asked, stop, floats)
        for i in range(start, stop):
            row = np.uint64(rows[i])
            a = b = c = d = np.float32(0)
            for j in range(np.uint64(0), whole, FOUR):
                a += grads[i, j] * grads[i, j]
                b += grads[i, j + np.uint64(1)] * grads[i, j + np.uint64(1)]
                c += grads[i, j + np.uint64(2)] * grads[i, j + np.uint64(2)]
                d += grads[i, j + np.uint64(3)] * grads[i, j + np.uint64(3)]
            for j in range(whole, width):
                a += grads[i, j] * grads[i, j]
            squares = data[row, width] + ((a + b) + (c + d)) / np.float32(width)
            data[row, width] = squares
            rate = lr / (np.sqrt(squares) + eps)
            for j in range(width):
                data[row, j] -= rate * grads[i, j]

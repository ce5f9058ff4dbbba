"""Adam with a step count of each row, otherwise as torch.optim.Adam and AdamW.

Source: Kingma, Ba, ICLR 2015, algorithm 1; Loshchilov, Hutter, Decoupled Weight Decay
Regularization, ICLR 2019, algorithm 2.

A row's moments and count move only when the row is touched ("lazy" Adam, as torch.optim.SparseAdam
is, except that there the count is the table's: a row seen late would start with corrections of a
run-in average).
"""

from __future__ import annotations

import math

import numpy as np

from kv.kernels.jit import NONE, ask_rows, burst_of, kernel


@kernel
def corrections(beta1, beta2, rates, scales):
    """Tables by step count of what `adam` needs, as far as they reach; place 0 is not used.

    beta1, beta2: float64; rates, scales: float32 (n,), written."""
    log1, log2 = np.log(beta1), np.log(beta2)  # -inf of 0, whose powers come out as 0
    rates[0] = scales[0] = np.float32(1)
    for steps in range(1, rates.size):
        rates[steps], scales[steps] = correction(np.float64(steps), log1, log2)


@kernel
def correction(steps, log1, log2):
    """1 / (1 - beta1^steps) and 1 / sqrt(1 - beta2^steps), float32.

    By way of the logarithms, an exponential being half the time of a power."""
    rate = np.float32(1.0 / (1.0 - math.exp(steps * log1)))
    return rate, np.float32(1.0 / math.sqrt(1.0 - math.exp(steps * log2)))


@kernel
def adam(data, dim, rows, grads, lr, decay, beta1, beta2, eps, rates, scales):
    """m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g g;
    w = (1 - lr decay) w - lr m^ / (sqrt(v^) + eps).

    data: float32 (capacity, stride): weights, m, v, then one float that counts the row's steps (it
    stays at 2^24, where the corrections have long been 1); rows: int64 (n,), no row twice; grads:
    float32 (n, dim), only read; lr, decay, eps: float32; beta1, beta2: float64; rates, scales:
    float32, as `corrections` made them: most rows of a sparse table are young, and at dim 8 two
    exponentials a row take three times as long as all the rest."""
    count, width = np.uint64(rows.size), np.uint64(dim)
    second = width + width
    keep = np.float32(1) - lr * decay
    keep1, keep2 = np.float32(beta1), np.float32(beta2)
    take1, take2 = np.float32(1.0 - beta1), np.float32(1.0 - beta2)
    log1, log2 = np.log(beta1), np.log(beta2)  # -inf of 0, whose powers come out as 0
    floats = second + width + np.uint64(1)
    burst, asked = burst_of(floats), NONE
    for start in range(NONE, count, burst):
        stop = min(start + burst, count)
        asked = ask_rows(data, rows, asked, stop, floats)
        for i in range(start, stop):
            row = np.uint64(rows[i])
            steps = data[row, second + width] + np.float32(1)
            data[row, second + width] = steps
            if steps < rates.size:
                rate, scale = rates[np.uint64(steps)], scales[np.uint64(steps)]
            else:
                rate, scale = correction(np.float64(steps), log1, log2)
            rate *= lr
            for j in range(width):
                g = grads[i, j]
                m = keep1 * data[row, width + j] + take1 * g
                v = keep2 * data[row, second + j] + take2 * (g * g)
                data[row, width + j] = m
                data[row, second + j] = v
                data[row, j] = keep * data[row, j] - rate * m / (np.sqrt(v) * scale + eps)

"""Gradients corrected for what others changed since their worker pulled."""

from __future__ import annotations

import numpy as np

from kv.kernels.jit import ahead_of, kernel, prefetch_row


@kernel
def compensate(data, dim, rows, grads, seen, lam, out):
    """out = g + lam g g (w - w_seen); g where w_seen is no number, not known, or the sum is none.

    data: float32 (capacity, stride), weights first; rows: int64 (n,); grads, seen: float32
    (n, dim), only read; lam: float32; out: float32 (n, dim), written.
    Source: Zheng et al., ICML 2017, equation 10."""
    count, width = np.uint64(rows.size), np.uint64(dim)
    ahead = ahead_of(width)
    for i in range(count):
        if i + ahead < count:
            prefetch_row(data, rows[i + ahead], width)
        row = np.uint64(rows[i])
        for j in range(width):
            g = grads[i, j]
            moved = data[row, j] - seen[i, j]
            if not np.isfinite(moved):
                moved = np.float32(0)
            corrected = g + lam * g * g * moved
            out[i, j] = corrected if np.isfinite(corrected) else g

"""What earlier messages did not say: added to gradients, and kept again.

Residuals are rows of float32; a row number -1 has none.
"""

from __future__ import annotations

import numpy as np

from kv.kernels.jit import ahead_of, kernel, prefetch_row

ZERO = np.uint64(0)
GREATEST = np.float32(3.4028235e38)


@kernel
def add_residuals(grads, data, rows, out):
    """out = gradients plus residuals, brought into the range of float32.

    grads: float32 (n, dim), only read; data: float32 (capacity, dim); rows: int64 (n,); out:
    float32 (n, dim), written."""
    count, width = np.uint64(rows.size), np.uint64(grads.shape[1])
    ahead = ahead_of(width)
    for i in range(count):
        if i + ahead < count:
            prefetch_row(data, max(rows[i + ahead], 0), width)
        if rows[i] < 0:
            for j in range(width):
                out[i, j] = grads[i, j]
        else:
            row = np.uint64(rows[i])
            for j in range(width):
                out[i, j] = min(max(grads[i, j] + data[row, j], -GREATEST), GREATEST)


@kernel
def put_residuals(data, rows, errors):
    """The residual of row rows[i] = errors[i]; the sum of magnitudes that have no row.

    data: float32 (capacity, dim), written; rows: int64 (n,); errors: float32 (n, dim)."""
    count, width = np.uint64(rows.size), np.uint64(errors.shape[1])
    lost = 0.0
    for i in range(count):
        if rows[i] < 0:
            for j in range(width):
                lost += abs(errors[i, j])
        else:
            row = np.uint64(rows[i])
            for j in range(width):
                data[row, j] = errors[i, j]
    return lost


@kernel
def return_residuals(data, rows, sent, grads):
    """Residuals as if gradients had not been sent as `sent`; magnitudes that have no row.

    data: float32 (capacity, dim), written: what was sent is added, the gradient taken away; rows:
    int64 (n,); sent, grads: float32 (n, dim), only read."""
    lost = 0.0
    for i in range(np.uint64(rows.size)):
        for j in range(np.uint64(sent.shape[1])):
            change = sent[i, j] - grads[i, j]
            if rows[i] < 0:
                lost += abs(change)
            else:
                row = np.uint64(rows[i])
                data[row, j] = min(max(data[row, j] + change, -GREATEST), GREATEST)
    return lost


@kernel
def row_squares(x, out):
    """The sum of squares of each row.  x: float32 (n, dim), only read; out: float64 (n,)."""
    for i in range(np.uint64(x.shape[0])):
        total = 0.0
        for j in range(np.uint64(x.shape[1])):
            total += np.float64(x[i, j]) ** 2
        out[i] = total


@kernel
def subtract_rows(data, rows, x):
    """x[i] -= row rows[i], where there is one.

    data: float32 (capacity, dim); rows: int64 (n,); x: float32 (n, dim), changed."""
    for i in range(np.uint64(rows.size)):
        if rows[i] >= 0:
            row = np.uint64(rows[i])
            for j in range(np.uint64(x.shape[1])):
                x[i, j] = min(max(x[i, j] - data[row, j], -GREATEST), GREATEST)


@kernel
def advance_rows(data, rows, changes):
    """Row rows[i] += changes[i], which becomes the row; where there is none it stays as it is.

    data: float32 (capacity, dim), written; rows: int64 (n,); changes: float32 (n, dim), written."""
    for i in range(np.uint64(rows.size)):
        if rows[i] >= 0:
            row = np.uint64(rows[i])
            for j in range(np.uint64(changes.shape[1])):
                value = min(max(data[row, j] + changes[i, j], -GREATEST), GREATEST)
                data[row, j] = value
                changes[i, j] = value

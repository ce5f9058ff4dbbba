"""One bit a float: on which side of zero it is; each side stands for the mean of its floats.

The means are of columns of a matrix, or of its rows. The error stays in the place of the input.

Source: Seide et al., 1-bit stochastic gradient descent and its application to data-parallel
distributed training of speech DNNs, INTERSPEECH 2014, section 3.2.
"""

from __future__ import annotations

import numpy as np

from kv.kernels.jit import kernel

ZERO, ONE, THREE, SEVEN = np.uint64(0), np.uint64(1), np.uint64(3), np.uint64(7)
BELOW, ABOVE = 0, 1  # rows of `means`


@kernel
def column_means(x, sums, counts, means):
    """The mean of the negative floats of each column, and of the others; 0 where there are none.

    x: float32 (n, dim), only read; sums: float64 (2, dim), counts: int64 (2, dim), for the
    kernel's use; means: float32 (2, dim), written."""
    count, width = np.uint64(x.shape[0]), np.uint64(x.shape[1])
    sums[:] = 0.0
    counts[:] = 0
    for i in range(count):
        for j in range(width):
            value = x[i, j]
            is_above = value >= 0
            sums[ABOVE, j] += value if is_above else 0.0
            sums[BELOW, j] += 0.0 if is_above else value
            counts[ABOVE, j] += is_above
    for j in range(width):
        counts[BELOW, j] = count - counts[ABOVE, j]
        means[ABOVE, j] = sums[ABOVE, j] / max(counts[ABOVE, j], 1)
        means[BELOW, j] = sums[BELOW, j] / max(counts[BELOW, j], 1)


@kernel
def row_means(x, means):
    """The same of each row.  x: float32 (n, dim), only read; means: float32 (2, n), written."""
    width = np.uint64(x.shape[1])
    for i in range(np.uint64(x.shape[0])):
        above = below = 0.0
        count = 0
        for j in range(width):
            value = x[i, j]
            is_above = value >= 0
            above += value if is_above else 0.0
            below += 0.0 if is_above else value
            count += is_above
        means[ABOVE, i] = above / max(count, 1)
        means[BELOW, i] = below / max(np.int64(width) - count, 1)


@kernel
def to_signs(x, means, by_row, out):
    """The sides of the floats, eight to a byte, the first in the lowest bit.

    x: float32 (n, dim), left as the error; means: float32 (2, n) if `by_row`, else (2, dim); out:
    uint8 (ceil(n dim / 8),), zeros, written."""
    width = np.uint64(x.shape[1])
    for i in range(np.uint64(x.shape[0])):
        place = i * width
        for j in range(width):
            value, k = x[i, j], i if by_row else j
            is_above = value >= 0
            out[place >> THREE] |= np.uint8(is_above) << np.uint8(place & SEVEN)
            x[i, j] = value - (means[ABOVE, k] if is_above else means[BELOW, k])
            place += ONE


@kernel
def from_signs(signs, means, by_row, out):
    """What `to_signs` wrote, as floats.

    signs: uint8; means: as there; out: float32 (n, dim), written."""
    width = np.uint64(out.shape[1])
    for i in range(np.uint64(out.shape[0])):
        place = i * width
        for j in range(width):
            k = i if by_row else j
            is_above = (signs[place >> THREE] >> np.uint8(place & SEVEN)) & np.uint8(1)
            out[i, j] = means[ABOVE, k] if is_above else means[BELOW, k]
            place += ONE

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
def row_means(x, sums, counts, means):
    """The same of each row.

    x: float32 (n, dim), only read; sums: float64 (2, 16), counts: int64 (2, 16), for the kernel's
    use: partial sums, since one chain of additions would cost more than all the rest; means:
    float32 (2, n), written."""
    width, lanes = np.uint64(x.shape[1]), np.uint64(sums.shape[1])
    for i in range(np.uint64(x.shape[0])):
        sums[:] = 0.0
        counts[:] = 0
        for start in range(ZERO, width, lanes):
            for k in range(min(lanes, width - start)):
                value = x[i, start + k]
                is_above = value >= 0
                sums[ABOVE, k] += value if is_above else 0.0
                sums[BELOW, k] += 0.0 if is_above else value
                counts[ABOVE, k] += is_above
        count = counts[ABOVE].sum()
        means[ABOVE, i] = sums[ABOVE].sum() / max(count, 1)
        means[BELOW, i] = sums[BELOW].sum() / max(np.int64(width) - count, 1)


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
            side = np.uint64(value >= 0)
            out[place >> THREE] |= np.uint8(side << (place & SEVEN))
            x[i, j] = value - means[side, k]
            place += ONE


@kernel
def from_signs(signs, means, by_row, out):
    """What `to_signs` wrote, as the bits of floats: chosen by arithmetic, since no branch on random
    bits is foreseen.

    signs: uint8; means: uint32, the bits of those there; out: uint32 (n, dim), the bits of float32,
    written."""
    width = np.uint64(out.shape[1])
    for i in range(np.uint64(out.shape[0])):
        start, row = i * width, out[i]
        for j in range(width):
            place, k = start + j, i if by_row else j
            side = np.uint32(signs[place >> THREE] >> np.uint8(place & SEVEN)) & np.uint32(1)
            below, above = means[BELOW, k], means[ABOVE, k]
            row[j] = np.uint32(below ^ ((below ^ above) & np.uint32(np.uint32(0) - side)))

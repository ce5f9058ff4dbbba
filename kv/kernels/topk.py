"""The largest magnitudes of many floats: which they are, taken out, and put back.

Positions travel as a bit for each float, or as gaps: the floats left out before the next one that
is taken, in a byte; 255 means that many are left out and none is taken. Few of many are shorter so.

Source of the scheme: Aji and Heafield, Sparse communication for distributed gradient descent,
EMNLP 2017; here the threshold is exact, found by counting (a radix select).
"""

from __future__ import annotations

import numpy as np

from kv.kernels.jit import bits_of, kernel

ZERO, ONE, THREE, SEVEN = np.uint64(0), np.uint64(1), np.uint64(3), np.uint64(7)
MAGNITUDE = np.uint32(0x7FFFFFFF)
BINS = 2048
FIRST, SECOND, LOW = np.uint32(20), np.uint32(10), np.uint32(0x3FF)
LONG = np.uint8(255)  # a gap that goes on


@kernel
def threshold_of(x, count, bins):
    """The bits T of the count-th largest magnitude, and how many equal to it belong to those.

    Those belonging are the first; of zeros none does. x: float32 (n,), only read, 0 < count <= n;
    bins: int64 (2048,), for the kernel's use. Returns (T, equals, taken), taken <= count."""
    left = count
    bins[:] = 0
    for i in range(np.uint64(x.size)):
        bins[(bits_of(x[i]) & MAGNITUDE) >> FIRST] += 1
    high = BINS - 1
    while bins[high] < left:
        left -= bins[high]
        high -= 1
    bins[:] = 0
    for i in range(np.uint64(x.size)):
        magnitude = np.uint32(bits_of(x[i]) & MAGNITUDE)
        if magnitude >> FIRST == np.uint32(high):
            bins[(magnitude >> SECOND) & LOW] += 1
    middle = 1023
    while bins[middle] < left:
        left -= bins[middle]
        middle -= 1
    prefix = (np.uint32(high) << np.uint32(10)) | np.uint32(middle)
    bins[:] = 0
    for i in range(np.uint64(x.size)):
        magnitude = np.uint32(bits_of(x[i]) & MAGNITUDE)
        if magnitude >> SECOND == prefix:
            bins[magnitude & LOW] += 1
    low = 1023
    while bins[low] < left:
        left -= bins[low]
        low -= 1
    threshold = np.uint32((prefix << SECOND) | np.uint32(low))
    if threshold == 0:
        return threshold, np.int64(0), np.int64(count - left)
    return threshold, np.int64(left), np.int64(count)


@kernel
def take_largest(x, threshold, equals, mask, out):
    """The floats above the threshold and the first `equals` of those equal to it, and which.

    x: float32 (n,), only read; mask: uint8 (ceil(n / 8),), zeros, written, the first float in the
    lowest bit; out: float32, of `taken`, written. Returns the bytes of the positions as gaps."""
    place, gap, nbytes = ZERO, 0, 0
    for i in range(np.uint64(x.size)):
        magnitude = np.uint32(bits_of(x[i]) & MAGNITUDE)
        if magnitude > threshold or (magnitude == threshold and equals > 0):
            equals -= magnitude == threshold
            mask[i >> THREE] |= np.uint8(1) << np.uint8(i & SEVEN)
            out[place] = x[i]
            place += ONE
            nbytes += 1 + gap // 255
            gap = 0
        else:
            gap += 1
    return nbytes


@kernel
def to_gaps(mask, size, out):
    """A mask of `size` floats as gaps.  mask, out: uint8; out is of the size that was returned."""
    place, gap = ZERO, 0
    for i in range(np.uint64(size)):
        if (mask[i >> THREE] >> np.uint8(i & SEVEN)) & np.uint8(1):
            while gap >= 255:
                out[place] = LONG
                place += ONE
                gap -= 255
            out[place] = np.uint8(gap)
            place += ONE
            gap = 0
        else:
            gap += 1


@kernel
def put_by_mask(mask, values, x):
    """x[i] = the next of `values` wherever the mask has a bit; False if it has too many or few.

    mask: uint8 (ceil(n / 8),), from anywhere; values: float32 (m,), only read; x: float32 (n,),
    written."""
    place, count = ZERO, np.uint64(values.size)
    for i in range(np.uint64(x.size)):
        if (mask[i >> THREE] >> np.uint8(i & SEVEN)) & np.uint8(1):
            if place == count:
                return False
            x[i] = values[place]
            place += ONE
    return place == count


@kernel
def put_by_gaps(gaps, values, x):
    """The same by gaps, uint8, from anywhere; False if they do not lead to so many places."""
    place, count, at, size = ZERO, np.uint64(values.size), ZERO, np.uint64(x.size)
    for k in range(np.uint64(gaps.size)):
        at += np.uint64(gaps[k])
        if gaps[k] == LONG:
            if at >= size:
                return False
            continue
        if place == count or at >= size:
            return False
        x[at] = values[place]
        place += ONE
        at += ONE
    return place == count and (gaps.size == 0 or gaps[gaps.size - 1] != LONG)

"""Increasing keys as differences of one to eight bytes; `kv.keylists.coding` has the format.

Reading trusts nothing: widths, sizes and sums that do not fit end it, and no byte beyond the given
arrays is touched.
"""

from __future__ import annotations

import numpy as np

from kv.kernels.jit import kernel

BLOCK = 64  # differences that share a width
HEAD = 16  # bytes of number and first key
ONE, EIGHT, BLOCK64 = np.uint64(1), np.uint64(8), np.uint64(BLOCK)


def blocks_of(count: int) -> int:
    """Blocks of the differences of `count` keys."""
    return max(0, -(-(count - 1) // BLOCK))


@kernel
def measure(keys, widths):
    """Bytes of a difference in each block; returns the bytes of all differences.

    keys: uint64 (n,), strictly increasing, n > 0; widths: uint8 (blocks,), written."""
    total = np.uint64(0)
    last = np.uint64(keys.size) - ONE
    for block in range(np.uint64(widths.size)):
        start = block * BLOCK64
        stop = min(start + BLOCK64, last)
        bits = np.uint64(0)
        for i in range(start, stop):
            bits |= keys[i + ONE] - keys[i] - ONE
        width = ONE
        while width < EIGHT and bits >> (EIGHT * width):
            width += ONE
        widths[block] = width
        total += width * (stop - start)
    return np.int64(total)


@kernel
def write(keys, widths, out):
    """The differences less one, each in its block's width.

    keys, widths: as for `measure`; out: uint8, of the size that it returned, written."""
    place = np.uint64(0)
    last = np.uint64(keys.size) - ONE
    for block in range(np.uint64(widths.size)):
        start = block * BLOCK64
        stop = min(start + BLOCK64, last)
        width = np.uint64(widths[block])
        if width == ONE:
            for i in range(start, stop):
                out[place + i - start] = keys[i + ONE] - keys[i] - ONE
        else:
            for i in range(start, stop):
                rest = keys[i + ONE] - keys[i] - ONE
                at = place + (i - start) * width
                for byte in range(width):
                    out[at + byte] = rest
                    rest >>= EIGHT
        place += width * (stop - start)


@kernel
def read(first, widths, coded, keys):
    """The keys from the first one and what `write` wrote; False if it is not that.

    first: uint64; widths: uint8 (blocks,), from anywhere; coded: uint8 (m,), from anywhere;
    keys: uint64 (n,), n > 0, written; widths has the blocks of n keys."""
    key, place = first, np.uint64(0)
    last, size = np.uint64(keys.size) - ONE, np.uint64(coded.size)
    keys[0] = key
    for block in range(np.uint64(widths.size)):
        start = block * BLOCK64
        stop = min(start + BLOCK64, last)
        width = np.uint64(widths[block])
        if width < ONE or width > EIGHT or width * (stop - start) > size - place:
            return False
        if width == ONE:
            before = key
            for i in range(start, stop):
                key += np.uint64(coded[place + i - start]) + ONE
                keys[i + ONE] = key
            if key < before:  # 64 steps of at most 256 pass the end of the range once
                return False
        else:
            for i in range(start, stop):
                at = place + (i - start) * width
                step = np.uint64(0)
                for byte in range(width):
                    step |= np.uint64(coded[at + byte]) << (EIGHT * byte)
                before = key
                key += step + ONE
                if key <= before:
                    return False
                keys[i + ONE] = key
        place += width * (stop - start)
    return place == size

"""What a worker does to values on their way: copied once, looked through in the same pass.

Values are handled as the bits of float32, so that one pass copies and finds what is not finite: a
sum of bits says whether there is any, and only then is it looked for.
"""

from __future__ import annotations

import numpy as np

from kv.kernels.jit import AHEAD, FARTHEST, LINE, kernel, prefetch

ONE = np.uint64(1)
CHECKED = np.uint64(512)  # floats that are copied, then looked at while they are at hand
EXPONENT = np.uint32(0x7F800000)  # all ones: an infinity or no number


@kernel
def copy_finite(source, target):
    """target = source; returns whether every number is finite.

    source: uint32 (n,), the bits of float32, only read; target: uint32 (n,), written."""
    found = np.uint32(0)
    for i in range(np.uint64(source.size)):
        bits = source[i]
        found |= np.uint32((bits & EXPONENT) == EXPONENT)
        target[i] = bits
    return found == 0


@kernel
def gather_pairs(keys, values, order, out_keys, out_values):
    """Keys and their rows in another order; returns whether every number is finite.

    keys: uint64 (n,), values: uint32 (n, dim), the bits of float32, both only read; order: int64
    (n,); out_keys: uint64 (n,), out_values: uint32 (n, dim), written."""
    count, dim = np.uint64(order.size), np.uint64(values.shape[1])
    found, flat = np.uint32(0), out_values.reshape(-1)
    block = max(ONE, CHECKED // dim)
    for start in range(np.uint64(0), count, block):
        stop = min(start + block, count)
        for i in range(start, stop):
            if i + AHEAD < count:
                ahead = np.uint64(order[i + AHEAD]) * dim
                for offset in range(np.uint64(0), min(dim, FARTHEST), LINE):
                    prefetch(values, ahead + offset)
            row = np.uint64(order[i])
            out_keys[i] = keys[row]
            for j in range(dim):
                out_values[i, j] = values[row, j]
        for i in range(start * dim, stop * dim):  # in one run over the rows: they are short
            found |= np.uint32((flat[i] & EXPONENT) == EXPONENT)
    return found == 0


@kernel
def pack_blocks(array, blocks, out):
    """Blocks of a flat array, zeros beyond its end; returns whether every number is finite.

    array: uint32 (n,), the bits of float32, only read; blocks: int64 (m,), numbers of blocks;
    out: uint32 (m, dim), written."""
    size, dim = np.uint64(array.size), np.uint64(out.shape[1])
    found = np.uint32(0)
    for i in range(np.uint64(blocks.size)):
        start = np.uint64(blocks[i]) * dim
        inside = min(dim, size - start)
        for j in range(inside):
            bits = array[start + j]
            found |= np.uint32((bits & EXPONENT) == EXPONENT)
            out[i, j] = bits
        for j in range(inside, dim):
            out[i, j] = 0
    return found == 0


@kernel
def unpack_blocks(values, blocks, array):
    """The blocks to their places in a flat array; what lies beyond its end is dropped.

    values: float32 (m, dim), only read; blocks: int64 (m,), numbers of blocks; array: float32 (n,),
    written."""
    size, dim = np.uint64(array.size), np.uint64(values.shape[1])
    for i in range(np.uint64(blocks.size)):
        start = np.uint64(blocks[i]) * dim
        for j in range(min(dim, size - start)):
            array[start + j] = values[i, j]


@kernel
def take_keys(keys, order, out):
    """out[i] = keys[order[i]].

    keys: uint64 (n,), only read; order: int64 (m,); out: uint64 (m,)."""
    for i in range(np.uint64(order.size)):
        out[i] = keys[np.uint64(order[i])]

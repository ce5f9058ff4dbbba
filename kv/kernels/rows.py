"""Rows of the arena: read, written, filled with initial values.

A row is float32 (stride,): the weights, then the optimiser's state, then padding.
"""

from __future__ import annotations

import math

import numpy as np

from kv.kernels.hash import mix64
from kv.kernels.jit import UNROLLED, ahead_of, kernel, prefetch_row

ONE = np.uint64(1)
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # the increment of splitmix64
CONSTANT, UNIFORM, NORMAL = 0, 1, 2  # recipes of kv.initializers


@kernel
def gather(data, rows, out):
    """out[i] = the first out.shape[1] floats of row rows[i].

    data: float32 (capacity, stride); rows: int64 (n,); out: float32 (n, width)."""
    count, width = np.uint64(rows.size), np.uint64(out.shape[1])
    ahead, asked = ahead_of(width), min(width, UNROLLED)
    for i in range(count):
        if i + ahead < count:
            prefetch_row(data, rows[i + ahead], asked)
        row = np.uint64(rows[i])
        for j in range(width):
            out[i, j] = data[row, j]


@kernel
def gather_or_zero(data, rows, out):
    """Like `gather`, and zeros where rows[i] is -1."""
    count, width = np.uint64(rows.size), np.uint64(out.shape[1])
    ahead = ahead_of(width)
    for i in range(count):
        if i + ahead < count:
            prefetch_row(data, max(rows[i + ahead], 0), width)
        if rows[i] < 0:
            out[i, :] = np.float32(0)
        else:
            row = np.uint64(rows[i])
            for j in range(width):
                out[i, j] = data[row, j]


@kernel
def expand(values, inverse, out):
    """out[i] = values[inverse[i]].

    values: float32 (m, dim), only read; inverse: int64 (n,); out: float32 (n, dim)."""
    for i in range(np.uint64(inverse.size)):
        source = np.uint64(inverse[i])
        for j in range(np.uint64(out.shape[1])):
            out[i, j] = values[source, j]


@kernel
def scatter(data, rows, values):
    """The first values.shape[1] floats of row rows[i] = values[i].

    data: float32 (capacity, stride), written; rows: int64 (n,); values: float32 (n, width)."""
    count, width = np.uint64(rows.size), np.uint64(values.shape[1])
    ahead = ahead_of(width)
    for i in range(count):
        if i + ahead < count:
            prefetch_row(data, rows[i + ahead], width)
        row = np.uint64(rows[i])
        for j in range(width):
            data[row, j] = values[i, j]


@kernel
def reset_state(data, rows, dim, value):
    """All that follows the weights in the rows = `value`."""
    for i in range(np.uint64(rows.size)):
        row = np.uint64(rows[i])
        for j in range(np.uint64(dim), np.uint64(data.shape[1])):
            data[row, j] = value


@kernel
def initialize(data, rows, keys, dim, recipe, a, b, seed):
    """The initial weights of `keys` into `rows`, each value from (seed, key, column) alone.

    data: float32 (capacity, stride), written; rows: int64 (n,); keys: uint64 (n,); recipe: int64,
    CONSTANT a, UNIFORM from a to b, or NORMAL of mean a and deviation b; seed: uint64.

    Column j takes output j of a splitmix64 stream whose start is a hash of seed and key. Uniform
    numbers have 24 bits. Normal ones are Box and Muller's (Ann. Math. Stat. 29, 1958) in float64:
    columns 2k and 2k + 1 are the cosine and the sine of the same two outputs, 2k and 2k + 1."""
    width = np.uint64(dim)
    for i in range(np.uint64(rows.size)):
        row = np.uint64(rows[i])
        start = mix64(mix64(keys[i] + GOLDEN) ^ seed) + GOLDEN
        if recipe == CONSTANT:
            for j in range(width):
                data[row, j] = np.float32(a)
        elif recipe == UNIFORM:
            for j in range(width):
                bits = mix64(start + j * GOLDEN) >> np.uint64(40)
                data[row, j] = np.float32(a + (b - a) * (np.float64(bits) * 2.0**-24))
        else:
            for j in range(np.uint64(0), width, np.uint64(2)):
                first = np.float64(mix64(start + j * GOLDEN) >> np.uint64(11))
                second = np.float64(mix64(start + (j + ONE) * GOLDEN) >> np.uint64(11))
                radius = b * math.sqrt(-2.0 * math.log((first + 1.0) * 2.0**-53))
                angle = 2.0 * math.pi * (second * 2.0**-53)
                data[row, j] = np.float32(a + radius * math.cos(angle))
                if j + ONE < width:
                    data[row, j + ONE] = np.float32(a + radius * math.sin(angle))

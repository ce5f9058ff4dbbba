"""Rows whose weights are float16: read, written, rounded.

A row is float32 (stride,): the weights, two to a float32, then the optimiser's state in float32,
then padding. Numba has no float16 on CPUs, so halves are uint16 and converted by their bits, as
IEEE 754 has it, with one difference: what is too large becomes the largest finite half, 65504,
instead of infinity, of which an optimiser would make NaN.

Stochastic rounding: a float between two halves becomes the upper one with a probability equal to
its distance from the lower one, so that updates much smaller than the gap between halves are right
on average, where rounding to nearest would lose them all.
Source: Gupta et al., Deep Learning with Limited Numerical Precision, ICML 2015, section 3.
"""

from __future__ import annotations

import numpy as np

from kv.kernels.hash import mix64
from kv.kernels.jit import (
    NONE,
    ahead_of,
    ask_rows,
    bits_of,
    burst_of,
    float_of,
    kernel,
    prefetch_row,
)

ONE = np.uint64(1)
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # the increment of splitmix64

STEP = np.uint32(0x9E3779B9)  # 2^32 over the golden ratio: far from one column to the next
SIGN, MAGNITUDE = np.uint32(0x8000), np.uint32(0x7FFFFFFF)
INFINITE = np.uint32(0x7F800000)  # float32
LEAST_NORMAL = np.uint32(0x38800000)  # 2^-14, the smallest normal half, in float32
REBIAS = np.uint32(0x38000000)  # (127 - 15) << 23, between the two exponents
HALF = np.uint32(0x3F000000)  # 0.5, whose unit in the last place is 2^-24: the smallest half
GREATEST = np.uint32(0x7BFF)  # 65504, the largest finite half
NAN = np.uint32(0x7E00)
DROPPED = np.uint32(13)  # bits of a float32's fraction that a half has not


@kernel
def widened(half):
    """The float32 of a half, given as uint32."""
    magnitude = half & np.uint32(0x7FFF)
    bits = magnitude << DROPPED
    tiny = np.float32(magnitude) * np.float32(2.0**-24)
    bits += REBIAS
    bits += REBIAS if magnitude >= np.uint32(0x7C00) else np.uint32(0)  # infinity and NaN
    bits = bits if magnitude >= np.uint32(0x0400) else bits_of(tiny)
    return float_of(bits | ((half & SIGN) << np.uint32(16)))


@kernel
def nearest(value):
    """The half nearest to a float32, ties to even, as uint32."""
    bits = bits_of(value)
    magnitude = bits & MAGNITUDE
    odd = (magnitude >> DROPPED) & np.uint32(1)
    normal = np.uint32(magnitude + np.uint32(0xFFF) + odd - REBIAS) >> DROPPED
    tiny = bits_of(float_of(magnitude) + np.float32(0.5)) - HALF  # rounded by the addition
    return finished(bits, normal if magnitude >= LEAST_NORMAL else tiny)


@kernel
def drawn(value, chance):
    """One of the two halves around a float32, the nearer the likelier, as uint32.

    chance: uint32, evenly spread; its top bits count."""
    bits = bits_of(value)
    magnitude = bits & MAGNITUDE
    normal = np.uint32(magnitude + (chance >> np.uint32(19)) - REBIAS) >> DROPPED
    least = magnitude if magnitude < LEAST_NORMAL else np.uint32(0)
    scaled = float_of(least) * np.float32(2.0**24)
    below = np.uint32(np.int32(scaled))
    rest = scaled - np.float32(np.int32(below))
    up = np.float32(np.int32(chance >> np.uint32(8))) * np.float32(2.0**-24) < rest
    tiny = below + (np.uint32(1) if up else np.uint32(0))
    return finished(bits, normal if magnitude >= LEAST_NORMAL else tiny)


@kernel
def finished(bits, half):
    """A rounded half with the sign of the float32 `bits`, finite, or NaN where that is."""
    magnitude = bits & MAGNITUDE
    half = half if half < GREATEST and magnitude < INFINITE else GREATEST
    half = half if magnitude <= INFINITE else NAN
    return half | ((bits >> np.uint32(16)) & SIGN)


@kernel
def mix32(value):
    """A bijection of uint32 in which each bit depends on all: the finaliser of MurmurHash3.

    Of 32 bits, so that a loop over columns becomes vector code; 64-bit products would not, which
    is what Numba takes two uint32 to unless told otherwise."""
    value = np.uint32(value ^ (value >> np.uint32(16)))
    value = np.uint32(value * np.uint32(0x85EBCA6B))
    value = np.uint32(value ^ (value >> np.uint32(13)))
    value = np.uint32(value * np.uint32(0xC2B2AE35))
    return np.uint32(value ^ (value >> np.uint32(16)))


@kernel
def gather_halves(data, rows, out):
    """out[i] = the weights of row rows[i].

    data: float32 (capacity, stride); rows: int64 (n,); out: float32 (n, dim)."""
    count, width = np.uint64(rows.size), np.uint64(out.shape[1])
    halves = data.view(np.uint16)
    ahead = ahead_of((width + ONE) >> ONE)
    for i in range(count):
        if i + ahead < count:
            prefetch_row(data, rows[i + ahead], (width + ONE) >> ONE)
        row = np.uint64(rows[i])
        for j in range(width):
            out[i, j] = widened(np.uint32(halves[row, j]))


@kernel
def gather_halves_or_zero(data, rows, out):
    """Like `gather_halves`, and zeros where rows[i] is -1."""
    halves = data.view(np.uint16)
    for i in range(np.uint64(rows.size)):
        if rows[i] < 0:
            out[i, :] = np.float32(0)
        else:
            row = np.uint64(rows[i])
            for j in range(np.uint64(out.shape[1])):
                out[i, j] = widened(np.uint32(halves[row, j]))


@kernel
def scatter_halves(data, rows, values):
    """The weights of row rows[i] = the halves nearest to values[i].

    data: float32 (capacity, stride), written; rows: int64 (n,); values: float32 (n, dim)."""
    halves = data.view(np.uint16)
    for i in range(np.uint64(rows.size)):
        row = np.uint64(rows[i])
        for j in range(np.uint64(values.shape[1])):
            halves[row, j] = np.uint16(nearest(values[i, j]))


@kernel
def take_rows(data, rows, dim, out):
    """Rows as an optimiser for float32 wants them: out[i] = weights and state of row rows[i].

    data: float32 (capacity, stride); rows: int64 (n,); out: float32 (n, dim + state)."""
    count, width = np.uint64(rows.size), np.uint64(dim)
    packed, state = (width + ONE) >> ONE, np.uint64(out.shape[1]) - width
    halves = data.view(np.uint16)
    floats = packed + state
    burst, asked = burst_of(floats), NONE
    for start in range(NONE, count, burst):
        stop = min(start + burst, count)
        asked = ask_rows(data, rows, asked, stop, floats)
        for i in range(start, stop):
            row = np.uint64(rows[i])
            for j in range(width):
                out[i, j] = widened(np.uint32(halves[row, j]))
            for j in range(state):
                out[i, width + j] = data[row, packed + j]


@kernel
def put_rows(data, rows, keys, dim, values, seed, clock):
    """What `take_rows` took, back: state as it is, weights rounded by chance.

    data: float32 (capacity, stride), written; rows: int64 (n,); keys: uint64 (n,); values: float32
    (n, dim + state); seed, clock: uint64. The chance of column j comes from (seed, key, clock, j)
    alone: a hash of the first three, to which j steps are added, mixed once more."""
    count, width = np.uint64(rows.size), np.uint64(dim)
    packed, state = (width + ONE) >> ONE, np.uint64(values.shape[1]) - width
    halves = data.view(np.uint16)
    salt = mix64(seed + (clock + ONE) * GOLDEN)
    for i in range(count):
        row = np.uint64(rows[i])
        start = np.uint32(mix64(mix64(keys[i] + GOLDEN) ^ salt) >> np.uint64(32))
        for j in range(width):
            chance = mix32(np.uint32(start + np.uint32(j) * STEP))
            halves[row, j] = np.uint16(drawn(values[i, j], chance))
        for j in range(state):
            data[row, packed + j] = values[i, width + j]

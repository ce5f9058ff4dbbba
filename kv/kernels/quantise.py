"""Floats in fewer bits, and what that loses left in their place.

Each kernel that writes codes overwrites its input `x` with the error, x less what the codes stand
for, so that a sender can keep it. Values are finite.
"""

from __future__ import annotations

import numpy as np

from kv.kernels.halves import DROPPED, HALF, LEAST_NORMAL, REBIAS, widened
from kv.kernels.jit import bits_of, float_of, kernel

ZERO, ONE = np.uint64(0), np.uint64(1)
SIGN, MAGNITUDE = np.uint32(0x80000000), np.uint32(0x7FFFFFFF)
KEPT = np.uint32(0xFFFFE000)  # bits of a float32 that a half has
UPPER = np.uint32(16)  # bits of a float32 that a bfloat16 has not
GREATEST_BFLOAT = np.uint32(0x7F7F)
ROUNDER = np.float32(12582912.0)  # 1.5 * 2^23: added and taken away it rounds, ties to even
STEPS = np.float32(127.0)
GREATEST = np.float32(3.4028235e38)  # rounding up must not lead beyond it


@kernel
def greatest_magnitude(x):
    """The bits of the largest magnitude in `x`, as uint32; 0 if it is empty.

    x: float32 (n,), only read."""
    greatest = np.uint32(0)
    for i in range(np.uint64(x.size)):
        greatest = max(greatest, np.uint32(bits_of(x[i]) & MAGNITUDE))
    return greatest


@kernel
def to_halves(x, scale, back, out):
    """out = the halves nearest to scale x.

    x: float32 (n,), left as the error; scale, back: float32, powers of two whose product is 1, so
    that scale x is below 65520, from where on halves are infinite; out: uint16 (n,), written."""
    for i in range(np.uint64(x.size)):
        bits = bits_of(x[i] * scale)
        sign = np.uint32(bits & SIGN)
        magnitude = np.uint32(bits & MAGNITUDE)
        odd = np.uint32((magnitude >> DROPPED) & np.uint32(1))
        normal = np.uint32(np.uint32(magnitude + np.uint32(0xFFF) + odd) & KEPT)
        tiny = float_of(magnitude) + np.float32(0.5)  # rounded by the addition
        is_normal = magnitude >= LEAST_NORMAL
        code = np.uint32(normal - REBIAS) >> DROPPED if is_normal else bits_of(tiny) - HALF
        rounded = normal if is_normal else bits_of(tiny - np.float32(0.5))
        out[i] = np.uint16(code | (sign >> UPPER))
        x[i] -= min(max(float_of(np.uint32(rounded | sign)) * back, -GREATEST), GREATEST)


@kernel
def from_halves(halves, back, out):
    """out = back times what the halves are.  halves: uint16 (n,); out: float32 (n,), written."""
    for i in range(np.uint64(halves.size)):
        out[i] = min(max(widened(np.uint32(halves[i])) * back, -GREATEST), GREATEST)


@kernel
def to_bfloats(x, out):
    """out = the bfloat16 nearest to x, ties to even, the greatest where that would be infinite.

    x: float32 (n,), left as the error; out: uint16 (n,), written."""
    for i in range(np.uint64(x.size)):
        bits = bits_of(x[i])
        magnitude = np.uint32(bits & MAGNITUDE)
        odd = np.uint32((magnitude >> UPPER) & np.uint32(1))
        code = np.uint32(magnitude + np.uint32(0x7FFF) + odd) >> UPPER
        code = min(code, GREATEST_BFLOAT) | ((bits >> UPPER) & np.uint32(0x8000))
        out[i] = np.uint16(code)
        x[i] -= float_of(np.uint32(code << UPPER))


@kernel
def from_bfloats(codes, out):
    """out = the floats whose upper halves are `codes`, uint16 (n,).  out: float32 (n,), written."""
    for i in range(np.uint64(codes.size)):
        out[i] = float_of(np.uint32(np.uint32(codes[i]) << UPPER))


@kernel
def to_bytes(x, width, scales, out):
    """Each run of `width` floats as whole multiples, -127 to 127, of a step of its own.

    x: float32 (n,), left as the error; scales: float32, one for each run, written: its greatest
    magnitude over 127; out: int8 (n,), written."""
    size, run = np.uint64(x.size), np.uint64(width)
    for group in range(np.uint64(scales.size)):
        start = group * run
        stop = min(start + run, size)
        greatest = np.float32(0)
        for i in range(start, stop):
            greatest = max(greatest, abs(x[i]))
        scale = greatest / STEPS
        scales[group] = scale
        divisor = scale if scale > 0 else np.float32(1)
        for i in range(start, stop):
            step = min(max(x[i] / divisor, -STEPS), STEPS)
            step = (step + ROUNDER) - ROUNDER
            step = step if scale > 0 else np.float32(0)
            out[i] = np.int8(step)
            x[i] -= min(max(step * scale, -GREATEST), GREATEST)


@kernel
def from_bytes(codes, width, scales, out):
    """What `to_bytes` wrote, as floats.

    codes: int8 (n,); scales: float32, one for each run; out: float32 (n,), written."""
    size, run = np.uint64(codes.size), np.uint64(width)
    for group in range(np.uint64(scales.size)):
        start = group * run
        scale = scales[group]
        for i in range(start, min(start + run, size)):
            out[i] = min(max(np.float32(codes[i]) * scale, -GREATEST), GREATEST)

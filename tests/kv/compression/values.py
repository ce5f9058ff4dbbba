"""What tests of compression share: floats of all sorts, and references in plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

DIMS = st.sampled_from([1, 2, 3, 7, 8, 16, 64, 257, 1024])
SEEDS = st.integers(0, 2**32 - 1)
KINDS = ("plain", "spread", "tiny", "ties", "zeros", "huge", "special")
TINY = np.float32(1.4e-45)  # the least denormal
GREATEST = np.finfo(np.float32).max


def floats(count: int, kind: str, seed: int) -> np.ndarray:
    """float32 (count,): of one size, of all sizes, denormal, repeating, zero, near the limit."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(count).astype(np.float32)
    if kind == "spread":
        x *= np.float32(2.0) ** rng.integers(-120, 120, count).astype(np.float32)
    elif kind == "tiny":
        x *= np.float32(1e-40)
    elif kind == "ties":
        x = rng.choice(np.array([-2, -1, 1, 2], np.float32), count)
    elif kind == "zeros":
        x *= (rng.random(count) < 0.2).astype(np.float32)
        x[rng.random(count) < 0.1] = np.float32(-0.0)
    elif kind == "huge":
        x = np.clip(x.astype(np.float64) * 2e38, -GREATEST, GREATEST).astype(np.float32)
    elif kind == "special":
        values = np.array([0, -0.0, TINY, -TINY, 1, GREATEST, -GREATEST, 2**-126], np.float32)
        x = rng.choice(values, count)
    return np.ascontiguousarray(x, np.float32)


def read_only(array: np.ndarray) -> np.ndarray:
    view: np.ndarray = array.view()
    view.flags.writeable = False
    return view


def bits(array: np.ndarray) -> np.ndarray:
    """For comparisons to the bit: −0 is not 0."""
    return np.ascontiguousarray(array, np.float32).view(np.uint32)


def halves_in_numpy(x: np.ndarray, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """Halves of x 2^shift, and what they stand for."""
    codes = np.ldexp(x, shift).astype(np.float16)
    return codes.view(np.uint16), np.ldexp(codes.astype(np.float32), -shift)


def bfloats_in_numpy(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The nearest float32 whose lower half is zero: by distances in float64, ties to even."""
    lower = bits(x) & np.uint32(0xFFFF0000)
    upper = lower + np.uint32(0x10000)
    exact, below = x.astype(np.float64), lower.view(np.float32).astype(np.float64)
    above = upper.view(np.float32).astype(np.float64)
    nearer = np.abs(above - exact) - np.abs(exact - below)
    is_up = (nearer < 0) | ((nearer == 0) & ((lower >> np.uint32(16)) % 2 == 1))
    is_up &= np.isfinite(above)
    code = np.where(is_up, upper, lower)
    return (code >> np.uint32(16)).astype(np.uint16), code.view(np.float32)


def bytes_in_numpy(x: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps, codes, and what they stand for."""
    starts = np.arange(0, x.size, width)
    scales = np.maximum.reduceat(np.abs(x), starts) / np.float32(127) if x.size else x
    step = np.repeat(scales, width)[: x.size]
    with np.errstate(divide="ignore", invalid="ignore"):
        codes = np.where(step > 0, np.rint(np.clip(x / step, -127, 127)), 0).astype(np.int8)
    with np.errstate(over="ignore"):
        values = np.clip(codes.astype(np.float32) * step, -GREATEST, GREATEST)
    return scales, codes, values


def means_in_numpy(x: np.ndarray, axis: int) -> np.ndarray:
    """Means of what is below zero and of what is not, along an axis; 0 of nothing."""
    wide, found = x.astype(np.float64), []
    for side in (x < 0, x >= 0):
        count = np.maximum(side.sum(axis=axis), 1)
        found.append(np.where(side, wide, 0).sum(axis=axis) / count)
    return np.array(found).astype(np.float32)


def largest_in_numpy(x: np.ndarray, count: int) -> np.ndarray:
    """Which are the `count` largest magnitudes: of equal ones the first, of zeros none."""
    order = np.argsort(-np.abs(x.astype(np.float64)), kind="stable")[:count]
    chosen = np.zeros(x.size, np.bool_)
    chosen[order] = True
    found: np.ndarray = chosen & (x != 0)
    return found


def gaps_in_numpy(chosen: np.ndarray) -> list[int]:
    """The positions as gaps."""
    found: list[int] = []
    last = -1
    for place in np.flatnonzero(chosen).tolist():
        gap = place - last - 1
        found += [255] * (gap // 255) + [gap % 255]
        last = place
    return found


def assert_same(found: Any, expected: Any) -> None:
    np.testing.assert_array_equal(bits(found), bits(expected))

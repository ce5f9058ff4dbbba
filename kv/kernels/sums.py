"""Gradient parts whose key lists differ made one: summed, weighted, or the longest of each key.

Always in the order of the parts, so that a result is the same to the bit wherever it is made.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kv.kernels.jit import ahead_of, frozen, kernel, prefetch_row
from kv.kernels.merge import add_rows, merge_keys

Part = tuple[NDArray[np.uint64], NDArray[np.float32]]
"""keys, uint64 (n,), strictly increasing, and grads, float32 (n, dim)."""


def sum_parts(parts: Sequence[Part]) -> Part:
    """The union of the parts' keys and for each key the sum over the parts that have it.

    Args:
        parts: one or more.
    Returns:
        keys, increasing, and sums; per key ((g0 + g1) + g2) + … in the order of `parts`, to the
        bit. A single part comes back as it is.
    """
    if len(parts) == 1:
        return parts[0]
    unique, places = _union(parts)
    first_keys, first = parts[0]
    done = 0
    if first_keys.size == unique.size:  # as with dense tables: nothing to merge into, so copy
        sums, done = first.copy(), 1
    else:
        sums = _empty_sums(unique, parts)
    for (_, grads), mine in zip(parts[done:], places[done:], strict=True):
        add_rows(sums, mine, frozen(grads))
    return unique, sums


def weigh_parts(parts: Sequence[Part], factors: Sequence[float]) -> Part:
    """Like `sum_parts`, each part multiplied with its factor: per key (f0 g0 + f1 g1) + …"""
    unique, places = _union(parts)
    sums = _empty_sums(unique, parts)
    for (_, grads), mine, factor in zip(parts, places, factors, strict=True):
        add_scaled_rows(sums, mine, frozen(grads), np.float32(factor))
    return unique, sums


def longest_parts(parts: Sequence[Part]) -> Part:
    """The union of the parts' keys and for each key its longest gradient (L2), of equals the first.

    A single part comes back as it is.
    """
    if len(parts) == 1:
        return parts[0]
    unique, places = _union(parts)
    longest = np.zeros((unique.size, parts[0][1].shape[1]), np.float32)
    squares = np.full(unique.size, -1.0)
    for (_, grads), mine in zip(parts, places, strict=True):
        keep_longest(longest, squares, mine, frozen(grads))
    return unique, longest


@kernel
def add_scaled_rows(sums, places, grads, factor):
    """sums[places[i]] += factor * grads[i], in the order of i; arguments as for `merge.add_rows`.

    factor: float32."""
    count, dim = np.uint64(places.size), np.uint64(grads.shape[1])
    ahead = ahead_of(dim)
    for i in range(count):
        if i + ahead < count:
            prefetch_row(sums, places[i + ahead], dim)
        place = np.uint64(places[i])
        for j in range(dim):
            sums[place, j] += factor * grads[i, j]


@kernel
def keep_longest(longest, squares, places, grads):
    """longest[places[i]] = grads[i] where that has the larger sum of squares.

    longest: float32 (m, dim), written; squares: float64 (m,), the sums of squares of `longest`, -1
    where nothing has come yet, written; places: int64 (n,); grads: float32 (n, dim), only read."""
    count, dim = np.uint64(places.size), np.uint64(grads.shape[1])
    ahead = ahead_of(dim)
    for i in range(count):
        if i + ahead < count:
            prefetch_row(longest, places[i + ahead], dim)
        place = np.uint64(places[i])
        total = 0.0
        for j in range(dim):
            total += np.float64(grads[i, j]) * np.float64(grads[i, j])
        if total > squares[place]:
            squares[place] = total
            for j in range(dim):
                longest[place, j] = grads[i, j]


def _union(parts: Sequence[Part]) -> tuple[NDArray[np.uint64], list[NDArray[np.int64]]]:
    """The keys of all parts, increasing, and for each part where its keys are among them."""
    keys = np.concatenate([keys for keys, _ in parts])
    unique, inverse = merge_keys(frozen(keys))
    places = np.arange(keys.size) if inverse is None else inverse
    return unique, np.split(places, np.cumsum([keys.size for keys, _ in parts])[:-1])


def _empty_sums(unique: NDArray[np.uint64], parts: Sequence[Part]) -> NDArray[np.float32]:
    """Sums of nothing: -0.0 is what adds to nothing."""
    return np.full((unique.size, parts[0][1].shape[1]), -0.0, np.float32)

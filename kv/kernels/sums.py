"""Sums of gradient parts whose key lists differ, in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kv.kernels.jit import frozen
from kv.kernels.merge import add_rows, merge_keys

Part = tuple[NDArray[np.uint64], NDArray[np.float32]]


def sum_parts(parts: Sequence[Part]) -> Part:
    """The union of the parts' keys and for each key the sum over the parts that have it.

    Args:
        parts: one or more (keys, grads): uint64 (n,) strictly increasing, float32 (n, dim).
    Returns:
        keys, increasing, and sums; per key ((g0 + g1) + g2) + … in the order of `parts`, to the
        bit. A single part comes back as it is.
    """
    if len(parts) == 1:
        return parts[0]
    keys = np.concatenate([part[0] for part in parts])
    unique, inverse = merge_keys(frozen(keys))
    places = np.arange(keys.size) if inverse is None else inverse
    first_keys, first = parts[0]
    start = 0
    if first_keys.size == unique.size:  # as with dense tables: nothing to merge into, so copy
        sums, start, parts = first.copy(), first_keys.size, parts[1:]
    else:
        sums = np.full((unique.size, first.shape[1]), -0.0, np.float32)
    for part_keys, grads in parts:
        add_rows(sums, places[start : start + part_keys.size], frozen(grads))
        start += part_keys.size
    return unique, sums

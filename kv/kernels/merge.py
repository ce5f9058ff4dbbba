"""A list of keys in any order -> increasing unique keys, and where each key is among them.

`merge_keys` is the plain function around the kernels; `kv.keylist` is what tables use. Gradients of
equal keys are added in their order of occurrence, so that a list has one sum, to the bit, wherever
it is merged.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kv.kernels.jit import kernel


def merge_keys(keys: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.int64] | None]:
    """The unique values of `keys`, strictly increasing, and where each key is among them.

    Args:
        keys: uint64, shape (n,), read-only (`jit.frozen`).
    Returns:
        unique: uint64, shape (m,); `keys` itself where they strictly increase already.
        inverse: int64, shape (n,), `unique[inverse] == keys`; None in that case.
    """
    if first_unsorted(keys) == keys.size:
        return keys, None
    order = np.argsort(keys)
    unique = np.empty(keys.size, np.uint64)
    inverse = np.empty(keys.size, np.int64)
    count = unique_of_sorted(keys, order, unique, inverse)
    return unique[:count], inverse


@kernel
def first_unsorted(keys):
    """The first position whose key is not above the one before it, or keys.size if all are."""
    for i in range(np.uint64(1), np.uint64(keys.size)):
        if keys[i] <= keys[i - np.uint64(1)]:
            return np.int64(i)
    return np.int64(keys.size)


@kernel
def unique_of_sorted(keys, order, unique, inverse):
    """From the order that sorts `keys`: their unique values and where each key is among them.

    keys: uint64 (n,), n > 0; order: int64 (n,); unique: uint64 (n,), written up to the returned
    number; inverse: int64 (n,)."""
    last = keys[np.uint64(order[0])]
    unique[0] = last
    place = np.uint64(0)
    for i in range(np.uint64(keys.size)):
        position = np.uint64(order[i])
        key = keys[position]
        if key != last:
            place += np.uint64(1)
            unique[place] = key
            last = key
        inverse[position] = place
    return place + np.uint64(1)


@kernel
def add_rows(sums, places, grads):
    """sums[places[i]] += grads[i], in the order of i.

    sums: float32 (m, dim), filled with -0.0 by the caller: the one start that adds to nothing, a
    sum of negative zeros included; places: int64 (n,); grads: float32 (n, dim)."""
    for i in range(np.uint64(places.size)):
        place = np.uint64(places[i])
        for j in range(np.uint64(grads.shape[1])):
            sums[place, j] += grads[i, j]


@kernel
def first_not_finite(values):
    """The first position of a NaN or infinity in `values`, or their number if there is none.

    values: uint32 (n,), the bits of float32. Whole blocks are tested without a branch."""
    exponent = np.uint32(0x7F800000)
    count, block = np.uint64(values.size), np.uint64(1024)
    for start in range(np.uint64(0), count, block):
        stop = min(start + block, count)
        found = np.uint32(0)
        for i in range(start, stop):
            found |= np.uint32((values[i] & exponent) == exponent)
        if found:
            for i in range(start, stop):
                if (values[i] & exponent) == exponent:
                    return np.int64(i)
    return np.int64(count)

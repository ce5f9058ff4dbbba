"""Loops over a batch's feature values: merging keys, averaging embeddings, spreading gradients.

A batch holds, for each row and feature, a *bag* of known feature values; `lengths[i, f]` says how
many and `starts[i]` where the first key of row i stands. Each kernel is one plain loop in a fixed
order, so that the same batch gives the same bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kv.kernels.jit import frozen, kernel


@kernel
def merge_keys(
    keys: NDArray[np.uint64],
    slots: NDArray[np.int32],
    unique: NDArray[np.uint64],
    count: int,
    codes: NDArray[np.int32],
) -> int:
    """Number the keys by first occurrence; returns how many different ones there are by now.

    Args:
        keys: uint64 (m,).
        slots: int32, size a power of two above the number of keys of all calls; -1 is free.
        unique: uint64; `unique[:count]` are the keys of former calls, new ones are appended.
        codes: int32 (m,), out: `unique[codes[k]] == keys[k]`.
    """
    mask = np.uint64(slots.size - 1)
    for k in range(keys.size):
        key = keys[k]
        mixed = key * np.uint64(0x9E3779B97F4A7C15)
        slot = (mixed ^ (mixed >> np.uint64(32))) & mask
        code = slots[slot]
        while code >= 0 and unique[code] != key:
            slot = (slot + np.uint64(1)) & mask
            code = slots[slot]
        if code < 0:
            code = np.int32(count)
            slots[slot] = code
            unique[count] = key
            count += 1
        codes[k] = code
    return count


@kernel
def mean_bags(
    values: NDArray[np.float32],
    codes: NDArray[np.int32],
    lengths: NDArray[np.uint16],
    out: NDArray[np.float32],
) -> None:
    """Average each bag's rows of `values` into its columns of `out`; an empty bag gives zeros.

    Args:
        values: float32 (u, dim), read-only.
        codes: int32 (m,), rows of `values`, bag by bag.
        lengths: uint16 (n, features), sum m.
        out: float32 (n, at least features * dim); the columns beyond are left alone.
    """
    dim = values.shape[1]
    k = 0
    for i in range(lengths.shape[0]):
        row = out[i]
        for f in range(lengths.shape[1]):
            bag = row[f * dim : (f + 1) * dim]
            size = lengths[i, f]
            if size == 0:
                bag[:] = np.float32(0)
                continue
            first = values[codes[k]]
            for d in range(dim):
                bag[d] = first[d]
            for j in range(k + 1, k + size):
                value = values[codes[j]]
                for d in range(dim):
                    bag[d] += value[d]
            if size > 1:
                for d in range(dim):
                    bag[d] /= np.float32(size)
            k += size


@kernel
def spread_gradients(
    grads: NDArray[np.float32],
    codes: NDArray[np.int32],
    lengths: NDArray[np.uint16],
    out: NDArray[np.float32],
) -> None:
    """The way back of `mean_bags`: add each bag's gradient, over its size, to its rows of `out`.

    Args:
        grads: float32 (n, at least features * dim), as `out` of `mean_bags`; only read.
        codes, lengths: as there.
        out: float32 (u, dim), added to in the order of rows, features, values.
    """
    dim = out.shape[1]
    k = 0
    for i in range(lengths.shape[0]):
        row = grads[i]
        for f in range(lengths.shape[1]):
            bag = row[f * dim : (f + 1) * dim]
            size = lengths[i, f]
            share = np.float32(size)
            for j in range(k, k + size):
                total = out[codes[j]]
                if size == 1:
                    for d in range(dim):
                        total[d] += bag[d]
                else:
                    for d in range(dim):
                        total[d] += bag[d] / share
            k += size


@kernel
def take_keys(
    keys: NDArray[np.uint64],
    starts: NDArray[np.int64],
    rows: NDArray[np.int64],
    out_starts: NDArray[np.int64],
    out: NDArray[np.uint64],
) -> None:
    """Copy the keys of `rows`, in that order.

    Args:
        keys: uint64 (m,); row i owns `keys[starts[i]:starts[i + 1]]`.
        out_starts: int64 (len(rows) + 1,), where each row's keys go in `out`.
    """
    for i in range(rows.size):
        source = starts[rows[i]]
        target = out_starts[i]
        for j in range(out_starts[i + 1] - target):
            out[target + j] = keys[source + j]


@kernel
def count_known(
    values: NDArray[np.uint64],
    offsets: NDArray[np.int32],
    lengths: NDArray[np.uint16],
    feature: int,
) -> int:
    """Fill `lengths[:, feature]` with how many values of each row are not 0; the longest count.

    Args:
        values: uint64 (m,), read-only, one feature's values row by row.
        offsets: int32 (n + 1,), read-only, where each row's values start.
    """
    longest = 0
    for i in range(lengths.shape[0]):
        known = 0
        for j in range(offsets[i], offsets[i + 1]):
            known += values[j] != 0
        lengths[i, feature] = known
        longest = max(longest, known)
    return longest


@kernel
def fill_known(
    values: NDArray[np.uint64],
    offsets: NDArray[np.int32],
    cursor: NDArray[np.int64],
    out: NDArray[np.uint64],
) -> None:
    """Write one feature's known values of each row to `out` at `cursor`, which moves on."""
    for i in range(cursor.size):
        place = cursor[i]
        for j in range(offsets[i], offsets[i + 1]):
            if values[j] != 0:
                out[place] = values[j]
                place += 1
        cursor[i] = place


def warm_up(dim: int) -> None:
    """Compile (or load) every kernel with the types of training, so that no step waits for it."""
    values = frozen(np.array([3, 0, 7], np.uint64))
    offsets = frozen(np.array([0, 3], np.int32))
    lengths, starts = np.zeros((1, 1), np.uint16), np.array([0, 2])
    keys, codes = np.empty(2, np.uint64), np.empty(2, np.int32)
    count_known(values, offsets, lengths, 0)
    fill_known(values, offsets, starts[:-1].copy(), keys)
    take_keys(keys, starts, np.array([0]), starts, keys.copy())
    merge_keys(keys, np.full(16, -1, np.int32), np.empty(2, np.uint64), 0, codes)
    rows, out = np.zeros((2, dim), np.float32), np.zeros((1, dim), np.float32)
    mean_bags(frozen(rows), codes, lengths, out)
    spread_gradients(out, codes, lengths, rows)

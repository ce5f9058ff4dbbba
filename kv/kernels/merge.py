"""A list of keys in any order -> increasing unique keys, and where each key is among them.

`merge_keys` is the plain function around the kernels; `kv.keylist` is what tables use. Gradients of
equal keys are added in their order of occurrence, so that a list has one sum, to the bit, wherever
it is merged.

How: NumPy sorts plain uint64 with vector instructions, three to five times as fast as it finds the
order that would sort them. So each key is freed of bits that all keys share and shifted up, and its
position put into the low bits: sorting these words sorts keys and positions at once, equal keys by
position. Keys that leave no room for the position lose their lowest bits; the few neighbours that
then compare equal are put right by insertion, and if they are many, the slow way is taken.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kv.kernels.jit import ahead_of, kernel, prefetch_row

ONE = np.uint64(1)


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
    words = np.empty(keys.size, np.uint64)
    unique = np.empty(keys.size, np.uint64)
    inverse = np.empty(keys.size, np.int64)
    bits = np.uint64((keys.size - 1).bit_length())
    is_cut = pack(keys, bits, words)
    words.sort()
    if is_cut and not settle(keys, bits, words):
        words[:] = np.argsort(keys, kind="stable")
    count = unique_of_sorted(keys, bits, words, unique, inverse)
    return unique[:count], inverse


@kernel
def first_unsorted(keys):
    """The first position whose key is not above the one before it, or keys.size if all are."""
    for i in range(ONE, np.uint64(keys.size)):
        if keys[i] <= keys[i - ONE]:
            return np.int64(i)
    return np.int64(keys.size)


@kernel
def pack(keys, bits, words):
    """words[i] = the bits of keys[i] that tell it from the others, above; i in the low `bits` bits.

    keys: uint64 (n,), n > 1; bits: uint64, enough for n - 1, below 64; words: uint64 (n,).

    Bits in which all keys agree can go without changing their order: those above the highest bit
    that varies, and the longest run of others, such as between a field's number and a small id.
    Returns whether low bits had to go as well."""
    varying = np.uint64(0)
    for i in range(np.uint64(keys.size)):
        varying |= keys[i] ^ keys[0]
    start, stop = longest_gap(varying)
    low = (ONE << start) - ONE
    high = ((varying >> stop) << start) | (varying & low)  # of the keys without the gap
    room, lost = np.uint64(64) - bits, np.uint64(0)
    while (high >> lost) >> room:
        lost += ONE
    for i in range(np.uint64(keys.size)):
        key = keys[i]
        short = (((key >> stop) << start) | (key & low)) >> lost
        words[i] = (short << bits) | i  # bits above the highest that varies fall out at the top
    return lost > 0


@kernel
def longest_gap(varying):
    """Where the longest run of zeros below the highest one of `varying` starts and stops."""
    start, stop, begin = np.uint64(0), np.uint64(0), np.uint64(0)
    for bit in range(np.uint64(64)):
        if (varying >> bit) & ONE:
            if bit - begin > stop - start:
                start, stop = begin, np.uint64(bit)
            begin = bit + ONE
    return start, stop


@kernel
def settle(keys, bits, words):
    """Put right sorted words whose keys differ only in the bits that `pack` dropped.

    Insertion among neighbours of equal upper part, by key, then position. Returns False, with
    `words` in any order, when that takes more than some moves a key."""
    count = np.uint64(words.size)
    low = (ONE << bits) - ONE
    moves, limit = np.uint64(0), np.uint64(8) * count
    for i in range(ONE, count):
        word = words[i]
        key, place = keys[word & low], np.uint64(i)
        while (
            place > 0
            and words[place - ONE] >> bits == word >> bits
            and keys[words[place - ONE] & low] > key
        ):
            words[place] = words[place - ONE]
            place -= ONE
            moves += ONE
            if moves > limit:
                return False
        words[place] = word
    return True


@kernel
def unique_of_sorted(keys, bits, words, unique, inverse):
    """The unique values of `keys` and where each key is among them; returns how many there are.

    keys: uint64 (n,), n > 0; words: uint64 (n,), their low `bits` bits the order that sorts keys;
    unique: uint64 (n,), written up to the returned number; inverse: int64 (n,), written."""
    low = (ONE << bits) - ONE
    last = keys[words[0] & low]
    unique[0] = last
    place = np.uint64(0)
    for i in range(np.uint64(keys.size)):
        position = words[i] & low
        key = keys[position]
        if key != last:
            place += ONE
            unique[place] = key
            last = key
        inverse[position] = place
    return place + ONE


@kernel
def add_rows(sums, places, grads):
    """sums[places[i]] += grads[i], in the order of i.

    sums: float32 (m, dim), filled with -0.0 by the caller: the one start that adds to nothing, a
    sum of negative zeros included; places: int64 (n,); grads: float32 (n, dim), only read."""
    count, dim = np.uint64(places.size), np.uint64(grads.shape[1])
    ahead = ahead_of(dim)
    for i in range(count):
        if i + ahead < count:
            prefetch_row(sums, places[i + ahead], dim)
        place = np.uint64(places[i])
        for j in range(dim):
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

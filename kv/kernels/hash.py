"""An index from uint64 keys to row numbers: open addressing, linear probing, no sentinel key.

`entries` is uint64 (2 * capacity,), capacity a power of two: key and row + 1 of one entry side by
side, so that one cache line answers a probe; 0 in the second place is an empty entry, and every
key from 0 to 2^64 - 1 can be stored. An entry's home comes from `mix64(key ^ seed)` with a seed of
the table's own, *not* from the bits that name the key's slot: a server that owns few slots would
pile all its keys into a few places, and so could anyone who chooses keys.

Deleting moves later entries of the run back (Knuth, TAOCP 3, 6.4, algorithm R), so look-ups meet
no tombstones. The caller keeps at least one entry empty; without it a probe would not end.

Source of `mix64`: the finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
"""

from __future__ import annotations

import numpy as np

from kv.kernels.jit import AHEAD, kernel, prefetch

ONE = np.uint64(1)
TWO = np.uint64(2)
S30, S27, S31 = np.uint64(30), np.uint64(27), np.uint64(31)
M1, M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@kernel
def mix64(key):
    """A bijection of uint64 that spreads neighbouring keys over all bits."""
    key = (key ^ (key >> S30)) * M1
    key = (key ^ (key >> S27)) * M2
    return key ^ (key >> S31)


@kernel
def lookup(entries, seed, keys, rows):
    """Write the row of each key, -1 where it has none; returns how many have none.

    entries: uint64 (2 * capacity,); keys: uint64 (n,); rows: int64 (n,), written."""
    count = np.uint64(keys.size)
    mask = np.uint64(entries.size) // TWO - ONE
    absent = 0
    for i in range(count):
        if i + AHEAD < count:
            prefetch(entries, TWO * (mix64(keys[i + AHEAD] ^ seed) & mask))
        key = keys[i]
        place = mix64(key ^ seed) & mask
        while True:
            stored = entries[TWO * place + ONE]
            if stored == 0:
                rows[i] = -1
                absent += 1
                break
            if entries[TWO * place] == key:
                rows[i] = np.int64(stored - ONE)
                break
            place = (place + ONE) & mask
    return absent


@kernel
def insert_absent(entries, seed, keys, rows, fresh):
    """Give each key whose row is -1 the next row of `fresh`; returns how many were given.

    keys: uint64 (n,), no key twice; rows: int64 (n,) as `lookup` left it, completed in place;
    fresh: int64, at least as many as there are -1 in `rows`. There must be room for them."""
    count = np.uint64(keys.size)
    mask = np.uint64(entries.size) // TWO - ONE
    used = np.uint64(0)
    for i in range(count):
        if rows[i] >= 0:
            continue
        place = mix64(keys[i] ^ seed) & mask
        while entries[TWO * place + ONE] != 0:
            place = (place + ONE) & mask
        entries[TWO * place] = keys[i]
        entries[TWO * place + ONE] = np.uint64(fresh[used]) + ONE
        rows[i] = fresh[used]
        used += ONE
    return used


@kernel
def delete(entries, seed, keys, rows):
    """Remove keys; `rows` gets the row each had, -1 where it had none. Returns how many had one.

    entries: uint64 (2 * capacity,); keys: uint64 (n,); rows: int64 (n,), written."""
    mask = np.uint64(entries.size) // TWO - ONE
    removed = 0
    for i in range(np.uint64(keys.size)):
        rows[i] = -1
        place = mix64(keys[i] ^ seed) & mask
        while entries[TWO * place + ONE] != 0 and entries[TWO * place] != keys[i]:
            place = (place + ONE) & mask
        if entries[TWO * place + ONE] == 0:
            continue
        rows[i] = np.int64(entries[TWO * place + ONE] - ONE)
        removed += 1
        hole, probe = place, (place + ONE) & mask
        while entries[TWO * probe + ONE] != 0:
            home = mix64(entries[TWO * probe] ^ seed) & mask
            # cyclic distances: the entry may move back only if its home is not after the hole
            if ((probe - home) & mask) >= ((probe - hole) & mask):
                entries[TWO * hole] = entries[TWO * probe]
                entries[TWO * hole + ONE] = entries[TWO * probe + ONE]
                hole = probe
            probe = (probe + ONE) & mask
        entries[TWO * hole + ONE] = 0
    return removed


@kernel
def grow(old, seed, new):
    """Copy all entries of `old` into `new`, empty and larger.  Both uint64 (2 * capacity,)."""
    count = np.uint64(old.size) // TWO
    mask = np.uint64(new.size) // TWO - ONE
    for i in range(count):
        if old[TWO * i + ONE] == 0:
            continue
        place = mix64(old[TWO * i] ^ seed) & mask
        while new[TWO * place + ONE] != 0:
            place = (place + ONE) & mask
        new[TWO * place] = old[TWO * i]
        new[TWO * place + ONE] = old[TWO * i + ONE]

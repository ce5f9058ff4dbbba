"""Sightings of keys counted in little memory: a counting Bloom filter.

Counters are uint8 and stay at 255. A key has four of them, all in one line of 64, so that it costs
one access to memory (Putze, Sanders, Singler, WEA 2007); the line comes from one hash, the places
from another. Only the smallest counters of a key grow (conservative update: Estan, Varghese,
SIGCOMM 2002), so a count is never too low and seldom too high.

Source: Fan, Cao, Almeida, Broder, IEEE/ACM ToN 8 (2000). Halving all counters from time to time, so
that the filter does not fill up: Einziger, Friedman, Manes, ACM ToS 13 (2017).
"""

from __future__ import annotations

import numpy as np

from kv.kernels.hash import S32, mix64
from kv.kernels.jit import MOST_AHEAD, kernel, prefetch

WIDTH, SIX = np.uint64(64), np.uint64(6)
PLACE = np.uint64(63)


@kernel
def line_of(hashed, lines):
    """Where the line of a key begins."""
    return ((hashed >> S32) * lines >> S32) * WIDTH


@kernel
def sight(counters, seed, keys, counts):
    """Count one sighting of each key; `counts` gets its sightings, this one included.

    counters: uint8 (64 lines,), fewer than 2^32 lines; seed: uint64; keys: uint64 (n,); counts:
    uint8 (n,), written; 255 is 255 or more."""
    count, lines = np.uint64(keys.size), np.uint64(counters.size) // WIDTH
    for i in range(count):
        if i + MOST_AHEAD < count:
            prefetch(counters, line_of(mix64(keys[i + MOST_AHEAD] ^ seed), lines))
        hashed = mix64(keys[i] ^ seed)
        line, bits = line_of(hashed, lines), mix64(hashed)
        least = np.uint8(255)
        for j in range(np.uint64(4)):
            least = min(least, counters[line + ((bits >> (SIX * j)) & PLACE)])
        if least < 255:
            least = np.uint8(least + 1)
            for j in range(np.uint64(4)):
                place = line + ((bits >> (SIX * j)) & PLACE)
                counters[place] = max(counters[place], least)
        counts[i] = least


@kernel
def halve(counters):
    """Every counter becomes half of itself, rounded down."""
    for i in range(np.uint64(counters.size)):
        counters[i] >>= 1

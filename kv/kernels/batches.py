"""Rows as they lie in memory, with their records, out of a store and into one.

Rows are copied as uint32 words, whatever they hold; `records` is as in `kv.kernels.records`, or
the records on disk, which begin alike.
"""

from __future__ import annotations

import numpy as np

from kv.kernels.jit import MOST_AHEAD, UNROLLED, ahead_of, kernel, prefetch, prefetch_row
from kv.kernels.records import HALF, SECONDS, USE, VERSION, WORDS


@kernel
def take_batch(words, records, places, start, out, versions, shows, seen):
    """Copy the rows and records at `places`.

    words: uint32 (capacity, width), of which a row begins at column `start`; records: uint64
    (capacity, 3 or more); places: int64 (n,); out: uint32 (n, words of a row); versions: int64
    (n,); shows, in 256ths, and seen: uint32 (n,)."""
    count, width, first = np.uint64(places.size), np.uint64(out.shape[1]), np.uint64(start)
    ahead, asked = ahead_of(width), min(width, UNROLLED)
    for i in range(count):
        if i + ahead < count:
            prefetch_row(words, places[i + ahead], asked)
            prefetch(records, np.uint64(places[i + ahead]) * np.uint64(records.shape[1]))
        place = np.uint64(places[i])
        for j in range(width):
            out[i, j] = words[place, first + j]
        use = records[place, USE]
        versions[i] = np.int64(records[place, VERSION])
        shows[i] = np.uint32(use >> HALF)
        seen[i] = np.uint32(use & SECONDS)


@kernel
def put_batch(words, records, rows, data, versions, shows, seen):
    """Overwrite rows in memory, and their records but for the key.

    words: uint32 (capacity, stride); records: uint64 (capacity, 3); rows: int64 (n,), none twice;
    the others as in `take_batch`, read only."""
    count, width = np.uint64(rows.size), np.uint64(data.shape[1])
    for i in range(count):
        if i + MOST_AHEAD < count:
            prefetch(records, WORDS * np.uint64(rows[i + MOST_AHEAD]) + VERSION)
        row = np.uint64(rows[i])
        for j in range(width):
            words[row, j] = data[i, j]
        records[row, VERSION] = np.uint64(versions[i])
        records[row, USE] = (np.uint64(shows[i]) << HALF) | np.uint64(seen[i])

"""The record beside each row: key, version, shows, last seen.

`records` is uint64 (capacity, 3): the key, the version (0 in a free row), and a word whose upper
half is the row's shows in 256ths and whose lower half the second it was last seen in. Records on
disk, with the row behind them, begin alike.
"""

from __future__ import annotations

import math

import numpy as np

from kv.kernels.jit import MOST_AHEAD, kernel, prefetch

VERSION, USE = np.uint64(1), np.uint64(2)
WORDS = np.uint64(3)
SHOW = 256.0  # shows are kept in 256ths, up to 2^24
HALF, SECONDS = np.uint64(32), np.uint64((1 << 32) - 1)
MOST_SHOWS = np.uint64((1 << 32) - 1)


@kernel
def see(records, rows, version, show, now, rate):
    """Rows were used: add `show` to their shows, remember `now` and, unless it is 0, `version`.

    rows: int64 (n,); version: int64; show: int64, in 256ths; now: int64, seconds; rate: float64,
    by which the shows decay a second, so that x shows are x exp(-rate t) after t seconds.

    A quarter of the records lie across two cache lines; asking for the first alone takes more than
    twice as long."""
    count = np.uint64(rows.size)
    for i in range(count):
        if i + MOST_AHEAD < count:
            record = WORDS * np.uint64(rows[i + MOST_AHEAD])
            prefetch(records, record + VERSION)
            prefetch(records, record + USE)
        note(records, np.uint64(rows[i]), version, show, now, rate)


@kernel
def note(records, row, version, show, now, rate):
    """`see` for one row.  row: uint64."""
    second = np.uint64(now)
    use = records[row, USE]
    shows = use >> HALF
    if rate > 0.0 and second > use & SECONDS:
        age = np.float64(second - (use & SECONDS))
        shows = np.uint64(np.float64(shows) * math.exp(-rate * age))
    if version:
        records[row, VERSION] = np.uint64(version)
    records[row, USE] = (min(shows + np.uint64(show), MOST_SHOWS) << HALF) | second


@kernel
def add_shows(records, rows, given):
    """Shows counted by the caller.  given: float32 (n,), 0 or more, added to those of rows."""
    count = np.uint64(rows.size)
    for i in range(count):
        if i + MOST_AHEAD < count:
            prefetch(records, WORDS * np.uint64(rows[i + MOST_AHEAD]) + USE)
        row = np.uint64(rows[i])
        use = records[row, USE]
        more = np.uint64(min(np.float64(given[i]) * SHOW, np.float64(MOST_SHOWS)))
        records[row, USE] = (min((use >> HALF) + more, MOST_SHOWS) << HALF) | (use & SECONDS)


@kernel
def begin(records, rows, version, now):
    """Fresh records: the version, no shows, seen now; the key is the index's to write.

    version, now: int64."""
    for i in range(np.uint64(rows.size)):
        row = np.uint64(rows[i])
        records[row, VERSION] = np.uint64(version)
        records[row, USE] = np.uint64(now)


@kernel
def expired(records, start, stop, seen_before, rate, now, least, found):
    """Write the rows from `start` to `stop` that are to go; returns how many.

    A row goes that was seen before `seen_before` and whose shows, decayed as in `see`, are below
    `least`. seen_before, now: int64, seconds; rate, least: float64; found: int64, one for each row
    that is looked at."""
    count = 0
    for i in range(np.uint64(start), np.uint64(stop)):
        seen = np.int64(records[i, USE] & SECONDS)
        if records[i, VERSION] == 0 or seen >= seen_before:
            continue
        shows = np.float64(records[i, USE] >> HALF) / SHOW
        if shows * math.exp(-rate * np.float64(max(now - seen, 0))) < least:
            found[count] = np.int64(i)
            count += 1
    return count

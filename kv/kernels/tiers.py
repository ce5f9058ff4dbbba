"""Rows between memory and disk: which go, and how they are copied.

A record on disk is the row's record and the row: uint64 (slots, width), the first three words as
in `records`. Both rows and records are copied as uint32 words, whatever the rows hold.

Which rows go is CLOCK's choice (Corbató, MIT Project MAC report MAC-M-384, 1968): a hand passes
over the rows, a row used since its last visit is spared once, another goes. `marks` is uint8
(capacity,).
"""

from __future__ import annotations

import numpy as np

from kv.kernels.jit import ahead_of, kernel, prefetch, prefetch_row
from kv.kernels.records import VERSION

IDLE, USED, PINNED = 1, 2, 3
ONE, HEAD = np.uint64(1), np.uint64(6)  # HEAD: uint32 words of a record before the row


@kernel
def mark(marks, rows, value):
    """marks[rows] = value, of the rows that are not negative."""
    for i in range(np.uint64(rows.size)):
        if rows[i] >= 0:
            marks[np.uint64(rows[i])] = value


@kernel
def choose(marks, records, top, hand, victims):
    """Write rows that go, marked as pinned; returns how many, and where the hand is now.

    records: uint64 (capacity, 3), whose version says which rows are in use. Rows below `top` are
    looked at, from row `hand` on, pinned ones never chosen; fewer than victims.size only if no
    more are to be had."""
    found, place, last = np.uint64(0), np.uint64(hand), np.uint64(top)
    for _ in range(np.uint64(3) * last):
        if found == np.uint64(victims.size):
            break
        if place >= last:
            place = np.uint64(0)
        if marks[place] == USED:
            marks[place] = IDLE
        elif marks[place] == IDLE and records[place, VERSION] != 0:
            marks[place] = PINNED
            victims[found] = np.int64(place)
            found += ONE
        place += ONE
    return found, place


@kernel
def spill(data, records, rows, cold, slots):
    """Copy rows to disk.  data: uint32 (capacity, stride); records: uint32 (capacity, 6); cold:
    uint32 (slots, width); rows, slots: int64 (n,)."""
    count = np.uint64(rows.size)
    ahead = ahead_of(data.shape[1])
    for i in range(count):
        if i + ahead < count:
            prefetch_row(data, rows[i + ahead], data.shape[1])
            prefetch(records, np.uint64(rows[i + ahead]) * HEAD)
        row, slot = np.uint64(rows[i]), np.uint64(slots[i])
        for j in range(HEAD):
            cold[slot, j] = records[row, j]
        for j in range(np.uint64(data.shape[1])):
            cold[slot, HEAD + j] = data[row, j]


@kernel
def fetch(data, records, rows, cold, slots):
    """Copy rows from disk; arguments as for `spill`.  The records on disk become free."""
    for i in range(np.uint64(rows.size)):
        row, slot = np.uint64(rows[i]), np.uint64(slots[i])
        for j in range(HEAD):
            records[row, j] = cold[slot, j]
        for j in range(np.uint64(data.shape[1])):
            data[row, j] = cold[slot, HEAD + j]
        cold[slot, np.uint64(2)] = 0  # the version's two halves
        cold[slot, np.uint64(3)] = 0

"""An index from uint64 keys to row numbers, eight bytes an entry: open addressing, linear probing.

`entries` is uint64. An entry's upper half is a fingerprint, the upper half of `mix64(key ^ seed)`;
the lower half is the row's number + 1, or, with its top bit set (COLD), the number + 1 of a record
on disk; 0 is an empty bucket. A table of 2^b buckets lies at `entries[base:]`, and an entry's home
in it is the fingerprint's top b bits: growing needs no keys, and keeps the order. The full key
stands in the row's record, which a push touches anyway. Some 1 in 100 look-ups at 50 million keys
meet another key's equal fingerprint, and go on.

The seed is the table's own, and homes do *not* come from the bits that name the key's slot: a
server that owns few slots would pile all its keys into a few places, and so could anyone who
chooses keys.

While a table grows there are two: homes below `moved` of the old one have moved to the new one.
`moved` always follows an empty bucket, so no run of entries lies across it, and every key is in
exactly one table. `where` is uint64 (6,): base and shift (32 - b) of the table, base and shift of
the old one, moved, seed; without an old one, shift 32 and moved 1, so that all homes have moved.
Runs do not wrap: a table has SLACK buckets behind its last home. At the greatest load, 0.85, one
run in 10^18 is longer.

Deleting moves later entries of the run back (Knuth, TAOCP 3, 6.4, algorithm R), so look-ups meet
no tombstones.

Source of `mix64`: the finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014). Linear hashing
(Litwin, VLDB 1980) moves buckets in order likewise.
"""

from __future__ import annotations

import numpy as np

from kv.kernels.jit import kernel, prefetch
from kv.kernels.records import USE, WORDS, note

ZERO, ONE, FOUR = np.uint64(0), np.uint64(1), np.uint64(4)
S30, S27, S31, S32 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32)
M1, M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
COLD = np.uint64(1 << 31)
LOW = np.uint64((1 << 32) - 1)
NUMBER = np.uint64((1 << 31) - 1)
BLOCK = np.uint64(128)  # keys that pass a stage of a look-up together: 32 take a third longer
SLACK = 128
MOVED = 4  # the place of `moved` in `where`


@kernel
def mix64(key):
    """A bijection of uint64 that spreads neighbouring keys over all bits."""
    key = (key ^ (key >> S30)) * M1
    key = (key ^ (key >> S27)) * M2
    return key ^ (key >> S31)


@kernel
def home(fingerprint, base, shift, old_base, old_shift, moved):
    """Where in `entries` the run of this fingerprint's home begins."""
    if (fingerprint >> old_shift) < moved:
        return base + (fingerprint >> shift)
    return old_base + (fingerprint >> old_shift)


@kernel
def search(entries, place, fingerprint, records, cold, key):
    """The place of the entry of `key` from `place` on, or of the empty bucket that ends the run."""
    while True:
        entry = entries[place]
        if entry == ZERO:
            return place
        if entry >> S32 == fingerprint:
            number = (entry & NUMBER) - ONE
            if entry & COLD:
                if cold[number, ZERO] == key:
                    return place
            elif records[number, ZERO] == key:
                return place
        place += ONE


@kernel
def row_of(entry):
    """What a look-up says of an entry: the row, -2 - the number of a record on disk, -1 if none."""
    if entry == ZERO:
        return -1
    number = np.int64((entry & NUMBER) - ONE)
    return -2 - number if entry & COLD else number


@kernel
def ask(entries, place):
    """Hint that the run from `place` on is used soon: five buckets of it, or more in their lines.

    Half of the time that is two lines. Most runs that go on into a second line are met so; all
    eight buckets would be one nanosecond better at 50 million keys and worse in the cache."""
    prefetch(entries, place)
    prefetch(entries, place + FOUR)


@kernel
def lookup(entries, where, records, cold, keys, rows):
    """Write the row of each key; returns how many have none, and how many are on disk.

    records: uint64 (capacity, 3), keys first; cold: uint64 (slots, width), keys first; keys: uint64
    (n,); rows: int64 (n,), written: the row in memory, -1 for none, -2 - number for a record on
    disk."""
    return lookup_and_note(entries, where, records, cold, keys, rows, 0, 0, 0, 0.0)


@kernel
def lookup_and_note(entries, where, records, cold, keys, rows, version, show, now, rate):
    """`lookup`, and `records.see` for the rows in memory, unless now is 0.

    In stages, a block of keys each: hash (vector code) and ask for the homes; probe for the
    fingerprint and ask for the record; compare keys; note. Between them `rows` holds what the next
    stage needs. A record may lie across two cache lines, of which comparing keys needs the first.
    All in one kernel: a call counts references to its arrays, which one key would feel."""
    count = np.uint64(keys.size)
    base, shift = where[0], where[1]
    old_base, old_shift, moved, seed = where[2], where[3], where[4], where[5]
    absent, on_disk = 0, 0
    asked = ZERO
    for start in range(ZERO, count, BLOCK):
        stop = min(start + BLOCK, count)
        ahead = min(stop + BLOCK, count)
        for i in range(asked, ahead):
            rows[i] = np.int64(mix64(keys[i] ^ seed) >> S32)
        for i in range(asked, ahead):
            ask(entries, home(np.uint64(rows[i]), base, shift, old_base, old_shift, moved))
        asked = ahead
        for i in range(start, stop):
            fingerprint = np.uint64(rows[i])
            place = home(fingerprint, base, shift, old_base, old_shift, moved)
            entry = entries[place]
            while entry != ZERO and entry >> S32 != fingerprint:
                place += ONE
                entry = entries[place]
            rows[i] = np.int64(entry & LOW)
            if not entry & COLD:
                record = WORDS * (max(entry & NUMBER, ONE) - ONE)  # of 0 one that is mapped
                prefetch(records, record)
                if now:
                    prefetch(records, record + USE)
        for i in range(start, stop):
            low = np.uint64(rows[i])
            row = low - ONE
            if low == ZERO:
                rows[i] = -1
                absent += 1
            elif low < COLD and records[row, ZERO] == keys[i]:
                rows[i] = np.int64(row)
            else:
                fingerprint = mix64(keys[i] ^ seed) >> S32
                place = home(fingerprint, base, shift, old_base, old_shift, moved)
                place = search(entries, place, fingerprint, records, cold, keys[i])
                rows[i] = row_of(entries[place])
                absent += rows[i] == -1
                on_disk += rows[i] < -1
        for i in range(start, stop if now else start):
            if rows[i] >= 0:
                note(records, np.uint64(rows[i]), version, show, now, rate)
    return absent, on_disk


@kernel
def insert(entries, where, records, keys, rows):
    """Enter keys that have no entry, and write them into the records of their rows.

    keys: uint64 (n,), no key twice; rows: int64 (n,). There must be room for them."""
    count = np.uint64(keys.size)
    base, shift = where[0], where[1]
    old_base, old_shift, moved, seed = where[2], where[3], where[4], where[5]
    for i in range(count):
        if i + BLOCK < count:
            ahead = mix64(keys[i + BLOCK] ^ seed) >> S32
            ask(entries, home(ahead, base, shift, old_base, old_shift, moved))
        fingerprint = mix64(keys[i] ^ seed) >> S32
        place = home(fingerprint, base, shift, old_base, old_shift, moved)
        while entries[place] != ZERO:
            place += ONE
        entries[place] = (fingerprint << S32) | (np.uint64(rows[i]) + ONE)
        records[np.uint64(rows[i]), ZERO] = keys[i]


@kernel
def redirect(entries, where, keys, old, new):
    """Let the entries of keys lead elsewhere.

    keys: uint64 (n,); old: int64 (n,), what `lookup` says of them; new: int64 (n,), what it shall
    say, neither with -1."""
    base, shift = where[0], where[1]
    old_base, old_shift, moved, seed = where[2], where[3], where[4], where[5]
    for i in range(np.uint64(keys.size)):
        fingerprint = mix64(keys[i] ^ seed) >> S32
        place = home(fingerprint, base, shift, old_base, old_shift, moved)
        wanted = (fingerprint << S32) | lower_half(old[i])
        while entries[place] != wanted:
            place += ONE
        entries[place] = (fingerprint << S32) | lower_half(new[i])


@kernel
def lower_half(row):
    """The lower half of an entry of which `row_of` says `row`."""
    if row >= 0:
        return np.uint64(row) + ONE
    return (np.uint64(-2 - row) + ONE) | COLD


@kernel
def delete(entries, where, records, cold, keys, rows):
    """Remove keys; `rows` gets what `lookup` would have said. Returns how many had an entry.

    Arguments as for `lookup`."""
    base, shift = where[0], where[1]
    old_base, old_shift, moved, seed = where[2], where[3], where[4], where[5]
    removed = 0
    for i in range(np.uint64(keys.size)):
        fingerprint = mix64(keys[i] ^ seed) >> S32
        place = home(fingerprint, base, shift, old_base, old_shift, moved)
        hole = search(entries, place, fingerprint, records, cold, keys[i])
        rows[i] = row_of(entries[hole])
        if entries[hole] == ZERO:
            continue
        removed += 1
        probe = hole + ONE
        while entries[probe] != ZERO:
            entry = entries[probe]
            # the entry may move back only if its home is not behind the hole
            if home(entry >> S32, base, shift, old_base, old_shift, moved) <= hole:
                entries[hole] = entry
                hole = probe
            probe += ONE
        entries[hole] = ZERO
    return removed


@kernel
def move(entries, where, count):
    """Move old buckets, `count` or a run more, to the new table; `where` says how far it has come.

    The new homes rise with the old ones, so both tables are passed through in order."""
    base, shift, old_base, old_shift = where[0], where[1], where[2], where[3]
    place, end = where[MOVED], (ONE << (S32 - old_shift)) + np.uint64(SLACK)
    stop = place + np.uint64(count)
    while place < end:
        entry = entries[old_base + place]
        place += ONE
        if entry == ZERO:
            if place >= stop:
                break
            continue
        target = base + (entry >> S32 >> shift)
        while entries[target] != ZERO:
            target += ONE
        entries[target] = entry
    where[MOVED] = place

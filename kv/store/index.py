"""The index of a table: keys -> row numbers, and the record of each row, which holds its key.

It doubles without a stop: once it is BEGIN full there are two tables, and each key that is added
moves some buckets from the old one to the new one, so that the move ends before the old one is
FULLEST full. Both are passed through in order: memory of the new one comes to exist as that of the
old one is given back. An entry takes 8 bytes, which with the free buckets is 9 to 19, 15 on
average over all sizes; a record 24.

All tables lie in one reservation, each of size s from bucket s on (and some slack).
"""

from __future__ import annotations

import secrets

import numpy as np
from numpy.typing import NDArray

from kv.kernels import hash as kernels
from kv.kernels.hash import SLACK
from kv.store import arena

LEAST = 64  # buckets of the smallest table
MOST_ROWS = (1 << 31) - 2
STEP = 8  # old buckets moved for each key that is added
FULLEST = 0.85
BEGIN = FULLEST - 1 / STEP  # growth that begins here ends before FULLEST
RECORD_BYTES = 24
ORDERS = 1 << 32  # fingerprints
Note = tuple[int, int, int, float]
NO_COLD = np.zeros((1, 3), np.uint64)
Keys = NDArray[np.uint64]
Rows = NDArray[np.int64]


class Index:
    """Row numbers of keys, and the rows' records.

    A row number below -1 stands for a record on disk, number -2 - row; `cold` then holds their
    keys, uint64 (slots, width), in the first column.

    Args:
        expected: keys to expect.
        capacity: rows that there may ever be.
        seed: of the hash; random by default, so that nobody can choose keys that collide. It
            changes neither rows nor values.
    Raises:
        OSError, ValueError: the system does not grant the address space.
    """

    def __init__(
        self, expected: int = 0, capacity: int = 1 << 20, seed: int | None = None, keys: int = 0
    ) -> None:
        seed = secrets.randbits(64) if seed is None else seed
        self.used = 0
        self.bits = _bits_for(expected)
        capacity = max(capacity, 1)
        most = _bits_for(max(capacity, expected, keys))
        self.entries: Keys = arena.reserve((_base_of(most + 1),), np.uint64)
        self.records: Keys = arena.reserve((capacity, 3), np.uint64)
        self.cold: Keys = NO_COLD
        self.where = np.array([_base_of(self.bits), 32 - self.bits, 0, 32, 1, seed], np.uint64)
        self._released = 0

    def __len__(self) -> int:
        return self.used

    @property
    def is_growing(self) -> bool:
        """Whether there are two tables."""
        return int(self.where[3]) != 32

    @property
    def moved(self) -> int:
        """Buckets of the old table that have moved, while there is one."""
        return int(self.where[kernels.MOVED]) if self.is_growing else 0

    @property
    def nbytes(self) -> int:
        """Bytes of the tables' buckets, those given back or not yet reached not counted."""
        if not self.is_growing:
            return 8 * ((1 << self.bits) + SLACK)
        return 8 * ((1 << (self.bits - 1)) + self.moved + 2 * SLACK)

    def nbytes_with(self, count: int) -> int:
        """At most so many bytes with `count` more keys."""
        if self.used + count > BEGIN * (2 << self.bits):
            return max(self.nbytes, nbytes_for(self.used + count))
        if self.is_growing or self.used + count > BEGIN * (1 << self.bits):
            return self.nbytes + 8 * (STEP * (count + 1) + 2 * SLACK)
        return self.nbytes

    @property
    def load(self) -> float:
        """The part of the buckets that is taken."""
        return 8 * self.used / self.nbytes

    def find(self, keys: Keys, note: Note | None = None) -> tuple[Rows, int, int]:
        """Rows of `keys`, how many have none (-1), and how many are on disk (below -1).

        Args:
            note: version, show, now and rate, as `records.see` takes them, to be noted of the rows
                in memory while their records are at hand.
        """
        rows = np.empty(keys.size, np.int64)
        tables = self.entries, self.where, self.records, self.cold
        if note is None:
            absent, on_disk = kernels.lookup(*tables, keys, rows)
        else:
            absent, on_disk = kernels.lookup_and_note(*tables, keys, rows, *note)
        return rows, absent, on_disk

    def add(self, keys: Keys, rows: Rows) -> None:
        """Enter keys, none twice and none in the index, and write them into their rows' records."""
        start = 0
        while start < keys.size:
            count = keys.size - start
            if not self.is_growing:
                room = int(BEGIN * (1 << self.bits)) - self.used
                if room <= 0:
                    self._begin()
                    continue
                count = min(count, room)
            else:
                left = (1 << (self.bits - 1)) + SLACK - self.moved
                count = min(count, -(-left // STEP))
                self._move(STEP * count)
            stop = start + count
            kernels.insert(
                self.entries, self.where, self.records, keys[start:stop], rows[start:stop]
            )
            self.used += count
            start = stop

    def remove(self, keys: Keys) -> Rows:
        """Forget keys, no key twice; what `find` would have said of them."""
        rows = np.empty(keys.size, np.int64)
        self.used -= kernels.delete(self.entries, self.where, self.records, self.cold, keys, rows)
        return rows

    def redirect(self, keys: Keys, old: Rows, new: Rows) -> None:
        """Let keys that lead to `old` lead to `new`: rows in memory or on disk, none of them -1."""
        kernels.redirect(self.entries, self.where, keys, old, new)

    def rows_from(self, first: int, count: int) -> tuple[Rows, int]:
        """Rows, as `find` says them, of some keys by rising fingerprint, and where to go on.

        A key keeps its place in this order whatever happens to its row and to the tables, so a scan
        that begins at 0 and ends at ORDERS meets each key once that is there throughout.

        Args:
            first: the least fingerprint, below ORDERS.
            count: keys wanted; there may be fewer, and more only if their fingerprints are equal.
        """
        stop = min(first + max((count << 32) // max(self.used, 1), 1), ORDERS)
        base, shift, old_base, old_shift = self.where[:4].tolist()
        found = [self._between(base, shift, first, stop)]
        if self.is_growing:
            found.append(self._between(old_base, old_shift, first, stop, self.moved))
        entries = np.sort(np.concatenate(found))
        if entries.size > count:
            orders = entries >> kernels.S32
            stop = max(int(orders[count]), int(orders[0]) + 1)
            entries = entries[orders < stop]
        return _rows_of(entries), stop

    def _between(self, base: int, shift: int, first: int, stop: int, moved: int = 0) -> Keys:
        """Entries of one table, from its bucket `moved` on, with fingerprints of this range."""
        begin = base + max(first >> shift, moved)
        end = base + ((stop - 1) >> shift) + 1
        if end <= begin:
            return self.entries[:0]
        while end < self.entries.size and self.entries[end]:  # the last home's run goes on
            end += 1
        entries = self.entries[begin:end]
        orders = entries >> kernels.S32
        chosen: Keys = entries[(entries != 0) & (orders >= first) & (orders < stop)]
        return chosen

    def _begin(self) -> None:
        """A second table, twice as large, to which everything is to move."""
        self.where[2:5] = self.where[0], self.where[1], 0
        self.bits += 1
        self.where[:2] = _base_of(self.bits), 32 - self.bits
        self._released = 8 * int(self.where[2])

    def _move(self, count: int) -> None:
        kernels.move(self.entries, self.where, count)
        base, moved = int(self.where[2]), int(self.where[kernels.MOVED])
        self._released = arena.release(self.entries, self._released, 8 * (base + moved))
        if moved == (1 << (self.bits - 1)) + SLACK:
            self.where[2:5] = 0, 32, 1

    def validate(self) -> None:
        """Assert that every entry can be found and that the count is right."""
        base, size = _base_of(self.bits), 1 << self.bits
        taken = [self.entries[base : base + size + SLACK]]
        if self.is_growing:
            old = int(self.where[2])
            assert self.entries[old + self.moved - 1] == 0 or self.moved == 0, "a run was cut"
            taken.append(self.entries[old + self.moved : old + size // 2 + SLACK])
        entries = np.concatenate(taken)
        entries = entries[entries != 0]
        assert entries.size == self.used, f"{entries.size} entries, {self.used} counted"
        rows = _rows_of(entries)
        keys = np.where(
            rows < 0,
            self.cold[np.where(rows < 0, -2 - rows, 0), 0],
            self.records[np.where(rows < 0, 0, rows), 0],
        )
        keys.flags.writeable = False
        found, absent, _ = self.find(keys)
        assert absent == 0, f"{absent} stored keys cannot be found"
        assert np.array_equal(found, rows), "keys lead to other rows"


def _rows_of(entries: Keys) -> Rows:
    """What a look-up says of entries, none of them empty."""
    number = (entries & kernels.NUMBER).astype(np.int64) - 1
    return np.where(entries & kernels.COLD, -2 - number, number)


def _bits_for(keys: int) -> int:
    """Of the table that holds `keys` without growing."""
    bits = (LEAST - 1).bit_length()
    while keys > int(BEGIN * (1 << bits)):
        bits += 1
    return bits


def _base_of(bits: int) -> int:
    """Where the table of 2^bits buckets begins."""
    return (1 << bits) + bits * SLACK


def nbytes_for(keys: int) -> int:
    """The bytes of an index that `keys` keys were added to, at most; never falls with `keys`."""
    bits = _bits_for(keys)
    return 8 * ((1 << bits) + 2 * SLACK)

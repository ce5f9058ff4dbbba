"""Where the rows of a table lie: in memory, and with a cold tier also on disk.

A row is one stretch of memory: weights, optimiser state, padding, so that an update touches one
place. Its record (key, version, shows, last seen) stands beside it, at the index.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv.errors import ArenaFullError
from kv.kernels import tiers
from kv.kernels.jit import frozen
from kv.kernels.records import VERSION, begin
from kv.store import arena
from kv.store.cold import ColdTier
from kv.store.index import MOST_ROWS, ORDERS, RECORD_BYTES, Index
from kv.store.numbers import Numbers
from kv.store.removals import Removals

log = logging.getLogger(__name__)

WINDOW = 1024  # places that are looked at for a free one, at least
Keys = NDArray[np.uint64]
Rows = NDArray[np.int64]


class RowSpace:
    """Rows of `stride` floats by key: index, memory, and records on disk if `cold` is set.

    Args:
        table: its name, for errors.
        stride: float32 from one row to the next.
        expected: keys to expect, for which there is to be room at least.
        nbytes: address space to reserve for rows.
        keys: keys that there may be, those on disk included; 0 is as many as rows.
    Raises:
        ArenaFullError: the system grants no address space, or not enough for `expected`.
    """

    def __init__(self, table: str, stride: int, expected: int, nbytes: int, keys: int = 0) -> None:
        self.table, self.stride, self.row_nbytes = table, stride, 4 * stride
        self.numbers = Numbers()
        self.cold: ColdTier | None = None
        self.generation = 0  # changes when a known key's row number may have changed
        self.removals: Removals | None = None  # kept when somebody wants to know
        self.on_removed: Callable[[Keys], None] | None = None
        self._ends: list[int] = []  # up to which byte rows and records may lie in memory
        self._reserve(nbytes, expected, keys)

    @property
    def in_use(self) -> int:
        """Rows in memory."""
        return self.numbers.in_use

    @property
    def nbytes(self) -> int:
        """Bytes in use by rows ever given out, their records, and the index."""
        return self.numbers.top * (self.row_nbytes + RECORD_BYTES) + self.index.nbytes

    def add(self, keys: Keys, version: int, now: int) -> Rows:
        """Rows for keys that have none, no key twice; new ones are numbered in their order."""
        is_packing = self.numbers.bottom is not None
        rows = self._fill(keys.size) if is_packing else self.numbers.take(keys.size)
        self.index.add(keys, rows)
        begin(self.index.records, rows, version, now)
        return rows

    def remove(self, keys: Keys) -> int:
        """Forget keys, none twice, and their rows; returns how many there were."""
        rows = self.index.remove(frozen(keys))
        if self.removals is not None:
            self.removals.add(keys[rows != -1])
        if self.on_removed is not None:
            self.on_removed(keys[rows != -1])
        hot = rows[rows >= 0]
        self.index.records[hot, VERSION] = 0
        self.numbers.give_back(hot)
        removed = hot.size
        if self.cold is not None:
            slots = -2 - rows[rows < -1]
            self.cold.forget(slots)
            removed += slots.size
        self.generation += bool(removed)
        return int(removed)

    def spill(self, rows: Rows) -> None:
        """Write rows to disk and free them.

        Raises:
            ArenaFullError: the disk is full; nothing changed.
        """
        assert self.cold is not None
        if not rows.size:
            return
        slots = self.cold.take(rows.size)
        self.index.cold = self.cold.records  # may be mapped anew
        records = self.index.records
        tiers.spill(*self._words(), rows, self.cold.records.view(np.uint32), slots)
        self.index.redirect(frozen(records[rows, 0]), rows, -2 - slots)
        records[rows, VERSION] = 0
        self.numbers.give_back(rows)
        self.generation += 1

    def fetch(self, keys: Keys, found: Rows) -> Rows:
        """Read the rows of `keys`, on disk at `found` (below -1), into free ones; their numbers."""
        assert self.cold is not None
        rows, slots = self.numbers.take(found.size), -2 - found
        tiers.fetch(*self._words(), rows, self.cold.records.view(np.uint32), slots)
        self.index.redirect(keys, found, rows)
        self.cold.numbers.give_back(slots)
        return rows

    def scan(self, start: int, count: int) -> tuple[Keys, NDArray[Any], Rows, int]:
        """Some rows, `count` or fewer, from the place `start` of a scan on.

        Places are row numbers, and where rows move between memory and disk fingerprints, which stay
        as they are (`Index.rows_from`; there, equal ones may make it more than `count`).

        Returns keys, rising; rows as they lie in memory, and which of them belong to the keys;
        where to go on, `end` or more when the scan is over.
        """
        start, count = max(start, 0), max(count, 1)
        if self.cold is not None:
            return self._scan_tiers(start, count)
        stop = min(start + count, self.numbers.top)
        keys, rows = _sorted(self.index.records, start, stop)
        return keys, self.data, rows, stop

    def _scan_tiers(self, start: int, count: int) -> tuple[Keys, NDArray[Any], Rows, int]:
        """`scan` of a space with a cold tier; the rows are copies."""
        assert self.cold is not None
        found, stop = self.index.rows_from(min(start, ORDERS - 1), count)
        keys, copy = np.empty(found.size, np.uint64), np.empty((found.size, self.stride), np.uint32)
        memory, _ = self._words()
        hot, places = np.flatnonzero(found >= 0), np.flatnonzero(found < 0)
        keys[hot], copy[hot] = self.index.records[found[hot], 0], memory[found[hot]]
        slots = -2 - found[places]
        words = self.cold.records.view(np.uint32)[slots, tiers.HEAD :]
        keys[places], copy[places] = self.cold.records[slots, 0], words[:, : self.stride]
        order = np.argsort(keys)
        return keys[order], copy.view(self.data.dtype), order, stop

    @property
    def end(self) -> int:
        """Where a scan ends."""
        return self.numbers.top if self.cold is None else ORDERS

    @property
    def has_holes(self) -> bool:
        """Whether there are free places before the last row."""
        return self.in_use < self.numbers.top

    def pack(self, most: int) -> bool:
        """Move rows from the end into free places; whether there is more to do.

        Looks at `most` places at either end, and gives back the memory that is free behind the last
        row. Not for a space with a cold tier. Row numbers change, and so do places of scans.
        """
        numbers, versions = self.numbers, self.index.records[:, VERSION]
        if numbers.bottom is None:
            if not numbers.num_free:
                return False
            sizes = self.row_nbytes, RECORD_BYTES
            self._ends = [arena.page_after(numbers.top * nbytes) for nbytes in sizes]
            numbers.begin_packing()
        bottom, top = numbers.bottom or 0, numbers.top
        first, stop = max(bottom, top - most), min(bottom + most, top)
        used = (first + np.flatnonzero(versions[first:top]))[::-1]
        holes = bottom + np.flatnonzero(versions[bottom:stop] == 0)
        pairs = min(used.size, holes.size)
        count = int(np.count_nonzero(holes[:pairs] < used[:pairs]))
        self._move(used[:count], holes[:count])
        left = np.flatnonzero(versions[first:top])
        top = first + int(left[-1]) + 1 if left.size else first
        bottom = min(top, stop if count == holes.size else int(holes[count]))
        self._give_back(top)
        return not numbers.pack(bottom, top)

    def _fill(self, count: int) -> Rows:
        """As `Numbers.take`, while rows are packed: the first free places."""
        numbers, versions = self.numbers, self.index.records[:, VERSION]
        found = [numbers.take(min(count, numbers.num_free))]
        need = count - found[0].size
        while need and numbers.bottom is not None:
            bottom, top = numbers.bottom, numbers.top
            stop = min(bottom + max(2 * need, WINDOW), top)
            holes = bottom + np.flatnonzero(versions[bottom:stop] == 0)[:need]
            found.append(holes)
            need -= holes.size
            numbers.fill(holes.size, stop if need else int(holes[-1]) + 1)
        return np.concatenate([*found, numbers.take(need)])

    def _move(self, old: Rows, new: Rows) -> None:
        """Rows get other numbers, of places that are free."""
        if not old.size:
            return
        records = self.index.records
        keys = frozen(records[old, 0])
        self.data[new], records[new] = self.data[old], records[old]
        self.index.redirect(keys, old, new)
        records[old, VERSION] = 0
        self.generation += 1

    def _give_back(self, top: int) -> None:
        """Give back the memory of rows and records from `top` on, as far as it was used."""
        arrays = (self.data, self.row_nbytes), (self.index.records, RECORD_BYTES)
        for place, (array, nbytes) in enumerate(arrays):
            start, end = top * nbytes, max(self._ends[place], self.numbers.top * nbytes)
            is_given = arena.release(array, start, end) > start
            self._ends[place] = arena.page_after(start) if is_given else end

    def cut(self, top: int) -> None:
        """Give back the memory of the rows from `top` on, all of them free."""
        arena.release(self.data, top * self.row_nbytes, self.numbers.top * self.row_nbytes)
        self.numbers.cut(top)

    def _words(self) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        return self.data.view(np.uint32), self.index.records.view(np.uint32)

    def _reserve(self, nbytes: int, expected: int, keys: int) -> None:
        """Reserve address space; with less of it if the system grants no more."""
        if expected * self.row_nbytes > arena.physical_memory():
            raise ArenaFullError(
                self.table,
                f"{expected} rows of {self.row_nbytes} bytes are more than this machine's memory "
                f"of {arena.physical_memory()} bytes; use more servers",
            )
        least = max(expected, arena.LEAST // self.row_nbytes, 1)
        count = min(max(least, min(nbytes, arena.MOST) // self.row_nbytes), MOST_ROWS)
        while True:
            try:
                self.data: NDArray[Any] = arena.reserve((count, self.stride), np.float32)
                self.index = Index(expected, count, keys=min(keys, MOST_ROWS))
                break
            except (OSError, ValueError, MemoryError) as error:
                if count == least:
                    raise ArenaFullError(
                        self.table,
                        f"no address space for {count} rows ({error}); see ulimit -v",
                    ) from error
                log.warning("table %s: %d rows cannot be reserved (%s)", self.table, count, error)
                count = max(least, count // 4)
        self.capacity = count

    def validate(self) -> None:
        """Assert what must always hold between index, records and free numbers."""
        self.index.validate()
        self.numbers.validate()
        records = self.index.records[: self.numbers.top]
        used = np.flatnonzero(records[:, VERSION])
        assert not np.isin(used, self.numbers.free()).any(), "a row is free and in use"
        on_disk = 0
        if self.cold is not None:
            self.cold.validate()
            on_disk = self.cold.numbers.in_use
        assert used.size == self.in_use == len(self.index) - on_disk, "rows are lost"
        rows, absent, cold = self.index.find(frozen(records[used, 0]))
        assert absent == cold == 0, "a row's key is not in the index"
        assert np.array_equal(rows, used), "a row's key leads to another row"


def _sorted(records: Keys, start: int, stop: int) -> tuple[Keys, Rows]:
    """Keys, rising, and numbers of the records from `start` to `stop` that are in use."""
    numbers = start + np.flatnonzero(records[start:stop, VERSION])
    keys = records[numbers, 0]
    order = np.argsort(keys)
    return keys[order], numbers[order]

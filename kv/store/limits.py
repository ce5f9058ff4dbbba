"""What a table does when memory is full: refuse new rows, evict old ones, or spill them to disk.

The store asks for room before it makes rows or reads them back from disk; rows of the request in
hand are never among those that go.

    Refuse    raises ArenaFullError
    Evict     CLOCK's victims are forgotten
    Spill     CLOCK's victims go to disk and come back when they are touched
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

from kv.errors import ArenaFullError
from kv.kernels import tiers
from kv.kernels.jit import frozen
from kv.kernels.records import VERSION
from kv.spec import TableSpec
from kv.store import arena
from kv.store.cold import ColdTier
from kv.store.index import RECORD_BYTES, nbytes_for
from kv.store.space import RowSpace

BATCH = 4096  # rows that go at once, where the table has 64 times as many
LEAST_SHARE = 16  # of the rows of an empty index stay in memory beside a full one
Keys = NDArray[np.uint64]
Rows = NDArray[np.int64]


class Refuse:
    """New rows are refused when there is no room.

    Args:
        space: where the rows are.
        nbytes: the limit on rows, records and index; 0 is none but the address space.
    """

    def __init__(self, space: RowSpace, nbytes: int = 0) -> None:
        self.space, self.limit = space, nbytes
        self.most = space.capacity  # rows in memory
        self.at_once = sys.maxsize  # keys that one call may need in memory together
        self.evicted = self.spilled = 0
        if nbytes:
            self.most = min(self.most, rows_within(nbytes, self._row_nbytes))
            if not self.most:
                raise ArenaFullError(
                    space.table,
                    f"no row fits into the {nbytes} bytes of memory_limit that this part has",
                )

    @property
    def _row_nbytes(self) -> int:
        return self.space.row_nbytes + RECORD_BYTES

    @property
    def nbytes(self) -> int:
        """Bytes in use by rows, records, index and marks."""
        return self.space.nbytes

    def has_room(self, count: int) -> bool:
        """Whether `count` more rows are sure to fit."""
        return self.space.in_use + count <= self.most

    def ensure(self, count: int) -> None:
        """See that `count` more rows will fit.

        Raises:
            ArenaFullError: they do not; nothing changed.
        """
        if not self.has_room(count):
            raise self.refusal(count)

    def settle(self, keys: Keys) -> None:
        """Before rows are made for those of `keys` without one, while no row is in hand."""

    def make_room(self, count: int, rows: Rows) -> None:
        """See that `count` more rows fit while `rows`, those not negative, stay.

        Raises:
            ArenaFullError: they do not; nothing changed.
        """
        self.ensure(count)

    def refusal(self, count: int) -> ArenaFullError:
        """What is to be said of `count` more rows that do not fit."""
        space, total = self.space, self.space.in_use + count
        if self.limit and self.most < space.capacity:
            return ArenaFullError(
                space.table,
                f"{total} rows of {self._row_nbytes} bytes and their index do not fit into the "
                f"{self.limit} bytes of memory_limit that this part of the table has; raise it, "
                f"use more servers, or let the table evict or spill rows (when_full)",
            )
        return ArenaFullError(
            space.table,
            f"{total} rows of {space.row_nbytes} bytes do not fit into the {self.most} "
            f"reserved on this server; use more servers or a smaller dim",
        )

    def touch(self, rows: Rows) -> None:
        """These rows were used."""

    def validate(self) -> None:
        """Assert that the table is within its limit."""
        assert self.space.in_use <= self.most, "more rows than allowed are in memory"
        assert not self.limit or self.nbytes <= self.limit, f"{self.nbytes} of {self.limit} bytes"


class Evict(Refuse):
    """Rows that have not been used for long are forgotten; they cost one more byte a row."""

    def __init__(self, space: RowSpace, nbytes: int) -> None:
        self.marks: NDArray[np.uint8] = arena.reserve((space.capacity,), np.uint8)
        self._hand = 0
        super().__init__(space, nbytes)
        self.at_once = self.most

    @property
    def _row_nbytes(self) -> int:
        return self.space.row_nbytes + RECORD_BYTES + 1

    @property
    def nbytes(self) -> int:
        return self.space.nbytes + self.space.numbers.top

    def has_room(self, count: int) -> bool:
        return True

    def make_room(self, count: int, rows: Rows) -> None:
        short = self.space.in_use + count - self.most
        if short <= 0:
            return
        tiers.mark(self.marks, rows, tiers.PINNED)
        victims = np.empty(max(short, self._batch), np.int64)
        records, top = self.space.index.records, self.space.numbers.top
        found, self._hand = tiers.choose(self.marks, records, top, self._hand, victims)
        assert found >= short, "a request needs more rows than fit into memory"
        try:
            self._drop(victims[:found])
        except ArenaFullError:  # nobody is pinned any more
            tiers.mark(self.marks, victims[:found], tiers.IDLE)
            tiers.mark(self.marks, rows, tiers.USED)
            raise

    def touch(self, rows: Rows) -> None:
        tiers.mark(self.marks, rows, tiers.USED)

    def clock(self) -> tuple[NDArray[np.uint8], int]:
        """The marks of the numbers ever given out, a copy, and where the hand is."""
        return self.marks[: self.space.numbers.top].copy(), self._hand

    def set_clock(self, marks: NDArray[np.uint8], hand: int) -> None:
        """Go on from what `clock` said."""
        self.marks[: marks.size] = marks
        self._hand = hand

    @property
    def _batch(self) -> int:
        """Rows that go at once, if not more must."""
        return min(BATCH, self.most // 64)

    def _drop(self, victims: Rows) -> None:
        self.space.remove(frozen(self.space.index.records[victims, 0]))
        self.evicted += victims.size


class Spill(Evict):
    """Rows that have not been used for long go to disk.

    The index keeps their keys, so there is room for fewer rows in memory as the table grows.
    """

    def __init__(self, space: RowSpace, nbytes: int) -> None:
        super().__init__(space, nbytes)
        self._whole = self.most
        self._slack = self.at_once = max(1, self.most // 4)
        self._least = max(1, self.most // LEAST_SHARE)  # that the index leaves

    def has_room(self, count: int) -> bool:
        most = self._most_with(count)
        return most >= self._least and self._on_disk(count, most) <= self._cold.granted

    def ensure(self, count: int) -> None:
        self._secure(count, self._most_with(count))

    def make_room(self, count: int, rows: Rows) -> None:
        fresh = count - int(np.count_nonzero(rows < -1))
        if fresh:
            self._secure(fresh, self.most)
        super().make_room(count, rows)

    def settle(self, keys: Keys) -> None:
        """See that the index may grow by `keys`; rows that memory is then too small for go.

        Raises:
            ArenaFullError: the index would leave too little memory for rows. Keys that have rows
                need no more of it.
        """
        space, most = self.space, self._most_with(keys.size)
        if most < self.most:
            _, absent, _ = space.index.find(keys)
            if not absent:
                return
            most = self._most_with(absent)
        if most < max(keys.size, self._least):
            raise self._crowded(most)
        if space.numbers.top > most:
            self._secure(0, most)
            versions = space.index.records[most : space.numbers.top, VERSION]
            self._drop(most + np.flatnonzero(versions))
            space.cut(most)
        self.most = most
        self.at_once = max(1, min(self._whole // 4, most // 2))

    @property
    def _batch(self) -> int:
        return min(super()._batch, self._cold.num_granted_free)

    @property
    def _cold(self) -> ColdTier:
        assert self.space.cold is not None
        return self.space.cold

    def _most_with(self, count: int) -> int:
        """Rows in memory beside an index with `count` more keys."""
        left = self.limit - self.space.index.nbytes_with(count)
        return min(self._whole, left // self._row_nbytes)

    def _secure(self, count: int, most: int) -> None:
        """See that disk and `most` rows in memory hold `count` new rows.

        Raises:
            ArenaFullError: they do not; nothing changed.
        """
        if most < self._least:
            raise self._crowded(most)
        self._cold.grant(self._on_disk(count, most))

    def _on_disk(self, count: int, most: int) -> int:
        """Records that need blocks on disk with `count` new rows and `most` in memory.

        As many as one call may read back stay free: a row on disk changes places with one in
        memory, so that rows can be read and trained on when the disk is full.
        """
        beyond = self.space.in_use + self._cold.numbers.in_use + count - most
        return beyond + self._slack if beyond > 0 else 0

    def _crowded(self, most: int) -> ArenaFullError:
        return ArenaFullError(
            self.space.table,
            f"{len(self.space.index)} keys leave room for {max(most, 0)} rows in memory within the "
            f"{self.limit} bytes of memory_limit that this part of the table has; raise it, "
            f"or use more servers",
        )

    def _drop(self, victims: Rows) -> None:
        self.space.spill(victims)
        self.spilled += victims.size


def limit_of(
    spec: TableSpec, stride: int, expected: int, nbytes: int, parts: int, spill_dir: str
) -> Refuse:
    """The limit that `spec` asks for, with the row space that it limits.

    Args:
        stride: floats from one row to the next.
        expected: keys to expect; nbytes: address space to reserve.
        parts: stores that share the table's memory limit.
        spill_dir: where rows on disk lie.
    """
    limit = spec.memory_limit // parts
    if not spec.memory_limit:
        return Refuse(RowSpace(spec.name, stride, expected, nbytes))
    if spec.when_full != "spill":
        expected = min(expected, limit // (4 * stride))
        space = RowSpace(spec.name, stride, expected, min(nbytes, limit))
        return Evict(space, limit) if spec.when_full == "evict" else Refuse(space, limit)
    most_keys = limit // 8  # more entries would leave no room for a row
    space = RowSpace(spec.name, stride, 0, min(nbytes, limit), most_keys)
    space.cold = ColdTier(spec.name, 4 * stride, spill_dir)
    space.index.cold = space.cold.records
    return Spill(space, limit)


def rows_within(nbytes: int, row_nbytes: int) -> int:
    """How many rows, with their index at the size it needs for them, fit into `nbytes`."""
    low, high = 0, nbytes // row_nbytes
    while low < high:
        middle = (low + high + 1) // 2
        if middle * row_nbytes + nbytes_for(middle) <= nbytes:
            low = middle
        else:
            high = middle - 1
    return low

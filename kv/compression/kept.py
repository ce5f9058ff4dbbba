"""What lossy schemes did not say yet, by row: kept until a later message says it.

    KeptRows     of a sparse table: by key, in bounded memory
    KeptBlocks   of a dense table: by number of the block

A sparse table's are rows of the worker, not of a server, so that nothing happens to them when slots
move. When memory is full those that were touched longest ago are given up, and counted.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kv.kernels import residuals
from kv.kernels.jit import frozen
from kv.kernels.records import SECONDS, USE
from kv.store.index import RECORD_BYTES, nbytes_for
from kv.store.space import RowSpace

Keys = NDArray[np.uint64]
Values = NDArray[np.float32]
Rows = NDArray[np.int64]

GIVEN_UP = 8  # when there is no room, one row of so many goes
SAMPLE = 1 << 16  # rows from which on not all are looked at to tell how much is kept


@dataclass(slots=True)
class Losses:
    """What was given up because memory was full: rows, and the sum of their magnitudes."""

    rows: int = 0
    magnitude: float = 0.0


class Kept(Protocol):
    """Residuals of one table. `lock` is held around each use."""

    lock: threading.Lock
    losses: Losses

    def find(self, names: Keys) -> Rows:
        """The rows of residuals of keys or blocks, made where there are none; -1: no room."""

    def look(self, names: Keys) -> Rows:
        """As `find`, but none are made: -1 where there is none."""

    def release(self, names: Keys, rows: Rows) -> None:
        """Keep nothing of `names` any more, whose rows `look` has found."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is kept."""

    @property
    def data(self) -> Values:
        """All residuals, float32 (capacity, dim)."""

    @property
    def nbytes(self) -> int:
        """Bytes in use."""

    @property
    def in_use(self) -> int:
        """Rows that have a residual, be it zero."""

    @property
    def top(self) -> int:
        """Behind the last row that may have one; rows below it without one are zeros."""


class KeptRows:
    """Residuals of a sparse table; or other rows by key in bounded memory.

    Args:
        what: it is, for errors.
        dim: floats in a row.
        limit: bytes of all of it.
    """

    def __init__(self, what: str, dim: int, limit: int) -> None:
        self.lock, self.losses = threading.Lock(), Losses()
        self.capacity = capacity_of(dim, limit)
        self._space = RowSpace(what, dim, 0, 4 * dim * max(self.capacity, 1))
        self._time = 1

    def find(self, names: Keys) -> Rows:
        self._time = self._time % int(SECONDS) + 1
        rows, absent, _ = self._space.index.find(names, (0, 0, self._time, 0.0))
        if absent:
            new = np.flatnonzero(rows < 0)
            new = new[: self._room_for(new.size)]
            if new.size:
                made = self._space.add(frozen(names[new]), 1, self._time)
                self._space.data[made] = 0
                rows[new] = made
        return rows

    def look(self, names: Keys) -> Rows:
        self._time = self._time % int(SECONDS) + 1
        return self._space.index.find(names, (0, 0, self._time, 0.0))[0]

    def release(self, names: Keys, rows: Rows) -> None:
        known = rows >= 0
        if known.any():
            self._space.remove(np.ascontiguousarray(names[known]))

    @property
    def is_empty(self) -> bool:
        return not self._space.in_use

    def _room_for(self, count: int) -> int:
        """How many of `count` new rows find room; older ones go if need be."""
        free = self.capacity - self._space.in_use
        if count > free:
            self._give_up(max(count - free, self.capacity // GIVEN_UP))
            free = self.capacity - self._space.in_use
        if count > free:
            self.losses.rows += count - free
        return min(count, free)

    def _give_up(self, count: int) -> None:
        """Forget `count` rows, or fewer, none of those that are in this message."""
        records = self._space.index.records[: self._space.numbers.top]
        seen = (records[:, USE] & SECONDS).astype(np.int64)
        old = np.flatnonzero((records[:, 1] > 0) & (seen != self._time))
        if count < old.size:
            age = (self._time - seen[old]) % int(SECONDS)
            old = old[np.argpartition(-age, count)[:count]]
        if old.size:
            self.losses.rows += old.size
            self.losses.magnitude += float(np.abs(self._space.data[old], dtype=np.float64).sum())
            self._space.data[old] = 0
            self._space.remove(np.ascontiguousarray(records[old, 0]))

    @property
    def data(self) -> Values:
        return self._space.data

    @property
    def nbytes(self) -> int:
        return self._space.nbytes

    @property
    def in_use(self) -> int:
        return self._space.in_use

    @property
    def top(self) -> int:
        return self._space.numbers.top

    def items(self) -> tuple[Keys, Values]:
        """Keys and their residuals, copies."""
        keys, data, rows, _ = self._space.scan(0, self._space.end or 1)
        return keys, data[rows]

    def validate(self) -> None:
        """Assert what must always hold."""
        self._space.validate()
        assert self._space.in_use <= self.capacity


class KeptBlocks:
    """Residuals of a dense table of so many blocks of `dim` floats."""

    def __init__(self, blocks: int, dim: int) -> None:
        self.lock, self.losses = threading.Lock(), Losses()
        self.data: Values = np.zeros((blocks, dim), np.float32)
        self.is_empty = True

    def find(self, names: Keys) -> Rows:
        self.is_empty = False
        return names.astype(np.int64)

    def look(self, names: Keys) -> Rows:
        return names.astype(np.int64)

    def release(self, names: Keys, rows: Rows) -> None:
        self.data[rows] = 0
        self.is_empty = not self.data.any()

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    @property
    def in_use(self) -> int:
        return len(self.data)

    @property
    def top(self) -> int:
        return len(self.data)


def magnitude_of(kept: Kept) -> float:
    """The sum of absolute values of all residuals; of many rows about, from an even sample."""
    with kept.lock:
        step = max(1, kept.top // SAMPLE)
        return step * float(np.abs(kept.data[: kept.top : step]).sum(dtype=np.float64))


def give_back(kept: Kept, names: Keys, sent: Values, grads: Values) -> None:
    """Make residuals what they would be if `grads` had not been sent, as `sent`."""
    with kept.lock:
        lost = residuals.return_residuals(kept.data, kept.find(names), frozen(sent), frozen(grads))
        kept.losses.magnitude += lost


def capacity_of(dim: int, limit: int) -> int:
    """Rows, records and index included, in so many bytes."""
    rows = limit // (4 * dim + RECORD_BYTES + 9)
    while rows and rows * (4 * dim + RECORD_BYTES) + nbytes_for(rows) > limit:
        rows = rows * 15 // 16
    return rows

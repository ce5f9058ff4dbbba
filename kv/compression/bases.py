"""The last update of each row, as sender and receiver both know it: what differences refer to.

Both ends keep a `Base` for each stream of messages, a table's from one sender to one receiver, and
advance it by the same messages in the same order, so they hold the same bits. Messages are numbered
within a *run*. A receiver that misses one, or has given the run up, refuses what follows
(`UnknownBaseError`): that message is sent again without differences, and its sender begins another
run, in which every row starts from zero.

Source of the scheme: differential pulse-code modulation (Cutler, US patent 2605361, 1952); with
errors kept at the sender it is EF21's form (Richtárik et al., NeurIPS 2021) for successive updates.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kv.compression.kept import capacity_of
from kv.errors import UnknownBaseError
from kv.kernels import residuals
from kv.kernels.jit import frozen
from kv.store.space import RowSpace

Keys = NDArray[np.uint64]
Values = NDArray[np.float32]
Rows = NDArray[np.int64]

MOST_RUNS = 1 << 32


class Base:
    """One end of a stream.

    Args:
        dim: floats in a row.
        limit: bytes of it.

    Attributes:
        run: the number of the run; place: that of the next message in it.
    """

    def __init__(self, dim: int, limit: int) -> None:
        self.run, self.place = 0, 0
        self._dim, self._capacity = dim, capacity_of(dim, limit)
        self._space: RowSpace | None = None

    @property
    def nbytes(self) -> int:
        """Bytes in use."""
        return 0 if self._space is None else self._space.nbytes

    def begin(self, run: int | None = None) -> None:
        """Begin another run, by default the next."""
        self.run = (self.run + 1) % MOST_RUNS if run is None else run
        self.place, self._space = 0, None

    def has_room(self, count: int) -> bool:
        """Whether so many rows that it does not know would fit."""
        return (0 if self._space is None else self._space.in_use) + count <= self._capacity

    def find(self, names: Keys) -> Rows:
        """Rows of the last updates; -1 where there is none, which is as good as zero."""
        if self._space is None:
            return np.full(names.size, -1, np.int64)
        return self._space.index.find(frozen(names))[0]

    @property
    def data(self) -> Values:
        """All last updates, float32 (capacity, dim)."""
        return np.zeros((1, self._dim), np.float32) if self._space is None else self._space.data

    def advance(self, names: Keys, changes: Values) -> None:
        """Add changes to the last updates; `changes` become these. The next message is due.

        Raises:
            UnknownBaseError: there is no room for them; the run is over.
        """
        rows = self.find(names)
        new = np.flatnonzero(rows < 0)
        if new.size:
            if not self.has_room(new.size):
                run, place = self.run, self.place
                self.begin(run)
                raise UnknownBaseError(run, place)
            if self._space is None:
                nbytes = 4 * self._dim * self._capacity
                self._space = RowSpace("last updates", self._dim, 0, nbytes)
            made = self._space.add(frozen(names[new]), 1, 1)
            self._space.data[made] = 0
            rows[new] = made
        if names.size:
            residuals.advance_rows(self.data, rows, changes)
        self.place += 1

    def expect(self, run: int, place: int) -> None:
        """A message of that number has come; the first of a run begins it.

        Raises:
            UnknownBaseError: it is not the next one.
        """
        if place == 0:
            self.begin(run)
        elif (run, place) != (self.run, self.place):
            raise UnknownBaseError(run, place)

"""Rows by key: found, made and forgotten, each with the version of its last change.

A change is numbered: a row's version is the store's version when the row last changed. Joins where
the rows are (`space`), what happens when memory is full (`limits`) and how a row is made
(`formats`); which keys are to have rows, and for how long, is not asked here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from kv.errors import MissingKeyError
from kv.kernels import records
from kv.kernels.jit import frozen
from kv.spec import TableSpec
from kv.store.formats import FloatRows
from kv.store.index import Index
from kv.store.limits import Refuse

Keys = NDArray[np.uint64]
Values = NDArray[np.float32]
Rows = NDArray[np.int64]


class KeyedRows:
    """What all that is done with rows by key has in common. `SparseStore` is built on it.

    Args:
        spec: the table's definition, its mode and seed resolved.
        format: how a row lies in memory.
        limit: what happens when memory is full, and with it the space that rows lie in.
        now: the time in seconds, for what rows remember.
    """

    def __init__(
        self, spec: TableSpec, format: FloatRows, limit: Refuse, now: Callable[[], float]
    ) -> None:
        self.spec, self.dim, self._now = spec, spec.dim, now
        self.format, self.limit, self.space = format, limit, limit.space
        self.stride = limit.space.stride
        self.version = 0  # grows with every change

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.spec.name} rows={len(self)} version={self.version}>"

    @property
    def index(self) -> Index:
        """Keys and records of the rows."""
        return self.space.index

    @property
    def data(self) -> Values:
        """The rows in memory, float32 (capacity, stride): weights, then state, then padding."""
        return self.space.data

    @property
    def capacity(self) -> int:
        """Rows that address space is reserved for."""
        return self.space.capacity

    @property
    def generation(self) -> int:
        """Changes when the row number of a known key may have changed or become another key's."""
        return self.space.generation

    def locate(self, keys: Keys) -> Rows | None:
        """The row numbers of `keys`, int64 (n,), if all have rows in memory; else None."""
        rows, absent, on_disk = self.index.find(frozen(keys))
        return None if absent or on_disk else rows

    def row_versions(self, keys: Keys, rows: Rows | None = None) -> NDArray[np.int64]:
        """The version of each of the keys' rows, int64 (n,); 0 where there is none in memory.

        Args:
            rows: what `locate` said of `keys` in this `generation`.
        """
        if rows is None:
            rows, _, _ = self.index.find(frozen(keys))
        versions: NDArray[np.int64] = self.index.records[
            np.maximum(rows, 0), records.VERSION
        ].astype(np.int64)
        versions[rows < 0] = 0
        return versions

    def absent(self, keys: Keys) -> Keys:
        """Those of `keys` that have no row."""
        rows, absent, _ = self.index.find(frozen(keys))
        return keys[rows == -1] if absent else keys[:0]

    def create(self, keys: Keys) -> None:
        """Make and initialise rows for the keys that have none, whatever the table's policies.

        In a new store they are numbered 0, 1, … in the order of `keys`.
        """
        keys, version = frozen(keys), self.version + 1
        for some in self._slices(keys.size):
            part = keys[some]
            self.limit.settle(part)
            rows, absent, _ = self.index.find(part)
            if absent:
                self._bring(part, rows, absent, 0, version)
                self.limit.touch(rows)

    def delete(self, keys: Keys) -> int:
        """Forget rows; returns how many there were."""
        removed = self.space.remove(keys)
        self.version += bool(removed)
        return removed

    def validate(self) -> None:
        """Assert what must always hold between index, rows and free numbers."""
        self.space.validate()
        self.limit.validate()
        versions = self.index.records[: self.space.numbers.top, records.VERSION]
        assert (versions <= self.version).all(), "a row is newer than the store"

    def _bring(
        self,
        keys: Keys,
        rows: Rows,
        absent: int,
        on_disk: int,
        version: int,
        is_blank: bool = False,
    ) -> None:
        """Rows for `absent` of the keys, new, and for `on_disk` of them, read back.

        `rows` is completed in place. With `is_blank` new rows are the caller's to fill.

        Raises:
            ArenaFullError: no room for them; nothing changed.
        """
        self.limit.make_room(absent + on_disk, rows)
        if on_disk:
            places = np.flatnonzero(rows < -1)
            rows[places] = self.space.fetch(frozen(keys[places]), rows[places])
        if absent:
            self.version = version
            places = np.flatnonzero(rows == -1)
            wanted = frozen(keys[places])
            fresh = self.space.add(wanted, version, self._seconds())
            rows[places] = fresh
            if not is_blank:
                self.format.initialize(self.data, fresh, wanted)

    def _slices(self, size: int) -> Iterator[slice]:
        start = 0
        while start < size:
            stop = start + self.limit.at_once  # another number for each slice, maybe
            yield slice(start, stop)
            start = stop

    def _seconds(self) -> int:
        """The time as records keep it: whole seconds, never 0, which means that none is kept."""
        return max(1, int(self._now()))


def no_row(table: str, key: int) -> MissingKeyError:
    """What is to be said of a key without a row, in a table where that is an error."""
    return MissingKeyError(
        table, f"key {key} has no row and the table says missing=error; assign it first"
    )

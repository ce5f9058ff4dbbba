"""Copies of rows that a dispatcher has pulled, with the version that each is known of.

A pull that the cache of the step does not answer asks servers for what has changed since
(`kv.refreshing`), so rows that have not changed cross the network once. What is answered is as new
as a pull would have it: the server says of each row whether the copy is right.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kv.compression.kept import KeptRows
from kv.consistency.settings import SSP, Async, SemiSync, Sync
from kv.dispatcher.known_tables import KnownTable
from kv.dispatcher.receiving import Keys, Values
from kv.kernels.jit import frozen
from kv.placement import slot_of
from kv.refreshing import NOTHING, UNKNOWN, Known, Origin, known_rows

Versions = NDArray[np.int64]


class Counted(NamedTuple):
    """The versions of one server's parts, and what they are counted by."""

    origin: Origin
    versions: tuple[int, ...]


class Copy:
    """The rows of one table.

    Args:
        name: the table's, for errors.
        dim: floats in a row.
        limit: bytes of it, index included; above, rows that were asked for longest ago go.
    """

    def __init__(self, name: str, dim: int, limit: int) -> None:
        self._name, self._dim, self._limit = name, dim, limit
        self._counted: dict[int, Counted] = {}  # by rank of the server
        self.drop()

    def drop(self) -> None:
        """Forget all rows: versions are counted anew."""
        self._rows = KeptRows(f"{self._name}, copies", self._dim, self._limit)
        self._versions: Versions = np.zeros(0, np.int64)
        self._counted.clear()

    def look(self, keys: Keys) -> tuple[Values, Versions]:
        """Copies of rows, float32 (n, dim), and the versions they are known of, -1: there is none.

        What is returned of rows that are not there is not to be used.
        """
        values = np.empty((keys.size, self._dim), np.float32)
        rows = self._rows.look(frozen(keys))
        is_there = rows >= 0
        values[is_there] = self._rows.data[rows[is_there]]
        versions = np.full(keys.size, -1, np.int64)
        versions[is_there] = self._versions[rows[is_there]]
        return values, versions

    def known(self, server: int, keys: Keys, versions: Versions) -> Known:
        """What to tell a server of its rows, given what `look` said; NOTHING, if none is known."""
        counted = self._counted.get(server)
        if counted is None or not (versions >= 0).any():
            return NOTHING
        latest = np.array(counted.versions, np.int64)[slot_of(keys) % len(counted.versions)]
        ages = latest - versions
        is_told = (versions >= 0) & (ages >= 0) & (ages < UNKNOWN)
        return known_rows(
            counted.origin, counted.versions, np.where(is_told, ages, UNKNOWN).astype(np.uint16)
        )

    def fill(self, server: int, counted: Counted, keys: Keys, values: Values) -> None:
        """Rows are as a server had them at the versions `counted`.

        What is older than what is here, or of an origin before, is not taken.
        """
        if not self._is_current(server, counted):
            return
        given = np.array(counted.versions, np.int64)[slot_of(keys) % len(counted.versions)]
        rows = self._rows.look(frozen(keys))
        is_newer = rows < 0
        is_newer[~is_newer] = self._versions[rows[~is_newer]] <= given[~is_newer]
        keys, values, given = keys[is_newer], values[is_newer], given[is_newer]
        rows = self._rows.find(frozen(keys))
        if rows.size and rows.max() >= self._versions.size:
            more = max(int(rows.max()) + 1, 2 * self._versions.size) - self._versions.size
            self._versions = np.concatenate([self._versions, np.full(more, -1, np.int64)])
        is_kept = rows >= 0
        rows = rows[is_kept]
        self._rows.data[rows], self._versions[rows] = values[is_kept], given[is_kept]

    def _is_current(self, server: int, counted: Counted) -> bool:
        """Whether what a server has told is of now; what was of before is dropped."""
        origin, known = counted.origin, self._counted.get(server)
        newest = max((one.origin.map_version for one in self._counted.values()), default=0)
        if origin.map_version < newest or (known is not None and origin < known.origin):
            return False
        is_other = known is not None and (
            origin != known.origin or len(counted.versions) != len(known.versions)
        )
        if is_other or (self._counted and origin.map_version > newest):
            self.drop()
            known = None
        versions = counted.versions
        if known is not None:
            versions = tuple(map(max, versions, known.versions))
        self._counted[server] = Counted(origin, versions)
        return True

    @property
    def rows(self) -> int:
        """How many there are."""
        return self._rows.in_use

    @property
    def nbytes(self) -> int:
        """Bytes in use."""
        return self._rows.nbytes + self._versions.nbytes


class Copies:
    """Those of all tables.

    Args:
        limit: bytes of one table's; 0: there are none.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._copies: dict[int, Copy] = {}

    def of(self, table: KnownTable) -> Copy | None:
        """A table's; None of one that has none.

        Dense tables change whole. In `dc_async` servers must know what each worker was given.
        """
        mode = table.spec.mode
        if not self._limit or table.is_dense or not isinstance(mode, Async | SSP | Sync | SemiSync):
            return None
        copy = self._copies.get(table.id)
        if copy is None:
            copy = self._copies[table.id] = Copy(table.spec.name, table.spec.dim, self._limit)
        return copy

    def drop(self, table: KnownTable) -> None:
        """Forget the rows of a table."""
        if table.id in self._copies:
            self._copies[table.id].drop()

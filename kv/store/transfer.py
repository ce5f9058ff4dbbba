"""Rows that leave a store and come into one, some at a time, while it is in use.

Scans and exports pass over all rows, by places that `scans` keeps true; what is put is what another
store, or this one, has exported. Nothing of it counts as rows seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from kv.errors import ValueShapeError
from kv.kernels.jit import frozen
from kv.spec import TableSpec
from kv.store import rows as batches
from kv.store.formats import FloatRows
from kv.store.keyed import KeyedRows, Keys, Values
from kv.store.limits import Refuse
from kv.store.removals import Removals
from kv.store.rows import RowBatch, Slots
from kv.store.scans import Scans

BATCH = 65536  # rows of one batch of `items`


class MovableRows(KeyedRows):
    """Rows by key that others may read through, take with them, and bring."""

    def __init__(
        self, spec: TableSpec, format: FloatRows, limit: Refuse, now: Callable[[], float]
    ) -> None:
        super().__init__(spec, format, limit, now)
        self._scans = Scans(spec.name)

    @property
    def top(self) -> int:
        """Where a scan ends."""
        return self._scans.position(self.space.end)

    def items(self, batch: int = BATCH) -> Iterator[tuple[Keys, Values]]:
        """All rows in batches of (keys, weights), at most `batch` each; keys rise within a batch.

        Between two batches the table may change: rows that are there throughout come once, those
        that are added or go meanwhile may come or not. (In a table that spills, keys with equal
        fingerprints come in one batch, even if it is then larger.)
        """
        start = 0
        while start < self.top:
            keys, values, start = self.scan(start, batch)
            if keys.size:
                yield keys, values

    def scan(self, start: int, count: int) -> tuple[Keys, Values, int]:
        """Rows from the place `start` on, `count` or fewer: (keys, weights, where to go on).

        The scan begins at 0 and is over when the returned place is not below `top`.
        """
        keys, data, rows, stop = self.space.scan(self._scans.place(start), count)
        out = np.empty((rows.size, self.dim), np.float32)
        self.format.gather(data, rows, out)
        return keys, out, self._scans.go_on(stop, self.space.end)

    def count(self, slots: Slots) -> int:
        """How many rows there are in these slots, bool (1024,)."""
        total, start = 0, 0
        while start < self.space.end:
            found, start = batches.look(self.space, start, BATCH, slots, 0, 0)
            total += found.size
        return total

    @property
    def row_nbytes(self) -> int:
        """Bytes of a row in a `RowBatch`: weights and state, no padding."""
        return 4 * self.format.floats

    def export(self, keys: Keys) -> RowBatch:
        """The rows of those of `keys` that have one; nothing counts as seen or used."""
        rows, absent, _ = self.index.find(frozen(keys))
        found = rows[rows != -1] if absent else rows
        return batches.read(self.space, found, self.format.floats)

    def export_scan(
        self,
        start: int,
        count: int,
        slots: Slots | None = None,
        since: int = 0,
        seen_since: int = 0,
    ) -> tuple[RowBatch, int]:
        """Like `scan`, of whole rows: `count` places are looked at, so fewer rows may come.

        Args:
            slots: bool (1024,), the slots whose rows are wanted; None is all.
            since: only rows that changed after the store had this version;
            seen_since: and, unless it is 0, those seen in this second or later.
        """
        place = self._scans.place(start)
        found, stop = batches.look(self.space, place, count, slots, since, seen_since)
        go_on = self._scans.go_on(stop, self.space.end)
        return batches.read(self.space, found, self.format.floats), go_on

    def remove_slots(self, slots: Slots, start: int, count: int) -> int:
        """Forget the rows of `slots`, bool (1024,), among the next `count` places of a scan.

        Returns where that goes on; it is over as a `scan` is.
        """
        found, stop = batches.look(self.space, self._scans.place(start), count, slots, 0, 0)
        if found.size:
            keys = np.ascontiguousarray(batches.records_at(self.space, found)[:, 0])
            self.delete(frozen(keys))
        return self._scans.position(stop)

    def pack(self, most: int, quiet: float) -> bool | None:
        """Give memory back that removed rows have left, by moving `most` rows or fewer.

        Returns whether there is more to do; None: somebody scans, so nothing was done. A table that
        evicts or spills keeps what it has, which is what its limit says.

        Args:
            quiet: seconds without a scan under way; until then nothing is moved. One that takes
                longer between two calls hears a ScanError.
        """
        if type(self.limit) is not Refuse or not self.space.has_holes:
            return False
        if not self._scans.is_quiet(quiet):
            return None
        self._scans.end_epoch()
        return self.space.pack(most)

    def weights_of(self, batch: RowBatch) -> Values:
        """The weights of rows that were exported, float32 (n, dim), new memory."""
        out = np.empty((len(batch), self.dim), np.float32)
        data = np.ascontiguousarray(batch.data).view(np.float32)
        self.format.gather(data, np.arange(len(batch)), out)
        return out

    def put(self, batch: RowBatch, *, keep_versions: bool) -> None:
        """Set rows to what another store, or this one, has exported; made where there are none.

        The table's limits hold, admission does not.

        Args:
            keep_versions: leave the rows the versions that they come with, and let the store's
                version be none of them at least; else this is a change like any other.
        Raises:
            ValueShapeError: the rows are of another table's size, or a version is below 1.
            ArenaFullError: no room for the rows; those of keys that come before may be set.
        """
        self._check_batch(batch)
        if not len(batch):
            return
        if keep_versions:
            versions, version = batch.versions, max(self.version, int(batch.versions.max()))
        else:
            version = self.version + 1
            versions = np.full(len(batch), version, np.int64)
        for some in self._slices(len(batch)):
            part = batch.take(some)
            keys = frozen(part.keys)
            self.limit.settle(keys)
            rows, absent, on_disk = self.index.find(keys)
            if absent or on_disk:
                self._bring(keys, rows, absent, on_disk, version, is_blank=True)
            self.version = version
            batches.write(self.space, rows, part, versions[some])
            self.limit.touch(rows)

    def remove(self, keys: Keys) -> int:
        """Forget rows, as `delete`; what `put` makes, this takes away."""
        return self.delete(keys)

    def watch_removals(self) -> Removals:
        """From now on the keys that lose their rows are remembered, whatever takes them."""
        if self.space.removals is None:
            self.space.removals = Removals()
        return self.space.removals

    def _check_batch(self, batch: RowBatch) -> None:
        problem = ""
        if batch.row_nbytes != self.row_nbytes:
            problem = (
                f"rows of {batch.row_nbytes} bytes came, but with this dim, optimizer and storage "
                f"they have {self.row_nbytes}"
            )
        elif len(batch) and batch.versions.min() < 1:
            problem = f"a row came with version {batch.versions.min()}; they begin at 1"
        elif (batch.keys[1:] <= batch.keys[:-1]).any():
            problem = "rows came whose keys do not increase"
        if problem:
            raise ValueShapeError(self.spec.name, problem)

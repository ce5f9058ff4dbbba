"""Rows on their way out of a store and into another: to disk, to a backup, to a new owner.

A row travels as it lies in memory, weights and optimiser state together, and with its record, so
that what comes back is the row to the bit. Nothing here changes a store but `write`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv.errors import ValueShapeError
from kv.kernels.batches import put_batch, take_batch
from kv.kernels.jit import frozen
from kv.kernels.records import SHOW, VERSION
from kv.kernels.tiers import HEAD
from kv.placement import slot_of
from kv.store.index import ORDERS
from kv.store.space import RowSpace

Keys = NDArray[np.uint64]
Rows = NDArray[np.int64]
Slots = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class RowBatch:
    """Rows by key, exactly as they are stored, each with its row number's record.

    Attributes:
        keys: uint64 (n,), strictly increasing.
        data: uint8 (n, row_nbytes): weights (float32, or float16 in whole words), then state.
        versions: int64 (n,), 1 or more: the store's version when the row last changed.
        shows: uint32 (n,), in 256ths.
        seen: uint32 (n,), the second the row was last seen in.
    """

    keys: Keys
    data: NDArray[np.uint8]
    versions: NDArray[np.int64]
    shows: NDArray[np.uint32]
    seen: NDArray[np.uint32]

    def __post_init__(self) -> None:
        size = self.keys.size
        lengths = {len(self.data), self.versions.size, self.shows.size, self.seen.size}
        if self.data.ndim != 2 or lengths != {size}:
            raise ValueShapeError(
                "rows", f"{size} keys with columns of {sorted(lengths)} entries are no batch"
            )

    def __len__(self) -> int:
        return int(self.keys.size)

    def __repr__(self) -> str:
        return f"<RowBatch rows={len(self)} row_nbytes={self.row_nbytes}>"

    @property
    def row_nbytes(self) -> int:
        """Bytes of a row."""
        return int(self.data.shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes of all columns together."""
        return sum(column.nbytes for column in self.columns())

    def columns(self) -> list[NDArray[Any]]:
        """keys, data, versions, shows, seen: what travels, and what `RowBatch(*columns)` takes."""
        return [getattr(self, field.name) for field in fields(self)]

    def take(self, places: Rows | slice | Slots) -> RowBatch:
        """The rows at `places`, rising."""
        return RowBatch(*[column[places] for column in self.columns()])

    def in_slots(self, slots: Slots) -> RowBatch:
        """The rows whose slots are marked in `slots`, bool (1024,)."""
        return self.take(slots[slot_of(self.keys)])

    def show_counts(self) -> NDArray[np.float32]:
        """Shows as the store's other calls give them, float32 (n,)."""
        return (self.shows / SHOW).astype(np.float32)

    @classmethod
    def empty(cls, row_nbytes: int) -> RowBatch:
        """No rows of that size."""
        return cls(*new_columns(0, row_nbytes))

    @classmethod
    def together(cls, batches: Sequence[RowBatch]) -> RowBatch:
        """All rows of one or more batches, no key in two of them, in one."""
        if len(batches) == 1:
            return batches[0]
        together = [
            np.concatenate(columns)
            for columns in zip(*(batch.columns() for batch in batches), strict=True)
        ]
        return cls(*together).take(np.argsort(together[0]))


def new_columns(count: int, row_nbytes: int) -> list[NDArray[Any]]:
    """Columns of a batch of `count` rows, not filled."""
    return [
        np.empty(count, np.uint64),
        np.empty((count, row_nbytes), np.uint8),
        np.empty(count, np.int64),
        np.empty(count, np.uint32),
        np.empty(count, np.uint32),
    ]


def read(space: RowSpace, found: Rows, floats: int) -> RowBatch:
    """The rows at `found`, as the index says them, in memory or on disk, none of them -1.

    The keys rise if those of `found` do.

    Args:
        floats: of a row, its padding left out.
    """
    if space.cold is None or not found.size or found.min() >= 0:
        return _read(space.data.view(np.uint32), space.index.records, found, floats, 0)
    batch = RowBatch(*new_columns(found.size, 4 * floats))
    hot, on_disk = np.flatnonzero(found >= 0), np.flatnonzero(found < 0)
    records = space.cold.records
    sides = (
        (hot, _read(space.data.view(np.uint32), space.index.records, found[hot], floats, 0)),
        (
            on_disk,
            _read(records.view(np.uint32), records, -2 - found[on_disk], floats, int(HEAD)),
        ),
    )
    for places, side in sides:
        for whole, column in zip(batch.columns(), side.columns(), strict=True):
            whole[places] = column
    return batch


def _read(words: NDArray[Any], records: Keys, places: Rows, floats: int, start: int) -> RowBatch:
    _, data, *rest = new_columns(places.size, 4 * floats)
    take_batch(words, records, places, start, data.view(np.uint32), *rest)
    return RowBatch(records[places, 0], data, *rest)


def look(
    space: RowSpace, start: int, count: int, slots: Slots | None, since: int, seen_since: int
) -> tuple[Rows, int]:
    """Which rows a scan's next `count` places hold, by rising keys, and where it goes on.

    Places are as in `RowSpace.scan`.

    Args:
        slots: bool (1024,), only rows of these slots; None is all.
        since: only rows with a greater version, or, unless it is 0,
        seen_since: rows that were seen in that second or later.
    """
    if space.cold is None:
        stop = min(max(start, 0) + max(count, 1), space.numbers.top)
        found = max(start, 0) + np.flatnonzero(space.index.records[max(start, 0) : stop, VERSION])
    else:
        found, stop = space.index.rows_from(min(max(start, 0), ORDERS - 1), max(count, 1))
    records = records_at(space, found)
    if since > 0:
        changed = records[:, VERSION] > np.uint64(since)
        if seen_since:
            changed |= (records[:, 2] & np.uint64(0xFFFFFFFF)) >= np.uint64(seen_since)
        found, records = found[changed], records[changed]
    if slots is not None:
        mine = slots[slot_of(records[:, 0])]
        found, records = found[mine], records[mine]
    return found[np.argsort(records[:, 0])], stop


def records_at(space: RowSpace, found: Rows) -> Keys:
    """Copies of the records of rows in memory or on disk, uint64 (n, 3)."""
    if space.cold is None or not found.size or found.min() >= 0:
        return space.index.records[found]
    records = np.empty((found.size, 3), np.uint64)
    hot, on_disk = np.flatnonzero(found >= 0), np.flatnonzero(found < 0)
    records[hot] = space.index.records[found[hot]]
    records[on_disk] = space.cold.records[-2 - found[on_disk], :3]
    return records


def write(space: RowSpace, rows: Rows, batch: RowBatch, versions: NDArray[np.int64]) -> None:
    """Overwrite `rows`, in memory, with the rows of `batch`, whose keys they have."""
    put_batch(
        space.data.view(np.uint32),
        space.index.records,
        rows,
        frozen(frozen(batch.data).view(np.uint32)),
        frozen(versions),
        frozen(batch.shows),
        frozen(batch.seen),
    )

"""A sparse table's rows here in parts: which keys lie in which, and what all of them hold together.

A key's part comes from its slot, so it is the same on every server with as many parts. Nothing here
takes turns: calls that pass over rows do some at a time, and hold one part's lock meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from kv.fairlock import FairLock
from kv.kernels.jit import frozen
from kv.kernels.slots import group_by_owner
from kv.placement import NUM_SLOTS, slot_of
from kv.spec import TableSpec
from kv.store import arena
from kv.store.keyed import Keys, Values
from kv.store.pieces import Cut, Part, Piece
from kv.store.rows import RowBatch, Slots
from kv.store.sparse import SparseStore
from kv.store.stats import StoreStats
from kv.store.transfer import BATCH

CHUNK = 1 << 17  # floats of a chunk: 5 461 rows of 16, which an optimiser passes in under 1 ms
KEY_FLOATS = 8  # what looking up a key costs, in floats moved
DISK_FACTOR = 16  # times as much for rows that may have to be read from disk
QUICK = 2  # chunks that a request may have and yet take no turns
PART_SHIFT = 44  # where the part stands in the position of a scan


class PartitionedRows:
    """The stores of a sparse table on one server. `Parts` is built on it, and has the arguments."""

    def __init__(self, spec: TableSpec, count: int, spill_dir: str) -> None:
        self.spec, self.dim = spec, spec.dim
        share = None if count == 1 else arena.physical_memory() // count
        self.parts = [
            Part(SparseStore(spec, reserve=share, parts=count, spill_dir=spill_dir))
            for _ in range(count)
        ]
        self.key_cost = spec.dim + KEY_FLOATS  # of a request, in floats moved
        if spec.when_full == "spill" and spec.memory_limit:
            self.key_cost *= DISK_FACTOR
        self.chunk = max(1, CHUNK // self.key_cost)  # keys
        self._all = Piece(self.parts[0], None, 0) if count == 1 else None
        self.mine: Slots | None = None  # the slots that this server owns; None: of all rows here
        self._part_of_slot = frozen((np.arange(NUM_SLOTS) % count).astype(np.uint16))

    def __len__(self) -> int:
        """Rows of this server's own slots; copies of others' do not count."""
        return sum(map(self._count, self.parts))

    def __repr__(self) -> str:
        name = f"{type(self).__name__} {self.spec.name}"
        return f"<{name} parts={len(self.parts)} rows={len(self)}>"

    @property
    def copies(self) -> int:
        """Rows that are copies of another server's."""
        return sum(len(part.store) for part in self.parts) - len(self)

    @property
    def stores(self) -> list[tuple[FairLock, SparseStore]]:
        """The store of each part, and the lock to hold around it."""
        return [(part.lock, part.store) for part in self.parts]

    @property
    def version(self) -> int:
        """Grows with every change."""
        if self._all is not None:
            return self.parts[0].store.version
        return sum(part.store.version for part in self.parts)

    @property
    def versions(self) -> list[int]:
        """Of each part, what its rows' versions are counted by."""
        return [part.store.version for part in self.parts]

    def own(self, mine: Slots) -> None:
        """Own the rows of these slots, bool (1024,), and no others."""
        for part in self.parts:
            with part.lock:
                part.store.own(mine)
        self.mine = mine

    def cut(self, keys: Keys, learns: bool = False) -> Cut:
        """Which parts the keys lie in; the cut of a list that comes again may learn."""
        count = len(self.parts)
        if count == 1:
            return [Piece(self.parts[0], None, keys.size, learns)]
        order, counts = np.empty(keys.size, np.int64), np.empty(count, np.int64)
        owners, starts = np.empty(keys.size, np.uint16), np.empty(count, np.int64)
        group_by_owner(frozen(keys), self._part_of_slot, owners, counts, starts, order)
        if counts.max() == keys.size:
            return [Piece(self.parts[int(counts.argmax())], None, keys.size, learns)]
        groups = np.split(order, np.cumsum(counts)[:-1])
        return [
            Piece(part, group, group.size, learns)
            for part, group in zip(self.parts, groups, strict=True)
            if group.size
        ]

    def quick(self, keys: Keys, cut: Cut | None) -> Piece | None:
        """The only piece of short `keys`, which need no turns; else None.

        Args:
            cut: of the keys, if that is known; else they are cut here where it is worth it.
        """
        if keys.size > QUICK * self.chunk:
            return None
        if cut is None:
            if self._all is not None:
                return self._all
            cut = self.cut(keys)
        return cut[0] if len(cut) == 1 and cut[0].places is None else None

    def items(self, batch: int = BATCH) -> Iterator[tuple[Keys, Values]]:
        """All rows in batches of (keys, weights), at most `batch` each; keys rise within one."""
        start = 0
        while start >= 0:
            keys, values, start = self.scan(start, batch)
            if keys.size:
                yield keys, values

    def scan(self, start: int, count: int) -> tuple[Keys, Values, int]:
        """Some rows from position `start` (0 is the first): (keys, weights, where to go on).

        At most `count` of them, and at most a chunk. Where to go on is -1 at the end. Between two
        calls the table may change; a key added meanwhile may come or not.
        """
        number, place = _number_and_place(start)
        if number >= len(self.parts):
            return np.empty(0, np.uint64), np.empty((0, self.dim), np.float32), -1
        part = self.parts[number]
        with part.lock:
            keys, values, go_on = part.store.scan(place, min(count, self.chunk))
            is_over = go_on >= part.store.top
        if self.mine is not None:
            own = self.mine[slot_of(keys)]
            keys, values = keys[own], values[own]
        return keys, values, self._position(number, go_on, is_over)

    def export_scan(
        self,
        start: int,
        count: int,
        slots: Slots | None = None,
        since: Sequence[int] | None = None,
        seen_since: int = 0,
    ) -> tuple[RowBatch, int]:
        """Whole rows by positions as `scan` has them; -1 at the end.

        A call looks at no more than a chunk, and each batch is of one part and one moment.

        Args:
            since: of each part the store's version after which rows must have changed.
            slots: bool (1024,), the slots whose rows are wanted; None is this server's own.
            seen_since: see `SparseStore.export_scan`.
        """
        slots = self.mine if slots is None else slots
        number, place = _number_and_place(start)
        if number >= len(self.parts):
            return RowBatch.empty(self.row_nbytes), -1
        part, version = self.parts[number], since[number] if since is not None else 0
        with part.lock:
            store = part.store
            batch, go_on = store.export_scan(
                place, min(count, self.chunk), slots, version, seen_since
            )
            is_over = go_on >= store.top
        return batch, self._position(number, go_on, is_over)

    @property
    def row_nbytes(self) -> int:
        """Bytes of a row in a `RowBatch`."""
        return self.parts[0].store.row_nbytes

    def pack(self, number: int, most: int, quiet: float) -> bool | None:
        """See `SparseStore.pack`, of one part."""
        part = self.parts[number]
        with part.lock:
            return part.store.pack(most, quiet)

    def stats(self) -> list[StoreStats]:
        """Of each part."""
        found = []
        for part in self.parts:
            with part.lock:
                stats = part.store.stats()
                if self.mine is not None:
                    stats = replace(stats, rows=part.store.count(self.mine))
            found.append(stats)
        return found

    def set_lr(self, lr: float) -> None:
        """The learning rate of later pushes, before the schedule's factor."""
        for part in self.parts:
            with part.lock:
                part.store.set_lr(lr)

    def validate(self) -> None:
        """Assert what must always hold: of each part, and that keys lie in their own."""
        for number, part in enumerate(self.parts):
            assert part.promised == 0, f"part {number} has promised room to nobody"
            part.store.validate()
            for keys, _ in part.store.items():  # noqa: PERF102 (it is no dictionary)
                assert all(p.part is part for p in self.cut(keys)), f"part {number} is mixed"

    def _position(self, number: int, place: int, is_over: bool) -> int:
        """Where a scan goes on that has come to `place` of a part; -1 at the end of the last."""
        if not is_over:
            return (number << PART_SHIFT) + place
        return (number + 1) << PART_SHIFT if number + 1 < len(self.parts) else -1

    def _count(self, part: Part) -> int:
        if self.mine is None:
            return len(part.store)
        with part.lock:
            return part.store.count(self.mine)


def _number_and_place(position: int) -> tuple[int, int]:
    """Which part a scan has come to, and which place in it."""
    position = max(position, 0)
    return position >> PART_SHIFT, position & ((1 << PART_SHIFT) - 1)

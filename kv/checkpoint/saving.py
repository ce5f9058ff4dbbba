"""One server's share of a checkpoint, written while the server works.

Rows are read chunk by chunk under their part's lock, which others get in between: each row is of
one moment, weights and state together, all of them only if nobody pushes meanwhile. What changed
while a part was read has a later version than the one noted before, and is in the next checkpoint
once more; keys that lost their rows meanwhile are looked at again at the end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kv.checkpoint.manifest import FileEntry, ServerShard, TablePart, ranges_of_slots
from kv.checkpoint.places import Place
from kv.checkpoint.rowfile import RowWriter, new_digest
from kv.checkpoint.state import pack_state
from kv.engine import Engine
from kv.engine_table import Table
from kv.fairlock import FairLock
from kv.placement import NUM_SLOTS
from kv.store.blocks import Blocks
from kv.store.layout import layout_of
from kv.store.sparse import SparseStore

COUNT = 1 << 14  # rows looked at while a lock is held, at most
ROW_BUDGET = 1 << 20  # bytes of rows, likewise
Slots = NDArray[np.bool_]


@dataclass(frozen=True)
class Mark:
    """How far one store was when a checkpoint began to read it."""

    version: int
    removals: int
    second: int


@dataclass(frozen=True)
class Marks:
    """Those of all stores, by table and part, and the slots that were read."""

    slots: bytes
    stores: dict[str, list[Mark]] = field(default_factory=dict)


def stores_of(table: Table) -> list[tuple[SparseStore, FairLock]]:
    """The stores of a table, by part, each with the lock that guards it."""
    if isinstance(table.store, Blocks):
        return [(table.store.store, table.store.lock)]
    return [(part.store, part.lock) for part in table.store.parts]


class ShardSaver:
    """Writes shares of checkpoints, and remembers enough to write only what has changed.

    Args:
        engine: the server's tables.
        rank: of the server.
    """

    def __init__(self, engine: Engine, rank: int) -> None:
        self._engine, self._rank = engine, rank
        self._marks: dict[str, Marks] = {}  # by the name of the checkpoint

    def save(
        self, place: Place, name: str, base: str | None, slots: Slots | None, *, is_still: bool
    ) -> ServerShard:
        """Write the rows of this server's slots into the checkpoint `name`.

        Args:
            base: the checkpoint to go on from; everything is written if that is not possible.
            slots: bool (1024,), those that are owned here; None is all.
            is_still: nobody pushes, so that nothing may be held back for a round.
        Raises:
            CheckpointError: a file cannot be written.
            ValueError: pushes are held back.
        """
        if is_still and self._engine.held:
            raise ValueError(f"{self._engine.held} numbers wait for a round to close; end the step")
        owned = np.ones(NUM_SLOTS, np.bool_) if slots is None else slots
        known = self._marks.get(base) if base is not None else None
        since = known if known is not None and self._can_go_on(known, owned) else None
        marks = Marks(owned.tobytes())
        with self._engine.lock:
            tables = list(self._engine.tables)
            completed = list(self._engine.progress.completed)
        files: list[FileEntry] = []
        parts: dict[str, TablePart] = {}
        for number, table in enumerate(tables):
            found = _TableSaver(place, name, f"server-{self._rank}.table-{number}", table)
            before = since.stores.get(table.spec.name) if since else None
            parts[table.spec.name] = found.describe(is_still)
            for part in range(len(stores_of(table))):
                entry, mark = found.save_part(part, slots, before[part] if before else None)
                files.append(entry)
                marks.stores.setdefault(table.spec.name, []).append(mark)
        self._remember(name, base, marks)
        return ServerShard(
            self._rank, ranges_of_slots(owned), completed, parts, files, is_full=since is None
        )

    def _can_go_on(self, known: Marks, owned: Slots) -> bool:
        """Whether all that has changed since those marks can be told."""
        if known.slots != owned.tobytes():
            return False
        for table in list(self._engine.tables):
            stores = known.stores.get(table.spec.name, [])
            for (store, lock), mark in zip(stores_of(table), stores, strict=False):
                with lock:
                    if not store.watch_removals().has(mark.removals):
                        return False
        return True

    def _remember(self, name: str, base: str | None, marks: Marks) -> None:
        """Keep the marks of this and of its base, which is tried again if this does not succeed."""
        self._marks = {kept: self._marks[kept] for kept in (base,) if kept in self._marks}
        self._marks[name] = marks
        for table in list(self._engine.tables):
            of_parts = [known.stores.get(table.spec.name) for known in self._marks.values()]
            for part, (store, lock) in enumerate(stores_of(table)):
                places = [marks[part].removals for marks in of_parts if marks is not None]
                with lock:
                    if places:
                        store.watch_removals().forget(min(places))


class _TableSaver:
    """Writes one table's parts."""

    def __init__(self, place: Place, name: str, stem: str, table: Table) -> None:
        self._place, self._name, self._table = place, name, table
        readable = re.sub(r"[^A-Za-z0-9_.-]+", "_", table.spec.name)[:40]
        self._stem = f"{stem}.{readable}"

    def describe(self, is_still: bool) -> TablePart:
        """Clock, rate and counters of the table; where rows lie only while nobody pushes."""
        stores = stores_of(self._table)
        gates, left = [], []
        layouts = [layout_of(store) for store, _ in stores] if is_still else []
        for part, (store, lock) in enumerate(stores):
            if store.counter is None:
                continue
            with lock:
                counters, remaining = store.counter.export()
            gates.append(self._write(f"part-{part}.counters", part, counters.tobytes()))
            left.append(remaining)
        return TablePart(
            clock=self._table.mode.clock,
            lr=stores[0][0].lr,
            versions=[store.version for store, _ in stores],
            size=len(self._table.store),
            gates=gates,
            left=left,
            layouts=[
                self._write(f"part-{part}.layout", part, pack_state(vars(layout)))
                for part, layout in enumerate(layouts)
                if layout is not None
            ],
        )

    def _write(self, name: str, part: int, data: bytes) -> FileEntry:
        path = f"{self._stem}.{name}"
        with self._place.create(f"{self._name}/{path}") as file:
            file.write(data)
        digest = new_digest()
        digest.update(data)
        return FileEntry(path, len(data), digest.hexdigest(), self._table.spec.name, part)

    def save_part(
        self, part: int, slots: Slots | None, before: Mark | None
    ) -> tuple[FileEntry, Mark]:
        """Write a part: all rows, or those that changed after `before`."""
        store, lock = stores_of(self._table)[part]
        path = f"{self._stem}.part-{part}.rows"
        with self._place.create(f"{self._name}/{path}") as file:
            writer = RowWriter(file)
            with lock:
                removals = store.watch_removals()
                mark = Mark(store.version, removals.place, store.seen_since)
                gone = removals.since(before.removals) if before is not None else None
            if gone is not None:
                writer.remove(gone)
            self._write_rows(writer, store, lock, slots, before)
            with lock:
                again = removals.since(mark.removals) if removals.has(mark.removals) else None
            if again is None:
                raise ValueError(
                    f"table {self._table.spec.name} lost more rows than can be remembered while "
                    f"they were read; take step checkpoints of it"
                )
            self._write_again(writer, store, lock, again)
        entry = FileEntry(
            path,
            writer.nbytes,
            writer.digest,
            self._table.spec.name,
            part,
            writer.rows,
            writer.removed,
        )
        return entry, mark

    def _write_rows(
        self,
        writer: RowWriter,
        store: SparseStore,
        lock: FairLock,
        slots: Slots | None,
        before: Mark | None,
    ) -> None:
        version, second = (before.version, before.second) if before is not None else (0, 0)
        count = max(1, min(COUNT, ROW_BUDGET // store.row_nbytes))
        if self._table.is_dense:
            count = max(1, len(store))  # the array as it was between two pushes
        start, is_over = 0, False
        while not is_over:
            with lock:
                batch, start = store.export_scan(start, count, slots, version, second)
                is_over = start >= store.top
            writer.put(batch)

    def _write_again(
        self, writer: RowWriter, store: SparseStore, lock: FairLock, keys: NDArray[np.uint64]
    ) -> None:
        """Keys that lost their rows while they were read, and may have new ones in other places."""
        for some in _slices(keys, COUNT):
            with lock:
                batch = store.export(some)
            writer.remove(some)
            writer.put(batch)


def _slices(keys: NDArray[np.uint64], count: int) -> Sequence[NDArray[np.uint64]]:
    return [keys[start : start + count] for start in range(0, keys.size, count)]

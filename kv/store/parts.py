"""The rows of a sparse table on one server, in parts that threads work on beside each other.

A part is a `SparseStore` with a lock of its own; a key's part comes from its slot, so it is the
same on every server with as many parts. Calls are generators (`kv.executor.Turns`): they work in
chunks, hold a part's lock for one chunk only, and yield between two, so that a request over a
million keys delays one over a single key by a chunk at most. A request over several parts is cut
by a kernel and the pieces yielded, to run at the same time.

A pull or push is therefore not one event: another worker's may come between two of its chunks.
Each row is read and written whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from kv.engine_log import Cause, RowLog
from kv.errors import MissingKeyError
from kv.executor import Turns
from kv.fairlock import FairLock
from kv.kernels.jit import frozen
from kv.kernels.rows import expand, scatter
from kv.kernels.slots import group_by_owner
from kv.placement import NUM_SLOTS, slot_of
from kv.spec import TableSpec
from kv.store import arena
from kv.store.delay import Delay, part_of
from kv.store.rows import RowBatch, Slots
from kv.store.sparse import SparseStore
from kv.store.stats import StoreStats
from kv.store.transfer import BATCH

T = TypeVar("T", bound=np.generic)
Keys = NDArray[np.uint64]
Values = NDArray[np.float32]
Places = NDArray[np.int64]

CHUNK = 1 << 17  # floats of a chunk: 5 461 rows of 16, which an optimiser passes in under 1 ms
KEY_FLOATS = 8  # what looking up a key costs, in floats moved
DISK_FACTOR = 16  # times as much for rows that may have to be read from disk
QUICK = 2  # chunks that a request may have and yet take no turns
PART_SHIFT = 44  # where the part stands in the position of a scan
_NO_CAUSE = Cause()


class Part:
    """A store and its lock."""

    __slots__ = ("lock", "promised", "store")

    def __init__(self, store: SparseStore) -> None:
        self.store, self.lock = store, FairLock()
        self.promised = 0  # rows that pushes under way may still make

    def has_room(self, count: int) -> bool:
        """Whether `count` more rows may be made for certain; the lock is held."""
        return self.store.limit.has_room(self.promised + count)

    def promise(self, count: int) -> bool:
        """Set room aside for `count` rows, if it is there for certain."""
        with self.lock:
            is_there = self.has_room(count)
            self.promised += count if is_there else 0
            return is_there

    def ensure(self, count: int) -> None:
        """Set room aside for `count` rows; raises ArenaFullError if there is none."""
        with self.lock:
            self.store.limit.ensure(self.promised + count)
            self.promised += count

    def refuse_missing(self, keys: Keys) -> None:
        """Raise MissingKeyError if a key has no row; the lock is held."""
        absent = self.store.absent(keys)
        if absent.size:
            raise MissingKeyError(
                self.store.spec.name,
                f"key {int(absent[0])} has no row and the table says missing=error; "
                f"assign it first",
            )


class Piece:
    """The keys of a list that lie in one part.

    A piece of a list that comes again learns the keys' row numbers, chunk by chunk; they stand
    while the store's generation does. It then belongs to one worker's requests, one at a time.
    One that has not come again for a while is told to forget them: memory in which every list
    leaves its rows is always cold.
    What has not learned may be shared by all lists that lie in the part whole.

    Args:
        places: where in the list the keys are, int64, increasing; None: it is the whole list.
        size: how many there are.
        learns: whether row numbers are kept.
    """

    __slots__ = ("_generation", "_has_come_again", "_rows", "part", "places", "size")

    def __init__(self, part: Part, places: Places | None, size: int, learns: bool = False) -> None:
        self.part, self.places, self.size = part, places, size
        self._rows: dict[tuple[int, int], Places] | None = {} if learns else None  # by chunk
        self._generation = part.store.generation
        self._has_come_again = False

    def forget_unless_used(self) -> None:
        """Drop the row numbers, if they have not been asked for again; they may be learned anew."""
        if self._rows and not self._has_come_again:
            self._rows.clear()

    def take(self, array: NDArray[T], some: slice) -> NDArray[T]:
        """What `array`, of the whole list, has for the chunk `some` of this piece."""
        return array[some] if self.places is None else array[self.places[some]]

    def rows(self, keys: Keys, start: int = 0) -> Places | None:
        """Row numbers of `keys`, which begin at `start` of this piece, if they are known.

        A piece that learns looks for those it does not know. The part's lock is held.
        """
        if self._rows is None:
            return None
        rows = self._known(keys, start)
        if rows is None:
            rows = self.part.store.locate(keys)
            if rows is not None:
                self._rows[start, keys.size] = rows
        return rows

    def push(
        self, keys: Keys, grads: Values, clock: int, start: int = 0, delay: Delay | None = None
    ) -> None:
        """One optimiser step on `keys`, which begin at `start` of this piece; the lock is held.

        What is to be learned comes from the push itself: its look-up notes versions and times in
        passing, which on rows that were located before would be a pass of its own.
        """
        store, rows = self.part.store, self._known(keys, start)
        generation = store.generation
        found = store.push(keys, grads, clock, rows, None, delay)
        if self._rows is not None and found is not None and store.generation == generation:
            self._rows[start, keys.size] = found

    def _known(self, keys: Keys, start: int) -> Places | None:
        """Row numbers that have been learned and still stand."""
        if self._rows is None:
            return None
        generation = self.part.store.generation
        if self._generation != generation:
            self._generation = generation
            self._rows.clear()
        rows = self._rows.get((start, keys.size))
        self._has_come_again |= rows is not None
        return rows


Cut = list[Piece]
"""A key list by parts; those without any of its keys are left out."""


class Parts:
    """A sparse table's rows here. Arguments are checked: keys strictly increasing, values finite.

    Args:
        spec: the table's definition, its mode and seed resolved.
        count: parts.
        spill_dir: where rows that are spilled lie; empty is the system's directory for temporary
            files.
    """

    def __init__(self, spec: TableSpec, count: int = 1, spill_dir: str = "") -> None:
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
        self.log: RowLog | None = None  # hears of changes, where copies of the rows are kept
        self.mine: Slots | None = None  # the slots that this server owns; None: of all rows here
        self._part_of_slot = frozen((np.arange(NUM_SLOTS) % count).astype(np.uint16))

    def own(self, mine: Slots) -> None:
        """Own the rows of these slots, bool (1024,), and no others."""
        for part in self.parts:
            with part.lock:
                part.store.own(mine)
        self.mine = mine

    def __len__(self) -> int:
        """Rows of this server's own slots; copies of others' do not count."""
        return sum(map(self._count, self.parts))

    @property
    def copies(self) -> int:
        """Rows that are copies of another server's."""
        return sum(len(part.store) for part in self.parts) - len(self)

    def _count(self, part: Part) -> int:
        if self.mine is None:
            return len(part.store)
        with part.lock:
            return part.store.count(self.mine)

    def __repr__(self) -> str:
        return f"<Parts {self.spec.name} parts={len(self.parts)} rows={len(self)}>"

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

    def pull(self, keys: Keys, create: bool, out: Values, cut: Cut) -> Turns[None]:
        """Weights of `keys`, cut by `cut`, into `out`; see `SparseStore.pull`."""
        yield from beside([self._pull_piece(piece, keys, create, out) for piece in cut])

    def versions_of(self, keys: Keys, cut: Cut) -> Turns[NDArray[np.int64]]:
        """When the row of each of the keys last changed; 0 where there is none in memory."""
        out = np.zeros(keys.size, np.int64)
        for piece in cut:
            for some in self._chunks(piece):
                mine = piece.take(keys, some)
                with piece.part.lock:
                    found = piece.part.store.row_versions(mine, piece.rows(mine, some.start))
                out[some if piece.places is None else piece.places[some]] = found
                yield
        return out

    def push(
        self,
        keys: Keys,
        grads: Values,
        clock: int,
        cut: Cut,
        cause: Cause = _NO_CAUSE,
        delay: Delay | None = None,
    ) -> Turns[None]:
        """One optimiser step on the rows of `keys`.

        Rows that are gone by now are left out where the table makes none. Where copies are kept, a
        part's rows change all at once, so that the copy has all of them, and knows of it, or none.
        """
        yield from beside(
            [self._push_piece(piece, keys, grads, clock, cause, delay) for piece in cut]
        )

    def assign(self, keys: Keys, values: Values) -> Turns[None]:
        """Set rows outright."""
        for piece in self.cut(keys):
            for some in self._chunks(piece):
                mine, given = piece.take(keys, some), piece.take(values, some)
                with piece.part.lock:
                    piece.part.store.assign(mine, given)
                    if self.log is not None:
                        self.log.changed(piece.part.store, mine, _NO_CAUSE)
                yield

    def delete(self, keys: Keys) -> Turns[int]:
        """Forget rows; returns how many there were."""
        count = 0
        for piece in self.cut(keys):
            for some in self._chunks(piece):
                with piece.part.lock:
                    count += piece.part.store.delete(piece.take(keys, some))
                yield
        return count

    def refuse_missing(self, keys: Keys, cut: Cut) -> Turns[None]:
        """Raise MissingKeyError if a key has no row."""
        for piece in cut:
            for some in self._chunks(piece):
                with piece.part.lock:
                    piece.part.refuse_missing(piece.take(keys, some))
                yield

    # -- room: a push that finds none has changed nothing -----------------------------------

    def promise(self, keys: Keys, cut: Cut) -> Turns[list[int]]:
        """Set room aside for rows that `keys` may need; `redeem` it when they are made.

        Raises:
            ArenaFullError: there is none; nothing is set aside.
        """
        granted: list[int] = []
        try:
            for piece in cut:
                count = piece.size
                if not piece.part.promise(count):
                    count = yield from self._count_absent(piece, keys)
                    piece.part.ensure(count)
                granted.append(count)
        except BaseException:
            self.redeem(cut, granted)
            raise
        return granted

    def redeem(self, cut: Cut, granted: Sequence[int]) -> None:
        """The rows are made, or will not be."""
        for piece, count in zip(cut, granted, strict=False):
            with piece.part.lock:
                piece.part.promised -= count

    def _count_absent(self, piece: Piece, keys: Keys) -> Turns[int]:
        absent = 0
        for some in self._chunks(piece):
            with piece.part.lock:
                absent += piece.part.store.absent(piece.take(keys, some)).size
            yield
        return absent

    # -- all rows ---------------------------------------------------------------------------

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
        start = max(start, 0)
        number, row = start >> PART_SHIFT, start & ((1 << PART_SHIFT) - 1)
        if number >= len(self.parts):
            return np.empty(0, np.uint64), np.empty((0, self.dim), np.float32), -1
        part = self.parts[number]
        with part.lock:
            keys, values, go_on = part.store.scan(row, min(count, self.chunk))
            is_over = go_on >= part.store.top
        if self.mine is not None:
            own = self.mine[slot_of(keys)]
            keys, values = keys[own], values[own]
        if not is_over:
            return keys, values, (number << PART_SHIFT) + go_on
        return keys, values, (number + 1) << PART_SHIFT if number + 1 < len(self.parts) else -1

    # -- rows as they are stored ----------------------------------------------------------------

    @property
    def row_nbytes(self) -> int:
        """Bytes of a row in a `RowBatch`."""
        return self.parts[0].store.row_nbytes

    def export(self, keys: Keys) -> Turns[RowBatch]:
        """The rows of those of `keys` that have one, by rising keys; each row of one moment."""
        found = []
        for piece in self.cut(keys):
            for some in self._chunks(piece):
                with piece.part.lock:
                    found.append(piece.part.store.export(piece.take(keys, some)))
                yield
        return RowBatch.together(found or [RowBatch.empty(self.row_nbytes)])

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
        start = max(start, 0)
        number, place = start >> PART_SHIFT, start & ((1 << PART_SHIFT) - 1)
        if number >= len(self.parts):
            return RowBatch.empty(self.row_nbytes), -1
        part, version = self.parts[number], since[number] if since is not None else 0
        with part.lock:
            store = part.store
            batch, go_on = store.export_scan(
                place, min(count, self.chunk), slots, version, seen_since
            )
            is_over = go_on >= store.top
        if not is_over:
            return batch, (number << PART_SHIFT) + go_on
        return batch, (number + 1) << PART_SHIFT if number + 1 < len(self.parts) else -1

    def put(self, batch: RowBatch, *, keep_versions: bool) -> Turns[None]:
        """Set rows to what was exported; see `SparseStore.put`."""
        for piece in self.cut(batch.keys):
            for some in self._chunks(piece):
                mine = batch.take(some if piece.places is None else piece.places[some])
                with piece.part.lock:
                    piece.part.store.put(mine, keep_versions=keep_versions)
                    if self.log is not None:
                        self.log.changed(piece.part.store, mine.keys, _NO_CAUSE)
                yield

    def remove(self, keys: Keys) -> Turns[int]:
        """Forget rows, as `delete`."""
        return self.delete(keys)

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

    # -- pieces -----------------------------------------------------------------------------

    def _chunks(self, piece: Piece) -> Iterator[slice]:
        for start in range(0, piece.size, self.chunk):
            yield slice(start, min(start + self.chunk, piece.size))

    def _pull_piece(self, piece: Piece, keys: Keys, create: bool, out: Values) -> Turns[None]:
        store = piece.part.store
        for some in self._chunks(piece):
            mine = piece.take(keys, some)
            if piece.places is None:
                with piece.part.lock:
                    store.pull(mine, create, out[some], piece.rows(mine, some.start))
            else:
                with piece.part.lock:
                    values = store.pull(mine, create, None, piece.rows(mine, some.start))
                scatter(out, piece.places[some], frozen(values))
            yield

    def _push_piece(
        self,
        piece: Piece,
        keys: Keys,
        grads: Values,
        clock: int,
        cause: Cause,
        delay: Delay | None,
    ) -> Turns[None]:
        is_logged = self.log is not None
        if not is_logged:
            cause = _NO_CAUSE  # of a push in chunks no single change is all of it
        for some in [slice(0, piece.size)] if is_logged else self._chunks(piece):
            mine = piece.take(keys, some)
            if piece.places is None:
                given = grads[some]
            else:
                given = np.empty((mine.size, self.dim), np.float32)
                expand(frozen(grads), piece.places[some], given)
            late = part_of(delay, some if piece.places is None else piece.places[some])
            with piece.part.lock:
                _push_known(piece, mine, given, clock, some.start, late)
                if self.log is not None:
                    self.log.changed(piece.part.store, mine, cause)
            yield


def beside(pieces: Sequence[Turns[None]]) -> Turns[None]:
    """Run pieces at the same time; a single one as it is."""
    if len(pieces) > 1:
        yield pieces
    else:
        for piece in pieces:
            yield from piece


def _push_known(
    piece: Piece, keys: Keys, grads: Values, clock: int, start: int, delay: Delay | None
) -> None:
    """Push, in a table that makes no rows without those whose rows were deleted meanwhile."""
    store = piece.part.store
    if store.spec.missing == "error" and piece.rows(keys, start) is None:
        absent = store.absent(keys)
        if absent.size:
            known = ~np.isin(keys, absent)
            store.push(keys[known], grads[known], clock, delay=part_of(delay, known))
            return
    piece.push(keys, grads, clock, start, delay)

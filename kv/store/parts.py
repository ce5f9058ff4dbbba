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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv.errors import ArenaFullError, MissingKeyError
from kv.executor import Turns
from kv.fairlock import FairLock
from kv.kernels.jit import frozen
from kv.kernels.rows import expand, scatter
from kv.kernels.slots import group_by_owner
from kv.placement import NUM_SLOTS
from kv.spec import TableSpec
from kv.store import arena
from kv.store.sparse import BATCH, SparseStore

Keys = NDArray[np.uint64]
Values = NDArray[np.float32]
Places = NDArray[np.int64]

CHUNK = 1 << 17  # floats of a chunk: 8 192 rows of 16, which an optimiser passes in under 1 ms
KEY_FLOATS = 8  # what looking up a key costs, in floats moved
PART_SHIFT = 44  # where the part stands in the position of a scan


class Part:
    """A store and its lock."""

    __slots__ = ("lock", "promised", "store")

    def __init__(self, store: SparseStore) -> None:
        self.store, self.lock = store, FairLock()
        self.promised = 0  # rows that pushes under way may still make

    def has_room(self, count: int) -> bool:
        """Whether `count` more rows fit for certain; the lock is held."""
        return len(self.store) + self.promised + count <= self.store.capacity

    def refuse_missing(self, keys: Keys) -> None:
        """Raise MissingKeyError if a key has no row; the lock is held."""
        absent = self.store.absent(keys)
        if absent.size:
            raise MissingKeyError(
                self.store.spec.name,
                f"key {int(absent[0])} has no row and the table says missing=error; "
                f"assign it first",
            )


Cut = list[tuple[Part, Places | None]]
"""The parts of a key list and where in the list each one's keys are; None: everywhere."""


class Parts:
    """A sparse table's rows here. Arguments are checked: keys strictly increasing, values finite.

    Args:
        spec: the table's definition, its mode and seed resolved.
        count: parts.
    """

    def __init__(self, spec: TableSpec, count: int = 1) -> None:
        self.spec, self.dim = spec, spec.dim
        share = None if count == 1 else arena.physical_memory() // count
        self.parts = [Part(SparseStore(spec, reserve=share)) for _ in range(count)]
        self.chunk = max(1, CHUNK // (spec.dim + KEY_FLOATS))  # keys
        self._part_of_slot = frozen((np.arange(NUM_SLOTS) % count).astype(np.uint16))

    def __len__(self) -> int:
        return sum(len(part.store) for part in self.parts)

    def __repr__(self) -> str:
        return f"<Parts {self.spec.name} parts={len(self.parts)} rows={len(self)}>"

    @property
    def version(self) -> int:
        """Grows with every change."""
        return sum(part.store.version for part in self.parts)

    def quick_part(self, keys: Keys) -> Part | None:
        """The part of all `keys` if they are few and there is one: a chunk, without turns."""
        return self.parts[0] if len(self.parts) == 1 and keys.size <= self.chunk else None

    def cut(self, keys: Keys) -> Cut:
        """Which parts the keys lie in."""
        count = len(self.parts)
        if count == 1:
            return [(self.parts[0], None)]
        order, counts = np.empty(keys.size, np.int64), np.empty(count, np.int64)
        owners, starts = np.empty(keys.size, np.uint16), np.empty(count, np.int64)
        group_by_owner(frozen(keys), self._part_of_slot, owners, counts, starts, order)
        groups = np.split(order, np.cumsum(counts)[:-1])
        return [(part, group) for part, group in zip(self.parts, groups, strict=True) if group.size]

    def pull(self, keys: Keys, create: bool, out: Values) -> Turns[None]:
        """Weights of `keys` into `out`; see `SparseStore.pull`."""
        pieces = [
            self._pull_piece(part, keys, places, create, out) for part, places in self.cut(keys)
        ]
        yield from beside(pieces)

    def push(self, keys: Keys, grads: Values, clock: int, cut: Cut | None = None) -> Turns[None]:
        """One optimiser step on the rows of `keys`, whose `cut` may be known already.

        Rows that are gone by now are left out where the table makes none.
        """
        pieces = [
            self._push_piece(part, keys, places, grads, clock)
            for part, places in cut or self.cut(keys)
        ]
        yield from beside(pieces)

    def assign(self, keys: Keys, values: Values) -> Turns[None]:
        """Set rows outright."""
        for part, places in self.cut(keys):
            for some in self._chunks(keys, places):
                with part.lock:
                    part.store.assign(keys[some], values[some])
                yield

    def delete(self, keys: Keys) -> Turns[int]:
        """Forget rows; returns how many there were."""
        count = 0
        for part, places in self.cut(keys):
            for some in self._chunks(keys, places):
                with part.lock:
                    count += part.store.delete(keys[some])
                yield
        return count

    def refuse_missing(self, keys: Keys, cut: Cut) -> Turns[None]:
        """Raise MissingKeyError if a key has no row."""
        for part, places in cut:
            for some in self._chunks(keys, places):
                with part.lock:
                    part.refuse_missing(keys[some])
                yield

    # -- room: a push that finds none has changed nothing -----------------------------------

    def promise(self, keys: Keys, cut: Cut) -> Turns[list[int]]:
        """Set room aside for rows that `keys` may need; `redeem` it when they are made.

        Raises:
            ArenaFullError: there is none; nothing is set aside.
        """
        granted: list[int] = []
        try:
            for part, places in cut:
                count = keys.size if places is None else places.size
                if not _promise(part, count):
                    count = yield from self._count_absent(part, keys, places)
                    if not _promise(part, count):
                        raise ArenaFullError(
                            self.spec.name,
                            f"{count} more rows do not fit beside {len(part.store)} into the "
                            f"{part.store.capacity} reserved; use more servers or a smaller dim",
                        )
                granted.append(count)
        except BaseException:
            self.redeem(cut, granted)
            raise
        return granted

    def redeem(self, cut: Cut, granted: Sequence[int]) -> None:
        """The rows are made, or will not be."""
        for (part, _), count in zip(cut, granted, strict=False):
            with part.lock:
                part.promised -= count

    def _count_absent(self, part: Part, keys: Keys, places: Places | None) -> Turns[int]:
        absent = 0
        for some in self._chunks(keys, places):
            with part.lock:
                absent += part.store.absent(keys[some]).size
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
        if not is_over:
            return keys, values, (number << PART_SHIFT) + go_on
        return keys, values, (number + 1) << PART_SHIFT if number + 1 < len(self.parts) else -1

    def stats(self) -> dict[str, Any]:
        """Rows and bytes, together and by part; msgpack types."""
        rows = [len(part.store) for part in self.parts]
        return {
            "parts": rows,
            "rows": sum(rows),
            "nbytes": sum(part.store.nbytes for part in self.parts),
        }

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
                assert all(found is part for found, _ in self.cut(keys)), f"part {number} is mixed"

    # -- pieces -----------------------------------------------------------------------------

    def _chunks(self, keys: Keys, places: Places | None) -> Iterator[slice | Places]:
        """The keys of a piece, some at a time, as what `keys` is indexed with."""
        count = keys.size if places is None else places.size
        for start in range(0, count, self.chunk):
            some = slice(start, min(start + self.chunk, count))
            yield some if places is None else places[some]

    def _pull_piece(
        self, part: Part, keys: Keys, places: Places | None, create: bool, out: Values
    ) -> Turns[None]:
        for some in self._chunks(keys, places):
            if isinstance(some, slice):
                with part.lock:
                    part.store.pull(keys[some], create, out=out[some])
            else:
                with part.lock:
                    values = part.store.pull(keys[some], create)
                scatter(out, some, frozen(values))
            yield

    def _push_piece(
        self, part: Part, keys: Keys, places: Places | None, grads: Values, clock: int
    ) -> Turns[None]:
        for some in self._chunks(keys, places):
            if isinstance(some, slice):
                mine = grads[some]
            else:
                mine = np.empty((some.size, self.dim), np.float32)
                expand(frozen(grads), some, mine)
            with part.lock:
                _push_known(part.store, keys[some], mine, clock)
            yield


def beside(pieces: Sequence[Turns[None]]) -> Turns[None]:
    """Run pieces at the same time; a single one as it is."""
    if len(pieces) > 1:
        yield pieces
    else:
        for piece in pieces:
            yield from piece


def _promise(part: Part, count: int) -> bool:
    with part.lock:
        has_room = part.has_room(count)
        part.promised += count if has_room else 0
        return has_room


def _push_known(store: SparseStore, keys: Keys, grads: Values, clock: int) -> None:
    """Push, in a table that makes no rows without those whose rows were deleted meanwhile."""
    if store.spec.missing == "error":
        absent = store.absent(keys)
        if absent.size:
            known = ~np.isin(keys, absent)
            keys, grads = keys[known], grads[known]
    store.push(keys, grads, clock)

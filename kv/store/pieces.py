"""One part of a sparse table, and the keys of a list that lie in it.

A part is a store with a lock of its own; a list is cut into pieces, one for each part that has any
of its keys. Work on a piece goes chunk by chunk, so that the lock is held for no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from kv.fairlock import FairLock
from kv.store.delay import Delay, part_of
from kv.store.keyed import Keys, Values, no_row
from kv.store.sparse import SparseStore

T = TypeVar("T", bound=np.generic)
Places = NDArray[np.int64]


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
            raise no_row(self.store.spec.name, int(absent[0]))


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

    def chunks(self, most: int) -> Iterator[slice]:
        """The piece in slices of `most` keys."""
        for start in range(0, self.size, most):
            yield slice(start, min(start + most, self.size))

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

    def push_present(
        self, keys: Keys, grads: Values, clock: int, start: int = 0, delay: Delay | None = None
    ) -> None:
        """`push`, but in a table that makes no rows without the keys that have none by now."""
        store = self.part.store
        if store.spec.missing == "error" and self.rows(keys, start) is None:
            absent = store.absent(keys)
            if absent.size:
                known = ~np.isin(keys, absent)
                store.push(keys[known], grads[known], clock, delay=part_of(delay, known))
                return
        self.push(keys, grads, clock, start, delay)

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

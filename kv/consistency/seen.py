"""What each worker has seen: the values that its latest pulls of a table were answered with."""

from __future__ import annotations

import threading
from collections import deque

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]
Values = NDArray[np.float32]


class SeenValues:
    """Remembers the last pulls of each worker, copies of keys and values. Any thread.

    Args:
        workers: their number.
        pulls: answers that are remembered of each worker, pieces of large pulls one by one.
    """

    def __init__(self, workers: int, pulls: int) -> None:
        self._lock = threading.Lock()
        self._pulls = pulls
        self._of: list[deque[tuple[int, Keys, Values]]] = [deque() for _ in range(workers)]

    def note(self, rank: int, clock: int, keys: Keys, values: Values) -> None:
        """Worker `rank` gets `values`, float32 (n, dim), of `keys`, uint64 (n,), rising.

        Args:
            clock: the table's, before the answer is given one.
        """
        if not keys.size:
            return
        kept = clock, keys.copy(), values.copy()  # the answer's memory is the van's
        with self._lock:
            mine = self._of[rank]
            mine.appendleft(kept)
            while len(mine) > self._pulls:
                mine.pop()

    def find(self, rank: int, base: int, keys: Keys, dim: int) -> tuple[Values, int]:
        """What worker `rank` last saw of `keys`, float32 (n, dim), and of how many it is not known.

        Those are NaN in the answer.

        Args:
            base: the clock that came with the pull whose values the worker has used; later pulls,
                for steps to come, are not looked at. -1: not known, all are.
        """
        with self._lock:
            pulls = [pull[1:] for pull in self._of[rank] if base < 0 or pull[0] <= base]
        if pulls and np.array_equal(pulls[0][0], keys):
            return pulls[0][1], 0
        found = np.full((keys.size, dim), np.nan, np.float32)
        open_places = np.arange(keys.size)
        for known, values in pulls:
            if not open_places.size:
                break
            wanted = keys[open_places]
            where = np.minimum(np.searchsorted(known, wanted), known.size - 1)
            is_there = known[where] == wanted
            found[open_places[is_there]] = values[where[is_there]]
            open_places = open_places[~is_there]
        return found, int(open_places.size)

    def forget(self, rank: int) -> None:
        """Worker `rank` has gone."""
        with self._lock:
            self._of[rank].clear()

    @property
    def nbytes(self) -> int:
        """Memory taken."""
        with self._lock:
            return sum(k.nbytes + v.nbytes for pulls in self._of for _, k, v in pulls)

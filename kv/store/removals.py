"""Which keys lost their rows, so that a checkpoint of what has changed can say so.

Only kept once somebody has asked for it; bounded, so that a table that evicts all the time does
not fill memory with it: who then asks is told that the list is no longer whole.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MOST = 1 << 22  # keys remembered, 32 MiB
Keys = NDArray[np.uint64]


class Removals:
    """Keys removed, in order, from a place on.

    Args:
        most: keys to remember.
    """

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self._kept: list[Keys] = []
        self._first = 0  # the place of the first that is kept
        self.place = 0  # of the next

    def add(self, keys: Keys) -> None:
        """These were removed."""
        if keys.size:
            self._kept.append(keys)
            self.place += keys.size
            while self.place - self._first > self.most:
                self._first += self._kept.pop(0).size

    def has(self, place: int) -> bool:
        """Whether all that were removed from `place` on are known."""
        return place >= self._first

    def since(self, place: int) -> Keys:
        """The keys removed from `place` on, each once, rising."""
        assert self.has(place), "these removals are forgotten"
        keys = np.concatenate([*self._kept, np.empty(0, np.uint64)])
        return np.unique(keys[place - self._first :])

    def forget(self, place: int) -> None:
        """Nobody will ask for those before `place`."""
        while self._kept and self._first + self._kept[0].size <= place:
            self._first += self._kept.pop(0).size

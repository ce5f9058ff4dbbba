"""The last lists that were merged: the push of what was pulled need not merge them again."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kv.kernels.digest import digest
from kv.kernels.jit import frozen
from kv.kernels.merge import first_unsorted
from kv.keylist import KeyList, as_keys, merged

SHORTEST = 512  # keys; fewer are merged as quickly as they are found here
_SEED = np.uint64(0)  # a list is compared with what is found, so nobody gains by choosing keys


class MergedLists:
    """Merges key lists and remembers the last of them.

    Args:
        limit: bytes of remembered lists.
    """

    def __init__(self, limit: int = 64 << 20) -> None:
        self._limit = limit
        self._kept: OrderedDict[int, tuple[NDArray[np.uint64], KeyList]] = OrderedDict()
        self.nbytes = 0

    def prepare(self, keys: ArrayLike, table: str) -> KeyList:
        """As `kv.keylist.prepare`; nobody may write into what it returns."""
        listed = as_keys(keys, table)
        if first_unsorted(listed) == listed.size:
            return KeyList(listed, None)
        if listed.size < SHORTEST:
            return merged(listed)
        place = int(digest(listed, _SEED))
        known = self._kept.get(place)
        if known is not None and np.array_equal(known[0], listed):
            self._kept.move_to_end(place)
            return known[1]
        made = merged(listed)
        if _nbytes(listed, made) <= self._limit:
            self._keep(place, frozen(listed.copy()), made)
        return made

    def _keep(self, place: int, listed: NDArray[np.uint64], made: KeyList) -> None:
        if place in self._kept:
            self._drop(place)
        self._kept[place] = listed, made
        self.nbytes += _nbytes(listed, made)
        while self.nbytes > self._limit:
            self._drop(next(iter(self._kept)))

    def _drop(self, place: int) -> None:
        self.nbytes -= _nbytes(*self._kept.pop(place))

    def validate(self) -> None:
        """Assert what must always hold."""
        assert self.nbytes == sum(_nbytes(*kept) for kept in self._kept.values()) <= self._limit


def _nbytes(listed: NDArray[np.uint64], made: KeyList) -> int:
    inverse = 0 if made.inverse is None else made.inverse.nbytes
    return listed.nbytes + made.unique.nbytes + inverse

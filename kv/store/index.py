"""The index of a table: keys -> row numbers.

It doubles by copying when it is 0.7 full. That stop is short up to some millions of keys; an index
that grows a little with each call can take this class's place, nobody else sees its entries.
"""

from __future__ import annotations

import secrets

import numpy as np
from numpy.typing import NDArray

from kv.kernels import hash as kernels

LEAST = 64  # entries of the smallest table
FULLEST = 0.7


class Index:
    """Row numbers of keys.

    Args:
        capacity: keys to expect.
        seed: of the hash; random by default, so that nobody can choose keys that collide. It
            changes neither rows nor values.
    """

    def __init__(self, capacity: int = 0, seed: int | None = None) -> None:
        self.seed = np.uint64(secrets.randbits(64) if seed is None else seed)
        self.used = 0
        self.entries = _entries(_size_for(capacity))

    def __len__(self) -> int:
        return self.used

    @property
    def nbytes(self) -> int:
        return self.entries.nbytes

    def find(self, keys: NDArray[np.uint64]) -> tuple[NDArray[np.int64], int]:
        """Rows of `keys`, -1 where there is none, and how many have none."""
        rows = np.empty(keys.size, np.int64)
        return rows, kernels.lookup(self.entries, self.seed, keys, rows)

    def make_room(self, count: int) -> None:
        """Grow if that is needed for `count` more keys."""
        need = _size_for(self.used + count)
        if need > self.entries.size // 2:
            larger = _entries(need)
            kernels.grow(self.entries, self.seed, larger)
            self.entries = larger

    def add(
        self, keys: NDArray[np.uint64], rows: NDArray[np.int64], fresh: NDArray[np.int64]
    ) -> None:
        """Give the keys that have no row those of `fresh`, in order; `make_room` comes first.

        keys: uint64 (n,), no key twice; rows: as `find` gave it, completed in place; fresh: int64,
        one for each -1 in `rows`.
        """
        self.used += kernels.insert_absent(self.entries, self.seed, keys, rows, fresh)

    def remove(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Forget keys, no key twice; their rows, -1 where there was none."""
        rows = np.empty(keys.size, np.int64)
        self.used -= kernels.delete(self.entries, self.seed, keys, rows)
        return rows

    def validate(self) -> None:
        """Assert that every stored key can be found and that the count is right."""
        table = self.entries.reshape(-1, 2)
        taken = table[table[:, 1] != 0]
        assert len(taken) == self.used, f"{len(taken)} entries, {self.used} counted"
        assert self.used < len(table), "no empty entry is left"
        keys = np.array(taken[:, 0])
        keys.flags.writeable = False
        rows, absent = self.find(keys)
        assert absent == 0, f"{absent} stored keys cannot be found"
        assert np.array_equal(rows, taken[:, 1].astype(np.int64) - 1), "keys lead to other rows"


def _size_for(keys: int) -> int:
    """The power of two that holds `keys` at most `FULLEST` full."""
    size = LEAST
    while keys > FULLEST * size:
        size *= 2
    return size


def _entries(size: int) -> NDArray[np.uint64]:
    return np.zeros(2 * size, np.uint64)

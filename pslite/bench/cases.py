"""One timed case of a table, and its lists of keys: the same for all peers, new in each call.

A position is the number of a resident row. Peers that know row numbers use positions as they are;
pslite gets 64-bit keys, spread over the whole space as hashed features are, and has to look
them up. Both get the same rows, and both in increasing order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

SPREAD = np.uint64(0x9E3779B97F4A7C15)  # odd, so that multiplying by it is one to one


@dataclass(frozen=True, kw_only=True)
class TableCase:
    """Calls of one kind on one table.

    Attributes:
        op: `pull`, `push` or `push_pull`; of the store's parts `lookup`, `gather` or `update`.
        count: keys of a call.
        dim: floats of a row.
        optimizer: `sgd` or `adagrad`.
        rows: rows that are there beforehand.
        is_repeated: whether each call of a block has the same keys.
    """

    op: str
    count: int
    dim: int
    optimizer: str
    rows: int
    is_repeated: bool = False

    @property
    def has_gradients(self) -> bool:
        return self.op in ("push", "push_pull", "update")

    def to_dict(self) -> dict[str, str | int]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.op} {self.optimizer} dim {self.dim} K={self.count}"


def position_lists(case: TableCase, seed: int) -> Iterator[NDArray[np.int64]]:
    """Endless lists of `case.count` positions below `case.rows`, increasing, none twice in one.

    >>> case = TableCase(op="pull", count=3, dim=8, optimizer="sgd", rows=4)
    >>> [len(set(next(position_lists(case, seed)).tolist())) for seed in range(3)]
    [3, 3, 3]
    """
    rng = np.random.default_rng([seed, case.rows, case.count])
    while True:
        chosen = rng.choice(case.rows, case.count, replace=False, shuffle=False)
        chosen.sort()
        yield from itertools.repeat(chosen) if case.is_repeated else [chosen]


def keys_at(positions: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The 64-bit keys of positions, increasing whatever their positions' order.

    >>> len(set(keys_at(np.arange(1000)).tolist()))
    1000
    """
    keys = positions.astype(np.uint64) * SPREAD
    keys.sort()
    return keys


def gradients(case: TableCase, seed: int, lists: int = 2) -> list[NDArray[np.float32]]:
    """A few arrays (count, dim) of small gradients, to be used in turn."""
    rng = np.random.default_rng([seed, case.dim, case.count])
    shape = (case.count, case.dim)
    return [rng.standard_normal(shape, np.float32) * np.float32(0.01) for _ in range(lists)]

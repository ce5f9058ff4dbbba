"""Rows of training data as arrays: what readers make, datasets cut and models take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from apps.ctr import kernels

GROUPS = ("user", "ad", "user_ad")
"""The feature groups, in the order in which a block lays them side by side."""

Blocks = Mapping[str, Sequence[str]]
"""Name of a block -> the groups in it, such as {"user": ["user"], "ad": ["ad"]}."""


@dataclass(frozen=True)
class Block:
    """The features of some groups, row by row.

    Attributes:
        dense: float32 (n, dense features).
        keys: uint64 (m,), the known values (never 0) by row, feature, and order in the feature.
        lengths: uint16 (n, sparse features), known values of each.
        starts: int64 (n + 1,), where the keys of each row begin.
    """

    dense: NDArray[np.float32]
    keys: NDArray[np.uint64]
    lengths: NDArray[np.uint16]
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.dense)

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in (self.dense, self.keys, self.lengths, self.starts))

    def slice(self, start: int, stop: int) -> Block:
        """Rows `start` to `stop`; views, nothing is copied but the row starts."""
        starts = self.starts[start : stop + 1]
        keys = self.keys[starts[0] : starts[-1]]
        return Block(self.dense[start:stop], keys, self.lengths[start:stop], starts - starts[0])

    def take(self, rows: NDArray[np.int64]) -> Block:
        """The rows at these positions, in this order; a copy."""
        counts = np.diff(self.starts)[rows]
        starts = starts_of(counts)
        keys = np.empty(starts[-1], np.uint64)
        kernels.take_keys(self.keys, self.starts, rows, starts, keys)
        return Block(self.dense[rows], keys, self.lengths[rows], starts)

    @staticmethod
    def concatenate(blocks: Sequence[Block]) -> Block:
        """One below the other."""
        counts = np.concatenate([np.diff(block.starts) for block in blocks])
        return Block(
            np.concatenate([block.dense for block in blocks]),
            np.concatenate([block.keys for block in blocks]),
            np.concatenate([block.lengths for block in blocks]),
            starts_of(counts),
        )


@dataclass(frozen=True)
class Rows:
    """Some rows: labels float32 (n,), and a block under each name.

    Attributes:
        line: of its file, from 1, that the first row is, if the others follow it there; 0: not
            known, as of rows that were chosen one by one.
    """

    labels: NDArray[np.float32]
    blocks: Mapping[str, Block]
    line: int = 0

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def nbytes(self) -> int:
        return self.labels.nbytes + sum(block.nbytes for block in self.blocks.values())

    def slice(self, start: int, stop: int) -> Rows:
        """Rows `start` to `stop` as views."""
        blocks = {name: block.slice(start, stop) for name, block in self.blocks.items()}
        return Rows(self.labels[start:stop], blocks, self.line and self.line + start)

    def take(self, rows: NDArray[np.int64]) -> Rows:
        """The rows at these positions, in this order; a copy."""
        blocks = {name: block.take(rows) for name, block in self.blocks.items()}
        return Rows(self.labels[rows], blocks)

    @staticmethod
    def concatenate(parts: Sequence[Rows]) -> Rows:
        """One below the other; at least one part."""
        if len(parts) == 1:
            return parts[0]
        names = parts[0].blocks
        return Rows(
            np.concatenate([part.labels for part in parts]),
            {name: Block.concatenate([part.blocks[name] for part in parts]) for name in names},
        )


def starts_of(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each of `counts` things begins, and after them where the last ends.

    >>> starts_of(np.array([2, 0, 1])).tolist()
    [0, 2, 2, 3]
    """
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def part_bounds(size: int, part: int, parts: int) -> tuple[int, int]:
    """First and last + 1 of the rows of one of `parts` contiguous parts, equal but for one row.

    >>> [part_bounds(5, part, 3) for part in range(3)]
    [(0, 1), (1, 3), (3, 5)]
    """
    return part * size // parts, (part + 1) * size // parts

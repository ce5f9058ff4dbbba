"""Which blocks of a dense table lie on which server; worker and server compute the same lists.

Requests about dense tables carry no keys: a server's blocks travel as one array, float32
(blocks, dim), in increasing number of the block. With one server that is the table's array itself,
but for the padding at its end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kv.placement import SlotMap
from kv.spec import DenseLayout, TableSpec, dense_keys

Keys = NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class BlockShare:
    """The blocks of one dense table on one server.

    Args:
        blocks: int64, shape (n,), increasing; a block's number is its place in the array.
        keys: uint64, shape (n,), strictly increasing: the keys of these blocks.
        order: int64, shape (n,): `keys[i]` is the key of `blocks[order[i]]`.
    """

    blocks: NDArray[np.int64]
    keys: Keys
    order: NDArray[np.int64]

    def keys_of(self) -> Keys:
        """The keys in the order of the blocks."""
        keys = np.empty_like(self.keys)
        keys[self.order] = self.keys
        return keys


def share_of(spec: TableSpec, owns: Callable[[Keys], NDArray[np.bool_]] | None) -> BlockShare:
    """The blocks whose keys `owns` says are here; None: all of them."""
    layout = dense_keys(spec)
    mask = np.ones(layout.keys.size, np.bool_) if owns is None else owns(layout.keys)
    return _share(layout, mask)


def shares_of(spec: TableSpec, slots: SlotMap) -> list[BlockShare]:
    """The blocks of each server, by rank; a server may have none."""
    layout = dense_keys(spec)
    owners = slots.owner_of(layout.keys)
    return [_share(layout, owners == rank) for rank in range(slots.num_servers)]


def _share(layout: DenseLayout, mask: NDArray[np.bool_]) -> BlockShare:
    numbers = layout.blocks[mask]  # in the order of their keys
    by_number = np.argsort(numbers)
    order = np.empty(numbers.size, np.int64)
    order[by_number] = np.arange(numbers.size)
    return BlockShare(numbers[by_number], layout.keys[mask], order)

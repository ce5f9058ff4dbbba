"""Gradients and values on their way from a worker: copied once into memory that the van may keep.

The caller's arrays may change as soon as a push returns. The one copy brings rows into the order
of their servers and finds numbers that are not finite in the same pass, before anything is sent:
so a push is refused whole, however many messages it would have been.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv.buffers import Buffers
from kv.cutting import Cut, Range
from kv.dense import BlockShare
from kv.errors import NonFiniteError
from kv.kernels.jit import frozen
from kv.kernels.merge import first_not_finite
from kv.kernels.transfer import copy_finite, gather_pairs, pack_blocks
from kv.keylist import KeyList

Keys = NDArray[np.uint64]
Values = NDArray[np.float32]


class SparseWrite:
    """Values of strictly increasing keys, those of a server one after the other.

    Args:
        table, what: named in errors.
        keylist: the caller's keys, merged.
        values: float32 (m, dim), of the merged keys; shared with the caller if `is_shared`.
    Raises:
        NonFiniteError: NaN or infinity among the values.
    """

    __slots__ = ("cut", "keys", "values")
    has_keys = True

    def __init__(
        self,
        table: str,
        what: str,
        keylist: KeyList,
        values: Values,
        is_shared: bool,
        cut: Cut,
        buffers: Buffers,
    ) -> None:
        self.cut = cut
        keys = frozen(keylist.unique)
        if cut.order is not None:
            self.keys = buffers.empty(keys.shape, np.uint64)
            self.values = buffers.empty(values.shape, np.float32)
            is_finite = gather_pairs(
                keys, _bits(values), cut.order, self.keys, self.values.view(np.uint32)
            )
        elif is_shared:
            self.keys = buffers.empty(keys.shape, np.uint64)
            self.keys[:] = keys
            self.values = buffers.empty(values.shape, np.float32)
            is_finite = copy_finite(_bits(values).reshape(-1), _flat_bits(self.values))
        else:
            self.keys, self.values = keys, values
            is_finite = first_not_finite(_bits(values).reshape(-1)) == values.size
        if not is_finite:
            row, column = np.argwhere(~np.isfinite(values))[0]
            number = values[row, column]
            raise NonFiniteError(
                table, f"{what} of key {int(keys[row])} contain {number}; nothing was sent"
            )

    def arrays(self, server: int, part: Range) -> list[NDArray[Any]]:
        """Keys and values of a range of a server's rows."""
        base = self.cut.bounds[server]
        rows = slice(base + part.start, base + part.stop)
        return [self.keys[rows], self.values[rows]]


class DenseWrite:
    """A dense array by blocks, those of a server one after the other.

    Args:
        array: float32, the whole of it; it may change afterwards.
    Raises:
        NonFiniteError: NaN or infinity in it.
    """

    __slots__ = ("cut", "values")
    has_keys = False

    def __init__(
        self,
        table: str,
        what: str,
        array: Values,
        shares: Sequence[BlockShare],
        cut: Cut,
        buffers: Buffers,
    ) -> None:
        self.cut = cut
        self.values = buffers.empty((cut.bounds[-1], cut.dim), np.float32)
        flat = _bits(array).reshape(-1)
        if len(shares) == 1 and flat.size == self.values.size:
            is_finite = copy_finite(flat, _flat_bits(self.values))
        else:
            is_finite = True
            for server, share in enumerate(shares):
                rows = self.values[cut.bounds[server] : cut.bounds[server + 1]]
                is_finite &= pack_blocks(flat, share.blocks, rows.view(np.uint32))
        if not is_finite:
            place = [int(i) for i in np.argwhere(~np.isfinite(array))[0]]
            number = array[tuple(place)]
            raise NonFiniteError(table, f"{what} at {place} contain {number}; nothing was sent")

    def arrays(self, server: int, part: Range) -> list[NDArray[Any]]:
        """The blocks of a server."""
        base = self.cut.bounds[server]
        return [self.values[base + part.start : base + part.stop]]


Writing = SparseWrite | DenseWrite


def _bits(values: Values) -> NDArray[np.uint32]:
    return frozen(values).view(np.uint32)


def _flat_bits(values: Values) -> NDArray[np.uint32]:
    return values.reshape(math.prod(values.shape)).view(np.uint32)

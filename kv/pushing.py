"""Gradients and values on their way from a worker: copied once into memory that the van may keep.

The caller's arrays may change as soon as a push returns. The one copy brings rows into the order
of their servers, each message's into an array of its own (in memory that its server sees, where
there is some), and finds numbers that are not finite in the same pass. All messages are packed
before the first is sent: so a push is refused whole, however many messages it would have been.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from kv.checks import refuse_non_finite
from kv.cutting import Cut, Piece, Range
from kv.dense import BlockShare
from kv.kernels.jit import frozen
from kv.kernels.merge import first_not_finite
from kv.kernels.transfer import copy_finite, gather_pairs, pack_blocks
from kv.keylist import KeyList
from van.buffers import Buffers

NOT_SENT = "nothing was sent"
Values = NDArray[np.float32]

EmptyFor = Callable[[int, tuple[int, ...], DTypeLike], NDArray[Any]]
"""Makes an array that is to be sent to a server, given its rank."""


class SparseWrite:
    """Values of strictly increasing keys.

    Args:
        table, what: named in errors.
        keylist: the caller's keys, merged.
        values: float32 (m, dim), of the merged keys.
        is_shared: whether keys and values are the caller's own memory.
    """

    __slots__ = ("_buffers", "_is_shared", "_packed", "_values", "cut", "keys", "table", "what")
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
        self.table, self.what, self.cut = table, what, cut
        self.keys, self._values = frozen(keylist.unique), frozen(values)
        self._is_shared, self._buffers = is_shared, buffers
        self._packed: dict[tuple[int, int], list[NDArray[Any]]] = {}

    def pack(self, server: int, part: Range, empty: EmptyFor) -> None:
        """Make what `arrays` returns.

        Raises:
            NonFiniteError: NaN or infinity among the values.
        """
        rows = slice(part.start, part.stop)
        keys, values = self.keys[rows], self._values[rows]
        if self.cut.order is None and not self._is_shared:
            is_finite = first_not_finite(_bits(values).reshape(-1)) == values.size
            self._packed[server, part.start] = [keys, values]
        else:
            count = part.stop - part.start
            out_keys = self._buffers.empty((count,), np.uint64)  # they are seldom sent
            out = empty(server, (count, self.cut.dim), np.float32)
            if self.cut.order is None:
                out_keys[:] = keys
                is_finite = copy_finite(_bits(values).reshape(-1), _flat_bits(out))
            else:
                order = self.cut.rows(server, part.start, part.stop)
                bits = _bits(self._values)
                is_finite = gather_pairs(self.keys, bits, order, out_keys, out.view(np.uint32))
            self._packed[server, part.start] = [out_keys, out]
        if not is_finite:
            self._refuse()

    def arrays(self, server: int, part: Range) -> list[NDArray[Any]]:
        """Keys and values of a range of a server's rows."""
        return self._packed[server, part.start]

    def share(self, server: int) -> None:
        """It has no blocks."""

    def _refuse(self) -> None:
        refuse_non_finite(
            self.table, self._values, self.keys, self.what.removesuffix("s"), NOT_SENT
        )


class DenseWrite:
    """A dense array by blocks.

    Args:
        table, what: named in errors.
        array: float32, the whole of it.
        shares: the blocks of each server, by rank.
    """

    __slots__ = ("_array", "_packed", "_shares", "cut", "table", "what")
    has_keys = False

    def __init__(
        self, table: str, what: str, array: Values, shares: Sequence[BlockShare], cut: Cut
    ) -> None:
        self.table, self.what, self.cut = table, what, cut
        self._array, self._shares = frozen(array), shares
        self._packed: dict[int, NDArray[Any]] = {}

    def pack(self, server: int, part: Range, empty: EmptyFor) -> None:
        """Make what `arrays` returns.

        Raises:
            NonFiniteError: NaN or infinity in the array.
        """
        out = self._packed[server] = empty(server, (part.stop, self.cut.dim), np.float32)
        flat = _bits(self._array).reshape(-1)
        if len(self._shares) == 1 and flat.size == out.size:
            is_finite = copy_finite(flat, _flat_bits(out))
        else:
            is_finite = pack_blocks(flat, self._shares[server].blocks, out.view(np.uint32))
        if not is_finite:
            what = self.what.removesuffix("s")
            refuse_non_finite(self.table, self._array, None, what, NOT_SENT)

    def arrays(self, server: int, part: Range) -> list[NDArray[Any]]:
        """The blocks of a server."""
        return [self._packed[server]]

    def share(self, server: int) -> BlockShare:
        """The blocks of a server."""
        return self._shares[server]


Writing = SparseWrite | DenseWrite


class Packing(Protocol):
    """What can be packed."""

    def pack(self, server: int, part: Range, empty: EmptyFor) -> None:
        """See `SparseWrite.pack`."""


def pack(writes: Sequence[Packing], pieces: Sequence[Piece], empty: EmptyFor) -> None:
    """Pack all messages of a push or an assignment.

    Raises:
        NonFiniteError: NaN or infinity in it.
    """
    for piece in pieces:
        for part in piece.ranges:
            writes[part.place].pack(piece.server, part, empty)


def _bits(values: Values) -> NDArray[np.uint32]:
    return frozen(values).view(np.uint32)


def _flat_bits(values: Values) -> NDArray[np.uint32]:
    return values.reshape(-1).view(np.uint32)

"""Values on their way to a worker: each answer is put into its place as it comes.

    SparseRead   rows of a list of keys, in the caller's order
    DenseRead    the blocks of an array
    Pull         one request about some of them

The answers' arrays are views of received frames. They are copied once, into memory of the caller's
own; where a list had to be merged and came in one answer, straight to every place that asked. An
answer that is all there is to return, in memory that the van gives away, is not copied at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kv.cutting import Cut, Piece, Range
from kv.dense import BlockShare
from kv.errors import KVError
from kv.kernels.jit import frozen
from kv.kernels.rows import expand, scatter
from kv.kernels.transfer import take_keys, unpack_blocks
from kv.keylist import KeyList
from van.buffers import Buffers
from van.message import Clock

Values = NDArray[np.float32]


class Reading(Protocol):
    """Values of one table that are asked for; an `asking.Entry` with answers."""

    cut: Cut

    @property
    def has_keys(self) -> bool: ...

    def arrays(self, server: int, part: Range) -> list[NDArray[Any]]: ...

    def share(self, server: int) -> BlockShare | None: ...

    def put(self, server: int, part: Range, values: NDArray[Any], is_ours: bool) -> None:
        """Take the values of a range of a server's rows; `is_ours`: they may be kept."""

    def result(self) -> Values:
        """What the caller gets, when all ranges have come."""


class SparseRead:
    """Rows of a list of keys.

    Args:
        table: named in errors.
        keylist: the caller's keys, merged.
        buffers: memory, also for what is returned: it is used again when nobody has it any more.
        out: float32 (n, dim) of the caller's to fill; None makes a new one.
    """

    __slots__ = ("_buffers", "_grouped", "_merged", "_out", "cut", "keylist", "table")
    has_keys = True

    def __init__(
        self,
        table: str,
        keylist: KeyList,
        cut: Cut,
        buffers: Buffers,
        out: Values | None = None,
    ) -> None:
        self.table, self.keylist, self.cut, self._buffers = table, keylist, cut, buffers
        self._out = out
        self._merged: Values | None = None  # of unique keys, where they come in several answers
        self._grouped = keylist.unique  # the keys of a server one after the other
        if cut.order is not None:
            self._grouped = buffers.empty(keylist.unique.shape, np.uint64)
            take_keys(frozen(keylist.unique), cut.order, self._grouped)

    def arrays(self, server: int, part: Range) -> list[NDArray[Any]]:
        base = self.cut.bounds[server]
        return [self._grouped[base + part.start : base + part.stop]]

    def share(self, server: int) -> None:
        return None

    def put(self, server: int, part: Range, values: NDArray[Any], is_ours: bool) -> None:
        _check(self.table, values, (part.stop - part.start, self.cut.dim))
        inverse = self.keylist.inverse
        is_all = inverse is None and self.cut.order is None and len(values) == self.keylist.size
        if is_all and is_ours and self._out is None:
            self._out = _kept(values, values.shape)
            return
        target = self._target()
        if inverse is not None:
            if self.cut.order is None and part.stop - part.start == self.keylist.unique.size:
                expand(frozen(values), inverse, target)
                return
            if self._merged is None:
                shape = self.keylist.unique.size, self.cut.dim
                self._merged = self._buffers.empty(shape, np.float32)
            target = self._merged
        if self.cut.order is None:
            target[part.start : part.stop] = values
        else:
            scatter(target, self.cut.rows(server, part.start, part.stop), frozen(values))

    def _target(self) -> Values:
        if self._out is None:
            self._out = self._buffers.empty((self.keylist.size, self.cut.dim), np.float32)
        return self._out

    def result(self) -> Values:
        out = self._target()
        if self._merged is not None:
            assert self.keylist.inverse is not None
            expand(frozen(self._merged), self.keylist.inverse, out)
            self._merged = None
        return out


class DenseRead:
    """The blocks of a dense table.

    Args:
        table: named in errors.
        shares: the blocks of each server, by rank.
        buffers: memory for what is returned: it is used again when the caller has dropped it.
        out: float32 of `shape`, C-contiguous, to fill; None makes a new one.
    """

    __slots__ = ("_buffers", "_out", "_shape", "cut", "shares", "table")
    has_keys = False

    def __init__(
        self,
        table: str,
        shape: tuple[int, ...],
        shares: Sequence[BlockShare],
        cut: Cut,
        buffers: Buffers,
        out: Values | None = None,
    ) -> None:
        self.table, self.shares, self.cut, self._buffers = table, shares, cut, buffers
        self._shape, self._out = shape, out

    def arrays(self, server: int, part: Range) -> list[NDArray[Any]]:
        return []

    def share(self, server: int) -> BlockShare:
        return self.shares[server]

    def put(self, server: int, part: Range, values: NDArray[Any], is_ours: bool) -> None:
        _check(self.table, values, (part.stop - part.start, self.cut.dim))
        if len(self.shares) > 1:
            unpack_blocks(frozen(values), self.shares[server].blocks, self._target().reshape(-1))
            return
        flat = values.reshape(-1)[: math.prod(self._shape)]
        if is_ours and self._out is None:
            self._out = _kept(flat, self._shape)
        else:
            self._target().reshape(-1)[:] = flat

    def _target(self) -> Values:
        if self._out is None:
            self._out = self._buffers.empty(self._shape, np.float32)
        return self._out

    def result(self) -> Values:
        return self._target()


def _kept(values: Values, shape: tuple[int, ...]) -> Values:
    """Values of a message that gives them away, as the caller gets them."""
    out = values.reshape(shape).view()  # a view: others still see the message as read-only
    out.flags.writeable = True
    return out


def _check(table: str, values: NDArray[Any], shape: tuple[int, int]) -> None:
    if values.shape != shape or values.dtype != np.float32:
        got = f"{values.dtype} of shape {values.shape}"
        raise KVError(f"table {table}: a server answered with {got} instead of float32 {shape}")


class Pull:
    """Reads of several tables that make one request.

    Args:
        reads: by place in the request.

    Attributes:
        clocks: by table and rank of the server, the clock that the values are of; where they came
            in several answers the earliest.
    """

    __slots__ = ("clocks", "reads")

    def __init__(self, reads: Sequence[Reading]) -> None:
        self.reads = reads
        self.clocks: dict[tuple[int, int], int] = {}

    def put(self, piece: Piece, arrays: Sequence[NDArray[Any]], is_ours: bool = False) -> None:
        """Take the answer to a piece.

        Args:
            is_ours: whether the arrays may be kept, and written to.
        Raises:
            KVError: it is not what the piece asks for.
        """
        if len(arrays) != len(piece.ranges):
            raise KVError(f"a server answered {len(piece.ranges)} reads with {len(arrays)} arrays")
        for part, values in zip(piece.ranges, arrays, strict=True):
            self.reads[part.place].put(piece.server, part, values, is_ours)

    def note(self, clocks: Sequence[Clock]) -> None:
        """Note the clocks of an answer."""
        known = self.clocks
        for table, clock, pairs in clocks:
            for server, _ in pairs:
                place = table, server
                known[place] = min(clock, known.get(place, clock))

    def results(self) -> list[Values]:
        """What the caller gets, by place, when every piece was answered."""
        return [read.result() for read in self.reads]

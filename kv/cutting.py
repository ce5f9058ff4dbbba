"""How a request is cut: by the servers that own its rows, and by size.

Pieces of a large request are under way at the same time: a server gathers one while another
crosses the network and the worker unpacks a third.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kv.dense import BlockShare
from kv.placement import SlotMap
from kv.routing import split

PIECE = (4 << 20) // 3  # bytes of rows in a piece that crosses a network: a third of a usual batch
LARGE_PIECE = 2 << 20  # the same of a request of many: the van sends it whole
SOME_PIECES = 12  # from which on pieces are larger
SHARED_PIECE = 32 << 20  # through shared memory, where hardly anything is under way between nodes
MOST_PIECES = 64  # of a request to one server: each is a message in the van's backlog
_FEW = 4096  # rows of requests whose pieces are made once


class Range(NamedTuple):
    """Rows `start` to `stop` of those that one server has of table number `place`."""

    place: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """One message: `number` counts the pieces of a request to one server, from 0.

    is_rest: its first range carries on a table of the piece before.
    """

    server: int  # rank
    number: int
    ranges: list[Range]
    is_rest: bool


class Cut:
    """Rows of one table by server.

    Attributes:
        dim: floats in a row.
        order: int64, shape (n,): the rows in the order of their servers; None: as they are.
        bounds: server `s` has `order[bounds[s]:bounds[s + 1]]`.
        may_split: whether one server's rows may come in several pieces.
        is_everywhere: whether servers that have none of the rows are asked, too.
    """

    __slots__ = ("bounds", "dim", "is_everywhere", "may_split", "order")

    def __init__(
        self,
        dim: int,
        order: NDArray[np.int64] | None,
        bounds: Sequence[int],
        may_split: bool,
        is_everywhere: bool = False,
    ) -> None:
        self.dim, self.order, self.bounds, self.may_split = dim, order, bounds, may_split
        self.is_everywhere = is_everywhere

    def rows(self, server: int, start: int, stop: int) -> NDArray[np.int64]:
        """The positions of a range of a server's rows; only where there is an `order`."""
        assert self.order is not None
        base = self.bounds[server]
        return self.order[base + start : base + stop]


def cut_keys(
    keys: NDArray[np.uint64],
    dim: int,
    may_split: bool,
    slots: SlotMap,
    servers: int,
    is_everywhere: bool = False,
) -> Cut:
    """Cut a sparse table's increasing keys by the owners of their slots."""
    if servers == 1:
        return Cut(dim, None, (0, keys.size), may_split, is_everywhere)
    order, counts = split(slots, keys, servers)
    return Cut(dim, order, [0, *np.cumsum(counts).tolist()], may_split, is_everywhere)


def cut_blocks(shares: Sequence[BlockShare], dim: int) -> Cut:
    """Cut a dense table: each server answers and takes its blocks whole."""
    bounds = [0]
    for share in shares:
        bounds.append(bounds[-1] + share.blocks.size)
    return Cut(dim, None, bounds, False)


def pieces_of(
    cuts: Sequence[Cut], servers: int, limit_of: Callable[[int], int] = lambda server: PIECE
) -> list[Piece]:
    """The messages of a request about tables that are cut so, by server.

    A server that has no rows gets none, unless a table asks everywhere. The pieces depend on tables
    and keys alone, so that a push is cut as the pull before it was.

    Args:
        limit_of: bytes of rows in a piece to a server; up to half as much again is not cut.
    """
    pieces: list[Piece] = []
    for server in range(servers):
        ranges, nbytes = [], 0
        for place, cut in enumerate(cuts):
            # A dense table is cut by the map, which may know fewer servers than there are.
            is_known = server + 1 < len(cut.bounds)
            rows = cut.bounds[server + 1] - cut.bounds[server] if is_known else 0
            if rows or cut.is_everywhere:
                ranges.append(Range(place, 0, rows))
                nbytes += rows * _row_nbytes(cut)
        if not ranges:
            continue
        limit = limit_of(server)
        if 2 * nbytes <= 3 * limit:
            pieces.append(Piece(server, 0, ranges, False))
        else:
            larger = max(min(nbytes // SOME_PIECES, LARGE_PIECE), nbytes // MOST_PIECES)
            pieces += _split(server, ranges, cuts, max(limit, larger))
    return pieces


def cut_in_pieces(
    cuts: Sequence[Cut], servers: int, limit_of: Callable[[int], int], least: int
) -> Sequence[Piece]:
    """`pieces_of` the cuts; those of a request in one message are made once for all of its size.

    Args:
        limit_of: bytes of rows in a piece to a server; `least` or more.
    """
    if servers == 1 and len(cuts) == 1:
        rows = cuts[0].bounds[1]
        if 0 < rows <= _FEW and 2 * rows * (8 + 4 * cuts[0].dim) <= 3 * least:
            return _whole(rows)
    return pieces_of(cuts, servers, limit_of)


@lru_cache(maxsize=1024)
def _whole(rows: int) -> Sequence[Piece]:
    """A request about so many rows of one table of one server, in one message."""
    return (Piece(0, 0, [Range(0, 0, rows)], False),)


def _row_nbytes(cut: Cut) -> int:
    return 8 + 4 * cut.dim


def _split(server: int, ranges: Sequence[Range], cuts: Sequence[Cut], limit: int) -> list[Piece]:
    """Fill one piece after the other, cutting tables where they may be cut."""
    pieces: list[Piece] = []
    filled: list[Range] = []
    room, is_rest = limit, False
    for place, start, stop in ranges:
        width = _row_nbytes(cuts[place])
        while cuts[place].may_split and (stop - start) * width > room + limit // 2:
            rows = max(1, room // width)
            filled.append(Range(place, start, start + rows))
            pieces.append(Piece(server, len(pieces), filled, is_rest))
            filled, room, is_rest = [], limit, True
            start += rows
        filled.append(Range(place, start, stop))
        room -= (stop - start) * width
        if room <= 0:
            pieces.append(Piece(server, len(pieces), filled, is_rest))
            filled, room, is_rest = [], limit, False
    if filled:
        pieces.append(Piece(server, len(pieces), filled, is_rest))
    return pieces

"""Rows from anywhere in an epoch: only the chunks are read that hold them.

A row's position is its place in the epoch's order, which seed and epoch fix; so a range of
positions is the same rows for whoever reads it. Reading goes on forward without reading anything
twice; what lies before the last range is looked for from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from apps.ctr.batch import Rows

Order = NDArray[np.int64] | None
"""The order of the rows of a window; None: as they are."""


class Part(NamedTuple):
    """Rows `start` to `stop` of a window, in its order."""

    window: Rows
    order: Order
    start: int
    stop: int


class EpochReader:
    """One pass over a file, in ranges.

    Args:
        chunks: in the order of the pass.
        sizes: rows of each chunk by its number, if they are known: others can be passed over then.
        read: the windows of a chunk, each with the order of its rows.
    """

    def __init__(
        self,
        chunks: Sequence[int],
        sizes: Sequence[int] | None,
        read: Callable[[int], Iterator[tuple[Rows, Order]]],
    ) -> None:
        self._chunks, self._sizes, self._read = chunks, sizes, read
        self._begin()

    def _begin(self) -> None:
        self._coming = iter(self._chunks)
        self._open: Iterator[tuple[Rows, Order]] | None = None  # what is left of a chunk
        self._end: int | None = None  # position at which that chunk ends, if it is known
        self._window: tuple[Rows, Order] | None = None
        self._first = self._next = 0  # positions of the window and after it

    def parts(self, start: int, stop: int) -> Iterator[Part]:
        """The rows at positions `start` to `stop`, window by window."""
        if start < self._first:
            self._begin()
        while start < stop and self._find(start):
            assert self._window is not None
            upto = min(stop, self._next)
            yield Part(*self._window, start - self._first, upto - self._first)
            start = upto

    def _find(self, position: int) -> bool:
        """Go on to the window that holds a position; False at the end of the file."""
        while position >= self._next:
            if self._end is not None and position >= self._end and self._open is not None:
                self._open, self._next = None, self._end  # the rest of the chunk is not wanted
            if self._open is None and not self._open_chunk(position):
                return False
            assert self._open is not None
            found = next(self._open, None)
            self._first = self._next
            self._window = found
            if found is None:
                self._open = None
            else:
                self._next += len(found[0])
        return True

    def _open_chunk(self, position: int) -> bool:
        for chunk in self._coming:
            size = None if self._sizes is None else self._sizes[chunk]
            if size is not None and self._next + size <= position:
                self._next += size
                continue
            self._open = self._read(chunk)
            self._end = None if size is None else self._next + size
            return True
        return False

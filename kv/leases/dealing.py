"""Who gets which piece where speed must not decide it.

`DataShards` asks a `Dealing`, if it has one, before it looks at speeds. `ByRank` deals pieces of
one size round and round, so that each worker gets the same ones in each run; `kv.replay.leases`
deals as an earlier run did.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from kv.leases.pieces import DataSet, Span, Spans


class Dealt(NamedTuple):
    """What a worker that asks is to get: a piece; nothing more; or, without either, to ask again.

    `is_silent`: it hears nothing now, and so asks again of itself.
    """

    span: Span | None = None
    is_over: bool = False
    is_silent: bool = False


class Dealing(Protocol):
    """Deals the pieces of data sets that have no parts."""

    def opened(self, data: DataSet) -> None:
        """A worker will read it. Raises KVError: it may not."""

    def deal(self, data: DataSet, free: Spans, worker: int) -> Dealt | None:
        """What a worker gets that holds no piece; None: what its speed says."""

    def dealt(self, data: str, worker: int, dealt: Dealt) -> None:
        """What it was told."""

    def close(self, why: str = "") -> None:
        """The job has ended; `why` it ended early."""


def by_speed(data: DataSet, free: Spans, worker: int) -> None:
    """A `Dealing.deal` that leaves everything to `DataShards`."""
    return None


class ByRank:
    """Piece k of an epoch goes to worker k mod W.

    Args:
        workers: W.
        most: units of a piece, at most.
        shares: pieces of each worker in an epoch, at least, where there are so many units.
    """

    def __init__(self, workers: int, most: int = 64, shares: int = 2) -> None:
        self._workers, self._most, self._shares = workers, most, shares

    def size(self, data: DataSet) -> int:
        """Records of a piece.

        >>> ByRank(2).size(DataSet(name="d", records=1000, unit=10))
        250
        """
        units = -(-data.records // data.unit)
        return max(1, min(self._most, units // (self._shares * self._workers))) * data.unit

    def opened(self, data: DataSet) -> None:
        """Any may be."""

    def deal(self, data: DataSet, free: Spans, worker: int) -> Dealt:
        size = self.size(data)
        for span in free:
            first = span.start // size
            number = first + (worker - first) % self._workers
            start = max(span.start, number * size)
            if start < span.stop:
                stop = min((number + 1) * size, span.stop)
                return Dealt(Span(span.epoch, span.part, start, stop))
        return Dealt(is_over=True)

    def dealt(self, data: str, worker: int, dealt: Dealt) -> None:
        """It is the same in each run."""

    def close(self, why: str = "") -> None:
        """There is nothing to close."""

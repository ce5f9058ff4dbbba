"""What `worker.shards(...)` returns: the pieces of a data set that fall to this worker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from kv.leases.pieces import DataSet, Piece
from kv.leases.reading import Ranges
from kv.leases.shards import Answer

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reading:
    """How far the workers of a job have come together.

    Attributes:
        begun: names of the data sets of which pieces were given away.
        read: what has been read of each: done, or said to be pushed.
    """

    begun: list[str]
    read: dict[str, Ranges]


class Line(Protocol):
    """The way to the leases: over the network, or to those of this process."""

    def open(self, data: DataSet) -> bool: ...
    def ask(self, name: str) -> Answer: ...
    def see(self, name: str, piece: int, seen: int) -> None: ...
    def finish(self, name: str, piece: int) -> bool: ...
    def look(self) -> Reading: ...
    def settle(self) -> None: ...
    def resume(self, read: Mapping[str, Ranges]) -> None: ...
    def pause(self) -> bool:
        """Let others get on; False if nobody else could meanwhile."""


class Shards:
    """Iterates over the pieces that this worker gets, until all of the data set is done.

    Asking for the next piece says that the one before is done, once all pushes of this worker are
    answered. A piece that the iteration is left in, by an error or `break`, stays this worker's
    until it says goodbye or dies; then others get it, from its beginning.

    Args:
        line: the way to the leases.
        data: the data set.
        settle: returns when this worker's pushes are answered.
        rest: called when others work on the last pieces and there is none for this worker: they may
            take more steps than it has, and must not wait for it meanwhile.

    Attributes:
        has_begun: whether a piece had been given away when this was made: a program that is started
            again learns by it that its tables have their first values already.
        meanwhile: called instead of a pause while others work on the last pieces; whether it has
            waited for something.
    """

    def __init__(
        self,
        line: Line,
        data: DataSet,
        settle: Callable[[], None],
        rest: Callable[[], None] = lambda: None,
    ) -> None:
        self.data = data
        self._line, self._settle, self._rest = line, settle, rest
        self.has_begun = line.open(data)
        self.meanwhile: Callable[[], bool] = lambda: False
        self._piece: Piece | None = None

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        self.finish()
        while True:
            answer = self._line.ask(self.data.name)
            if answer.piece is not None:
                self._piece = answer.piece
                return answer.piece
            if answer.is_over:
                raise StopIteration
            if self.data.parts == 1:  # else all take the same steps, and nobody is ahead
                self._rest()
            # Others are at work on the rest, and may die over it.
            if not (self.meanwhile() or self._line.pause()):
                raise StopIteration

    def seen(self, records: int) -> None:
        """Gradients of the first `records` records of the present piece are pushed, and answered.

        Should this worker die, the ledger says how many records the model has seen twice; a job
        that goes on from a checkpoint does not read them again. Where the data is read in parts, it
        is of the first `records` positions this worker's part.
        """
        if self._piece is not None:
            self._line.see(self.data.name, self._piece.number, records)

    def finish(self) -> None:
        """The present piece is done; `next` says so by itself."""
        if self._piece is None:
            return
        self._settle()
        piece, self._piece = self._piece, None
        if not self._line.finish(self.data.name, piece.number):
            text = "piece %d of %s does not count: it was given to another worker meanwhile"
            log.warning(text, piece.number, self.data.name)

    def __repr__(self) -> str:
        return f"<Shards of {self.data.name} piece={self._piece}>"

"""Where a worker is in rounds that do not wait for everybody; `semi_sync` says what for.

Plain bookkeeping of one worker, in the thread that makes its steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable


class Position:
    """The next round that a worker will end a step in: one number for all tables and servers.

    Attributes:
        next: that round.
    """

    def __init__(self) -> None:
        self.next = 0
        self._tables: set[int] = set()
        self._pulled = -1  # the latest round that a step's values were of
        self._told = 0

    def __bool__(self) -> bool:
        """Whether a table of this worker asks for it."""
        return bool(self._tables)

    def add(self, table: int) -> None:
        """That table asks for it."""
        self._tables.add(table)

    def begin_at(self, position: int) -> None:
        """A former life of this worker was there already."""
        self.next = max(self.next, position)

    def resume(self, clocks: Iterable[tuple[int, int]]) -> None:
        """All are together where tables go on with these clocks, from a checkpoint."""
        self.begin_at(max((clock for table, clock in clocks if table in self._tables), default=0))

    def hear(self, clock: int) -> None:
        """What a server has answered to the end of a step: the latest of its clocks."""
        self._told = max(self._told, clock)

    def step(self, clocks: Iterable[tuple[int, int]], hear_out: Callable[[], object]) -> int:
        """A step has ended; the position to say with it.

        It follows from what the worker has used, not from when answers came: runs that are made
        again say the same.

        Args:
            clocks: tables and clocks of the pulls that this worker has waited for.
            hear_out: called where it has pulled nothing newer since the step before, and so may
                never pull: returns when all that was answered to that step has been heard.
        """
        pulled = max((clock for table, clock in clocks if table in self._tables), default=-1)
        known = pulled
        if pulled <= self._pulled:
            hear_out()
            known = max(known, self._told)
        self._pulled = max(self._pulled, pulled)
        self.next = max(self.next, known) + 1
        return self.next

"""Step 5 of a push: the clocks of the tables on the servers, as far as this dispatcher knows.

Every answer of a server advances them; they never go back, though answers may overtake each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from van.message import Clock


class VersionClock:
    """The latest clock and version of each table on each server."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[int, int]] = {}

    def advance(self, clocks: Iterable[Clock]) -> None:
        """An answer of a server has come: its tables' clocks, with its rank and their versions."""
        for table, clock, pairs in clocks:
            for server, version in pairs:
                known = self._known.get((table, server), (0, 0))
                self._known[table, server] = max(clock, known[0]), max(version, known[1])

    def clock(self, table: int, server: int) -> int:
        """The latest clock that is known; 0: nothing is."""
        return self._known.get((table, server), (0, 0))[0]

    def clocks(self, tables: Sequence[int]) -> tuple[Clock, ...]:
        """For an answer to a worker: an entry for each table and server."""
        return tuple(
            (table, clock, ((server, version),))
            for (table, server), (clock, version) in list(self._known.items())
            if table in tables
        )

"""Mode `ssp`: pushes count at once, but nobody runs too far ahead.

A worker that has completed c steps is answered when every worker that has not finished has
completed at least c - staleness; with staleness 0 as in rounds, except that pushes are not added
up: each is an optimiser step of its own, in order of arrival.

Source: Ho et al., More effective distributed ML via a stale synchronous parallel parameter server,
NIPS 2013, section 3. There a worker reads from a cache; here its pulls wait.
"""

from __future__ import annotations

from typing import ClassVar

from kv.consistency.asynchronous import Asynchronous
from kv.consistency.base import Context
from kv.consistency.settings import SSP


class StaleSynchronous(Asynchronous):
    """The clock counts the pushes applied, as in `async`."""

    name: ClassVar[str] = SSP.name

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        assert isinstance(context.settings, SSP)
        self.staleness = int(context.settings.staleness)
        self.progress.keeps_together = True
        self._slowest = self.progress.slowest()

    def may_pull(self, rank: int, step: int) -> bool:
        slowest = self.progress.slowest()
        return slowest is None or slowest >= step - self.staleness

    def settled(self) -> bool:
        """Whether the slowest worker is another step further, so that pulls may be answered."""
        before, self._slowest = self._slowest, self.progress.slowest()
        return self._slowest != before

    def resume(self, clock: int) -> None:
        super().resume(clock)
        self._slowest = self.progress.slowest()

    def waits_for(self, rank: int, step: int) -> list[int]:
        return self.progress.behind(step - self.staleness)

"""Things to do at a time, or every so many seconds: which are due, and when the next one is.

Bookkeeping only; the thread that drives a van asks. After a pause (a process that was stopped, a
long computation) a call is made once, not once for each time that was missed.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

NEVER = float("inf")


class Timers:
    """Calls to make, once or again and again.

    Attributes:
        next_due: when `due` has something to call; `NEVER` without calls.
    """

    def __init__(self) -> None:
        self.next_due = NEVER
        self._heap: list[tuple[float, int, float, Callable[[], None]]] = []
        self._serials = itertools.count()

    def every(self, seconds: float, call: Callable[[], None], now: float) -> None:
        """Make `call` due each `seconds`, first after that time."""
        assert seconds > 0
        self._push(now + seconds, seconds, call)

    def at(self, time: float, call: Callable[[], None]) -> None:
        """Make `call` due once, at `time`."""
        self._push(time, 0.0, call)

    def due(self, now: float) -> list[Callable[[], None]]:
        """What is to be called now, the longest overdue first."""
        calls = []
        while self.next_due <= now:
            _, _, seconds, call = self._heap[0]
            calls.append(call)
            # At once: an exception out of a signal handler may come between any two steps.
            if seconds:
                heapq.heapreplace(self._heap, (now + seconds, next(self._serials), seconds, call))
            else:
                heapq.heappop(self._heap)
            self.next_due = self._heap[0][0] if self._heap else NEVER
        return calls

    def clear(self) -> None:
        """Forget all calls."""
        self._heap.clear()
        self.next_due = NEVER

    def _push(self, due: float, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (due, next(self._serials), seconds, call))
        self.next_due = self._heap[0][0]

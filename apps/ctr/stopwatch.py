"""Where the time of a step goes."""

from __future__ import annotations

import time
from collections.abc import Callable

PARTS = ("data", "pull", "forward", "backward", "push", "wait")


class Stopwatch:
    """Adds up seconds by part: `lap("pull")` books the time since the lap before it.

    Args:
        now: a clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._last = now()
        self.seconds = dict.fromkeys(PARTS, 0.0)

    def lap(self, part: str) -> None:
        now = self._now()
        self.seconds[part] += now - self._last
        self._last = now

    def skip(self) -> None:
        """The time since the last lap belongs to no part."""
        self._last = self._now()

"""Who has been heard of when. Time is an argument.

Time in which nobody listened does not count as silence: a process that was stopped, or whose
machine slept, must not declare the others dead when it wakes up.

Source: ps-lite, src/postoffice.cc (GetDeadNodes), which reads the wall clock and does not notice
its own pauses.
"""

from __future__ import annotations


class Liveness:
    """When each of some nodes was last heard.

    Args:
        timeout: seconds of silence after which a node counts as dead; 0: it never does.
        listens_every: seconds between two calls of `silent`; a longer gap was a pause of ours.
    """

    def __init__(self, timeout: float, listens_every: float) -> None:
        self._timeout, self._every = timeout, listens_every
        self._heard: dict[int, float] = {}
        self._listened: float | None = None

    def heard(self, node: int, now: float) -> None:
        """`node` has spoken."""
        self._heard[node] = max(now, self._heard.get(node, now))

    def forget(self, node: int) -> None:
        """`node` may be silent from now on."""
        self._heard.pop(node, None)

    def silent(self, now: float) -> dict[int, float]:
        """Who has been silent for too long, and for how many seconds."""
        self._leave_out_pause(now)
        if not self._timeout:
            return {}
        ages = self.ages(now)
        return {node: age for node, age in ages.items() if age >= self._timeout}

    def ages(self, now: float) -> dict[int, float]:
        """Seconds since each node was heard."""
        return {node: max(0.0, now - heard) for node, heard in self._heard.items()}

    def _leave_out_pause(self, now: float) -> None:
        if self._listened is not None:
            pause = now - self._listened - 2 * self._every
            if pause > 0:
                for node, heard in self._heard.items():
                    self._heard[node] = min(now, heard + pause)
        self._listened = now

    def validate(self) -> None:
        """Check that the book is consistent."""
        assert self._timeout >= 0

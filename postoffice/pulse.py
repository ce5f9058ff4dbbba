"""When a node says that it lives, and whether the scheduler does. Time is an argument."""

from __future__ import annotations

from postoffice.liveness import Liveness
from postoffice.node import SCHEDULER_ID


class Pulse:
    """The heartbeat of one node, and what it hears of the scheduler.

    Args:
        interval: seconds between two heartbeats.
        scheduler_timeout: seconds of its silence after which the scheduler is lost; 0: never.
    """

    def __init__(self, interval: float, scheduler_timeout: float) -> None:
        self.interval = interval
        self._timeout = scheduler_timeout
        self._liveness = Liveness(scheduler_timeout, interval)
        self._asked_in: int = -1  # the epoch in which news were asked for out of turn

    def heard(self, now: float) -> None:
        """The scheduler has spoken."""
        self._liveness.heard(SCHEDULER_ID, now)

    def problem(self, now: float) -> str | None:
        """Why this node must end, or None; to be asked with each beat."""
        silent = self._liveness.silent(now).get(SCHEDULER_ID)
        if silent is None:
            return None
        return (
            f"the scheduler was silent for {silent:.0f} s; does it run? [cluster] "
            f"scheduler_timeout says how long to wait for its return"
        )

    def describe(self, now: float) -> str:
        """For people who wait: that the scheduler is away, or nothing."""
        age = self._liveness.ages(now).get(SCHEDULER_ID, 0.0)
        if age < 4 * self.interval:
            return ""
        return (
            f"; the scheduler has been silent for {age:.0f} s and may be so for "
            f"{self._timeout:g} s ([cluster] scheduler_timeout)"
        )

    def wants_news(self, epoch: int) -> bool:
        """Whether to ask now instead of with the next beat: once in each epoch."""
        if self._asked_in == epoch:
            return False
        self._asked_in = epoch
        return True

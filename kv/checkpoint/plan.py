"""When the workers of a job meet for a checkpoint.

Nobody is asked at each step: all workers know the step at which they meet next. By steps that is
every so many; by time worker 0 looks at its clock when they meet, and names the next meeting by how
fast they have been.
"""

from __future__ import annotations

FIRST = 8  # steps until the first look at the clock
MOST = 1 << 16  # steps between two meetings


class Plan:
    """Decides at meetings.

    Args:
        every_steps: steps between two checkpoints; 0 is by time alone.
        every: seconds between two checkpoints; 0 is by steps alone.
        step: completed when it begins; now: the time then, in seconds.
    """

    def __init__(self, every_steps: int, every: float, step: int, now: float) -> None:
        self._every_steps, self._every = every_steps, every
        self._saved_at, self._seen = now, (step, now)
        self.meeting = self._next(step, now)

    def decide(self, step: int, now: float) -> bool:
        """At a meeting, after `step` steps: whether to save. `meeting` is then the next one."""
        by_steps = bool(self._every_steps) and step % self._every_steps == 0
        is_due = by_steps or (self._every > 0 and now >= self._saved_at + self._every)
        if is_due:
            self._saved_at = now
        self.meeting = self._next(step, now)
        self._seen = step, now
        return is_due

    def _next(self, step: int, now: float) -> int:
        following = []
        if self._every_steps:
            following.append(step + self._every_steps - step % self._every_steps)
        if self._every:
            following.append(step + self._steps_until(step, now))
        return min(following, default=1 << 62)

    def _steps_until(self, step: int, now: float) -> int:
        """Steps until a save is due by time; too few rather than too many, at first."""
        seen_step, seen_at = self._seen
        if step <= seen_step or now <= seen_at:
            return FIRST
        rate = (step - seen_step) / (now - seen_at)
        left = max(0.0, self._saved_at + self._every - now)
        return max(1, min(int(rate * left) + 1, 4 * (step - seen_step), MOST))

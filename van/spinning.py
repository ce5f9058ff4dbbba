"""When to look for a while before sleeping.

To put a process to sleep and wake it again takes the kernel tens of microseconds, and what wakes
finds its caches cold: together most of a small request on one host. Two processes that look instead
need no waking, if each has a core. So it is tried, and goes on as long as it is worth while:

- Looks find what they look for, at least every second one. (Where answers take longer, looking only
  wastes time.)
- It is not slower than without. Whether it is, is measured, from the end of a wait to that of the
  next, with looking and without in turn. Where others want the core, it is: whoever looks uses up
  its share of it, and then waits milliseconds for the next.

Else there is a rest, a longer one each time.

The two must have different cores, or looking keeps the other from running. The kernel parts two
that are both busy, but it likes to wake a process on the core of the one that wakes it. So one who
looks, and has to sleep all the same, stays on its core (`van.cores`).

Pure: no clock and no socket; times are arguments.

Source: Karlin, Li, Manasse, Owicki, SOSP 1991, who choose from the waits before between looking
for a bounded time and sleeping at once.
"""

from __future__ import annotations

_ALLOWANCE = 10e-3  # seconds looked in vain, less those in which something was found
_FIRST_REST, _LONGEST_REST = 0.1, 3.2  # seconds
_CALM = 1.0  # seconds without a reason to rest, after which the first rest is short again
_IDLE = 0.02  # seconds: who does nothing for longer has no work, which says nothing of how to wait
_SETTLING = 8  # first looks of a trial, which find cold caches and the other on the same core
_TRIAL = 48  # waits of each kind that are compared
_FEW, _MUCH = 8, 1.5  # waits of a trial that tell enough, if they take so many times as long
_TRY_SLEEP_EVERY = 1.0  # seconds
_TOLERATED = 1.1  # of the time without; what takes longer with looking is no chance


class _Pace:
    """Seconds from the end of a wait to that of the next, lately."""

    def __init__(self) -> None:
        self.count, self.seconds = 0, 0.0

    def add(self, took: float) -> None:
        if took < _IDLE:
            self.count += 1
            self.seconds += (took - self.seconds) / min(self.count, 4 * _TRIAL)

    @property
    def is_known(self) -> bool:
        return self.count >= _TRIAL


class Spinning:
    """Says of each wait how long to look, from how the ones before ended.

    Args:
        window: seconds to look at most; 0 is never.
    """

    def __init__(self, window: float) -> None:
        self._window = window
        self._rest = _FIRST_REST
        self._rests_until = 0.0 if window else float("inf")
        self._slept, self._ended = _Pace(), -1.0
        self._begin_trial()
        # So that there is something to compare with; the first is since nobody knows when.
        self._sleeps_left = _TRIAL + 1 if window else 0

    def _begin_trial(self) -> None:
        self._looked, self._looks = _Pace(), 0
        self._allowance = _ALLOWANCE
        self._sleeps_left = 0  # waits that are to sleep, to compare
        self._compare_at = 0.0

    def window(self, now: float) -> float:
        """How many seconds the wait that begins at `now` should look; 0: sleep at once."""
        return 0.0 if now < self._rests_until or self._sleeps_left else self._window

    def note_slept(self, now: float) -> None:
        """A wait that did not look has ended at `now`."""
        self._slept.add(now - self._ended)
        self._ended = now
        if self._sleeps_left:
            self._sleeps_left -= 1
            self._compare_at = now + _TRY_SLEEP_EVERY

    def note_looked(self, now: float, has_helped: bool) -> None:
        """A wait that looked has ended at `now`.

        Args:
            now: seconds.
            has_helped: whether something was found while it looked.
        """
        self._looks += 1
        if self._looks > _SETTLING:
            self._looked.add(now - self._ended)
        self._ended = now
        if has_helped:
            self._allowance = min(self._allowance + self._window, _ALLOWANCE)
        else:
            self._allowance -= self._window
        if self._allowance <= 0 or self._is_slower(now):
            self._begin_rest(now)

    def _is_slower(self, now: float) -> bool:
        """Whether it is slower with looking, as far as is known."""
        slept, looked = self._slept, self._looked
        if not looked.is_known:
            return (
                looked.count >= _FEW and slept.is_known and looked.seconds > _MUCH * slept.seconds
            )
        if now >= self._compare_at:
            self._slept, self._sleeps_left, self._compare_at = _Pace(), _TRIAL, float("inf")
            return False
        return slept.is_known and looked.seconds > _TOLERATED * slept.seconds

    def _begin_rest(self, now: float) -> None:
        if now - self._rests_until > _CALM:
            self._rest = _FIRST_REST
        self._rests_until = now + self._rest
        self._rest = min(2 * self._rest, _LONGEST_REST)
        self._begin_trial()

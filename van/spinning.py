"""When to look for a while before sleeping.

To put a process to sleep and wake it again takes the kernel tens of microseconds, and what wakes
finds its caches cold: together most of a small request on one host. Two processes that look instead
need no waking, if each has a core. So it is tried, and goes on as long as it is worth while:

- Looks find what they look for, at least every second one. (Where answers take longer, looking only
  wastes time.)
- It goes faster than without. Whether it does is measured, from the end of a wait to that of the
  next, with looking and without in turn. Where others want the core, it does not: whoever looks
  uses up its share of it, and then waits milliseconds for the next.

Else there is a rest, a longer one each time.

The two must have different cores. The kernel likes to wake a process on the core of the one that
wakes it, and looking then keeps the other from running: what was looked for in vain comes as soon
as one sleeps, or this one is put off its core again and again. Who sees that, steps aside to
another core; half of the times only, as the other one may see it too, and both would meet there.

Pure: no clock, no socket; times, counts and chance are arguments.

Source: Karlin, Li, Manasse, Owicki, SOSP 1991, who choose from the waits before between looking
for a bounded time and sleeping at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable

_ALLOWANCE = 10e-3  # seconds looked in vain, less those in which something was found
_FIRST_REST, _LONGEST_REST = 0.1, 3.2  # seconds
_CALM = 1.0  # seconds without a reason to rest, after which the first rest is short again
_PUT_OFF_AGAIN = 0.03  # seconds: put off the core twice within them is more than a kernel thread
_ASK_EVERY = 4  # looks
_STEP_EVERY = 0.002  # seconds between two steps aside, each of which takes some 0.1 ms
_IDLE = 0.02  # seconds: who does nothing for longer has no work, which says nothing of how to wait
_SETTLING = 16  # first looks of a trial, which find cold caches and the other on the same core
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
        chance: gives numbers from 0 to 1.
    """

    def __init__(self, window: float, chance: Callable[[], float] = random.random) -> None:
        self._window, self._chance = window, chance
        self._rest = _FIRST_REST
        self._rests_until = 0.0 if window else float("inf")
        self._slept = _Pace()
        self._stepped = self._ended = -1.0
        self._begin_trial()

    def _begin_trial(self) -> None:
        self._looked, self._looks = _Pace(), 0
        self._allowance = _ALLOWANCE
        self._count, self._put_off = -1, -1.0  # times put off the core, and when the last was seen
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

    def note(
        self, now: float, took: float, has_helped: bool, times_put_off: Callable[[], int]
    ) -> bool:
        """A wait that looked has ended at `now`.

        Args:
            now: seconds.
            took: seconds of the whole wait.
            has_helped: whether something was found while it looked.
            times_put_off: tells how often this thread was put off a core by others, ever; it is
                asked now and then, for it costs as much as the rest here.
        Returns:
            Whether to step aside to another core.
        """
        self._looks += 1
        is_wanted = self._looks % _ASK_EVERY == 1 and self._is_put_off_again(now, times_put_off())
        if self._looks > _SETTLING:
            self._looked.add(now - self._ended)
        self._ended = now
        if has_helped:
            self._allowance = min(self._allowance + self._window, _ALLOWANCE)
        else:
            self._allowance -= self._window
            is_wanted = is_wanted or took < 2.5 * self._window
        if self._allowance <= 0 or self._is_in_vain(now):
            self._begin_rest(now)
            return False
        if is_wanted and now - self._stepped > _STEP_EVERY:
            self._stepped, self._put_off = now, -1.0
            return self._chance() < 0.5
        return False

    def _is_put_off_again(self, now: float, put_off: int) -> bool:
        if put_off == self._count:
            return False
        is_again = self._count >= 0 and now - self._put_off < _PUT_OFF_AGAIN
        self._put_off = now if self._count >= 0 else -1.0
        self._count = put_off
        return is_again

    def _is_in_vain(self, now: float) -> bool:
        """Whether waits that look are not shorter than others."""
        if not self._looked.is_known:
            return self._looked.count >= _FEW and self._is_slower(_MUCH)
        if now >= self._compare_at:
            self._slept, self._sleeps_left, self._compare_at = _Pace(), _TRIAL, float("inf")
        return self._is_slower(_TOLERATED)

    def _is_slower(self, factor: float) -> bool:
        return self._slept.is_known and self._looked.seconds > factor * self._slept.seconds

    def _begin_rest(self, now: float) -> None:
        if now - self._rests_until > _CALM:
            self._rest = _FIRST_REST
        self._rests_until = now + self._rest
        self._rest = min(2 * self._rest, _LONGEST_REST)
        self._begin_trial()

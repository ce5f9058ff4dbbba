"""When to look for a while before sleeping.

To put a process to sleep and wake it again takes the kernel tens of microseconds, a large part of
a small request on one host. Two processes that look instead need no waking, if each has a core.
So a look is worth while as long as three things hold, and else there is a rest, a longer one each
time:

- Looks find what they look for, at least every second one. (Where answers take longer, looking
  only wastes time.)
- Nobody else wants the core, which shows in being put off it. Whoever looks uses up its share of a
  core that others want, and then waits milliseconds for the next.
- The two have different cores. The kernel likes to wake a process on the core of the one that
  wakes it, and looking then keeps the other from running: what was looked for in vain comes as soon
  as one sleeps. Who sees that, steps aside to another core.

Pure: no clock, no socket; times and counts are arguments.

Source: Karlin, Li, Manasse, Owicki, SOSP 1991, who choose from the waits before between looking
for a bounded time and sleeping at once.
"""

from __future__ import annotations

from collections.abc import Callable

_ALLOWANCE = 5e-3  # seconds looked in vain, less those in which something was found
_FIRST_REST, _LONGEST_REST = 0.1, 1.6  # seconds
_CALM = 1.0  # seconds without a reason to rest, after which the first rest is short again
_PUT_OFF_AGAIN = 0.03  # seconds: put off the core twice within them is more than a kernel thread
_ASK_EVERY = 4  # looks
_STEP_EVERY = 0.05  # seconds between two steps aside, each of which takes some 0.1 ms


class Spinning:
    """Says of each wait how long to look, from how the ones before ended.

    Args:
        window: seconds to look at most; 0 is never.
    """

    def __init__(self, window: float) -> None:
        self._window = window
        self._allowance = _ALLOWANCE
        self._rest = _FIRST_REST
        self._rests_until = 0.0 if window else float("inf")
        self._count, self._put_off = -1, -1.0  # times put off the core, and when the last was seen
        self._stepped = -1.0
        self._looks = 0  # since the last rest

    def window(self, now: float) -> float:
        """How many seconds the wait that begins at `now` should look; 0: sleep at once."""
        return 0.0 if now < self._rests_until else self._window

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
        is_wanted = False  # the core, by others
        self._looks += 1
        if self._looks % _ASK_EVERY == 1 and (put_off := times_put_off()) != self._count:
            is_wanted = now - self._put_off < _PUT_OFF_AGAIN
            self._put_off = now if self._count >= 0 else -1.0
            self._count = put_off
        if has_helped:
            self._allowance = min(self._allowance + self._window, _ALLOWANCE)
        else:
            self._allowance -= self._window
            is_wanted = is_wanted or took < 2.5 * self._window
        if is_wanted and now - self._stepped > _STEP_EVERY:
            self._stepped, self._put_off = now, -1.0
            return True
        if self._allowance <= 0 or (is_wanted and has_helped):
            self._begin_rest(now)
        return False

    def _begin_rest(self, now: float) -> None:
        if now - self._rests_until > _CALM:
            self._rest = _FIRST_REST
        self._allowance, self._count, self._put_off, self._looks = _ALLOWANCE, -1, -1.0, 0
        self._rests_until = now + self._rest
        self._rest = min(2 * self._rest, _LONGEST_REST)

"""When to look for a while before sleeping.

To put a process to sleep and wake it again takes the kernel tens of microseconds, and what wakes
finds its caches cold: together most of a small request on one host. Two processes that look instead
need no waking, if each has a core. So it is tried, and goes on as long as it is worth while:

- The last wait brought something. Who was woken by nothing but a timer talks with nobody.
- Looks find what they look for, at least every second one. (Where answers take longer, looking only
  wastes time; not so where they take very long, as then it is a small part of it.)
- It is not slower than without. Whether it is, is measured, from the end of a wait to that of the
  next: some waits sleep, then some look. Where others want the core, it is: whoever looks uses up
  its share of it, and then waits milliseconds for the next. One such comparison proves nothing, as
  the other side compares, too, and while it sleeps all takes longer: two in a row have to say so,
  or the kernel as well, which counts how often it took the core away.

Else there is a rest, a longer one each time. While all is well comparisons become rarer, since the
waits that sleep for them are the slow ones; one is due at once when waits come to take longer.

The two must have different cores, or looking keeps the other from running. The kernel parts two
that are both busy, but it likes to wake a process on the core of the one that wakes it. So one who
looks, and has to sleep all the same, stays on its core (`van.cores`); and who has looked for a
while offers the core to others between looks (`van.poller`): they may be the one it waits for.

Pure: no clock and no socket; times are arguments, and so is who counts.

Source: Karlin, Li, Manasse, Owicki, SOSP 1991, who choose from the waits before between looking
for a bounded time and sleeping at once.
"""

from __future__ import annotations

from collections.abc import Callable

_ALLOWANCE = 10e-3  # seconds looked in vain, less those in which something was found
_TRIED = 2e-3  # likewise, of the first looks after a rest
_SPARE = 20.0  # a wait of so many times what was looked in vain: that is no loss worth a thought
_FIRST_REST, _LONGEST_REST = 0.1, 3.2  # seconds
_LONGEST_VAIN_REST = 0.4  # after looks in vain: another trial is cheap
_LEAST_SLOW_REST = 0.4  # after slow looks: it is not
_CALM = 1.0  # seconds without a reason to rest, after which the first rest is short again
_IDLE = 5e-3  # seconds: who has nothing to do for longer would hardly gain
_SETTLING = 8  # first waits of a kind, which find cold caches and the other on the same core
_SAMPLE = 48  # waits of each kind that are compared
_OUTLIER = 10.0  # times what is usual count as so many: what was between two pieces of work
_TOLERATED = 1.1  # of the time without; what takes longer with looking is no chance
_HOPELESS = 2.0  # times the time without: the sample need not be had in full
_ENOUGH = 24  # looks that are a sample where others want the core
_WANTED = 0.25  # times a look that others get the core who want it: 0.4 to 2, else 0 to 0.1
_LOSSES = 2  # comparisons in a row that say looking is slower
_FIRST_AFTER, _LAST_AFTER = 0.5, 4.0  # seconds from one comparison to the next
_CHANGED = 1.5  # times the time at the last comparison: something is different now


class _Pace:
    """Seconds from the end of a wait to that of the next, lately."""

    def __init__(self) -> None:
        self.count, self.seconds = 0, 0.0

    def add(self, took: float) -> None:
        if took < _IDLE:
            self.count += 1
            if self.count > _SETTLING:
                took = min(took, _OUTLIER * self.seconds)
            self.seconds += (took - self.seconds) / min(self.count, 4 * _SAMPLE)

    @property
    def is_known(self) -> bool:
        return self.count >= _SAMPLE


class Spinning:
    """Says of each wait how long to look, from how the ones before ended.

    Args:
        window: seconds to look at most; 0 is never.
        taken: the thread that calls it, and how often the core was taken from it.
    """

    def __init__(self, window: float, taken: Callable[[], tuple[int, int]]) -> None:
        self._window, self._taken = window, taken
        self._rest = _FIRST_REST
        self._rests_until = 0.0 if window else float("inf")
        self._ended = -1.0  # of the last wait: the first is since nobody knows when
        self._allowance = _ALLOWANCE
        self._losses = 0
        self._is_idle = False  # the last wait ended without anything
        self._good = 0.0  # seconds from wait to wait when looking last proved good
        self._after, self._compare_at = _FIRST_AFTER, 0.0
        self._compare()

    def _compare(self) -> None:
        """Let some waits sleep, then some look."""
        self._is_comparing, self._sleeps = True, _SETTLING + _SAMPLE
        self._slept = _Pace()
        self._look_afresh()

    def _look_afresh(self) -> None:
        self._looks, self._looked = _SETTLING, _Pace()  # looks that do not count
        self._taken_before = -1, 0

    def window(self, now: float) -> float:
        """How many seconds the wait that begins at `now` should look; 0: sleep at once."""
        if now < self._rests_until or self._sleeps or self._is_idle:
            return 0.0
        return self._window

    def note_slept(self, now: float) -> None:
        """A wait that did not look has ended at `now`."""
        if self._is_idle:
            self._is_idle = False
        else:
            if self._sleeps <= _SAMPLE:
                self._slept.add(now - self._ended)
            if self._sleeps:
                self._sleeps -= 1
        self._ended = now

    def note_idle(self) -> None:
        """The last wait has ended since its time was up, and nothing had come."""
        self._is_idle = True

    def note_looked(self, began: float, now: float, has_helped: bool) -> None:
        """A wait that looked has ended.

        Args:
            began, now: when the wait began and ended, seconds.
            has_helped: whether something was found while it looked.
        """
        if self._looks:
            self._looks -= 1
            if not self._looks:
                self._taken_before = self._taken()
        else:
            self._looked.add(now - self._ended)
        self._ended = now
        if has_helped:
            self._allowance = min(self._allowance + self._window, _ALLOWANCE)
        elif now - began < _SPARE * self._window:
            self._allowance -= self._window
            if self._allowance <= 0:
                self._begin_rest(now, 0.0, _LONGEST_VAIN_REST)
                return
        if self._is_comparing:
            self._judge(now)
        elif now >= self._compare_at or self._has_changed:
            self._after = _FIRST_AFTER if self._has_changed else min(2 * self._after, _LAST_AFTER)
            self._compare()

    @property
    def _has_changed(self) -> bool:
        return self._looked.is_known and self._looked.seconds > _CHANGED * self._good

    def _judge(self, now: float) -> None:
        """End a comparison, where enough is known."""
        slept, looked = self._slept, self._looked
        is_hopeless = looked.count * looked.seconds > _HOPELESS * _SAMPLE * slept.seconds
        is_slower = is_hopeless or looked.seconds > _TOLERATED * slept.seconds
        is_wanted = False
        if slept.is_known and is_slower and looked.count >= _ENOUGH:
            is_wanted = self._is_wanted
        if not (looked.is_known or (slept.is_known and (is_hopeless or is_wanted))):
            return
        if not slept.is_known:  # they were idle
            self._compare()
        elif is_slower:
            self._losses += 1
            if is_wanted or self._losses == _LOSSES:
                self._begin_rest(now, _LEAST_SLOW_REST, _LONGEST_REST)
            else:
                self._compare()
        else:
            self._losses, self._is_comparing = 0, False
            self._good, self._compare_at = looked.seconds, now + self._after

    @property
    def _is_wanted(self) -> bool:
        """Whether others want the core."""
        (before, times_before), (thread, times) = self._taken_before, self._taken()
        return thread == before and times - times_before > _WANTED * self._looked.count

    def _begin_rest(self, now: float, least: float, most: float) -> None:
        if now - self._rests_until > _CALM:
            self._rest = _FIRST_REST
        self._rest = max(self._rest, least)
        self._rests_until = now + min(self._rest, most)
        self._rest = min(2 * self._rest, _LONGEST_REST)
        self._allowance, self._losses, self._after = _TRIED, 0, _FIRST_AFTER
        self._is_comparing = True  # with the sleeps of the rest, of which the last count most
        self._slept, self._sleeps = _Pace(), 0
        self._look_afresh()

"""How many who are in no node table get an answer: each takes a connection of its own for a while.

Anybody who reaches a node may ask to be answered at any address. Without a limit a flood of such
questions would leave the node without descriptors; beyond it answers are left out, and who asked
in earnest asks again.
"""

from __future__ import annotations

ANSWERS_A_SECOND = 50.0
ANSWERS_AT_ONCE = 200.0


class Allowance:
    """A bucket of answers that fills as time goes by; the time is an argument.

    >>> allowance = Allowance(rate=1.0, most=2.0)
    >>> [allowance.take(0.0), allowance.take(0.0), allowance.take(0.5), allowance.take(1.0)]
    [True, True, False, True]
    """

    def __init__(self, rate: float = ANSWERS_A_SECOND, most: float = ANSWERS_AT_ONCE) -> None:
        self._rate, self._most, self._left = rate, most, most
        self._last: float | None = None

    def take(self, now: float) -> bool:
        """Whether one more may be answered at `now`."""
        if self._last is not None:
            self._left = min(self._most, self._left + self._rate * max(0.0, now - self._last))
        self._last = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True

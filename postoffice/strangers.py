"""How many peers without an id are answered at a time.

Each answer has a socket of its own, and where nobody is at the address, it stays for the time that
a closing socket tries to deliver. So whoever asks in the name of such addresses could use up all
sockets of a node; answers beyond a bound are not sent. Who asks in earnest asks again.
"""

from __future__ import annotations

from collections import deque


class Strangers:
    """Counts answers to peers without an id.

    Args:
        most: answers within `seconds`.
        seconds: longer than a closing socket lingers.
    """

    def __init__(self, most: int = 64, seconds: float = 4.0) -> None:
        self.most, self.seconds = most, seconds
        self._times: deque[float] = deque()

    def admits(self, now: float) -> bool:
        """Whether one more may be answered at `now`; it counts then."""
        while self._times and self._times[0] <= now - self.seconds:
            self._times.popleft()
        if len(self._times) >= self.most:
            return False
        self._times.append(now)
        return True

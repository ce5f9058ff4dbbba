"""How long messages take between nodes whose lines have latency and bandwidth.

Each node has one line to the network, full duplex: what it sends leaves one message after the
other, and so does what it receives arrive. Between the lines every bit is under way for the
latency. A message that finds both lines free takes latency + size / bandwidth.

Bookkeeping only: times come in and go out; `van.virtual` moves messages by it.
"""

from __future__ import annotations

from collections import Counter

BITS = 8.0  # in a byte


class Wires:
    """Which lines are taken until when.

    Args:
        latency: seconds that a bit is under way between two nodes.
        bandwidth: bits a second of each node's line, in each direction; 0: no limit.

    Attributes:
        sent: bytes by the node that sent them.
    """

    def __init__(self, latency: float, bandwidth: float) -> None:
        assert min(latency, bandwidth) >= 0, "a line has no negative latency or bandwidth"
        self.latency = latency
        self._seconds = BITS / bandwidth if bandwidth else 0.0  # a byte
        self._out: dict[str, float] = {}
        self._in: dict[str, float] = {}
        self.sent: Counter[str] = Counter()

    def leave(self, source: str, nbytes: int, now: float) -> float:
        """`source` sends so much at `now`; when its first bit is at the other end."""
        begun = max(now, self._out.get(source, 0.0))
        self._out[source] = begun + nbytes * self._seconds
        self.sent[source] += nbytes
        return begun + self.latency

    def arrive(self, target: str, nbytes: int, now: float) -> float:
        """The first bit of so much is at `target` at `now`; when its last bit is in.

        To be called in the order of those times.
        """
        done = max(now, self._in.get(target, 0.0)) + nbytes * self._seconds
        self._in[target] = done
        return done

"""How long messages take between nodes whose lines have latency and bandwidth.

Each node has one line to the network, full duplex, which all its links share: what it sends leaves
one message after the other, and so does what it receives arrive. A link between two nodes may be
narrower than their lines; then what crosses it waits for the link, too. Under way every bit is for
the link's latency. A message that finds all free takes latency + size / bandwidth of the narrowest.
What is urgent does not wait behind the rest, but takes its time of the line as well.

Bookkeeping only: times come in and go out; `van.virtual` and `van.linked` move messages by it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Protocol

BITS = 8.0  # in a byte


@dataclass(frozen=True, kw_only=True)
class Link:
    """What lies between two nodes, each way."""

    bandwidth: float = 0.0  # bits a second, beside what the nodes' lines allow; 0: no limit
    latency: float = 0.0  # seconds that a bit is under way
    loss: float = 0.0  # share of the messages


class Lines(Protocol):
    """What a network is like. Nodes have names, such as `worker 3`."""

    def line(self, node: str) -> float:
        """Bits a second of the node's line, in each direction; 0: no limit."""

    def link(self, source: str, target: str) -> Link:
        """What lies between two nodes."""


class Even:
    """Lines that are all alike."""

    def __init__(self, latency: float, bandwidth: float) -> None:
        self._bandwidth, self._link = bandwidth, Link(latency=latency)

    def line(self, node: str) -> float:
        return self._bandwidth

    def link(self, source: str, target: str) -> Link:
        return self._link


class Wires:
    """Which lines are taken until when.

    Args:
        latency: seconds that a bit is under way between two nodes.
        bandwidth: bits a second of each node's line, in each direction; 0: no limit.
        lines: what the network is like, in place of these two.

    Attributes:
        sent: bytes by the node that sent them.
    """

    def __init__(
        self, latency: float = 0.0, bandwidth: float = 0.0, lines: Lines | None = None
    ) -> None:
        assert min(latency, bandwidth) >= 0, "a line has no negative latency or bandwidth"
        self._lines = lines or Even(latency, bandwidth)
        self._out: dict[str, float] = {}
        self._out_urgent: dict[str, float] = {}
        self._in: dict[str, float] = {}
        self._between: dict[tuple[str, str], float] = {}
        self._seconds: dict[str, float] = {}  # a byte, of each line
        self._links: dict[tuple[str, str], tuple[Link, float]] = {}  # and seconds a byte
        self.sent: Counter[str] = Counter()

    def leave(
        self, source: str, nbytes: int, now: float, target: str = "", urgent: bool = False
    ) -> float:
        """`source` sends so much at `now`; when its first bit is at the other end."""
        takes = nbytes * self.seconds(source)
        free = self._out.get(source, 0.0)
        if urgent:
            begun = max(now, self._out_urgent.get(source, 0.0))
            self._out_urgent[source] = begun + takes
            self._out[source] = max(begun, free) + takes
        else:
            begun = max(now, free)
            self._out[source] = begun + takes
        link, narrow = self._link(source, target)
        if narrow:
            way = (source, target)
            begun = begun if urgent else max(begun, self._between.get(way, 0.0))
            self._between[way] = max(begun, self._between.get(way, 0.0)) + nbytes * narrow
        self.sent[source] += nbytes
        return begun + link.latency

    def lands(self, source: str, nbytes: int, first_bit: float, target: str) -> float:
        """When the last bit is at the other end, before the target's own line."""
        return first_bit + nbytes * max(self.seconds(source), self._link(source, target)[1])

    def arrive(self, target: str, nbytes: int, now: float, source: str = "") -> float:
        """The first bit of so much is at `target` at `now`; when its last bit is in.

        To be called in the order of those times.
        """
        done = max(now, self._in.get(target, 0.0)) + nbytes * self.seconds(target)
        self._in[target] = done
        return max(done, self.lands(source, nbytes, now, target)) if source else done

    def seconds(self, node: str) -> float:
        """Seconds a byte that a node's line takes; 0: none."""
        found = self._seconds.get(node)
        if found is None:
            bandwidth = self._lines.line(node)
            found = self._seconds[node] = BITS / bandwidth if bandwidth else 0.0
        return found

    def _link(self, source: str, target: str) -> tuple[Link, float]:
        found = self._links.get((source, target))
        if found is None:
            link = self._lines.link(source, target)
            narrow = BITS / link.bandwidth if link.bandwidth else 0.0
            found = self._links[source, target] = link, narrow
        return found

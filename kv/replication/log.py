"""The log from a server to one that keeps copies of its rows: both ends, without a network.

The sender numbers records from 1 and keeps each until it is acknowledged; the receiver gives them
out in that order, each once, whatever was lost, repeated or overtaken on the way, and acknowledges
up to a number. A log belongs to two lives: a restarted node begins another one, and what comes from
a life before the one that a receiver knows is refused.

The time is an argument. Who holds a log keeps it bounded: it appends what others wait for, and what
nobody waits for (the filling of a copy) only while `has_room`.

Source: cumulative acknowledgements and a sliding window are TCP's (RFC 9293); the resending of the
oldest alone is enough because a receiver keeps what came early.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

R = TypeVar("R")

WINDOW = 256  # records under way
WINDOW_NBYTES = 8 << 20  # bytes under way, but for the last record
REPEATED = 16  # records sent again at a time
LONGEST = 30.0  # seconds between two resends, at most


@dataclass(slots=True)
class _Kept(Generic[R]):
    record: R
    nbytes: int


class LogSender(Generic[R]):
    """Numbers records and keeps them until the other side has them.

    Args:
        timeout: seconds without progress before the oldest records are sent again; it doubles with
            each time, up to half a minute.
        window: records under way at most.
        window_nbytes: bytes under way, more than which no further record is sent.
    """

    def __init__(
        self, timeout: float = 0.3, window: int = WINDOW, window_nbytes: int = WINDOW_NBYTES
    ) -> None:
        self.timeout, self.window, self.window_nbytes = timeout, window, window_nbytes
        self.last = 0  # number of the newest record
        self.acknowledged = 0
        self.nbytes = 0  # of all that is kept
        self._kept: OrderedDict[int, _Kept[R]] = OrderedDict()
        self._sent = 0  # number of the last record that was sent
        self._under_way = 0  # bytes of those sent and not acknowledged
        self._wait, self._deadline = timeout, 0.0

    def __repr__(self) -> str:
        return f"<LogSender last={self.last} acknowledged={self.acknowledged}>"

    @property
    def has_room(self) -> bool:
        """Whether less waits than may be under way: time for a record that nobody waits for."""
        return self.nbytes < self.window_nbytes and len(self._kept) < self.window

    def append(self, record: R, nbytes: int = 0) -> int:
        """Keep `record`; returns its number. `take` says when it is to be sent."""
        self.last += 1
        self._kept[self.last] = _Kept(record, nbytes)
        self.nbytes += nbytes
        return self.last

    def take(self, now: float) -> list[tuple[int, R]]:
        """Records to send now for the first time, with their numbers."""
        found: list[tuple[int, R]] = []
        while self._sent < self.last and self._may_send():
            if self._sent == self.acknowledged:  # nothing was under way
                self._wait, self._deadline = self.timeout, now + self.timeout
            self._sent += 1
            kept = self._kept[self._sent]
            self._under_way += kept.nbytes
            found.append((self._sent, kept.record))
        return found

    def due(self, now: float) -> list[tuple[int, R]]:
        """Records to send again, because nothing was acknowledged for too long."""
        if self._sent == self.acknowledged or now < self._deadline:
            return []
        self._wait = min(2 * self._wait, LONGEST)
        self._deadline = now + self._wait
        stop = min(self._sent, self.acknowledged + REPEATED)
        return [(n, self._kept[n].record) for n in range(self.acknowledged + 1, stop + 1)]

    def acknowledge(self, number: int, now: float) -> bool:
        """The other side has all records up to `number`; whether that is news."""
        number = min(number, self._sent)
        if number <= self.acknowledged:
            return False
        for n in range(self.acknowledged + 1, number + 1):
            kept = self._kept.pop(n)
            self.nbytes -= kept.nbytes
            self._under_way -= kept.nbytes
        self.acknowledged = number
        self._wait, self._deadline = self.timeout, now + self.timeout
        return True

    def validate(self) -> None:
        """Assert what must always hold."""
        assert self.acknowledged <= self._sent <= self.last
        assert list(self._kept) == list(range(self.acknowledged + 1, self.last + 1))
        assert self.nbytes == sum(kept.nbytes for kept in self._kept.values())
        under_way = list(self._kept.items())[: self._sent - self.acknowledged]
        assert self._under_way == sum(kept.nbytes for _, kept in under_way)
        assert len(under_way) <= self.window

    def _may_send(self) -> bool:
        is_few = self._sent - self.acknowledged < self.window
        return is_few and self._under_way < self.window_nbytes


class LogReceiver(Generic[R]):
    """Brings the records of one log into order.

    Args:
        window: how far ahead of the next record one may come; what is farther is dropped, and
            comes again.
    """

    def __init__(self, window: int = WINDOW) -> None:
        self.window = window
        self.received = 0  # all up to this one were given out
        self.applied = 0  # all up to this one were worked on: what is acknowledged
        self.full: str | None = None  # why no more is worked on: the next found no room
        self._early: dict[int, R] = {}

    def __repr__(self) -> str:
        return f"<LogReceiver received={self.received} applied={self.applied}>"

    def take(self, number: int, record: R) -> list[tuple[int, R]]:
        """A record has come; returns those whose turn it is now, in order."""
        if not self.received < number <= self.received + self.window:
            return []
        self._early[number] = record
        found: list[tuple[int, R]] = []
        while self.received + 1 in self._early:
            self.received += 1
            found.append((self.received, self._early.pop(self.received)))
        return found

    def note_applied(self, number: int) -> None:
        """Record `number` is worked on, as are all before it."""
        assert self.applied < number <= self.received, f"{self!r} applied {number}"
        self.applied = number

    def validate(self) -> None:
        """Assert what must always hold."""
        assert self.applied <= self.received
        assert all(self.received + 1 < n <= self.received + self.window for n in self._early)


class Receivers(Generic[R]):
    """The logs that come to this node: one from each sender, the latest of its latest life."""

    def __init__(self) -> None:
        # sender -> (incarnation, number of the log), log
        self._logs: dict[int, tuple[tuple[int, int], LogReceiver[R]]] = {}

    def of(self, sender: int, incarnation: int, number: int = 0) -> LogReceiver[R] | None:
        """That log of that life of `sender`; None where a later one has been heard or fenced."""
        name = incarnation, number
        known, log = self._logs.get(sender, ((-1, 0), None))
        if name < known:
            return None
        if log is None or name > known:
            log = LogReceiver()
            self._logs[sender] = name, log
        return log

    def fence(self, sender: int, incarnation: int) -> None:
        """Refuse the lives of `sender` up to this one."""
        known, _ = self._logs.get(sender, ((-1, 0), None))
        if known[0] <= incarnation:
            self._logs[sender] = (incarnation + 1, 0), LogReceiver()

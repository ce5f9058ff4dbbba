"""What waits for one peer: higher priority first, then first in, first out.

Pure bookkeeping, in messages and bytes. Who owns a connection takes from here what it can send.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from van.codec import Frame
from van.slabs import Place


@dataclass(slots=True)
class Parcel:
    """One message on its way to one peer."""

    node: int
    priority: int  # higher first
    nbytes: int  # of its frames
    frames: list[Frame]  # what is sent next, as one message of the transport
    rest: Iterator[list[Frame]] | None = None  # what is sent after that
    places: Sequence[Place] = ()  # of the frames of a message on the local lane
    way: Any = None  # the connection it was made for


class Outgoing:
    """Parcels of one peer in the order in which they leave.

    A parcel that is sent in several steps stays the first of its priority until it is dropped, so
    that parcels of one priority never overtake each other.

    Attributes:
        nbytes: of all parcels here.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._lines: dict[int, deque[Parcel]] = {}
        self._count = 0
        self._top = 0  # the highest priority here; without meaning when there is nothing

    def __len__(self) -> int:
        return self._count

    def add(self, parcel: Parcel) -> None:
        """Let `parcel` wait behind those of its priority."""
        line = self._lines.get(parcel.priority)
        if line is None:
            line = self._lines[parcel.priority] = deque()
        line.append(parcel)
        if not self._count or parcel.priority > self._top:
            self._top = parcel.priority
        self._count += 1
        self.nbytes += parcel.nbytes

    def first(self) -> Parcel:
        """The parcel to send next; there must be one."""
        return self._lines[self._top][0]

    def drop_first(self) -> None:
        """Take away what `first` returns."""
        line = self._lines[self._top]
        self.nbytes -= line.popleft().nbytes
        self._count -= 1
        if not line:
            del self._lines[self._top]
            self._top = max(self._lines, default=0)

    def __iter__(self) -> Iterator[Parcel]:
        """All parcels, in the order in which they leave."""
        for priority in sorted(self._lines, reverse=True):
            yield from self._lines[priority]

    def validate(self) -> None:
        """Check what must always hold."""
        waiting = list(self)
        assert len(waiting) == self._count
        assert sum(parcel.nbytes for parcel in waiting) == self.nbytes
        assert not waiting or waiting[0] is self.first()

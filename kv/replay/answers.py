"""Answers that cannot be had again, kept until their workers have them.

A server answers a read that is sent again by reading again, at another moment, and refuses a push
that was too stale once more. Where order is written down or kept to, each has one place in it, so
the first answer is the only one. A push that its worker tries anew names another clock, and so is
told from a copy. What is kept is bounded by what workers have under way.
"""

from __future__ import annotations

import threading

from kv.delivery.desk import STALE
from kv.delivery.repeats import again
from kv.table_protocol import READS, Command
from van.message import Clock, Message, Meta

_READS = READS | {int(Command.PUSH_PULL)}
_Maker = tuple[int, int]  # node and life
_Place = tuple[int, int, tuple[Clock, ...]]  # timestamp, piece, and clocks


class KeptAnswers:
    """The answers of a server. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[_Maker, dict[_Place, Message]] = {}
        self._oldest: dict[_Maker, int] = {}  # what came before that has been answered

    def keep(self, request: Meta, answer: Message) -> None:
        """A request was answered so; it is kept if it is a read, or was refused for now."""
        error = answer.meta.error
        if request.cmd in _READS or (error is not None and error[0] == STALE):
            with self._lock:
                mine = self._of.setdefault((request.sender, request.incarnation), {})
                mine[_place_of(request)] = answer

    def is_late(self, request: Meta) -> bool:
        """Whether this is a copy of a read whose maker has the answer: nobody waits for another."""
        maker = (request.sender, request.incarnation)
        with self._lock:
            oldest = max(self._oldest.get(maker, 0), request.oldest)
            self._oldest[maker] = oldest
        return request.cmd in _READS and request.timestamp < oldest

    def again(self, request: Meta) -> Message | None:
        """The answer that a copy of this request got; forgets what its worker has by now."""
        with self._lock:
            mine = self._of.get((request.sender, request.incarnation))
            if not mine:
                return None
            for place in [place for place in mine if place[0] < request.oldest]:
                del mine[place]
            known = mine.get(_place_of(request))
        return None if known is None else again(known, request)

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._of.values()))


def _place_of(request: Meta) -> _Place:
    return request.timestamp, request.piece, request.clocks

"""Answers to reads, kept until their workers have them, so that none is read twice.

A server answers a read that is sent again by reading again, at another moment. Where order is
written down or kept to, each read has one place in it, so the first answer is the only one. What
is kept is bounded by what workers have under way.
"""

from __future__ import annotations

import threading

from kv.delivery.desk import STALE
from kv.delivery.repeats import again
from kv.table_protocol import READS, Command
from van.message import Message, Meta

_READS = READS | {int(Command.PUSH_PULL)}
_Maker = tuple[int, int]  # node and life
_Place = tuple[int, int]  # timestamp and piece


class KeptAnswers:
    """The answers to reads of all workers. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[_Maker, dict[_Place, Message]] = {}

    def keep(self, request: Meta, answer: Message) -> None:
        """A read was answered so; of other requests, and what is tried anew, nothing is kept."""
        error = answer.meta.error
        if request.cmd in _READS and (error is None or error[0] != STALE):
            with self._lock:
                mine = self._of.setdefault((request.sender, request.incarnation), {})
                mine[request.timestamp, request.piece] = answer

    def again(self, request: Meta) -> Message | None:
        """The answer to a read that was answered before; forgets what its worker has by now."""
        with self._lock:
            mine = self._of.get((request.sender, request.incarnation))
            if not mine:
                return None
            for place in [place for place in mine if place[0] < request.oldest]:
                del mine[place]
            known = mine.get((request.timestamp, request.piece))
        return None if known is None else again(known, request)

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._of.values()))

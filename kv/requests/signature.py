"""Who made a request: names by which every node recognises it.

A timestamp alone is not enough: customers of one node count apart, and a restarted node begins
again at 0, so the node's incarnation, which the scheduler raises with each restart, is part of it.
"""

from __future__ import annotations

from typing import NamedTuple


class Stream(NamedTuple):
    """One life of one customer: within it timestamps rise and never repeat."""

    sender: int
    incarnation: int
    app: int
    customer: int

    def at(self, timestamp: int) -> Signature:
        return Signature(*self, timestamp)


class Signature(NamedTuple):
    """One request, however often and in however many pieces it is sent."""

    sender: int
    incarnation: int
    app: int
    customer: int
    timestamp: int

    @property
    def stream(self) -> Stream:
        return Stream(*self[:4])

    def __str__(self) -> str:
        return f"{self.sender}.{self.incarnation}/{self.app}.{self.customer}@{self.timestamp}"


class Clock(NamedTuple):
    """Where a table stands, in the eyes of whoever sends it.

    In a push `clock` is the maker's step and `versions` holds the version of each server's part
    that it computed with; in an answer both are the answering server's.
    """

    table: int
    clock: int
    versions: tuple[tuple[int, int], ...] = ()  # (server, version)


class Constituent(NamedTuple):
    """One worker's push inside a dispatcher's merged push."""

    signature: Signature
    oldest: int  # the worker's oldest unanswered timestamp when it sent the push
    clocks: tuple[Clock, ...] = ()

"""Errors about requests.

KVError
└── RequestError
    ├── WindowFullError   too many requests without an answer
    ├── FencedNodeError   this life of the node has been declared dead
    ├── SlotBusyError     a slot cannot leave while work on it is under way
    └── BehindError       something newer than the known map arrived
"""

from __future__ import annotations

from kv.errors import KVError


class RequestError(KVError):
    """Something about the state of requests went wrong."""


class WindowFullError(RequestError):
    """A maker of requests runs too far ahead of its oldest unanswered one."""

    def __init__(self, oldest: int, timestamp: int, limit: int) -> None:
        self.oldest, self.timestamp, self.limit = oldest, timestamp, limit
        super().__init__(
            f"request {timestamp} would run {limit} or more ahead of request {oldest}, which has "
            f"no answer yet; wait for it first"
        )


class FencedNodeError(RequestError):
    """The cluster has declared this life of the node dead; nothing it sends counts any more."""

    def __init__(self, node: int, incarnation: int) -> None:
        self.node, self.incarnation = node, incarnation
        super().__init__(
            f"node {node} in its life {incarnation} was declared dead or replaced; "
            f"end this process and let it register anew"
        )


class SlotBusyError(RequestError):
    """A slot cannot leave: work on it is not finished."""

    def __init__(self, slot: int, tickets: list[int]) -> None:
        self.slot, self.tickets = slot, tickets
        super().__init__(f"slot {slot} cannot leave before the work {tickets} on it is finished")


class BehindError(RequestError):
    """A slot came under a newer map than the one known here."""

    def __init__(self, slot: int, theirs: int, ours: int) -> None:
        self.slot, self.theirs, self.ours = slot, theirs, ours
        super().__init__(
            f"slot {slot} moves under map {theirs}, but only map {ours} is known here; "
            f"learn the newer one first"
        )

"""What travels between makers of requests and those who answer, without the payload.

The fields are those of the wire header (`docs/requests.md`), less what the van needs for itself
(version, chunk, frames, key list, body).

Messages are not changed once made. They are not frozen all the same, since a frozen dataclass of
this size takes three times as long to make, which a request of one key would feel.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from kv.requests.signature import Clock, Constituent, Signature
from kv.requests.slots import Slots, no_slots
from kv.requests.view import View


class Kind(enum.IntEnum):
    """What an answer says about its piece, less the slots it lists as `refused`."""

    OK = 1  # settled: applied, or read and here it is
    HELD = 2  # received and kept; the answer follows, repeats are needless
    WRONG_OWNER = 3  # nothing but the refused slots
    BEHIND = 4  # the answering node does not know the request's epoch yet; repeat it
    FENCED = 5  # the request comes from a life that is over; its text says so
    ERROR = 6  # settled, and it failed: never again


class Failure(NamedTuple):
    """What a handler raised, and on which node."""

    type: str
    text: str
    node: int


@dataclass(eq=False, slots=True)
class Request:
    """A piece of a request, on its way to one node.

    Args:
        recipient_incarnation: 0 for whichever life of the recipient; a dispatcher's is always
            named, because another life of it knows nothing of what the former one took.
        oldest: the maker's oldest timestamp without a full answer, when this was sent.
        piece: number of this cut within the request, from 1.
        everywhere: goes to every server, also where it has no slots, so that rounds close.
        slots: slots of this piece.
        constituents: the pushes inside, if a dispatcher merged them.
        payload: what the caller keeps with the request, of which it cuts the piece's part for the
            wire; nobody looks at it here.
    """

    signature: Signature
    push: bool = False
    pull: bool = False
    recipient: int = 0
    recipient_incarnation: int = 0
    oldest: int = 0
    piece: int = 0
    epoch: int = 0
    map_version: int = 0
    everywhere: bool = False
    slots: Slots = field(default_factory=no_slots)
    constituents: tuple[Constituent, ...] = ()
    clocks: tuple[Clock, ...] = ()
    cmd: int = 0
    priority: int = 0
    payload: object = None

    def __repr__(self) -> str:
        what = "+".join(["push"] * self.push + ["pull"] * self.pull)
        merged = f" of {', '.join(str(c.signature) for c in self.constituents)}"
        return (
            f"<{what} {self.signature} piece={self.piece} slots={self.slots.tolist()}"
            f" -> {self.recipient}.{self.recipient_incarnation} oldest={self.oldest}"
            f" e{self.epoch} m{self.map_version}{merged if self.constituents else ''}>"
        )

    def problem(self, num_slots: int, limit: int) -> str | None:
        """What is wrong with the request in itself; None: nothing.

        Args:
            num_slots: slots are 0 … num_slots - 1.
            limit: timestamps that may lie between a maker's oldest unanswered request and this one.
        """
        name, slots = self.signature, self.slots
        if not (self.push or self.pull):
            return f"{name} neither pushes nor pulls"
        if self.oldest > name.timestamp:
            return f"{name}: its oldest unanswered request {self.oldest} is younger"
        inside = [(c.signature, c.oldest) for c in self.constituents]
        for maker, oldest in [(name, self.oldest), *inside]:
            if maker.timestamp >= oldest + limit:
                return f"{maker} runs {limit} or more ahead of unanswered {oldest}"
        if slots.size > 1 and np.count_nonzero(slots[1:] <= slots[:-1]):
            return f"{name}: slots must strictly rise"
        if slots.size and (slots[0] < 0 or slots[-1] >= num_slots):
            return f"{name}: slots must lie in 0 … {num_slots - 1}"
        return None

    def answer(
        self,
        kind: Kind,
        by: tuple[int, int],
        view: View,
        refused: Iterable[int] = (),
        error: Failure | None = None,
        clocks: tuple[Clock, ...] = (),
    ) -> Answer:
        """The answer to this piece by (node, incarnation), which knows `view`."""
        return Answer(
            kind=kind,
            request=self.signature,
            piece=self.piece,
            sender=by[0],
            sender_incarnation=by[1],
            epoch=view.epoch,
            map_version=view.map_version,
            refused=tuple(sorted(refused)),
            error=error,
            clocks=clocks,
        )


@dataclass(eq=False, slots=True)
class Answer:
    """What a node says to a piece of a request.

    Args:
        request: the request's signature; its sender and incarnation are the answer's recipient.
        refused: slots of the piece that this answer does not speak for, rising: they have another
            owner in map `map_version`, or are not here yet.
        error: what failed and where, with kinds ERROR and FENCED.
    """

    kind: Kind
    request: Signature
    piece: int
    sender: int
    sender_incarnation: int
    epoch: int
    map_version: int
    refused: tuple[int, ...] = ()
    error: Failure | None = None
    clocks: tuple[Clock, ...] = ()

    def __repr__(self) -> str:
        refused = f" refused={list(self.refused)}" if self.refused else ""
        return (
            f"<{self.kind.name} {self.request} piece={self.piece}{refused}"
            f" from {self.sender}.{self.sender_incarnation} e{self.epoch} m{self.map_version}>"
        )

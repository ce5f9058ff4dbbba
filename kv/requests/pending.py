"""One request without its full answer: which slots are settled, and who is asked for the others."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from kv.requests.messages import Request, Slots, among, no_slots
from kv.requests.view import View

SETTLED, WAITING = -1, 0
"""Places of a slot; any other is the number of its piece."""


@dataclass
class Piece:
    """Slots sent to one node: `where` are their positions in the request's slots."""

    number: int
    node: int
    where: Slots
    sends: int = 0
    due: float = 0.0
    is_held: bool = False


class Pending:
    """A request under way.

    Each slot is settled, waits to be cut, or is in one piece. Servers that an `everywhere` request
    has no slots for get a bare piece.

    Args:
        template: the request with all its slots.
        via: the dispatcher life it was given to; None goes to the servers.
    """

    def __init__(self, template: Request, via: tuple[int, int] | None) -> None:
        self.template, self.via = template, via
        self.pieces: dict[int, Piece] = {}
        self.errors: list[tuple[str, str]] = []
        self.cuts = 0
        self.cut_due = 0.0
        self._place = np.full(template.slots.size, WAITING, np.int64)
        self._bare: set[int] = set()  # pieces without slots that have no answer
        self._told: set[int] = set()  # nodes that settled a piece
        self._last = 0

    @property
    def is_waiting(self) -> bool:
        """Whether some slots are in no piece."""
        return bool((self._place == WAITING).any())

    @property
    def is_done(self) -> bool:
        return not self._bare and bool((self._place == SETTLED).all())

    @property
    def next_due(self) -> float:
        times = [piece.due for piece in self.pieces.values()]
        return min([*times, self.cut_due] if self.is_waiting else times)

    def shares(self, view: View) -> list[tuple[int, Slots]]:
        """(node, positions) of the pieces to be made of what waits, by `view`."""
        waiting = np.flatnonzero(self._place == WAITING)
        if self.via is not None:
            return [(self.via[0], waiting)] if waiting.size or not self.pieces else []
        owners = view.owners[self.template.slots[waiting]]
        shares = [(int(node), waiting[owners == node]) for node in np.unique(owners)]
        if self.template.everywhere:
            known = {node for node, _ in shares} | self._told
            known |= {piece.node for piece in self.pieces.values()}
            shares += [(node, no_slots()) for node in view.servers if node not in known]
        return shares

    def piece(self, node: int, where: Slots) -> Piece:
        """Make a piece of the slots at `where`."""
        self._last += 1
        piece = self.pieces[self._last] = Piece(self._last, node, where)
        self._place[where] = piece.number
        if not where.size:
            self._bare.add(piece.number)
        return piece

    def settle(self, piece: Piece, refused: Collection[int]) -> Slots:
        """The piece has its answer, but for the refused slots; returns those newly settled."""
        where = piece.where[self._place[piece.where] != SETTLED]
        where = where[~among(self.template.slots[where], refused)]
        self._place[where] = SETTLED
        self._bare.discard(piece.number)
        self._told.add(piece.node)
        self._retire()
        settled: Slots = self.template.slots[where]
        return settled

    def refuse(self, piece: Piece, refused: Collection[int]) -> Slots:
        """Slots that wait for this piece are taken out of it; returns them."""
        where = self._waiting_for(piece)
        where = where[among(self.template.slots[where], refused)]
        self._place[where] = WAITING
        self._retire()
        return self.template.slots[where]

    def leave_dispatcher(self) -> None:
        """Its dispatcher is dead: all that is not settled goes to the servers, for good."""
        self.via = None
        self._place[self._place != SETTLED] = WAITING
        self._bare.clear()
        self.pieces.clear()

    def leave_owners(self, view: View) -> None:
        """Take slots out of pieces whose node does not own them any more."""
        if self.via is not None:
            return
        self.cuts = 0
        servers = view.servers
        for piece in self.pieces.values():
            where = self._waiting_for(piece)
            gone = view.owners[self.template.slots[where]] != piece.node
            self._place[where[gone]] = WAITING
            if piece.node not in servers:
                self._bare.discard(piece.number)
        self._retire()

    def validate(self) -> None:
        """Raise AssertionError if the bookkeeping contradicts itself."""
        name = self.template.signature
        assert not self.is_done, f"{name} is done and still pending"
        places = {int(place) for place in self._place} - {SETTLED, WAITING}
        assert places | self._bare == set(self.pieces), f"{name}: {places} {self._bare}"
        for number, piece in self.pieces.items():
            assert number == piece.number <= self._last, f"{name}: {piece}"
            if self.via is not None:
                assert piece.node == self.via[0], f"{name}: two paths"

    def _waiting_for(self, piece: Piece) -> Slots:
        """Positions that wait for this piece's answer."""
        where: Slots = piece.where[self._place[piece.where] == piece.number]
        return where

    def _retire(self) -> None:
        """Forget pieces that nothing waits for."""
        self.pieces = {
            number: piece
            for number, piece in self.pieces.items()
            if number in self._bare or self._waiting_for(piece).size
        }

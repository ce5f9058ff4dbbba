"""One request without its full answer: which slots are settled, and who is asked for the others."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from kv.requests.messages import Failure, Request
from kv.requests.slots import Slots, among, no_slots
from kv.requests.view import View

SETTLED, WAITING = -1, 0
"""Places of a slot; any other is the number of its piece."""


@dataclass(slots=True)
class Piece:
    """Slots sent to one node.

    Args:
        where: positions of the slots in the request's.
        left: how many of them wait for this piece's answer; 0 in a piece without slots.
    """

    number: int
    node: int
    where: Slots
    left: int
    sends: int = 0
    due: float = 0.0
    is_held: bool = False


class Pending:
    """A request under way.

    Each slot is settled, waits to be cut, or is in one piece. Servers that an `everywhere` request
    has no slots for get a bare piece. A piece that nothing waits for is forgotten.

    Args:
        template: the request with all its slots.
        via: the dispatcher life it was given to; None goes to the servers.
    """

    def __init__(self, template: Request, via: tuple[int, int] | None) -> None:
        self.template, self.via = template, via
        self.pieces: dict[int, Piece] = {}
        self.errors: list[Failure] = []
        self.cuts = 0
        self.cut_due = 0.0
        self._place = np.zeros(template.slots.size, np.int64)  # all waiting
        self._waiting = template.slots.size  # slots in no piece
        self._told: set[int] = set()  # nodes that settled a piece
        self._last = 0

    @property
    def is_waiting(self) -> bool:
        """Whether some slots are in no piece."""
        return self._waiting > 0

    @property
    def is_done(self) -> bool:
        return not self._waiting and not self.pieces

    @property
    def next_due(self) -> float:
        times = [piece.due for piece in self.pieces.values()]
        return min([*times, self.cut_due] if self.is_waiting else times)

    def shares(self, view: View) -> list[tuple[int, Slots]]:
        """(node, positions) of the pieces to be made of what waits, by `view`."""
        if self.via is not None:
            whole = self._where(WAITING)
            return [(self.via[0], whole)] if whole.size or not self.pieces else []
        shares = self._by_owner(view) if self._waiting else []
        if self.template.everywhere:
            known = {node for node, _ in shares} | self._told
            known |= {piece.node for piece in self.pieces.values()}
            shares += [(node, no_slots()) for node in view.servers if node not in known]
        return shares

    def piece(self, node: int, where: Slots) -> Piece:
        """Make a piece of the slots at `where`."""
        self._last += 1
        piece = self.pieces[self._last] = Piece(self._last, node, where, where.size)
        self._place[where] = piece.number
        self._waiting -= where.size
        return piece

    def settle(self, piece: Piece, refused: Collection[int]) -> Slots:
        """The piece has its answer, but for the refused slots; returns those newly settled."""
        where = piece.where
        is_plain = piece.left == where.size and not refused
        if not is_plain:
            where = where[self._place[where] != SETTLED]
            where = where[~among(self.template.slots[where], refused)]
        self._place[where] = SETTLED
        self._told.add(piece.node)
        if is_plain or not piece.left:
            del self.pieces[piece.number]
        if not is_plain:
            self._recount()
        settled: Slots = self.template.slots[where]
        return settled

    def refuse(self, piece: Piece, refused: Collection[int]) -> Slots:
        """Slots that wait for this piece are taken out of it; returns them."""
        where = self._where(piece.number)
        where = where[among(self.template.slots[where], refused)]
        self._place[where] = WAITING
        self._recount()
        taken: Slots = self.template.slots[where]
        return taken

    def leave_dispatcher(self) -> None:
        """Its dispatcher is dead: all that is not settled goes to the servers, for good."""
        self.via = None
        self._place[self._place != SETTLED] = WAITING
        self.pieces.clear()
        self._recount()

    def leave_owners(self, view: View) -> None:
        """Take slots out of pieces whose node does not own them any more."""
        if self.via is not None:
            return
        self.cuts = 0
        for piece in list(self.pieces.values()):
            where = self._where(piece.number)
            self._place[where[view.owners[self.template.slots[where]] != piece.node]] = WAITING
            if not piece.left and piece.node not in view.servers:
                del self.pieces[piece.number]
        self._recount()

    def validate(self) -> None:
        """Raise AssertionError if the bookkeeping contradicts itself."""
        name = self.template.signature
        assert not self.is_done, f"{name} is done and still pending"
        places = self._place.tolist()
        assert self._waiting == places.count(WAITING), f"{name}: {self._waiting} of {places}"
        assert set(places) - {SETTLED, WAITING} <= set(self.pieces), f"{name}: {places}"
        for number, piece in self.pieces.items():
            assert number == piece.number <= self._last, f"{name}: {piece}"
            assert piece.left == places.count(number), f"{name}: {piece} of {places}"
            assert piece.left or not piece.where.size, f"{name}: idle {piece}"
            assert self.via is None or piece.node == self.via[0], f"{name}: two paths"

    def _by_owner(self, view: View) -> list[tuple[int, Slots]]:
        waiting = self._where(WAITING)
        owners = view.owners[self.template.slots[waiting]]
        first = int(owners[0])
        if np.count_nonzero(owners == first) == owners.size:
            return [(first, waiting)]
        shares = [(node, waiting[owners == node]) for node in view.servers]
        return [(node, where) for node, where in shares if where.size]

    def _where(self, place: int) -> Slots:
        where: Slots = (self._place == place).nonzero()[0]
        return where

    def _recount(self) -> None:
        """Count anew what waits for each piece; those that nothing waits for any more go."""
        counts = np.bincount(self._place + 1, minlength=self._last + 2)
        self._waiting = int(counts[WAITING + 1])
        for number, piece in list(self.pieces.items()):
            piece.left = int(counts[number + 1])
            if not piece.left and piece.where.size:
                del self.pieces[number]

"""One request about tables under way: its messages are sent, and their answers taken.

A server that has dropped a key list says so and is sent the keys, without anybody who waits
noticing; and what is owned by others than those who were asked is asked of them.

    question     what the request is about
    cutting      its pieces
    lines        how servers are reached
    composing    its messages
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from kv.composing import Composer
from kv.compressing import CodedWrite, Settling
from kv.cutting import Piece
from kv.delivery.recutting import Recut, Root, Rows, cut_anew, rows_of
from kv.dispatcher.refusing import failed_slots
from kv.errors import UnknownBaseError, UnknownKeyListError
from kv.lines import Lines
from kv.packed import PACKED, unpack_values
from kv.placement import SlotMap
from kv.pulling import Pull
from kv.question import Entry, Question
from postoffice.customer import Customer
from van.message import Message, Meta


class Asking(Composer):
    """One request.

    Args:
        entries: by place in the question.
        pull: takes the values of the answers; None where there are none.
        customer: sends the messages, again until they are answered.
        newest: the newest map that is known.
        settling: of a push with compressed values, what becomes of each message; else None.
    """

    __slots__ = ("_left", "_newest", "_pieces", "_pull", "_recuts")

    def __init__(
        self,
        question: Question,
        entries: Sequence[Entry],
        pieces: Sequence[Piece],
        lines: Lines,
        pull: Pull | None,
        customer: Customer,
        newest: Callable[[], SlotMap],
        settling: Settling | None = None,
    ) -> None:
        self._question, self._entries, self._pull = question, entries, pull
        self._customer, self._newest = customer, newest
        self._left: frozenset[Piece] = frozenset()  # those that were cut anew
        self._recuts: dict[int, Recut] = {}  # by number, from 2; a piece as first cut is number 1
        self._pieces, self._lines = pieces, lines
        self._named = None
        self.first = self.oldest = 0
        self._settling = settling

    def send(self, first: int, oldest: int) -> None:
        """Send every message, with timestamps from `first` on."""
        self.first, self.oldest = first, oldest
        for number, piece in enumerate(self._pieces):
            try:
                self._customer.send(self._message(piece, may_name=True))
            except BaseException:
                if self._settling is not None:
                    self._settling.end(unsent=self._pieces[number:])
                raise

    def take(self, message: Message) -> bool:
        """Take an answer; False where it was a question for the keys, which are sent."""
        meta = message.meta
        if meta.error is None:
            if self._settling is not None:
                self.note(message)
            if meta.body and PACKED in meta.body:
                self._unpack(message)
            if meta.piece > 1:
                self._recuts[meta.piece].take(message.arrays)
            elif self._pull is not None:
                self._pull.put(self._piece(meta), message.arrays, message.is_ours)
            if self._pull is not None:
                self._pull.note(meta.clocks)
            return True
        if self._settling is not None and meta.error[0] == UnknownBaseError.__name__:
            piece = self._piece(meta)
            if self._settling.restart(piece):
                self._customer.send(self._message(piece, may_name=False, is_plain=True))
            return False
        if self._named is None or meta.error[0] != UnknownKeyListError.__name__:
            if self._settling is not None:
                self.note(message)
            return True
        piece = self._piece(meta)
        if self._unname(piece, meta.sender):  # else they were sent, and the question is a copy
            self._customer.send(self._message(piece, may_name=False))
        return False

    def note(self, message: Message) -> None:
        """Note whether a compressed message was applied."""
        meta, is_applied = message.meta, message.meta.error is None
        assert self._settling is not None
        if meta.piece <= 1:
            failed = None if is_applied else failed_slots(meta)
            self._settling.settle(self._piece(meta), is_applied, failed)
        elif not is_applied:
            self._settling.give_back_recut(self._recuts[meta.piece])

    def _unpack(self, message: Message) -> None:
        """Bring compressed values of an answer to what they would be without.

        Raises:
            PacketError: they are not what was asked for.
        """
        meta = message.meta
        if meta.piece > 1:
            unpack_values(message, self._recuts[meta.piece].shapes)
            return
        ranges = self._piece(meta).ranges
        unpack_values(message, [(r.stop - r.start, self._entries[r.place].cut.dim) for r in ranges])

    # -- which piece ----------------------------------------------------------------------------

    def _piece(self, answer: Meta) -> Piece:
        if len(self._pieces) == 1:
            return self._pieces[0]
        return self._piece_at(answer.timestamp, answer.sender)

    def _piece_at(self, timestamp: int, node: int) -> Piece:
        number = timestamp - self.first
        for piece in self._pieces:
            if piece.number == number and self._lines.servers[piece.server] == node:
                return piece
        raise AssertionError(f"no piece {number} was sent to node {node}")

    # -- cut anew -------------------------------------------------------------------------------

    def recut(self, message: Message) -> bool:
        """Ask the owners by the newest map in the place of who was asked; False: it says the same.

        Raises:
            PsliteError: they cannot be asked.
        """
        slots, meta = self._newest(), message.meta
        # A dispatcher is asked by no map: in its place its owners are, by any.
        is_through = self._lines.has_all and meta.piece <= 1
        if slots.version <= meta.map_version and not is_through:
            return False
        rests: frozenset[int] = frozenset()
        if meta.piece > 1:
            former = self._recuts[meta.piece]
            root, parts, rests = former.root, former.parts, former.rests
        else:
            refused = self._piece_at(meta.timestamp, meta.recipient)
            self._left |= {refused}
            root, parts = self._root(refused)
            if self._settling is not None:
                self._settling.recut(refused, root)
        made = cut_anew(root, parts, slots)
        for recut in made:
            number = len(self._recuts) + 2
            self._recuts[number] = recut
            recut.rests = rests | {i for i, rows in recut.parts if self._is_rest(recut, i, rows)}
            self._customer.send(self._message_anew(recut, number, meta, slots))
        if meta.piece > 1:
            root.settle()
        elif not made:
            root.finish_if_whole()
        return True

    def _root(self, piece: Piece) -> tuple[Root, list[tuple[int, Rows]]]:
        """What a piece as it was first cut is about, row by row."""
        rows = []
        for index, part in enumerate(piece.ranges):
            entry = self._entries[part.place]
            share = entry.share(piece.server)
            if isinstance(entry, CodedWrite):
                arrays = entry.plain(piece.server, part)
            else:
                arrays = entry.arrays(piece.server, part)
            if share is None:
                names, *values = arrays
                rows.append((index, rows_of(part.place, names, names, False, *values)))
            else:
                names = share.blocks.astype(np.uint64)
                rows.append((index, rows_of(part.place, names, share.keys_of(), True, *arrays)))
        pull, done = self._pull, None
        if pull is not None:

            def done(values: list[NDArray[np.float32]]) -> None:
                pull.put(piece, values, is_ours=True)

        dims = [self._entries[part.place].cut.dim for part in piece.ranges]
        sizes = [(r.names.size, dim) for (_, r), dim in zip(rows, dims, strict=True)]
        return Root(sizes, done, piece.is_rest), rows

    def _is_rest(self, recut: Recut, index: int, rows: Rows) -> bool:
        """Whether a table's step is counted at that server with another piece.

        Not with one that was cut anew: a server that refuses it has not counted it.
        """
        if self._lines.has_all:  # the pieces first cut are all a dispatcher's
            return recut.root.is_rest and index == 0
        return (recut.root.is_rest and index == 0) or any(
            piece.server == recut.server and any(part.place == rows.place for part in piece.ranges)
            for piece in self._pieces
            if piece not in self._left
        )

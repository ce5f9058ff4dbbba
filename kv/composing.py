"""The messages of one request, of its pieces as they were first cut and as they are cut anew.

A request's key lists have a signature, and a server that was sent them before is only told that.
Keys that are sent may go as their differences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from kv.compressing import CodedWrite, Settling
from kv.cutting import Piece
from kv.delivery.recutting import Recut
from kv.keylists.coding import encode
from kv.keylists.signature import part_of
from kv.lines import Lines
from kv.placement import SlotMap
from kv.question import Entry, Question
from kv.table_protocol import PUSHES, TABLES_APP
from postoffice.customer import Customer
from postoffice.node import Role, node_id
from van.message import Clock, Message, Meta


class Composer:
    """Makes the messages that `kv.asking.Asking` sends.

    That one sets all fields, in one constructor, since one is made for each request.

    Attributes:
        first: the request's first timestamp.
        oldest: the oldest that had no answer when it was sent.
    """

    __slots__ = (
        "_customer",
        "_entries",
        "_lines",
        "_named",
        "_question",
        "_settling",
        "first",
        "oldest",
    )

    _customer: Customer
    _entries: Sequence[Entry]
    _lines: Lines
    _named: set[Piece] | None  # those whose lists were only named; None: none yet
    _question: Question
    _settling: Settling | None
    first: int
    oldest: int

    def _message(self, piece: Piece, may_name: bool, is_plain: bool = False) -> Message:
        """A piece as it was first cut; `is_plain`: with nothing named or compressed."""
        question, lines = self._question, self._lines
        clocks: list[Clock] = []
        arrays: list[NDArray[Any]] = []
        places: list[int] = []
        for part in piece.ranges:
            entry = self._entries[part.place]
            if lines.has_all:
                clocks.append(question.clocks(part.place))
            else:
                clocks.append(question.clock(part.place, piece.server))
            if entry.has_keys:
                places.append(len(arrays))
            if is_plain and isinstance(entry, CodedWrite):
                arrays += entry.plain(piece.server, part)
            else:
                arrays += entry.arrays(piece.server, part)
        body = question.body
        if piece.is_rest and question.command in PUSHES:
            body = {**(body or {}), "rest": 1}
        if self._settling is not None and not is_plain:
            body = self._settling.mark(piece, body)
        key_list = 0
        if question.signature and places and not is_plain:
            key_list = part_of(question.signature, piece.ranges)
            body = self._shorten(piece, key_list, arrays, places, body, may_name)
        elif lines.codes[piece.server]:
            body = self._code(arrays, places, body)
        meta = Meta(
            recipient=lines.servers[piece.server],
            flags=question.flags,
            app=TABLES_APP,
            customer=self._customer.customer,
            timestamp=self.first + piece.number,
            oldest=self.oldest,
            piece=1,
            map_version=question.slots.version,
            cmd=question.command,
            priority=question.priority,
            clocks=tuple(clocks),
            constituents=question.constituents,
            key_list=key_list,
            body=body,
        )
        return Message(meta, arrays)

    def _message_anew(self, recut: Recut, number: int, refused: Meta, slots: SlotMap) -> Message:
        """Rows of a piece that was cut anew, in the place of the message that was refused."""
        question = self._question
        body = dict(question.body or {})
        if any(rows.is_dense for _, rows in recut.parts):
            body["blocks"] = True
        parts = sorted(recut.parts, key=lambda part: part[0] not in recut.rests)
        recut.parts = parts  # answers come in this order
        if question.command in PUSHES and recut.rests:
            body["rest"] = len(recut.rests)
        meta = Meta(
            recipient=node_id(Role.SERVER, recut.server),
            flags=question.flags,
            app=TABLES_APP,
            customer=self._customer.customer,
            timestamp=refused.timestamp,
            oldest=refused.oldest,
            piece=number,
            map_version=slots.version,
            cmd=question.command,
            priority=question.priority,
            clocks=tuple(question.clock(rows.place, recut.server) for _, rows in parts),
            constituents=question.constituents,
            body=body or None,
        )
        return Message(meta, [array for _, rows in parts for array in rows.arrays])

    # -- keys -----------------------------------------------------------------------------------

    def _shorten(
        self,
        piece: Piece,
        key_list: int,
        arrays: list[NDArray[Any]],
        places: Sequence[int],
        body: Mapping[str, Any] | None,
        may_name: bool,
    ) -> Mapping[str, Any] | None:
        """Leave out lists that the server knows; note those that it gets."""
        lines = self._lines
        server = lines.servers[piece.server]
        known = lines.office.nodes.get(server)
        incarnation = 0 if known is None else known.incarnation
        nbytes = sum(arrays[place].nbytes for place in places)
        if may_name and lines.sent.knows(server, incarnation, key_list):
            self._named = self._named or set()
            self._named.add(piece)
            lines.counts["lists_named"] += 1
            lines.counts["key_bytes_saved"] += nbytes
            for place in reversed(places):
                del arrays[place]
            return {**(body or {}), "named": True}
        lines.sent.sent(server, incarnation, key_list, nbytes)
        lines.counts["lists_sent"] += 1
        return self._code(arrays, places, body) if lines.codes[piece.server] else body

    def _unname(self, piece: Piece, server: int) -> bool:
        """Note that a server does not know a piece's lists; whether they were only named."""
        if self._named is None or piece not in self._named:
            return False
        self._named.discard(piece)
        self._lines.counts["lists_unknown"] += 1
        self._lines.sent.lost(server, part_of(self._question.signature, piece.ranges))
        return True

    def _code(
        self, arrays: list[NDArray[Any]], places: Sequence[int], body: Mapping[str, Any] | None
    ) -> Mapping[str, Any] | None:
        """Put keys as differences in the place of keys, where that is smaller."""
        coded = []
        for place in places:
            short = encode(arrays[place])
            if short is not None:
                self._lines.counts["key_bytes_saved"] += arrays[place].nbytes - short.nbytes
                arrays[place] = short
                coded.append(place)
        return {**(body or {}), "coded": coded} if coded else body

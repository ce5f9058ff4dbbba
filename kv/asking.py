"""One request about tables under way: its messages, and how their answers are taken.

A request's key lists have a signature, and a server that was sent them before is only told that.
One that has dropped them says so and is sent the keys, without anybody who waits noticing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from kv.compressing import CodedWrite, Settling
from kv.cutting import Cut, Piece, Range, pieces_of
from kv.delivery.recutting import Recut, Root, Rows, cut_anew, rows_of
from kv.dense import BlockShare
from kv.dispatcher.refusing import failed_slots
from kv.errors import UnknownBaseError, UnknownKeyListError
from kv.keylists.coding import encode
from kv.keylists.sent import SentLists
from kv.keylists.signature import part_of
from kv.packed import PACKED, unpack_values
from kv.placement import SlotMap
from kv.pulling import Pull
from kv.table_protocol import PUSHES, TABLES_APP, Command
from postoffice.customer import Customer
from postoffice.node import Role, node_id
from postoffice.postoffice import Postoffice
from van.addresses import place_of
from van.buffers import Buffers
from van.message import Clock, Flag, Message, Meta

_FEW = 4096  # rows of requests whose pieces are made once
_SMALL = 4096  # numbers; fewer are copied when they are sent in any case


class Entry(Protocol):
    """What a request has to do with one table."""

    @property
    def cut(self) -> Cut: ...

    @property
    def has_keys(self) -> bool:
        """Whether the first of `arrays` is keys."""

    def arrays(self, server: int, part: Range) -> list[NDArray[Any]]:
        """What is sent about a range of a server's rows."""

    def share(self, server: int) -> BlockShare | None:
        """The blocks of a dense table on a server; None of a sparse one."""


@dataclass(slots=True)
class Question:
    """What the messages of a request have in common. Nobody changes one.

    Args:
        tables: ids, by place.
        step: the worker's, in which the request is made.
        signature: of its key lists; 0 where they are not to be remembered.
        slots: the map by which it is cut.
        bases: by table and rank of the server, the clock that its values were pulled at.
        constituents: of a dispatcher's merged push, what is in it.
    """

    command: Command
    flags: Flag
    tables: Sequence[int]
    step: int
    slots: SlotMap
    body: Mapping[str, Any] | None = None
    priority: int = 0
    signature: int = 0
    bases: Mapping[tuple[int, int], int] | None = None
    constituents: tuple[tuple[Any, ...], ...] = ()

    def clock(self, place: int, server: int) -> Clock:
        """What a message to the server of that rank says of a table's clock."""
        table, bases = self.tables[place], self.bases
        base = None if bases is None else bases.get((table, server))
        return table, self.step, () if base is None else ((server, base),)

    def clocks(self, place: int) -> Clock:
        """What a message to a dispatcher says of a table's clocks, on all servers."""
        table, bases = self.tables[place], self.bases or {}
        pairs = [(server, base) for (name, server), base in bases.items() if name == table]
        return table, self.step, tuple(pairs)


@dataclass(slots=True)
class Lines:
    """How a worker reaches its servers.

    Args:
        servers: node ids, by rank.
        codes: by rank, whether key lists go as differences where that is smaller.
        buffers: memory for what is sent through the network.
        counts: of `lists_sent`, `lists_named`, `lists_unknown` and `key_bytes_saved`.
        has_all: the one server is a dispatcher, which is told the clocks of all servers.
    """

    office: Postoffice
    servers: Sequence[int]
    codes: Sequence[bool]
    sent: SentLists
    counts: Counter[str]
    buffers: Buffers
    has_all: bool = False

    @classmethod
    def of(
        cls,
        office: Postoffice,
        slots: SlotMap,
        key_deltas: str,
        sent: SentLists,
        counts: Counter[str],
        buffers: Buffers,
        through: int | None = None,
    ) -> Self:
        """The lines of a node that has started; `key_deltas` is `on`, `off` or `auto`.

        Args:
            through: the dispatcher that is asked in the place of all servers.
        """
        servers = server_ids(office, slots) if through is None else [through]
        own = _host(office.van.address)
        is_far = [
            server in office.nodes and _host(office.nodes[server].address) != own
            for server in servers
        ]
        codes = is_far if key_deltas == "auto" else [key_deltas == "on"] * len(servers)
        return cls(office, servers, codes, sent, counts, buffers, through is not None)

    def empty(self, server: int, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """An array that is to be sent to a server: in memory that both see, or from the pool."""
        if math.prod(shape) < _SMALL:
            return np.empty(shape, dtype)
        made = self.office.van.empty(self.servers[server], shape, dtype)
        # The van's plain arrays own their memory, which would be fresh pages each time.
        return self.buffers.empty(shape, dtype) if made.base is None else made


def server_ids(office: Postoffice, slots: SlotMap) -> list[int]:
    """Node ids of the servers by rank, those that do not live included."""
    count = max(office.shape.servers, slots.num_servers)
    return [node_id(Role.SERVER, rank) for rank in range(count)]


def cut_in_pieces(
    cuts: Sequence[Cut], servers: int, limit_of: Callable[[int], int], least: int
) -> Sequence[Piece]:
    """`pieces_of` the cuts; those of a request in one message are made once for all of its size.

    Args:
        limit_of: bytes of rows in a piece to a server; `least` or more.
    """
    if servers == 1 and len(cuts) == 1:
        rows = cuts[0].bounds[1]
        if 0 < rows <= _FEW and 2 * rows * (8 + 4 * cuts[0].dim) <= 3 * least:
            return _whole(rows)
    return pieces_of(cuts, servers, limit_of)


@lru_cache(maxsize=1024)
def _whole(rows: int) -> Sequence[Piece]:
    """A request about so many rows of one table of one server, in one message."""
    return (Piece(0, 0, [Range(0, 0, rows)], False),)


class Asking:
    """The messages of one request.

    Args:
        entries: by place in the question.
        pull: takes the values of the answers; None where there are none.
        customer: sends the messages, again until they are answered.
        newest: the newest map that is known.
        settling: of a push with compressed values, what becomes of each message; else None.
    """

    __slots__ = (
        "_customer",
        "_entries",
        "_left",
        "_lines",
        "_named",
        "_newest",
        "_pieces",
        "_pull",
        "_question",
        "_recuts",
        "_settling",
        "first",
        "oldest",
    )

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
        self._named: set[Piece] | None = None  # those whose lists were only named; None: none yet
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
        if piece in self._named:  # else it was sent, and this is a copy of the question
            self._named.discard(piece)
            self._lines.counts["lists_unknown"] += 1
            self._lines.sent.lost(meta.sender, part_of(self._question.signature, piece.ranges))
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

    def _message_anew(self, recut: Recut, number: int, refused: Meta, slots: SlotMap) -> Message:
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


def _host(address: str) -> str:
    """The host of an address; one without is of this host."""
    scheme, _, rest = place_of(address).partition("://")
    return rest.rpartition(":")[0] if scheme == "tcp" else "127.0.0.1"

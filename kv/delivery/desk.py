"""What becomes of a table request before anybody works on it: is it new, and is it for this server?

A copy of what is under way hears HELD; of what is done, the same answer again; of what its maker
has the answer to, nothing. A request of a life that is over hears FENCED, one of a newer map
BEHIND, one of an older map WRONG_OWNER unless all it is about is still here. Nothing is applied in
any of these cases.

`docs/requests.md` has the rules and why they suffice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv.block_table import BlockTable
from kv.delivery.repeats import NOT_DONE, again, former_life
from kv.delivery.windows import Entry, Failure, Mask, Stream, Windows, no_mask
from kv.dispatcher.constituents import constituents_of
from kv.dispatcher.hotkeys import keys_within
from kv.engine import Write
from kv.engine_table import Table
from kv.errors import KVError, UnknownTableError
from kv.placement import SlotMap, slot_of
from kv.table_messages import Tables, is_whole, leave_pull, name_places, row_slots
from kv.table_protocol import PUSHES, READS, WITH_KEYS, WITH_VALUES, Command
from postoffice.node import Role, role_and_rank
from van.message import Kind, Message, Meta, answer_to

_REPEATED = (Command.PULL, Command.PUSH_PULL)  # whose values are read again
_STEP = int(Command.STEP)
INSIDE = -1  # in the place of a piece: it is in hand inside a merged push
STALE = "VersionMismatchError"  # likewise, of a push whose worker says so


class Desk:
    """Looks at the requests of one server.

    Args:
        node: id of this server.
        tables_of: the tables of a request.
        complete: puts named or coded key lists into their places.
        send: sends an answer to a request.

    Attributes:
        slots: who owns what, as known here.
        rank: this server's.
    """

    def __init__(
        self,
        slots: SlotMap,
        node: Callable[[], int],
        tables_of: Callable[[Meta], Tables],
        complete: Callable[[Message], None],
        send: Callable[[Message], None],
    ) -> None:
        self.windows = Windows()
        self._streams = self.windows.streams
        self.slots = slots
        self.map_version = slots.version
        self.rank = -1
        self._node, self._tables_of = node, tables_of
        self._complete, self._send = complete, send
        self._gated: Mask | None = None
        self._early: list[tuple[Stream, Message]] = []
        self._lock, self.noting = threading.Lock(), threading.Lock()

    # -- requests that come -------------------------------------------------------------------

    def admit(self, message: Message) -> Stream | None:
        """The stream of a request that is to be worked on; None: it has been dealt with."""
        meta = message.meta
        stream = self._streams.get((meta.sender, meta.app, meta.customer))
        if stream is None or stream.incarnation != meta.incarnation:
            stream = self.windows.stream(meta)
            if stream is None:
                self._send(former_life(meta, self._node()))
                return None
        timestamp, oldest = meta.timestamp, meta.oldest
        if oldest > stream.watermark:
            stream.advance(oldest)
        if timestamp < stream.watermark:
            return None  # a late copy: its maker has the answer
        if (
            timestamp in stream.entries
            or stream.in_hand
            or meta.map_version != self.map_version
            or self._gated is not None
            or meta.cmd == _STEP
            or meta.constituents
        ):
            return stream if self._is_new(message, stream) else None
        return stream

    def _is_new(self, message: Message, stream: Stream) -> bool:
        meta = message.meta
        if meta.constituents:
            if role_and_rank(meta.sender)[0] is not Role.DISPATCHER:
                text = "only dispatchers may send others' pushes"
                error = (KVError.__name__, text, self._node())
                self._send(Message(answer_to(meta, Kind.ERROR, error=error)))
                return False
            _take_masks(message)
        if (meta.timestamp, meta.piece) in stream.in_hand:
            self._send(Message(answer_to(meta, Kind.HELD, map_version=self.map_version)))
            return False
        if meta.map_version > self.map_version:
            self._send(Message(answer_to(meta, Kind.BEHIND, map_version=self.map_version)))
            return False
        is_doubtful = meta.map_version < self.map_version or self._gated is not None
        if is_doubtful and not self._is_here(message):
            self._send(Message(answer_to(meta, Kind.WRONG_OWNER, map_version=self.map_version)))
            return False
        if (meta.timestamp, INSIDE) in stream.in_hand:  # soon it is known what has become of it
            self._send(Message(answer_to(meta, Kind.BEHIND, map_version=self.map_version)))
            return False
        if meta.timestamp in stream.entries:
            if not self._is_left(message, stream):
                return False
        elif meta.constituents and not _is_ahead(meta) and not self._may_merge(message):
            return False
        if meta.constituents:
            self._take_in_hand(meta)
        return meta.cmd != Command.STEP or not self._must_wait(message, stream)

    def _may_merge(self, message: Message) -> bool:
        """Whether nothing inside a merged push has been counted without it; else it is refused."""
        touched: Mask | None = None
        for one in constituents_of(message.meta):
            stream = self.windows.inside(one)
            if stream is None or one.timestamp not in stream.entries:
                continue
            touched = self._touched(message) if touched is None else touched
            if (self.windows.applied(stream.entries[one.timestamp]) & touched).any():
                text = f"push {one.timestamp} of node {one.sender} has been counted without it"
                error = (KVError.__name__, text, self._node())
                self._send(Message(answer_to(message.meta, Kind.ERROR, error=error)))
                return False
        return True

    def _take_in_hand(self, meta: Meta) -> None:
        """A merged push is worked on: who sends what is inside has to wait for the outcome."""
        for one in constituents_of(meta):
            stream = self.windows.inside(one)
            if stream is not None:
                stream.in_hand.add((one.timestamp, INSIDE))

    def _settle_inside(self, message: Message, failure: Failure | None) -> None:
        """A merged push is answered for good."""
        for one in constituents_of(message.meta):
            if failure is not None:
                self.windows.record_inside(one, self._extent(message), failure)
            stream = self.windows.inside(one)
            if stream is not None:
                stream.in_hand.discard((one.timestamp, INSIDE))

    def _is_here(self, message: Message) -> bool:
        """Whether all that a request of an older map is about belongs to this server."""
        meta = message.meta
        if meta.cmd not in WITH_KEYS:
            return True
        try:
            tables = self._tables_of(meta)
        except UnknownTableError:  # a server that has just come and owns nothing yet
            return False
        if any(is_whole(meta, table) for _, table, _ in tables):
            return False  # which blocks are meant depends on the map
        here = self.slots.owner == self.rank
        if self._gated is not None:
            here = here & ~self._gated
        return all(here[slots].all() for _, slots in self._slots_by_table(message))

    def _is_left(self, message: Message, stream: Stream) -> bool:
        """Whether something of a request is still to be done; else it is answered again."""
        meta = message.meta
        entry = stream.entries.get(meta.timestamp)
        if meta.cmd in READS:
            return True
        if entry is not None and entry.answer is not None:
            self._send(again(entry.answer, meta))
            return False
        if entry is not None:
            if (self._touched(message) & self.windows.failed(entry)).any():
                self._send(Message(answer_to(meta, Kind.ERROR, error=entry.failure)))
                return False
            if not self._is_applied(message, entry):
                return True
        if meta.cmd in _REPEATED:  # the push is done, what is left is the pull
            self._complete(message)
            leave_pull(message, self._tables_of(meta))
            return True
        self._send(Message(answer_to(meta)))
        return False

    def _is_applied(self, message: Message, entry: Entry) -> bool:
        """Whether a request is, in each of its tables, in all slots that it has rows of."""
        windows = self.windows
        if message.meta.cmd not in WITH_KEYS:
            return bool(windows.applied(entry).all())
        return all(
            windows.applied(entry, table.id)[slots].all()
            for table, slots in self._slots_by_table(message)
        )

    def _touched(self, message: Message) -> Mask:
        """The slots of a request; those without keys concern all."""
        touched = no_mask()
        meta = message.meta
        if meta.cmd not in WITH_KEYS:
            return ~touched
        for _, slots in self._slots_by_table(message):
            touched[slots] = True
        return touched

    def _slots_by_table(self, message: Message) -> list[tuple[Table, NDArray[np.uint16]]]:
        """The slots of the rows that a request is about."""
        meta = message.meta
        if not meta.body or "blocks" not in meta.body:
            self._complete(message)
        tables = self._tables_of(meta)
        places = name_places(meta, tables, meta.cmd in WITH_VALUES)
        named = [table for _, table, _ in tables if not is_whole(meta, table)]
        found = [
            (table, row_slots(table, message.arrays[place]))
            for table, place in zip(named, places, strict=True)
            if place < len(message.arrays)
        ]
        for _, table, _ in tables:
            if isinstance(table, BlockTable) and is_whole(meta, table):
                found.append((table, slot_of(table.store.keys)))
        return found

    def left_of(self, meta: Meta, writes: list[Write]) -> list[Write]:
        """What of a push is still to be applied here, row by row."""
        stream = self.windows.find(meta)
        entry = None if stream is None else stream.entries.get(meta.timestamp)
        if entry is None:
            return writes
        left: list[Write] = []
        for (number, keys, values), (_, table, _) in zip(
            writes, self._tables_of(meta), strict=True
        ):
            if keys is not None:
                rows = ~self.windows.applied(entry, table.id)[row_slots(table, keys)]
                if table.id in entry.ahead:
                    rows &= ~np.isin(keys, entry.ahead[table.id], assume_unique=True)
                keys, values = keys[rows], values[rows]
            left.append((number, keys, values))
        return left

    # -- what is done -------------------------------------------------------------------------

    def note_push(self, message: Message) -> None:
        """A push has been applied; other threads than the van's hold `noting`."""
        meta = message.meta
        if meta.constituents:
            if _is_ahead(meta):
                self._note_ahead(message)
            else:
                extent = self._extent(message)
                for one in constituents_of(meta):
                    self.windows.record_inside(one, extent)
        stream = self.windows.find(meta)
        if stream is None:
            return
        extent = self._extent(message)
        if extent is None and meta.timestamp not in stream.entries:
            stream.entries[meta.timestamp] = None
        else:
            self.windows.record(stream, meta, extent)

    def _note_ahead(self, message: Message) -> None:
        """Hot rows of pushes have been applied, whose other rows are to come."""
        meta = message.meta
        for place, (_, table, _) in enumerate(self._tables_of(meta)):
            keys, masks = message.arrays[2 * place], meta.body["ahead"][place]
            for number, one in enumerate(constituents_of(meta)):
                self.windows.record_ahead(one, table.id, keys_within(keys, masks, number))

    def _extent(self, message: Message) -> Mask | None:
        """The slots for which a request speaks; None: all of this server's."""
        meta = message.meta
        if meta.map_version == self.map_version and meta.piece <= 1:
            return None
        return self._touched(message)

    def settle(self, message: Message, answer: Message) -> None:
        """A request is answered for good. Any thread."""
        meta = message.meta
        if meta.constituents:
            error = answer.meta.error
            self._settle_inside(message, error if _is_final(error, meta) else None)
        stream = self.windows.find(meta)
        if stream is None:
            return
        if meta.cmd not in READS:
            error = answer.meta.error
            if error is None:
                kept = answer if answer.meta.body is not None else None
                if meta.cmd not in PUSHES:  # those were noted when they were applied
                    self.windows.record(stream, meta, self._extent(message), answer=kept)
            elif _is_final(error, meta):
                self.windows.record(stream, meta, self._extent(message), failure=error)
        stream.in_hand.discard((meta.timestamp, meta.piece))

    def is_served(self, message: Message) -> bool:
        """Whether a request that was held is still for this server; else it hears so."""
        meta = message.meta
        if meta.map_version == self.map_version and self._gated is None:
            return True
        if self._is_here(message):
            return True
        self.let_go(meta)
        self._send(Message(answer_to(meta, Kind.WRONG_OWNER, map_version=self.map_version)))
        return False

    def let_go(self, meta: Meta) -> None:
        """Nobody works on a request: it could not be looked at."""
        self._settle_inside(Message(meta), None)
        stream = self.windows.find(meta)
        if stream is not None:
            stream.in_hand.discard((meta.timestamp, meta.piece))

    # -- the end of a step, which closes rounds -----------------------------------------------

    def _must_wait(self, message: Message, stream: Stream) -> bool:
        """Whether pushes that belong before the end of a step are still to come.

        It is then kept until `released` gives it back.
        """
        after = (message.meta.body or {}).get("after")
        if not after or _have_come(stream, after):
            return False
        with self._lock:
            stream.in_hand.add((message.meta.timestamp, message.meta.piece))
            self._early.append((stream, message))
        return True

    @property
    def has_early(self) -> bool:
        """Whether ends of steps wait for pushes."""
        return bool(self._early)

    def released(self) -> list[Message]:
        """The ends of steps before which everything has come now. Any thread."""
        with self._lock:
            ready = [e for e in self._early if _have_come(e[0], e[1].meta.body["after"])]
            self._early = [e for e in self._early if e not in ready]
        return [message for _, message in ready]

    # -- maps and lives -----------------------------------------------------------------------

    def learn(self, slots: SlotMap) -> None:
        """Know a newer map; by the thread that drives the van, with no work on moved slots."""
        if slots.version > self.map_version:
            with self.noting:  # or a push of the former map could count for all of the new one
                self.windows.own(slots.owner == self.rank)
                self.slots, self.map_version = slots, slots.version

    def gate(self, slots: Mask) -> None:
        """Take no more requests about these slots: they are on their way to another server."""
        self._gated = slots if slots.any() else None


def _is_ahead(meta: Meta) -> bool:
    """Whether a merged push is of hot rows, sent ahead of the rest of the pushes inside."""
    return bool(meta.body and "ahead" in meta.body)


def _take_masks(message: Message) -> None:
    """Put aside the third array of each table of hot rows, which says whose they are."""
    meta = message.meta
    if _is_ahead(meta) and meta.body["ahead"] is True:
        meta.body["ahead"] = message.arrays[2::3]
        message.arrays = [a for place, a in enumerate(message.arrays) if place % 3 < 2]


def _is_final(error: Failure | None, meta: Meta) -> bool:
    """Whether a request has failed for good; else it was applied, or is sent anew."""
    if error is None or error[0] in NOT_DONE:
        return False
    return error[0] != STALE or not _comes_again(meta)


def _comes_again(meta: Meta) -> bool:
    return bool(meta.body and meta.body.get("again"))


def _have_come(stream: Stream, after: Sequence[Any]) -> bool:
    return all(stream.has_come(int(timestamp), int(piece)) for timestamp, piece in after)

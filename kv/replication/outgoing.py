"""The copies that other servers keep of this one's rows: what they are sent, and who waits for it.

Hears of each change from the engine and appends it to the log of every server that has copies of
the slots it is about. Rows are sent as they are after the change, under the lock that the change
was made under: so the order of a log is the order of the changes of each row, and sending a row
again does no harm. Answers to who made the changes wait until the copies have them.

Any thread. What is locked, in this order: a part of a table, the engine, the logs.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kv.consistency.base import Update
from kv.engine import Engine
from kv.engine_log import Cause
from kv.engine_table import Table
from kv.placement import NUM_SLOTS, slot_of
from kv.replication.copies import within
from kv.replication.log import LogSender
from kv.replication.records import Kind, Record, Slots, pack_push, pack_slots
from kv.store.rows import RowBatch
from kv.store.sparse import SparseStore

Keys = NDArray[np.uint64]


def no_slots() -> Slots:
    return np.zeros(NUM_SLOTS, np.bool_)


_NO_SLOTS = pack_slots(no_slots())


@dataclass(eq=False)
class Peer:
    """A life of another server that has copies of rows of this one, or is to have them.

    Attributes:
        slots: changes of these are sent.
        number: of this log among all from here; those before it to the same life are over.
        counted: of these it has, or is about to have, a copy that may take this server's place:
            answers wait for it. Never changed in place, as `slots`.
    """

    rank: int
    node: int
    incarnation: int
    number: int
    log: LogSender[Record]
    slots: Slots = field(default_factory=no_slots)
    counted: Slots = field(default_factory=no_slots)
    is_closed: bool = False
    is_full: bool = False  # it has no room for more, and so is to be a backup no longer

    def __repr__(self) -> str:
        return f"<Peer {self.rank} slots={int(self.slots.sum())} {self.log!r}>"


class Outgoing:
    """The logs of one server, as an engine sees them (`kv.engine_log.EngineLog`).

    Args:
        engine: whose changes are sent.
        send: puts a record on its way; what is lost is sent again.
        now: the time in seconds.
        timeout: seconds without an acknowledgement before records are sent again.
    """

    def __init__(
        self,
        engine: Engine,
        send: Callable[[Peer, int, Record], None],
        now: Callable[[], float],
        timeout: float = 0.3,
    ) -> None:
        self.engine = engine
        self._send, self._now, self._timeout = send, now, timeout
        self.peers: tuple[Peer, ...] = ()
        self._logs = 0  # that were begun
        self._lock = threading.RLock()
        self._waiting: deque[tuple[list[tuple[Peer, int]], Callable[[], None]]] = deque()

    # -- who has copies -----------------------------------------------------------------------

    def listen(self) -> None:
        """Hear of the engine's changes from now on."""
        with self.engine.lock:
            if self.engine.log is None:
                self.engine.log = self
                for table in self.engine.tables:
                    self._listen_to(table)

    def _listen_to(self, table: Table) -> None:
        table.store.log = log = _TableLog(self, table)
        for _, store in table.store.stores:
            store.space.on_removed = log.removed

    def peer(self, rank: int, node: int, incarnation: int) -> Peer:
        """The log to that life of a server; it begins with what the other must know of tables."""
        with self.engine.lock, self._lock:
            for peer in self.peers:
                if (peer.rank, peer.incarnation) == (rank, incarnation):
                    return peer
            self._logs += 1
            peer = Peer(rank, node, incarnation, self._logs, LogSender(self._timeout))
            self.append(peer, self._progress())
            for table in self.engine.tables:
                self.append(peer, self._table(table))
            self.peers = (*self.peers, peer)
            return peer

    def drop(self, peer: Peer) -> None:
        """That life is over: nobody waits for it any more."""
        with self._lock:
            peer.is_closed = True
            self.peers = tuple(other for other in self.peers if other is not peer)
        self._release()

    def begin(self, peer: Peer, slots: Slots) -> None:
        """From now on `peer` gets each change of `slots`; what is held for rounds comes first."""
        with self.engine.lock, self._lock:
            peer.slots = peer.slots | slots
            self.append(peer, Record(Kind.FILL, {"slots": pack_slots(slots)}))
            for table in self.engine.tables:
                for rank, number, update in table.mode.kept():
                    self._hold(peer, slots, table, rank, number, update)

    def count_on(self, peer: Peer, slots: Slots, last: list[Record]) -> int:
        """Let answers wait for `peer`, whose copy is complete with these records; their number."""
        with self._lock:
            peer.counted = peer.counted | slots
            number = 0
            for record in last:
                number = self.append(peer, record)
            return number

    def route(self, peer: Peer, slots: Slots, counted: Slots, left: Slots | None = None) -> None:
        """`peer` has copies of these slots and no others; those of `left` it may forget."""
        with self._lock:
            peer.slots, peer.counted = slots, counted
            if left is not None and left.any():
                self.append(peer, Record(Kind.LEFT, {"slots": pack_slots(left)}))
        self._release()

    # -- the logs -----------------------------------------------------------------------------

    def append(self, peer: Peer, record: Record) -> int:
        """Send a record; its number."""
        with self._lock:
            number = peer.log.append(record, record.nbytes)
            for ready, one in peer.log.take(self._now()):
                self._send(peer, ready, one)
            return number

    def has_room(self, peer: Peer) -> bool:
        """Whether a record that nobody waits for may be appended."""
        with self._lock:
            return peer.log.has_room

    def find(self, rank: int, incarnation: int, number: int) -> Peer | None:
        """The peer with this log; None: it is over."""
        for peer in self.peers:
            if (peer.rank, peer.incarnation, peer.number) == (rank, incarnation, number):
                return peer
        return None

    def acknowledge(self, peer: Peer, number: int) -> bool:
        """A peer has all records up to `number`; whether that is news."""
        with self._lock:
            if not peer.log.acknowledge(number, self._now()):
                return False
            for ready, record in peer.log.take(self._now()):
                self._send(peer, ready, record)
        self._release()
        return True

    def tick(self) -> None:
        """Send again what is due."""
        with self._lock:
            for peer in self.peers:
                for number, record in peer.log.due(self._now()):
                    self._send(peer, number, record)

    def after(self, call: Callable[[], None]) -> None:
        """Make `call` when the copies have all changes made by now; at once if they have."""
        with self._lock:
            waits_for = [
                (peer, peer.log.last)
                for peer in self.peers
                if peer.log.acknowledged < peer.log.last and peer.counted.any()
            ]
            if waits_for:
                self._waiting.append((waits_for, call))
                return
        call()

    def _release(self) -> None:
        """Make the calls that nothing is in the way of any more; they became so in their order."""
        ready: list[Callable[[], None]] = []
        with self._lock:
            while self._waiting and all(map(_is_there, self._waiting[0][0])):
                ready.append(self._waiting.popleft()[1])
        for call in ready:
            call()

    # -- what the engine tells ------------------------------------------------------------------

    def defined(self, table: Table) -> None:
        self._listen_to(table)
        for peer in self.peers:
            self.append(peer, self._table(table))

    def held(self, table: Table, rank: int, number: int, update: Update) -> None:
        for peer in self.peers:
            self._hold(peer, peer.slots, table, rank, number, update)

    def _hold(
        self, peer: Peer, slots: Slots, table: Table, rank: int, number: int, update: Update
    ) -> None:
        update = within(table, update, slots)
        if not update.keys.size:
            return
        body = {
            "table": table.id,
            "rank": rank,
            "round": number,
            "step": update.step,
            "weight": update.weight,
            "rest": update.is_rest,
            "push": pack_push(update.push),
        }
        self.append(peer, Record(Kind.HELD, body, [update.keys, update.grads]))

    def closed(self, table: Table) -> None:
        for peer in self.peers:
            body = {"table": table.id, "clock": table.mode.clock, "slots": pack_slots(peer.slots)}
            self.append(peer, Record(Kind.CLOSED, body))

    def progressed(self) -> None:
        with self.engine.lock:
            record = self._progress()
        for peer in self.peers:
            self.append(peer, record)

    def rated(self, table: Table) -> None:
        for peer in self.peers:
            self.append(peer, self._table(table))

    def _progress(self) -> Record:
        return Record(Kind.PROGRESS, self.engine.progress.state())

    def _table(self, table: Table) -> Record:
        body = {"spec": table.spec.to_dict(), "clock": table.mode.clock, "lr": table.lr}
        return Record(Kind.TABLE, body)

    def send_rows(self, table: Table, store: SparseStore, keys: Keys, cause: Cause) -> None:
        """Send rows that have changed; the lock of the store is held."""
        if not self.peers:
            return
        slots = slot_of(keys)
        for peer in self.peers:
            chosen = peer.slots[slots]
            if not chosen.any():
                continue
            touched = no_slots()
            touched[slots[chosen]] = True
            batch = store.export(keys if chosen.all() else keys[chosen])
            body = {
                "table": table.id,
                "push": pack_push(cause.push),
                "slots": pack_slots(touched),
                "round": cause.round,
                "clock": table.mode.clock,
            }
            self.append(peer, Record(Kind.ROWS, body, batch.columns()))

    def fill(self, peer: Peer, table: Table, batch: RowBatch) -> None:
        """Send rows as they are; the lock of their store is held."""
        body = {
            "table": table.id,
            "push": None,
            "slots": _NO_SLOTS,
            "round": -1,
            "clock": table.mode.clock,
        }
        self.append(peer, Record(Kind.ROWS, body, batch.columns()))

    def send_gone(self, table: Table, keys: Keys) -> None:
        """Send which rows were removed; the lock of the store is held."""
        for peer in self.peers:
            gone = keys[peer.slots[slot_of(keys)]]
            if gone.size:
                self.append(peer, Record(Kind.GONE, {"table": table.id}, [gone]))


class _TableLog:
    """A table's end of the logs (`kv.engine_log.RowLog`)."""

    def __init__(self, out: Outgoing, table: Table) -> None:
        self._out, self._table = out, table

    def changed(self, store: SparseStore, keys: Keys, cause: Cause) -> None:
        self._out.send_rows(self._table, store, keys, cause)

    def removed(self, keys: Keys) -> None:
        self._out.send_gone(self._table, keys)


def _is_there(wanted: tuple[Peer, int]) -> bool:
    peer, number = wanted
    return peer.is_closed or peer.log.acknowledged >= number or not peer.counted.any()

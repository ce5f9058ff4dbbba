"""A server's part in replication and moves: records come in, orders and maps; logs go out.

    replica      what the parts share, and the van's thread
    ownership    maps, and slots that change hands
    orders       copies to fill and slots to give
    replicator   the above; records in, and acknowledgements

The thread that drives the van takes messages and views. Records are applied in a lane of the
executor, in the order of their log.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from typing import TYPE_CHECKING

from kv.errors import ArenaFullError, KVError
from kv.executor import Turns
from kv.replication.log import LogReceiver
from kv.replication.orders import Orders
from kv.replication.outgoing import Peer
from kv.replication.protocol import PLACEMENT_APP, REPLICATION_APP, Said
from kv.replication.records import Kind, Record
from kv.replication.replica import COPIES
from kv.serving.rounds import SETTLING
from postoffice.customer import Customer
from postoffice.node import SCHEDULER_ID, Role, node_name, role_and_rank
from van.message import Message

if TYPE_CHECKING:
    from kv.table_server import TableServer

log = logging.getLogger(__name__)


class Replicator(Orders):
    """Makes a table server one of several that keep copies of each other's rows.

    Args:
        tables: the server, not yet started.
        timeout: seconds without an acknowledgement before records are sent again.
    """

    def __init__(self, tables: TableServer, timeout: float = 0.3) -> None:
        super().__init__(tables, timeout)
        tables.follows_map = False  # a map is taken up when nothing is under way
        Customer(REPLICATION_APP, 0, self.office, self._receive)
        Customer(PLACEMENT_APP, 0, self.office, self._take_order)
        self.office.on_view.append(self._take_view)

    def _receive(self, message: Message) -> None:
        self._note_thread()
        meta = message.meta
        role, rank = role_and_rank(meta.sender)
        if role is not Role.SERVER:
            raise KVError(f"only servers send records, not a {role}")
        if meta.cmd == Said.ACKNOWLEDGED:
            body = meta.body
            peer = self.out.find(rank, meta.incarnation, int(body["log"]))
            if peer is None:
                return
            if self.out.acknowledge(peer, int(body["n"])):
                self._look_after(peer)
            if body["full"] is not None:
                self._go_on_without(peer, str(body["full"]))
        elif meta.cmd == Said.RECORD:
            self._take_record(message)

    def _take_record(self, message: Message) -> None:
        meta = message.meta
        log_number, number, record = Record.unpack(meta.body, message.arrays)
        receiver = self.receivers.of(meta.sender, meta.incarnation, log_number)
        if receiver is None:
            return
        self._start_ticking()
        entries = receiver.take(number, record)
        self.office.reach(meta.sender)
        if not entries or receiver.full is not None:
            if number <= receiver.applied or receiver.full is not None:
                self._acknowledge(meta.sender, log_number, receiver)
            return
        lanes: list[Hashable] = [COPIES]
        if any(record.kind is Kind.PROGRESS for _, record in entries):
            lanes.append(SETTLING)  # it may close rounds
        self.executor.submit(self._applying(meta.sender, log_number, receiver, entries), lanes)

    def _applying(
        self,
        sender: int,
        log_number: int,
        receiver: LogReceiver[Record],
        entries: list[tuple[int, Record]],
    ) -> Turns[None]:
        for number, record in entries:
            if receiver.full is not None:
                break
            try:
                yield from self.incoming.applying(sender, record)
            except ArenaFullError as error:
                # What is here stays as it is, and is good, until the map has another backup.
                receiver.full = str(error)
                self.incoming.source[self.incoming.source == sender] = 0
            else:
                receiver.note_applied(number)
        self._acknowledge(sender, log_number, receiver)

    def _acknowledge(self, node: int, log_number: int, receiver: LogReceiver[Record]) -> None:
        body = {"log": log_number, "n": receiver.applied, "full": receiver.full}
        self._send(node, REPLICATION_APP, Said.ACKNOWLEDGED, body)

    def _go_on_without(self, peer: Peer, why: str) -> None:
        """A backup has no room for more: the scheduler is to say that it is none any more.

        Until its map says so nobody is answered, as whoever takes over must have what was answered.
        """
        if not peer.is_full:
            peer.is_full = True
            log.warning("%s has no room for copies of rows here: %s", node_name(peer.node), why)
            self._cancel(peer)
        body = {"rank": peer.rank, "life": peer.incarnation, "why": why}
        self._send(SCHEDULER_ID, PLACEMENT_APP, Said.FULL, body)

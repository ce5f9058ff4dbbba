"""What the parts of a replicator share: slots, logs, work under way, and the van's thread.

Work is done in lanes of the executor; what must not overlap with taking messages is done by the
thread that drives the van, between two of them. That one looks after the logs, too, from time to
time.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any

from kv.executor import Turns
from kv.placement_desk import OrderKind
from kv.replication.filling import Task
from kv.replication.incoming import Incoming
from kv.replication.log import Receivers
from kv.replication.outgoing import Outgoing, Peer, no_slots
from kv.replication.protocol import REPLICATION_APP, Said
from kv.replication.records import Record, Slots
from kv.serving.rounds import SETTLING
from postoffice.node import Role, node_id
from van.errors import PsliteError
from van.message import Message, Meta

if TYPE_CHECKING:
    from kv.table_server import TableServer

log = logging.getLogger(__name__)

COPIES = "copies"  # the lane of what is done to copies
_TICK = 0.05  # seconds between two looks at what waits for the van's thread
_LOOK = 1.0  # seconds between two looks whether there will be any


class Replica:
    """A server that has copies of others' rows, and others of its own.

    Args:
        tables: the server, not yet started.
        timeout: seconds without an acknowledgement before records are sent again.

    Attributes:
        out, incoming: the copies that others keep, and those kept here.
        receivers: of the logs of others.
        tasks: orders under way, by number.
    """

    def __init__(self, tables: TableServer, timeout: float = 0.3) -> None:
        self.tables, self.office, self.timeout = tables, tables.office, timeout
        self.engine, self.executor, self.desk = tables.engine, tables.executor, tables.desk
        self.out = Outgoing(self.engine, self._send_record, self.office.van.now, timeout)
        self.incoming = Incoming(
            self.engine, tables.find_or_define, tables.table_of, tables.answer_held
        )
        self.receivers: Receivers[Record] = Receivers()
        self.tasks: dict[int, Task] = {}
        self._mine: Slots | None = None
        self._later: deque[tuple[Callable[[], None], Future[None]]] = deque()
        self._thread = 0
        self._is_ticking = self._is_sweeping = False

    # -- slots and peers ------------------------------------------------------------------------

    @property
    def mine(self) -> Slots:
        """The slots that this server serves, bool (1024,)."""
        if self._mine is None:
            self._mine = self.desk.slots.owner == self.office.rank
        return self._mine

    def _promised(self, are_given: bool) -> Slots:
        """The slots that another is to get; with `are_given` only those that are copies by now."""
        slots = no_slots()
        for task in self.tasks.values():
            if task.order.kind is OrderKind.GIVE and (task.is_given or not are_given):
                slots |= task.slots
        return slots

    def _peer(self, rank: int) -> Peer | None:
        node = node_id(Role.SERVER, rank)
        view = self.office.view
        known = view.nodes.get(node)
        if known is None or node in view.gone or rank == self.office.rank:
            return None
        self.office.reach(node)
        return self.out.peer(rank, node, known.incarnation)

    # -- sending ----------------------------------------------------------------------------------

    def _send_record(self, peer: Peer, number: int, record: Record) -> None:
        body = record.pack(peer.number, number)
        self._send(peer.node, REPLICATION_APP, Said.RECORD, body, list(record.arrays))

    def _send(
        self, node: int, app: int, said: Said, body: Any, arrays: list[Any] | None = None
    ) -> None:
        """Send; what cannot be sent now is sent again, or its recipient is dead."""
        meta = Meta(recipient=node, app=app, cmd=int(said), body=body)
        # With locks held another thread must not wait for the van's, which may wait for the locks.
        may_connect = threading.get_ident() == self._thread
        try:
            self.office.send(Message(meta, arrays or []), may_connect=may_connect)
        except PsliteError as error:
            log.debug("%s: %s", self.office.name, error)

    # -- threads --------------------------------------------------------------------------------

    def _all_lanes(self) -> list[Hashable]:
        """Behind all that is under way."""
        return list(dict.fromkeys([COPIES, SETTLING, *self.executor.lanes]))

    def _note_thread(self) -> None:
        self._thread = threading.get_ident()

    def _in_van(self, call: Callable[[], None]) -> None:
        """Have the van's thread make `call`, and wait for it; what it raises is raised here."""
        if threading.get_ident() == self._thread:
            call()
            return
        done: Future[None] = Future()
        self._later.append((call, done))
        while not self.office.is_stopped:
            if wait([done], _LOOK).done:
                done.result()
                return

    def _start_ticking(self) -> None:
        """Look after the logs from now on: without copies there is nothing to look at."""
        if not self._is_ticking:
            self._is_ticking = True
            self.desk.rank = self.office.rank
            self.tables.keep_answer = self._keep
            self.engine.own(self.mine)  # copies are not its own
            self.office.van.every(_TICK, self._tick)

    def _keep(self, message: Message, answer: Message) -> bool:
        """Answer a request when all copies have what it has changed. Any thread."""
        meta = message.meta
        stream = self.desk.windows.find(meta)
        if stream is not None:  # a repeat hears that it is held, though the push is applied
            stream.in_hand.add((meta.timestamp, meta.piece))
        self.out.after(lambda: self.tables.answer(message, answer))
        return True

    def _tick(self) -> None:
        self._note_thread()
        self.out.tick()
        self._remind()
        if self.incoming.leaving and not self._is_sweeping:
            self._is_sweeping = True
            self.executor.submit(self._sweeping(), [COPIES])
        while self._later:
            call, done = self._later.popleft()
            try:
                call()
            except Exception as error:  # raised where it is waited for
                done.set_exception(error)
            else:
                done.set_result(None)

    def _sweeping(self) -> Turns[None]:
        try:
            yield from self.incoming.leaving.working()
        finally:
            self._is_sweeping = False

    def _remind(self) -> None:
        """Say again what the scheduler may not have heard."""

"""A server's part in replication and moves: orders, records and maps come in, logs go out.

The thread that drives the van takes messages and views. Records are applied in a lane of the
executor, in the order of their log; a new map is taken up behind all work that there is (lanes), so
that no request is half done while slots change hands.

    FILL    begin the log, send the rows, then the windows; DONE when the other has all of it, and
            go on sending changes until the scheduler says which map has heard of it
    GIVE    refuse the slots, finish what is under way, keep them as copies; DONE likewise
    map     what this server has gained it serves from its copies; what it has lost it forgets
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import numpy as np

from kv.consistency.base import Kept
from kv.consistency.rounds import is_made_again
from kv.errors import ArenaFullError, KVError
from kv.executor import Turns, run_through
from kv.placement import NUM_SLOTS, SlotMap
from kv.placement_desk import Order, OrderKind
from kv.replication.copies import parted
from kv.replication.filling import Task, send_some
from kv.replication.incoming import Incoming
from kv.replication.log import LogReceiver, Receivers
from kv.replication.outgoing import Outgoing, Peer, no_slots
from kv.replication.protocol import PLACEMENT_APP, REPLICATION_APP, Said
from kv.replication.records import Kind, Record, Slots, pack_slots
from postoffice.customer import Customer
from postoffice.node import SCHEDULER_ID, Role, node_id, node_name, role_and_rank
from postoffice.view import ClusterView
from van.errors import PsliteError
from van.message import Message, Meta

if TYPE_CHECKING:
    from kv.table_server import TableServer

log = logging.getLogger(__name__)

COPIES = "copies"  # the lane of what is done to copies
_SETTLING = "rounds"
_TICK = 0.05  # seconds between two looks at what waits for the van's thread
_REMEMBERED = 1000  # orders that are done


class Replicator:
    """Makes a table server one of several that keep copies of each other's rows.

    Args:
        tables: the server, not yet started.
        timeout: seconds without an acknowledgement before records are sent again.
    """

    def __init__(self, tables: TableServer, timeout: float = 0.3) -> None:
        self.tables, self.office, self.timeout = tables, tables.office, timeout
        self.engine, self.executor, self.desk = tables.engine, tables.executor, tables.desk
        self.out = Outgoing(self.engine, self._send_record, self.office.van.now, timeout)
        self.incoming = Incoming(
            self.engine, tables.find_or_define, tables.table_of, tables.answer_held
        )
        self.receivers: Receivers[Record] = Receivers()
        self.tasks: dict[int, Task] = {}  # by the number of the order
        self._mine: Slots | None = None
        self.map_version = 0
        self._newest = 0  # version of the newest map that is or will be taken up
        self._done: dict[int, None] = {}
        self._reminding = 0.0  # when the scheduler is told again of fills that are done
        self._later: deque[tuple[Callable[[], None], threading.Event]] = deque()
        self._thread = 0
        self._is_ticking = self._is_sweeping = False
        tables.follows_map = False  # a map is taken up when nothing is under way
        Customer(REPLICATION_APP, 0, self.office, self._receive)
        Customer(PLACEMENT_APP, 0, self.office, self._take_order)
        self.office.on_view.append(self._take_view)

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

    # -- messages -----------------------------------------------------------------------------

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
            lanes.append(_SETTLING)  # it may close rounds
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

    # -- orders ---------------------------------------------------------------------------------

    def _take_order(self, message: Message) -> None:
        self._note_thread()
        if message.meta.sender != SCHEDULER_ID:
            raise KVError("only the scheduler gives orders about slots")
        if message.meta.cmd == Said.LEAVE:
            self.office.stop()
            return
        if message.meta.cmd == Said.OVER:
            self._end_fill(int(message.meta.body["order"]), int(message.meta.body["map"]))
            return
        order = Order.unpack(message.meta.body)
        if order.number in self._done:
            self._report(order.number)
        elif order.number not in self.tasks:
            self._begin(order)

    def _begin(self, order: Order) -> None:
        peer = self._peer(order.target)
        slots = no_slots()
        slots[order.slots] = True
        if peer is None or peer.is_full or not self.mine[order.slots].all():
            return  # a map or view is on its way that says otherwise, or will come before the next
        task = Task(order, peer, slots)
        self.tasks[order.number] = task
        if order.kind is OrderKind.FILL:
            self._start_ticking()
            self.out.listen()
            task.tables, task.is_running = [], True
            self.executor.submit(self._opening(task), [COPIES])
        else:
            self.desk.gate(self._promised(are_given=False))
            self.executor.submit(self._giving(task), self._all_lanes())

    def _peer(self, rank: int) -> Peer | None:
        node = node_id(Role.SERVER, rank)
        view = self.office.view
        known = view.nodes.get(node)
        if known is None or node in view.gone or rank == self.office.rank:
            return None
        self.office.reach(node)
        return self.out.peer(rank, node, known.incarnation)

    def _opening(self, task: Task) -> Turns[None]:
        if task.is_cancelled:
            return
        self.out.begin(task.peer, task.slots)
        task.tables = list(self.engine.tables)
        yield from self._filling(task)

    def _filling(self, task: Task) -> Turns[None]:
        while True:
            if task.is_cancelled:
                return
            if not self.out.has_room(task.peer):
                task.is_running = False
                if not self.out.has_room(task.peer):
                    return  # goes on when records are acknowledged
                task.is_running = True
            if not send_some(task, self.out):
                break
            yield
        # Pushes that were under way when the log began may have changed rows unseen by it: their
        # rows were read since, and that they came is known when they are done.
        self.executor.submit(self._finishing(task), self._all_lanes())

    def _finishing(self, task: Task) -> Turns[None]:
        if not task.is_cancelled:
            blob = self.desk.windows.export(task.slots)
            windows = Record(Kind.WINDOWS, {"slots": pack_slots(task.slots), "blob": blob})
            task.end = self.out.count_on(task.peer, task.slots, [windows, self._end(task)])
            self._in_van(lambda: self._look_after(task.peer))
        return
        yield

    def _giving(self, task: Task) -> Turns[None]:
        if not task.is_cancelled:
            self._in_van(lambda: self._give(task))
            task.end = self.out.count_on(task.peer, no_slots(), [self._end(task)])
            self._in_van(lambda: self._look_after(task.peer))
        return
        yield

    def _give(self, task: Task) -> None:
        task.is_given = True
        self._demote(task.slots)

    def _end(self, task: Task) -> Record:
        return Record(Kind.END, {"order": task.order.number})

    def _look_after(self, peer: Peer) -> None:
        """Records were acknowledged: tasks go on, or are done. The van's thread."""
        for task in list(self.tasks.values()):
            if task.peer is not peer or task.is_cancelled:
                continue
            if task.end:
                if peer.log.acknowledged >= task.end and task.order.number not in self._done:
                    self._finish(task)
            elif task.tables and not task.is_running and self.out.has_room(peer):
                task.is_running = True
                self.executor.submit(self._filling(task), [COPIES])

    def _finish(self, task: Task) -> None:
        number = task.order.number  # the task stays until a map has heard of it
        self._done[number] = None
        if len(self._done) > _REMEMBERED:
            del self._done[next(iter(self._done))]
        self._report(number)

    def _report(self, number: int) -> None:
        self._send(SCHEDULER_ID, PLACEMENT_APP, Said.DONE, {"order": number})

    def _remind(self) -> None:
        """Report fills again until the scheduler says that it has heard."""
        now = self.office.van.now()
        if now >= self._reminding:
            self._reminding = now + self.timeout
            for number, task in list(self.tasks.items()):
                if task.order.kind is OrderKind.FILL and number in self._done:
                    self._report(number)

    def _end_fill(self, number: int, version: int) -> None:
        """From map `version` on it is the map that says who is sent the changes of these slots.

        An older one does not know yet that the other has become their backup: without the task it
        would end what is sent, and changes until the next map would be missing there.
        """
        task = self.tasks.get(number)
        if task is None or task.order.kind is not OrderKind.FILL or self.map_version < version:
            return  # in the last case it is asked again
        task.is_cancelled = True
        del self.tasks[number]
        self._route(self.desk.slots, self.mine)

    # -- maps and lives ---------------------------------------------------------------------------

    def _take_view(self, old: ClusterView, new: ClusterView) -> None:
        self._note_thread()
        for node, life in new.fenced.items():
            self.receivers.fence(node, life)
        for peer in self.out.peers:
            known = new.nodes.get(peer.node)
            if known is None or known.incarnation != peer.incarnation:
                self._lose(peer)
        if new.map_version > self._newest:
            self._newest = new.map_version
            told = SlotMap.from_bytes(new.map_blob)
            slots = SlotMap(new.map_version, told.owner, told.backup)
            self._start_ticking()
            self.executor.submit(self._mapping(slots), self._all_lanes())

    def _lose(self, peer: Peer) -> None:
        self._cancel(peer)
        self.out.drop(peer)

    def _cancel(self, peer: Peer) -> None:
        for number, task in list(self.tasks.items()):
            if task.peer is peer:
                task.is_cancelled = True
                if task.order.kind is OrderKind.FILL:
                    del self.tasks[number]

    def _all_lanes(self) -> list[Hashable]:
        """Behind all that is under way."""
        return list(dict.fromkeys([COPIES, _SETTLING, *self.executor.lanes]))

    def _mapping(self, slots: SlotMap) -> Turns[None]:
        if slots.version <= self.map_version:
            return
        self._in_van(lambda: self._switch(slots))
        kept = (slots.backup == self.office.rank) | self.mine | self._promised(are_given=True)
        filled = self.incoming.source == _nodes_of(slots.owner)
        self.incoming.leave(self.incoming.present & ~kept & ~filled)
        return
        yield

    def _switch(self, slots: SlotMap) -> None:
        """Serve what `slots` gives this server from now on. The van's thread; nothing is begun."""
        rank, before = self.office.rank, self.mine
        for number, task in list(self.tasks.items()):
            if task.order.kind is OrderKind.GIVE:
                is_made = not (slots.owner[task.slots] == rank).any()
                if is_made or task.is_cancelled:
                    del self.tasks[number]
        mine: Slots = (slots.owner == rank) & ~self._promised(are_given=True)
        gained, lost = mine & ~before, before & ~mine
        if lost.any():
            self._demote(lost)
        self._route(slots, mine)
        self._promote(slots, mine, gained)
        self._mine, self.map_version = mine, slots.version
        self.desk.gate(self._promised(are_given=False))
        self.tables.look_at_held()

    def _route(self, slots: SlotMap, mine: Slots) -> None:
        """Send changes to whom the map calls backups, and to those that are being filled."""
        ranks = set(np.unique(slots.backup[mine & (slots.backup < NUM_SLOTS)]).tolist())
        for rank in ranks:
            if self._peer(int(rank)) is not None:
                self.out.listen()
        for peer in self.out.peers:
            filling = no_slots()
            for task in self.tasks.values():
                if task.peer is peer and task.order.kind is OrderKind.FILL:
                    filling |= task.slots
            backed = mine & (slots.backup == peer.rank)
            if peer.is_full and not backed.any():
                self.out.drop(peer)  # with the next order another log begins
                continue
            counted = (peer.counted & filling & mine) | backed
            sent = (filling & mine) | backed
            self.out.route(peer, sent, counted, left=peer.slots & mine & ~sent)

    def _promote(self, slots: SlotMap, mine: Slots, gained: Slots) -> None:
        """Own `mine`; of what is `gained` the copies become this server's own."""
        copies, useless = self.incoming.copies, gained & self.incoming.leaving.slots
        if useless.any():  # nobody has copies of these
            run_through(self.incoming.dropping(useless))
        blob = copies.windows.export(gained)
        self.desk.learn(slots)
        if gained.any():
            self.desk.windows.adopt(gained, blob)
        self.engine.own(mine)
        for table in list(self.engine.tables):
            taken = self._still_held(copies.take_held(table, gained))
            if not table.mode.holds:
                table.mode.clock = max(table.mode.clock, self.incoming.clocks.get(table, 0))
            elif taken:
                # Of a push that was cut, this server has counted its own piece.
                rest = [(rank, number, part._replace(is_rest=True)) for rank, number, part in taken]
                run_through(self.engine.keeping(table, [*table.mode.kept(), *rest]))
        copies.forget(gained)
        self.incoming.present &= ~gained
        self.incoming.source[gained] = 0

    def _still_held(self, taken: list[Kept]) -> list[Kept]:
        """Without what workers that were started again push once more."""
        progress = self.engine.progress
        return [kept for kept in taken if not is_made_again(progress, kept[0], kept[2])]

    def _demote(self, slots: Slots) -> None:
        """What this server owned is a copy of another's from now on. The van's thread."""
        copies = self.incoming.copies
        for table in list(self.engine.tables):
            kept, left = parted(table, table.mode.kept(), slots)
            if kept:
                with self.engine.lock:
                    table.mode.keep(left)
                for rank, number, update in kept:
                    copies.hold(table, rank, number, update)
        copies.windows.adopt(slots, self.desk.windows.export(slots))
        self.incoming.present |= slots
        self._mine = self.mine & ~slots
        self.engine.own(self._mine)
        for task in self.tasks.values():
            if task.order.kind is OrderKind.FILL:  # should they come back, the map says who backs
                task.slots = task.slots & ~slots
        for peer in self.out.peers:
            self.out.route(peer, peer.slots & ~slots, peer.counted & ~slots)

    # -- threads --------------------------------------------------------------------------------

    def _note_thread(self) -> None:
        self._thread = threading.get_ident()

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
            call, is_done = self._later.popleft()
            call()
            is_done.set()

    def _sweeping(self) -> Turns[None]:
        try:
            yield from self.incoming.leaving.working()
        finally:
            self._is_sweeping = False

    def _in_van(self, call: Callable[[], None]) -> None:
        """Have the van's thread make `call`, and wait for it."""
        if threading.get_ident() == self._thread:
            call()
            return
        is_done = threading.Event()
        self._later.append((call, is_done))
        while not is_done.wait(1.0) and not self.office.is_stopped:
            pass


def _nodes_of(ranks: np.ndarray[Any, np.dtype[np.uint16]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return 8 + 2 * ranks.astype(np.int64)

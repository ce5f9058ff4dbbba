"""Orders of the scheduler: another server is to get copies of slots, or the slots themselves.

FILL    begin the log, send the rows, then the windows; DONE when the other has all of it, and
        go on sending changes until the scheduler says which map has heard of it
GIVE    refuse the slots, finish what is under way, keep them as copies; DONE likewise
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kv.errors import KVError
from kv.executor import Turns
from kv.placement_desk import Order, OrderKind
from kv.replication.filling import Task, send_some
from kv.replication.outgoing import Peer, no_slots
from kv.replication.ownership import Ownership
from kv.replication.protocol import PLACEMENT_APP, Said
from kv.replication.records import Kind, Record, pack_slots
from kv.replication.replica import COPIES
from postoffice.node import SCHEDULER_ID
from van.message import Message

if TYPE_CHECKING:
    from kv.table_server import TableServer

_REMEMBERED = 1000  # orders that are done


class Orders(Ownership):
    """Carries out orders about slots. Arguments as for `Replica`."""

    def __init__(self, tables: TableServer, timeout: float = 0.3) -> None:
        super().__init__(tables, timeout)
        self._done: dict[int, None] = {}
        self._reminding = 0.0  # when the scheduler is told again of fills that are done

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

    # -- a copy is filled -----------------------------------------------------------------------

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

    # -- slots are given ------------------------------------------------------------------------

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

    # -- and done -------------------------------------------------------------------------------

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

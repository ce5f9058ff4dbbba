"""Filling a copy: all rows of some slots, table by table, into the log to another server."""

from __future__ import annotations

from dataclasses import dataclass, field

from kv.engine_table import Table
from kv.errors import ScanError
from kv.placement_desk import Order
from kv.replication.outgoing import Outgoing, Peer
from kv.replication.records import Slots

_PLACES = 1 << 13  # of a store that are looked at under one lock


@dataclass(eq=False)
class Task:
    """An order that this server carries out.

    Attributes:
        slots: bool (1024,), the order's.
        end: number of the record that is the last of it; 0: not yet appended.
        is_cancelled: the target's life is over, or the placement says otherwise.
        is_running: a thread works on it.
        is_given: the slots are copies here by now.
    """

    order: Order
    peer: Peer
    slots: Slots
    end: int = 0
    is_cancelled: bool = False
    is_running: bool = False
    is_given: bool = False
    tables: list[Table] = field(default_factory=list)
    store: int = 0
    place: int = 0


def send_some(task: Task, out: Outgoing) -> bool:
    """Append some rows to the log; False: there are no more."""
    while task.tables:
        table = task.tables[-1]
        if task.store >= len(table.store.stores):
            task.tables.pop()
            task.store = task.place = 0
            continue
        lock, store = table.store.stores[task.store]
        with lock:  # or a change that comes after the rows were read could be sent before them
            try:
                batch, task.place = store.export_scan(task.place, _PLACES, task.slots)
            except ScanError:  # it has waited long: what was sent may be sent again
                task.place = 0
                continue
            if task.place >= store.top:
                task.store, task.place = task.store + 1, 0
            if len(batch):
                out.fill(task.peer, table, batch)
                return True
    return False

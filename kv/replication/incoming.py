"""The copies that this server keeps of others' rows: records in, tables and windows changed.

Rows lie in the tables beside this server's own; `Copies` has the rest. Turns, because records may
be large; whoever runs them keeps those of one sender in order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv.consistency.base import Update
from kv.engine import Engine
from kv.engine_table import Table
from kv.errors import ArenaFullError, UnknownTableError
from kv.executor import Turns
from kv.kernels.jit import frozen
from kv.placement import NUM_SLOTS
from kv.replication.copies import Copies
from kv.replication.records import Kind, Record, Slots, unpack_push, unpack_slots
from kv.spec import TableSpec
from kv.store.rows import RowBatch

log = logging.getLogger(__name__)

_SOME = 1 << 14  # rows looked at under one lock


class Incoming:
    """What is done with records.

    Args:
        engine: of this server.
        define: makes a table, or finds it.
        find: the table of an id; None if there is none.
        on_advance: called when clocks have moved: pulls may be answered.

    Attributes:
        copies: what is kept besides rows.
        source: int64 (1024,): which node fills or keeps each slot here, 0 for none.
        present: bool (1024,): where rows of others may lie.
        clocks: of tables, as their owners said last.
    """

    def __init__(
        self,
        engine: Engine,
        define: Callable[[TableSpec], Table],
        find: Callable[[int], Table | None],
        on_advance: Callable[[], None],
    ) -> None:
        self.engine, self._define, self._find, self._on_advance = engine, define, find, on_advance
        self.copies = Copies()
        self.source = np.zeros(NUM_SLOTS, np.int64)
        self.present = np.zeros(NUM_SLOTS, np.bool_)
        self.clocks: dict[Table, int] = {}
        self._work: dict[Kind, Callable[[dict[str, Any], list[NDArray[Any]]], Turns[None]]] = {
            Kind.PROGRESS: self._progress,
            Kind.TABLE: self._table,
            Kind.ROWS: self._rows,
            Kind.GONE: self._gone,
            Kind.HELD: self._held,
            Kind.CLOSED: self._closed,
            Kind.WINDOWS: self._windows,
        }

    def applying(self, sender: int, record: Record) -> Turns[None]:
        """Do what the record of that node says.

        Raises:
            ArenaFullError: there is no room for its rows, or for its table; nothing is changed.
        """
        if record.kind is Kind.FILL:
            yield from self._fill(sender, unpack_slots(record.body["slots"]))
        elif record.kind is not Kind.END:  # that one is only acknowledged
            yield from self._work[record.kind](record.body, list(record.arrays))

    def _fill(self, sender: int, slots: Slots) -> Turns[None]:
        yield from self.dropping(slots)
        self.source[slots] = sender
        self.present |= slots

    def dropping(self, slots: Slots) -> Turns[None]:
        """Forget the copies of these slots."""
        self.copies.forget(slots)
        slots = slots & self.present
        if slots.any():
            for table in list(self.engine.tables):
                for lock, store in table.store.stores:
                    start = 0
                    while start < store.top:
                        with lock:
                            batch, start = store.export_scan(start, _SOME, slots)
                            store.remove(frozen(batch.keys))
                        yield
        self.present &= ~slots
        self.source[slots] = 0

    def _progress(self, body: dict[str, Any], arrays: list[NDArray[Any]]) -> Turns[None]:
        try:
            has_advanced = yield from self.engine.catching_up(body)
        except ArenaFullError as error:  # of this server's own rows; the worker hears of the next
            log.error("a round that has ended found no room and was dropped: %s", error)
            has_advanced = True
        if has_advanced:
            self._on_advance()

    def _table(self, body: dict[str, Any], arrays: list[NDArray[Any]]) -> Turns[None]:
        table = self._define(TableSpec.from_dict(body["spec"]))
        self._note_clock(table, body["clock"])
        if body["lr"] is not None:  # who set it told every server: it is not passed on
            table.set_lr(float(body["lr"]))
        return
        yield

    def _rows(self, body: dict[str, Any], arrays: list[NDArray[Any]]) -> Turns[None]:
        table = self._known(body)
        slots, batch = unpack_slots(body["slots"]), RowBatch(*map(frozen, arrays))
        claim = yield from table.making_room(batch.keys)  # or a part of them could be there
        try:
            yield from table.putting(batch, keep_versions=False)
        finally:
            table.release(claim)
        self.copies.note(unpack_push(body["push"]), table, slots)
        if body["round"] >= 0:
            self.copies.settle(table, body["round"], slots)
        self._note_clock(table, body["clock"])

    def _gone(self, body: dict[str, Any], arrays: list[NDArray[Any]]) -> Turns[None]:
        yield from self._known(body).removing(frozen(arrays[0]))

    def _held(self, body: dict[str, Any], arrays: list[NDArray[Any]]) -> Turns[None]:
        table, push = self._known(body), unpack_push(body["push"])
        keys, grads = map(frozen, arrays)
        update = Update(keys, grads, body["weight"], 0, body["rest"], push, step=body["step"])
        slots = np.zeros(NUM_SLOTS, np.bool_)
        slots[table.slots_of(keys)] = True
        self.copies.hold(table, body["rank"], body["round"], update)
        self.copies.note(push, table, slots)
        return
        yield

    def _closed(self, body: dict[str, Any], arrays: list[NDArray[Any]]) -> Turns[None]:
        table = self._known(body)
        self.copies.settle(table, body["clock"] - 1, unpack_slots(body["slots"]))
        return
        yield

    def _windows(self, body: dict[str, Any], arrays: list[NDArray[Any]]) -> Turns[None]:
        self.copies.windows.adopt(unpack_slots(body["slots"]), body["blob"], keep=True)
        return
        yield

    def _note_clock(self, table: Table, clock: int) -> None:
        self.clocks[table] = max(clock, self.clocks.get(table, 0))

    def _known(self, body: dict[str, Any]) -> Table:
        table = self._find(body["table"])
        if table is None:
            raise UnknownTableError(f"id {body['table']:x}", "a copy of it came before it")
        return table

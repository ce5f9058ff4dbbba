"""Requests that change rows: pushes, also with a pull behind, and rows that are set or deleted.

What of a request has been applied here already, `kv.delivery` leaves out.
"""

from __future__ import annotations

from collections.abc import Callable

from kv.delivery.desk import Desk
from kv.engine import Engine
from kv.errors import KVError
from kv.serving.commands import Answering, Commands
from kv.serving.ranks import Ranks
from kv.serving.tables import ServedTables
from kv.table_messages import bases_of, clocks_of, counted, leave_pull, writes_of
from kv.table_protocol import Command
from postoffice.postoffice import Postoffice
from van.message import Message, answer_to


class Writes:
    """Applies them, in turns.

    Args:
        office: the node.
        engine: has the rows.
        tables: by the ids in requests.
        desk: knows what is left of a request, and is told what is done.
        ranks: of those who ask.
        pull: answers the pull of a push and pull.
    """

    def __init__(
        self,
        office: Postoffice,
        engine: Engine,
        tables: ServedTables,
        desk: Desk,
        ranks: Ranks,
        pull: Callable[[Message], Answering],
    ) -> None:
        self._office, self._engine, self._desk, self._ranks = office, engine, desk, ranks
        self._tables, self._tables_of, self._pull = tables, tables.of, pull
        self.commands: Commands = {
            Command.PUSH: self._push,
            Command.PUSH_PULL: self._push_pull,
            Command.ASSIGN: self._assign,
            Command.DELETE: self._delete,
        }

    def _push(self, message: Message) -> Answering:
        meta = message.meta
        tables = self._tables_of(meta)
        clocks = {clock for *_, clock in tables}
        if len(clocks) > 1:
            raise KVError(f"one push belongs to one step, not to {sorted(clocks)}")
        body = meta.body or {}
        yield from self._engine.pushing(
            self._ranks.of(meta),
            clocks.pop() if clocks else 0,
            self._desk.left_of(meta, writes_of(message, tables)),
            float(body.get("weight", 1.0)),
            int(body.get("rest", 0)),
            meta,
            bases_of(meta),
        )
        self._desk.note_push(message)
        return Message(answer_to(meta, clocks=clocks_of(tables, self._office.rank)))

    def _push_pull(self, message: Message) -> Answering:
        yield from self._push(message)
        leave_pull(message, self._tables_of(message.meta))
        return (yield from self._pull(message))

    def _assign(self, message: Message) -> Answering:
        writes = writes_of(message, self._tables_of(message.meta))
        for write in self._desk.left_of(message.meta, writes):
            yield from self._engine.assigning(*write)
        return Message(answer_to(message.meta))

    def _delete(self, message: Message) -> Answering:
        (keys,) = message.arrays
        count = yield from self._engine.deleting(self._tables.one(message.meta), keys)
        return counted(message.meta, count)

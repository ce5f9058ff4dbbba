"""Reads that no clock holds back: how many rows there are, which, and what is noted of them."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from kv.engine import MOST_ROWS, Engine
from kv.serving.commands import Answering, Commands
from kv.serving.tables import ServedTables
from kv.table_messages import counted
from kv.table_protocol import Command
from van.message import Message, answer_to


class Reads:
    """Each is about one table.

    Args:
        engine: has the rows.
        tables: by the ids in requests.
    """

    def __init__(self, engine: Engine, tables: ServedTables) -> None:
        self._engine, self._tables = engine, tables
        self.commands: Commands = {
            Command.SIZE: self._size,
            Command.SCAN: self._scan,
            Command.META: self._meta,
            Command.CHANGED: self._changed,
            Command.STATS: self._stats,
        }

    def _size(self, message: Message) -> Answering:
        return counted(message.meta, self._engine.size(self._tables.one(message.meta)))
        yield

    def _scan(self, message: Message) -> Answering:
        number, body = self._tables.one(message.meta), message.meta.body
        keys, values, go_on = self._engine.scan(number, int(body["start"]), int(body["count"]))
        arrays: list[NDArray[Any]] = [keys, values]
        return Message(answer_to(message.meta, body={"next": go_on}), arrays)
        yield

    def _meta(self, message: Message) -> Answering:
        ((_, table, _),) = self._tables.of(message.meta)
        (keys,) = message.arrays
        columns = yield from table.describing(keys)
        return Message(answer_to(message.meta), list(columns))

    def _changed(self, message: Message) -> Answering:
        ((_, table, _),), body = self._tables.of(message.meta), message.meta.body
        count = max(1, min(int(body["count"]), MOST_ROWS))
        since, until = body["since"], body["until"] or table.store.versions
        keys, values, go_on = table.changed(int(body["start"]), count, since, until)
        answer = answer_to(message.meta, body={"next": go_on, "until": list(until)})
        return Message(answer, [keys, values])
        yield

    def _stats(self, message: Message) -> Answering:
        ((_, table, _),) = self._tables.of(message.meta)
        return Message(answer_to(message.meta, body=self._tables.stats_of(table)))
        yield

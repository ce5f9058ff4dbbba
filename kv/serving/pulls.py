"""Pulls: values of rows, of all that were asked for or of those that have changed.

One that its consistency mode does not answer yet is kept, and comes again when a clock has
advanced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from kv.delivery.desk import Desk
from kv.engine import Engine
from kv.engine_table import Table
from kv.refreshing import answering, note_packed
from kv.serving.commands import Answering, Commands
from kv.serving.held import HeldPulls
from kv.serving.memory import AnswerMemory
from kv.serving.ranks import Ranks
from kv.serving.tables import ServedTables
from kv.table_messages import clocks_of, is_whole, next_array, no_more
from kv.table_protocol import Command
from kv.unpacking import Unpacker
from postoffice.postoffice import Postoffice
from van.message import Message, answer_to


class Pulls:
    """Answers pulls, in turns.

    Args:
        office: the node.
        engine: has the rows.
        tables: by the ids in requests.
        desk: knows the slot map.
        ranks: of those who ask.
        held: where pulls wait.
        memory: for the values of answers.
        unpacker: compresses them where tables say so.
    """

    def __init__(
        self,
        office: Postoffice,
        engine: Engine,
        tables: ServedTables,
        desk: Desk,
        ranks: Ranks,
        held: HeldPulls,
        memory: AnswerMemory,
        unpacker: Unpacker,
    ) -> None:
        self._office, self._engine, self._desk, self._ranks = office, engine, desk, ranks
        self._tables_of = tables.of
        self._held, self._memory, self._unpacker = held, memory, unpacker
        self.commands: Commands = {Command.PULL: self.pull, Command.REFRESH: self._refresh}

    def pull(self, message: Message) -> Answering:
        """The answer to a PULL; None: it waits."""
        meta = message.meta
        tables = self._tables_of(meta)
        if self._must_hold(message, tables):
            return None
        create = bool(meta.body["create"])
        arrays = iter(message.arrays)
        values: list[NDArray[Any]] = []
        empty = self._memory.empty_for(meta.sender)
        for _, table, _ in tables:
            keys = None if is_whole(meta, table) else next_array(arrays)
            if keys is not None and meta.key_list:
                table.remember(keys)
            values.append((yield from table.pulling(keys, create, empty)))
            if table.mode.notes_pulls:
                table.answered(self._ranks.of(meta), keys, values[-1])
        no_more(arrays)
        answer = Message(answer_to(meta, clocks=clocks_of(tables, self._office.rank)), values)
        if self._unpacker.packs:
            self._unpacker.pack(answer, tables)
        return answer

    def _refresh(self, message: Message) -> Answering:
        tables = self._tables_of(message.meta)
        if self._must_hold(message, tables):
            return None
        office = self._office
        answer = yield from answering(message, tables, office.incarnation, self._desk.map_version)
        answer.meta.clocks = clocks_of(tables, office.rank)
        if self._unpacker.packs:
            self._unpacker.pack(answer, tables)
            note_packed(answer)
        return answer

    def _must_hold(self, message: Message, tables: Sequence[tuple[int, Table, int]]) -> bool:
        """Whether a pull has to wait; it is then kept."""
        rank = self._ranks.of(message.meta)
        self._engine.progress.check_rank(rank)
        return self._held.keep(message, tables, rank)

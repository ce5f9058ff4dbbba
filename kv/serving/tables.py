"""The tables of a server by the ids that requests name, and what is said of a whole table.

The engine has them by number. Each comes here when a worker defines it, or a server that has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kv.engine import Engine
from kv.engine_table import Table
from kv.errors import TableConflictError, UnknownTableError
from kv.rehearsal import Rehearsal
from kv.serving.commands import Answering, Commands
from kv.spec import TableSpec
from kv.table_protocol import Command, table_id
from kv.unpacking import Unpacker
from van.message import Message, Meta, answer_to


class ServedTables:
    """What this server has of tables.

    Args:
        engine: makes them.
        unpacker: is told of each.
        check: raises for a definition that this job cannot have.

    Attributes:
        by_id: number and table of the engine.
        commands: that concern a table as a whole.
    """

    def __init__(
        self, engine: Engine, unpacker: Unpacker, check: Callable[[TableSpec], None]
    ) -> None:
        self.by_id: dict[int, tuple[int, Table]] = {}
        self._engine, self._unpacker, self._check = engine, unpacker, check
        self._rehearsal = Rehearsal(engine.parts)
        self.commands: Commands = {
            Command.DEFINE: self._define,
            Command.SET_LR: self._set_lr,
            Command.UNSENT: self._unsent,
        }

    def find_or_define(self, spec: TableSpec) -> Table:
        """Make a table, its kernels loaded, or find it.

        Raises:
            TableConflictError: the name, or its id, stands for another definition.
        """
        engine, identity = self._engine, table_id(spec.name)
        if spec.name not in engine.numbers:
            resolved = spec.resolved(engine.default_mode, engine.seed)
            self._check(resolved)
            self._rehearsal.play(resolved)
        number = engine.define(spec)
        known, table = self.by_id.setdefault(identity, (number, engine.table(number)))
        if known != number:
            raise TableConflictError(spec.name, "its id is that of another table; rename it")
        self._unpacker.define(spec, identity)
        return table

    def of_id(self, identity: int) -> Table | None:
        """The table of that id; None: it is not defined here."""
        known = self.by_id.get(identity)
        return None if known is None else known[1]

    def of(self, meta: Meta) -> list[tuple[int, Table, int]]:
        """The tables of a request, by number and itself, and the worker's step for each.

        Raises:
            UnknownTableError: one is not defined here.
        """
        found = []
        for identity, clock, _ in meta.clocks:
            known = self.by_id.get(identity)
            if known is None:
                raise UnknownTableError(f"id {identity:x}", "it is not defined on this server")
            found.append((*known, clock))
        return found

    def one(self, meta: Meta) -> int:
        """The number of the one table of a request."""
        ((number, _, _),) = self.of(meta)
        return number

    def facts(self) -> list[dict[str, Any]]:
        """What somebody outside the cluster is told of the tables."""
        return [self.stats_of(table) for _, table in list(self.by_id.values())]

    def stats_of(self, table: Table) -> dict[str, Any]:
        """The statistics of a table, and of what came compressed for it."""
        seen = self._unpacker.stats(table.id)
        return table.stats() | ({"compression": seen} if seen else {})

    def _define(self, message: Message) -> Answering:
        self.find_or_define(TableSpec.from_dict(message.meta.body))
        return Message(answer_to(message.meta))
        yield

    def _set_lr(self, message: Message) -> Answering:
        self._engine.set_lr(self.one(message.meta), float(message.meta.body["lr"]))
        return Message(answer_to(message.meta))
        yield

    def _unsent(self, message: Message) -> Answering:
        self._engine.note_non_finite(self.one(message.meta), int(message.meta.body["count"]))
        return Message(answer_to(message.meta))
        yield

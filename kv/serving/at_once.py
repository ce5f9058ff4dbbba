"""Short pulls and pushes of one sparse table, answered on the spot.

This is what most requests are, without turns and lanes. `kv.table_server` says when it may be; here
None means that a request has to wait, or to take turns, after all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kv.delivery.desk import Desk
from kv.engine import Engine
from kv.engine_table import Table
from kv.serving.memory import AnswerMemory
from kv.serving.ranks import Ranks
from kv.table_messages import leave_pull
from kv.table_protocol import Command
from van.message import Clock, Message, answer_to

_NO_BODY: dict[str, Any] = {}


class AtOnce:
    """Answers what can be answered at once.

    Attributes:
        commands: by command, called with a request, the table's number and itself, and the step.
    """

    def __init__(self, engine: Engine, desk: Desk, ranks: Ranks, memory: AnswerMemory) -> None:
        self._engine, self._desk, self._ranks, self._memory = engine, desk, ranks, memory
        self.commands: dict[int, Callable[[Message, int, Table, int], Message | None]] = {
            Command.PULL: self.pull,
            Command.PUSH: self.push,
            Command.PUSH_PULL: self.push_pull,
        }

    def pull(self, message: Message, number: int, table: Table, step: int) -> Message | None:
        """The answer to a pull of one sparse table; None where it has to wait or to take turns."""
        meta = message.meta
        rank = self._ranks.of(meta)
        self._engine.progress.check_rank(rank)
        if len(message.arrays) != 1 or not table.mode.may_pull(rank, step):
            return None
        (keys,) = message.arrays
        if meta.key_list:
            table.remember(keys)
        values = table.pull_at_once(
            keys, bool(meta.body["create"]), self._memory.empty_for(meta.sender)
        )
        if values is None:
            return None
        table.answered(rank, keys, values)
        return Message(answer_to(meta, clocks=(self._clock(table),)), [values])

    def push(self, message: Message, number: int, table: Table, step: int) -> Message | None:
        """The answer to a push to one sparse table; None where it has to take turns."""
        meta, arrays = message.meta, message.arrays
        if len(arrays) != 2:
            return None
        body, ((_, _, pairs),) = meta.body or _NO_BODY, meta.clocks
        clocks = self._engine.push_at_once(
            self._ranks.of(meta),
            step,
            (number, arrays[0], arrays[1]),
            float(body.get("weight", 1.0)),
            int(body.get("rest", 0)),
            meta,
            (pairs[0][1],) if pairs else (),
        )
        if clocks is None:
            return None
        self._desk.note_push(message)
        return Message(answer_to(meta, clocks=(self._clock(table),)))

    def _clock(self, table: Table) -> Clock:
        return table.id, table.mode.clock, ((self._engine.server(), table.store.version),)

    def push_pull(self, message: Message, number: int, table: Table, step: int) -> Message | None:
        """The answer to a push and a pull; where the pull has to wait, that alone is left of it."""
        if self.push(message, number, table, step) is None:
            return None
        leave_pull(message, [(number, table, step)])
        return self.pull(message, number, table, step)

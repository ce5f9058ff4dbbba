"""Requests that a dispatcher passes on as they are, and answers in one what servers have answered.

to one server       SCAN, CHANGED: `to` in the body is the server's id
to the rows' owners ASSIGN, DELETE, META
to the first server UNSENT
to all servers      the others: DEFINE, SIZE, STATS, SET_LR
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kv.consistency.settings import Consistency
from kv.dispatcher.known_tables import KnownTables
from kv.dispatcher.receiving import parts_of
from kv.dispatcher.refusing import Error
from kv.dispatcher.upstream import Servers
from kv.dispatcher.way import folded
from kv.errors import KVError
from kv.spec import TableSpec
from kv.table_protocol import Command
from postoffice.node import role_and_rank
from van.message import Message, answer_to

Answer = Callable[[Message, Message], None]
Fail = Callable[[Message, BaseException, Error | None], None]

_OWNERS = (Command.ASSIGN, Command.DELETE, Command.META)


class Relay:
    """Passes requests on.

    Args:
        servers: to whom.
        tables: those that are defined.
        mode, seed: the job's, of tables that name none.
        define: takes in a definition that servers have taken; calls back when it has, with what
            went wrong.
    """

    def __init__(
        self,
        servers: Servers,
        tables: KnownTables,
        mode: Consistency,
        seed: int,
        define: Callable[[TableSpec, Callable[[BaseException | None], None]], None],
    ) -> None:
        self._servers, self._tables, self._define = servers, tables, define
        self._mode, self._seed = mode, seed

    def take(self, message: Message, answer: Answer, fail: Fail) -> None:
        """Pass a request on; `answer` or `fail` is called with it when servers have answered.

        Raises:
            KVError: it cannot be passed on.
        """
        meta = message.meta
        found: list[Message] = []

        def answered(error: BaseException | None, said: Error | None) -> None:
            if error is not None:
                fail(message, error, said)
                return
            if meta.cmd == Command.DEFINE:
                spec = TableSpec.from_dict(meta.body).resolved(self._mode, self._seed)
                self._servers.office.reach(meta.sender)  # only this thread may make connections
                self._define(spec, defined)
            else:
                defined(None)

        def defined(error: BaseException | None) -> None:
            if error is not None:
                fail(message, error, None)
                return
            body, arrays = folded(found)
            answer(message, Message(answer_to(meta, body=body), arrays))

        if meta.cmd in _OWNERS:
            self._ask_owners(message, answered, found.extend)
            return
        if meta.cmd not in set(Command):
            raise KVError(f"tables know no command {meta.cmd}")
        body = meta.body
        servers = self._servers.living()
        if isinstance(body, dict) and "to" in body:
            body = {key: value for key, value in body.items() if key != "to"}
            servers = [int(meta.body["to"])]
        elif meta.cmd == Command.UNSENT:
            servers = servers[:1]  # it is counted once
        self._servers.tell(
            meta.cmd, meta.flags, servers, meta.clocks, lambda _: body, answered, found.extend
        )

    def _ask_owners(
        self, message: Message, answered: Any, collect: Callable[[list[Message]], None]
    ) -> None:
        meta = message.meta
        (table,) = self._tables.of(meta)
        ((_, step, _),) = meta.clocks
        if meta.cmd == Command.ASSIGN:
            ((keys, values),) = parts_of(message, [table])
        else:
            (keys,), values = message.arrays, None
        rank = role_and_rank(meta.sender)[1]
        self._servers.ask_owners(
            Command(meta.cmd), table, keys, values, rank, step, answered, collect
        )

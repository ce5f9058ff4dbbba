"""Tables on a server: requests in, the engine asked, answers out.

A pull that the consistency mode does not answer yet is kept, and tried again whenever a clock
advances. Everything runs in the thread that drives the node's van.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv.engine import Engine, Write
from kv.errors import KVError, TableConflictError, UnknownTableError
from kv.keylists.kept import KeptLists
from kv.placement import SlotMap, slot_of
from kv.server import error_answer
from kv.spec import TableSpec
from kv.table_protocol import TABLES_APP, WITH_VALUES, Command, table_id
from postoffice.customer import Customer
from postoffice.node import Role, role_and_rank
from postoffice.postoffice import Postoffice
from van.errors import CodecError
from van.message import Clock, Message, Meta, answer_to

log = logging.getLogger(__name__)


class TableServer:
    """Serves the tables of one server node.

    Args:
        office: the node, not yet started.
        mode: of tables that name none.
        seed: of initial values.
        key_cache: bytes of key lists remembered for each worker.
    """

    def __init__(
        self, office: Postoffice, mode: str = "async", seed: int = 1, key_cache: int = 64 << 20
    ) -> None:
        self.office = office
        self.lists = KeptLists(key_cache)
        self.engine = Engine(office.shape.workers, mode, seed, owner_filter=self._owns)
        self._slots = SlotMap.even(max(1, office.shape.servers))
        self._numbers: dict[int, int] = {}
        self._held: list[Message] = []
        self._handlers: dict[int, Callable[[Message], Message | None]] = {
            Command.DEFINE: self._define,
            Command.PULL: self._pull,
            Command.PUSH: self._push,
            Command.STEP: self._step,
            Command.FINISH: self._finish,
            Command.ASSIGN: self._assign,
            Command.DELETE: self._delete,
            Command.SIZE: self._size,
            Command.SCAN: self._scan,
            Command.SET_LR: self._set_lr,
        }
        Customer(TABLES_APP, 0, office, self._receive)

    def _owns(self, keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
        owner: NDArray[np.bool_] = self._slots.owner[slot_of(keys)] == self.office.rank
        return owner

    def _receive(self, message: Message) -> None:
        try:
            handler = self._handlers.get(message.meta.cmd)
            if handler is None:
                raise KVError(f"tables know no command {message.meta.cmd}")
            if message.meta.clocks:
                self._complete(message)
            answer = handler(message)
        except Exception as error:
            log.debug("request failed: %r", message, exc_info=True)
            answer = error_answer(message.meta, error, self.office.node_id)
        if answer is None:
            return
        try:
            self.office.send(answer)
        except CodecError as error:  # too large for the van
            self.office.send(error_answer(message.meta, error, self.office.node_id))

    def _number(self, table: int) -> int:
        number = self._numbers.get(table)
        if number is None:
            raise UnknownTableError(f"id {table:x}", "it is not defined on this server")
        return number

    def _complete(self, message: Message) -> None:
        """Bring the request's key lists, which may be named or coded, into their places."""
        dense = [self.engine.is_dense(number) for number, _ in self._tables(message.meta)]
        self.lists.complete(message, dense, message.meta.cmd in WITH_VALUES)

    def _tables(self, meta: Meta) -> list[tuple[int, int]]:
        """The engine's numbers of the tables of a request, and the worker's step for each."""
        return [(self._number(table), clock) for table, clock, _ in meta.clocks]

    def _clocks(self, meta: Meta) -> tuple[Clock, ...]:
        """The tables' clocks, for an answer."""
        return tuple(
            (table, self.engine.clock(self._number(table)), ()) for table, *_ in meta.clocks
        )

    def _define(self, message: Message) -> Message:
        spec = TableSpec.from_dict(message.meta.body)
        identity = table_id(spec.name)
        number = self.engine.define(spec)
        if self._numbers.setdefault(identity, number) != number:
            raise TableConflictError(spec.name, "its id is that of another table; rename it")
        return Message(answer_to(message.meta))

    def _pull(self, message: Message) -> Message | None:
        meta = message.meta
        rank = _worker_rank(meta)
        tables = self._tables(meta)
        if not all(self.engine.may_pull(number, rank, clock) for number, clock in tables):
            self._held.append(message)
            return None
        create = bool(meta.body["create"])
        arrays = iter(message.arrays)
        values = [
            self.engine.pull_dense(number)
            if self.engine.is_dense(number)
            else self.engine.pull(number, _next(arrays), create)
            for number, _ in tables
        ]
        _end(arrays)
        return Message(answer_to(meta, clocks=self._clocks(meta)), list(values))

    def _push(self, message: Message) -> Message:
        meta = message.meta
        tables = self._tables(meta)
        clocks = {clock for _, clock in tables}
        if len(clocks) > 1:
            raise KVError(f"one push belongs to one step, not to {sorted(clocks)}")
        writes = self._writes(message)
        body = meta.body or {}
        self.engine.push_many(
            _worker_rank(meta),
            clocks.pop() if clocks else 0,
            writes,
            float(body.get("weight", 1.0)),
            bool(body.get("rest", False)),
        )
        return Message(answer_to(meta, clocks=self._clocks(meta)))

    def _writes(self, message: Message) -> list[Write]:
        """Table, keys and values of each table of a push or assignment."""
        arrays = iter(message.arrays)
        writes = [
            self.engine.dense_write(number, _next(arrays))
            if self.engine.is_dense(number)
            else (number, _next(arrays), _next(arrays))
            for number, _ in self._tables(message.meta)
        ]
        _end(arrays)
        return writes

    def _step(self, message: Message) -> Message:
        advanced = self.engine.step(_worker_rank(message.meta), int(message.meta.body["clock"]))
        if advanced:
            self._answer_held()
        return Message(answer_to(message.meta))

    def _finish(self, message: Message) -> Message:
        self.lists.forget(message.meta.sender)
        if self.engine.finish(_worker_rank(message.meta)):
            self._answer_held()
        return Message(answer_to(message.meta))

    def _answer_held(self) -> None:
        held, self._held = self._held, []
        for message in held:
            self._receive(message)

    def _assign(self, message: Message) -> Message:
        for write in self._writes(message):
            self.engine.assign(*write)
        return Message(answer_to(message.meta))

    def _delete(self, message: Message) -> Message:
        ((number, _),) = self._tables(message.meta)
        (keys,) = message.arrays
        return _counted(message.meta, self.engine.delete(number, keys))

    def _size(self, message: Message) -> Message:
        ((number, _),) = self._tables(message.meta)
        return _counted(message.meta, self.engine.size(number))

    def _scan(self, message: Message) -> Message:
        ((number, _),) = self._tables(message.meta)
        body = message.meta.body
        keys, values, go_on = self.engine.scan(number, int(body["start"]), int(body["count"]))
        arrays: list[NDArray[Any]] = [keys, values]
        return Message(answer_to(message.meta, body={"next": go_on}), arrays)

    def _set_lr(self, message: Message) -> Message:
        ((number, _),) = self._tables(message.meta)
        self.engine.set_lr(number, float(message.meta.body["lr"]))
        return Message(answer_to(message.meta))


def _worker_rank(meta: Meta) -> int:
    role, rank = role_and_rank(meta.sender)
    if role is not Role.WORKER:
        raise KVError(f"only workers push and pull tables, not a {role}")
    return rank


def _next(arrays: Iterator[NDArray[Any]]) -> NDArray[Any]:
    for array in arrays:
        return array
    raise KVError("a request has fewer arrays than its tables need")


def _end(arrays: Iterator[NDArray[Any]]) -> None:
    for _ in arrays:
        raise KVError("a request has more arrays than its tables need")


def _counted(meta: Meta, count: int) -> Message:
    return Message(answer_to(meta, body={"count": count}))

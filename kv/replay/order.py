"""The order of a server's requests: written down by `Recording`, kept to by `Replaying`.

Either way a server works on one request after the other, in one lane, whatever tables and workers
they are of; parts of one request still run beside each other. So the order of requests is all
there is to know, also of each part of each table, and it is noted where a request gets its turn.
A read that has to wait for others' steps gets two turns: one to find that out, one to be answered.

`kv.table_server` hands over what comes and gets back what is to be worked on now.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

from kv.errors import KVError
from kv.replay.answers import KeptAnswers
from kv.replay.entry import Entry, digest_of
from kv.replay.recordfile import Record, RecordWriter
from kv.replay.script import Script
from kv.table_protocol import Command, table_id
from postoffice.node import role_and_rank
from postoffice.postoffice import Postoffice
from van.message import Message, Meta

Handle = Callable[[Message], None]
Refuse = Callable[[Message, Exception], None]

LANE = "order"  # the one lane of a server's executor
TICK = 1.0  # seconds between two looks at buffers and time


class Order(ABC):
    """What both have in common. Requests may come in any thread."""

    threads: int | None = None  # that the server must have; None: as many as it likes

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a request that is worked on may let others have their turn
        self._names: dict[int, str] = {}  # of tables, by id
        self._answers = KeptAnswers()

    def attach(
        self, office: Postoffice, work: Handle, refuse: Refuse, fail: Callable[[Exception], None]
    ) -> None:
        """Serve that server.

        Args:
            office: its node, not yet started.
            work: works on a request, or has it worked on.
            refuse: answers a request that cannot be worked on.
            fail: ends the node because of an error.
        """
        self._office, self._work, self._refuse, self._fail = office, work, refuse, fail
        office.van.every(TICK, self._tick)

    def receiving(self, receive: Handle, send: Callable[[Message, Message], None]) -> Handle:
        """`receive`, but reads that were answered before get that answer again, by `send`.

        Late copies, which nobody waits for, have no turn.
        """

        def take(message: Message) -> None:
            if self._answers.is_late(message.meta):
                return
            known = self._answers.again(message.meta)
            if known is None:
                # Another thread may give it its turn, and that one may not connect.
                self._office.reach(message.meta.sender)
                receive(message)
            else:
                send(known, message)

        return take

    def answered(self, request: Message, answer: Message) -> None:
        """A request was worked on, and is about to be answered. Any thread."""
        self._answers.keep(request.meta, answer)

    def dispatch(self, message: Message) -> None:
        """A request is ready to be worked on. Any thread."""
        with self._lock:
            try:
                self._take(message)
            except KVError as error:
                self._fail(error)

    @abstractmethod
    def _take(self, message: Message) -> None:
        """Note the request's turn, or wait for it. The lock is held."""

    @abstractmethod
    def _look(self) -> None:
        """Do what is to be done from time to time. The lock is held."""

    @abstractmethod
    def end(self, why: str = "") -> None:
        """The server has worked on its last request; `why` it ended early.

        Raises:
            DivergenceError: the record goes on.
        """

    def _tick(self) -> None:
        with self._lock:
            try:
                self._look()
            except KVError as error:
                self._fail(error)

    def _act(self, message: Message) -> None:
        """Work on a request whose turn it is."""
        try:
            self._work(message)
        except Exception as error:  # of a request that nobody can work on
            self._refuse(message, error)

    def _tables(self, meta: Meta) -> list[str]:
        """The names of the tables that a request is about."""
        if meta.cmd == Command.DEFINE:
            name = str(meta.body.get("name"))
            self._names[table_id(name)] = name
            return [name]
        return [self._names.get(identity, f"id {identity:x}") for identity, _, _ in meta.clocks]


def _entry(message: Message, tables: int) -> Entry:
    meta = message.meta
    _, rank = role_and_rank(meta.sender)
    return Entry(meta.timestamp, digest_of(message), rank, tables, meta.cmd & 0xFF)


class Recording(Order):
    """Writes the order down, as it comes.

    Args:
        writer: of this server's record.
    """

    def __init__(self, writer: RecordWriter) -> None:
        super().__init__()
        self._writer = writer

    def _take(self, message: Message) -> None:
        writer, tables = self._writer, self._tables(message.meta)
        if message.meta.cmd == Command.DEFINE:
            writer.define(message.meta.body)
        writer.add(_entry(message, writer.number_of(tables)))
        self._act(message)

    def _look(self) -> None:
        self._writer.flush()

    def end(self, why: str = "") -> None:
        with self._lock:
            self._writer.close(why)


class Replaying(Order):
    """Keeps to a record: requests wait for their turn.

    Args:
        record: of this server.
        limit: seconds to wait for the next request; then the node fails, and says for what.
    """

    def __init__(self, record: Record, limit: float) -> None:
        super().__init__()
        self._script, self.threads = Script(record, limit), record.head.threads
        self._is_letting_go = False

    def _take(self, message: Message) -> None:
        tables = self._tables(message.meta)
        self._script.come(message, _entry(message, 0), tables)
        if self._is_letting_go:
            return  # by a request that is being worked on: who lets that one go looks again
        self._is_letting_go = True
        try:
            while (ready := self._script.next(self._office.van.now())) is not None:
                self._act(ready)
        finally:
            self._is_letting_go = False

    def _look(self) -> None:
        self._script.check_time(self._office.van.now())

    def end(self, why: str = "") -> None:
        if not why:
            self._script.check_end()
